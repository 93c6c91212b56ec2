"""What each verb promises, through sshd, pct, LXC and tmux, with the stand-in as the trainer."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.errors import Exit
from tests.cli import LONG_S, is_kind
from tests.integration.clilab import RUNS, STANDIN, away, cli, launch_standin, options, told

if TYPE_CHECKING:
    from tests.cli import Cli

pytestmark = pytest.mark.integration
__all__ = ["away", "cli"]


def answered(cli: Cli, *words: str, answer: str) -> tuple[int, str]:
    """Run at a terminal and answer its question; return the exit code and what was shown."""
    near, far = pty.openpty()
    with subprocess.Popen(
        cli.argv(*words), env=cli.env, cwd=cli.home, stdin=far, stdout=far, stderr=far
    ) as run:
        os.close(far)
        limit = threading.Timer(LONG_S, run.kill)
        limit.start()
        shown = b""
        while True:
            try:
                data = os.read(near, 65536)
            except OSError:
                break
            shown += data
            if shown.endswith(b"[y/N] "):
                os.write(near, f"{answer}\n".encode())
        code = run.wait(LONG_S)
        limit.cancel()
    os.close(near)
    return code, shown.decode()


def is_healthy(event: dict[str, Any]) -> bool:
    return event["kind"] == "state" and "healthy" in event["text"]


def test_a_dry_run_prints_what_runs_and_reaches_nothing(away):
    body = json.loads(away.launch("--dry-run", "--json", "--set", "optim.lr=1e-4").stdout)
    assert body["spec"]["argv"] == ["python3", "-m", "trainer", "--config", "tiny", "--set", "optim.lr=1e-4"]
    assert body["spec"]["cwd"].startswith("/var/lib/dflashctl/trainers/")
    for line in body["commands"]:
        assert line.startswith("ssh -p 9 root@127.0.0.1 pct exec 200 -- env LC_ALL=C.UTF-8 python3 ")
    assert [line.rsplit(" ", 1)[1] for line in body["commands"]] == ["hello", "look", "install", "start"]
    assert "nothing is run" in away.launch("--dry-run").stdout
    assert away.json("ps", "--offline")["runs"] == []


def test_a_dry_run_is_what_then_runs(cli, lab):
    words = (
        "--run",
        "r1",
        "--",
        "sh",
        "-c",
        'echo "$0" "it\'s" --flag; sleep 3600',
        "--dry-run",
        "-v",
        "a b",
    )
    dry = json.loads(cli.launch("--dry-run", "--json", *words).stdout)
    assert not (lab.rootfs / RUNS / "r1").exists()
    cli.launch(*words)
    ran = json.loads((lab.rootfs / RUNS / "r1/attempts/1/run.json").read_text())
    assert {key: ran[key] for key in ("argv", "cwd", "checkpoint_dir", "gpus")} == {
        key: dry["spec"][key] for key in ("argv", "cwd", "checkpoint_dir", "gpus")
    }
    assert ran["argv"] == list(words[3:]), "what stands after `--` is not touched"
    assert lab.rootfs.joinpath(dry["commands"][0].split()[-2].lstrip("/")).exists(), "the guest that it named"


def test_the_login_in_a_dry_run_is_the_one_that_ssh_config_says(away):
    (away.home / ".ssh").mkdir()
    (away.home / ".ssh" / "config").write_text("Host pve\n  HostName 127.0.0.1\n  User trainer\n")
    shown = away.run("launch", "--host", "pve", "--ct", "200", "--dry-run").stdout
    assert " trainer@pve pct exec" in shown
    shown = away.run("launch", "--host", "me@pve", "--ct", "200", "--dry-run").stdout
    assert " me@pve pct exec" in shown


def test_the_inventorys_config_is_taken_and_told_else_tiny(away):
    (away.home / "inventory" / "mine.yaml").write_text(
        "hosts:\n  pve:\n    address: 10.1.2.6\ncontainers:\n"
        "  trainer:\n    host: pve\n    ct: 200\n    config: fast\n    python: /opt/py\n"
    )
    shown = away.run("launch", "-c", "trainer", "--dry-run").stdout
    assert "/opt/py -m trainer --config fast" in shown
    assert "--config tiny" in away.run("launch", "--host", "pve", "--ct", "201", "--dry-run").stdout
    assert (
        "--config qwen3-8b" in away.run("launch", "-c", "trainer", "--config", "qwen3-8b", "--dry-run").stdout
    )


def test_a_launch_says_which_config_it_took_and_doubles_nothing(cli, lab):
    endless = ("--set", "total_steps=100000")  # alive when the last of the three looks
    first = cli.launch("--python", str(lab.torch_python), "--config", "fast", *endless)
    assert "dflash at " in first.stdout
    assert "attempt 1 started (config fast)" in first.stdout
    again = cli.launch("--python", str(lab.torch_python), "--config", "fast")
    assert "attempt 1 is alive" in again.stdout
    assert "ignored" not in again.stdout
    other = cli.launch("--config", "fast", "--python", "/opt/py", "--inject", "nan@9", "--gpus", "0")
    assert "ignored: --inject nan@9, --python /opt/py, --gpus 0; `dflashctl relaunch dflash`" in other.stdout
    assert len(list((lab.rootfs / RUNS / "dflash/attempts").iterdir())) == 1


def test_launch_and_watch_in_one_and_a_finished_run_is_not_started_again(cli, lab):
    launch_standin(cli, "r1", "--steps", "5")
    assert cli.watch("r1").end() == 0
    done = cli.launch("--run", "r1", "--watch", "--json", "--", "python3", STANDIN)
    again, *_ = [json.loads(line) for line in done.stdout.splitlines()]
    assert (again["already"], again["attempt"]) == ("finished", 1)
    done = cli.launch("--run", "r2", "--watch", "--", "python3", STANDIN, "--steps", "5")
    assert "attempt 1 started" in done.stdout
    assert "step 5/5" in done.stdout


def test_a_relaunch_shows_the_difference_and_asks(cli, lab):
    launch_standin(cli, "r1", "--steps", "20000")
    done = cli.run("relaunch", "r1", "--set", "optim.lr=1e-4", "--yes", code=Exit.USAGE)
    told(done, "r1 runs a command of its own", "-- COMMAND")
    words = ("relaunch", "r1", "--python", "/usr/bin/python3")
    code, shown = answered(cli, *words, answer="n")
    assert code == Exit.USAGE
    assert "relaunch r1 at" in shown
    assert cli.json("status", "r1")["attempt"] == 1
    code, shown = answered(cli, *words, answer="y")
    assert code == 0
    assert "attempt 2 started" in shown
    assert "python: python3 -> /usr/bin/python3" in shown
    assert "attempt 2 started (python3" in shown


@pytest.mark.slow
def test_a_slip_in_a_change_does_not_stop_the_living_run(cli, lab):
    words = ("--config", "fast", "--set", "total_steps=100000")  # still running when the last word is said
    cli.launch("--run", "r1", "--python", str(lab.torch_python), *words)
    for change in (
        ("--set", "optim.nosuch=1"),
        ("--set", "nosuch"),
        ("--config", "/nonexistent.toml"),
        ("--inject", "nosuch@1"),
    ):
        told(
            cli.run("relaunch", "r1", *change, "--yes", code=Exit.USAGE),
            "nosuch" if "--config" not in change else "nonexistent",
        )
    status = cli.json("status", "r1", code=None)
    assert (status["attempt"], status["state"]) == (1, "healthy")


def test_stop_tells_what_it_ended_and_twice_is_harmless(cli, lab):
    launch_standin(cli, "r1", "--steps", "20000")
    shown = cli.run("stop", "r1", "--dry-run").stdout
    assert " pct exec 200 -- " in shown
    assert shown.rstrip().endswith(" stop")
    assert cli.json("status", "r1")["state"] == "healthy"
    assert "stopped (" in cli.run("stop", "r1", "--grace", "2m").stdout
    assert "was not running" in cli.run("stop", "r1").stdout
    assert cli.json("status", "r1", code=Exit.NOT_RUNNING)["state"] == "stopped"


def test_attach_prints_the_command_that_really_enters_the_pane(cli, lab):
    launch_standin(cli, "r1", "--steps", "20000")
    shown = cli.run("attach", "r1", "--dry-run").stdout.split()
    assert shown[:2] == ["ssh", "-t"]
    assert shown[-6:] == ["tmux", "-L", "dflashctl", "attach", "-t", "=r1"]
    assert f"root@{lab.host}" in shown
    has = [*shown[shown.index("--") + 1 : -3], "has-session", "-t", "=r1"]
    assert lab.exec(has).returncode == 0


def test_logs_by_tail_attempt_and_following(cli, lab):
    launch_standin(cli, "r1", "--steps", "400", "--step-s", "0", "--crash-at", "300", "--crash-attempts", "1")
    cli.watch("r1").end()
    whole = cli.run("logs", "r1", "--attempt", "1", "--tail", "0").stdout
    assert whole.splitlines()[0].startswith(("stand-in", "step", "fresh", "start"))
    assert "step 299/400" in whole
    short = cli.run("logs", "r1", "--attempt", "1", "--tail", "1KiB").stdout
    assert whole.endswith(short)
    assert 0 < len(short) <= 1024
    assert cli.run("logs", "r1", "--attempt", "1", "-n", "3").stdout.splitlines() == whole.splitlines()[-3:]
    assert "step 400/400" in cli.run("logs", "r1").stdout, "the newest attempt is the default"


@pytest.mark.parametrize(
    ("words", "code", "state"),
    [
        pytest.param(("--steps", "20000"), Exit.OK, "healthy", marks=pytest.mark.slow),
        (("--steps", "20000", "--crash-at", "3", "--fx-text"), Exit.FAILED, "dead"),
        pytest.param(("--steps", "3"), Exit.OK, "finished", marks=pytest.mark.slow),
    ],
)
def test_the_exit_code_of_status_is_the_state(cli, lab, words, code, state):
    launch_standin(cli, "r1", *words)
    is_there = is_healthy if state == "healthy" else is_kind("diagnosis", state=state)
    cli.watch("r1", "--observe-only").wait_for(is_there)
    assert cli.json("status", "r1", code=code)["state"] == state
    assert f"r1 at 127.0.0.1:{lab.port}/200: {state}" in cli.run("status", "r1", code=code).stdout
    rows = cli.json("ps")["runs"]
    assert [(row["run"], row["state"]) for row in rows] == [("r1", state)]


def test_a_blind_look_is_told_as_blind_with_what_was_last_known(cli, clean_lab):
    launch_standin(cli, "r1", "--steps", "20000")
    cli.watch("r1").wait_for(is_healthy)
    cli.end_watches()
    clean_lab.stop_sshd()
    done = cli.run("status", "r1", code=Exit.UNREACHABLE)
    assert "blind" in done.stdout
    assert "last known: healthy, attempt 1" in done.stdout
    assert cli.json("ps")["runs"][0]["state"] == "blind"
    assert cli.json("ps", "--offline")["runs"][0]["state"] == "healthy"


def test_events_of_the_last_while_only(cli, lab):
    launch_standin(cli, "r1", "--steps", "3")
    assert cli.watch("r1").end() == 0
    kinds = [event["kind"] for event in cli.json("events", "r1", "--since", "10m")["events"]]
    assert "action" in kinds
    assert cli.json("events", "r1", "--since", "0s")["events"] == []
    assert len(cli.json("events", "--limit", "1")["events"]) == 1


def test_what_scan_prints_is_an_inventory_that_reaches_the_container(cli, lab):
    scanned = cli.run("inventory", "scan", *options(lab)).stdout
    (cli.home / "inventory" / "scanned.yaml").write_text(scanned)
    rows = cli.json("inventory", "check", code=Exit.NOT_READY)["containers"]
    assert all("inventory scan --host 127.0.0.1" in row["text"] for row in rows), "how to accept the key"
    (cli.home / ".ssh").mkdir()
    shutil.copy(lab.known_hosts, cli.home / ".ssh" / "known_hosts")
    assert "200" in cli.run("inventory", "list").stdout
    rows = {row["name"]: row for row in cli.json("inventory", "check", code=None)["containers"]}
    good = [row for row in rows.values() if row["ok"]]
    assert len(good) == 1
    assert "tmux" in good[0]["text"]
    assert cli.json("inventory", "check", good[0]["name"])["containers"] == good
