"""The watch's promises over real processes: one trainer at most, one story, whatever is killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.cli import LONG_S, Watching, is_kind
from tests.integration.local import Local, Sampler, local_runs, peak_mib, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

KILLS = 15


@pytest.fixture
def local(tmp_path) -> Iterator[Local]:
    with local_runs(tmp_path) as runs:
        yield runs


def assert_one_story(local: Local, run: str, watches, attempts: int) -> None:
    """Attempts without a gap, each death recorded once, each act closed, all that was told on record."""
    assert local.attempts(run) == list(range(1, attempts + 1))
    with local.record() as record:
        (row,) = record.runs()
        recorded = {
            (d.attempt, d.state.value, d.failure and d.failure.value) for d in record.diagnoses(row.id)
        }
        assert record.open_intents(row.id) == []
        events = record.events(row.id)
    for watch in watches:
        for event in watch.events():
            if event["kind"] == "diagnosis":
                told = (event["attempt"], event["detail"]["state"], event["detail"]["failure"])
                assert told in recorded, f"{told} was reported and is not in the record"
    deaths = [e.attempt for e in events if e.kind == "diagnosis" and e.detail.get("state") == "dead"]
    assert sorted(deaths) == list(range(1, attempts)), "one death of each attempt but the last"


@pytest.mark.slow
def test_a_watcher_killed_fifteen_times_over_a_crashing_run_tells_one_story(local):
    local.begin_ever_further("often", crashes=4, steps=400, step_s=0.1)
    dice = random.Random(20261129)
    sampler = Sampler(local, "often")
    sampler.start()
    watches = []
    for _ in range(KILLS):
        watch = local.watch("often")
        watches.append(watch)
        time.sleep(dice.uniform(0.5, 4.0))
        if watch.process.poll() is not None:
            break
        watch.kill()
    watches.append(local.watch("often"))
    codes = [watch.process.returncode for watch in watches]
    assert codes.count(-signal.SIGKILL) >= KILLS - 3, "the run outlived nearly all of its watchers"
    if codes[-2] != 0:
        assert watches[-1].end() == 0, watches[-1].story()
    sampler.end()
    assert_one_story(local, "often", watches, 5)


@pytest.mark.slow
def test_two_watches_over_a_run_that_crashes_three_times_make_no_second_trainer(local):
    local.begin_ever_further("twice", crashes=3, steps=120, step_s=0.05)
    sampler = Sampler(local, "twice")
    sampler.start()
    watches = [local.watch("twice"), local.watch("twice")]
    assert [watch.end() for watch in watches] == [0, 0], watches[0].story() + watches[1].story()
    sampler.end()
    assert_one_story(local, "twice", watches, 4)


def test_two_watches_know_of_each_other_and_tell_which_of_them_began_an_attempt(local):
    local.begin_standin("known", "--steps", "60000", "--step-s", "0.1")
    watches = [local.watch("known"), local.watch("known", "--observe-only")]
    acting, looking = (str(watch.process.pid) for watch in watches)
    told = watches[0].wait_for(lambda e: e["kind"] == "watchers")
    assert f"(pid {looking}), which only looks" in told["text"]
    told = watches[1].wait_for(lambda e: e["kind"] == "watchers")
    assert f"(pid {acting}), which acts" in told["text"]
    seen = local.json("status", "known")["watchers"]
    assert {(each["pid"], each["acts"]) for each in seen} == {(acting, True), (looking, False)}
    os.kill(local.attempt_info("known")["trainer_pid"], signal.SIGKILL)
    second = watches[0].wait_for(lambda e: e["kind"] == "attempt" and e["attempt"] == 2)
    assert (second["detail"]["by"], second["detail"]["actor"]["pid"]) == ("watch", acting)
    assert f"relaunched by the watch of {second['detail']['actor']['user']}@" in second["text"]
    assert local.json("status", "known")["actor"]["pid"] == acting


def test_two_watches_over_a_run_that_hangs_never_stop_the_attempt_that_follows(local):
    local.playbook.write_text(
        "extends: default\nbackoff: [0s]\njitter: 0\nlimits: {train: 5s, init: 5m}\ngrace: 0s\n"
    )
    local.begin_standin(
        "stuck", "--steps", "60", "--hang-at", "7", "--crash-attempts", "1", "--step-s", "0.1"
    )
    watches = [local.watch("stuck"), local.watch("stuck")]
    assert [watch.end() for watch in watches] == [0, 0], watches[0].story() + watches[1].story()
    assert local.attempts("stuck") == [1, 2]


def test_a_supervisor_that_is_killed_costs_the_run_nothing_and_its_end_is_still_seen(local):
    local.begin_standin("alone", "--steps", "80", "--step-s", "0.1", "--cue", str(local.cue))
    watch = local.watch("alone")
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 6/"))
    info = local.attempt_info("alone")
    os.kill(info["supervisor_pid"], signal.SIGKILL)
    watch.wait_for(is_kind("diagnosis", state="unsupervised"))
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 25/"))
    assert local.attempts("alone") == [1]
    assert not any(e["kind"] == "act" for e in watch.events()), watch.story()
    local.cue.touch()
    os.kill(info["trainer_pid"], signal.SIGKILL)
    dead = watch.wait_for(is_kind("diagnosis", state="dead"))
    assert dead["detail"]["confidence"] < 0.9
    assert watch.end() == 0, watch.story()
    assert local.attempts("alone") == [1, 2]


def test_a_run_that_hangs_without_its_supervisor_is_named_stopped_and_relaunched(local):
    local.playbook.write_text(
        "extends: default\nbackoff: [0s]\njitter: 0\nlimits: {train: 5s, init: 5m}\ngrace: 0s\n"
    )
    words = ("--steps", "60", "--hang-at", "20", "--crash-attempts", "1", "--step-s", "0.1")
    local.begin_standin("orphan", *words, "--cue", str(local.cue))
    watch = local.watch("orphan")
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 6/"))
    os.kill(local.attempt_info("orphan")["supervisor_pid"], signal.SIGKILL)
    watch.wait_for(is_kind("diagnosis", state="unsupervised"))
    local.cue.touch()
    watch.wait_for(is_kind("diagnosis", state="hung"))
    dead = watch.wait_for(is_kind("diagnosis", state="dead"))
    assert dead["detail"]["failure"] == "hang", dead["text"]
    assert watch.end() == 0, watch.story()
    assert local.attempts("orphan") == [1, 2]


def test_a_trainer_that_somebody_holds_still_by_a_signal_is_left_alone_until_it_is_let_go(local):
    local.playbook.write_text(
        "extends: default\nbackoff: [0s]\njitter: 0\nlimits: {train: 5s, init: 5m}\ngrace: 0s\n"
    )
    local.begin_standin("held", "--steps", "60", "--step-s", "0.1", "--cue", str(local.cue))
    watch = local.watch("held")
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 6/"))
    (trainer,) = local.trainers("held")
    os.kill(trainer, signal.SIGSTOP)
    held = watch.wait_for(lambda e: e["kind"] == "gate" and "was stopped by a signal" in e["text"])
    assert f"`kill -CONT {trainer}`" in held["text"]
    time.sleep(5)
    assert local.trainers("held") == [trainer]
    local.cue.touch()
    os.kill(trainer, signal.SIGCONT)
    assert watch.end() == 0, watch.story()
    assert local.attempts("held") == [1]
    assert not any(e["kind"] == "act" for e in watch.events()), watch.story()


def test_who_is_called_to_a_hang_is_told_where_the_ranks_are_before_the_watch_ends(local):
    local.playbook.write_text(
        "extends: default\njitter: 0\nlimits: {train: 5s, init: 5m}\n"
        "rules: {hang: {act: call, why: Somebody looks at it by hand.}}\n"
    )
    local.begin_standin("stuck", "--steps", "60", "--hang-at", "7", "--step-s", "0.1")
    watch = local.watch("stuck")
    assert watch.end() == 13, watch.story()
    (stacks,) = [e for e in watch.events() if e["kind"] == "stacks"]
    assert stacks["detail"]["ranks"], watch.story()


def test_a_command_that_goes_into_the_background_is_told_what_became_of_it(local):
    local.begin("behind", "sh", "-c", "sleep 300 & exit 0")
    watch = local.watch("behind")
    end = watch.wait_for(is_kind("diagnosis", state="finished"))
    assert "1 process that it left running" in end["text"]
    assert watch.end() == 0


def test_a_run_whose_directory_is_removed_is_told_as_that_and_never_acted_on(local):
    local.playbook.write_text(
        "extends: default\nbackoff: [0s]\njitter: 0\nlimits: {train: 5s, init: 5m}\ngrace: 0s\n"
    )
    local.begin_standin("lost", "--steps", "20000", "--step-s", "0.1")
    watch = local.watch("lost")
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 6/"))
    for trainer in local.trainers("lost"):
        os.kill(trainer, signal.SIGSTOP)  # it writes nothing more, as where its disk is gone
    shutil.rmtree(local.state / "runs" / "lost")
    watch.wait_for(lambda e: e["kind"] == "blind" and "its directory was removed" in e["text"])
    time.sleep(6)
    told = {e["kind"] for e in watch.events()}
    assert not told & {"act", "gate", "fault"}, watch.story()
    for trainer in local.trainers("lost"):
        os.kill(trainer, signal.SIGKILL)


def test_a_log_that_is_emptied_for_its_disk_s_sake_still_tells_why_the_run_died(local):
    local.begin_standin(
        "emptied",
        "--steps",
        "60",
        "--step-s",
        "0.1",
        "--crash-at",
        "30",
        "--crash-attempts",
        "1",
        "--fx-text",
        "--cue",
        str(local.cue),
    )
    watch = local.watch("emptied")
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 20/"))
    log = local.state / "runs" / "emptied" / "attempts" / "1" / "log"
    os.truncate(log, 0)
    wait_until(lambda: b"step " in log.read_bytes(), what="a step after that")
    local.cue.touch()
    dead = watch.wait_for(is_kind("diagnosis", state="dead"))
    assert dead["detail"]["failure"] == "fx_trace_race", dead["text"]
    last = [line for line in log.read_text().splitlines() if line.startswith("step ")][-1]
    assert any(e["kind"] == "log" and e["text"] == last for e in watch.events())
    assert watch.end() == 0


def test_a_tmux_server_that_is_killed_costs_the_run_nothing(local):
    local.begin_standin("paneless", "--steps", "60", "--step-s", "0.1", "--cue", str(local.cue))
    watch = local.watch("paneless")
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 6/"))
    local.tmux("kill-server")
    local.cue.touch()
    assert watch.end() == 0, watch.story()
    assert local.attempts("paneless") == [1]
    assert not any(e["kind"] == "act" for e in watch.events())


def test_a_start_that_tmux_refuses_is_told_with_its_words_and_calls_a_person(local):
    """The attempt ends before anybody could name it, and still its end is seen."""
    fails = local.home / "tmux-fails"
    script = local.home / "bin" / "tmux"
    script.parent.mkdir()
    failing = (
        f'[ -e "{fails}" ] && case "$*" in *new-session*) echo "no space for a server" >&2; exit 1; esac'
    )
    script.write_text(f'#!/bin/sh\n{failing}\nexec /usr/bin/tmux "$@"\n')
    script.chmod(0o755)
    local.env["PATH"] = f"{script.parent}:{local.env['PATH']}"
    local.begin_standin("unlucky", "--steps", "30", "--crash-at", "15", "--crash-attempts", "1", "--fx-text")
    fails.touch()
    watch = local.watch("unlucky")
    assert watch.end() == 13, watch.story()
    dead = [e for e in watch.events() if e["attempt"] == 2 and e["kind"] == "diagnosis"]
    assert "no space for a server" in dead[0]["text"]
    assert local.attempts("unlucky") == [1, 2]


def test_the_only_session_of_a_server_is_replaced_time_and_again(local):
    local.begin_ever_further("again", crashes=8, steps=80, step_s=0.01)
    watch = local.watch("again")
    assert watch.end() == 0, watch.story()
    assert local.attempts("again") == list(range(1, 10))


NASTY = r"""
import os, sys, time
out = sys.stdout.buffer
out.write(bytes(range(256)) * 40 + b"\n")
out.write(b"\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\x1b]52;c;aGk=\x07\x9b31m\xc2\x9b31m\n")
for done in range(200):
    out.write(b"\r%d%% |####|" % done); out.flush()
