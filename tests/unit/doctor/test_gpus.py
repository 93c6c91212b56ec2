"""The GPUs: nodes, driver, cards, holders, computing. What could not be read is no fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.doctor import Status, gpus
from orchestrator.doctor.readings import HostFacts, Inside, Node
from orchestrator.observe import Holder
from orchestrator.types.seen import Blind, Present
from tests.unit.doctor.readings import GIB, NODES, card, cards, healthy, inside, within

BARE = HostFacts(uid=0, pct="/usr/sbin/pct")
NOTHING = inside(nodes=(), module=None, library=None, cards=(), has_driver=False, nvml_problem="NVML: none")
OURS = Holder(pid=1, command="python -m trainer", owner="root", ct=200, inner_pid=9, run="b32")
THEIRS = Holder(pid=77, command="python mine.py", owner="eve", ct=201, inner_pid=8)


def nodes(*made: Node) -> tuple[Node, ...]:
    """The usual nodes, with some replaced."""
    named = {node.name: node for node in made}
    return tuple(named.get(name, Node(name=name, is_current=True)) for name in NODES)


def lacking(*names: str) -> Inside:
    return inside(nodes=tuple(node for node in nodes() if node.name not in names))


def held(*who: Holder, used: int = 80 * GIB):
    read = cards(card(0), card(1, used_bytes=used, pids=(1,)))
    return replace(read, holders=Present(who))


@pytest.mark.parametrize(
    ("check", "read", "status", "told"),
    [
        ("nodes", healthy(), Status.OK, "2 GPUs, nvidiactl"),
        ("nodes", healthy(inside=lacking("nvidia-uvm"), host=replace(BARE, devices=("nvidia0", "nvidiactl"))),
         Status.BAD, "`nvidia-modprobe -c 0 -u` there (at each boot), then `pct reboot 200`"),
        ("nodes", healthy(inside=lacking("nvidia-uvm")), Status.BAD, "pct set 200 --dev0 /dev/nvidia-uvm"),
        ("nodes", within(nodes=nodes(Node(name="nvidia-uvm", is_current=False))), Status.BAD, "another boot"),
        ("nodes", within(nodes=nodes(Node(name="nvidiactl", error="Operation not permitted"))), Status.BAD,
         "lxc.cgroup2.devices.allow"),
        ("nodes", within(nodes=nodes(Node(name="nvidia-uvm", is_current=None))), Status.OK, "2 GPUs"),
        ("nodes", within(nodes=None), Status.UNKNOWN, "/dev"),
        ("nodes", healthy(inside=NOTHING, host=BARE), Status.WARN, "CPU"),
        ("nodes", healthy(inside=NOTHING, host=BARE, wanted_gpus=(0,)), Status.BAD, "/dev/nvidiactl"),
        ("nodes", healthy(inside=NOTHING), Status.BAD, "pct set 200"),
        ("driver", healthy(), Status.OK, "580.65.06"),
        ("driver", within(library="570.1.2"), Status.BAD, "must be the same"),
        ("driver", within(nvml_problem="NVML: Driver/Library version mismatch", cards=(), library=None),
         Status.BAD, "must be the same"),
        ("driver", within(library=None, cards=()), Status.BAD, "no NVIDIA library"),
        ("driver", within(library=None), Status.OK, "not told"),
        ("driver", healthy(inside=inside(module=None, library=None, cards=None), host=BARE),
         Status.UNKNOWN, "version"),
        ("driver", healthy(inside=NOTHING, host=BARE), Status.SKIPPED, "no GPU"),
        ("cards", healthy(), Status.OK, "2 x NVIDIA H200"),
        ("cards", within(cards=()), Status.BAD, "sees no GPU"),
        ("cards", healthy(wanted_gpus=(0, 5)), Status.BAD, "no GPU 5 there; it has 0, 1"),
        ("cards", cards(card(0, problem="NVML: GPU is lost")), Status.BAD, "GPU 0: NVML: GPU is lost"),
        ("cards", cards(card(0, recovery="reset the GPU")), Status.BAD, "asks to reset"),
        ("cards", cards(card(0, remap_failed=True)), Status.BAD, "spare"),
        ("cards", cards(card(0, remap_pending=True)), Status.WARN, "GPU 0 waits"),
        ("cards", within(cards=None, nvml_problem="the GPU driver did not answer"), Status.UNKNOWN, "answer"),
        ("holders", healthy(), Status.OK, "nothing"),
        ("holders", held(OURS), Status.OK, "run b32 (GPU 1 80 GiB)"),
        ("holders", held(OURS, THEIRS), Status.BAD, "`pct exec 201 -- kill 8`"),
        ("holders", held(replace(OURS, ct=201)), Status.BAD, "python -m trainer"),
        ("holders", held(THEIRS, used=600 << 20), Status.WARN, "python mine.py"),
        ("holders", held(), Status.WARN, "names nobody"),
        ("holders", replace(held(), holders=Blind("it wants root")), Status.WARN, "it wants root"),
        ("holders", replace(held(THEIRS), wanted_gpus=(0,)), Status.OK, "nothing"),
        ("holders", cards(card(0, used_bytes=None)), Status.UNKNOWN, "memory"),
        ("holders", within(cards=None), Status.UNKNOWN, "not read"),
        ("cuda", healthy(), Status.OK, "2 of 2 allocated"),
        ("cuda", cards(card(0), card(1, cuda=Present("cuInit: 999 unknown error"))), Status.BAD,
         "GPU 1: cuInit: 999 unknown error; `nvidia-modprobe"),
        ("cuda", cards(card(0, cuda=Present("libcuda.so.1 cannot be loaded"))), Status.BAD, "install the"),
        ("cuda", cards(card(0, cuda=Present("torch: no kernel image is available"))), Status.BAD, "below"),
        ("cuda", cards(card(0), card(1, cuda=Blind("in use, so it was left alone"))), Status.OK,
         "1 of 2 allocated, wrote and read back; GPU 1: in use"),
        ("cuda", cards(*(card(i, cuda=Blind("no answer in time")) for i in (0, 1))), Status.UNKNOWN,
         "GPU 0, 1: no answer"),
        ("cuda", replace(cards(card(0), card(1, cuda=Present("x"))), wanted_gpus=(0,)), Status.OK, "1 of 1"),
        ("cuda", within(cards=()), Status.UNKNOWN, "none was tried"),
    ],
)  # fmt: skip
def test_each_need_of_the_gpus(check, read, status, told):
    verdict = getattr(gpus, check)(read)
    assert verdict.status is status
    assert told in f"{verdict.seen}; {verdict.fix}"
    assert verdict.fix is not None or status is not Status.BAD
