from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.record import Record
from orchestrator.record.thinning import admit, every_second, parse_metric, thin
from orchestrator.types.seen import Gpu

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = datetime(2026, 11, 29, tzinfo=timezone.utc)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    with Record.open(tmp_path / "record.sqlite3") as opened:
        yield opened


@pytest.fixture
def run(record: Record) -> int:
    return record.save_run("dflash", {}, "local", {}, NOW).id


def lines(first: int, last: int, every: int = 1) -> list[dict[str, Any]]:
    return [{"kind": "train", "step": step, "loss": 1.0 / (step + 1)} for step in range(first, last, every)]


@given(st.lists(st.integers(0, 10**9), unique=True, max_size=300).map(sorted), st.integers(2, 50))
def test_thinning_keeps_the_first_step_and_the_limit(steps: list[int], limit: int) -> None:
    kept, every = thin(steps, limit)
    assert len(kept) <= limit
    assert kept[:1] == steps[:1]
    assert set(kept) <= set(steps)
    assert (every == 0) == (kept == steps)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(200, 2000))
def test_thinning_spreads_evenly_whatever_the_first_step_and_the_distance(
    first: int, distance: int, count: int
) -> None:
    steps = [first + distance * i for i in range(count)]
    kept, every = thin(steps, 100)
    assert 50 <= len(kept) <= 100
    assert {b - a for a, b in pairwise(kept)} == {every}


def test_admission_goes_by_the_distance_to_the_last_one_kept() -> None:
    assert admit([1, 2, 3, 4, 9], None, 3) == [1, 4, 9]
    assert admit([1, 2, 3], 1, 3) == []
    assert admit([1, 2, 3], 1, 0) == [1, 2, 3]


def test_every_second_of_each_group_is_dropped() -> None:
    assert every_second([(0, "a"), (0, "b"), (0, "c"), (1, "d"), (1, "e")]) == [(0, "b"), (1, "e")]


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"step": "7"},
        {"step": True},
        {"step": -1},
        {"step": 2**63},
        {"step": 7.5},
        {"step": 7, "kind": "x"},
    ],
)
def test_a_line_that_is_no_metric_is_skipped(line: dict[str, Any]) -> None:
    assert parse_metric(line, NOW) is None


def test_a_number_that_is_none_is_none() -> None:
    hostile = {"step": 7, "loss": float("nan"), "lr": "1", "grad_norm": 10**400, "step_s": True, "at": "soon"}
    columns = parse_metric(hostile, NOW)
    assert columns is not None
    assert {columns[key] for key in ("loss", "lr", "grad_norm", "step_s")} == {None}
    assert columns["at"] == NOW
    good = parse_metric({"step": 7, "loss": 2, "kind": "eval", "at": "2026-11-30T00:00:00.000000Z"}, NOW)
    assert good is not None
    assert (good["loss"], good["kind"], good["at"]) == (2.0, "eval", NOW + timedelta(days=1))


def test_a_line_that_is_sent_twice_is_kept_once(record: Record, run: int) -> None:
    assert record.add_metrics(run, 1, lines(0, 50), NOW) == 50
    assert record.add_metrics(run, 1, lines(25, 60), NOW) == 10
    assert record.add_metrics(run, 2, lines(40, 45), NOW) == 5
    assert [m.step for m in record.metrics(run)] == [*range(60), *range(40, 45)]
    assert [m.step for m in record.metrics(run, 2)] == [*range(40, 45)]


def test_an_evaluation_at_a_training_step_is_kept_beside_it(record: Record, run: int) -> None:
    record.add_metrics(run, 1, [{"step": 5, "loss": 2.0}, {"kind": "eval", "step": 5, "loss": 2.5}], NOW)
    assert {(m.kind, m.loss) for m in record.metrics(run)} == {("train", 2.0), ("eval", 2.5)}


@pytest.mark.parametrize("batch", [1_000, 60_000])
def test_a_long_attempt_stays_small_and_covers_all_its_steps(record: Record, run: int, batch: int) -> None:
    for first in range(1, 600_000, batch * 10):
        record.add_metrics(run, 1, lines(first, min(first + batch * 10, 600_000), 10), NOW)
    steps = [m.step for m in record.metrics(run)]
    gaps = [b - a for a, b in pairwise(steps)]
    assert 1_000 <= len(steps) <= 2_000
    assert steps[0] == 1
    assert steps[-1] > 599_000
    assert max(gaps) <= 2 * min(gaps)


def test_what_was_thinned_out_does_not_come_back(record: Record, run: int) -> None:
    record.add_metrics(run, 1, lines(0, 5_000), NOW)
    before = [m.step for m in record.metrics(run)]
    assert record.add_metrics(run, 1, lines(0, 5_000), NOW) == 0
    assert [m.step for m in record.metrics(run)] == before


def test_a_gpu_is_kept_once_in_ten_seconds(record: Record, run: int) -> None:
    gpus = [Gpu(index=0, memory_used_bytes=7, power_w=300.5), Gpu(index=1)]
    kept = [record.add_gpus(run, 1, gpus, NOW + timedelta(seconds=s)) for s in (0, 1, 9.9, 10, 15, 20)]
    assert kept == [2, 0, 0, 2, 0, 2]
    assert record.gpus(run)[0].memory_used_bytes == 7
    assert len(record.gpus(run, since=NOW + timedelta(seconds=10))) == 4


def test_a_week_of_gpu_readings_stays_small(
    record: Record, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.record.thinning.MAX_GPU_SAMPLES", 100)
    for second in range(0, 6_000, 10):
        record.add_gpus(run, 1, [Gpu(index=0), Gpu(index=3)], NOW + timedelta(seconds=second))
    rows = record.gpus(run)
    assert 50 <= len(rows) <= 100
    assert {row.index for row in rows} == {0, 3}
    assert rows[0].at == NOW
    assert rows[-1].at > NOW + timedelta(seconds=5_700)
