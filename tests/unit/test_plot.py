from __future__ import annotations

import math
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import ConfigError, NotFound
from orchestrator.plot import _deaths, _draw, _lines, _title, plot_run
from orchestrator.record import Record
from orchestrator.types.failure import FailureClass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = datetime(2026, 11, 29, tzinfo=timezone.utc)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    with Record.open(tmp_path / "record.sqlite3") as opened:
        yield opened


def save(record: Record, run: int, n: int, first: int, last: int, failure: FailureClass | None) -> None:
    ended = NOW if failure else None
    record.save_attempt(
        run, n, started_at=NOW, ended_at=ended, failure=failure, first_step=first, last_step=last
    )
    lines = [
        {"step": s, "loss": 5 * math.exp(-s / 150) + 1, "tokens_per_s": 900 + s % 7}
        for s in range(first + 1, last + 1)
    ]
    record.add_metrics(run, n, lines, NOW)


@pytest.fixture
def run(record: Record) -> int:
    run = record.save_run("a $x$ run", {}, "local", {}, NOW).id
    save(record, run, 1, 0, 130, FailureClass.FX_TRACE_RACE)
    save(record, run, 2, 100, 240, FailureClass.OOM_CUDA)
    save(record, run, 3, 200, 380, FailureClass.COMPLETED)
    return run


def test_a_run_becomes_a_png_and_nothing_else(record: Record, run: int, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    out = plot_run(record, run, tmp_path / "new" / "loss.png")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in out.parent.iterdir()] == ["loss.png"]


def test_deaths_and_resumes_are_named(record: Record, run: int) -> None:
    figure = _draw("a $x$ run", _lines(record.attempts(run), record.metrics(run)))
    loss, speed = figure.axes
    assert [text.get_text() for text in loss.texts] == ["fx_trace_race", "oom_cuda"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "attempt 1",
        "attempt 2, resumed from step 100",
        "attempt 3, resumed from step 200",
        "death",
        "checkpoint resumed from",
    ]
    assert speed.get_ylabel() == "speed (tokens/s)"


def test_deaths_at_one_place_are_told_as_one(record: Record) -> None:
    run = record.save_run("loop", {}, "local", {}, NOW).id
    for n in range(1, 6):
        save(record, run, n, 0, 100, FailureClass.HANG)
    save(record, run, 6, 0, 400, FailureClass.NAN_LOSS)
    assert [d.label for d in _deaths(_lines(record.attempts(run), record.metrics(run)))] == [
        "hang x5",
        "nan_loss",
    ]


def test_attempts_that_died_before_a_step_are_counted() -> None:
    assert _title("a", 1, 1) == "a: loss across 1 attempt"
    assert _title("a", 2, 5) == "a: loss across 2 attempts (3 more without a logged step)"


def test_without_metrics_it_says_so(record: Record, tmp_path: Path) -> None:
    run = record.save_run("new", {}, "local", {}, NOW).id
    with pytest.raises(NotFound, match='run "new": no metric was recorded yet'):
        plot_run(record, run, tmp_path / "x.png")
    with pytest.raises(NotFound, match="no such run"):
        plot_run(record, 99, tmp_path / "x.png")


def test_a_place_that_cannot_be_written_is_told(record: Record, run: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="the plot cannot be written"):
        plot_run(record, run, tmp_path / "file" / "x.png")


def test_a_folder_is_not_made_of_a_typing_error(record: Record, run: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory; name another file"):
        plot_run(record, run, tmp_path / "missing" / "x.png")
    assert not (tmp_path / "missing").exists()


def test_without_matplotlib_it_gives_the_command(
    record: Record, run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r'pip install "dflashctl\[plot\]"'):
        plot_run(record, run, tmp_path / "x.png")
