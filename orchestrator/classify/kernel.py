"""Lines of the host's kernel log, read: Xid, OOM killer, a GPU off the bus, disks. Pure.

The kernel says one thing in several lines, so a reader remembers: whose memory cgroup the killed process was
in, and of which GPU it just began to speak.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from orchestrator.classify.xid import XidSeen, parse, pci_address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.types.seen import HostLine


class Kind(str, Enum):
    """What a kernel line tells of."""

    XID = "xid"
    GPU_GONE = "gpu_gone"
    DRIVER = "driver"
    OOM_KILL = "oom_kill"
    DISK = "disk"


@dataclass(frozen=True, kw_only=True)
class KernelEvent:
    """One line that matters. Of an OOM kill, `ct` is the container that the killed process was in.

    `pid` is the host's. `ct` is None for a process of the host itself, and where the kernel does not say.
    """

    kind: Kind
    line: HostLine
    xid: XidSeen | None = None
    pci: str | None = None
    ct: int | None = None
    pid: int | None = None
    process: str | None = None
    is_global: bool = False  # the host ran out of memory, not the container


# What of the log is wanted at all, for a filter near its source; a PCRE that Python reads as well.
WANTED = (
    r"NVRM: |nvidia-uvm|oom-kill:|[Oo]ut of memory: Kill|Task in /.* killed as a result|EXT4-fs|XFS \(|BTRFS|"
    r"I/O error|I/O failure|nvme nvme\d"
)

_CT = re.compile(r"(?:^|/)lxc(?:\.payload)?[./](\d+)(?:/|$)")
_OOM_KILL = re.compile(r"oom-kill:constraint=(?P<constraint>\w+)(?P<rest>.*)")
_OOM_TASK = re.compile(r"task_memcg=(?P<memcg>[^,]*),task=(?P<task>.*),pid=(?P<pid>\d+)")
_KILLED = re.compile(
    r"(?P<whose>Memory cgroup out of memory|[Oo]ut of memory)(?: \([^)]*\))?:? "
    r"Kill(?:ed)? process (?P<pid>\d+),? \((?P<task>[^)]*)\)"
)
_OLD_OOM = re.compile(r"Task in (?P<memcg>/\S*) killed as a result of limit of")
_GONE = re.compile(r"fallen off the bus|NVRM: .*\bGPU (?:is )?lost\b")
_GPU_NAMED = re.compile(r"NVRM: The NVIDIA GPU ")
_DRIVER = re.compile(
    r"NVRM: .*(?:RmInitAdapter failed|API mismatch|rm_init_adapter failed)|nvidia-uvm: .*(?:[Ee]rror|[Ff]ail)"
)
_DISK = re.compile(
    r"EXT4-fs error|EXT4-fs .*[Rr]emounting filesystem read-only"
    r"|XFS \(.*(?:[Cc]orruption|I/O error|shut ?down)"
    r"|BTRFS (?:error|critical)|Buffer I/O error|I/O error, dev |encountered an uncorrectable I/O failure|"
    r"nvme nvme\d+: .*(?:controller is down|timeout)"
)
_KEPT_PIDS = 64


class KernelReader:
    """Reads the lines of one kernel in their order; bounded."""

    def __init__(self) -> None:
        self._cts: OrderedDict[int, int | None] = OrderedDict()  # pid of a killed process -> its container
        self._old_ct: int | None = None
        self._named_gpu: str | None = None

    def read(self, line: HostLine) -> KernelEvent | None:
        """Return what the line tells, or None."""
        text = line.text
        if "NVRM" in text or "fallen off the bus" in text or "nvidia-uvm" in text:
            return self._driver(line)
        if "ill" in text and (found := self._oom(line)) is not None:
            return found
        return KernelEvent(kind=Kind.DISK, line=line) if _DISK.search(text) else None

    def _driver(self, line: HostLine) -> KernelEvent | None:
        text, pci = line.text, pci_address(line.text)
        seen = parse(text)
        if seen is not None:
            return KernelEvent(kind=Kind.XID, line=line, xid=seen, pci=seen.pci or None, pid=seen.pid)
        if _GONE.search(text):
            gone, self._named_gpu = pci or self._named_gpu, None
            return KernelEvent(kind=Kind.GPU_GONE, line=line, pci=gone)
        if _GPU_NAMED.search(text):
            self._named_gpu = pci
        return KernelEvent(kind=Kind.DRIVER, line=line, pci=pci) if _DRIVER.search(text) else None

    def _oom(self, line: HostLine) -> KernelEvent | None:
        old = _OLD_OOM.search(line.text)
        if old is not None:  # kernels before 5.0 name the process in the next line
            self._old_ct = _container(old["memcg"])
            return None
        summary = _OOM_KILL.search(line.text)
        if summary is not None:
            return self._summary(line, summary["constraint"], summary["rest"])
        killed = _KILLED.search(line.text)
        if killed is None:
            return None
        pid = int(killed["pid"])
        ct, self._old_ct = self._cts.get(pid, self._old_ct), None
        is_global = not killed["whose"].startswith("Memory cgroup")
        return _kill(line, ct, pid, killed["task"], is_global=is_global)

    def _summary(self, line: HostLine, constraint: str, rest: str) -> KernelEvent:
        is_global = constraint != "CONSTRAINT_MEMCG"
        task = _OOM_TASK.search(rest)
        if task is None:
            return _kill(line, None, None, None, is_global=is_global)
        ct, pid = _container(task["memcg"]), int(task["pid"])
        self._cts[pid] = ct
        if len(self._cts) > _KEPT_PIDS:
            self._cts.popitem(last=False)
        return _kill(line, ct, pid, task["task"], is_global=is_global)


def read_all(lines: Iterable[HostLine]) -> tuple[KernelEvent, ...]:
    """Return what the lines tell, in their order."""
    reader = KernelReader()
    return tuple(event for line in lines if (event := reader.read(line)) is not None)


def _kill(
    line: HostLine, ct: int | None, pid: int | None, process: str | None, *, is_global: bool
) -> KernelEvent:
    return KernelEvent(kind=Kind.OOM_KILL, line=line, ct=ct, pid=pid, process=process, is_global=is_global)


def _container(memcg: str) -> int | None:
    """Return the container's number of a memory cgroup: `/lxc/200/ns/init.scope`, `/lxc.payload.200`."""
    found = _CT.search(memcg)
    return int(found[1]) if found else None
