"""A launch on a bad day: one line that says where, what and what to do, and nothing half-done left behind."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import Exit
from tests.cli import Cli
from tests.integration.clilab import assert_nothing_left, away, cli, options, told

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration
__all__ = ["away", "cli"]
COMMAND = ("--", "sleep", "3600")


def test_a_port_that_refuses_is_told(away):
    done = away.launch(*COMMAND, code=Exit.UNREACHABLE)
    told(done, "127.0.0.1", "port 9", "connection refused", "is sshd running there")
    assert_nothing_left(away)


def test_a_port_that_says_nothing_is_told_within_its_limit(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        cli = Cli(tmp_path, ("--host", "127.0.0.1", "--port", str(server.getsockname()[1]), "--ct", "200"))
        done = cli.launch(*COMMAND, code=Exit.UNREACHABLE)
    told(done, "127.0.0.1", "during the handshake")
    assert_nothing_left(cli)


def test_a_refused_key_is_told_with_what_was_tried(cli, lab, tmp_path):
    key = tmp_path / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    done = cli.launch("--identity", str(key), *COMMAND, code=Exit.UNREACHABLE)
    told(done, "127.0.0.1", f"{key} (refused)", "root")
    assert_nothing_left(cli, lab)


def test_a_key_file_that_is_not_there_is_told(cli, lab):
    done = cli.launch("--identity", "/nonexistent/key", *COMMAND, code=Exit.UNREACHABLE)
    told(done, "/nonexistent/key (no such file)")


def test_an_unknown_host_key_comes_with_the_command_that_accepts_it(cli, lab, tmp_path):
    known = tmp_path / "known_hosts"
    cli.where = (*options(lab, known_hosts=known), "--ct", "200")
    shown = subprocess.run(
        ["ssh-keygen", "-lf", lab.state / "ssh" / "host_key.pub"], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    line = told(
        cli.launch("--run", "r1", *COMMAND, code=Exit.UNREACHABLE), "unknown host key", shown, "ssh-keygen"
    )
    assert_nothing_left(cli, lab)
    assert not known.exists()
    command = re.findall(r"`([^`]+)`", line)[-1]
    assert "--accept-new-host-key" in command
    subprocess.run(command, shell=True, env=cli.env, cwd=cli.home, check=True, capture_output=True)
    assert known.read_text().startswith(f"[127.0.0.1]:{lab.port} ")
    assert "alive" in cli.launch("--run", "r1", *COMMAND).stdout, "and it is asked only once"


def test_a_verb_that_takes_its_place_from_the_record_tells_how_to_accept_a_key_too(cli, lab, tmp_path):
    known = tmp_path / "known_hosts"
    shutil.copy(lab.known_hosts, known)
    cli.where = (*options(lab, known_hosts=known), "--ct", "200")
    cli.launch("--run", "r1", *COMMAND)
    known.unlink()
    line = told(cli.run("logs", "r1", code=Exit.UNREACHABLE), "unknown host key")
    command = shlex.split(re.findall(r"`([^`]+)`", line)[-1])
    subprocess.run(command, env=cli.env, cwd=cli.home, check=True, capture_output=True)
    cli.run("logs", "r1")


def test_a_changed_host_key_is_refused_whatever_the_options_say(cli, clean_lab):
    before = clean_lab.known_hosts.read_bytes()
    clean_lab.restart_sshd(new_host_key=True)
    for option in ((), ("--accept-new-host-key",)):
        done = cli.launch(*option, *COMMAND, code=Exit.UNREACHABLE)
        told(done, "the host key has changed", str(clean_lab.known_hosts), "ssh-keygen -f")
    assert clean_lab.known_hosts.read_bytes() == before
    assert_nothing_left(cli, clean_lab)


@pytest.mark.parametrize(
    ("ct", "words"),
    [("999", ("no such container", "pct list")), ("201", ("the container is stopped", "pct start 201"))],
)
def test_a_container_that_is_not_there_or_stopped_is_told(cli, lab, ct, words):
    done = cli.run("launch", *options(lab), "--ct", ct, *COMMAND, code=Exit.NOT_READY)
    told(done, f"127.0.0.1/{ct}", *words)
    assert_nothing_left(cli, lab)


def test_a_backup_lock_keeps_nobody_out_of_a_running_container(cli, clean_lab):
    """pct exec works under a lock; only start, stop and migration do not (pve-container)."""
    clean_lab.lock()
    assert "attempt 1 started" in cli.launch("--run", "r1", *COMMAND).stdout


def test_a_container_stopped_under_a_backup_lock_is_told_as_stopped(cli, clean_lab):
    clean_lab.lock(201)
    done = cli.run("launch", *options(clean_lab), "--ct", "201", *COMMAND, code=Exit.NOT_READY)
    told(done, "127.0.0.1/201", "the container is stopped")


def test_no_tmux_in_the_container_is_told_with_the_fix(cli, clean_lab):
    (clean_lab.rootfs / "usr/bin/tmux").unlink()
    told(cli.launch(*COMMAND, code=Exit.NOT_READY), "127.0.0.1/200", "no tmux", "apt-get install -y tmux")
    assert_nothing_left(cli, clean_lab)


def test_no_python3_in_the_container_is_told_with_the_fix(cli, clean_lab):
    for path in (clean_lab.rootfs / "usr/bin").glob("python3*"):
        path.unlink()
    done = cli.launch(*COMMAND, code=Exit.UNREACHABLE)
    told(done, "127.0.0.1/200", "python3 cannot be started", "apt install python3")
    assert_nothing_left(cli, clean_lab)


def test_a_trainer_python_that_is_not_there_is_told_with_the_fix(cli, lab):
    done = cli.launch("--python", "/root/venv/bin/python", code=Exit.ERROR)
    told(done, "/200: --python /root/venv/bin/python", "No such file or directory", "--python PATH")
    assert_nothing_left(cli, lab)


def test_a_python_without_torch_is_told_with_the_fix_before_anything_starts(cli, lab):
    done = cli.launch("--python", "/usr/bin/python3", "--config", "fast", code=Exit.NOT_READY)
    told(
        done,
        "/usr/bin/python3",
        "torch",
        "dflashctl provision",
        "/usr/bin/python3 -m pip install 'torch>=2.9,<2.15'",
    )
    assert_nothing_left(cli, lab)


@contextlib.contextmanager
def small_disk(lab, size: str) -> Iterator[Path]:
    lab.exec(["mkdir", "-p", "/mnt/small"])
    mounted = lab.exec(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", "/mnt/small"])
    assert mounted.returncode == 0, mounted.stderr
    try:
        yield lab.rootfs / "mnt/small"
    finally:
        lab.exec(["umount", "-l", "/mnt/small"])


@pytest.mark.parametrize("size", ["64k", "8m"])
def test_no_space_in_the_run_directory_is_told_before_anything_starts(cli, lab, size):
    """64 KiB do not hold the guest; 8 MiB do, and no run."""
    with small_disk(lab, size):
        done = cli.launch("--state-dir", "/mnt/small", "--run", "r1", *COMMAND, code=Exit.NOT_READY)
        told(done, "127.0.0.1", "/mnt/small", "space")
        left = lab.exec(["find", "/mnt/small", "-type", "f", "-not", "-name", "*.pyz"]).stdout.split()
        assert not [path for path in left if "/runs/" in path]
    assert_nothing_left(cli, lab)


def test_a_state_directory_that_cannot_be_written_is_told(cli, lab):
    done = cli.launch("--state-dir", "/proc/dflashctl", *COMMAND, code=Exit.UNREACHABLE)
    told(done, "/proc/dflashctl/guest", "is the state directory on a writable file system?")
    assert_nothing_left(cli, lab)
