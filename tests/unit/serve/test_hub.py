"""What readers of the stream get: each card made once, a place instead of a queue, at most twice a second."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.fleet import Board
from orchestrator.fleet.health import Health
from orchestrator.serve import hub as hub_module
from orchestrator.serve import models, stream
from orchestrator.serve.cards import LOOK_TOLD_EVERY_S, is_news, run_body
from orchestrator.serve.hub import EVERY_S, MAX_REMOVED, Hub
from orchestrator.types.failure import RunState
from tests.builders import NOW
from tests.unit.serve.stage import HOSTILE, LEAKED, full_card, make_card, told
from tests.unit.watch.bench import FakeClock


class Bench:
    """A board that a test writes, and the hub that reads it, by one clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.board = Board(self.clock)
        self.cards: list[Any] = []
        self.health = Health()
        self.board.draw(lambda: tuple(self.cards))
        self.hub = Hub(self.board, self.clock, lambda: self.health, acting=True)

    def show(self, *cards: Any) -> None:
        self.cards = list(cards)
        self.board.publish()
        self.refresh()

    def refresh(self) -> None:
        self.clock.sleep(EVERY_S)
        self.hub.refresh()

    def changes(self, version: int) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.hub.changes(version))
        models.Changes.model_validate(body, strict=True)
        return body

    def whole(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.hub.whole())
        models.Fleet.model_validate(body, strict=True)
        return body


@pytest.fixture
def bench() -> Bench:
    return Bench()


def ids(body: dict[str, Any]) -> list[int]:
    return [run["id"] for run in body["runs"]]


def test_the_whole_fleet_has_every_field_masked_and_finite(bench):
    bench.board.emit(told(f"it died {LEAKED} {HOSTILE}"))
    bench.show(
        full_card(1, loss=math.nan, tokens_per_s=math.inf),
        make_card(2, name="\ud800x", summary="\x1b]0;t\x07"),
    )
    body = bench.whole()
    assert ids(body) == [1, 2]
    first = body["runs"][0]
    assert (first["loss"], first["tokens_per_s"], first["step"]) == (None, None, 40)
    assert first["next_act"]["changes"][0] == {"key": "batch", "value": "8"}
    assert first["failure_title"] == "the GPU ran out of memory"
    assert first["gpus"][0]["pids"] == [7, 8]
    text = json.dumps(body)
    assert LEAKED not in text
    assert "\\u001b" not in text
    assert "<script>" in text, "markup is data, and stays as it was"
    assert body["told"][0]["run_id"] == 1
    assert body["told"][0]["detail"]["confidence"] is None


def test_only_what_changed_is_told(bench):
    bench.show(make_card(1), make_card(2), make_card(3))
    before = bench.hub.place
    bench.show(make_card(1), make_card(2, step=5), make_card(3))
    body = bench.changes(before.version)
    assert ids(body) == [2]
    assert body["removed"] == []
    assert body["version"] > before.version


def test_a_reader_that_was_slow_gets_all_since_its_place_in_one_piece_and_each_run_once(bench):
    bench.show(make_card(1), make_card(2), make_card(3))
    before = bench.hub.place
    for step in range(1, 50):
        bench.show(make_card(1, step=step), make_card(2), make_card(3))
    bench.show(make_card(1, step=50), make_card(3))
    body = bench.changes(before.version)
    assert [(run["id"], run["step"]) for run in body["runs"]] == [(1, 50)]
    assert body["removed"] == [2]


def test_a_run_that_came_back_is_removed_no_more(bench):
    bench.show(make_card(1), make_card(2))
    before = bench.hub.place
    bench.show(make_card(1))
    bench.show(make_card(1), make_card(2, step=1))
    body = bench.changes(before.version)
    assert (ids(body), body["removed"]) == ([2], [])


def test_each_card_is_made_into_json_once_whoever_reads(bench, monkeypatch):
    made = []

    def counted(card):
        made.append(card.id)
        return run_body(card)

    monkeypatch.setattr(hub_module, "run_body", counted)
    bench.show(*(make_card(n) for n in range(1, 101)))
    before = bench.hub.place
    for _ in range(50):
        bench.hub.whole()
    bench.show(make_card(1, remark="x"), *(make_card(n) for n in range(2, 101)))
    pieces = {id(bench.hub.changes(before.version)) for _ in range(50)}
    assert made == [*range(1, 101), 1]
    assert len(pieces) == 1, "readers at one place share one piece"


