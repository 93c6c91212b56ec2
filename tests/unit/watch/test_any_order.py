"""Whatever happens in whatever order: the watch acts only on what is truly dead or hung."""

from __future__ import annotations

import os
import random
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import HostUnreachable
from orchestrator.observe import ContainerSeen, Lost, Received
from orchestrator.record import Record
from tests.unit.watch.bench import PLAYBOOK, TARGET, Bench
from tests.unit.watch.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

SEQUENCES = int(os.environ.get("DFLASHCTL_SEQUENCES", "60"))  # of each of 4 parts
EVENTS = 60


class Story:
    """One random sequence of events over a run that is watched."""

    def __init__(self, record: Record, seed: int, backoff: str = "0s") -> None:
        self.dice = random.Random(seed)
        self.bench = Bench(record, runs=("dflash",), playbook=PLAYBOOK.replace("[0s]", f"[{backoff}]"))
        self.world = World(self.bench.clock)
        self.bench.site.guest = self.world  # type: ignore[assignment]
        self.world.begin("user")
        self.told: list[str] = []

    def deliver(self, count: int) -> None:
        """Bring some of what lies in the wire."""
        for _ in range(min(count, len(self.world.wire))):
            self.bench.watcher.inbox.put(Received(TARGET, self.world.wire.popleft()))

    def lose(self) -> None:
        if self.world.cut():
            self.bench.watcher.inbox.put(Lost(TARGET, HostUnreachable("reset"), 1.0))

    def stop_container(self) -> None:
        self.lose()
        self.world.stop_container()

    def ask_host(self) -> None:
        world = self.world
        state = "stopped" if world.is_stopped else "frozen" if world.is_frozen else "running"
        self.bench.site.state = state
        self.bench.watcher.inbox.put(ContainerSeen(TARGET, self.dice.choice((state, state, None))))

    def pass_time(self) -> None:
        """Seconds, or hours; with a guest that answers, or while nobody watched."""
        for _ in range(self.dice.choice((1, 1, 4))):
            self.bench.clock.sleep(self.dice.choice((0.2, 5.0, 15.0, 19.0, 70.0, 4000.0)))
            self.world.ping()
            if self.dice.random() < 0.7:
                self.deliver(1000)

    def stand_still(self) -> None:
        """Over a minute without a step, watched."""
        for _ in range(self.dice.choice((3, 6))):
            self.bench.clock.sleep(15.0)
            self.world.ping()
            self.deliver(1000)
            self.turn()

    def set_clock(self) -> None:
        """The near side's wall clock is set: seconds, hours, a day, forward or back."""
        self.bench.clock.jump += timedelta(seconds=self.dice.choice((-86_400, -3600, -45, 45, 3600, 86_400)))

    def happen(self) -> None:
        world, dice = self.world, self.dice
        events = [
            (world.step, 8),
            (lambda: world.end(1), 3),
            (lambda: world.end(None, signal=9, writes_exit=False), 2),
            (lambda: world.end(0), 0.5),
            (world.lose_supervisor, 0.5),
            (world.user_stops, 0.7),
            (world.user_launches, 2),
            (self.lose, 3),
            (world.connect, 6),
            (self.stop_container, 0.5),
            (world.start_container, 2),
            (lambda: setattr(world, "is_frozen", not world.is_stopped), 0.5),
            (lambda: setattr(world, "is_frozen", False), 1.5),
            (self.ask_host, 2),
            (self.pass_time, 8),
            (self.stand_still, 1.5),
            (self.set_clock, 0.7),
            (lambda: setattr(world, "answers", dice.random() < 0.7), 1),
            (lambda: self.deliver(dice.randint(1, 4)), 8),
            (lambda: self.deliver(1000), 4),
        ]
        (event,) = dice.choices([e for e, _ in events], [w for _, w in events])
        event()
        name = getattr(event, "__name__", "")
        self.told.append(name if name != "<lambda>" else event.__code__.co_names[0])

    def turn(self) -> None:
        watcher = self.bench.watcher
        if watcher.inbox.empty():
            watcher.inbox.put(ContainerSeen(TARGET, self.bench.run.tracker.container))
        watcher.turn()
        watcher.acts.join(60)

    def go(self, events: int) -> None:
        for _ in range(events):
            self.happen()
            if self.dice.random() < 0.8:
                self.turn()
            assert self.world.wrongs == [], "\n".join([*self.told[-30:], *self.bench.story()[-30:]])

    def end_well(self) -> None:
        """The sky clears: everything is seen again, and time passes; the clock may have been a day ahead."""
        world = self.world
        self.turn()
        self.bench.clock.jump -= timedelta(days=self.dice.choice((0, 1)))
        self.turn()
        world.start_container()
        world.is_frozen, world.answers, self.bench.site.state = False, True, "running"
        self.lose()
        self.turn()
        for _ in range(120):
            world.connect()
            world.step()
            world.ping()
            self.deliver(1000)
            self.turn()
            self.bench.clock.sleep(10.0)


@pytest.fixture
def fast_record(tmp_path) -> Iterator[Record]:
    """A real record in memory's own file system, where there is one: these are thousands of sequences."""
    memory = Path("/dev/shm")
    path = memory / f"dflashctl-{tmp_path.name}-{random.randrange(1 << 40)}.sqlite3"
    path = path if memory.is_dir() else tmp_path / "record.sqlite3"
    try:
        with Record.open(path) as record:
            yield record
    finally:
        for left in path.parent.glob(f"{path.name}*"):
            left.unlink()


@pytest.mark.parametrize("part", range(4))
def test_no_order_of_events_makes_the_watch_act_on_a_run_that_is_not_dead_or_hung(fast_record, part):
    starts = stops = 0
    for number in range(SEQUENCES):
        story = Story(fast_record, seed=part * 100_000 + number)
        story.go(EVENTS)
        starts, stops = starts + story.world.starts, stops + story.world.stops
        fast_record.remove_run(story.bench.rows[0].id, story.bench.clock.now())
    assert starts > SEQUENCES // 20, "the watch did act, so that its restraint means something"
    assert stops > 0


@pytest.mark.parametrize("part", range(2))
def test_after_any_order_of_events_a_dead_run_lives_again_or_its_end_is_told(fast_record, part):
    for number in range(SEQUENCES // 3):
        story = Story(fast_record, seed=7_000_000 + part * 100_000 + number, backoff="20s")
        story.go(EVENTS)
        story.end_well()
        run = story.bench.run
        is_well = story.world.lives and run.diagnosis is not None and run.ended is None
        assert is_well or run.ended is not None, "\n".join([*story.told[-30:], *story.bench.story()[-30:]])
        fast_record.remove_run(story.bench.rows[0].id, story.bench.clock.now())
