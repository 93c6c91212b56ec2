"""A healthy place, from which each test takes what it breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.doctor.readings import (
    Card,
    Container,
    Entered,
    Hop,
    HostFacts,
    Inside,
    Login,
    Node,
    Readings,
    Skew,
    Torch,
)
from orchestrator.types.seen import Present

GIB = 1 << 30
NODES = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")
TORCH = Torch(python="3.12.3", version="2.15.0", cuda="13.0", arch=("sm_80", "sm_90"))


def card(index: int, **changes: Any) -> Card:
    """An idle H200 that computes."""
    made = Card(
        index=index,
        name="NVIDIA H200",
        used_bytes=600 << 20,
        total_bytes=141 * GIB,
        capability=(9, 0),
        cuda=Present(""),
    )
    return replace(made, **changes)


def inside(**changes: Any) -> Inside:
    """A container with two GPUs and room for all."""
    made = Inside(
        uid=0,
        locale=True,
        state_dir="/var/lib/dflashctl",
        free_bytes=500 * GIB,
        total_bytes=1000 * GIB,
        shm_free_bytes=64 * GIB,
        shm_total_bytes=64 * GIB,
        memory_limit_bytes=256 * GIB,
        memory_free_bytes=200 * GIB,
        memory_told=True,
        oom_kills=0,
        open_files=1048576,
        processes=-1,
        now=1.0,
        nodes=tuple(Node(name=name, is_current=True) for name in NODES),
        module="580.65.06",
        library="580.65.06",
        driver_cuda=(13, 0),
        has_driver=True,
        cards=(card(0), card(1)),
        torch=replace(TORCH, version="2.14.0"),
    )
    return replace(made, **changes)


def healthy(**changes: Any) -> Readings:
    """All of the chain as it should be; `changes` are fields of the readings."""
    made = Readings(
        ct=200,
        python="/root/venv/bin/python",
        hop=Hop(name="10.1.2.6", port=22, addresses=("10.1.2.6",), tcp_s=0.004, banner="SSH-2.0-OpenSSH_9.2"),
        login=Login(user="root", seconds=0.31, round_trip_s=0.004),
        host=HostFacts(
            uid=0, user="root", pct="/usr/sbin/pct", pct_version="6.1.2", module="580.65.06", devices=NODES
        ),
        container=Container(status="running", is_frozen=False),
        entered=Entered(seconds=0.9, python="3.11.2", tmux="3.3a"),
        inside=inside(),
        skew=Skew(seconds=0.01, within_s=0.02),
    )
    return replace(made, **changes)


def within(**changes: Any) -> Readings:
    """A healthy place but for what the guest says."""
    return healthy(inside=inside(**changes))


def cards(*made: Card) -> Readings:
    """A healthy place with these GPUs."""
    return within(cards=tuple(made))


def torch(**changes: Any) -> Readings:
    """A healthy place but for the trainer's Python."""
    return within(torch=replace(TORCH, **changes))
