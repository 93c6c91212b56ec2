"""What a watch tells and records: each thing once, whatever the stream does."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta

import pytest

from orchestrator.errors import HostDenied, HostUnreachable
from orchestrator.wire import pack_bytes
from tests.builders import NOW, attempt_message, heartbeat_json, run_message
from tests.unit.watch.bench import HELLO, NO_DRIVER, Bench, exit_json

LOST = HostUnreachable("pve: connection reset")


def log(data: bytes, offset: int, attempt: int = 1, run: str = "dflash") -> dict[str, object]:
    return {"type": "log", "run": run, "attempt": attempt, "offset": offset, "data": pack_bytes(data)}


def test_a_stream_that_is_lost_before_the_first_look_is_told_once_and_then_ever_more_seldom(bench):
    for tries in range(62):
        bench.lose(HostUnreachable(f"pve: timed out after {tries}.1 s"))
        bench.turn(10, pong=False)
    assert len(bench.told("blind")) == 4, "at once, then after 30 s, 2 and 10 min"
    assert "blind for 10m" in bench.told("blind")[-1]


def test_another_reason_for_the_blindness_is_news(bench):
    bench.lose(LOST)
    bench.turn(pong=False)
    bench.lose(HostDenied("pve: the login was refused"))
    bench.turn(pong=False)
    assert len(bench.told("blind")) == 2


def test_blindness_is_told_with_the_age_of_the_last_look_and_its_end_with_its_length(bench):
    bench.live()
    bench.lose(LOST)
    bench.turn(40, pong=False)
    assert any("the last look was 40s ago" in text for text in bench.told("blind")) or any(
        "blind for 30s" in text for text in bench.told("blind")
    )
    bench.send(HELLO, run_message(spec=bench.spec(1)), NO_DRIVER)
    bench.turn()
    assert "it was not seen for 30s" in bench.told("state")[-1]


def test_a_step_that_moves_adds_no_row_to_the_story(bench):
    bench.live()
    before = len(bench.record.events())
    for step in range(41, 90):
        bench.send(attempt_message("heartbeat", heartbeat_json(step=step, loss=1 / step)))
        bench.turn_once()
    assert len(bench.record.events()) == before
    assert len(bench.told("state")) == 1


def test_a_death_is_recorded_once_though_the_stream_is_cut_and_comes_back(record):
    bench = Bench(record, playbook="extends: default\nbackoff: [1h]\n")
    bench.live()
    bench.die()
    for _ in range(5):
        bench.lose(LOST)
        bench.turn(3, pong=False)
        bench.send(HELLO, run_message(alive=False, spec=bench.spec(1)), NO_DRIVER)
        bench.turn(3)
    assert len(record.diagnoses(bench.rows[0].id)) == 1
    assert sum(text.startswith("relaunch:") for text in bench.told("decision")) == 1


def test_an_attempt_that_begins_before_the_eyes_of_two_watches_is_told_by_both_from_its_first_line(record):
    watches = [Bench(record), Bench(record)]
    for bench in watches:
        bench.live()
    for bench in watches:
        bench.send(run_message(2, spec=bench.spec(2)), NO_DRIVER, log(b"one\ntwo\n", 0, attempt=2))
        bench.turn()
    assert [bench.told("log") for bench in watches] == [["one", "two"]] * 2


def test_every_byte_that_was_told_is_on_record_though_the_clock_goes_back_and_attempts_are_short(record):
    bench = Bench(record)
    bench.live()
    bench.send(log(b"one\n", 0))
    bench.turn(1)
    bench.clock.jump = timedelta(days=-1)
    bench.send(log(b"two\nthree", 4))
    bench.die()
    bench.live(2)
    bench.send(log(b"four\n", 0, attempt=2), attempt_message("exit", exit_json(), 2), run_message(3))
    bench.send(log(b"five\n", 5, attempt=2), log(b"six\n", 0, attempt=3))
    bench.turn(1)
    read = [record.cursor(bench.rows[0].id, attempt).log_offset for attempt in (1, 2, 3)]
    assert read == [13, 10, 4]


def test_a_restarted_watch_tells_no_line_of_the_log_twice(record):
    first = Bench(record)
    first.live()
    first.send(log(b"one\ntwo\nthr", 0))
    first.turn()
    second = Bench(record)
    second.live()
    second.send(log(b"one\ntwo\nthree\n", 0))
    second.turn()
    assert first.told("log") == ["one", "two"]
    assert second.told("log") == ["three"]


def test_a_last_line_without_an_end_is_told_when_the_attempt_ends(bench):
    bench.live()
    bench.send(log(b"RuntimeError: torn in mid", 0))
    bench.turn()
    assert bench.told("log") == []
    bench.die()
    assert bench.told("log") == ["RuntimeError: torn in mid"]


def test_the_rest_of_an_attempt_is_told_though_the_next_one_has_begun(bench):
    bench.live()
    bench.send(log(b"first\nlast wo", 0), run_message(2, spec=bench.spec(2)), log(b"new\n", 0, attempt=2))
    bench.turn()
    assert bench.told("log") == ["first", "last wo", "new"]


def test_a_progress_bar_is_told_as_it_stood_last(bench):
    bench.live()
    bench.send(log(b"10%\r50%\r100%\r\nnext\r\n", 0))
    bench.turn()
    assert bench.told("log") == ["100%", "next"]


def test_a_line_of_megabytes_is_told_in_pieces_and_held_in_none(bench):
    bench.live()
    for place in range(40):
        bench.send(log(b"x" * (128 << 10), place * (128 << 10)))
        bench.turn_once()
    assert max(len(text) for text in bench.told("log")) <= 1 << 16


def test_a_message_that_makes_no_sense_blinds_its_own_run_and_no_other(record):
    bench = Bench(record, runs=("dflash", "other"))
    other = bench.watcher.runs[1]
    bench.live()
    bench.send(run_message(run="other", spec=bench.spec(1)), {"type": "log", "run": "dflash", "attempt": 1})
    bench.turn()
    assert len(bench.told("fault")) == 1
    assert bench.run.diagnosis is not None
    assert other.diagnosis is not None
    assert bench.run.diagnosis.state.value == "blind"
    assert other.diagnosis.state.value != "blind"


def test_a_run_whose_message_made_no_sense_is_not_judged_until_the_stream_begins_anew(bench):
    bench.live()
    bench.send({"type": "metrics", "run": "dflash", "attempt": 1})
    bench.die()
    bench.turn(60)
    assert bench.guest.calls == []
    bench.send(HELLO, NO_DRIVER)
    bench.die()
    assert bench.guest.asked("start") == [2]


@pytest.mark.parametrize(
    "message",
    [
        {"type": "hello"},
        {"type": "log", "run": "dflash", "attempt": 1, "offset": 0, "data": "?"},
        {"type": "log", "run": "dflash", "attempt": 1, "offset": "x", "data": ""},
        {"type": "metrics", "run": "dflash", "attempt": 1, "offset": 0, "lines": 7},
        {"type": "run", "run": "dflash", "attempt": "two"},
        {"type": "run", "run": "dflash", "attempt": 2, "spec": 7, "alive": 3},
        {"type": "run", "run": "dflash", "attempt": 1, "spec": {}, "attempt_info": {"started_at": "never"}},
        {"type": "heartbeat", "run": "dflash", "attempt": 1, "value": {"phase": "dance"}},
        {"type": "gpu", "source": "nvml", "gpus": [{"index": "x"}]},
        {"type": "disk", "free_bytes": "many"},
    ],
)
def test_no_message_ends_the_watch_or_starts_anything(bench, message):
    bench.live()
    bench.send(message)
    bench.turn(30)
    assert bench.guest.calls == []


def test_an_intent_left_by_a_killed_watcher_is_closed_as_unknown_and_nothing_is_doubled(record):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    bench = Bench(record)
    record.intend(bench.rows[0].id, 2, "relaunch", "why", {"attempt": 2, "pid": ended.pid}, NOW)
    bench.watcher.adopt_intents()
    assert record.open_intents(bench.rows[0].id) == []
    assert any("unknown" in text for _, text in bench.actions())
    bench.live(2, step=41)
    bench.turn(30)
    assert bench.guest.calls == []


def test_an_intent_of_a_process_that_lives_is_its_own(record):
    bench = Bench(record)
    record.intend(bench.rows[0].id, 2, "relaunch", "why", {"attempt": 2, "pid": os.getppid()}, NOW)
    bench.watcher.adopt_intents()
    assert len(record.open_intents(bench.rows[0].id)) == 1
    bench.clock.sleep(3600)
    bench.watcher.adopt_intents()
    assert record.open_intents(bench.rows[0].id) == [], "no act takes an hour: that process is another one"


def test_a_late_look_is_not_taken_for_a_late_death(record):
    bench = Bench(record, acting=False)
    bench.clock.sleep(3600)
    bench.send({**HELLO, "now": bench.clock.now().timestamp()}, run_message(alive=False, spec=bench.spec(1)))
    bench.send(attempt_message("exit", exit_json()))
    bench.turn()
    (past,) = record.history(bench.rows[0].id).attempts
    assert past.ended_at == NOW


def test_a_clock_that_jumps_is_told_in_one_word(bench):
    bench.lose(LOST)
    bench.turn(pong=False)
    bench.clock.sleep(5 * 3600)
    for _ in range(9):
        bench.turn_once(pong=False)
    assert len(bench.told("blind")) == 2
    assert "blind for 5h" in bench.told("blind")[-1]


def test_what_the_trainers_guard_did_is_told_when_the_count_grows_and_once(bench):
    bench.live()
    for step, skipped, rollbacks in ((41, 0, 0), (42, 1, 0), (43, 1, 0), (44, 2, 0), (45, 3, 1), (46, 3, 1)):
        beat = heartbeat_json(step=step, skipped_steps=skipped, rollbacks=rollbacks)
        bench.send(attempt_message("heartbeat", beat))
        bench.turn_once()
    assert bench.told("guard") == [
        "1 step left out, the training goes on",
        "2 steps left out, the training goes on",
        "3 steps left out, 1 return to a checkpoint, the training goes on",
    ]


def test_a_token_that_a_message_quotes_is_told_and_recorded_as_stars(bench):
    token = "hf_" + "aB3dE6gH9" * 4
    bench.live()
    line = f"requests.exceptions.HTTPError: 401 for https://me:pa55word@hub/{token}\n".encode()
    bench.send(log(b"Traceback (most recent call last):\n" + line, 0))
    words = {"exception": "HTTPError", "message": f"refused {token}", "phase": "load", "step": 0}
    bench.send(attempt_message("last_words", words))
    bench.die()
    assert any("****" in text for text in bench.told("diagnosis")), bench.story()
    events = [event for event in bench.sink.events if event.kind != "log"]
    for told in (events, bench.record.events(), bench.record.diagnoses(bench.run.row.id)):
        assert token[3:] not in str(told)
        assert "pa55word" not in str(told)


def test_a_line_is_told_whole_though_the_next_attempt_was_seen_before_its_end(bench):
    bench.live()
    bench.send(log(b"one\nThe last wo", 0), run_message(2, spec=bench.spec(2)))
    bench.turn()
    bench.send(log(b"rd\nno end", 15))
    bench.turn()
    assert bench.told("log") == ["one", "The last word"]
    bench.send(log(b"anew\n", 0, attempt=2))
    bench.turn()
    assert bench.told("log") == ["one", "The last word", "no end", "anew"]
