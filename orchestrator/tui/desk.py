"""What the view is given: the runs, their history, and how a person's keys reach a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from orchestrator.clock import Clock
    from orchestrator.errors import Exit
    from orchestrator.fleet import Board
    from orchestrator.record import Record, RunRow


class Watching(Protocol):
    """The watch behind the view; `fleet.FleetWatch` is one."""

    fault: Exception | None

    def row(self, run_id: int) -> RunRow | None:
        """Return a run's row."""
        ...

    @property
    def outcome(self) -> Exit | None:
        """The exit code once every run has ended; None before."""
        ...

    @property
    def turned_s_ago(self) -> float | None:
        """How long ago the watch had its last turn; None before the first."""
        ...


class Asked(Protocol):
    """What a person may ask of a run; `fleet.Asking` is one. Both raise ConfigError if it is busy."""

    def stop(self, row: RunRow, *, asked_by: str) -> None:
        """Begin to stop it."""
        ...

    def relaunch(self, row: RunRow, *, asked_by: str) -> None:
        """Begin its next attempt."""
        ...


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Everything that the view needs.

    `explain`, `tail` and `attach` are called in a thread of their own and may raise OrchestratorError;
    `explain` yields what it knows first, then more. `ends`: the view ends with the runs that it watches.
    """

    board: Board
    record: Record
    clock: Clock
    watch: Watching
    asking: Asked
    explain: Callable[[RunRow], Iterator[Sequence[str]]]
    tail: Callable[[RunRow], Sequence[str]]
    attach: Callable[[RunRow], Sequence[str]]
    verb: str = "watch"
    acts: bool = False
    ends: bool = True
    shows_log: bool = True
    utf8: bool = True
    colours: bool = True


@dataclass(frozen=True)
class Ending:
    """How the view ended. `code` None: by its watch's fault."""

    code: Exit | None
