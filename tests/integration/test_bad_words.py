"""What a person types or keeps in files wrongly: told in one line, before anything is done anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import Exit
from tests.cli import LONG_S
from tests.integration.clilab import (
    assert_nothing_left,
    away,
    cli,
    is_connected,
    launch_standin,
    told,
)
from tests.integration.local import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli import Cli

pytestmark = pytest.mark.integration
__all__ = ["away", "cli"]


@pytest.mark.parametrize("name", ["../up", "a/b", "two\nlines", "-dash", "x" * 200, "", "a b", "\x1b[31mred"])
def test_a_name_that_cannot_be_a_folder_is_refused_before_anything_is_reached(away, name):
    done = away.launch(f"--run={name}", "--", "true", code=Exit.USAGE)
    line = told(done, "--run", "cannot be a run's name", "use 1 to 64 letters")
    assert "\x1b" not in line
    assert_nothing_left(away)


VERBS = (
    "status", "logs", "attach", "explain", "stop", "relaunch", "rm", "prune",
    "plot", "report", "events", "watch",
)  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_a_run_that_does_not_exist_is_told_by_every_verb(away, verb):
    done = away.run(verb, "../x\n\x1b[31my", code=Exit.NOT_FOUND)
    assert "\x1b" not in told(done, "no run ", "../x", "dflashctl ps")


def test_with_json_the_error_is_an_object_on_standard_output_with_the_same_code(away):
    done = away.run("status", "nosuch", "--json", code=Exit.NOT_FOUND)
    assert done.stderr == ""
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "not_found"
    assert "nosuch" in error["message"]
    done = away.launch("--json", "--", "true", code=Exit.UNREACHABLE)
    assert json.loads(done.stdout)["error"]["code"] == "host_unreachable"
    done = away.run("status", "--nosuch", "--json", code=Exit.USAGE)
    assert json.loads(done.stdout)["error"]["code"] == "usage_error"


def test_a_json_flag_of_the_command_that_is_launched_is_its_own(away):
    told(away.launch("--", "train", "--json", code=Exit.UNREACHABLE), "connection refused")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nosuch",), "No such command 'nosuch'"),
        (("launch", "--ct", "abc"), "'abc'"),
        (("launch", "--ct", "7", "--host", "h"), "--ct: 7"),
        (("logs", "--tail", "-1"), "'-1'"),
        (("status", "--nosuch"), "No such option: --nosuch"),
        (("rm", "one", "two"), "two"),
        (("stop", "--grace", "soon"), "'soon' is no duration"),
        (("events", "--since", "yesterday"), "'yesterday' is no duration"),
        (("launch", "--host", "a b"), "--host"),
        (("launch", "--host", "h"), "--ct"),
        (("launch", "--host", "local", "--gpus", "one"), "--gpus 'one'"),
        (("launch", "--host", "local", "--set", "lr"), "'lr' is not key=value"),
        (("launch", "--host", "local", "--set", "a=1", "--", "x"), "--set"),
        (("launch", "--host", "local", "--env", "A=1"), "--env A=..."),
        (("launch", "--host", "local", "--env", "NOT_SET_HERE"), "NOT_SET_HERE"),
        (("launch", "--container", "nosuch"), '"nosuch" is not in the inventory'),
        (("watch", "--container", "c", "--ct", "200"), "leave out --host and --ct"),
    ],
)
def test_a_wrong_word_is_told_with_its_value(away, words, said):
    done = away.run(*words, code=None)
    assert done.returncode in (Exit.USAGE, Exit.NOT_FOUND)
    told(done, said)
    assert_nothing_left(away)


def test_a_bad_line_of_an_env_file_is_named_and_never_shown(away, tmp_path):
    path = tmp_path / "env"
    path.write_text("GOOD=1\nHF_TOKEN hf_s3cret\n")
    line = told(
        away.launch("--env-file", str(path), "--", "true", code=Exit.USAGE),
        f"{path}: line 2: not NAME=VALUE",
    )
    assert "s3cret" not in line
    told(
        away.launch("--env-file", "/nonexistent", "--", "true", code=Exit.USAGE),
        "/nonexistent: cannot be read",
    )
    assert_nothing_left(away)


@pytest.mark.parametrize("which", ["missing", "directory", "binary"])
def test_a_config_file_that_cannot_be_read_is_told(away, tmp_path, which):
    path = tmp_path / "my.toml"
    if which == "directory":
        path.mkdir()
    if which == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    told(away.launch("--config", str(path), code=Exit.USAGE), f"--config {path}: cannot be read", "TOML")
    assert_nothing_left(away)


@pytest.mark.parametrize("which", ["no database", "directory", "below a file", "not writable"])
def test_a_record_that_cannot_be_used_is_told(away, tmp_path, which):
    path = tmp_path / "record"
    if which == "no database":
        path.write_bytes(b"these are not the bytes of a database" * 100)
    elif which == "directory":
        path.mkdir()
    elif which == "below a file":
        (tmp_path / "file").touch()
        path = tmp_path / "file" / "record"
    else:
        path = tmp_path / "/proc/record"  # nobody, root included, makes a file there
    for words in (("ps",), ("launch", *away.where, "--", "true")):
        told(away.run("--record", str(path), *words, code=Exit.RECORD), f"{path}: the record cannot be used")


def test_a_wrong_inventory_is_told_with_its_line(away):
    (away.home / "inventory" / "mine.yaml").write_text(
        "hosts:\n  pve:\n    address: 10.1.2.6\ncontainers:\n  trainer:\n    host: pve\n    ct: abc\n"
    )
    for words in (("inventory", "list"), ("inventory", "check"), ("launch",), ("watch", "-c", "trainer")):
        told(away.run(*words, code=Exit.USAGE), "mine.yaml:7", "ct", "abc")


def test_a_wrong_playbook_is_told_with_its_line(cli, lab):
    launch_standin(cli, "r1")
    path = cli.home / "mine.yaml"
    path.write_text("extends: default\nrules:\n  oom_cuda:\n    act: nosuch\n    why: because\n")
    told(cli.run("watch", "r1", "--playbook", str(path), code=Exit.USAGE), "mine.yaml:4", "nosuch")
    told(cli.run("watch", "r1", "--playbook", "/nonexistent.yaml", code=Exit.USAGE), "/nonexistent.yaml")
    done = cli.launch("--run", "r2", "--playbook", "/nonexistent.yaml", "--", "true", code=Exit.USAGE)
    told(done, "/nonexistent.yaml")
    assert [row["run"] for row in cli.json("ps", "--offline")["runs"]] == ["r1"]


def test_the_local_host_without_pct_is_told(away):
    away.env["PATH"] = "/usr/bin:/bin"
    done = away.run("launch", "--host", "local", "--ct", "200", "--", "true", code=Exit.NOT_READY)
    told(done, "local/200: there is no pct", "is it a Proxmox VE host")
    assert_nothing_left(away)


def test_what_the_trainer_does_not_know_is_told_before_anything_starts(cli, lab):
    python = ("--python", str(lab.torch_python))
    told(cli.launch(*python, "--set", "nosuch=1", code=Exit.USAGE), "/200", "nosuch: unknown key", "allowed:")
    told(cli.launch(*python, "--config", "nosuch", code=Exit.USAGE), "nosuch", "tiny.toml")
    told(cli.launch(*python, "--inject", "nosuch@1", code=Exit.USAGE), "nosuch")
    assert_nothing_left(cli, lab)


@pytest.mark.slow
def test_a_config_file_of_ones_own_is_checked_with_its_own_name(cli, lab):
    path = cli.home / "my.toml"
    path.write_text("total_steps = [\n")
    done = cli.launch("--python", str(lab.torch_python), "--config", str(path), code=Exit.USAGE)
    told(done, f"--config {path}: not TOML")
    path.write_text("total_steps = 10\nnosuch = 1\n")
    done = cli.launch("--python", str(lab.torch_python), "--config", str(path), code=Exit.USAGE)
    told(done, "nosuch: unknown key")
    assert_nothing_left(cli, lab)
    path.write_text("total_steps = 10\n")
    assert "attempt 1 started" in cli.launch("--python", str(lab.torch_python), "--config", str(path)).stdout


def test_a_living_run_cannot_be_removed(cli, lab):
    launch_standin(cli, "r1", "--steps", "20000")
    done = cli.run("rm", "r1", "--yes", code=Exit.ALIVE)
    assert 'run "r1" is alive; nothing was removed; stop it first' in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert cli.json("status", "r1")["state"] == "healthy"


def test_what_needs_a_yes_does_nothing_without_a_terminal(cli, lab):
    launch_standin(cli, "r1", "--steps", "20000")
    told(cli.run("relaunch", "r1", code=Exit.USAGE), "relaunch r1 at ", "no terminal to ask at", "give --yes")
    assert cli.json("status", "r1")["attempt"] == 1
    cli.run("stop", "r1", "--grace", "1s")
    done = cli.run("rm", "r1", code=Exit.USAGE)
    assert "give --yes" in done.stderr
    assert (lab.rootfs / "var/lib/dflashctl/runs/r1").is_dir()


def test_two_runs_and_no_name_is_told_with_both(cli, lab):
    for run in ("r1", "r2"):
        cli.launch("--run", run, "--", "true")
    for verb in ("status", "logs", "stop"):
        told(cli.run(verb, code=Exit.USAGE), "r1 at ", "r2 at ", "name it")


def test_an_attempt_that_was_never_made_is_told(cli, lab):
    cli.launch("--run", "r1", "--", "true")
    told(cli.run("logs", "r1", "--attempt", "99", code=Exit.NOT_FOUND), "r1", "99")
    told(cli.run("explain", "r1", "--attempt", "99", code=Exit.NOT_FOUND), "r1", "no failure on record")


def test_a_plot_that_cannot_be_written_is_told(cli, lab):
    launch_standin(cli, "r1", "--steps", "5")
    assert cli.watch("r1").end() == 0
    told(cli.run("plot", "r1", "--out", "/proc/x.png", code=Exit.USAGE), "/proc/x.png", "name another file")


@pytest.mark.parametrize("words", ["logs r1 --tail 0", "watch r1", "events r1", "ps", "--help"])
def test_a_reader_that_leaves_early_hears_no_complaint(cli, lab, words):
    launch_standin(cli, "r1", "--steps", "3000", "--step-s", "0")
    line = f"{' '.join(cli.argv(*words.split()))} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], env=cli.env, cwd=cli.home, capture_output=True, text=True, timeout=LONG_S,
        check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


def interrupted(cli: Cli, *words: str, after: str | Callable[[int], bool]) -> tuple[int, str, str]:
    """Press Ctrl-C after `after` was printed, or is so of the process."""
    process = subprocess.Popen(
        cli.argv(*words), env=cli.env, cwd=cli.home, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    told = ""
    if callable(after):
        wait_until(lambda: after(process.pid), what="what Ctrl-C is to cut")
        assert process.poll() is None
    else:
        while after not in told:
            told += (line := process.stdout.readline())
            assert line, process.communicate()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=LONG_S)
    return process.returncode, told + out, err


def test_ctrl_c_ends_a_watch_or_a_log_and_nothing_else(cli, lab):
    launch_standin(cli, "r1", "--steps", "20000", "--step-s", "0.1")
    for words in (("watch", "r1"), ("logs", "r1", "-f")):
        code, out, err = interrupted(cli, *words, after="/20000 loss")
        assert code == Exit.INTERRUPTED, out + err
        assert err.splitlines() == ["dflashctl: interrupted; what runs in a container goes on"]
    assert cli.json("status", "r1")["state"] == "healthy"


def test_ctrl_c_in_a_launch_leaves_a_run_that_a_second_launch_finds_or_makes(cli, clean_lab):
    clean_lab.set_pct_delay(20)
    words = ("launch", *cli.where, "--run", "r1", "--", "sleep", "3600")
    code, out, err = interrupted(cli, *words, after=lambda pid: is_connected(pid, clean_lab.port))
    assert (code, out) == (Exit.INTERRUPTED, "")
    assert len(err.splitlines()) == 1
    clean_lab.set_pct_delay(0)
    cli.launch("--run", "r1", "--", "sleep", "3600")
    assert cli.json("status", "r1")["attempt"] == 1


def test_verbose_stands_before_the_verb_and_tells_on_standard_error(cli, lab):
    quiet, loud = cli.launch("--run", "r1", "--", "true"), cli.run("-vv", "status", "r1", code=None)
    assert quiet.stderr == ""
    assert "DEBUG" in loud.stderr
    assert loud.stdout.startswith("r1 at ")
