"""The ssh config's ProxyCommand as a real socket.

paramiko's own waits for full buffers, spins at the end, and counts a partial write as a whole one.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile


class Proxy:
    """A running ProxyCommand; `near` is our end of it."""

    def __init__(self, command: str) -> None:
        self.near, far = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the command
        with far:
            self._process = subprocess.Popen(
                ["sh", "-c", f"exec {command}"],
                stdin=far.fileno(),
                stdout=far.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )

    def last_words(self) -> str | None:
        """Return why it ended, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        if self._process.returncode is None:
            return None
        self._stderr.seek(0)
        lines = self._stderr.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"

    def close(self) -> None:
        """End it."""
        self.near.close()
        self._process.terminate()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()
