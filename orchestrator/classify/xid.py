"""NVIDIA's Xid errors, as the catalogue of October 2025 has them: what each is, and what it asks for. Pure.

The table is NVIDIA's; who is to blame is ours. 43 and 45 are printed for every CUDA program that is killed,
so they never are a cause, and 13 or 31 are most often the program's own doing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from orchestrator.types.failure import FailureClass

_F = FailureClass


class Action(str, Enum):
    """What the catalogue asks for at once, in a person's words."""

    RESTART_APP = "restart the program"
    RESET_GPU = "reset the GPU"
    REBOOT_HOST = "reboot the host"
    RESTART_VM = "restart the virtual machine"
    FOLLOW_OTHER = "follow the Xid that came with it"
    WORKFLOW_ECC = "reset the GPU, and have it replaced if it comes again"
    WORKFLOW_NVLINK = "reset the GPUs of the link, and have it looked at if it comes again"
    CHECK_POWER = "check the card's power connector"
    CHECK_UVM = "reload the driver's nvidia-uvm"
    UPDATE = "update driver and firmware"
    SUPPORT = "ask NVIDIA's support"
    ASK_DRIVER = "do what the driver asks for"
    IGNORE = "nothing"
    NONE = "not said"


class Blame(str, Enum):
    """What an Xid says about a run that died with it."""

    HARDWARE = "hardware"  # the card, its memory or its links; beats every NCCL line
    PROGRAM = "program"  # a kernel of the program, in most cases
    CONSEQUENCE = "consequence"  # of another failure, or of a stop
    NOTE = "note"  # nothing on its own


_A = Action

