"""A host's login shell that is not sh does not matter: sshd runs `<login shell> -c <command>`."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from orchestrator.connection import Connections, open_shell
from tests.cli import LONG_S
from tests.integration.test_connection import HOSTILE, SHOW
from tests.integration.throwaway import ThrowawaySshd, sshd_path

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.connection import Shell

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sshd_path() is None or os.geteuid() != 0, reason="needs root and openssh-server"),
]


@pytest.fixture(params=["dash", "bash", "fish", "zsh", "tcsh"])
def shell(request: pytest.FixtureRequest, tmp_path: Path):
    path = shutil.which(request.param)
    if path is None:
        pytest.skip(f"{request.param} is not installed")
    # The same argv as sshd's own for a user whose login shell it is, without touching this machine's users.
    server = ThrowawaySshd(tmp_path / "sshd", f'ForceCommand exec {path} -c "$SSH_ORIGINAL_COMMAND"\n')
    found = open_shell(server.target(), options=server.options(), connections=Connections())
    yield found
    found.close()
    server.stop()


def test_hostile_words_arrive_as_they_are(shell: Shell):
    result = shell.run([*SHOW, *HOSTILE], timeout_s=LONG_S)
    assert result.stdout == b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in HOSTILE)


def test_plain_words_arrive_as_they_are(shell: Shell):
    words = ["echo", "200", "--", "LC_ALL=C.UTF-8", "/a/b.pyz", "x@y", "50%", "a,b", "a:b", "+1", "-"]
    assert (
        shell.run(words, timeout_s=LONG_S).stdout == b"200 -- LC_ALL=C.UTF-8 /a/b.pyz x@y 50% a,b a:b +1 -\n"
    )


def test_input_output_and_exit_code_pass_through(shell: Shell):
    data = os.urandom(300_000)
    result = shell.run(["sh", "-c", "cat; echo 'e r r' >&2; exit 9"], stdin=data, timeout_s=LONG_S)
    assert (result.exit_code, result.stdout == data, result.stderr) == (9, True, b"e r r\n")


def test_a_stream_passes_through(shell: Shell):
    stream = shell.stream(["sh", "-c", 'while read -r line; do printf "%s\\n" "$line"; done'])
    stream.send("$a 'b' \\n \u00e9\n".encode())
    assert stream.read_line(LONG_S) == "$a 'b' \\n \u00e9\n".encode()
    stream.close_stdin()
    assert (stream.read_line(LONG_S), stream.exit_code) == (b"", 0)
    stream.close()
