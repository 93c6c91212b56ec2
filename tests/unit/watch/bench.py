"""A watch on the bench: a real record, a clock that we turn, a container that does as the contract says."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from orchestrator.errors import GuestRefused
from orchestrator.launch import RunSpec, spec_document
from orchestrator.observe import ContainerSeen, Lost, Received
from orchestrator.playbook import parse
from orchestrator.watch.loop import Watched, Watcher
from tests.builders import NOW, attempt_message, heartbeat_json, run_message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from orchestrator.errors import OrchestratorError
    from orchestrator.mirror import Keeper
    from orchestrator.observe import Holder
    from orchestrator.playbook import Playbook
    from orchestrator.record import Record
    from orchestrator.watch.events import WatchEvent

TARGET = "pve/200"
PLAYBOOK = "extends: default\nbackoff: [0s]\njitter: 0\ngrace: 0s\nlimits: {train: 60s}\n"
HELLO = {"type": "hello", "now": NOW.timestamp(), "boot_id": "b", "pid1_start_ticks": 5}
NO_DRIVER = {"type": "gpu", "gpus": [], "source": "none", "problem": "no driver"}
PONG = {"type": "pong"}
SPEC = spec_document(RunSpec(run="dflash", config="tiny"), state_dir="/s", attempt=1, created_at="t")


@cache
def parsed(playbook: str) -> Playbook:
    return parse(playbook, "bench")


class FakeClock:
    def __init__(self) -> None:
        self.at = NOW
        self.jump = timedelta()  # of the wall clock alone

    def now(self) -> datetime:
        return self.at + self.jump

    def monotonic(self) -> float:
        return self.at.timestamp()

    def sleep(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


class ListSink:
    def __init__(self) -> None:
        self.events: list[WatchEvent] = []

    def emit(self, event: WatchEvent) -> None:
        self.events.append(event)

    def refresh(self) -> None:
        pass


class FakeGuest:
    """Answers `start` and `stop`, or raises what it is told to; may be held in mid-call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.answer: Callable[[str, Mapping[str, Any]], None] | None = None
        self.is_asked = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def call(self, verb: str, request: Mapping[str, Any], *, timeout_s: float) -> list[dict[str, Any]]:
        self.calls.append((verb, request))
        self.is_asked.set()
        assert self.goes_on.wait(60), "the test never let the call go on"
        if self.answer is not None:
            self.answer(verb, request)
        if verb == "stacks":
            return stacks_answer(request["attempt"])
        if verb == "stop":
            return [{"type": "stopped", "already": False, "terminated": [1], "killed": []}]
        return [{"type": "started", "attempt": request["attempt"], "trainer_pid": 77, "session": "s"}]

    def asked(self, verb: str) -> list[int]:
        """The attempts that were asked to start or stop."""
        key = "attempt" if verb == "start" else "only_attempt"
        return [int(request[key]) for name, request in self.calls if name == verb]


