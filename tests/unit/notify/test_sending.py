"""Messages that really go: to an HTTP receiver and an SMTP sink here, and what a bad one does to a watch."""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from aiosmtpd.controller import Controller

from orchestrator.errors import HostUnreachable
from orchestrator.notify import NotifySink
from orchestrator.notify.deadman import ping, saw_all
from orchestrator.notify.memory import Memory
from orchestrator.notify.message import Key, Kind
from orchestrator.notify.sender import Report, Worker, join
from orchestrator.notify.settings import Address, Settings
from orchestrator.notify.targets import Target, build
from orchestrator.record import Record
from orchestrator.types.failure import RunState
from orchestrator.watch.events import WatchEvent
from tests.builders import NOW
from tests.unit.watch.bench import Bench, FakeClock, ListSink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT_S = 60.0
SECRET = "T0pSecretWord"


class Receiver:
    """An HTTP server that keeps what is posted; `status` is its answer, and it waits for `goes_on`."""

    def __init__(self) -> None:
        self.status = 200
        self.got: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self.goes_on = threading.Event()
        self.goes_on.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                receiver.goes_on.wait(WAIT_S)
                receiver.got.put((self.path, body))
                self.send_response(receiver.status)
                self.end_headers()

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.got.get(timeout=WAIT_S)[1])
        return body


class MailSink(Controller):  # type: ignore[misc]
    """An SMTP server on a port of the system's choice."""

    def _trigger_server(self) -> None:
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.goes_on.set()
    made.server.shutdown()
    made.server.server_close()


def targets(*urls: str) -> tuple[Target, ...]:
    return build([Address(url, f"notify.yaml:{n}") for n, url in enumerate(urls, 1)])


def hook(receiver: Receiver) -> Target:
    return targets(f"json://127.0.0.1:{receiver.port}/{SECRET}")[0]


def decided(attempt: int = 1, text: str = "call: Somebody must look.") -> WatchEvent:
    return WatchEvent(
        kind="decision", at=NOW, run="dflash", target="pve/200", attempt=attempt, text=text,
        detail={"kind": "call"},
    )  # fmt: skip


class Watching:
    """A sink over a list, with a clock that we turn."""

    def __init__(self, folder: Path, *targets: Target, close_s: float = WAIT_S, **settings: Any) -> None:
        self.view = ListSink()
        self.clock = FakeClock()
        begun = {("pve/200", "dflash"): "2026-11-30T00:00:00Z"}
        self.memory = Memory(folder / "record.told", begun)
        self.sink = NotifySink(
            self.view, Settings(**settings), targets, self.clock, self.memory, close_s=close_s
        )

    def told(self) -> list[str]:
        return [event.text for event in self.view.events if event.kind == "notify"]

    def refresh_until(self, number: int) -> list[str]:
        """Refresh, as a watch does, until so many remarks about the sending were shown."""
        deadline = time.monotonic() + WAIT_S
        while len(self.told()) < number and time.monotonic() < deadline:
            self.clock.sleep(1)
            self.sink.refresh()
            time.sleep(0.01)
        return self.told()


def test_a_message_arrives_over_http_as_it_was_written(tmp_path, receiver):
    watching = Watching(tmp_path, hook(receiver))
    with watching.sink as sink:
        sink.emit(decided())
    body = receiver.body()
    assert body["title"] == "dflash (attempt 1) needs a person"
    assert "Somebody must look." in body["message"]
    assert body["type"] == "failure"
    assert watching.view.events[0].kind == "decision", "the view gets every event, and gets it first"


def test_a_message_arrives_by_mail(tmp_path):
    class Box:
        def __init__(self) -> None:
            self.got: SimpleQueue[str] = SimpleQueue()

        async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:  # noqa: N802
            self.got.put(envelope.content.decode("utf-8", "replace"))
            return "250 OK"

    box = Box()
    controller = MailSink(box, hostname="127.0.0.1", port=0)
    controller.start()
    try:
        url = f"mailto://127.0.0.1:{controller.port}?from=a@example.com&to=b@example.com&mode=insecure&format=text"
        watching = Watching(tmp_path, *targets(url))
        with watching.sink as sink:
            sink.emit(decided())
        mail = box.got.get(timeout=WAIT_S)
    finally:
        controller.stop()
    assert watching.told()[1:] == []
    assert "Subject: dflash (attempt 1) needs a person" in mail
    assert "Somebody must look." in mail


