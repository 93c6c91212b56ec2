import json
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli import LONG_S
from tests.integration import guest_driver as driver

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not driver.HAS_TMUX, reason="no tmux")]


@pytest.fixture
def guest(tmp_path):
    yield from driver.lend(tmp_path)


def test_a_run_is_started_lives_and_its_end_is_recorded(guest):
    begun = time.monotonic()
    started = guest.start("--steps", 30, "--cue", guest.cue)
    assert (started["type"], started["attempt"], started["session"]) == ("started", 1, "r")
    alive = guest.alive()
    assert alive.pop("pids") == [started["trainer_pid"]]
    assert alive == {"lock_held": True, "supervisor": True, "session": True}

    guest.cue.touch()
    ended = guest.exit()
    assert (ended["code"], ended["signal"], ended["leftover"], ended["error"]) == (0, None, [], None)
    assert 1 < ended["duration_s"] < time.monotonic() - begun
    assert guest.alive() == {"lock_held": False, "pids": [], "supervisor": False, "session": True}
    info = guest.file("attempt.json")
    assert (info["supervisor_pid"], info["trainer_pid"]) == (
        started["supervisor_pid"],
        started["trainer_pid"],
    )
    assert guest.file("result.json")["step"] >= 30


def test_hostile_values_reach_the_trainer_and_stay_out_of_argv_and_the_wire(guest):
    code = "import os,json;print(json.dumps({k:os.environ[k] for k in ('A','B','DFLASHCTL_ATTEMPT')}))"
    env = {"A": "q'\"$(id)`\n;\\ \t", "B": "hf_secret_\u00e9\u4e2d"}
    argv = [sys.executable, "-c", code, "a'b \n$X", "--"]
    assert guest.start(argv=argv, env=env)["type"] == "started"
    guest.exit()
    assert json.loads((guest.dir("r", 1) / "log").read_text()) == {**env, "DFLASHCTL_ATTEMPT": "1"}
    assert stat.S_IMODE((guest.dir() / "env").stat().st_mode) == 0o600
    assert guest.file("run.json")["argv"] == argv
    assert guest.file("run.json")["env_names"] == ["A", "B"]
    assert "hf_secret" not in json.dumps(guest.ask("look", run="r", log_bytes=0))


def test_a_relaunch_without_values_keeps_those_that_are_there_and_may_change_some(guest):
    names = "('A', 'B', 'CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER')"
    code = f"import os; print(*(os.environ.get(name) for name in {names}))"
    guest.start(argv=[sys.executable, "-c", code], env={"A": "1", "B": "2"})
    guest.exit()
    spec = {"argv": [sys.executable, "-c", code], "gpus": [1, 3], "config_toml": "x = '\u00e9'\n"}
    guest.ask("start", run="r", attempt=2, spec=spec, env=None, env_update={"B": "3"})
    guest.exit(2)
    assert (guest.dir("r", 1) / "log").read_text() == "1 2 None None\n"
    assert (guest.dir("r", 2) / "log").read_text() == "1 3 1,3 PCI_BUS_ID\n"
    assert (guest.dir("r", 2) / "config.toml").read_text() == "x = '\u00e9'\n"


def test_a_second_trainer_is_refused_while_one_lives(guest):
    first = guest.start("--steps", 1000)
    for attempt in (1, 2):
        refused = guest.start(attempt=attempt)
        assert refused["code"] == "run_alive"
        assert refused["pids"] == [first["trainer_pid"]]
        assert str(first["trainer_pid"]) in refused["message"]
    assert driver.names(guest.dir() / "attempts") == ["1"]


def test_of_many_starts_at_once_exactly_one_makes_a_trainer(guest):
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: guest.start("--steps", 1000), range(6)))
    codes = sorted(answer.get("code", "started") for answer in answers)
    assert codes.count("started") == 1
    assert set(codes) <= {"started", "run_alive", "attempt_exists"}
    started = next(answer for answer in answers if answer["type"] == "started")
    assert guest.alive()["pids"] == [started["trainer_pid"]]


def test_attempt_numbers_are_used_once_and_in_order(guest):
    guest.start("--steps", 1)
    guest.exit()
    again = guest.start()
    assert (again["code"], again["newest"]) == ("attempt_exists", 1)
    assert "code 0" in again["message"]
    assert guest.start(attempt=3)["code"] == "attempt_gap"
    assert guest.start("--steps", 1, attempt=2)["type"] == "started"


def test_the_first_attempt_is_one_and_a_refusal_leaves_nothing(guest):
    assert guest.start(attempt=2)["code"] == "attempt_gap"
    assert not guest.dir().exists()


