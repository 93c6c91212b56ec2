"""What is worth a message, and what is not. The events are those of a real watch on the bench."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import HostUnreachable
from orchestrator.notify.message import Key, Kind, Message, Severity, words
from orchestrator.notify.messages import Translator
from orchestrator.record import Record
from orchestrator.watch.events import WatchEvent
from orchestrator.wire import pack_bytes
from tests.builders import NOW, attempt_message, heartbeat_json, run_message
from tests.unit.watch.bench import HELLO, NO_DRIVER, PLAYBOOK, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
UNFUSED = "UserWarning: flex_attention called without torch.compile() - this will use an unfused path\n"
LOST = HostUnreachable("pve: connection reset")


class Told:
    """The messages of a bench's events so far, each event taken once, time ticking as on the bench."""

    def __init__(self, bench: Bench, translator: Translator | None = None) -> None:
        self.bench = bench
        self.translator = translator or Translator()
        self.messages: list[Message] = []
        self._num_taken = 0

    def now(self) -> list[Message]:
        for event in self.bench.sink.events[self._num_taken :]:
            self.messages += self.translator.take(event)
        self._num_taken = len(self.bench.sink.events)
        self.messages += self.translator.tick(self.bench.clock.now())
        return self.messages

    def kinds(self) -> list[Kind]:
        return [message.kind for message in self.now()]


@pytest.fixture
def record(tmp_path) -> Iterator[Record]:
    with Record.open(tmp_path / "record.sqlite3") as opened:
        yield opened


@pytest.fixture
def bench(record) -> Bench:
    return Bench(record)


def log(text: str, attempt: int = 1, offset: int = 0) -> dict[str, object]:
    data = pack_bytes(text.encode())
    return {"type": "log", "run": "dflash", "attempt": attempt, "offset": offset, "data": data}


def metrics(step: int, attempt: int) -> dict[str, object]:
    return {
        "type": "metrics", "run": "dflash", "attempt": attempt, "offset": step, "next_offset": step + 1,
        "lines": [{"schema": 1, "kind": "train", "step": step, "loss": 1.0, "step_s": 1.0}],
    }  # fmt: skip


def event(
    kind: str, /, text: str = "", attempt: int | None = 1, at_s: float = 0.0, **detail: object
) -> WatchEvent:
    at = NOW + timedelta(seconds=at_s)
    return WatchEvent(
        kind=kind, at=at, run="dflash", target="pve/200", attempt=attempt, text=text, detail=detail
    )


# -- a death


def test_a_death_is_one_message_with_its_proof_and_what_is_done_about_it(bench):
    told = Told(bench)
    bench.live()
    bench.send(log(OOM.decode()))
    bench.die()
    deaths = [message for message in told.now() if message.kind is Kind.DEATH]
    assert len(deaths) == 1
    assert deaths[0].title == "dflash (attempt 1) died: oom_cuda"
    assert "CUDA out of memory" in deaths[0].body
    assert "next: relaunch_with: " in deaths[0].body
    assert "pve/200" in deaths[0].body
    assert deaths[0].severity is Severity.ERROR


def test_a_death_whose_rule_does_nothing_is_told_after_a_moment():
    translator = Translator()
    died = event("diagnosis", "dead - x", state="dead", failure="unknown")
    assert translator.take(died) == []
    assert translator.tick(NOW + timedelta(seconds=1)) == []
    (message,) = translator.tick(NOW + timedelta(seconds=6))
    assert "nothing is done about it" in message.body
    assert translator.tick(NOW + timedelta(seconds=60)) == []


def test_a_death_at_the_very_end_of_a_watch_is_not_lost():
    translator = Translator()
    translator.take(event("diagnosis", "dead - x", state="dead", failure="unknown"))
    assert [message.kind for message in translator.flush()] == [Kind.DEATH]


def test_a_run_that_trains_and_logs_is_no_message(bench):
    told = Told(bench)
    bench.live()
    for step in range(41, 60):
        bench.send(attempt_message("heartbeat", heartbeat_json(step=step)), metrics(step, 1))
        bench.turn(10)
    assert told.now() == []


def test_a_stop_by_its_user_is_no_message(bench):
    told = Told(bench)
    bench.live()
    bench.die(stop={"by": "user", "at": NOW.isoformat(), "reason": "enough"})
    assert told.now() == []


def test_a_container_that_is_frozen_by_a_backup_is_no_message(bench):
    told = Told(bench)
    bench.live()
    bench.see_container("frozen:backup")
    bench.turn(60, pong=False)
    assert told.now() == []


