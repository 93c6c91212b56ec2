"""A view on a stage: a real record, a board that is told real events, a clock that stands still."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.clock import timestamp
from orchestrator.fleet import Board, GpuCard, NextAct, RunCard
from orchestrator.record import Record
from orchestrator.tui import Desk, WatchApp
from orchestrator.types.decision import ActKind
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, Role, RunState
from orchestrator.types.seen import Gpu
from orchestrator.watch.events import Level, WatchEvent
from tests.builders import NOW, ago

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from textual.pilot import Pilot
    from textual.screen import Screen

    from orchestrator.errors import Exit
    from orchestrator.record import RunRow

TARGET = "pve/200"
GIB = 2**30
FX = "RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function."


class StillClock:
    """Stands still for people; its ticks go on, so that the view draws."""

    def __init__(self) -> None:
        self.at = NOW
        self.ticks = 0.0

    def now(self) -> Any:
        return self.at

    def monotonic(self) -> float:
        self.ticks += 0.5
        return self.ticks

    def sleep(self, seconds: float) -> None:
        self.ticks += seconds


@dataclass
class FakeWatch:
    """As much of a fleet's watch as the view asks."""

    rows: dict[int, RunRow] = field(default_factory=dict)
    fault: Exception | None = None
    outcome: Exit | None = None
    turned_s_ago: float | None = 0.1

    def row(self, run_id: int) -> RunRow | None:
        return self.rows.get(run_id)


@dataclass
class FakeAsking:
    """Notes what it is asked."""

    asked: list[tuple[str, str, str]] = field(default_factory=list)
    error: Exception | None = None

    def stop(self, row: RunRow, *, asked_by: str) -> None:
        self._ask("stop", row, asked_by)

    def relaunch(self, row: RunRow, *, asked_by: str) -> None:
        self._ask("relaunch", row, asked_by)

    def _ask(self, what: str, row: RunRow, asked_by: str) -> None:
        if self.error is not None:
            raise self.error
        self.asked.append((what, row.name, asked_by))


