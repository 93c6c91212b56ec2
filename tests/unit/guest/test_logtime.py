"""From a time on: what is printed holds every line of that time, and little that is older."""

from __future__ import annotations

import json
import os
import random
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from orchestrator.guest import files
from orchestrator.guest.logtime import offset_since

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

BEGAN = datetime(2026, 11, 29, 12, 0, tzinfo=timezone.utc).timestamp()


def utc(at: float, form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime(form)


def here(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S,123")


def glog(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("[rank0]:W%m%d %H:%M:%S.500000 1 torch/x.py:3]")


@pytest.fixture
def attempt(tmp_path: Path) -> Callable[..., Path]:
    def make(lines: Sequence[str], written: float, metrics: Sequence[tuple[int, float]] = ()) -> Path:
        (tmp_path / "attempt.json").write_text(
            json.dumps({"started_at": utc(BEGAN, "%Y-%m-%dT%H:%M:%S.%fZ")})
        )
        log = tmp_path / "log"
        log.write_text("".join(line + "\n" for line in lines))
        os.utime(log, (written, written))
        rows = (
            {"kind": "train", "step": step, "at": utc(at, "%Y-%m-%dT%H:%M:%S.%fZ")} for step, at in metrics
        )
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path

    return make


def after(folder: Path, since: float) -> tuple[list[str], str]:
    offset, by = offset_since(folder, since)
    return (folder / "log").read_bytes()[offset:].decode().split("\n")[:-1], by


@pytest.mark.parametrize("stamp", [utc, here, glog])
def test_dates_in_the_lines_tell_it_in_any_form_that_a_logger_has(attempt, stamp):
    lines = [f"{stamp(BEGAN + each)} line {each}" for each in range(100)]
    shown, by = after(attempt(lines, BEGAN + 100), BEGAN + 90)
    assert (len(shown), by) == (10, "dates")
    assert shown[0].endswith("line 90")


def test_a_line_without_a_date_belongs_to_the_one_before_it_if_that_is_too_old_it_may_be_shown(attempt):
    lines = ["start", f"{utc(BEGAN + 10)} a", "  of a", f"{utc(BEGAN + 20)} b", "  of b"]
    assert after(attempt(lines, BEGAN + 20), BEGAN + 15)[0] == ["  of a", *lines[3:]]


def test_a_date_that_is_none_of_this_attempt_is_no_time_of_its_line(attempt):
    lines = [
        f"{utc(BEGAN + 1)} a",
        "2021-01-01 00:00:00 is when the set was made",
        f"{utc(BEGAN + 9)} b",
        "end",
    ]
    assert after(attempt(lines, BEGAN + 9), BEGAN + 5)[0][-2:] == lines[2:]
    only = ["2021-01-01 00:00:00 is when the set was made", "99999-99-99 99:99:99", "2026-02-31 00:00:00Z"]
    assert after(attempt(only, BEGAN + 9), BEGAN + 5) == (only, "none")


def test_steps_tell_it_by_the_times_that_the_metrics_have(attempt):
    lines = ["loading", *(f"step {n}/50 loss 2.0" for n in range(1, 51)), "exported"]
    metrics = [(n, BEGAN + 10 * n) for n in range(1, 51)]
    shown, by = after(attempt(lines, BEGAN + 505, metrics), BEGAN + 455)
    assert (shown, by) == ([*lines[46:]], "steps")
    assert after(attempt(lines, BEGAN + 505, metrics), BEGAN + 5) == (lines, "steps")


def test_steps_that_were_done_again_since_then_tell_nothing(attempt):
    steps = [*range(1, 41), *range(21, 51)]
    lines = [f"step {n}/50 loss 2.0" for n in steps]
    metrics = [(n, BEGAN + 10 * place) for place, n in enumerate(steps)]
    assert after(attempt(lines, BEGAN + 700, metrics), BEGAN + 355) == (lines, "none")


def test_nothing_tells_it_of_a_progress_bar_and_of_plain_lines(attempt):
    lines = ["hello", f"{utc(BEGAN + 1)} 1%\r{utc(BEGAN + 90)} 99%", "bye"]
    assert after(attempt(lines, BEGAN + 95), BEGAN + 50) == (lines, "none")


def test_an_attempt_that_began_later_is_shown_whole_and_one_that_was_silent_since_is_not(attempt):
    lines = ["a", "b"]
    assert after(attempt(lines, BEGAN + 9), BEGAN - 1) == (lines, "start")
    assert after(attempt(lines, BEGAN + 9), BEGAN + 10) == ([], "quiet")


def test_without_a_log_there_is_nothing_to_find(tmp_path):
    assert offset_since(tmp_path, BEGAN) == (0, "start")


def test_a_large_log_loses_no_line_of_the_time_and_is_not_read_whole(attempt, monkeypatch):
    chance = random.Random(5)
    lines, at = [], BEGAN
    times = []
    for place in range(60_000):
        at += chance.random()
        dated = chance.random() < 0.2
        lines.append(f"{utc(at) + ' ' if dated else '  '}line {place} {'x' * chance.randrange(60)}")
        times.append(int(at))
    folder = attempt(lines, at)
    read: list[int] = []
    piece = files.read_piece

    def counted(path: Path, offset: int, limit: int) -> bytes:
        read.append(limit)
        return piece(path, offset, limit)

    monkeypatch.setattr(files, "read_piece", counted)
    for _ in range(20):
        since = float(chance.randrange(int(BEGAN) + 1, int(at)))
        read.clear()
        shown, by = after(folder, since)
        wanted = sum(1 for each in times if each >= since)
        assert by == "dates"
        assert wanted <= len(shown) <= wanted + 60
        assert len(read) <= 12
