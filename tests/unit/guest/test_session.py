"""Which runs have a tmux session: only tmux's own word that there is none proves that there is none."""

from __future__ import annotations

import pytest

from orchestrator.guest import session
from orchestrator.observe import parse


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo /state/runs/a; echo /state/runs/b", {"/state/runs/a", "/state/runs/b"}),
        ("echo 'no server running on /tmp/tmux-0/dflashctl' >&2; exit 1", set()),
        ("echo 'error connecting to /tmp/tmux-0/dflashctl (No such file or directory)' >&2; exit 1", set()),
        ("echo 'error connecting to /tmp/tmux-0/dflashctl (Permission denied)' >&2; exit 1", None),
        ("echo 'server exited unexpectedly' >&2; exit 1", None),
        ("echo 'tmux: error while loading shared libraries' >&2; exit 127", None),
    ],
)
def test_a_session_is_gone_only_if_tmux_says_so(tmp_path, monkeypatch, script, found):
    tmux = tmp_path / "tmux"
    tmux.write_text(f"#!/bin/sh\n{script}\n")
    tmux.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert session.tags() == found


def test_without_tmux_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert session.tags() is None


@pytest.mark.parametrize(("told", "is_there"), [(True, True), (False, False), (None, True)])
def test_what_is_not_known_is_not_taken_for_gone(told, is_there):
    alive = {"lock_held": True, "pids": [1], "supervisor": True, "session": told}
    assert parse.liveness(alive).session is is_there