# -- a call for a person


def test_a_call_for_a_person_is_one_message_that_holds_the_death_too(record):
    bench = Bench(record, playbook=PLAYBOOK + "rules: {oom_cuda: {act: call, why: Somebody must look.}}\n")
    told = Told(bench)
    bench.live()
    bench.send(log(OOM.decode()))
    bench.die()
    (message,) = told.now()
    assert message.kind is Kind.NEEDS_PERSON
    assert message.severity is Severity.URGENT
    assert message.title == "dflash (attempt 1) needs a person: oom_cuda"
    assert "CUDA out of memory" in message.body


def test_giving_up_is_urgent_and_says_so():
    translator = Translator()
    translator.take(event("diagnosis", "dead - x", state="dead", failure="nccl_timeout"))
    (message,) = translator.take(event("decision", "give_up: the budget is spent", kind="give_up"))
    assert message.title == "dflash (attempt 1) gave up: nccl_timeout"


@pytest.mark.parametrize("act", ["wait", "relaunch", "relaunch_with"])
def test_what_the_playbook_does_by_itself_calls_nobody(act):
    translator = Translator()
    assert translator.take(event("decision", f"{act}: soon", kind=act)) == []


@pytest.mark.parametrize("kind", ["gate", "act", "outcome", "guard", "stacks", "session", "host", "pattern"])
def test_what_is_only_of_interest_to_who_looks_is_no_message(kind):
    assert Translator().take(event(kind, "something")) == []


# -- a hang


def hang(bench: Bench) -> None:
    bench.live()
    for _ in range(12):
        bench.send(attempt_message("heartbeat", heartbeat_json(step=40)))
        bench.turn(10)


def test_a_hang_is_told_once_and_the_stop_of_it_is_no_death(bench):
    told = Told(bench)
    hang(bench)
    assert told.kinds() == [Kind.HANG]
    bench.die(stop={"by": "watch", "at": NOW.isoformat(), "reason": "hang"})
    bench.turn(20)
    assert told.kinds() == [Kind.HANG]


def test_a_slow_step_is_no_hang(bench):
    told = Told(bench)
    bench.live()
    bench.turn(50)
    bench.send(attempt_message("heartbeat", heartbeat_json(step=41)))
    bench.turn(50)
    assert told.now() == []


def test_a_hang_that_ends_by_itself_is_a_recovery():
    translator = Translator()
    translator.take(event("diagnosis", "hung - x", state="hung", failure="hang"))
    translator.take(event("decision", "relaunch: x", kind="relaunch"))
    (message,) = translator.take(event("state", "healthy - step 41", at_s=9, state="healthy"))
    assert message.kind is Kind.RECOVERED


# -- recovered


def fall(bench: Bench) -> None:
    bench.live()
    bench.send(log(OOM.decode()))
    bench.die()


def test_a_new_attempt_that_steps_is_a_recovery_and_it_is_told_once(bench):
    told = Told(bench)
    fall(bench)
    bench.live(attempt=2, step=40)
    assert Kind.RECOVERED not in told.kinds(), "that its process lives proves nothing"
    bench.send(metrics(41, 2), metrics(42, 2))
    bench.turn()
    recovered = [message for message in told.now() if message.kind is Kind.RECOVERED]
    assert [message.title for message in recovered] == ["dflash (attempt 2) trains again"]
    assert "at step 41" in recovered[0].body


def test_late_rows_of_the_dead_attempt_are_no_recovery(bench):
    told = Told(bench)
    fall(bench)
    bench.send(metrics(41, 1))
    bench.turn()
    assert Kind.RECOVERED not in told.kinds()


def test_a_first_attempt_that_steps_is_no_recovery():
    assert Translator().take(event("metrics", step=1)) == []


def test_what_another_watch_told_fell_is_told_when_it_trains_again():
    translator = Translator()
    translator.resume([Key("pve/200", "dflash", 1, Kind.DEATH)])
    (message,) = translator.take(event("metrics", attempt=2, step=7))
    assert message.kind is Kind.RECOVERED
    translator = Translator()
    translator.resume([Key("pve/200", "dflash", 1, Kind.DEATH), Key("pve/200", "dflash", 2, Kind.RECOVERED)])
    assert translator.take(event("metrics", attempt=2, step=8)) == []


# -- prediction, finish


def test_the_fallback_to_dense_attention_is_told_while_the_run_still_lives(bench):
    told = Told(bench)
    bench.live()
    bench.send(log(UNFUSED))
    bench.turn()
    (message,) = told.now()
    assert message.kind is Kind.PREDICTION
    assert "dense" in message.title
    assert "flex_attention called without torch.compile" in message.body