out.write(b"\n")
for _ in range(50):
    out.write(b"A" * 100_000)
out.write("\nnext \u202e evil \U0001f600\n".encode())
out.flush()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print("last words", flush=True)
"""


def test_a_log_of_binary_escapes_and_endless_lines_reaches_no_terminal(local):
    local.begin("nasty", "python3", "-c", NASTY, str(local.cue))
    local.cue.touch()
    done = subprocess.run(
        local.argv("watch", "nasty"),
        env=local.env,
        cwd=local.home,
        capture_output=True,
        timeout=LONG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert b"last words" in done.stdout
    assert b"199% |####|" in done.stdout
    text = done.stdout.decode()  # whole UTF-8
    bad = {char for char in text if (ord(char) < 32 and char not in "\n\t") or 127 <= ord(char) < 160}
    assert bad == set()
    assert "\u202e" not in text
    assert max(map(len, text.splitlines())) < 20_000, "lines are capped"
    assert b"Traceback" not in done.stderr


def test_a_hostile_log_leaves_the_memory_of_a_json_watch_bounded(local):
    local.begin("nasty", "python3", "-c", NASTY, str(local.cue))
    watch = local.watch("nasty", "--no-log")
    watch.wait_for(is_kind("state", state="healthy"))
    time.sleep(3)  # while it takes the log in
    assert peak_mib(watch) < 250
    local.cue.touch()
    assert watch.end() == 0, watch.story()


FLOOD = r"""
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
line = b"noise " * 200 + b"\n"
end = time.monotonic() + 5
while time.monotonic() < end:
    begin = time.monotonic()
    for _ in range(2 * 10**6 // len(line)):
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    time.sleep(max(0, 0.1 - (time.monotonic() - begin)))
sys.exit("RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function")
"""


def test_a_flood_of_output_hides_no_diagnosis_and_fills_no_memory(local):
    local.begin("flood", "python3", "-c", FLOOD, str(local.cue))
    local.begin_standin("quiet", "--steps", "20000", "--step-s", "0.1")  # the watch lives as long as it does
    watch = local.watch("--observe-only", "--no-log")
    watch.wait_for(lambda e: e["run"] == "flood" and e["kind"] == "attempt")
    local.cue.touch()
    dead = watch.wait_for(is_kind("diagnosis", state="dead"))
    assert peak_mib(watch) < 350
    assert dead["detail"]["failure"] == "fx_trace_race", watch.story()


@pytest.mark.parametrize("count", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_many_runs_at_once_are_all_brought_to_their_end(local, count):
    names = [f"many-{number}" for number in range(count)]
    for name in names:
        local.begin_standin(
            name, "--steps", "12", "--step-s", "0.1", "--crash-at", "6", "--crash-attempts", "1", "--fx-text"
        )
    watch = local.watch()
    watch.wait_for(lambda e: e["kind"] == "attempt")
    assert watch.end() == 0, watch.story()
    assert {name: local.attempts(name) for name in names} == {name: [1, 2] for name in names}
    told = [e["run"] for e in watch.events() if e["detail"].get("state") == "dead"]
    assert sorted(told) == sorted(names)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_the_watch_long_before_its_run_and_touches_nothing(local, number):
    local.begin_standin("goes-on", "--steps", "20000", "--step-s", "0.1")
    watch = local.watch("goes-on")
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 3/"))
    watch.process.send_signal(number)
    assert watch.end() == 130
    assert watch.events()[-1]["error"]["code"] == "interrupted"
    assert watch.err.read_text() == ""
    assert len(local.trainers("goes-on")) == 1


def test_a_relaunch_that_is_killed_between_stop_and_start_is_finished_by_the_next_watch(local):
    local.begin_standin("cut", "--steps", "60000", "--step-s", "0.1", "--ignore-term")
    relaunch = Watching(local, ("relaunch", "cut", "--yes"))
    wait_until((local.state / "runs" / "cut" / "stop.json").exists)
    relaunch.kill()
    os.kill(local.attempt_info("cut")["trainer_pid"], signal.SIGKILL)  # its stop goes on, and ends now
    watch = local.watch("cut")
    begun = watch.wait_for(lambda e: e["kind"] == "attempt" and e["attempt"] == 2)
    assert begun["detail"]["by"] == "user", watch.story()
    assert any("cut after the stop" in e["text"] for e in watch.events() if e["kind"] == "decision")
