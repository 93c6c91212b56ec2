"""Programs that say line by line what they do, such as pip; ended with all of theirs when nobody listens."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from typing import TYPE_CHECKING

from orchestrator.guest import clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.guest.link import Link
    from orchestrator.masking import Masker

GRACE_S = 3.0
MAX_LINE = 500


class Left(Exception):  # noqa: N818  it is no fault
    """The near side went away."""


class Teller:
    """Runs programs one after the other; each line goes to the near side, secrets masked."""

    def __init__(self, link: Link, masker: Masker, lock: int) -> None:
        self._link = link
        self._masker = masker
        self._lock = lock  # inherited: what outlives us still holds it

    def run(self, argv: Sequence[str], env: Mapping[str, str]) -> int:
        """Run to the end and return the exit code.

        Raises:
            Left: The near side went away; the program was ended.
            OSError: It cannot be started.
        """
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
            pass_fds=(self._lock,),
        )
        try:
            self._follow(child)
            return child.wait()
        finally:
            _end(child)

    def _follow(self, child: subprocess.Popen[bytes]) -> None:
        if child.stdout is None:
            return
        pipe, near = child.stdout.fileno(), self._link.lines.fd
        rest = b""
        while True:
            ready, _, _ = select.select([pipe, near], [], [])
            if near in ready:
                self._link.lines.message(0)
                if self._link.lines.is_ended:
                    raise Left
            if pipe in ready:
                piece = os.read(pipe, 1 << 16)
                # A bar that draws over itself ends its lines with \r.
                *whole, rest = (rest + piece).replace(b"\r", b"\n").split(b"\n")
                self.say(*whole)
                if not piece:
                    self.say(rest)
                    return

    def say(self, *lines: bytes) -> None:
        """Tell lines; empty ones are left out."""
        for line in lines:
            text = self._masker.text(line.decode("utf-8", "replace")).rstrip()[:MAX_LINE]
            if text:
                self._link.send("said", {"line": text})


def _end(child: subprocess.Popen[bytes]) -> None:
    """End what is left of it, with its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        deadline = clock.ticking() + GRACE_S
        while child.poll() is None and clock.ticking() < deadline:
            clock.wait(0.02)
    if child.stdout is not None:
        child.stdout.close()
