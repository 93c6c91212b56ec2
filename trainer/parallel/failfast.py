"""A rank's death takes the job down at once, on every node, and is told as the first failure.

Each rank has a thread that looks, five times a second, at one key of the job's store, at the processes of its
own node and at the beats of the other nodes'. It never calls torch beyond the store, so it works while the
main thread is inside a collective that will not come back, and it ends the process from there. A node that
vanishes whole (power, network) is noticed by the store's loss where it held the store, else by its ranks'
beats.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from trainer.clock import utc_now
from trainer.parallel.death import (
    LAUNCHER,
    PEER_EXIT,
    Failure,
    Process,
    read_heartbeat,
    silent_failure,
    write_error,
)
from trainer.parallel.store import connect

if TYPE_CHECKING:
    from pathlib import Path

    from torch._C._distributed_c10d import Store

    from trainer.parallel.topology import Topology

LOOK_S = 0.2
EXIT_S = 10.0
ALARM_AFTER_S = 2
ECHO_S = 2.0
"""How long a broken connection waits for the death that broke it."""
RELAYED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@dataclass(frozen=True, slots=True)
class _Beat:
    value: bytes
    changed_at: float
    """By this process's monotonic clock: clocks of two nodes are never compared."""


class FailFast:
    """Watches the other ranks from `start` to `leave`. For a rank that is alone it does nothing."""

    def __init__(self, topology: Topology, attempt: Path | None = None, *, timeout_s: float = 300.0) -> None:
        """`timeout_s`: how long a rank of another node may be silent (parallel.timeout_s)."""
        self._topology = topology
        self._attempt = attempt
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._peers: dict[int, Process] = {}
        self._beats: dict[int, _Beat] = {}
        self._relayed: set[int] = set()
        self._done = threading.Event()
        self._wake_read = self._wake_write = -1
        self._store: Store | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; from the main thread, after its signal handlers are set and before the groups are made."""
        if self._topology.is_alone:
            return
        self._store = connect(self._topology, serve=True)
        self._own = Process.own()
        self._store.set(f"beat/{self._topology.rank}", "0")
        self._store.set(f"peer/{self._topology.rank}", json.dumps(asdict(self._own)))
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="failfast", daemon=True)
        self._thread.start()

    def announce(self, message: str, *, code: int = 1, communication: bool = False) -> bool:
        """Tell all ranks that this one fails. Returns, with true, only if it is the first and has the word.

        `communication`: the error may be the echo of another's death (`death.is_communication`); that one
        is then given two seconds to be found. A rank that is not the first ends here, with PEER_EXIT and
        without a traceback: it would only hide the cause. The first has ten seconds to write its words and
        exit with `code`, then it is ended even if it hangs in a backend.
        """
        if self._store is None:
            return True
        own = Failure(
            rank=self._topology.rank, role=self._topology.role, message=message[:2000], at=utc_now()
        )
        self._done.set()  # from here on the main thread alone ends this process
        deadline = time.monotonic() + (ECHO_S if communication else 0.0)
        try:
            while (first := self._look(ECHO_S - 4 * LOOK_S)) is None and time.monotonic() < deadline:
                select.select([], [], [], LOOK_S / 4)
            first = first or self._record(own)
        except RuntimeError:  # the store is gone with whoever held it
            first = _lost_store()
        if first.rank != own.rank:
            self._end(first)
        last_resort = threading.Timer(EXIT_S, os._exit, (code,))
        last_resort.daemon = True
        last_resort.start()
        # And the kernel's: an interpreter that hangs in its own shutdown runs no thread of ours any more.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(EXIT_S) + ALARM_AFTER_S)
        return True

    def leave(self) -> None:
        """Say that this rank ends as it should, done or interrupted; the others go on."""
        if self._store is None:
            return
        self._done.set()
        try:
            with self._lock:
                self._store.set(f"left/{self._topology.rank}", "1")
                if self._topology.is_leader and LAUNCHER not in os.environ:  # it may be who holds the store
                    ranks = range(self._topology.world_size)
                    self._store.wait([f"left/{rank}" for rank in ranks], timedelta(seconds=EXIT_S))
        except RuntimeError:
            pass  # the others have ended, and the store with them; or one takes long
        finally:
            signal.set_wakeup_fd(-1)

    def _watch(self) -> None:
        launcher = int(os.environ.get(LAUNCHER, "0"))
        while not self._done.is_set():
            signals = self._sleep()
            try:
                failure = self._look(self._timeout_s)
                if failure is None:
                    self._beat()
                    self._relay(signals)
            except RuntimeError:
                failure = _lost_store()
            if failure is None and launcher and os.getppid() != launcher:
                failure = silent_failure(-1, "launcher", f"process {launcher} is gone")
            if failure is not None and not self._done.is_set():
                self._end(failure)

    def _sleep(self) -> set[int]:
        """Wait for the next look, or less if a signal comes; return the signals that came."""
        ready, _, _ = select.select([self._wake_read], [], [], LOOK_S)
        return set(os.read(self._wake_read, 4096)) if ready else set()

    def _look(self, patience_s: float) -> Failure | None:
        """Return the first failure, noting a death that nobody told yet."""
        with self._lock:
            assert self._store is not None
            if self._store.check(["failure"]):
                return Failure.load(self._store.get("failure"))
            self._meet(self._store)
            gone = {
                rank: f"process {process.pid} is gone"
                for rank, process in self._peers.items()
                if process.is_gone()
            }
            gone.update(self._silent(self._store, patience_s))
            dead = [rank for rank in sorted(gone) if not self._store.check([f"left/{rank}"])]
        if not dead:
            return None
        return self._record(silent_failure(dead[0], self._topology.role_of(dead[0]), gone[dead[0]]))

    def _beat(self) -> None:
        """Show the other nodes that this process runs."""
        with self._lock:
            assert self._store is not None
            self._store.set(f"beat/{self._topology.rank}", str(time.monotonic()))

    def _silent(self, store: Store, patience_s: float) -> dict[int, str]:
        """Ranks of other nodes whose beat stands still, and for how long."""
        now = time.monotonic()
        found = {}
        for rank, last in self._beats.items():
            value = store.get(f"beat/{rank}")
            if value != last.value:
                self._beats[rank] = _Beat(value, now)
            elif now - last.changed_at > patience_s:
                found[rank] = f"not heard of for {now - last.changed_at:.1f} s"
        return found

    def _meet(self, store: Store) -> None:
        """Learn of the peers as they come: on this node their process, on another the beat."""
        known = {self._topology.rank, *self._peers, *self._beats}
        for rank in set(range(self._topology.world_size)) - known:
            if store.check([f"peer/{rank}"]):
                peer = Process(**json.loads(store.get(f"peer/{rank}")))
                if peer.space == self._own.space:
                    self._peers[rank] = peer
                else:
                    self._beats[rank] = _Beat(b"", time.monotonic())

    def _record(self, failure: Failure) -> Failure:
        """Make it the job's failure unless there is one; return the one that is."""
        with self._lock:
            assert self._store is not None
            first = Failure.load(self._store.compare_set("failure", "", failure.dump()))
        if first == failure and failure.silent and self._attempt and LAUNCHER not in os.environ:
            try:
                write_error(self._attempt / "error.json", failure, read_heartbeat(self._attempt))
            except OSError as error:  # a full disk must not keep the job alive
                sys.stderr.write(f"warning: {self._attempt / 'error.json'}: {error}\n")
        return first

    def _relay(self, signals: set[int]) -> None:
        """A stop asked of one rank is asked of all: targets on another node have no launcher in common."""
        with self._lock:
            assert self._store is not None
            for number in RELAYED:
                if number in self._relayed:
                    continue
                if number in signals:
                    self._store.set(f"signal/{int(number)}", "1")
                    self._relayed.add(number)
                elif self._store.check([f"signal/{int(number)}"]):
                    self._relayed.add(number)
                    if callable(signal.getsignal(number)):
                        os.kill(os.getpid(), number)

    def _end(self, failure: Failure) -> None:
        with suppress(OSError):  # a launcher that was killed reads no more
            sys.stdout.flush()
            sys.stderr.write(f"[rank{self._topology.rank}]: {failure.line()}\n")
            sys.stderr.flush()
        os._exit(PEER_EXIT)  # the main thread may never come back


def _lost_store() -> Failure:
    return silent_failure(0, "drafter", "the store that its node holds is gone")
