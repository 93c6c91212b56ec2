"""The stream's thread against a source of our own: what it says when the world breaks."""

from __future__ import annotations

from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.clock import SystemClock
from orchestrator.errors import GuestRefused, HostUnreachable
from orchestrator.observe import ContainerSeen, ContainerStream, Cursor, Lost, Observation, Received
from tests.builders import NOW

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime


class ScriptedStream:
    is_ended = False

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self.sent: list[str] = []

    def send(self, kind: str, fields: Mapping[str, object]) -> None:
        self.sent.append(kind)

    def read(self, timeout_s: float) -> dict[str, Any] | None:
        if not self.messages:
            raise HostUnreachable("pve/200: connection lost")
        return self.messages.pop(0)

    def close(self) -> None:
        pass


class ScriptedSource:
    target_key = "pve/200"
    state_dir = "/s"

    def __init__(self, openings: list[Callable[[], ScriptedStream]], state: str | None = "running") -> None:
        self.openings = openings
        self.requests: list[Mapping[str, Any]] = []
        self.drops = 0
        self.state = state

    def open_watch(self, request: Mapping[str, Any]) -> ScriptedStream:
        self.requests.append(request)
        if len(self.openings) > 1:
            return self.openings.pop(0)()
        return self.openings[0]()

    def container_state(self) -> str | None:
        return self.state

    def drop(self) -> None:
        self.drops += 1


def refuse() -> ScriptedStream:
    raise HostUnreachable("pve: connection refused")


def collect(
    source: ScriptedSource, count: int, cursors: Callable[[], Mapping[str, Cursor]] = dict
) -> list[Observation]:
    out: Queue[Observation] = Queue()
    thread = ContainerStream(source, out, cursors, SystemClock())
    thread.start()
    try:
        return [out.get(timeout=60) for _ in range(count)]
    finally:
        thread.stop()
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_messages_come_through_then_the_cut_is_told_and_the_host_is_asked():
    source = ScriptedSource([lambda: ScriptedStream([{"type": "hello"}]), refuse], state="stopped")
    received, lost, seen = collect(source, 3)
    assert received == Received("pve/200", {"type": "hello"})
    assert isinstance(lost, Lost)
    assert "connection lost" in str(lost.error)
    assert seen == ContainerSeen("pve/200", "stopped")


def test_a_host_that_cannot_be_reached_is_tried_again_with_growing_patience():
    source = ScriptedSource([refuse])
    found = collect(source, 6)
    delays = [o.retry_in_s for o in found if isinstance(o, Lost)]
    assert delays == sorted(delays)
    assert source.drops >= 2


def test_a_reconnect_asks_from_where_the_last_byte_was_seen():
    source = ScriptedSource([lambda: ScriptedStream([{"type": "hello"}])])
    collect(source, 3, lambda: {"dflash": Cursor(2, 777, 33)})
    assert source.requests[0]["runs"] == {"dflash": {"attempt": 2, "log_offset": 777, "metrics_offset": 33}}


def test_a_container_that_is_not_ready_is_told_and_tried_again():
    def not_ready() -> ScriptedStream:
        raise GuestRefused("no tmux", reason="no_tmux")

    lost = collect(ScriptedSource([not_ready]), 1)[0]
    assert isinstance(lost, Lost)
    assert isinstance(lost.error, GuestRefused)


class TurnedClock:
    """Each reading of the stream takes half a second of it."""

    def __init__(self) -> None:
        self.ticks = 0.0

    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return self.ticks

    def sleep(self, seconds: float) -> None:
        self.ticks += seconds


class SlowStream(ScriptedStream):
    """Says what it is scripted to, None for half a second of silence, then nothing more."""

    def __init__(self, clock: TurnedClock, script: list[dict[str, Any] | None]) -> None:
        super().__init__([])
        self.clock = clock
        self.script = script

    def read(self, timeout_s: float) -> dict[str, Any] | None:
        self.clock.sleep(0.5)
        if not self.script:
            raise HostUnreachable("pve/200: connection lost")
        return self.script.pop(0)


def watched(script: list[dict[str, Any] | None], states: list[str]) -> list[Observation]:
    """What the stream's thread says until it loses the script's end."""
    clock = TurnedClock()
    source = ScriptedSource([lambda: SlowStream(clock, script), refuse])
    source.container_state = lambda: states.pop(0) if states else None  # type: ignore[method-assign]
    out: Queue[Observation] = Queue()
    thread = ContainerStream(source, out, dict, clock)
    thread.start()
    found: list[Observation] = []
    try:
        while not found or not isinstance(found[-1], Lost):
            found.append(out.get(timeout=60))
    finally:
        thread.stop()
        thread.join(timeout=60)
    return found


@pytest.mark.parametrize("frozen", ["frozen", "frozen:backup"])
def test_a_container_that_was_frozen_and_speaks_again_is_asked_about_anew(frozen):
    found = watched([None] * 16 + [{"type": "pong"}] * 6, [frozen, "running"])
    seen = [o.state for o in found if isinstance(o, ContainerSeen)]
    assert seen == [frozen, "running"], "or it would be taken for frozen until the next cut"


def test_a_container_that_stays_silent_is_asked_about_now_and_then_and_given_up():
    found = watched([None] * 80, ["frozen"] * 9)
    seen = [o for o in found if isinstance(o, ContainerSeen)]
    assert 2 <= len(seen) <= 3
    assert isinstance(found[-1], Lost)
    assert "silent for 25 s" in str(found[-1].error)


def test_a_container_that_runs_and_speaks_is_not_asked_about():
    found = watched([{"type": "pong"}, None] * 40, ["running"] * 9)
    assert not any(isinstance(o, ContainerSeen) for o in found)


def test_a_reader_that_stopped_reading_does_not_keep_the_thread_from_ending():
    source = ScriptedSource([lambda: ScriptedStream([{"type": "pong"}] * 100)])
    out: Queue[Observation] = Queue(maxsize=1)
    thread = ContainerStream(source, out, dict, SystemClock())
    thread.start()
    out.get(timeout=60)
    thread.stop()
    thread.join(timeout=60)
    assert not thread.is_alive()
