"""The record against kill -9, several processes, and a disk that is really full."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from orchestrator.errors import RecordError
from orchestrator.record import Record
from tests.cli import LONG_S

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]

WRITER = """
import sys, pathlib
from datetime import datetime, timezone
from orchestrator.record import Record
from tests.cli import LONG_S
record = Record.open(pathlib.Path(sys.argv[1]))
now = datetime.now(timezone.utc)
run = record.save_run("a", {}, "local", {}, now)
for i in range(int(sys.argv[3])):
    record.intend(run.id, 1, "relaunch", f"{sys.argv[2]}.{i}", {}, now)
    print(i, flush=True)
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def reasons(path: Path) -> set[str]:
    with Record.open(path) as record:
        return {action.reason for action in record.open_intents(record.run("a").id)}


@pytest.mark.parametrize("reported", [1, 7, 40])
def test_killed_at_any_moment_it_loses_nothing_that_it_had_reported(tmp_path: Path, reported: int) -> None:
    path = tmp_path / "record.sqlite3"
    with writer(path, "w", 1_000_000) as child:
        assert child.stdout is not None
        for _ in range(reported):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        said = reported + len(child.stdout.read().split())
    assert {f"w.{i}" for i in range(said)} <= reasons(path)


def test_a_killed_first_opening_leaves_nothing_half_made(tmp_path: Path) -> None:
    for i in range(6):
        path = tmp_path / f"{i}.sqlite3"
        with writer(path, "w", 1) as child:
            while not path.exists():
                assert child.poll() is None
            time.sleep(i * 0.02)  # the first opening takes about 0.1 s
            child.kill()
        with Record.open(path) as record:
            assert len(record.runs()) <= 1


def test_several_processes_open_a_new_record_and_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "record.sqlite3"
    children = [writer(path, name, 25) for name in "abcd"]
    for child in children:
        out, _ = child.communicate(timeout=LONG_S)
        assert child.returncode == 0
        assert len(out.split()) == 25
    assert reasons(path) == {f"{name}.{i}" for name in "abcd" for i in range(25)}


def test_a_really_full_disk_is_told_and_heals(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    small = tmp_path / "small"
    small.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(small)]
    mounted = subprocess.run(argv, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no mount here: {mounted.stderr.strip()}")
    try:
        fill_and_heal(small)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def fill(ballast: Path) -> None:
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def fill_and_heal(small: Path) -> None:
    now = datetime.now(timezone.utc)
    with Record.open(small / "record.sqlite3") as record:
        run = record.save_run("a", {}, "local", {}, now)
        ballast = small / "ballast"
        fill(ballast)
        with pytest.raises(RecordError, match=r"free.*space"):
            record.save_run("b", {"big": "x" * 200_000}, "local", {}, now)
        assert record.runs() == [run]
        ballast.unlink()
        assert record.save_run("b", {"big": "x" * 50_000}, "local", {}, now).name == "b"
    fill(ballast)
    with pytest.raises(RecordError, match="space"):
        Record.open(small / "new.sqlite3")
