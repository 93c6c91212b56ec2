"""A hang is looked into before anything is done about it, and nothing of that holds the playbook up."""

import pytest

from orchestrator.errors import Exit, GuestError, HostUnreachable
from orchestrator.record import Record
from orchestrator.watch.stacktaking import take_stacks
from tests.builders import attempt_message, heartbeat_json
from tests.unit.watch.bench import Bench, raising, refused, stacks_answer


@pytest.fixture
def bench(record: Record) -> Bench:
    return Bench(record)


def hang(bench: Bench) -> None:
    bench.live()
    bench.turn(70)


def verbs(bench: Bench) -> list[str]:
    return [verb for verb, _ in bench.guest.calls]


def test_the_ranks_are_asked_before_the_stop_and_what_they_said_is_told_and_on_record(bench):
    hang(bench)
    assert verbs(bench) == ["stacks", "stop"]
    (told,) = bench.told("stacks")
    assert told == "rank 0 in wait (trainer/loop.py:9); kept in attempts/1/stacks/t"
    event = next(event for event in bench.sink.events if event.kind == "stacks")
    assert event.detail["ranks"][0]["place"] == "wait (trainer/loop.py:9)"
    assert ("outcome", f"stacks: {told}") in bench.actions()


@pytest.mark.parametrize(
    "answer", [refused("not_found"), raising(HostUnreachable("cut in mid-call"))], ids=["refused", "cut"]
)
def test_stacks_that_cannot_be_had_hold_nothing_up(bench, answer):
    def only_stacks(verb, request):
        if verb == "stacks":
            answer(verb, request)

    bench.guest.answer = only_stacks
    hang(bench)
    assert verbs(bench) == ["stacks", "stop"]
    assert bench.told("stacks")[0].startswith("could not be had: ")


def test_a_container_that_a_backup_holds_is_neither_asked_nor_stopped_until_it_is_free(bench):
    bench.site.state = "locked:backup"
    hang(bench)
    bench.turn(40)
    assert verbs(bench) == []
    assert any("the container is locked:backup" in text for text in bench.told("gate"))
    bench.site.state = "running"
    bench.turn(30)
    assert verbs(bench) == ["stacks", "stop"]


@pytest.mark.parametrize("state", ["T", "t"])
def test_a_run_that_somebody_holds_still_is_told_and_left_alone_until_it_is_let_go(bench, state, monkeypatch):
    """A debugger or a signal: whoever holds it would lose what he looks at."""
    held = stacks_answer(1)
    held[0]["state"] = state
    monkeypatch.setattr("tests.unit.watch.bench.stacks_answer", lambda attempt: held)
    hang(bench)
    bench.turn(300)
    assert set(verbs(bench)) == {"stacks"}
    assert [text.startswith("not yet: rank 0 (process 7) ") for text in bench.told("gate")] == [True]
    assert len(bench.told("stacks")) == 1
    bench.turn(400)
    assert bench.told("decision")[-1].startswith("call")
    held[0]["state"] = "S"
    bench.turn(600)
    assert verbs(bench)[-1] == "stop", "it hangs of its own accord"


def test_a_guest_that_does_not_answer_hides_no_death(bench):
    bench.guest.goes_on.clear()
    hang(bench)
    assert bench.guest.is_asked.wait(60)
    assert verbs(bench) == ["stacks"]
    bench.die(code=1)
    assert bench.run.diagnosis is not None
    assert bench.run.diagnosis.state.value == "dead"
    bench.guest.goes_on.set()
    bench.watcher.acts.join(60)
    bench.turn(1)
    assert verbs(bench) == ["stacks", "start"], "what is dead needs no stop"


def test_nothing_is_done_about_a_hang_while_its_ranks_are_asked(bench):
    bench.guest.goes_on.clear()
    hang(bench)
    assert bench.guest.is_asked.wait(60)
    bench.turn(40)
    assert verbs(bench) == ["stacks"]
    bench.guest.goes_on.set()
    bench.watcher.acts.join(60)
    bench.turn(1)
    assert verbs(bench) == ["stacks", "stop"]


def test_a_run_that_hangs_again_is_asked_again(record):
    book = "extends: default\nbackoff: [1h]\njitter: 0\ngrace: 0s\nlimits: {train: 60s}\n"
    bench = Bench(record, playbook=book)
    hang(bench)
    bench.turn(60)
    assert verbs(bench) == ["stacks"], "once for one hang"
    bench.send(attempt_message("heartbeat", heartbeat_json(step=41)))
    bench.turn(80)
    assert verbs(bench) == ["stacks", "stacks"]


def test_a_watch_that_only_observes_asks_nobody(record):
    bench = Bench(record, acting=False)
    hang(bench)
    assert (verbs(bench), bench.run.ended) == ([], Exit.HUNG)


def test_a_run_that_moves_is_asked_nothing(bench):
    bench.live()
    for step in range(41, 48):
        bench.send(attempt_message("heartbeat", heartbeat_json(step=step)))
        bench.turn(20)
    assert verbs(bench) == []


def test_the_playbook_s_grace_passes_between_the_stacks_and_the_stop(record):
    book = "extends: default\nbackoff: [0s]\njitter: 0\ngrace: 90s\nlimits: {train: 60s}\n"
    bench = Bench(record, playbook=book)
    hang(bench)
    bench.turn(60)
    assert verbs(bench) == ["stacks"]
    assert "in 1m30s" in bench.told("decision")[0]
    bench.turn(40)
    assert verbs(bench) == ["stacks", "stop"]


def test_a_dead_run_waits_for_no_grace(record):
    book = "extends: default\nbackoff: [0s]\njitter: 0\ngrace: 90s\n"
    bench = Bench(record, playbook=book)
    bench.live(resumed_from_step=0)
    bench.die()
    bench.turn(5)
    assert verbs(bench) == ["start"]


def test_an_answer_that_is_not_the_protocol_s_is_an_error_of_the_guest():
    class Wrong:
        def call(self, verb, request, *, timeout_s):
            return [{"type": "stacks", "attempt": 1}]

    with pytest.raises(GuestError, match=r"is not what DESIGN\.md says"):
        take_stacks(Wrong(), "/s", "dflash", 1)
