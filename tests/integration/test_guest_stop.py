"""The supervisor's care and `stop`: nothing of a run outlives it, and nobody else is harmed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.guest import processes
from tests.cli import LONG_S
from tests.integration import guest_driver as driver

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not driver.HAS_TMUX, reason="no tmux")]

# A program that goes on once the file is there whose name it was given.
ON_CUE = "import os,sys,time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"
ESCAPEE = "[innocent]\0003601\0"  # the stand-in's grandchild: own session, own title, empty environment


@pytest.fixture
def guest(tmp_path):
    yield from driver.lend(tmp_path)
    for pid in escapees():
        os.kill(pid, signal.SIGKILL)


def escapees() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_text() == ESCAPEE:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def with_escapees(guest: driver.Guest, *options: object, count: int = 2) -> driver.Message:
    started = guest.start("--steps", 2000, "--escapees", count, *options)
    driver.wait_until(lambda: len(escapees()) == count)
    return started


def test_a_polite_trainer_is_stopped_with_its_checkpoint_and_no_kill(guest):
    started = guest.start("--steps", 2000)
    driver.wait_until((guest.dir("r", 1) / "heartbeat.json").exists)
    lines = guest.ask("stop", run="r", by="user", reason="enough", grace_s=LONG_S)
    assert [line["type"] for line in lines] == ["stopping", "stopped"]
    assert lines[1]["terminated"] == [started["trainer_pid"]]
    assert (lines[1]["killed"], lines[1]["already"]) == ([], False)
    assert guest.file("exit.json")["code"] == 75
    stop = guest.look()["run"]["stop"]
    assert (stop["by"], stop["reason"], stop["attempt"]) == ("user", "enough", 1)


def test_grandchildren_in_their_own_sessions_without_environment_do_not_survive(guest):
    with_escapees(guest, "--ignore-term")
    assert len(guest.alive()["pids"]) == 3
    stopped = guest.stop(grace_s=0.5)
    assert len(stopped["killed"]) == 3
    assert escapees() == []
    assert guest.file("exit.json")["signal"] == signal.SIGKILL


def test_a_stopped_process_hears_it_too(guest):
    started = guest.start("--steps", 2000)
    driver.wait_until((guest.dir("r", 1) / "heartbeat.json").exists)
    os.kill(started["trainer_pid"], signal.SIGSTOP)
    assert guest.stop(grace_s=LONG_S)["killed"] == []
    assert guest.file("exit.json")["code"] == 75


def test_a_process_that_forks_all_the_time_does_not_outrun_the_stop(guest):
    code = (
        "import subprocess,signal,time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while True:\n"
        "    subprocess.Popen(['/bin/sleep', '3600'], env={}, start_new_session=True)\n"
        "    time.sleep(0.02)\n"
    )
    guest.start(argv=[sys.executable, "-c", code])
    driver.wait_until(lambda: len(guest.alive()["pids"]) > 12)
    stopped = guest.stop(grace_s=0.5)
    assert stopped["type"] == "stopped"
    assert len(stopped["terminated"]) > 10
    assert guest.alive()["pids"] == []


def test_stopping_an_ended_run_records_the_intent(guest):
    guest.start("--steps", 1)
    guest.exit()
    assert guest.stop()["already"] is True
    assert guest.look()["run"]["stop"]["by"] == "user"
    assert guest.file("exit.json")["code"] == 0


def test_stopping_what_is_not_there_is_refused(guest):
    assert guest.stop(run="nope")["code"] == "not_found"


def test_a_persons_shell_that_runs_the_trainer_by_hand_is_not_killed(guest):
    guest.start("--steps", 1)
    guest.exit()
    script = f"DFLASHCTL_RUN_DIR={guest.dir()} sleep 3602 & echo $!; sleep 3603"
    shell = subprocess.Popen(
        ["bash", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert shell.stdout is not None
    try:
        by_hand = int(shell.stdout.readline())
        driver.wait_until(lambda: guest.alive()["pids"] == [by_hand])
        assert guest.start(attempt=2)["code"] == "run_alive"
        assert guest.stop()["terminated"] == [by_hand]
        assert shell.poll() is None
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate()


def test_what_a_dead_trainer_left_is_killed_and_listed(guest):
    with_escapees(guest, "--crash-at", 20, "--exit-code", 7, "--cue", guest.cue)
    guest.cue.touch()
    ended = guest.exit()
    assert ended["code"] == 7
    assert len(ended["leftover"]) == 2
    assert escapees() == []


def test_a_death_by_signal_is_told_as_one(guest):
    guest.start("--crash-at", 3, "--signal", "SEGV")
    ended = guest.exit()
    assert (ended["code"], ended["signal"], ended["leftover"]) == (None, signal.SIGSEGV, [])


def test_the_death_of_the_supervisor_costs_the_run_nothing(guest):
    started = guest.start("--steps", 2000)
    os.kill(started["supervisor_pid"], signal.SIGKILL)
    driver.wait_until(lambda: not guest.alive()["supervisor"])
    alive = guest.alive()
    assert (alive["lock_held"], alive["pids"]) == (True, [started["trainer_pid"]])
    assert guest.start(attempt=2)["code"] == "run_alive"
    before = (guest.dir("r", 1) / "log").stat().st_size
    driver.wait_until(lambda: (guest.dir("r", 1) / "log").stat().st_size > before)
    assert guest.stop()["type"] == "stopped"
    assert guest.file("exit.json")["error"] == "supervisor gone"
    assert guest.alive()["lock_held"] is False


def test_without_supervisor_and_environment_the_session_still_tells_the_run(guest):
    # A trainer that changes its title over its environment, then loses its supervisor and its parent.
    code = (
        "import os,time\n"
        "if os.fork():\n    time.sleep(3600)\n"
        "os.execve('/bin/sh', ['sh', '-c', 'sleep 3604'], {})\n"
    )
    started = guest.start(argv=[sys.executable, "-c", code])
    driver.wait_until(lambda: len(guest.alive()["pids"]) >= 2)
    os.kill(started["supervisor_pid"], signal.SIGKILL)
    os.kill(started["trainer_pid"], signal.SIGKILL)
    driver.wait_until(lambda: not driver.is_running(started["trainer_pid"]))
    assert guest.start(attempt=2)["code"] == "run_alive"  # the lock tells
    assert guest.stop(grace_s=1)["type"] == "stopped"
    assert guest.alive() == {"lock_held": False, "pids": [], "supervisor": False, "session": True}


def test_a_closed_pane_and_a_dead_tmux_do_not_disturb_the_run(guest):
    started = guest.start("--steps", 60, "--cue", guest.cue)
    guest.tmux("kill-server")
    driver.wait_until(lambda: guest.alive()["session"] is False)
    assert driver.is_running(started["supervisor_pid"])
    guest.cue.touch()
    ended = guest.exit()
    assert (ended["code"], ended["leftover"]) == (0, [])


def test_a_stuck_pane_does_not_hold_the_trainer_up(guest):
    code = f"{ON_CUE}for i in range(40000): print('x' * 100, i)\n"
    guest.start(argv=[sys.executable, "-c", code, str(guest.cue)])
    server = int(guest.tmux("display-message", "-p", "#{pid}"))
    os.kill(server, signal.SIGSTOP)
    guest.cue.touch()
    try:
        assert guest.exit()["code"] == 0
        assert (guest.dir("r", 1) / "log").stat().st_size > 4_000_000
    finally:
        os.kill(server, signal.SIGCONT)


def test_ctrl_c_in_the_pane_is_the_persons_stop(guest):
    guest.start("--steps", 2000)
    driver.wait_until((guest.dir("r", 1) / "heartbeat.json").exists)
    guest.tmux("send-keys", "-t", "=r:", "C-c")
    assert guest.exit()["code"] == 75
    assert guest.look()["run"]["stop"]["by"] == "user"


def test_the_supervisor_outlives_hangup_and_termination(guest):
    started = guest.start("--steps", 40, "--cue", guest.cue)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        os.kill(started["supervisor_pid"], number)
    guest.cue.touch()
    assert guest.exit()["code"] == 0


def test_the_trainer_inherits_no_ignored_or_blocked_signal_and_the_lock_twice(guest):
    code = (
        "import os,re\nprint(re.search('SigIgn:.*', open('/proc/self/status').read())[0])\n"
        "print(re.search('SigBlk:.*', open('/proc/self/status').read())[0])\n"
        "fds = [f'/proc/self/fd/{n}' for n in range(20)]\n"
        "print([os.readlink(fd) for fd in fds if os.path.lexists(fd)])\n"
    )
    guest.start(argv=["/usr/bin/env", "-i", sys.executable, "-S", "-c", code])
    guest.exit()
    ignored, blocked, fds = (guest.dir("r", 1) / "log").read_text().splitlines()
    # CPython itself ignores SIGPIPE (13) and SIGXFSZ (25).
    # 32 and 33 are glibc's own; make ignores them, and no program can take that back through Python.
    assert int(ignored.split()[1], 16) & ~(3 << 31) == 1 << 12 | 1 << 24
    assert int(blocked.split()[1], 16) == 0
    assert fds.count(f"{guest.dir()}/lock") == 2


def test_a_full_disk_does_not_keep_the_end_from_being_recorded(guest, tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(mount)], check=False)
    if done.returncode != 0:
        pytest.skip("no tmpfs may be mounted here")
    small = driver.Guest(mount, Path(guest.env["TMUX_TMPDIR"]))
    try:
        code = f"{ON_CUE}while True: print('x' * 4096, flush=True)"
        small.start(argv=[sys.executable, "-c", code, str(guest.cue)], min_free_bytes=1)
        guest.cue.touch()
        ended = small.exit()
        assert ended["code"] == 1
        refused = small.start(attempt=2, min_free_bytes=1)
        assert refused["code"] == "no_space"
        assert driver.names(small.dir() / "attempts") == ["1"]
    finally:
        small.close()
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_pid_of_another_time_is_not_the_trainer(guest):
    started = guest.start("--steps", 2000)
    info = guest.file("attempt.json")
    assert processes.roots(info).trainer == started["trainer_pid"]
    assert processes.roots({**info, "trainer_start_ticks": 1}).trainer is None
    assert processes.roots({**info, "pid1_start_ticks": 1}) == processes.Roots()