def test_that_a_run_was_looked_at_again_is_told_seldom_but_before_it_counts_as_stale():
    card = make_card()
    later = lambda seconds: replace(card, looked_at=NOW + timedelta(seconds=seconds))  # noqa: E731
    assert not is_news(card, card)
    assert not is_news(card, later(LOOK_TOLD_EVERY_S - 0.1))
    assert is_news(card, later(LOOK_TOLD_EVERY_S))
    assert is_news(card, later(-1.0)), "a clock was set back"
    assert is_news(card, replace(later(1.0), step=1))
    assert is_news(replace(card, looked_at=None), card)


def test_of_many_runs_progress_is_told_every_2_seconds_and_all_else_at_once(bench):
    def many(**changes):
        return [make_card(n, **changes) for n in range(1, 201)]

    bench.show(*many(step=1))
    place = bench.hub.place
    bench.show(*many(step=2, loss=2.0, summary="training, step 2"))
    assert bench.hub.place == place
    bench.show(make_card(1, step=3, state=RunState.DEAD), *many(step=3)[1:])
    body = bench.changes(place.version)
    assert [(run["id"], run["state"], run["step"]) for run in body["runs"]] == [(1, "dead", 3)]
    bench.clock.sleep(2.0)
    bench.show(make_card(1, step=3, state=RunState.DEAD), *many(step=3)[1:])
    assert [run["step"] for run in bench.changes(place.version)["runs"]] == [3] * 200


def test_of_a_few_runs_every_step_is_told(bench):
    cards = [make_card(n) for n in range(1, 50)]
    bench.show(*cards)
    place = bench.hub.place
    bench.show(*(replace(card, step=1) for card in cards))
    assert len(bench.changes(place.version)["runs"]) == 49


def test_health_that_changes_with_time_alone_is_told(bench):
    bench.show(make_card(1))
    before = bench.hub.place
    bench.health = Health(("the watch ended: x",))
    bench.refresh()
    body = bench.changes(before.version)
    assert body["health"] == {"is_well": False, "why": ["the watch ended: x"]}
    assert body["runs"] == []


def test_it_looks_at_most_twice_a_second_however_many_come(bench, monkeypatch):
    bench.show(make_card(1))
    version = bench.hub.place.version
    bench.cards = [make_card(1, step=1)]
    bench.board.publish()
    for _ in range(100):
        bench.hub.refresh()
    assert bench.hub.place.version == version
    bench.refresh()
    assert bench.hub.place.version == version + 1


def test_places_are_known_again_and_those_of_another_process_are_not(bench):
    bench.show(make_card(1))
    place = bench.hub.place
    assert bench.hub.place_of(bench.hub.event_id(place)) == place
    other = Bench()
    other.show(make_card(1))
    assert bench.hub.place_of(other.hub.event_id(other.hub.place)) is None
    boot = bench.hub.event_id(place).partition(".")[0]
    for word in (
        None,
        "",
        "x",
        f"{boot}.1",
        f"{boot}.99999.0",
        f"{boot}.1.99999",
        f"{boot}.-1.0",
        f"{boot}.²." + "9" * 400,
    ):
        assert bench.hub.place_of(word) is None, word


def test_removals_that_were_forgotten_make_a_reader_begin_anew(bench):
    bench.show(*(make_card(n) for n in range(1, MAX_REMOVED + 12)))
    old = bench.hub.event_id(bench.hub.place)
    bench.show()
    assert bench.hub.place_of(old) is None
    assert len(bench.hub._removed) == MAX_REMOVED
    assert bench.hub.place_of(bench.hub.event_id(bench.hub.place)) is not None


# -- the stream


def parsed(chunk: bytes) -> list[tuple[str, str, dict[str, Any]]]:
    """Read events as a browser does: kind, id, data."""
    found = []
    for block in chunk.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
        if "data" in fields:
            found.append((fields["event"], fields["id"], json.loads(fields["data"])))
    return found


async def some(reader: Any, count: int) -> list[tuple[str, str, dict[str, Any]]]:
    found: list[tuple[str, str, dict[str, Any]]] = []
    while len(found) < count:
        found += parsed(await asyncio.wait_for(anext(reader), 5))
    return found