@pytest.mark.parametrize("line", ["UserWarning: lr_scheduler.step() before optimizer.step()\n", "loss 2.1\n"])
def test_any_other_warning_is_no_message(bench, line):
    told = Told(bench)
    bench.live()
    bench.send(log(line))
    bench.turn()
    assert told.now() == []


def test_a_finish_is_a_message(bench):
    told = Told(bench)
    bench.live()
    bench.send(attempt_message("result", {"step": 100}))
    bench.die(code=0)
    assert told.kinds() == [Kind.FINISHED]


# -- blind


def test_blindness_is_told_when_it_lasts_and_once_and_so_is_its_end(bench):
    told = Told(bench)
    bench.live()
    bench.lose(LOST)
    for _ in range(9):
        bench.turn(60, pong=False)
        assert told.now() == []
    for _ in range(9):
        bench.turn(60, pong=False)
        told.now()
    (message,) = told.messages
    assert message.kind is Kind.BLIND
    assert "says nothing about the run" in message.body
    bench.send(HELLO, run_message(spec=bench.spec(1)), NO_DRIVER)
    bench.turn()
    assert told.kinds() == [Kind.BLIND, Kind.SEEN_AGAIN]


def test_a_short_blindness_is_no_message(bench):
    told = Told(bench)
    bench.live()
    for _ in range(5):
        bench.lose(LOST)
        bench.turn(120, pong=False)
        told.now()
        bench.send(HELLO, run_message(spec=bench.spec(1)), NO_DRIVER)
        bench.send(attempt_message("heartbeat", heartbeat_json(step=41)))
        bench.turn()
    assert told.now() == []


def test_a_clock_that_is_set_back_delays_neither_a_death_nor_blindness_for_as_long():
    translator = Translator(blind_after_s=60)
    translator.take(event("diagnosis", "dead - x", state="dead", failure="unknown"))
    translator.take(replace(event("blind", "no answer"), run="b32"))
    told = translator.tick(NOW - timedelta(hours=3))
    told += translator.tick(NOW - timedelta(hours=3) + timedelta(seconds=61))
    assert [message.kind for message in told] == [Kind.DEATH, Kind.BLIND]


def test_a_host_that_is_cut_off_is_one_message_whatever_runs_behind_it():
    translator = Translator()
    runs = [("pve/200", "a"), ("pve/201", "b"), ("other/200", "c")]
    for target, run in runs:
        translator.take(replace(event("blind", "no answer"), target=target, run=run))
    told = translator.tick(NOW + timedelta(minutes=10))
    assert [message.title for message in told] == [
        "2 runs at pve are not seen", "c (attempt 1) has not been seen for 10m",
    ]  # fmt: skip
    assert [len(message.keys) for message in told] == [2, 1]
    assert "b (attempt 1)" in told[0].body
    for target, run in runs:
        healthy = event("state", "healthy", at_s=700, state="healthy")
        assert translator.take(replace(healthy, target=target, run=run)) == []
    told = translator.tick(NOW + timedelta(seconds=701))
    assert [message.title for message in told] == [
        "2 runs at pve are seen again", "c (attempt 1) is seen again after 11m40s",
    ]  # fmt: skip


def test_a_second_blindness_is_another_thing_told():
    translator = Translator(blind_after_s=60)
    keys = []
    for begin in (0, 1000):
        translator.take(event("blind", "no answer", at_s=begin))
        told = translator.tick(NOW + timedelta(seconds=begin + 61))
        keys += [message.keys for message in told if message.kind is Kind.BLIND]
        translator.take(event("state", "healthy", at_s=begin + 70, state="healthy"))
    assert len(set(keys)) == 2


# -- the words


def test_a_secret_in_a_line_does_not_leave():
    token = "hf_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY2z"
    title, body = words(f"died with {token}", [f"Authorization: Bearer {token}"])
    assert token not in title + body


def test_a_line_of_a_log_calls_nobody_and_commands_no_terminal():
    _, body = words("x", ["@everyone <!channel> \x1b[31mred\x1b]52;c;aGk=\x07"])
    assert "@everyone" not in body
    assert "<!channel>" not in body
    assert "\x1b" not in body


def test_a_message_is_short_whatever_it_quotes():
    title, body = words("t" * 5000, ["b" * 100_000 for _ in range(500)])
    assert len(title) <= 120
    assert len(body) < 16_000
