"""The thread that follows a host's kernel log, against a host of our own."""

from __future__ import annotations

import threading
from queue import Queue
from typing import TYPE_CHECKING

import pytest

from orchestrator.clock import SystemClock
from orchestrator.errors import GuestError, HostUnreachable
from orchestrator.observe import HostMute, HostReady, HostSaid, KernelStream, Observation
from orchestrator.observe import hoststream as module
from tests.builders import NOW
from tests.unit.near.test_hostways import TEXT, dmesg, entry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DENIED = "No journal files were opened due to insufficient permissions.\n"


class Script:
    """One command's output: lines, an error to raise, or its end; then silence."""

    def __init__(self, *items: bytes | Exception | None, stderr: str = "", code: int | None = None) -> None:
        self.items = list(items)
        self.stderr = stderr
        self.exit_code = code
        self.is_closed = threading.Event()

    def read_line(self, timeout_s: float) -> bytes | None:
        if not self.items:
            self.is_closed.wait(0.01)
            return None
        item = self.items.pop(0)
        if isinstance(item, Exception):
            raise item
        return item

    def stderr_tail(self) -> str:
        return self.stderr

    def close(self) -> None:
        self.is_closed.set()


class Host:
    host_key = "pve"
    becomes = False

    def __init__(self, *scripts: Script | Exception) -> None:
        self.scripts: Sequence[Script | Exception] = list(scripts)
        self.asked: list[tuple[bool, tuple[str, ...]]] = []

    def open_host(self, argv: tuple[str, ...], *, is_root: bool) -> Script:
        index = len(self.asked)
        self.asked.append((is_root, argv))
        script = self.scripts[min(index, len(self.scripts) - 1)]
        if isinstance(script, Exception):
            raise script
        return script


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(module, "BACKOFF_S", (0.01,))


def collect(
    host: Host, count: int, since: Callable[[], object] = lambda: NOW, *, with_ready: bool = False
) -> list[Observation]:
    out: Queue[Observation] = Queue()
    thread = KernelStream(host, out, since, SystemClock())  # type: ignore[arg-type]
    thread.start()
    try:
        found: list[Observation] = []
        while len(found) < count:
            each = out.get(timeout=60)
            found += [each] if with_ready or not isinstance(each, HostReady) else []
        return found
    finally:
        thread.stop()
        thread.join(timeout=60)
        assert not thread.is_alive()


def texts(found: list[Observation]) -> list[str]:
    return [each.event.line.text if isinstance(each, HostSaid) else str(each) for each in found]


def test_what_matters_comes_through_and_the_rest_stays_where_it_is():
    host = Host(Script(entry(1, "vmbr0: port 2 entered disabled state"), entry(2), entry(3)))
    assert texts(collect(host, 2)) == [TEXT, TEXT]


def test_a_cut_is_read_on_from_the_cursor_without_loss_or_doubling():
    host = Host(Script(entry(1), HostUnreachable("cut")), Script(entry(1), entry(2, TEXT + " again")))
    assert texts(collect(host, 2)) == [TEXT, TEXT + " again"]
    assert "--after-cursor=s=1;i=1" in host.asked[1][1]


def test_it_is_ready_once_the_backlog_has_come_and_not_during_a_cut():
    host = Host(
        Script(entry(1), *[None] * module.READY_AFTER, HostUnreachable("cut")), Script(entry(2), None)
    )
    found = collect(host, 5, with_ready=True)
    assert [each.is_ready if isinstance(each, HostReady) else "line" for each in found] == [
        "line",
        True,
        False,
        "line",
        True,
    ]


def test_a_host_that_cannot_be_reached_is_tried_again_and_nothing_is_said():
    host = Host(HostUnreachable("refused"), HostUnreachable("refused"), Script(entry(1)))
    assert texts(collect(host, 1)) == [TEXT]


def test_a_journal_that_ended_by_itself_is_followed_again():
    host = Host(Script(entry(1), b"", code=1), Script(entry(2)))
    assert len(collect(host, 2)) == 2


def test_an_old_journalctl_is_asked_without_its_filter():
    host = Host(Script(b"", stderr="journalctl: unrecognized option '--grep'\n", code=1), Script(entry(1)))
    assert texts(collect(host, 1)) == [TEXT]
    assert ["--grep" in argv for _, argv in host.asked] == [True, False]


@pytest.mark.parametrize(
    "absent",
    [
        Script(stderr="No journal files were found.\n"),
        Script(b"", b"", code=127),
        GuestError("local: journalctl: No such file or directory"),
    ],
)
def test_without_a_journal_the_kernels_own_buffer_is_followed(absent):
    host = Host(absent, Script(dmesg(1.0)))
    assert texts(collect(host, 1)) == [TEXT]
    assert host.asked[-1][1][0] == "dmesg"


def test_a_host_that_does_not_let_us_read_it_is_said_once():
    denied = "dmesg: read kernel buffer failed: Operation not permitted\n"
    host = Host(Script(stderr=DENIED), Script(stderr=denied))
    (mute,) = collect(host, 1)
    assert mute == HostMute("pve", "journalctl: not allowed; dmesg: not allowed")


def test_a_user_who_is_not_root_is_tried_as_root_first_and_then_as_himself():
    host = Host(Script(b"", stderr="sudo: a password is required\n", code=1), Script(entry(1)))
    host.becomes = True
    assert texts(collect(host, 1)) == [TEXT]
    assert [is_root for is_root, _ in host.asked] == [True, False]


def test_it_waits_to_be_told_since_when(monkeypatch):
    answers = [None, None, NOW]
    host = Host(Script(entry(1)))
    collect(host, 1, lambda: answers.pop(0) if answers else NOW)
    assert f"--since=@{NOW.timestamp():.6f}" in host.asked[0][1]


def test_a_full_queue_holds_it_back_and_a_stop_still_ends_it():
    out: Queue[Observation] = Queue(maxsize=1)
    thread = KernelStream(Host(Script(*(entry(n) for n in range(100)))), out, lambda: NOW, SystemClock())
    thread.start()
    out.get(timeout=60)
    thread.stop()
    thread.join(timeout=60)
    assert not thread.is_alive()
