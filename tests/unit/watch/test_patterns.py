"""What a watch tells of patterns: once, with proof, on record, and without an act."""

import pytest

from orchestrator.record import Record
from orchestrator.types.failure import FailureClass
from tests.builders import attempt_message, heartbeat_json, run_message
from tests.unit.watch.bench import Bench


@pytest.fixture
def bench(record: Record) -> Bench:
    return Bench(record)


class Steps:
    """The trainer's metrics.jsonl, as the guest sends it."""

    def __init__(self, bench: Bench, attempt: int = 1) -> None:
        self.bench, self.attempt, self.step, self.offset = bench, attempt, 0, 0

    def take(self, count: int, step_s: float, **more: object) -> None:
        for _ in range(count):
            self.step += 1
            row = {"kind": "train", "step": self.step, "step_s": step_s, "tokens_per_s": 1e3, **more}
            message = {"type": "metrics", "run": "dflash", "attempt": self.attempt, "offset": self.offset}
            self.offset += 100
            self.bench.send({**message, "next_offset": self.offset, "lines": [row]})
            beat = heartbeat_json(step=self.step, resumed_from_step=None)
            self.bench.send(attempt_message("heartbeat", beat, self.attempt))
            self.bench.turn_once()
        self.bench.turn(35)


def patterns(bench: Bench) -> list[str]:
    return [e.detail["failure"] for e in bench.sink.events if e.kind == "pattern"]


def recorded(bench: Bench) -> list[str]:
    found = bench.record.diagnoses(bench.rows[0].id)
    return [row.failure.value for row in found if row.failure is not None]


def test_a_run_that_became_slower_is_told_once_with_the_times_and_left_alone(bench):
    bench.live(step=0)
    steps = Steps(bench)
    steps.take(60, 0.3)
    assert patterns(bench) == []
    steps.take(25, 0.9)
    steps.take(25, 0.9)
    assert patterns(bench) == ["throughput_regression"]
    event = next(event for event in bench.sink.events if event.kind == "pattern")
    assert (event.level.value, event.detail["act"]) == ("warning", "none")
    assert "3.0 times as long" in event.text
    assert recorded(bench) == ["throughput_regression"]
    assert bench.guest.calls == []


def test_a_run_that_became_slower_after_it_was_well_again_is_told_again(bench):
    bench.live(step=0)
    steps = Steps(bench)
    for step_s in (0.3, 0.3, 0.9, 0.3, 0.3, 0.9):
        steps.take(30, step_s)
    assert patterns(bench) == ["throughput_regression"] * 2


def test_a_slow_evaluation_or_a_few_slow_steps_are_not_told(bench):
    bench.live(step=0)
    steps = Steps(bench)
    steps.take(60, 0.3)
    steps.take(5, 3.0)
    steps.take(30, 0.3)
    bench.send(attempt_message("heartbeat", heartbeat_json(step=steps.step, phase="eval")))
    bench.turn(300)
    assert patterns(bench) == []


def test_a_slow_rank_is_named_and_ranks_alike_are_not(bench):
    bench.live(step=0)
    steps = Steps(bench)
    steps.take(25, 0.3, rank_s=[0.2, 0.21, 0.2])
    assert patterns(bench) == []
    steps.take(25, 0.3, rank_s=[0.2, 0.2, 0.45])
    assert patterns(bench) == ["stragglers"]
    assert any("rank 2 slower than the rest" in text for text in bench.told("pattern"))


def test_an_attempt_from_zero_beside_a_checkpoint_calls_a_person_and_trains_on(bench):
    bench.live(step=40, checkpoint_step=25)
    bench.die(checkpoint_step=25)
    bench.live(2, step=3, resumed_from_step=None)
    bench.turn(60)
    assert patterns(bench) == ["resumed_from_zero"]
    (action,) = [text for kind, text in bench.actions() if kind == "action" and text.startswith("call")]
    assert "write over what was trained" in action
    assert bench.guest.asked("stop") == []
    assert bench.run.ended is None, "it trains on, and the watch goes on"


def test_an_attempt_that_resumed_is_not_told(bench):
    bench.live(step=40, checkpoint_step=25)
    bench.die(checkpoint_step=25)
    bench.live(2, step=27, resumed_from_step=25)
    bench.turn(60)
    assert patterns(bench) == []


def test_three_deaths_at_one_step_are_told_with_each_of_them_and_call_a_person(record):
    bench = Bench(record, playbook="extends: default\nbackoff: [0s]\njitter: 0\ngrace: 0s\n")
    for attempt in (1, 2, 3):
        step = attempt_message("heartbeat", heartbeat_json(step=40, resumed_from_step=25), attempt)
        bench.send(run_message(attempt, spec=bench.spec(attempt)), step)
        bench.live(attempt, step=40, resumed_from_step=25, checkpoint_step=25)
        bench.die(attempt, code=139 - 128)
    (found,) = [e for e in bench.sink.events if e.kind == "pattern"]
    assert found.detail["failure"] == FailureClass.NO_PROGRESS.value
    assert len(found.detail["evidence"]) == 3


def test_what_is_on_record_of_other_work_is_no_measure(record):
    bench = Bench(record)
    bench.live(step=0)
    steps = Steps(bench)
    steps.take(60, 0.1)
    bench.die(checkpoint_step=50)
    spec = {**bench.spec(2), "overrides": {"data.batch_rows": "64"}}
    bench.send(run_message(2, spec=spec))
    bench.turn()
    other = Steps(bench, attempt=2)
    other.step = 60
    other.take(30, 0.9)
    assert patterns(bench) == []
    assert bench.run.patterns is not None


def test_the_same_work_in_another_attempt_is_a_measure(record):
    bench = Bench(record)
    bench.live(step=0)
    Steps(bench).take(60, 0.1)
    bench.die(checkpoint_step=50)
    bench.live(2, step=60, resumed_from_step=50)
    other = Steps(bench, attempt=2)
    other.step = 60
    other.take(30, 0.9)
    assert "throughput_regression" in patterns(bench)


def test_a_crash_loop_is_told_with_its_history_and_calls_a_person(record):
    book = "extends: default\nbackoff: [0s]\njitter: 0\ncrash_loop: {deaths: 3, within: 30m}\n"
    bench = Bench(record, playbook=book)
    for attempt in (1, 2, 3):
        bench.live(attempt, step=40 + attempt, resumed_from_step=25, checkpoint_step=25)
        bench.die(attempt, code=1)
    (found,) = [e for e in bench.sink.events if e.kind == "pattern"]
    assert found.text == "crash loop: 3 deaths within 30m, and no checkpoint advanced"
    assert [each["text"][:9] for each in found.detail["evidence"]] == ["attempt 1", "attempt 2"]
    assert "crash loop" in bench.told("decision")[-1]


def test_deaths_with_checkpoints_between_them_are_no_loop(record):
    book = "extends: default\nbackoff: [0s]\njitter: 0\ncrash_loop: {deaths: 3, within: 30m}\n"
    bench = Bench(record, playbook=book)
    for attempt in (1, 2, 3):
        step = 25 * attempt
        bench.live(attempt, step=step + 3, resumed_from_step=step - 25, checkpoint_step=step)
        bench.die(attempt, code=1, checkpoint_step=step)
    assert patterns(bench) == []
