"""Connections, shared: one for each login, eight channels on each, then another.

sshd allows ten sessions a connection by default (MaxSessions); two are left to others.
"""

from __future__ import annotations

import contextlib
import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import paramiko

from orchestrator.connection.ssh import SshConnection
from orchestrator.errors import BlindError, HostDenied

if TYPE_CHECKING:
    from orchestrator.connection.route import Login

MAX_CHANNELS = 8
MAX_CONNECTIONS = 4


class Lease:
    """One channel, and the duty to give it back."""

    def __init__(self, channel: paramiko.Channel, connection: SshConnection, slot: _Slot) -> None:
        self.channel = channel
        self.connection = connection
        self._slot = slot
        self._lock = threading.Lock()
        self._is_held = True

    def release(self) -> None:
        """Close the channel and free its place; harmless to repeat."""
        with self._lock:
            was_held, self._is_held = self._is_held, False
        if was_held:
            self._slot.leave()
            # It fails if the connection is gone, and the channel with it.
            with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
                self.channel.close()


class _Slot:
    """A connection and how many of its channels are out."""

    def __init__(self, connection: SshConnection) -> None:
        self.connection = connection
        self.channels = 0
        self._lock = threading.Lock()

    def enter(self) -> bool:
        with self._lock:
            if self.channels >= MAX_CHANNELS:
                return False
            self.channels += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self.channels -= 1


@dataclass
class _Way:
    """The connections of one login. Its lock is held while one is opened: others would wait anyway."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    slots: list[_Slot] = field(default_factory=list)
    users: int = 0


class Connections:
    """Every shell of one process shares it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ways: dict[Login, _Way] = {}

    def join(self, login: Login) -> None:
        """Count one more shell."""
        with self._lock:
            self._ways.setdefault(login, _Way()).users += 1

    def part(self, login: Login) -> None:
        """Count one shell less; with the last one the connections close."""
        with self._lock:
            way = self._ways.get(login)
            if way is None:
                return
            way.users -= 1
            if way.users > 0:
                return
            del self._ways[login]
        for slot in way.slots:
            slot.connection.close()

    def lease(self, login: Login) -> Lease:
        """Return a channel, on an open connection if one has room.

        Raises:
            BlindError: No connection can be opened; see `SshConnection`.
        """
        with self._lock:
            way = self._ways.setdefault(login, _Way())
        with way.lock:
            for slot in way.slots:
                if not slot.connection.is_alive:
                    slot.connection.close()
            way.slots = [slot for slot in way.slots if slot.connection.is_alive]
            for slot in way.slots:
                if (lease := _try(slot)) is not None:
                    return lease
            if len(way.slots) >= MAX_CONNECTIONS:
                limit = MAX_CHANNELS * MAX_CONNECTIONS
                raise HostDenied(
                    f"{login.name}: {limit} channels are open already", hint="watch fewer runs at once"
                )
            fresh = _Slot(SshConnection(login))
            way.slots.append(fresh)
            fresh.enter()
            try:
                return Lease(fresh.connection.open_channel(), fresh.connection, fresh)
            except BlindError:
                fresh.leave()
                raise

    def drop(self, login: Login) -> None:
        """Close the connections of a login; the next channel opens a new one."""
        with self._lock:
            way = self._ways.get(login)
        for slot in way.slots if way else ():
            slot.connection.close()


def _try(slot: _Slot) -> Lease | None:
    """Return a channel of an open connection; None if it is full, or turns out to be dead."""
    if not slot.enter():
        return None
    try:
        return Lease(slot.connection.open_channel(), slot.connection, slot)
    except BlindError:
        slot.leave()
        if slot.channels == 0:
            slot.connection.close()
        return None


def backoff(
    failures: int, *, first_s: float = 1.0, limit_s: float = 30.0, rng: random.Random | None = None
) -> float:
    """Return how long to wait after that many failures in a row: doubled each time, a fifth of jitter."""
    wait_s = min(limit_s, first_s * 2.0 ** min(max(failures - 1, 0), 30))
    return wait_s * (rng or random).uniform(0.8, 1.2)
