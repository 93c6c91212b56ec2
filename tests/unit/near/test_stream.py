"""The stream's thread against a source of our own: what it says when the world breaks."""

from __future__ import annotations

from queue import Queue
from typing import TYPE_CHECKING, Any

from orchestrator.clock import SystemClock
from orchestrator.errors import GuestRefused, HostUnreachable
from orchestrator.observe import ContainerSeen, ContainerStream, Cursor, Lost, Observation, Received

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
        return [out.get(timeout=5) for _ in range(count)]
    finally:
        thread.stop()
        thread.join(timeout=5)
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
