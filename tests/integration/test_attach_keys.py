"""`attach` trusts the host keys that the program itself trusts: real ssh to a real sshd on loopback."""

from __future__ import annotations

import os
import subprocess
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from orchestrator.connection import attach_argv, checked_config
from orchestrator.errors import Exit, HostKeyRefused
from orchestrator.inventory import Host
from orchestrator.record import Record
from tests.cli import LONG_S, Cli
from tests.integration.throwaway import ThrowawaySshd, sshd_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orchestrator.inventory import Target

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sshd_path() is None or os.geteuid() != 0, reason="needs root and openssh-server"),
]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ThrowawaySshd]:
    """A server whose key is in no known_hosts."""
    server = ThrowawaySshd(tmp_path / "sshd")
    server.known_hosts.write_text("")
    yield server
    server.stop()


@pytest.fixture
def far(tmp_path: Path) -> Iterator[ThrowawaySshd]:
    server = ThrowawaySshd(tmp_path / "far")
    server.known_hosts.write_text("")
    yield server
    server.stop()


def by_hand(target: Target, config: Path | None) -> subprocess.CompletedProcess[str]:
    """Run `echo in` there as `attach` would enter the session; nobody can answer a question."""
    argv = attach_argv(target, "r", config)
    argv = (*argv[: argv.index("env")], "echo", "in")
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG_S, check=False
    )


def test_a_pinned_key_is_enough_for_ssh_itself(own: ThrowawaySshd, tmp_path: Path):
    target = own.target(user="root", host_key=own.fingerprint())
    config = checked_config(target, tmp_path / "o wn", own.options())
    assert config is not None
    assert [path.stat().st_mode & 0o777 for path in sorted(config.parent.iterdir())] == [0o600, 0o600]
    done = by_hand(target, config)
    assert (done.returncode, done.stdout.split()) == (0, ["in"]), done.stderr
    assert own.known_hosts.read_text() == ""


def test_another_key_than_the_pinned_is_refused_before_ssh_begins(own: ThrowawaySshd, tmp_path: Path):
    target = own.target(user="root", host_key=own.fingerprint("identity"))
    with pytest.raises(HostKeyRefused, match="and the inventory says SHA256:"):
        checked_config(target, tmp_path / "ssh", own.options())


def test_a_key_that_changes_after_the_check_is_refused_by_ssh(own: ThrowawaySshd, tmp_path: Path):
    target = own.target(user="root", host_key=own.fingerprint())
    config = checked_config(target, tmp_path / "ssh", own.options())
    own.make_key("host_key")
    own.restart()
    done = by_hand(target, config)
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr
    assert "yes/no" not in done.stderr


def test_a_jump_host_is_held_to_its_pin_too(own: ThrowawaySshd, far: ThrowawaySshd, tmp_path: Path):
    jump = Host.model_validate(
        {
            "name": "hop",
            "address": "127.0.0.1",
            "port": own.port,
            "user": "root",
            "host_key": own.fingerprint(),
        }
    )
    (far.home / "ssh_config").write_text(f"IdentityFile {own.home}/identity\n")
    target = far.target(user="root", host_key=far.fingerprint())
    object.__setattr__(target, "jumps", (jump,))
    config = checked_config(target, tmp_path / "ssh", far.options())
    done = by_hand(target, config)
    assert (done.returncode, done.stdout.split()) == (0, ["in"]), done.stderr
    wrong = jump.model_copy(update={"host_key": far.fingerprint()})
    object.__setattr__(target, "jumps", (wrong,))
    with pytest.raises(HostKeyRefused, match="the inventory says"):
        checked_config(target, tmp_path / "ssh", far.options())


def test_the_verb_refuses_a_stranger_with_its_fingerprint_and_asks_nothing(
    own: ThrowawaySshd, tmp_path: Path
):
    cli = Cli(tmp_path)
    with Record.open(tmp_path / "state" / "dflashctl" / "record.sqlite3") as record:
        target = own.target(user="root")
        record.save_run("r1", target.to_json(), target.key, {}, datetime.now(timezone.utc))
    done = cli.run("attach", "r1", code=Exit.UNREACHABLE)
    assert f"unknown host key {own.fingerprint()}" in done.stderr
    assert "inventory scan --host 127.0.0.1" in done.stderr
    assert "authenticity" not in done.stderr
    assert "-o StrictHostKeyChecking=yes" in cli.run("attach", "r1", "--dry-run").stdout
