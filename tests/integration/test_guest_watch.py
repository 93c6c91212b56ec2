import os
import select
import signal
import subprocess
import sys
import time

import pytest

from orchestrator.connection.guestfile import build_guest
from tests.cli import LONG_S
from tests.integration import guest_driver as driver

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not driver.HAS_TMUX, reason="no tmux")]


@pytest.fixture
def guest(tmp_path):
    yield from driver.lend(tmp_path)


def of_type(watch: driver.Watch, kind: str) -> list[driver.Message]:
    return [line for line in watch.lines if line["type"] == kind]


def test_a_watch_tells_a_whole_run_and_its_exit_after_every_byte(guest):
    watch = guest.watch()
    guest.start("--steps", 25, "--crash-at", 12, "--fx-text")
    ended = watch.until("exit")
    assert watch.lines[0]["type"] == "hello"
    assert ended["value"]["code"] == 1
    assert watch.log() == (guest.dir("r", 1) / "log").read_bytes()
    assert b"Detected that you are using FX" in watch.log()
    assert [m["step"] for line in of_type(watch, "metrics") for m in line["lines"]] == list(range(1, 13))
    assert of_type(watch, "last_words")[-1]["value"]["exception"] == "RuntimeError"
    assert of_type(watch, "heartbeat")[-1]["value"]["step"] == 12
    assert of_type(watch, "environment")
    gone = watch.until(lambda m: m["type"] == "run" and not m["alive"]["lock_held"])
    assert gone["alive"]["pids"] == []
    assert (gone["attempts"], gone["checkpoint_step"], gone["checkpoint_bytes"]) == ([1], 10, 1024)
    assert watch.close() == 0


def test_a_watch_that_begins_at_its_offsets_repeats_and_loses_nothing(guest):
    guest.start("--steps", 60, "--cue", guest.cue)
    first = guest.watch({"r": {"attempt": 1, "log_offset": 0, "metrics_offset": 0}})
    first.until(lambda m: m["type"] == "metrics" and m["lines"][-1]["step"] > 10)
    first.process.kill()
    seen = first.log()
    at = max(line["next_offset"] for line in of_type(first, "metrics"))
    second = guest.watch({"r": {"attempt": 1, "log_offset": len(seen), "metrics_offset": at}})
    guest.cue.touch()
    second.until("exit")
    assert seen + second.log() == (guest.dir("r", 1) / "log").read_bytes()
    steps = [m["step"] for w in (first, second) for line in of_type(w, "metrics") for m in line["lines"]]
    assert steps == list(range(1, max(60, *steps) + 1))
    first.close()
    second.close()


def test_a_large_log_comes_whole_and_does_not_starve_another_run(guest):
    code = (
        "import sys,time\nsys.stdout.write(('y' * 99 + chr(10)) * 60000)\nsys.stdout.flush()\ntime.sleep(600)"
    )
    guest.start(argv=[sys.executable, "-c", code], run="big")
    driver.wait_until(lambda: (guest.dir("big", 1) / "log").stat().st_size == 6_000_000)
    guest.start("--steps", 20000, run="small")
    driver.wait_until((guest.dir("small", 1) / "heartbeat.json").exists)
    watch = guest.watch()
    watch.until(lambda m: m["type"] == "heartbeat" and m["run"] == "small")
    assert len(watch.log(run="big")) < 6_000_000
    watch.until(lambda m: m["type"] == "log" and m["run"] == "big" and m["offset"] > 5_860_000)
    assert len(watch.log(run="big")) == 6_000_000
    watch.close()


def test_the_next_attempt_is_followed_after_all_of_the_one_before(guest):
    guest.start("--steps", 12, "--crash-at", 7, "--step-s", 0.01)
    guest.exit()
    guest.start("--steps", 12, "--step-s", 0.01, attempt=2)
    watch = guest.watch({"r": {"attempt": 1, "log_offset": 5, "metrics_offset": 0}})
    watch.until(lambda m: m["type"] == "exit" and m["attempt"] == 2)
    assert [(m["attempt"], m["value"]["code"]) for m in of_type(watch, "exit")] == [(1, 1), (2, 0)]
    assert watch.log(1) == (guest.dir("r", 1) / "log").read_bytes()[5:]
    assert watch.log(2) == (guest.dir("r", 2) / "log").read_bytes()
    assert of_type(watch, "heartbeat")[-1]["value"]["resumed_from_step"] == 5
    watch.close()


