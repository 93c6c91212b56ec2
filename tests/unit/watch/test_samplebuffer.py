"""Samples wait for the others: few commits, and nothing lost at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.errors import HostUnreachable
from tests.builders import attempt_message
from tests.unit.watch.bench import Bench

if TYPE_CHECKING:
    from orchestrator.record import Batch


def away(request: object) -> None:
    raise HostUnreachable("away")


def metrics(step: int, run: str) -> dict[str, object]:
    line = {"schema": 1, "kind": "train", "step": step, "loss": 1.0, "step_s": 1.0}
    return {
        "type": "metrics",
        "run": run,
        "attempt": 1,
        "offset": step,
        "next_offset": step + 1,
        "lines": [line],
    }


def test_many_runs_that_step_cost_two_commits_a_second(record, monkeypatch):
    names = tuple(f"run-{n}" for n in range(20))
    bench = Bench(record, runs=names)
    for name in names:
        bench.send({**attempt_message("heartbeat", {"phase": "train"}), "run": name})
    bench.turn()
    commits = []
    save = record.save_batch

    def counted(batch: Batch) -> None:
        commits.append(batch)
        save(batch)

    monkeypatch.setattr(record, "save_batch", counted)
    for step in range(1, 41):
        bench.send(*(metrics(step, name) for name in names))
        bench.clock.sleep(0.1)
        bench.turn_once()
    assert 7 <= len(commits) <= 9, "over 4 seconds"
    bench.clock.sleep(1.0)
    bench.turn_once()
    for row in bench.rows:
        assert [m.step for m in record.metrics(row.id)] == list(range(1, 41))


def test_what_waits_is_written_at_the_end_of_a_watch(record, monkeypatch):
    bench = Bench(record)
    bench.live()
    bench.send(metrics(1, "dflash"))
    bench.turn_once()
    bench.send(metrics(2, "dflash"), attempt_message("result", {"schema": 1, "step": 2}))
    bench.die(code=0)
    monkeypatch.setattr(bench.site, "open_watch", away)
    assert bench.watcher.run() == 0
    assert [m.step for m in record.metrics(bench.rows[0].id)] == [1, 2]
