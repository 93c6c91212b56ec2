"""Kernel lines as kernels 5.4 to 6.8 and the NVIDIA driver print them, and what is read out of each."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.classify.kernel import WANTED, KernelReader, Kind, read_all
from orchestrator.classify.xid import Action, Blame, find, parse, pci_address
from orchestrator.types.failure import FailureClass
from orchestrator.types.seen import HostLine

XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid=2741, name=python3, GPU has fallen off the bus."
OOM = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=ns,mems_allowed=0-1,oom_memcg=/lxc/200,"
    "task_memcg=/lxc/200/ns/user.slice,task=python3,pid=31337,uid=100000"
)
KILLED = "Memory cgroup out of memory: Killed process 31337 (python3) total-vm:812345kB, anon-rss:1kB"
# Of an H200 under driver 580.159.04, on which a kernel of ours stored to an address that was not its own.
REAL_XID_31 = (
    "NVRM: Xid (PCI:0000:00:06): 31, pid=442, name=python3, channel 0x0000000a, intr 00000000. MMU Fault: "
    "ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x7f00_00000000. Fault is of type FAULT_PDE "
    "ACCESS_TYPE_VIRT_WRITE"
)
LINES = {
    XID_79: Kind.XID,
    REAL_XID_31: Kind.XID,
    "NVRM: Xid (PCI:0000:07:00 GPU-I:03): 13, pid=99, name=python3, Graphics SM Warp Exception": Kind.XID,
    "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.": Kind.GPU_GONE,
    "NVRM: GPU at PCI:0000:3b:00: GPU is lost": Kind.GPU_GONE,
    "NVRM: RmInitAdapter failed! (0x24:0x65:1436)": Kind.DRIVER,
    "nvidia-uvm: uvm_api_register_channel: Error: 0x40": Kind.DRIVER,
    OOM: Kind.OOM_KILL,
    KILLED: Kind.OOM_KILL,
    "Out of memory: Killed process 7 (java) total-vm:1kB, anon-rss:1kB": Kind.OOM_KILL,
    "EXT4-fs error (device dm-3): ext4_find_entry:1455: inode #2: comm python3: reading directory": Kind.DISK,
    "EXT4-fs (dm-3): Remounting filesystem read-only": Kind.DISK,
    "Buffer I/O error on dev nvme1n1, logical block 0, async page read": Kind.DISK,
    "WARNING: Pool 'tank' has encountered an uncorrectable I/O failure and has been suspended.": Kind.DISK,
    "nvme nvme0: controller is down; will reset: CSTS=0xffffffff": Kind.DISK,
}
QUIET = (
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)",
    "NVRM: gpuClearFbhubPoisonIntrForBug2924523_GA100: FBHUB Interrupt detected. Clearing it.",
    "NVRM: Persistence mode is deprecated and will be removed in a future release.",
    "NVRM: GPU Board Serial Number: 1654024074303",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20",
    "NVRM: GPU at PCI:0000:3b:00: GPU-8f5d1f2a-1111-2222-3333-444455556666",
    "nvidia-uvm: Loaded the UVM driver, major device number 235.",
    "EXT4-fs (dm-3): mounted filesystem with ordered data mode. Quota mode: none.",
    "XFS (dm-4): Mounting V5 Filesystem",
    "BTRFS info (device sda2): disk space caching is enabled",
    "nvme nvme0: pci function 0000:01:00.0",
    "oom_reaper: reaped process 31337 (python3), now anon-rss:0kB, file-rss:0kB",
    "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "vmbr0: port 2(veth200i0) entered forwarding state",
    'audit: type=1400 apparmor="STATUS" operation="profile_load" name="lxc-200_</var/lib/lxc>"',
)


@pytest.mark.parametrize(("text", "kind"), LINES.items())
def test_a_line_that_matters_is_read_and_passes_the_filter_near_its_source(text, kind):
    (event,) = read_all([HostLine(text)])
    assert event.kind is kind
    assert re.search(WANTED, text)


@pytest.mark.parametrize("text", QUIET)
def test_ordinary_lines_of_a_kernel_say_nothing(text):
    assert read_all([HostLine(text)]) == ()


def test_a_kill_names_the_container_by_the_cgroup_of_the_killed_process():
    first, second = read_all([HostLine(OOM), HostLine(KILLED)])
    assert (first.ct, first.pid, first.process, first.is_global) == (200, 31337, "python3", False)
    assert (second.ct, second.pid, second.process) == (200, 31337, "python3"), "joined by the pid"


def test_a_kill_of_another_process_takes_nothing_from_the_one_before():
    other = KILLED.replace("31337", "4")
    assert [e.ct for e in read_all([HostLine(OOM), HostLine(other)])] == [200, None]


@pytest.mark.parametrize(
    ("memcg", "ct"),
    [
        ("/lxc/200/ns", 200),
        ("/lxc.payload.200/system.slice/x.service", 200),
        ("/lxc/2000", 2000),
        ("/lab/lxc/200/ns", 200),
        ("/user.slice/user-0.slice", None),
        ("/lxc.monitor/200", None),
        ("/", None),
    ],
)
def test_the_cgroup_of_lxc_says_which_container(memcg, ct):
    (event,) = read_all([HostLine(OOM.replace("/lxc/200/ns/user.slice", memcg))])
    assert event.ct == ct


def test_a_host_that_is_out_of_memory_is_told_from_a_container_that_is():
    text = OOM.replace("CONSTRAINT_MEMCG", "CONSTRAINT_NONE").replace("oom_memcg=/lxc/200", "global_oom")
    (event,) = read_all([HostLine(text)])
    assert event.is_global
    assert event.ct == 200


def test_an_older_kernel_names_the_container_in_the_line_before():
    lines = (
        "Task in /lxc/200/ns killed as a result of limit of /lxc/200",
        "Memory cgroup out of memory: Kill process 99 (python3) score 1000 or sacrifice child",
    )
    (event,) = read_all(map(HostLine, lines))
    assert (event.ct, event.pid) == (200, 99)


def test_a_card_that_fell_off_the_bus_over_three_lines_keeps_its_address():
    lines = (
        "NVRM: The NVIDIA GPU 0000:3b:00.0",
        "NVRM: (PCI ID: 10de:2335) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    (event,) = read_all(map(HostLine, lines))
    assert (event.kind, event.pci) == (Kind.GPU_GONE, "0000:3b:00")


def test_an_xid_is_read_with_its_card_its_process_and_what_the_catalogue_asks_for():
    seen = parse(XID_79)
    assert seen is not None
    assert (seen.pci, seen.pid, seen.xid.code) == ("0000:3b:00", 2741, 79)
    assert (seen.xid.action, seen.xid.failure) == (Action.REBOOT_HOST, FailureClass.GPU_LOST)
    real = parse(REAL_XID_31)
    assert real is not None
    assert (real.pci, real.pid, real.xid.code, real.xid.blame) == ("0000:00:06", 442, 31, Blame.PROGRAM)
    unknown = parse("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off")
    assert unknown is not None
    assert unknown.pid is None


@pytest.mark.parametrize(
    ("code", "blame", "failure"),
    [
        (13, Blame.PROGRAM, FailureClass.CUDA_ILLEGAL_ACCESS),
        (31, Blame.PROGRAM, FailureClass.CUDA_ILLEGAL_ACCESS),
        (43, Blame.CONSEQUENCE, None),
        (45, Blame.CONSEQUENCE, None),
        (48, Blame.HARDWARE, FailureClass.GPU_ECC),
        (63, Blame.NOTE, None),
        (64, Blame.HARDWARE, FailureClass.GPU_ECC),
        (74, Blame.HARDWARE, FailureClass.GPU_NVLINK),
        (79, Blame.HARDWARE, FailureClass.GPU_LOST),
        (94, Blame.HARDWARE, FailureClass.GPU_ECC),
        (95, Blame.HARDWARE, FailureClass.GPU_ECC),
        (119, Blame.HARDWARE, FailureClass.GPU_LOST),
        (149, Blame.HARDWARE, FailureClass.GPU_NVLINK),
        (154, Blame.NOTE, None),
        (999, Blame.NOTE, None),
    ],
)
def test_who_is_to_blame_for_an_xid(code, blame, failure):
    assert (find(code).blame, find(code).failure) == (blame, failure)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00"),
        ("PCI:0000:3b:00", "0000:3b:00"),
        ("0001:c1:00.0", "0001:c1:00"),
        ("no address at 12:34", None),
    ],
)
def test_nvml_and_the_kernel_write_one_address_in_two_ways(text, address):
    assert pci_address(text) == address


@given(st.lists(st.one_of(st.sampled_from([*LINES, *QUIET]), st.text(max_size=80)), max_size=200))
def test_whatever_a_kernel_prints_is_read_without_an_error_and_in_bounded_memory(texts):
    reader = KernelReader()
    for text in texts:
        reader.read(HostLine(text))
    assert len(reader._cts) <= 64


def test_ten_thousand_kills_leave_a_bounded_memory():
    reader = KernelReader()
    for pid in range(10_000):
        reader.read(HostLine(OOM.replace("31337", str(pid))))
    assert len(reader._cts) == 64