_TABLE: dict[int, tuple[str, Action]] = {
    8: ("GPU stopped processing", _A.RESTART_APP),
    11: ("Invalid or corrupted push buffer stream", _A.RESTART_APP),
    13: ("Graphics Engine Exception", _A.RESTART_APP),
    25: ("Invalid or illegal push buffer stream", _A.RESTART_APP),
    31: ("GPU memory page fault", _A.RESTART_APP),
    32: ("Invalid or corrupted push buffer stream", _A.RESTART_APP),
    37: ("Driver firmware error", _A.IGNORE),
    38: ("Driver firmware error", _A.IGNORE),
    39: ("Copy Engine Exception", _A.RESTART_APP),
    40: ("Copy Engine Exception", _A.RESTART_APP),
    41: ("Copy Engine Exception", _A.RESTART_APP),
    43: ("GPU stopped processing", _A.IGNORE),
    44: ("Graphics Engine fault during context switch", _A.IGNORE),
    45: ("Preemptive cleanup, due to previous errors", _A.FOLLOW_OTHER),
    46: ("GPU stopped processing", _A.RESET_GPU),
    48: ("Double Bit ECC Error", _A.WORKFLOW_ECC),
    54: ("Auxiliary power is not connected to the GPU board", _A.CHECK_POWER),
    60: ("Video processor exception", _A.RESTART_APP),
    62: ("Internal micro-controller halt", _A.RESET_GPU),
    63: ("GPU memory remapping event", _A.IGNORE),
    64: ("GPU memory remapping failure", _A.RESET_GPU),
    66: ("Illegal access by driver", _A.IGNORE),
    67: ("Illegal access by driver", _A.IGNORE),
    68: ("NVDEC0 Exception", _A.RESTART_APP),
    69: ("Graphics Engine class error", _A.RESTART_APP),
    70: ("CE3: Unknown Error", _A.RESTART_APP),
    71: ("CE4: Unknown Error", _A.RESTART_APP),
    72: ("CE5: Unknown Error", _A.RESTART_APP),
    74: ("NVLINK Error", _A.WORKFLOW_NVLINK),
    75: ("CE6: Unknown Error", _A.RESTART_APP),
    76: ("CE7: Unknown Error", _A.RESTART_APP),
    77: ("CE8: Unknown Error", _A.RESTART_APP),
    78: ("vGPU start error", _A.UPDATE),
    79: ("GPU has fallen off the bus", _A.REBOOT_HOST),
    80: ("Corrupted data sent to GPU", _A.RESTART_APP),
    82: ("NVJPG0 Error", _A.RESTART_APP),
    83: ("NVDEC1 Error", _A.RESTART_APP),
    84: ("NVDEC2 Error", _A.RESTART_APP),
    85: ("CE9: Unknown Error", _A.RESTART_APP),
    86: ("OFA Exception", _A.RESTART_APP),
    88: ("NVDEC3 Error", _A.RESTART_APP),
    89: ("NVDEC4 Error", _A.RESTART_APP),
    92: ("High single-bit ECC error rate", _A.IGNORE),
    93: ("Non-fatal violation of provisioned InfoROM wear limit", _A.IGNORE),
    94: ("Contained memory error", _A.RESTART_APP),
    95: ("Uncontained memory error", _A.RESET_GPU),
    96: ("NVDEC5 Error", _A.RESTART_APP),
    97: ("NVDEC6 Error", _A.RESTART_APP),
    98: ("NVDEC7 Error", _A.RESTART_APP),
    99: ("NVJPG1 Error", _A.RESTART_APP),
    100: ("NVJPG2 Error", _A.RESTART_APP),
    101: ("NVJPG3 Error", _A.RESTART_APP),
    102: ("NVJPG4 Error", _A.RESTART_APP),
    103: ("NVJPG5 Error", _A.RESTART_APP),
    104: ("NVJPG6 Error", _A.RESTART_APP),
    105: ("NVJPG7 Error", _A.RESTART_APP),
    106: ("SMBPBI Test Message", _A.IGNORE),
    107: ("SMBPBI Test Message Silent", _A.IGNORE),
    109: ("Context Switch Timeout Error", _A.RESET_GPU),
    110: ("Security Fault Error", _A.RESET_GPU),
    119: ("GSP RPC Timeout", _A.RESET_GPU),
    120: ("GSP Error", _A.RESET_GPU),
    121: ("C2C Error", _A.IGNORE),
    126: ("CE10: Unknown Error", _A.RESTART_APP),
    127: ("CE11: Unknown Error", _A.RESTART_APP),
    128: ("CE12: Unknown Error", _A.RESTART_APP),
    129: ("CE13: Unknown Error", _A.RESTART_APP),
    130: ("CE14: Unknown Error", _A.RESTART_APP),
    131: ("CE15: Unknown Error", _A.RESTART_APP),
    132: ("CE16: Unknown Error", _A.RESTART_APP),
    133: ("CE17: Unknown Error", _A.RESTART_APP),
    134: ("CE18: Unknown Error", _A.RESTART_APP),
    135: ("CE19: Unknown Error", _A.RESTART_APP),
    136: ("Link Training Failed", _A.RESET_GPU),
    137: ("NVLink Privilege Error", _A.IGNORE),
    139: ("OFA1 Error", _A.RESTART_APP),
    140: ("ECC Unrecovered Error", _A.RESET_GPU),
    141: ("CUDA Fast Path Error", _A.IGNORE),
    142: ("NVENC3 Error", _A.SUPPORT),
    143: ("GPU Initialization Error", _A.RESET_GPU),
    144: ("NVLINK: SAW Error", _A.WORKFLOW_NVLINK),
    145: ("NVLINK: RLW Error", _A.WORKFLOW_NVLINK),
    146: ("NVLINK: TLW Error", _A.WORKFLOW_NVLINK),
    147: ("NVLINK: TREX Error", _A.WORKFLOW_NVLINK),
    148: ("NVLINK: NVLPW_CTRL Error", _A.WORKFLOW_NVLINK),
    149: ("NVLINK: NETIR Error", _A.WORKFLOW_NVLINK),
    150: ("NVLINK: MSE Error", _A.WORKFLOW_NVLINK),
    151: ("Key rotation Error", _A.RESTART_VM),
    152: ("DLA SMMU Error", _A.IGNORE),
    153: ("DLA timeout Error", _A.IGNORE),
    154: ("GPU Recovery Action Changed", _A.ASK_DRIVER),
    155: ("NVLINK: SW Defined Error", _A.RESET_GPU),
    156: ("Resource Retirement Event", _A.RESET_GPU),
    157: ("Resource Retirement Failure", _A.IGNORE),
    158: ("GPU Fatal Timeout", _A.RESET_GPU),
    159: ("CHI Non-Data Error", _A.CHECK_UVM),
    160: ("Channel Retirement Event", _A.IGNORE),
    161: ("Channel Retirement Failure", _A.IGNORE),
    162: ("Power Smoothing HW Circuitry capability reengaged", _A.NONE),
    163: ("Power Smoothing HW Circuitry capability disengaged", _A.NONE),
    164: ("Power Smoothing HW Circuitry low lifetime reached", _A.NONE),
    165: ("Power Smoothing HW Circuitry lifetime exhausted", _A.NONE),
    166: ("CC traffic seen prior to link properly being configured for encrypted traffic", _A.NONE),
    167: ("PCIE_FATAL_TIMEOUT", _A.NONE),
    168: ("Errors found in WPR (write protected region)", _A.NONE),
    169: ("Internal micro-controller halt", _A.NONE),
    170: ("Interrupt seen in CC mode", _A.NONE),
    171: ("Details on where Xid 48 happened, DRAM or SRAM", _A.NONE),
    172: ("Details on where Xid 48 happened, DRAM or SRAM", _A.NONE),
}

