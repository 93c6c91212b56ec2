"""Many schedules over the lanes of one arena; each is judged as soon as it is over."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.integration.chaos.arena import Arena
from tests.integration.chaos.judge import judge, num_told_again
from tests.integration.chaos.lane import Play
from tests.integration.chaos.nursery import Nursery
from tests.lab.host import LabError
from tests.lab.lab import PREFIX, sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.integration.chaos.arena import Place
    from tests.integration.chaos.played import Played
    from tests.integration.chaos.schedule import Schedule


@dataclass(frozen=True)
class Result:
    """What became of one schedule."""

    seed: int
    problems: tuple[str, ...]
    attempts: int
    deaths: int
    watches: int
    killed: int
    hows: tuple[str, ...]
    faults: tuple[str, ...]
    again: int
    took_s: float

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


class Lane(threading.Thread):
    """Takes schedules until there are none."""

    def __init__(
        self,
        place: Place,
        nursery: Nursery,
        home: Path,
        take: Callable[[], Schedule | None],
        finish: Callable[[Played], None],
    ) -> None:
        super().__init__(name=f"lane {place.ct}", daemon=True)
        self._place = place
        self._nursery = nursery
        self._home = home
        self._take = take
        self._finish = finish

    def run(self) -> None:
        """Play one after another."""
        while (schedule := self._take()) is not None:
            home = self._home / f"seed-{schedule.seed}"
            play = Play(schedule, self._place, self._nursery, home)
            begin = time.monotonic()
            try:
                play.play()
            except (AssertionError, LabError, OSError) as error:
                play.played.problems.append(f"the suite itself: {error!r}")
            play.played.took_s = time.monotonic() - begin
            try:
                self._finish(play.played)
            finally:
                play.clean_up()


def play_all(
    schedules: Sequence[Schedule], lanes: int, tell: Callable[[Result], None], *, keep: Path | None = None
) -> None:
    """Play every schedule; `tell` hears each result, one at a time."""
    sweep()
    arena = Arena(Path(tempfile.mkdtemp(prefix=f"{PREFIX}-")), min(lanes, len(schedules)))
    home = Path(tempfile.mkdtemp(prefix="dflashctl-chaos-"))
    waiting, lock = list(reversed(schedules)), threading.Lock()

    def take() -> Schedule | None:
        with lock:
            return waiting.pop() if waiting else None

    def finish(played: Played) -> None:
        result = result_of(played)
        with lock:
            tell(result)
        if result.problems and keep is not None:
            _keep(played, result, keep)

    nursery = None
    try:
        arena.open()
        nursery = Nursery(arena.clock_library, {})
        threads = [Lane(place, nursery, home, take, finish) for place in arena.lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        if nursery is not None:
            nursery.close()
        arena.close()
        shutil.rmtree(home, ignore_errors=True)


def result_of(played: Played) -> Result:
    """Judge what was played."""
    seen = played.witness()
    return Result(
        seed=played.schedule.seed,
        problems=tuple(judge(played)),
        attempts=len(played.attempts),
        deaths=max(0, len(played.attempts) - 1),
        watches=len(played.watches),
        killed=sum(told.is_killed for told in played.watches),
        hows=tuple(e["how"] for e in seen if e["event"] == "dying"),
        faults=tuple(kind for _, kind in played.done),
        again=num_told_again(played),
        took_s=round(played.took_s, 1),
    )


def _keep(played: Played, result: Result, keep: Path) -> None:
    folder = keep / f"seed-{result.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(played.home, folder)
    run = played.place.runs / played.run
    if run.is_dir():
        shutil.copytree(run, folder / "run", ignore=shutil.ignore_patterns("checkpoints"))
    witness = played.place.witness / f"{played.run}.jsonl"
    if witness.exists():
        shutil.copy(witness, folder / "witness.jsonl")
    done = "".join(f"{at:.3f} {kind}\n" for at, kind in played.done)
    (folder / "result.txt").write_text("\n".join(result.problems) + f"\n\n{done}")