def test_a_program_that_is_not_there_uses_the_attempt_up(guest):
    refused = guest.start(argv=["/no/such/python", "train.py"])
    assert refused["code"] == "start_failed"
    assert "No such file or directory: '/no/such/python'" in refused["message"]
    assert "/no/such/python" in guest.exit()["error"]
    assert guest.alive()["lock_held"] is False
    assert guest.start("--steps", 1, attempt=2)["type"] == "started"


def test_too_little_space_is_told_before_anything_is_made(guest):
    refused = guest.start(min_free_bytes=1 << 60)
    assert refused["code"] == "no_space"
    assert not guest.dir().exists()


def test_a_missing_tmux_is_told_with_the_fix(guest, monkeypatch):
    monkeypatch.setitem(guest.env, "PATH", "/nonexistent")
    refused = guest.start()
    assert (refused["code"], refused["hint"]) == (
        "no_tmux",
        "`dflashctl provision` installs it, or in the container: apt-get install -y tmux",
    )
    assert not guest.dir().exists()
    assert guest.ask("hello")[0]["tmux"] is None
    monkeypatch.undo()


def test_a_start_that_was_cut_is_told_and_the_next_attempt_works(guest):
    guest.dir("r", 1).mkdir(parents=True)
    refused = guest.start()
    assert refused["code"] == "attempt_exists"
    assert "the start was cut" in refused["message"]
    assert guest.file("exit.json")["error"] == "the start was cut before the trainer was started"
    assert guest.start("--steps", 1, attempt=2)["type"] == "started"


def test_a_supervisor_that_comes_too_late_starts_nothing(guest):
    guest.dir("r", 1).mkdir(parents=True)
    assert guest.start("--steps", 1000, attempt=2)["type"] == "started"
    assert guest.file("exit.json")["error"] == "the start was cut before the trainer was started"
    guest.stop()
    late = ["supervise", str(guest.dir()), "1"]
    subprocess.run([*guest.command, *late], env=guest.env, check=False, timeout=LONG_S)
    assert not (guest.dir("r", 1) / "attempt.json").exists()


def test_a_start_may_ask_not_to_undo_a_persons_stop(guest):
    guest.start("--steps", 1000)
    guest.stop(by="user")
    assert guest.start(attempt=2, unless_stopped=True)["code"] == "stopped_by_user"
    assert guest.start("--steps", 1, attempt=2)["type"] == "started"


def test_a_stop_by_the_watch_does_not_keep_it_from_starting(guest):
    guest.start("--steps", 1000)
    guest.stop(by="watch")
    assert guest.start("--steps", 1, attempt=2, unless_stopped=True)["type"] == "started"


def test_two_state_directories_may_have_a_run_of_one_name(guest, tmp_path):
    other = driver.Guest(tmp_path / "other", Path(guest.env["TMUX_TMPDIR"]))
    first, second = guest.start("--steps", 1000), other.start("--steps", 1000)
    assert first["session"] == "r"
    assert second["session"].startswith("r-")
    other.stop()
    assert guest.alive()["pids"] == [first["trainer_pid"]]


def test_a_name_with_dots_gets_a_session(guest):
    assert guest.start("--steps", 1, run="a.b-1")["session"] == "a_b-1"
    guest.exit(run="a.b-1")
    assert guest.start("--steps", 1, run="a.b-1", attempt=2)["session"] == "a_b-1"


def test_the_session_keeps_the_whole_history_and_shows_the_log(guest):
    guest.start("--steps", 3)
    guest.exit()
    assert guest.tmux("display-message", "-p", "-t", "=r:", "#{history_limit}").strip() == "200000"
    shown = guest.ask("capture", session="r", socket="dflashctl", lines=100)[0]
    assert shown["exists"]
    assert "step 3/3 loss 2.2500" in shown["lines"]
    assert "[dflashctl] attempt 1 ended: exit code 0" in shown["lines"]


@pytest.mark.parametrize(
    "change",
    [
        {"run": "../x"}, {"run": "a\nb"}, {"run": ""}, {"run": "a..b"}, {"run": "-a"}, {"run": None},
        {"attempt": 0}, {"attempt": "1"}, {"attempt": True}, {"env": {"A=B": "x"}}, {"env": {"A": 1}},
        {"env": {"A": "\0"}}, {"spec": {}}, {"spec": {"argv": "sh"}}, {"spec": {"argv": ["\ud800"]}},
        {"spec": {"argv": ["true"], "cwd": "x"}}, {"state_dir": "x"}, {"state_dir": "/$N"},
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_and_leaves_nothing(guest, change):
    request = {"run": "r", "attempt": 1, "spec": {"argv": ["true"]}, **change}
    assert guest.ask("start", **request)[-1]["code"] == "bad_request"
    assert not guest.state.exists()
