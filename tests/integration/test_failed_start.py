"""A launch whose program cannot be started: the attempt was made, so the record keeps it and says why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import Exit
from tests.integration.local import Local, local_runs

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    with local_runs(tmp_path) as runs:
        yield runs


def test_a_program_that_cannot_be_started_leaves_a_dead_attempt_that_says_why(local):
    refused = local.launch("--run", "r1", "--", "./nosuch", code=Exit.NOT_READY)
    assert "./nosuch" in refused.stderr
    status = local.json("status", "r1", code=Exit.FAILED)
    assert (status["attempt"], status["state"]) == (1, "dead")
    with local.record() as record:
        (row,) = record.runs()
        (attempt,) = record.attempts(row.id)
        found = record.latest_diagnosis(row.id, 1)
    assert (attempt.n, attempt.failure.value, attempt.by) == (1, "config_error", "user")
    assert attempt.ended_at is not None
    assert "./nosuch" in found.summary
    local.launch("--run", "r1", "--", "./nosuch", code=Exit.NOT_READY)
    assert local.json("status", "r1", code=Exit.FAILED)["attempt"] == 2
    local.run("rm", "r1", "--yes")
    assert local.json("ps", "--offline")["runs"] == []


def test_a_refusal_that_made_no_attempt_leaves_no_run(local, tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    for place in ("/bin", "/usr/bin", "/usr/local/bin"):
        for path in Path(place).iterdir():
            if path.name != "tmux" and not (programs / path.name).exists():
                (programs / path.name).unlink(missing_ok=True)
                (programs / path.name).symlink_to(path)
    monkeypatch.setitem(local.env, "PATH", str(programs))
    refused = local.launch("--run", "r1", "--", "python3", "-c", "pass", code=Exit.NOT_READY)
    monkeypatch.undo()
    assert "there is no tmux" in refused.stderr
    assert not (local.state / "runs" / "r1").exists()
    assert local.json("ps", "--offline")["runs"] == []


def test_a_gpu_that_is_not_there_is_told_before_an_attempt_is_made(local, tmp_path, monkeypatch):
    tool = tmp_path / "tools" / "nvidia-smi"
    tool.parent.mkdir()
    row = "$i, GPU-$i, NVIDIA H200, 4, 143771, 0, 75, 30, 00000000:0$i:00.0"
    tool.write_text(f"#!/bin/sh\nfor i in 0 1; do echo {row}; done\n")
    tool.chmod(0o755)
    monkeypatch.setitem(local.env, "PATH", f"{tool.parent}:{local.env['PATH']}")
    refused = local.launch("--run", "r1", "--gpus", "0,99", "--", "sleep", "60", code=Exit.USAGE)
    assert "no GPU 99 there; it has 0, 1;" in refused.stderr
    assert not (local.state / "runs").exists()
    assert local.json("ps", "--offline")["runs"] == []
    local.launch("--run", "r1", "--gpus", "1", "--", "sleep", "60")
