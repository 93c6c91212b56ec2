"""What a watch does about a death, and all that it does not do."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing

import pytest

from orchestrator.errors import Exit, HostUnreachable, RecordError
from orchestrator.observe import Holder
from orchestrator.record import Record
from orchestrator.watch.company import WHY
from tests.builders import attempt_message, heartbeat_json, run_message
from tests.unit.watch.bench import HELLO, NO_DRIVER, PONG, Bench, exit_json, raising, refused

LOST = HostUnreachable("pve: connection reset")
BUSY_GPU = {
    "type": "gpu", "source": "nvml", "problem": None, "gpus": [{"index": 0, "memory_used_bytes": 5 << 30}],
}  # fmt: skip


def test_a_dead_run_is_relaunched_once_as_the_next_attempt(bench):
    bench.live()
    bench.die()
    bench.turn(20)
    assert bench.guest.asked("start") == [2]
    assert any("attempt 2 started" in text for text in bench.told("outcome"))


def test_a_living_run_is_left_alone(bench):
    bench.live()
    bench.turn(50)
    assert bench.guest.calls == []


def test_an_attempt_that_dies_at_once_is_relaunched_without_waiting_for_the_one_before(bench):
    bench.live()
    bench.die()
    bench.live(2, step=60, checkpoint_step=50)
    bench.die(2)
    bench.turn(1)
    assert bench.guest.asked("start") == [2, 3]


def test_a_lost_stream_never_relaunches_however_long_it_lasts(bench):
    bench.live()
    bench.lose(LOST)
    bench.turn(7200, pong=False)
    assert bench.guest.calls == []
    assert bench.run.ended is None


def test_a_stream_that_is_lost_before_the_relaunch_holds_it_until_it_is_seen_again(record):
    bench = Bench(record, playbook="extends: default\nbackoff: [30s]\njitter: 0\n")
    bench.live()
    bench.die()
    bench.lose(LOST)
    bench.turn(60, pong=False)
    assert bench.guest.calls == []
    bench.send(HELLO, run_message(alive=False, spec=bench.spec(1)), NO_DRIVER)
    bench.turn()
    assert bench.guest.asked("start") == [2], "the wait was over, and does not begin anew after a cut"
    assert len(bench.told("decision")) == 1 + sum("wait:" in text for text in bench.told("decision"))


def test_who_holds_a_gpu_is_asked_of_the_host_and_told_once_with_what_would_end_it(bench):
    bench.site.holders = (Holder(pid=99, command="ollama serve", owner="ann"),)
    bench.live()
    full = {"index": 0, "memory_used_bytes": 5 << 30, "processes": [{"pid": 99, "memory_bytes": 5 << 30}]}
    bench.send({**BUSY_GPU, "gpus": [full]})
    bench.die()
    bench.turn(20)
    assert bench.site.looked_up == [(99,)]
    assert bench.told("gate") == [
        "not yet: GPU 0 holds 5.0 GiB by pid 99 (host pids)",
        "held by ollama serve (host pid 99, user ann): `kill 99` on the host would end it",
    ]
    assert bench.guest.calls == [], "nobody is touched"
    bench.turn(700)
    assert any("held by ollama serve" in text for text in bench.told("decision"))
    bench.send(NO_DRIVER)
    bench.turn(1)
    assert bench.guest.asked("start") == [2]


def test_a_run_that_a_container_was_copied_with_is_not_started_beside_its_original(bench):
    def begun(ct):
        return run_message(alive=False, spec={**bench.spec(1), "ct": ct})

    bench.live()
    bench.send(attempt_message("exit", exit_json()), begun(300))
    bench.turn(20)
    assert bench.guest.calls == []
    assert any("begun in container 300, and this is 200" in text for text in bench.told("gate"))
    bench.send(begun(200))
    bench.turn(1)
    assert bench.guest.asked("start") == [2]


def test_a_gpu_that_changes_hands_while_a_start_waits_is_told_anew(bench):
    def held(*pids):
        processes = [{"pid": pid, "memory_bytes": 5 << 30} for pid in pids]
        full = {"index": 0, "memory_used_bytes": 5 << 30, "processes": processes}
        bench.site.holders = tuple(Holder(pid=pid, command=f"python {pid}", owner="ann") for pid in pids)
        bench.send({**BUSY_GPU, "gpus": [full]})

    bench.live()
    held(99)
    bench.die()
    bench.turn(20)
    held(99, 100)
    bench.turn(1)
    held(100)
    bench.turn(1)
    assert bench.site.looked_up == [(99,), (99, 100)]
    assert any("held by python 100" in text for text in bench.told("gate"))
    assert len(bench.told("gate")) == 4, "one that left is no news"


def test_another_watcher_that_acts_is_told_once_and_when_it_left(bench):
    ann = {"user": "ann", "host": "laptop", "pid": "12", "acts": True, "runs": ["dflash"], "me": False}
    me, bob = {**ann, "pid": "1", "me": True}, {**ann, "user": "bob", "acts": False, "runs": None}
    other = {**ann, "user": "eve", "runs": ["another"]}
    bench.live()
    for present in ([me], [me, ann, bob, other], [me, ann, bob], [me, bob]):
        bench.send({"type": "watchers", "watchers": present})
        bench.turn(5)
    assert bench.told("watchers") == [
        f"also watched by ann@laptop (pid 12), which acts; {WHY}",
        "also watched by bob@laptop (pid 12), which only looks",
        "no longer watched by ann@laptop (pid 12), which acts",
    ]
    bench.die()
    bench.turn(20)
    assert bench.guest.asked("start") == [2], "whoever else watches decides nothing"


def test_a_gate_that_is_no_gpus_asks_the_host_nothing(bench):
    bench.live()
    bench.send({"type": "disk", "free_bytes": 1 << 20, "total_bytes": 1 << 40, "log_bytes": {}})
    bench.die()
    bench.turn(20)
    assert len(bench.told("gate")) == 1
    assert bench.site.looked_up == []


BACK = """extends: default
backoff: [0s]
jitter: 0
rules:
  unknown:
    act: relaunch_with
    why: The test lets it go back, then leave the step out.
    ladder:
      - {why: Back to the checkpoint before., do: [previous_checkpoint]}
      - {why: Without the step that it died at., do: [skip_batch]}
