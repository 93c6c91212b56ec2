"""One ssh connection, kept: a silent host is asked, a dead link is noticed and dropped."""

from __future__ import annotations

import threading

import paramiko

from orchestrator.connection.route import CHANNEL_TIMEOUT_S, Login, Route
from orchestrator.connection.translate import translating
from orchestrator.errors import HostUnreachable


class SshConnection:
    """An open connection and its keeper. Channels of it are used by several threads."""

    def __init__(self, login: Login) -> None:
        """Connect and log in.

        Raises:
            HostUnreachable: Refused, no route, no answer in time.
            HostDenied: No key was taken.
            HostKeyRefused: The host's key is unknown or has changed.
            ConfigError: The ssh config is not readable.
        """
        self.login = login
        self.lost_because: str | None = None
        self._closed = threading.Event()
        with translating(login.name):
            self._route = Route(login)
            self._transport = self._route.open()
        threading.Thread(target=self._keep, daemon=True, name=f"keep {login.name}").start()

    @property
    def is_alive(self) -> bool:
        """The connection is open as far as we know."""
        return self._transport.is_active() and not self._closed.is_set()

    @property
    def silence_s(self) -> float:
        """For how long nothing came."""
        return self._route.silence_s

    def open_channel(self) -> paramiko.Channel:
        """Return a new session channel.

        Raises:
            BlindError: The connection is lost, or sshd refuses one more channel.
        """
        with translating(self.login.name):
            channel: paramiko.Channel = self._transport.open_session(timeout=CHANNEL_TIMEOUT_S)
        return channel

    def lost(self) -> HostUnreachable:
        """Return the error for a channel that ended because the connection did."""
        cause = self.lost_because or "the connection was lost"
        return HostUnreachable(f"{self.login.name}: {cause}", hint="the state of what ran there is unknown")

    def close(self) -> None:
        """Close it with all its channels; harmless to repeat."""
        self._closed.set()
        self._route.shut()

    def _keep(self) -> None:
        """Ask a silent host for an answer; the request waits without end, so a timer watches it."""
        options = self.login.options
        while not self._closed.wait(min(1.0, options.keepalive_s / 4)) and self._transport.is_active():
            if self.silence_s < options.keepalive_s:
                continue
            timer = threading.Timer(options.answer_s, self._drop)
            timer.daemon = True
            timer.start()
            try:
                self._transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, OSError, EOFError):
                pass  # it ended; whoever uses it is told by its channel
            finally:
                timer.cancel()

    def _drop(self) -> None:
        if self.silence_s >= self.login.options.answer_s:
            self.lost_because = f"no sign of life for {self.silence_s:.0f} s, the connection was dropped"
            self._route.shut()