_FAILURES: dict[FailureClass, frozenset[int]] = {
    _F.GPU_ECC: frozenset({48, 64, 94, 95, 140, 156, 157, 171, 172}),
    _F.GPU_NVLINK: frozenset({74, 136, 155, *range(144, 151)}),
    # Off the bus, or on it and good for nothing until a reset.
    _F.GPU_LOST: frozenset({46, 54, 62, 79, 109, 110, 119, 120, 143, 158, 167, 169}),
    _F.CUDA_ILLEGAL_ACCESS: frozenset({11, 13, 25, 31, 32, 69, 80}),
}
_CONSEQUENCES = frozenset({43, 45})
_HARDWARE = frozenset({_F.GPU_ECC, _F.GPU_NVLINK, _F.GPU_LOST})


@dataclass(frozen=True, kw_only=True)
class Xid:
    """One code of the catalogue."""

    code: int
    description: str
    action: Action
    blame: Blame
    failure: FailureClass | None = None

    @property
    def advice(self) -> str:
        """What the catalogue asks for, for people; empty if nothing."""
        return "" if self.action in (_A.IGNORE, _A.NONE) else f"NVIDIA's catalogue: {self.action.value}"


@dataclass(frozen=True, kw_only=True)
class XidSeen:
    """An Xid that the driver printed. `pci` is `0000:3b:00`; `pid` is the host's, None if it was not told."""

    xid: Xid
    pci: str
    pid: int | None = None


def find(code: int) -> Xid:
    """Return what is known of a code; one that the catalogue has not is a note."""
    description, action = _TABLE.get(code, ("not in the catalogue", _A.NONE))
    failure = next((known for known, codes in _FAILURES.items() if code in codes), None)
    if code in _CONSEQUENCES:
        blame = Blame.CONSEQUENCE
    elif failure is None:
        blame = Blame.NOTE
    else:
        blame = Blame.HARDWARE if failure in _HARDWARE else Blame.PROGRAM
    return Xid(code=code, description=description, action=action, blame=blame, failure=failure)


_PCI = re.compile(r"\b([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\b")
# `Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, ...`; old drivers leave out `PCI:`, MIG adds `GPU-I:01`.
_XID = re.compile(r"NVRM: Xid \((?P<where>[^)]*)\)[^:]*: (?P<code>\d{1,3})\b(?P<rest>.*)")
_PID = re.compile(r"\bpid='?(\d+)")


def parse(line: str) -> XidSeen | None:
    """Return the Xid of a kernel line, or None."""
    found = _XID.search(line)
    if found is None:
        return None
    pid = _PID.search(found["rest"])
    return XidSeen(
        xid=find(int(found["code"])), pci=pci_address(found["where"]) or "", pid=int(pid[1]) if pid else None
    )


def pci_address(text: str) -> str | None:
    """Return the first PCI address in `text` as `0000:3b:00`, or None; NVML writes `00000000:3B:00.0`."""
    found = _PCI.search(text)
    return f"{int(found[1], 16):04x}:{found[2].lower()}:{found[3].lower()}" if found else None
