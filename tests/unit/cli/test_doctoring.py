"""doctor, as it is typed: on this machine, and at a port that refuses."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from orchestrator.cli import doctoring
from orchestrator.cli.context import SETTINGS
from orchestrator.doctor import Finding, Status
from orchestrator.errors import Exit
from tests.cli import Cli


@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here")
def test_this_machine_is_looked_at_in_one_go(tmp_path):
    cli = Cli(tmp_path, ())
    words = ("doctor", "--host", "local", "--state-dir", str(tmp_path / "state"))
    body = json.loads(cli.run(*words, "--json", code=None).stdout)
    checks = {check["check"]: check for check in body["checks"]}
    assert body["target"] == "local"
    for name in ("name", "enter", "python3", "tmux", "guest", "disk", "clock"):
        assert checks[name]["status"] in ("ok", "warn"), checks[name]
    assert checks["torch"]["status"] != "skipped"
    assert all(check["fix"] for check in body["checks"] if check["status"] == "bad")


def test_a_host_that_refuses_is_one_fault_and_a_code_of_its_own(tmp_path):
    cli = Cli(tmp_path, ())
    words = ("doctor", "--host", "127.0.0.1", "--port", "9", "--ct", "200")
    done = cli.run(*words, code=int(Exit.UNREACHABLE))
    lines = done.stdout.splitlines()
    assert lines[1].startswith("bad     tcp         port 9: connection refused; is the host up, sshd running")
    assert len(lines) == 4
    assert lines[2].startswith("skipped 27 checks   it rests on `tcp`: host key, login, root, pct, ")
    assert lines[-1].startswith("127.0.0.1:9/200: 1 fault, ")
    assert done.stderr == ""


def test_a_line_is_as_wide_as_the_terminal(capsys, monkeypatch):
    monkeypatch.setattr(type(SETTINGS.out), "is_terminal", property(lambda _: True))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    seen = "al by `sudo -n`: sudo said: a password is required " * 3
    found = Finding(check="root", status=Status.BAD, seen=seen, fix="al ALL=(root) NOPASSWD: /usr/sbin/pct")
    doctoring._show("pve/200", (found,), 1.0)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert len(lines) == 5
    assert all(len(line) <= 80 for line in lines)
    assert all(line.startswith(" " * 20) for line in lines[1:-1])
