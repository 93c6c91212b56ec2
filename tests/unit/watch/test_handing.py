"""A relaunch that was cut between stop and start is finished by whoever watches, and never doubled."""

from __future__ import annotations

import subprocess
import sys

import pytest

from orchestrator.act import placed_actor
from orchestrator.errors import Exit, HostUnreachable
from orchestrator.handover import then_document
from orchestrator.launch import RELAUNCH_REASON, RunSpec
from tests.builders import attempt_message, heartbeat_json, run_message
from tests.unit.watch.bench import HELLO, NO_DRIVER, Bench, exit_json, refused

AT = "2026-11-29T12:00:00.000000Z"
WANTED = RunSpec(run="dflash", config="tiny", overrides=(("optim.lr", "1e-4"),))


@pytest.fixture(scope="module")
def gone() -> dict[str, object]:
    """A process of this machine that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return {**placed_actor(), "pid": process.pid}


ELSEWHERE = {"user": "ann", "host": "another-desk", "pid": 4}
HERE = placed_actor()
ANOTHER_BOOT = {**HERE, "pid": 4_194_303, "place": "another boot"}


def stop(actor, *, reason=RELAUNCH_REASON, at=AT, attempt=1, **more):
    then = then_document(
        WANTED, state_dir="/s", attempt=2, reason="relaunched by its user", changes={"optim.lr": "1e-4"},
        actor=actor,
    )  # fmt: skip
    return {"by": "user", "reason": reason, "attempt": attempt, "at": at, "then": then, **more}


def stopped(bench: Bench, word) -> None:
    """It was alive, and was ended by this word."""
    bench.live()
    bench.die(code=75, stop=word)


def starts(bench: Bench):
    return [request for verb, request in bench.guest.calls if verb == "start"]


def test_the_relaunch_of_a_killed_process_is_finished_with_what_it_wanted(bench, gone):
    stopped(bench, stop(gone))
    bench.turn(5)
    (request,) = starts(bench)
    assert (request["attempt"], request["finishes"], request["unless_stopped"]) == (2, AT, True)
    assert request["spec"]["overrides"] == {"optim.lr": "1e-4"}
    assert request["spec"]["by"] == "user", "the budgets are a person's to refill"
    assert request["env"] is None
    assert any("cut after the stop" in text for text in bench.told("decision"))
    bench.live(2, step=60)
    bench.turn(200)
    assert len(starts(bench)) == 1


@pytest.mark.parametrize(
    "actor", [ELSEWHERE, HERE, ANOTHER_BOOT], ids=["of another machine", "alive", "of another place"]
)
def test_one_that_may_be_at_it_still_gets_the_time_that_a_start_may_take(bench, actor):
    stopped(bench, stop(actor))
    bench.turn(80)
    assert starts(bench) == []
    bench.turn(20)
    assert len(starts(bench)) == 1


def test_the_attempt_that_follows_in_time_is_all_there_is(bench):
    stopped(bench, stop(ELSEWHERE))
    bench.turn(30)
    bench.live(2, step=60)
    bench.turn(300)
    assert starts(bench) == []


def test_a_later_stop_by_its_user_ends_it(bench, gone):
    stopped(bench, stop(ELSEWHERE))
    bench.turn(30)
    assert bench.run.ended is None
    word = {"by": "user", "reason": "enough", "attempt": 1, "at": "later"}
    bench.send(run_message(1, alive=False, spec=bench.spec(1), stop=word))
    bench.turn(300)
    assert starts(bench) == []
    assert bench.run.ended is Exit.NOT_RUNNING
    assert any("enough" in text for text in bench.told("state"))


def test_what_cannot_be_seen_is_not_relaunched(bench, gone):
    stopped(bench, stop(ELSEWHERE))
    bench.lose(HostUnreachable("pve: connection reset"))
    bench.turn(3600, pong=False)
    assert starts(bench) == []


def test_what_lives_is_not_relaunched_but_said_once(bench, gone):
    bench.live()
    for _ in range(20):
        bench.send(
            run_message(1, spec=bench.spec(1), stop=stop(gone)),
            attempt_message("heartbeat", heartbeat_json(step=41), 1),
        )
        bench.turn(10)
    assert bench.guest.calls == []
    (told,) = [text for text in bench.told("gate") if "lives on" in text]
    assert "`dflashctl relaunch`" in told


def test_a_watch_that_only_looks_says_that_nothing_is_done(record, gone):
    bench = Bench(record, acting=False)
    stopped(bench, stop(gone))
    bench.turn(200)
    assert bench.guest.calls == []
    assert any("observe-only" in text for text in bench.told("decision"))
    assert bench.run.ended is Exit.NOT_RUNNING


@pytest.mark.parametrize("after_s", [10, 140])
def test_a_watch_that_only_looks_waits_for_another_that_finishes_it(record, gone, after_s):
    """The other may begin as late as 90 s after the stop, and a start takes up to 60 s."""
    bench = Bench(record, acting=False)
    stopped(bench, stop(gone))
    bench.turn(after_s)
    assert bench.run.ended is None
    assert bench.told("decision") == []
    bench.live(2, step=60)
    bench.turn(30)
    assert bench.run.ended is None


def test_a_stop_that_says_not_what_follows_calls_a_person(bench):
    word = {"by": "user", "reason": RELAUNCH_REASON, "attempt": 1, "at": AT}
    stopped(bench, word)
    bench.turn(60)
    assert bench.run.ended is None
    bench.turn(60)
    assert starts(bench) == []
    assert bench.run.ended is Exit.NEEDS_PERSON
    assert any("did not come; `dflashctl relaunch` starts it" in text for text in bench.told("decision"))


def test_a_word_that_is_not_ours_calls_a_person(bench, gone):
    word = stop(gone)
    word["then"]["spec"] = {"run": "dflash"}
    stopped(bench, word)
    bench.turn(120)
    assert (starts(bench), bench.run.ended) == ([], Exit.NEEDS_PERSON)


@pytest.mark.parametrize("reason", ["attempt_exists", "run_alive"])
def test_one_who_was_quicker_is_no_fault(bench, gone, reason):
    bench.guest.answer = refused(reason)
    stopped(bench, stop(gone))
    bench.turn(5)
    assert len(starts(bench)) >= 1
    assert any("not doubled" in text for text in bench.told("outcome"))
    bench.guest.answer = None
    bench.live(2, step=60)
    count = len(starts(bench))
    bench.turn(100)
    assert len(starts(bench)) == count


def test_a_watch_that_begins_later_finishes_it_too(bench, gone):
    bench.send(
        HELLO, run_message(1, spec=bench.spec(1), stop=stop(gone)), NO_DRIVER,
        attempt_message("heartbeat", heartbeat_json(step=40), 1), attempt_message("exit", exit_json(75), 1),
        run_message(1, alive=False, spec=bench.spec(1), stop=stop(gone)),
    )  # fmt: skip
    bench.turn()
    bench.turn(5)
    assert len(starts(bench)) == 1