def test_a_stream_begins_with_the_fleet_and_goes_on_with_what_is_new(bench):
    async def story() -> None:
        bench.show(make_card(1), make_card(2))
        reader = stream.events(bench.hub, None)
        ((kind, _, body),) = await some(reader, 1)
        assert (kind, ids(body)) == ("fleet", [1, 2])
        waiting = asyncio.ensure_future(some(reader, 2))
        await asyncio.sleep(0)
        bench.board.emit(told("it died"))
        bench.show(make_card(1, state=RunState.DEAD), make_card(2))
        (first, second) = await waiting
        assert (first[0], ids(first[2]), first[2]["runs"][0]["state"]) == ("runs", [1], "dead")
        assert (second[0], second[2]["text"], second[2]["seq"]) == ("told", "it died", 1)
        assert bench.hub.num_readers == 1
        await reader.aclose()
        assert bench.hub.num_readers == 0

    asyncio.run(story())


def test_a_stream_that_was_cut_goes_on_where_it_was(bench):
    async def story() -> None:
        bench.show(make_card(1), make_card(2))
        bench.board.emit(told("first"))
        bench.refresh()
        reader = stream.events(bench.hub, None)
        ((_, event_id, body),) = await some(reader, 1)
        assert [each["text"] for each in body["told"]] == ["first"]
        await reader.aclose()
        for text in ("second", "third"):
            bench.board.emit(told(text))
        bench.show(make_card(1, step=7))
        again = stream.events(bench.hub, event_id)
        events = await some(again, 3)
        assert [kind for kind, _, _ in events] == ["runs", "told", "told"]
        assert (ids(events[0][2]), events[0][2]["removed"]) == ([1], [2])
        assert [body["text"] for _, _, body in events[1:]] == ["second", "third"]
        await again.aclose()
        last = stream.events(bench.hub, events[1][1])  # cut between two that were told at once
        assert [body["text"] for _, _, body in await some(last, 1)] == ["third"]
        await last.aclose()

    asyncio.run(story())


def test_a_quiet_stream_shows_that_it_lives_and_ends_with_the_service(bench, monkeypatch):
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.05)

    async def story() -> None:
        bench.show(make_card(1))
        reader = stream.events(bench.hub, None)
        await some(reader, 1)
        piece = (await anext(reader)).decode()
        assert piece.startswith("event: ping\ndata: ")
        assert "id:" not in piece, "a reader's place stays where it was"
        assert "at" in json.loads(piece.partition("data: ")[2])
        bench.hub.close()
        with pytest.raises(StopAsyncIteration):
            await anext(reader)

    asyncio.run(story())


def test_readers_that_do_not_read_cost_nothing_and_miss_nothing(bench):
    async def story() -> None:
        bench.show(make_card(1))
        readers = [stream.events(bench.hub, None) for _ in range(50)]
        for reader in readers:
            await some(reader, 1)
        for step in range(1, 301):
            bench.show(make_card(1, step=step))
        assert len(bench.hub._merged) <= 1
        for reader in readers:
            ((kind, _, body),) = await some(reader, 1)
            assert (kind, body["runs"][0]["step"]) == ("runs", 300)
            await reader.aclose()

    asyncio.run(story())


def test_the_watch_pokes_from_its_thread_and_readers_are_told(bench):
    async def story() -> None:
        from orchestrator.clock import SystemClock

        clock = SystemClock()
        board = Board(clock)
        cards = [make_card(1)]
        board.draw(lambda: tuple(cards))
        board.publish()
        hub = Hub(board, clock, Health, acting=True)
        task = asyncio.create_task(hub.run())
        reader = stream.events(hub, None)
        await some(reader, 1)
        cards[0] = make_card(1, step=3)
        begun = clock.monotonic()
        await asyncio.to_thread(board.publish)
        ((kind, _, body),) = await some(reader, 1)
        assert (kind, body["runs"][0]["step"]) == ("runs", 3)
        assert clock.monotonic() - begun < 60
        hub.close()
        await asyncio.wait_for(task, 60)
        await reader.aclose()
        assert board._listeners == []

    asyncio.run(story())


def test_a_fault_ends_the_readers_instead_of_leaving_them_with_what_is_old(bench, monkeypatch, caplog):
    def broken(card):
        raise ZeroDivisionError("a fault")

    async def story() -> None:
        bench.show(make_card(1))
        task = asyncio.create_task(bench.hub.run())
        reader = stream.events(bench.hub, None)
        await some(reader, 1)
        monkeypatch.setattr(hub_module, "run_body", broken)
        bench.cards = [make_card(1, step=5)]
        bench.clock.sleep(EVERY_S)
        bench.board.publish()
        await asyncio.wait_for(task, 5)
        with pytest.raises(StopAsyncIteration):
            await anext(reader)
        assert isinstance(bench.hub.fault, ZeroDivisionError)

    asyncio.run(story())
    assert "the stream of the pages ended" in caplog.text
