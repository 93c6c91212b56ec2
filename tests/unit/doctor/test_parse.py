"""From words to readings: what is malformed is not known, and nothing raises."""

from __future__ import annotations

import pytest

from orchestrator.doctor import parse
from orchestrator.doctor.readings import Inside, Node, Skew
from orchestrator.types.seen import Blind, Present

GPU = {
    "index": 1,
    "name": "NVIDIA H200",
    "memory_used_bytes": 5,
    "capability": [9, 0],
    "processes": [{"pid": 7, "memory_bytes": None}],
    "tried": {"error": "", "reason": None},
}
SAID = {
    "state_dir": "/var/lib/dflashctl",
    "locale": True,
    "memory": {"limit_bytes": None, "free_bytes": 9, "told": True},
    "open_files": -1,
    "gpu": {
        "source": "nvml",
        "problem": None,
        "nodes": [{"name": "nvidiactl", "current": True, "error": None}],
        "cuda": 12080,
        "gpus": [GPU],
    },
    "torch": {"version": "2.11.0", "arch": ["sm_90"], "lacks": []},
}


def test_an_answer_becomes_readings():
    read = parse.inside(SAID)
    assert read.state_dir == "/var/lib/dflashctl"
    assert (read.memory_free_bytes, read.memory_told, read.open_files) == (9, True, -1)
    assert read.nodes == (Node(name="nvidiactl", is_current=True),)
    assert read.driver_cuda == (12, 8)
    assert read.cards is not None
    assert (read.cards[0].capability, read.cards[0].pids, read.cards[0].cuda) == ((9, 0), (7,), Present(""))
    assert read.torch is not None
    assert (read.torch.version, read.torch.arch) == ("2.11.0", ("sm_90",))


def test_why_a_gpu_was_not_tried_is_no_failure_of_it():
    row = {**GPU, "tried": {"error": None, "reason": "in use"}}
    cards = parse.inside({"gpu": {"source": "nvml", "gpus": [row]}}).cards
    assert cards is not None
    assert cards[0].cuda == Blind("in use")


@pytest.mark.parametrize("junk", [None, 3, "x", [], {}, [None], {"gpus": 3}, {"gpus": [3, {"index": True}]}])
def test_what_is_malformed_is_not_known(junk):
    keys = ("memory", "gpu", "torch", "locale", "state_dir", "now", "free_bytes", "has_shm")
    for key in keys:
        assert isinstance(parse.inside({key: junk}), Inside)
    assert parse.inside({"gpu": {"gpus": [GPU]}}).cards is None, "without a source nothing was read"


def test_text_of_a_container_cannot_act_on_a_terminal():
    torch = parse.inside({"torch": {"version": "2\x1b[2J\n1"}}).torch
    assert torch is not None
    assert torch.version == "2 1"


@pytest.mark.parametrize(
    ("took", "expected"),
    [(2.0, Skew(seconds=7.75, within_s=0.25)), (9.0, Skew(seconds=7.5, within_s=0.0)), ("x", None)],
)
def test_the_clocks_are_compared_by_what_the_answer_may_have_taken(took, expected):
    assert parse.skew({"now": 110.0, "took_s": took}, 100.0, 102.5) == expected


def test_what_the_host_says():
    text = (
        "uid 1000\nuser al\npct /usr/sbin/pct\npct-version 6.1.2\n"
        "module NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\n"
        "devices nvidia0 nvidiactl \n"
    )
    said = parse.host(text)
    assert (said.uid, said.user, said.pct_version, said.module) == (1000, "al", "6.1.2", "580.65.06")
    assert said.devices == ("nvidia0", "nvidiactl")
    assert parse.host("pct \npct-version \nmodule \ndevices \n").pct is None
    assert parse.host("").uid is None


@pytest.mark.parametrize(
    ("status", "info", "expected"),
    [
        ("status: running\n", "State: RUNNING", ("running", None, False)),
        ("lock: backup\nstatus: running\n", "State:          FROZEN", ("running", "backup", True)),
        ("status: stopped\n", "State: STOPPED", ("stopped", None, False)),
        ("status: running\n", "", ("running", None, None)),
        ("", "", (None, None, None)),
    ],
)
def test_what_pct_and_lxc_say_of_a_container(status, info, expected):
    made = parse.container(status, info)
    assert made.memory_bytes is None
    assert parse.container(f"maxmem: 1024\n{status}", info).memory_bytes == 1024
    assert (made.status, made.lock, made.is_frozen) == expected
