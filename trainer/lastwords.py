"""error.json: the trainer's own account of its end, written before the process is gone."""

from __future__ import annotations

import json
import os
import traceback
from typing import TYPE_CHECKING, Protocol, final

from trainer.clock import utc_now
from trainer.console import warn
from trainer.errors import Interrupted, TrainerError
from trainer.files import SCHEMA
from trainer.parallel.death import is_communication

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from trainer.heartbeat import Heartbeat


class Announce(Protocol):
    """Tell all ranks that this one fails; comes back, with true, only if it is the first."""

    def __call__(self, message: str, *, code: int, communication: bool) -> bool:
        """See `trainer.parallel.failfast.FailFast.announce`."""


@final
class LastWords:
    """A context that records whatever exception leaves it, and lets it go on.

    A `SystemExit` is not an error: whoever raised it chose the exit code. The first rank to fail has the
    word; a later one, or one that failed only because another did, is ended by `announce`.
    """

    def __init__(self, path: Path, heartbeat: Heartbeat, rank: int = 0) -> None:
        self._path = path
        self._heartbeat = heartbeat
        self.rank = rank
        self.announce: Announce | None = None
        """Tells the other ranks, once there are any."""

    def __enter__(self) -> LastWords:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or kind is None or issubclass(kind, SystemExit):
            return
        self._announce(error)
        value = {
            "schema": SCHEMA,
            "exception": qualified_name(kind),
            "message": str(error),
            "traceback": "".join(traceback.format_exception(kind, error, trace)),
            "rank": self.rank,
            "phase": self._heartbeat.phase.value,
            "step": self._heartbeat.step,
            "kind": error.kind if isinstance(error, TrainerError) else None,
            "at": utc_now(),
        }
        try:
            self._publish(json.dumps(value).encode())
            self._heartbeat.enter(self._heartbeat.phase)  # beats are thinned: the last may tell an older step
        except OSError as unwritten:  # a full disk may be what ended it: the first error must come through
            warn(f"{self._path}: {unwritten}; the reason is in this log alone")

    def _announce(self, error: BaseException) -> None:
        if self.announce is None or isinstance(error, Interrupted):
            return
        code = error.exit_code if isinstance(error, TrainerError) else 1
        words = f"{qualified_name(type(error))}: {error}".splitlines()[0]
        self.announce(words, code=code, communication=is_communication(error))

    def _publish(self, data: bytes) -> None:
        # A hard link is exclusive and atomic at once: a reader never sees half a file, a second rank never
        # wins.
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        temporary.write_bytes(data)
        try:
            os.link(temporary, self._path)
        except FileExistsError:
            return
        finally:
            temporary.unlink()


def qualified_name(kind: type[BaseException]) -> str:
    """`torch.OutOfMemoryError`, or plain `ValueError` for a builtin."""
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
