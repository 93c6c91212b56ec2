"""Many runs in one transaction: the same is kept as one by one."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.record import Batch, Record, samples, thinning
from orchestrator.types.seen import Gpu

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = datetime(2026, 11, 29, tzinfo=timezone.utc)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    with Record.open(tmp_path / "record.sqlite3") as opened:
        yield opened


def line(step: int, kind: str = "train") -> dict[str, Any]:
    return {"kind": kind, "step": step, "loss": 1.0 / (step + 1)}


# Pieces of a log of metrics: steps that go on, and now and then a return to an earlier one.
PIECES = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 12), st.integers(1, 9), st.sampled_from(["train", "eval"])),
    min_size=1,
    max_size=25,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Iterator[Record]:
    with Record.open(tmp_path_factory.mktemp("batch") / "record.sqlite3") as opened:
        yield opened


@settings(max_examples=40, deadline=None)
@given(pieces=PIECES, goes_on=st.booleans())
def test_batches_keep_what_single_writes_keep(shared: Record, pieces, goes_on) -> None:
    with a_low_limit():
        kept = kept_by_both(shared, pieces, goes_on)
    assert kept[0] == kept[1]


def kept_by_both(shared: Record, pieces: list[tuple[int, int, int, str]], goes_on: bool) -> list[Any]:
    """Write the pieces in both ways, to two runs that are gone afterwards."""
    runs = [shared.save_run(f"r{name}", {}, "local", {}, NOW) for name in ("single", "batched")]
    single, batched = (run.id for run in runs)
    at = 0
    for begin, count, every, kind in pieces:
        at = at + every if goes_on else begin
        steps = [at + every * i for i in range(count)]
        at = steps[-1]
        rows = [line(step, kind) for step in steps]
        shared.add_metrics(single, 1, rows, NOW)
        waiting = Batch()
        waiting.add_metrics((batched, 1), rows, NOW)
        shared.save_batch(waiting)
    kept = [[(m.kind, m.step, m.loss) for m in shared.metrics(run)] for run in (single, batched)]
    for run in runs:
        shared.remove_run(run.id, NOW)
    return kept


@contextmanager
def a_low_limit() -> Iterator[None]:
    """Thinning that happens after twenty steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thinning, "MAX_METRICS", 20)
        patch.setattr(thinning.thin, "__defaults__", (20,))
        yield


def test_a_step_that_another_process_wrote_meanwhile_is_kept_once(record: Record, tmp_path: Path) -> None:
    run = record.save_run("dflash", {}, "local", {}, NOW).id
    with Record.open(tmp_path / "record.sqlite3") as other:
        for step in range(1, 30):
            for one in (record, other):
                waiting = Batch()
                waiting.add_metrics((run, 1), [line(step)], NOW)
                one.save_batch(waiting)
    assert [m.step for m in record.metrics(run)] == list(range(1, 30))


def test_a_series_that_only_goes_on_is_not_read_again(record: Record, monkeypatch) -> None:
    run = record.save_run("dflash", {}, "local", {}, NOW).id
    asked = []
    slow = samples.add_columns

    def counted(*args: Any) -> int:
        asked.append(args)
        return slow(*args)

    monkeypatch.setattr(samples, "add_columns", counted)
    for step in range(50):
        waiting = Batch()
        waiting.add_metrics((run, 1), [line(step)], NOW)
        record.save_batch(waiting)
    assert len(asked) == 1
    assert len(record.metrics(run)) == 50


def test_cursors_of_many_runs_move_forward_only(record: Record) -> None:
    runs = [record.save_run(f"r{n}", {}, "local", {}, NOW).id for n in range(5)]
    for log, metrics in ((100, 10), (50, 20), (200, 5)):
        waiting = Batch()
        for run in runs:
            waiting.move_cursor((run, 1), log, metrics)
        record.save_batch(waiting)
    assert {(c.log_offset, c.metrics_offset) for c in (record.cursor(run, 1) for run in runs)} == {(200, 20)}


def test_a_cursor_that_moves_keeps_the_distances_of_the_thinning(record: Record) -> None:
    run = record.save_run("dflash", {}, "local", {}, NOW).id
    record.add_metrics(run, 1, [line(step) for step in range(5000)], NOW)
    waiting = Batch()
    waiting.move_cursor((run, 1), 7, 7)
    record.save_batch(waiting)
    before = len(record.metrics(run))
    record.add_metrics(run, 1, [line(5000)], NOW)
    assert len(record.metrics(run)) - before in (0, 1)
    record.add_metrics(run, 1, [line(5001), line(5002)], NOW)
    assert len(record.metrics(run)) < before + 3, "every step would be kept if the distance were forgotten"


def test_gpus_are_kept_as_one_by_one(record: Record) -> None:
    run = record.save_run("dflash", {}, "local", {}, NOW).id
    waiting = Batch()
    waiting.gpus[(run, 1)] = ((Gpu(index=0, memory_used_bytes=5, memory_total_bytes=9),), NOW)
    record.save_batch(waiting)
    assert [(g.index, g.memory_used_bytes) for g in record.gpus(run)] == [(0, 5)]
