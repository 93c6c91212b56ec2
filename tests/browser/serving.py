"""`dflashctl serve` as a process, and a browser before it."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from tests.cli import Cli

READY_S = 30


class Serving:
    """The service over the runs of one place, on a port of its own."""

    def __init__(self, cli: Cli, *options: str) -> None:
        self._cli = cli
        self._options = options
        self.url = ""

    def __enter__(self) -> Self:
        begin, end = os.pipe()
        self.err: Path = self._cli.home / "serve.err"
        words = ("serve", "--listen", "127.0.0.1:0", "--ready-fd", str(end), "--no-notify", *self._options)
        with self.err.open("ab") as err:
            self.process = subprocess.Popen(
                self._cli.argv(*words), env=self._cli.env, cwd=self._cli.home, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=err, pass_fds=(end,),
            )  # fmt: skip
        os.close(end)
        with os.fdopen(begin) as ready:  # its end closes with the process, if that dies
            self.url = ready.readline().strip().rstrip("/")
        assert self.url, f"it did not serve: {self.err.read_text()[-3000:]}"
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(READY_S)
            except subprocess.TimeoutExpired:
                self.kill()
        assert "Traceback" not in self.err.read_text(), self.err.read_text()[-4000:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def token(self) -> str:
        return (self._cli.home / "config" / "dflashctl" / "serve.token").read_text().strip()