"""


def test_remedies_travel_with_the_start(record):
    bench = Bench(record, playbook=BACK)
    bench.live(checkpoint_step=50)
    bench.die()
    bench.turn(5)
    (start,) = [request for verb, request in bench.guest.calls if verb == "start"]
    assert (start["set_aside_step"], start["skip_steps"]) == (50, [])
    assert start["spec"]["remedies"] == [{"kind": "previous_checkpoint", "step": 50}]
    (decision,) = [event.detail for event in bench.sink.events if event.kind == "decision"]
    assert (decision["remedies"], decision["rung"]) == (start["spec"]["remedies"], 0)
    assert set(start["spec"]["actor"]) == {"user", "host", "pid"}


def test_a_remedy_that_cannot_be_calls_a_person_and_is_not_tried_again(record):
    bench = Bench(record, playbook=BACK)
    bench.guest.answer = refused("no_checkpoint")
    bench.live(checkpoint_step=50)
    bench.die()
    bench.turn(30)
    assert bench.guest.asked("start") == [2]
    assert any("call: no: no_checkpoint" in text for text in bench.told("decision"))
    assert bench.run.ended is Exit.NEEDS_PERSON
    bench.lose(LOST)
    bench.turn(30, pong=False)
    bench.send(HELLO, run_message(alive=False, spec=bench.spec(1)), NO_DRIVER)
    bench.turn(30)
    assert bench.guest.asked("start") == [2]


def test_a_finished_run_is_never_relaunched(bench):
    bench.live()
    bench.send(attempt_message("result", {"step": 100}))
    bench.die(code=0)
    bench.turn(100)
    assert bench.guest.calls == []
    assert bench.run.ended is Exit.OK


def test_a_finished_run_stays_finished_when_the_stream_is_lost(bench):
    bench.live()
    bench.send(attempt_message("result", {"step": 100}))
    bench.die(code=0)
    bench.lose(LOST)
    bench.turn(100, pong=False)
    assert bench.run.ended is Exit.OK


def test_a_run_that_its_user_stopped_is_never_relaunched(bench):
    bench.live()
    bench.die(stop={"by": "user", "attempt": 1, "reason": "enough"})
    bench.turn(100)
    assert bench.guest.calls == []
    assert bench.run.ended is Exit.NOT_RUNNING


def test_a_stop_between_decision_and_act_keeps_the_run_stopped(record):
    bench = Bench(record, playbook="extends: default\nbackoff: [30s]\njitter: 0\n")
    bench.live()
    bench.die()
    bench.turn(10)
    bench.send(run_message(alive=False, spec=bench.spec(1), stop={"by": "user", "attempt": 1, "reason": "x"}))
    bench.turn(100)
    assert bench.guest.calls == []
    assert bench.run.ended is Exit.NOT_RUNNING


def test_a_stop_that_the_watch_has_not_seen_is_seen_by_the_guest_that_it_asks(bench):
    bench.live()
    bench.guest.answer = refused("stopped_by_user")
    bench.die()
    (request,) = [request for verb, request in bench.guest.calls if verb == "start"]
    assert request["unless_stopped"] is True
    assert bench.told("outcome") == []


@pytest.mark.parametrize(
    ("close", "open_"),
    [
        (BUSY_GPU, NO_DRIVER),
        ({"type": "gpu", "gpus": [], "source": None, "problem": "driver stuck"}, NO_DRIVER),
        ({"type": "disk", "free_bytes": 1 << 20}, {"type": "disk", "free_bytes": 1 << 40}),
    ],
)
def test_nothing_is_started_while_a_gate_is_closed_and_it_is_once_the_gate_opens(bench, close, open_):
    bench.live()
    bench.send(close)
    bench.die()
    bench.turn(120)
    assert bench.guest.calls == []
    assert len(bench.told("gate")) == 1
    bench.send(open_)
    bench.turn()
    assert bench.guest.asked("start") == [2]


def test_a_container_that_the_host_has_locked_holds_the_start(bench):
    bench.live()
    bench.site.state = "locked:backup"
    bench.die()
    assert bench.guest.calls == []
    assert "locked:backup" in bench.told("gate")[0]
    bench.site.state = "running"
    bench.turn(20)
    assert bench.guest.asked("start") == [2]


def test_processes_that_are_left_hold_the_start(bench):
    bench.live()
    bench.send(attempt_message("exit", exit_json()), run_message(spec=bench.spec(1)))
    bench.turn(120)
    assert bench.guest.calls == []


def test_a_gate_whose_numbers_move_is_told_once(bench):
    bench.live()
    bench.send(BUSY_GPU)
    bench.die()
    for size in range(6, 60):
        bench.send({**BUSY_GPU, "gpus": [{"index": 0, "memory_used_bytes": size << 30}]})
        bench.turn()
    assert len(bench.told("gate")) == 1


def test_a_gate_that_stays_closed_for_ten_minutes_calls_a_person_once_and_still_opens(bench):
    bench.live()
    bench.send(BUSY_GPU)
    bench.die()
    bench.turn(590)
    calls = [text for text in bench.told("decision") if text.startswith("call:")]
    assert calls == []
    bench.turn(3600)
    (call,) = [text for text in bench.told("decision") if text.startswith("call:")]
    assert "GPU 0 holds" in call
    assert bench.run.ended is None, "the watch goes on"
    bench.send(NO_DRIVER)
    bench.turn()
    assert bench.guest.asked("start") == [2]


@pytest.mark.parametrize("reason", ["run_alive", "attempt_exists", "stopped_by_user", "no_space", "no_tmux"])
def test_a_refused_start_is_told_once_and_tried_ever_more_seldom(bench, reason):
    bench.live()
    bench.guest.answer = refused(reason)
    bench.die()
    bench.turn(60)
    tries = len(bench.guest.calls)
    assert 3 <= tries <= 6, "2, 4, 8, 16, 32 s"
    assert len([text for text in bench.told("gate") + bench.told("outcome") if reason in text]) == 1
    bench.turn(3600)
    assert len(bench.guest.calls) < 40
    assert len([text for text in bench.told("decision") if text.startswith("call:")]) == 1


def test_an_unknown_outcome_is_repeated_only_with_the_same_number(bench):
    bench.live()
    bench.guest.answer = raising(HostUnreachable("connection lost in mid-call"))
    bench.die()
    bench.guest.answer = refused("attempt_exists")
    bench.turn(60)
    assert set(bench.guest.asked("start")) == {2}
    assert ("outcome", "relaunch: unknown") in [(k, t[:17]) for k, t in bench.actions()] or any(
        "unknown" in text for _, text in bench.actions()
    )


def test_a_start_that_shows_itself_is_not_asked_for_again_after_an_unknown_outcome(bench):
    bench.live()
    bench.guest.answer = raising(HostUnreachable("connection lost in mid-call"))
    bench.die()
    bench.guest.answer = None
    bench.live(2, step=41)
    bench.turn(300)
    assert bench.guest.asked("start") == [2]


def hang(bench: Bench) -> None:
    bench.live()
    bench.turn(70)


def test_what_hangs_is_stopped_then_relaunched_and_its_budget_is_spent(bench):
    hang(bench)
    assert bench.guest.asked("stop") == [1]
    assert bench.guest.asked("start") == []
    bench.die(code=None, stop={"by": "watch", "attempt": 1, "reason": "hang"})
    assert bench.guest.asked("start") == [2]
    (past,) = bench.record.history(bench.rows[0].id).attempts
    assert (past.attempt, past.failure and past.failure.value) == (1, "hang")
    assert len(bench.told("decision")) == 1, "one decision: stop it and start the next"


def test_a_decision_is_dropped_when_the_run_moves_again(record):
    bench = Bench(
        record, playbook="extends: default\nbackoff: [30s]\njitter: 0\ngrace: 0s\nlimits: {train: 60s}\n"
    )
    hang(bench)
    assert bench.run.diagnosis is not None
    assert bench.run.diagnosis.state.value == "hung"
    bench.send(attempt_message("heartbeat", heartbeat_json(step=41)))
    bench.turn(50)
    assert {verb for verb, _ in bench.guest.calls} == {"stacks"}, "looked at, and left alone"
    assert bench.run.decision is None


def test_a_watch_that_was_itself_asleep_calls_nothing_hung(bench):
    bench.live()
    bench.clock.sleep(8 * 3600)
    bench.turn_once(pong=False)
    assert bench.run.diagnosis is not None
    assert bench.run.diagnosis.state.value == "blind"
    bench.send(PONG)  # what lay in the pipe, then the heartbeat that is late
    bench.turn_once(pong=False)
    assert bench.run.diagnosis.state.value == "healthy"
    assert bench.guest.calls == []


def test_a_reconnect_after_an_hour_calls_nothing_hung(bench):
    bench.live()
    bench.lose(LOST)
    bench.turn(3600, pong=False)
    bench.send(HELLO, run_message(spec=bench.spec(1)))
    bench.turn()
    assert "hung" not in {event.detail.get("state") for event in bench.sink.events}
    assert bench.guest.calls == []


def test_a_hang_is_still_seen_after_a_cut(bench):
    bench.live()
    bench.turn(30)
    bench.lose(LOST)
    bench.turn(3600, pong=False)
    bench.send(HELLO, run_message(spec=bench.spec(1)), NO_DRIVER)
    bench.turn()
    bench.turn(20)
    assert bench.guest.calls == [], "50 s were watched in all"
    bench.turn(20)
    assert bench.guest.asked("stop") == [1]


def test_observe_only_touches_nothing_and_says_so_in_its_exit_code(record):
    bench = Bench(record, acting=False)
    bench.live()
    bench.die()
    bench.turn(100)
    assert bench.guest.calls == []
    assert bench.run.ended is Exit.FAILED


def test_a_rule_that_does_nothing_ends_the_watch_of_a_dead_run(record):
    book = "extends: default\nrules: {signal_exit: {act: none, why: A person looks.}}\n"
    bench = Bench(record, playbook=book)
    bench.live()
    bench.send(attempt_message("exit", exit_json(None, 11)), run_message(alive=False, spec=bench.spec(1)))
    bench.turn(10)
    assert bench.run.ended is Exit.FAILED


def test_a_start_under_way_is_not_begun_a_second_time(bench):
    bench.live()
    bench.guest.goes_on.clear()
    bench.die()
    assert bench.guest.is_asked.wait(60)
    bench.turn(600)
    assert bench.guest.asked("start") == [2]
    bench.guest.goes_on.set()
    bench.watcher.acts.join(60)


def test_two_watches_ask_for_the_same_number_and_the_guest_gives_it_once(record, tmp_path):
    benches = [Bench(record), Bench(record)]
    started: list[int] = []
    lock = threading.Lock()

    def fenced(verb: str, request) -> None:
        with lock:
            if request["attempt"] in started:
                refused("attempt_exists")(verb, request)
            started.append(request["attempt"])

    for bench in benches:
        bench.guest.answer = fenced
        bench.live()
        bench.die()
    assert started == [2]
    assert any("not doubled" in text for bench in benches for text in bench.told("outcome"))


def test_a_record_that_cannot_be_written_ends_the_watch_before_anything_is_started(tmp_path):
    record = Record.open(tmp_path / "record.sqlite3", busy_timeout_s=0.05)
    bench = Bench(record)
    bench.live()
    with closing(sqlite3.connect(record.path)) as another:
        another.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RecordError) as caught:
            bench.die()
    record.close()
    assert caught.value.exit_code is Exit.RECORD
    assert bench.guest.calls == []


def test_the_attempt_that_a_killed_watcher_started_is_no_persons_launch(bench):
    """By whom it was begun stands in run.json: a person's launch would refill every budget."""
    bench.live()
    bench.live(2, step=41)
    attempts = bench.record.attempts(bench.rows[0].id)
    assert [attempt.by for attempt in attempts] == ["user", "watch"]


