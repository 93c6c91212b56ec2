"""Ctrl-C while a host does not answer: what is said of the end is true of the verb."""

from __future__ import annotations

import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import Exit
from tests.cli import Cli

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("launch", "--run", "r1", "--ct", "200"), "nothing was started"),
        (("doctor", "--ct", "200"), "nothing was changed"),
    ],
)
def test_ctrl_c_is_told_in_the_verbs_own_words(tmp_path: Path, words: tuple[str, ...], said: str):
    cli = Cli(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        argv = cli.argv(*words, "--host", "127.0.0.1", "--port", str(silent.getsockname()[1]))
        with subprocess.Popen(argv, env=cli.env, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
            near, _ = silent.accept()
            with near:
                run.send_signal(signal.SIGINT)
                _, err = run.communicate(timeout=120)
    assert (run.returncode, err.splitlines()[-1:]) == (Exit.INTERRUPTED, [f"dflashctl: interrupted; {said}"])