def test_a_follow_line_adds_a_run_or_begins_it_again(guest):
    guest.start("--steps", 1)
    guest.exit()
    watch = guest.watch({})
    watch.send("follow", run="r", attempt=1, log_offset=3, metrics_offset=0)
    watch.until("exit")
    assert watch.log() == (guest.dir("r", 1) / "log").read_bytes()[3:]
    watch.lines.clear()
    watch.send("follow", run="r", attempt=None, log_offset=0, metrics_offset=0)
    watch.until("exit")
    assert watch.log() == (guest.dir("r", 1) / "log").read_bytes()
    watch.close()


def test_an_idle_watch_sends_nothing_but_answers_a_ping(guest):
    guest.start(argv=["sleep", "600"])
    watch = guest.watch()
    watch.until("disk")
    assert None in (watch.read(3) for _ in range(5)), (
        "what there is to tell at first is told, and then nothing"
    )
    asked_at = time.time()
    watch.send("ping")
    assert asked_at - 1 < watch.until("pong")["now"] < time.time() + 1
    watch.close()


def test_a_stop_and_a_lost_supervisor_are_told(guest):
    started = guest.start("--steps", 2000)
    watch = guest.watch()
    watch.until(lambda m: m["type"] == "run" and m["alive"]["supervisor"])
    os.kill(started["supervisor_pid"], signal.SIGKILL)
    lost = watch.until(lambda m: m["type"] == "run" and not m["alive"]["supervisor"])
    assert (lost["alive"]["pids"], lost["alive"]["lock_held"]) == ([started["trainer_pid"]], True)
    os.kill(started["trainer_pid"], signal.SIGKILL)
    # The lock is looked at before the processes, so an end in between is told as half of one first.
    watch.until(lambda m: m["type"] == "run" and not m["alive"]["pids"] and not m["alive"]["lock_held"])
    assert not of_type(watch, "exit")
    guest.stop()
    assert watch.until(lambda m: m["type"] == "run" and m["stop"])["stop"]["by"] == "user"
    watch.close()


def test_a_watch_ends_with_its_stdin(guest):
    guest.state.mkdir()
    watch = guest.watch()
    watch.until("hello")
    watch.process.stdin.close()
    assert watch.until("bye")["reason"] == "stdin ended"
    assert watch.process.wait(LONG_S) == 0
    watch.close()


def test_a_watch_whose_file_was_deleted_ends_so_that_it_is_sent_again(guest, tmp_path):
    file = tmp_path / "guest.pyz"
    file.write_bytes(build_guest().data)
    guest.command = [sys.executable, str(file)]
    guest.state.mkdir()
    watch = guest.watch()
    watch.until("hello")
    file.unlink()
    assert watch.until("bye")["reason"] == "the guest's own file is gone"
    assert watch.close() == 0


def shortened(guest: driver.Guest, **limits: float) -> driver.Guest:
    lines = [f"watch.{name} = {value}" for name, value in limits.items()]
    code = (
        "import sys\nfrom orchestrator.guest import watch\n"
        + "\n".join(lines)
        + ("\nfrom orchestrator.guest.__main__ import main\nsys.exit(main())")
    )
    guest.command = [sys.executable, "-c", code]
    return guest


def test_a_watch_ends_without_a_line_from_the_near_side(guest):
    begin = time.monotonic()
    watch = shortened(guest, SILENCE_S=1.0).watch()
    assert watch.until("bye")["reason"].startswith("no line for")
    assert time.monotonic() - begin > 0.9
    assert watch.close() == 0


def test_pings_keep_a_watch(guest):
    watch = shortened(guest, SILENCE_S=4.0).watch()
    watch.until("hello")
    begin = time.monotonic()
    while time.monotonic() - begin < 4.5:
        watch.send("ping")
        assert watch.until(lambda m: m["type"] in ("pong", "bye"))["type"] == "pong"
        time.sleep(0.2)
    watch.close()


def test_a_watch_whose_lines_nobody_reads_ends(guest):
    code = "print('z' * 4_000_000)"
    guest.start(argv=[sys.executable, "-c", code])
    guest.exit()
    watch = shortened(guest, BLOCKED_S=1.0).watch()
    assert watch.process.wait(LONG_S) == -signal.SIGALRM  # and holds nothing on the sleeping laptop's account
    watch.close()


