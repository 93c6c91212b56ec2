"""The logs' mirror as the verbs use it: kept by a watch, read by `logs --local`, removed with its run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.cli.context import SETTINGS
from orchestrator.errors import OrchestratorError

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.mirror import Keeper, RunMirror
    from orchestrator.record import Record, RunRow


@dataclass(frozen=True)
class Copies:
    """The copies of a run's logs that are to go: of these attempts, or with None of the whole run."""

    folder: Path
    attempts: tuple[int, ...] | None

    @property
    def size(self) -> int:
        """Bytes of their files."""
        from orchestrator.mirror import size_of

        return size_of(self.folder, self.attempts)

    @property
    def text(self) -> str:
        """Which they are, for people."""
        which = "its logs" if self.attempts is None else f"attempt {', '.join(map(str, self.attempts))}'s log"
        return f"{self.folder} (the copy here of {which})"

    def remove(self) -> int:
        """Remove them; return their bytes.

        Raises:
            OrchestratorError: They cannot be removed.
        """
        from orchestrator.mirror import remove, remove_run

        try:
            if self.attempts is None:
                return remove_run(self.folder)
            now = SETTINGS.clock.now()
            removals = [remove(self.folder, attempt, "prune", now) for attempt in self.attempts]
        except OSError as error:
            raise OrchestratorError(
                f"{self.folder}: cannot be removed: {error.strerror}", hint="remove it by hand"
            ) from error
        return sum(removal.size for removal in removals if removal is not None)


def copies_of(record: Record, row: RunRow, *, keep: int | None = None) -> Copies:
    """Return the copies of a run's logs; with `keep` only those of all but so many of its newest attempts."""
    mirror = mirror_of(record, row)
    return Copies(mirror.folder, None if keep is None else tuple(mirror.attempts[:-keep]))


def keeper(record: Record, *, wanted: bool) -> Keeper | None:
    """Return what a watch keeps its runs' logs with; None if no copy is wanted.

    Raises:
        ConfigError: The settings are wrong.
    """
    from orchestrator.mirror import Keeper
    from orchestrator.mirror.settings import load
    from orchestrator.places import mirror_path

    settings = load()
    if not (wanted and settings.enabled):
        return None
    return Keeper(mirror_path(record.path), SETTINGS.clock, settings.limits)


def mirror_of(record: Record, row: RunRow) -> RunMirror:
    """Return what is kept of a run's logs; there may be nothing."""
    from orchestrator.mirror import RunKey, RunMirror
    from orchestrator.places import mirror_path

    return RunMirror(mirror_path(record.path), RunKey.of(row))