class FakeSite:
    target_key = TARGET
    ct: int | None = 200
    host_key = "pve"
    state_dir = "/s"

    def __init__(self) -> None:
        self.guest = FakeGuest()
        self.state: str | None = "running"
        self.is_closed = False
        self.looked_up: list[tuple[int, ...]] = []
        self.holders: tuple[Holder, ...] = ()

    def client(self) -> Any:
        return self.guest

    def gpu_holders(self, pids: Sequence[int]) -> tuple[Holder, ...]:
        self.looked_up.append(tuple(pids))
        return self.holders

    def container_state(self) -> str | None:
        return self.state

    def open_watch(self, request: Mapping[str, object]) -> Any:
        raise NotImplementedError(request)

    def drop(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


class Bench:
    """One watcher over one container; the test is the stream."""

    def __init__(
        self,
        record: Record,
        *,
        runs: tuple[str, ...] = ("dflash",),
        playbook: str = PLAYBOOK,
        acting: bool = True,
        remark: str = "",
        mirrors: Callable[[Bench], Keeper] | None = None,
    ) -> None:
        self.record = record
        self.clock = FakeClock()
        self.sink = ListSink()
        self.site = FakeSite()
        self.guest = self.site.guest
        book = parsed(playbook)
        self.rows = [record.save_run(name, {"ct": 200}, TARGET, SPEC, NOW) for name in runs]
        mirror = mirrors(self) if mirrors is not None else None
        watched = [Watched(row, self.site, book, remark=remark) for row in self.rows]
        self.watcher = Watcher(watched, record, self.sink, self.clock, acting=acting, mirror=mirror)
        self.run = self.watcher.runs[0]

    # -- the stream

    def send(self, *messages: Mapping[str, Any]) -> None:
        for message in messages:
            self.watcher.inbox.put(Received(TARGET, dict(message)))

    def lose(self, error: OrchestratorError) -> None:
        self.watcher.inbox.put(Lost(TARGET, error, 1.0))

    def see_container(self, state: str | None) -> None:
        self.watcher.inbox.put(ContainerSeen(TARGET, state))

    def turn(self, seconds: float = 0.0, *, pong: bool = True) -> None:
        """Let time pass, the guest answer a ping, and the watch have a turn; wait for the act it begins."""
        while seconds > 0:
            part = min(seconds, 10.0)
            seconds -= part
            self.clock.sleep(part)
            self.turn_once(pong=pong)
        for _ in range(3):  # the turn, the end of the act it began, and what follows from that
            self.turn_once(pong=pong)

    def turn_once(self, *, pong: bool = True) -> None:
        if pong:
            self.send(PONG)
        elif self.watcher.inbox.empty():
            self.see_container(self.run.tracker.container)
        self.watcher.turn()
        if self.guest.goes_on.is_set():
            self.watcher.acts.join(60)

    # -- what happens to the run

    def live(self, attempt: int = 1, step: int = 40, **beat: Any) -> None:
        self.send(
            HELLO, run_message(attempt, spec=self.spec(attempt)), NO_DRIVER,
            attempt_message("heartbeat", heartbeat_json(step=step, **beat), attempt),
        )  # fmt: skip
        self.turn()

    def spec(self, attempt: int) -> dict[str, Any]:
        return {
            **SPEC,
            "attempt": attempt,
            "by": "watch" if attempt > 1 else "user",
            "rung": None,
            "changes": {},
        }

    def die(self, attempt: int = 1, *, code: int = 1, **run: Any) -> None:
        """The exit record, then that nothing lives: the order of the wire."""
        self.send(
            attempt_message("exit", exit_json(code), attempt),
            run_message(attempt, alive=False, spec=self.spec(attempt), **run),
        )
        self.turn()

    # -- what came of it

    def story(self) -> list[str]:
        return [f"{event.kind}: {event.text}" for event in self.sink.events]

    def told(self, kind: str) -> list[str]:
        return [event.text for event in self.sink.events if event.kind == kind]

    def actions(self) -> list[tuple[str, str]]:
        """(kind, text) of the record's acts and their outcomes."""
        return [(e.kind, e.text) for e in self.record.events() if e.kind in ("action", "outcome")]


def stacks_answer(attempt: int) -> list[dict[str, Any]]:
    text = 'Current thread 0x7f (most recent call first):\n  File "/srv/trainer/loop.py", line 9 in wait\n'
    stack = {
        "type": "stack", "rank": 0, "pid": 7, "name": "python3", "state": "S", "wchan": "futex_do_wait",
        "how": "faulthandler", "text": text, "file": "attempts/1/stacks/t/rank-0.txt",
    }  # fmt: skip
    path, files = f"attempts/{attempt}/stacks/t", ["rank-0.txt"]
    return [stack, {"type": "stacks", "attempt": attempt, "path": path, "files": files, "problems": []}]


def exit_json(code: int | None = 1, signal: int | None = None) -> dict[str, Any]:
    return {
        "schema": 1, "attempt": 1, "code": code, "signal": signal, "at": "2026-11-29T12:00:00.000000Z",
        "duration_s": 60.0, "leftover": [], "error": None,
    }  # fmt: skip


def refused(reason: str) -> Callable[[str, Mapping[str, Any]], None]:
    def answer(verb: str, request: Mapping[str, Any]) -> None:
        raise GuestRefused(f"no: {reason}", reason=reason)

    return answer


def raising(error: Exception) -> Callable[[str, Mapping[str, Any]], None]:
    def answer(verb: str, request: Mapping[str, Any]) -> None:
        raise error

    return answer
