"""torch against driver and GPU, and what is known of versions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.doctor import Status, torches
from orchestrator.doctor.readings import HostFacts, Torch
from tests.unit.doctor.readings import TORCH, card, healthy, inside, torch, within

NONE = Torch(version=None, error="it has no torch")
NO_GPU = healthy(
    host=HostFacts(uid=0), inside=inside(nodes=(), module=None, cards=(), has_driver=False)
)  # a container without any


@pytest.mark.parametrize(
    ("check", "read", "status", "told"),
    [
        ("torch", torch(version="2.11.0+cu130"), Status.OK, "torch 2.11.0+cu130 of Python 3.12.3"),
        ("torch", within(torch=NONE), Status.BAD, "/root/venv/bin/python -m pip install"),
        ("torch", replace(within(torch=NONE), python="python3"), Status.WARN, "name another"),
        ("torch", torch(version="2.8.0"), Status.BAD, "2.9 to 2.14"),
        ("torch", torch(version="2.15.0a0+git1"), Status.BAD, "2.9 to 2.14"),
        ("torch", torch(version="2.11.0", lacks=("safetensors",)), Status.BAD, "no safetensors"),
        ("torch", torch(version="odd"), Status.UNKNOWN, "odd"),
        ("torch", within(torch=None), Status.UNKNOWN, "in time"),
        ("build", torch(version="2.11.0"), Status.OK, "CUDA 13.0, the driver knows 13.0"),
        ("build", torch(cuda=None), Status.BAD, "for the CPU"),
        ("build", torch(cuda=None, hip="6.2"), Status.BAD, "ROCm"),
        ("build", within(driver_cuda=(12, 8), torch=TORCH), Status.BAD, "wants CUDA 13.0"),
        ("build", within(driver_cuda=(12, 2), torch=replace(TORCH, cuda="12.8")), Status.OK, "12.8"),
        ("build", torch(arch=("sm_75", "sm_86")), Status.BAD, "NVIDIA H200 (sm_90)"),
        ("build", within(driver_cuda=None, torch=TORCH), Status.UNKNOWN, "not told"),
        ("build", within(cards=(card(0, capability=None),), torch=replace(TORCH, arch=("sm_75",))),
         Status.OK, "CUDA"),
        ("build", within(torch=NONE), Status.SKIPPED, "no torch"),
        ("build", NO_GPU, Status.SKIPPED, "no GPU"),
        ("known_bad", torch(version="2.15.0"), Status.OK, "nothing is known"),
        ("known_bad", torch(version="2.11.0+cu130"), Status.WARN, "the FX race"),
        ("known_bad", torch(version="2.14.1"), Status.WARN, "KeyError"),
        ("known_bad", torch(version="2.10.0"), Status.WARN, "173679"),
        ("known_bad", torch(version="2.12.0"), Status.WARN, "188332"),
        ("known_bad", within(torch=replace(TORCH, version="2.11.0"), cards=(card(0),)), Status.OK, "one de"),
        ("known_bad", replace(torch(version="2.11.0"), wanted_gpus=(1,)), Status.OK, "one device"),
        ("known_bad", within(torch=None), Status.UNKNOWN, "in time"),
    ],
)  # fmt: skip
def test_each_need_of_torch(check, read, status, told):
    verdict = getattr(torches, check)(read)
    assert verdict.status is status
    assert told in f"{verdict.seen}; {verdict.fix}"
    assert verdict.fix is not None or status not in (Status.BAD, Status.WARN)


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        (("sm_80",), (8, 6), True),
        (("sm_86",), (8, 0), False),
        (("sm_80",), (9, 0), False),
        (("sm_90a",), (9, 0), True),
        (("sm_90a",), (10, 0), False),
        (("sm_80", "compute_80"), (12, 0), True),
        (("sm_100",), (10, 3), True),
        (("gfx942",), (9, 0), False),
    ],
)
def test_code_runs_on_its_major_version_and_ptx_on_newer_ones(arch, capability, runs):
    assert torches.runs_on(arch, capability) is runs
