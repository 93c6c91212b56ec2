"""A command whose log falls silent under watch: what makes it a hang, and how much does not."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import HostUnreachable
from orchestrator.types.failure import RunState
from orchestrator.wire import pack_bytes
from tests.builders import run_message
from tests.unit.watch.bench import HELLO, NO_DRIVER, Bench

if TYPE_CHECKING:
    from orchestrator.record import Record

HEAD = "extends: default\nbackoff: [0s]\njitter: 0\ngrace: 0s\n"
LEARNED = f"{HEAD}limits: {{train: 60s, eval: 60s, checkpoint: 60s, export: 60s}}\n"
TOLD = f"{HEAD}limits: {{silence: 2m}}\n"
EACH = pytest.mark.parametrize("playbook", [LEARNED, TOLD], ids=["learned", "told"])


class Command(Bench):
    """A trainer of the user's own, of which there is a log and nothing else."""

    log_bytes = 0

    def begin(self, *, steps: int = 9) -> Command:
        self.send(HELLO, self.alive(), NO_DRIVER)
        for number in range(1, steps + 1):
            self.say(f"step {number}/900 loss 2.5\n")
        return self

    def alive(self):
        return run_message(spec={**self.spec(1), "kind": "command"})

    def say(self, text: str, seconds: float = 2.0) -> None:
        data = text.encode()
        fields = {"run": "dflash", "attempt": 1, "offset": self.log_bytes, "data": pack_bytes(data)}
        self.log_bytes += len(data)
        self.send({"type": "log", **fields})
        self.turn(seconds)

    @property
    def state(self) -> RunState | None:
        return self.run.diagnosis.state if self.run.diagnosis is not None else None

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.guest.calls]


@EACH
def test_a_log_that_falls_silent_is_asked_for_stacks_then_stopped(record: Record, playbook):
    bench = Command(record, playbook=playbook).begin()
    bench.turn(40)
    assert bench.state is RunState.HEALTHY
    bench.turn(90)
    assert bench.verbs[:2] == ["stacks", "stop"], bench.story()
    told = next(text for text in bench.told("diagnosis") if "hung" in text)
    assert "its log fell silent at step 9" in told


def test_a_log_without_steps_is_silent_for_ever_unless_its_owner_said_otherwise(record: Record):
    bench = Command(record, playbook=LEARNED).begin(steps=0)
    bench.say("working\n", 3600)
    assert (bench.state, bench.verbs) == (RunState.HEALTHY, [])
    told = Command(record, runs=("other",), playbook=TOLD)
    told.send(HELLO, {**told.alive(), "run": "other"}, NO_DRIVER)
    told.turn(200)
    assert told.verbs[:2] == ["stacks", "stop"], told.story()


def still(bench: Command) -> None:
    assert bench.state is RunState.HEALTHY, bench.story()
    assert bench.verbs == []


@EACH
@pytest.mark.parametrize("text", ["warning: retrying\n", "evaluating ...", "\x00", "step 9/900 loss 2.5\n"])
def test_a_log_that_grows_by_anything_is_alive(record: Record, playbook, text):
    bench = Command(record, playbook=playbook).begin()
    for _ in range(20):
        bench.say(text, 50)
    still(bench)


@EACH
def test_a_watch_that_slept_calls_no_command_hung(record: Record, playbook):
    bench = Command(record, playbook=playbook).begin()
    bench.clock.sleep(8 * 3600)
    bench.turn_once(pong=False)
    assert bench.state is not RunState.HUNG
    bench.turn(40)
    still(bench)


@EACH
@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_was_set_makes_no_hang_and_hides_none(record: Record, playbook, hours):
    bench = Command(record, playbook=playbook).begin()
    bench.clock.jump = timedelta(hours=hours)
    bench.turn(40)
    still(bench)
    bench.turn(200)
    assert bench.verbs[:2] == ["stacks", "stop"], bench.story()


@EACH
def test_a_watch_that_was_blind_in_between_counts_what_it_watched(record: Record, playbook):
    bench = Command(record, playbook=playbook).begin()
    for _ in range(4):
        bench.turn(30)
        bench.lose(HostUnreachable("cut"))
        bench.clock.sleep(600)
        bench.turn_once(pong=False)
        bench.send(HELLO, bench.alive())
        bench.say("still here\n")
    still(bench)


@EACH
def test_a_container_that_is_frozen_or_locked_holds_no_hung_command(record: Record, playbook):
    bench = Command(record, playbook=playbook).begin()
    bench.see_container("locked:backup")
    bench.turn(600)
    assert bench.verbs == []
    bench.see_container("frozen:backup")
    bench.clock.sleep(3600)
    bench.turn_once(pong=False)
    assert bench.state is RunState.CONTAINER_FROZEN
    bench.say("done\n", 0)
    bench.send(HELLO)  # it answers, so it runs
    bench.turn(40)
    still(bench)


def test_a_pause_that_ended_teaches_that_the_next_may_be_as_long(record: Record):
    bench = Command(record, playbook=LEARNED).begin()
    bench.turn(40)
    for number in range(10, 13):
        bench.say(f"step {number}/900 loss 2.5\n")
    bench.turn(75)  # the pause was of 42 s
    still(bench)
    bench.turn(30)
    assert bench.verbs[:2] == ["stacks", "stop"]


def test_a_program_whose_steps_are_done_may_upload_for_hours(record: Record):
    bench = Command(record, playbook=LEARNED).begin()
    bench.say("step 900/900 loss 2.1\n", 3600)
    still(bench)