def test_a_target_that_refuses_is_told_once_and_told_again_when_it_takes_messages(tmp_path, receiver):
    receiver.status = 500
    target = hook(receiver)
    watching = Watching(tmp_path, target)
    worker = watching.sink._workers[0]
    worker._retry_after_s = (0.0,)
    with watching.sink as sink:
        sink.emit(decided(1))
        (first,) = watching.refresh_until(1)
        assert first.startswith("JSON (notify.yaml:1) could not be told: ")
        assert "500" in first
        assert SECRET not in first
        sink.emit(decided(2))
        for _ in range(4):
            receiver.got.get(timeout=WAIT_S)  # both, and once more each
        receiver.status = 200
        sink.emit(decided(3))
        told = watching.refresh_until(2)
    assert told == [first, "JSON (notify.yaml:1) takes messages again; 2 messages did not go"]
    assert watching.view.events[-1].level.value == "info"


def test_nobody_there_is_a_reason_without_an_address(receiver):
    port = receiver.port
    receiver.server.server_close()
    answer = targets(f"json://127.0.0.1:{port}/{SECRET}")[0].send(_message())
    assert answer is not None
    assert "onnection" in answer
    assert SECRET not in answer


def _message() -> Any:
    from orchestrator.notify.messages import Translator

    return Translator().take(decided())[0]


def test_a_target_that_does_not_answer_holds_up_neither_the_watch_nor_the_other_targets(tmp_path, receiver):
    slow, quick = Receiver(), receiver
    slow.goes_on.clear()
    try:
        watching = Watching(tmp_path, hook(slow), hook(quick), close_s=0.2)
        begin = time.monotonic()
        with watching.sink as sink:
            for attempt in range(1, 4):
                sink.emit(decided(attempt))
                sink.refresh()
            assert time.monotonic() - begin < WAIT_S
            for _ in range(3):
                quick.body()
        assert time.monotonic() - begin < WAIT_S
        assert "did not take 3 messages before the watch ended" in watching.told()[-1]
    finally:
        slow.goes_on.set()
        slow.server.shutdown()
        slow.server.server_close()


def test_a_queue_that_is_full_takes_no_more_and_says_so():
    goes_on, reports = threading.Event(), SimpleQueue[Report[int]]()
    worker: Worker[int] = Worker(
        "x", lambda _: None if goes_on.wait(WAIT_S) else "late", reports, max_waiting=2
    )
    worker.start()
    assert worker.post(0)
    while worker._waiting.qsize():
        time.sleep(0.01)
    assert [worker.post(number) for number in range(1, 5)] == [True, True, False, False]
    goes_on.set()
    assert join([worker], WAIT_S) == []
    problems = [reports.get_nowait().problem for _ in range(reports.qsize())]
    assert problems.count(None) == 3
    assert sum("full" in (problem or "") for problem in problems) == 2


def test_a_fault_of_a_plugin_is_its_targets_and_does_not_end_the_thread():
    def fail(number: int) -> str | None:
        if number == 1:
            raise RuntimeError(f"https://example.com/{SECRET}")
        return None

    reports = SimpleQueue[Report[int]]()
    worker = Worker("x", fail, reports, retry_after_s=())
    worker.start()
    worker.post(1)
    worker.post(2)
    join([worker], WAIT_S)
    assert [reports.get_nowait().problem for _ in range(2)] == ["a fault: RuntimeError", None]


def test_a_watch_acts_as_ever_while_its_target_is_silent(tmp_path, record, receiver):
    receiver.goes_on.clear()
    bench = Bench(record)
    watching = Watching(tmp_path, hook(receiver), close_s=0.0)
    watching.sink._view = bench.sink
    bench.run.teller._sink = watching.sink
    with watching.sink:
        bench.live()
        bench.die()
        for _ in range(3):
            bench.turn(2)
            watching.sink.refresh()
    assert bench.guest.asked("start") == [2]
    assert receiver.got.empty(), "it was still under way"
    receiver.goes_on.set()
    assert "died" in receiver.body()["title"]


# -- the memory


def test_a_watch_that_is_started_again_does_not_tell_it_again(tmp_path, receiver):
    for _ in range(2):
        with Watching(tmp_path, hook(receiver)).sink as sink:
            sink.emit(decided())
    assert receiver.got.qsize() == 1


