"""What systemd is told of a service (sd_notify): a datagram to the socket that NOTIFY_SOCKET names."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_STATUS = 200


class Notifier:
    """Tells systemd; without one it says nothing. A lost word never stops the service."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        env = os.environ if env is None else env
        named = env.get("NOTIFY_SOCKET", "")
        # `@` stands for the null byte of an abstract address; other kinds, such as vsock, are not spoken.
        self._address = (
            "\0" + named[1:] if named.startswith("@") else named if named.startswith("/") else None
        )
        self.watchdog_s = _watchdog_s(env)

    @property
    def is_on(self) -> bool:
        """Whether somebody listens."""
        return self._address is not None

    def ready(self, status: str) -> None:
        """It serves, after a start or a reload."""
        self._send("READY=1", f"STATUS={_line(status)}")

    def status(self, status: str) -> None:
        """What it does, in a line."""
        self._send(f"STATUS={_line(status)}")

    def alive(self, status: str) -> None:
        """It does its work; without this word systemd starts it anew."""
        self._send("WATCHDOG=1", f"STATUS={_line(status)}")

    def reloading(self) -> None:
        """It reads its settings anew; systemd waits for `ready`."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """It ends."""
        self._send("STOPPING=1")

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.setblocking(False)
                out.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
        except OSError:  # systemd went away, or its queue is full: the next word comes soon
            return


def _watchdog_s(env: Mapping[str, str]) -> float | None:
    """Return within which time systemd wants a word; None: it wants none, or from another process."""
    usec, pid = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID", "")
    if not usec.isdigit() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 1e6


def _line(text: str) -> str:
    return " ".join(text.split())[:MAX_STATUS]