class Stage:
    def __init__(self, record: Record, **desk: Any) -> None:
        self.record, self.clock = record, StillClock()
        self.board, self.watch, self.asking = Board(self.clock), FakeWatch(), FakeAsking()
        self.cards: list[RunCard] = []
        self.board.draw(lambda: self.cards)
        self.explains: Callable[[RunRow], Iterator[Sequence[str]]] = lambda row: iter(
            [[f"why {row.name} died"]]
        )
        self.tails: Callable[[RunRow], Sequence[str]] = lambda row: [f"last line of {row.name}"]
        self.attaches: list[str] = ["true"]
        self.desk: dict[str, Any] = {"acts": True, **desk}

    # -- who is there

    def add(self, name: str, state: RunState = RunState.HEALTHY, **card: Any) -> RunCard:
        row = self.record.save_run(name, {"ct": 200}, card.get("target", TARGET), {"config": "tiny"}, NOW)
        self.watch.rows[row.id] = row
        fields: dict[str, Any] = {
            "id": row.id, "name": name, "target": TARGET, "state": state, "attempt": 1, "phase": "train",
            "step": 1234, "total_steps": 9000, "loss": 2.3456, "tokens_per_s": 12_345.0, "step_s": 1.5,
            "checkpoint_step": 1200, "started_at": ago(3600), "looked_at": ago(1), "is_acting": True,
            "summary": "alive, step 1234" if state is RunState.HEALTHY else "",
        }  # fmt: skip
        made = RunCard(**{**fields, **card})
        self.cards.append(made)
        self.board.publish()
        return made

    def replace(self, card: RunCard) -> None:
        self.cards = [card if each.id == card.id else each for each in self.cards]
        self.board.publish()

    def tell(self, kind: str, text: str, run: str = "-", level: Level = Level.INFO, **event: Any) -> None:
        fields = {
            "kind": kind,
            "at": NOW,
            "run": run,
            "target": TARGET,
            "attempt": 1,
            "text": text,
            "level": level,
        }
        self.board.emit(WatchEvent(**{**fields, **event}))
        self.board.publish()

    def log(self, run: str, *lines: str, attempt: int = 1) -> None:
        for line in lines:
            self.tell("log", line, run, attempt=attempt)

    # -- what the record knows

    def metrics(self, card: RunCard, attempt: int, first: int, last: int, *, at: float = 7200.0) -> None:
        rows = [
            {
                "schema": 1, "kind": "train", "step": step, "loss": 2.0 + 4.0 * math.exp(-step / 300),
                "tokens_per_s": 12_000.0 + 400 * math.sin(step / 40), "step_s": 1.5, "lr": 1e-3,
                "at": timestamp(ago(at - step)),
            }
            for step in range(first, last, 10)
        ]  # fmt: skip
        self.record.add_metrics(card.id, attempt, rows, NOW)

    def a_death(self, name: str = "dflash") -> RunCard:
        """A run that died of the FX race at step 700 and waits to be relaunched."""
        card = self.add(
            name, RunState.DEAD, attempt=2, step=700, failure=FailureClass.FX_TRACE_RACE, tokens_per_s=None,
            summary="died at step 700: a compiled function was called while another thread was tracing (FX)",
            next_act=NextAct(
                kind=ActKind.RELAUNCH, reason="1 of 3 for this cause", rule="fx_trace_race", attempts_left=2,
                due_at=NOW + timedelta(seconds=12),
            ),
            gpus=tuple(eight_gpus()),
        )  # fmt: skip
        self.record.save_attempt(
            card.id, 1, started_at=ago(7200), ended_at=ago(3700), failure=FailureClass.OOM_CUDA,
            first_step=0, last_step=390, exit_code=1, by="user",
        )  # fmt: skip
        self.metrics(card, 1, 10, 400)
        self.record.save_attempt(
            card.id, 2, started_at=ago(3600), ended_at=ago(20), failure=FailureClass.FX_TRACE_RACE,
            first_step=300, last_step=700, exit_code=1, by="watch",
        )  # fmt: skip
        self.metrics(card, 2, 300, 700)
        proof = Evidence(source="log", text=FX, role=Role.ROOT, offset=6475, rank=0)
        found = Diagnosis(state=RunState.DEAD, failure=FailureClass.FX_TRACE_RACE, summary=card.summary,
                          evidence=(proof,), fingerprint="fx")  # fmt: skip
        self.record.transition(card.id, 2, RunState.HEALTHY, RunState.DEAD, card.summary, ago(20))
        self.record.diagnosis(card.id, 2, found, ago(20))
        self.log(name, *(f"step {n} loss {2 + 100 / n:.3f}" for n in range(690, 701)), attempt=2)
        self.log(name, "Traceback (most recent call last):", f"\x1b[31m{FX}\x1b[0m", attempt=2)
        self.tell(
            "diagnosis", f"dead: fx_trace_race - {card.summary}", name, Level.BAD, attempt=2, at=ago(20)
        )
        return card

    # -- the play

    def app(self) -> WatchApp:
        return WatchApp(
            Desk(
                board=self.board,
                record=self.record,
                clock=self.clock,
                watch=self.watch,
                asking=self.asking,
                explain=self.explains,
                tail=self.tails,
                attach=lambda row: self.attaches,
                **self.desk,
            )
        )

    def play(
        self,
        size: tuple[int, int] = (80, 24),
        keys: str = "",
        act: Callable[[WatchApp, Pilot[Any]], Awaitable[None]] | None = None,
    ) -> Played:
        """Run the view, press the keys, do `act`; return the app and what is to be seen."""

        async def run() -> Played:
            app = self.app()
            async with app.run_test(size=size) as pilot:
                await settle(app, pilot)
                for key in keys.split():
                    await pilot.press(key)
                    await settle(app, pilot)
                if act is not None:
                    await act(app, pilot)
                    await settle(app, pilot)
                if app._exit:
                    return Played(app, "", "", "", [], None)
                svg = app.export_screenshot(title="dflashctl")
                return Played(app, svg, text_of(app), chosen(app), names(app), app.screen)

        return asyncio.run(run())


class Played(NamedTuple):
    app: WatchApp
    svg: str
    text: str
    chosen: str
    names: list[str]  # of the runs in their order
    screen: Screen[Any] | None


def chosen(app: WatchApp) -> str:
    """Return the chosen run's name."""
    return app.card.name if app.card is not None else ""


def names(app: WatchApp) -> list[str]:
    """Return the names of the runs as they are listed."""
    return [row.card.name for row in app.body.runs._rows]


def text_of(app: WatchApp) -> str:
    """Return the letters on the screen."""
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())


async def settle(app: WatchApp, pilot: Pilot[Any]) -> None:
    """Let the view draw all that it knows."""
    for _ in range(100):
        await pilot.pause()
        if app._exit:
            return
        app.tick()
        if app.errands.is_idle:
            break
        await asyncio.sleep(0.01)
    app.draw()
    await pilot.pause()
    await pilot.pause()


def eight_gpus(own: int = 2) -> Iterator[GpuCard]:
    for n in range(8):
        yield GpuCard(
            gpu=Gpu(
                index=n, memory_used_bytes=(70 - n) * GIB, memory_total_bytes=80 * GIB,
                utilization_pct=97.0 - 9 * n,
                power_w=650.0 - 50 * n, temperature_c=61.0 - n, pids=(4711 + n,) if n < 6 else (),
            ),
            is_own=n < own,
        )  # fmt: skip


def open_record(path: Path) -> Record:
    return Record.open(path / "record.sqlite3")
