"""A process of `beside_worker`, asked and answered over a socket; what it prints goes into a log."""

from __future__ import annotations

import contextlib
import multiprocessing
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

END_S = 10


class TrainerFailed(Exception):  # noqa: N818 - says what happened, as in the project's own errors
    """A trainer's process ended or is silent; with its last words."""


class Trainer:
    """Started at once, and getting ready until it is asked."""

    def __init__(
        self, implementation: str, shape: str, layout: str, options: argparse.Namespace, log: Path
    ) -> None:
        self._log = log
        self._talk, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-m", "benchmarks.beside_worker", "--implementation", implementation]
        command += ["--shape", shape, "--layout", layout, "--device", options.device]
        command += ["--talk", str(theirs.fileno())]
        command += ["--src", str(options.src)] if options.src else []
        command += ["--tiny"] if options.tiny else []
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
            )
        theirs.close()

    def answer(self, what: str | int | None, patience: float) -> dict[str, Any]:
        """What it says to `what`, or, for None, that it is ready.

        Raises:
            TrainerFailed: it ended, or has said nothing for `patience` seconds.
        """
        try:
            if what is not None:
                self._talk.send(what)
            if not self._talk.poll(patience):
                raise TrainerFailed(f"no answer in {patience:g} s; its last line: {self._last_line()}")
            answer: dict[str, Any] = self._talk.recv()
        except (EOFError, OSError):
            self._process.wait()
            raise TrainerFailed(
                f"exit code {self._process.returncode}; its last line: {self._last_line()}"
            ) from None
        return answer

    def dismiss(self) -> None:
        """Ask it to end."""
        if self._talk.closed:
            return
        with contextlib.suppress(OSError):  # it has ended
            self._talk.send(None)
        self._talk.close()

    def end(self) -> None:
        """Have it end, and see to it."""
        self.dismiss()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "none")[:200]