def test_an_attempt_whose_start_was_killed_is_no_start_under_way_for_ever(bench):
    """Its directory was made, and nobody came to start it or to say how it ended."""
    bench.live()
    bench.send(run_message(2, alive=False, spec=bench.spec(2), attempt_info=None))
    bench.turn(50)
    assert bench.guest.calls == []
    bench.turn(30)
    assert bench.guest.asked("start") == [3], "the guest fences attempt 2 before it starts another"


def test_a_start_that_takes_its_time_is_left_to_itself(bench):
    bench.live()
    held = {"lock_held": True, "pids": [], "supervisor": True, "session": True}
    bench.send({**run_message(2, spec=bench.spec(2), attempt_info=None), "alive": held})
    bench.turn(300)
    assert bench.guest.calls == []


def test_a_run_that_finished_when_nobody_was_left_to_write_its_end_is_finished(bench):
    bench.live()
    bench.send(attempt_message("result", {"step": 100}), run_message(alive=False, spec=bench.spec(1)))
    bench.turn(100)
    assert bench.guest.calls == []
    assert bench.run.ended is Exit.OK


def test_a_run_that_is_only_looked_at_is_told_so_and_left_alone_by_a_watch_that_acts(record):
    bench = Bench(record, remark="only looked at: a.yaml: cannot be read: No such file or directory")
    assert bench.told("gate") == ["only looked at: a.yaml: cannot be read: No such file or directory"]
    bench.live()
    bench.die()
    bench.turn(20)
    assert bench.guest.calls == []
    assert bench.run.ended is Exit.FAILED