def test_a_watch_whose_reader_left_ends_quietly(guest, tmp_path):
    guest.start("--steps", 20000)
    read_end, write_end = os.pipe()
    errors = (tmp_path / "stderr").open("wb")
    process = subprocess.Popen(
        [*guest.command, "watch"], stdin=subprocess.PIPE, stdout=write_end, stderr=errors, env=guest.env
    )
    os.close(write_end)
    assert process.stdin is not None
    process.stdin.write(guest.line("watch", runs=None, gpus=False))
    process.stdin.flush()
    assert select.select([read_end], [], [], LONG_S)[0]
    os.close(read_end)
    assert process.wait(LONG_S) == 0
    assert (tmp_path / "stderr").read_bytes() == b""
    process.stdin.close()
    errors.close()


def test_numbers_that_are_not_json_and_huge_last_words_do_not_break_the_stream(guest):
    code = (
        "import os\nd = os.environ['DFLASHCTL_ATTEMPT_DIR']\n"
        'm = \'{"step": 1, "loss": NaN, "lr": 1e999}\\nnot json\\n[1]\\n{"st\'\n'
        "open(d + '/metrics.jsonl', 'w').write(m)\n"
        "open(d + '/error.json', 'w').write('{\"traceback\": \"' + 'q' * 3_000_000 + '\"}')\n"
        "open(d + '/heartbeat.json', 'w').write('[[[')\n"
    )
    watch = guest.watch()
    guest.start(argv=[sys.executable, "-c", code])
    watch.until("exit")
    assert of_type(watch, "metrics")[0]["lines"] == [{"step": 1, "loss": None, "lr": None}]
    assert "characters left out" in of_type(watch, "last_words")[0]["value"]["traceback"]
    assert not of_type(watch, "heartbeat")
    watch.close()


def test_an_emptied_log_is_read_from_its_beginning(guest):
    guest.start("--steps", 2000)
    watch = guest.watch()
    watch.until(lambda m: m["type"] == "metrics" and m["lines"][-1]["step"] > 20)
    os.truncate(guest.dir("r", 1) / "log", 0)
    anew = watch.until(lambda m: m["type"] == "log" and m["offset"] == 0)
    assert (bool(anew["data"]), anew["anew"]) == (True, True)
    assert "anew" not in watch.until("log"), "it is said once"
    watch.close()


def test_a_removed_run_is_told(guest):
    guest.start("--steps", 1)
    guest.exit()
    watch = guest.watch()
    watch.until("exit")
    assert guest.ask("remove", run="r", what="run", keep=0)[-1]["type"] == "removed"
    assert watch.until(lambda m: m["type"] == "run" and not m["attempts"])["attempt"] is None
    watch.close()


def test_a_death_is_told_by_itself(guest):
    started = guest.start("--steps", 20000)
    watch = guest.watch()
    watch.until("heartbeat")
    os.kill(started["trainer_pid"], signal.SIGKILL)
    assert watch.until("exit")["value"]["signal"] == signal.SIGKILL  # nobody asked
    watch.close()


def test_the_end_is_never_told_before_its_cause(guest):
    watch = guest.watch()
    for attempt in range(1, 6):
        guest.start("--steps", 9, "--step-s", 0.03 + attempt / 100, attempt=attempt)
        watch.until(lambda m, n=attempt: m["type"] == "exit" and m["attempt"] == n)
        guest.exit(attempt)
    watch.until(lambda m: m["type"] == "run" and m["attempt"] == 5 and not m["alive"]["pids"])
    ended = 0
    for line in watch.lines:
        if line["type"] == "exit":
            ended = line["attempt"]
        elif line["type"] == "run" and line["attempt_info"] and line["alive"]:
            is_gone = not line["alive"]["pids"] and not line["alive"]["lock_held"]
            assert not is_gone or ended == line["attempt"]
    watch.close()


def test_a_negative_offset_counts_from_the_end_of_the_log(guest):
    guest.start("--steps", 5)
    guest.exit()
    watch = guest.watch({"r": {"attempt": 1, "log_offset": -10, "metrics_offset": 0}})
    watch.until("exit")
    assert watch.log() == (guest.dir("r", 1) / "log").read_bytes()[-10:]
    watch.close()