def test_what_did_not_go_is_told_by_the_next_watch(tmp_path, receiver):
    receiver.status = 500
    with Watching(tmp_path, hook(receiver)).sink as sink:
        sink.emit(decided())
    receiver.got.get_nowait()
    receiver.status = 200
    with Watching(tmp_path, hook(receiver)).sink as sink:
        sink.emit(decided())
    assert receiver.got.qsize() == 1


def test_a_run_of_the_same_name_that_was_made_later_is_another_run(tmp_path):
    key = Key("pve/200", "dflash", 1, Kind.DEATH)
    Memory(tmp_path / "told", {("pve/200", "dflash"): "1"}).add([key])
    assert Memory(tmp_path / "told", {("pve/200", "dflash"): "1"}).told == (key,)
    assert Memory(tmp_path / "told", {("pve/200", "dflash"): "2"}).told == ()


def test_a_memory_that_is_damaged_or_cannot_be_written_stops_nothing(tmp_path, receiver):
    path = tmp_path / "record.told"
    path.write_bytes(b'["cut\n\xff\n{}\n[1]\n')
    assert Memory(path, {}).told == ()
    path.unlink()
    path.mkdir()
    watching = Watching(tmp_path, hook(receiver))
    with watching.sink as sink:
        sink.emit(decided())
    receiver.body()
    assert any("the memory of what was told" in text for text in watching.told())


# -- the dead man


@pytest.fixture
def record(tmp_path) -> Iterator[Record]:
    with Record.open(tmp_path / "record.sqlite3") as opened:
        yield opened


def test_it_pings_only_after_a_pass_that_saw_every_run(tmp_path, record, receiver):
    bench = Bench(record, runs=("dflash", "b32"))
    address = Address(f"http://127.0.0.1:{receiver.port}/{SECRET}", "notify.yaml:1")
    watching = Watching(tmp_path, deadman=address, deadman_every_s=60.0)
    watching.clock = watching.sink._clock = bench.clock
    watching.sink.attach(bench.watcher)
    with watching.sink as sink:
        sink.refresh()
        bench.live()
        bench.clock.sleep(1)
        sink.refresh()
        time.sleep(0.1)
        assert receiver.got.empty(), "b32 was never seen"
        bench.send({**_alive("b32")})
        bench.turn()
        for _ in range(5):
            bench.clock.sleep(1)
            sink.refresh()
        assert receiver.got.get(timeout=WAIT_S)[0] == f"/{SECRET}"
        assert receiver.got.empty(), "once a minute"
        bench.lose(HostUnreachable("pve: connection reset"))
        bench.turn(120, pong=False)
        sink.refresh()
        time.sleep(0.1)
        assert receiver.got.empty()


def _alive(run: str) -> dict[str, Any]:
    from tests.builders import run_message

    return {**run_message(), "run": run}


@pytest.mark.parametrize("state", ["stopped", "frozen:backup"])
def test_a_container_that_stands_still_hides_its_runs(record, state):
    bench = Bench(record)
    bench.live()
    assert saw_all(bench.watcher.runs, bench.clock.now())
    bench.lose(HostUnreachable("pve: connection reset"))
    bench.see_container(state)
    bench.turn(pong=False)
    assert not saw_all(bench.watcher.runs, bench.clock.now())


def test_a_look_that_is_old_is_none(record):
    bench = Bench(record)
    bench.live()
    for seconds in (31, -31):
        assert not saw_all(bench.watcher.runs, bench.clock.now() + timedelta(seconds=seconds))


def test_a_run_that_is_over_need_not_be_seen(record):
    bench = Bench(
        record, playbook="extends: default\nrules: {unknown: {act: call, why: Somebody must look.}}\n"
    )
    bench.live()
    bench.die()
    assert bench.run.ended is not None
    assert bench.run.diagnosis is not None
    assert bench.run.diagnosis.state is RunState.DEAD
    assert saw_all(bench.watcher.runs, bench.clock.now() + timedelta(hours=1))


def test_a_ping_that_fails_says_why_without_its_url(receiver):
    url = f"http://127.0.0.1:{receiver.port}/{SECRET}"
    assert ping(url) is None
    receiver.status = 404
    assert ping(url) == "HTTP 404"
    receiver.server.server_close()
    answer = ping(f"http://127.0.0.1:1/{SECRET}")
    assert answer == "Connection refused"
