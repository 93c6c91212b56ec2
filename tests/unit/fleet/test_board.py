from __future__ import annotations

import threading

from orchestrator.fleet import Board
from orchestrator.fleet.board import MAX_EVENTS, MAX_LINES, MAX_TAIL_CHARACTERS
from orchestrator.fleet.card import RunCard
from orchestrator.types.failure import RunState
from orchestrator.watch.events import WatchEvent
from tests.builders import NOW
from tests.unit.watch.bench import FakeClock


def event(kind: str = "state", text: str = "", run: str = "a") -> WatchEvent:
    return WatchEvent(kind=kind, at=NOW, run=run, target="here", attempt=1, text=text)


def make_card(**changes) -> RunCard:
    return RunCard(**{"id": 1, "name": "a", "target": "here", "state": RunState.HEALTHY, **changes})


def test_the_newest_lines_are_kept_with_their_numbers():
    board = Board(FakeClock())
    for number in range(1, MAX_LINES + 51):
        board.emit(event("log", f"line {number}"))
    lines = board.lines("here", "a")
    assert len(lines) == MAX_LINES
    assert (lines[0].seq, lines[0].text) == (51, "line 51")
    assert (lines[-1].seq, lines[-1].text) == (MAX_LINES + 50, f"line {MAX_LINES + 50}")
    assert [line.seq for line in board.lines("here", "a", after=MAX_LINES + 48)] == [
        MAX_LINES + 49,
        MAX_LINES + 50,
    ]


def test_long_lines_take_the_place_of_many_and_the_count_of_what_is_kept_stays_true():
    board = Board(FakeClock())
    for number in range(MAX_LINES):
        board.emit(event("log", f"{number}"))
    for _ in range(3 * MAX_LINES):
        board.emit(event("log", "x" * 1000))
    kept = sum(len(line.text) for line in board.lines("here", "a"))
    assert MAX_TAIL_CHARACTERS - 1000 <= kept <= MAX_TAIL_CHARACTERS
    board.emit(event("log", "y" * (MAX_TAIL_CHARACTERS + 5)))
    assert [len(line.text) for line in board.lines("here", "a")] == [MAX_TAIL_CHARACTERS + 5]
    board.emit(event("log", "z"))
    assert [line.text for line in board.lines("here", "a")] == ["z"]


def test_runs_of_one_name_at_two_places_keep_apart():
    board = Board(FakeClock())
    board.emit(event("log", "mine"))
    board.emit(WatchEvent(kind="log", at=NOW, run="a", target="there", attempt=1, text="theirs"))
    assert [line.text for line in board.lines("here", "a")] == ["mine"]
    assert [line.text for line in board.lines("there", "a")] == ["theirs"]
    board.forget("here", "a")
    assert board.lines("here", "a") == []


def test_events_are_numbered_across_runs_and_asked_for_by_run():
    board = Board(FakeClock())
    for number in range(MAX_EVENTS + 10):
        board.emit(event(text=str(number), run="ab"[number % 2]))
    assert len(board.told()) == MAX_EVENTS
    assert [each.event.text for each in board.told(after=MAX_EVENTS + 8, run="b")] == [str(MAX_EVENTS + 9)]
    assert [each.seq for each in board.told(after=MAX_EVENTS + 8)] == [MAX_EVENTS + 9, MAX_EVENTS + 10]


def test_metrics_are_counted_and_not_told():
    board = Board(FakeClock())
    board.emit(event("metrics"))
    board.emit(event("metrics"))
    assert board.told() == []
    assert board.num_metrics("here", "a") == 2
    assert board.num_metrics("here", "b") == 0


def test_who_listens_is_called_when_something_changed_and_only_then():
    clock, calls, cards = FakeClock(), [], [make_card()]
    board = Board(clock)
    board.draw(lambda: cards)
    end = board.listen(lambda: calls.append(board.fleet.version))
    board.refresh()
    assert calls == [1]
    board.refresh()  # too soon
    clock.sleep(0.3)
    board.refresh()  # nothing new
    assert calls == [1]
    clock.sleep(0.3)
    cards[0] = make_card(step=5)
    board.refresh()
    assert calls == [1, 2]
    assert board.fleet.card(1) == make_card(step=5)
    assert board.fleet.card(2) is None
    clock.sleep(0.3)
    board.emit(event("log", "a line alone is news as well"))
    board.refresh()
    assert calls == [1, 2, 3]
    end()
    end()
    clock.sleep(0.3)
    cards[0] = make_card(step=6)
    board.refresh()
    assert calls == [1, 2, 3]
    assert board.fleet.version == 4


def test_a_reader_in_another_thread_sees_no_gap_while_lines_come():
    board, found, ending = Board(FakeClock()), [], threading.Event()

    def read() -> None:
        last = 0
        while not (ending.is_set() and last == 20_000):
            for line in board.lines("here", "a", after=last):
                found.append(line.seq - max(last, line.seq - 1))
                last = line.seq

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(20_000):
        board.emit(event("log", str(number)))
    ending.set()
    reader.join(30)
    assert not reader.is_alive()
    assert set(found) == {1}
