"""Ask every rank of a run where it is: for a watch that sees a hang, which writes it down, and for people."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.classify.stacks import RankStack, main_frames, place, summarize
from orchestrator.errors import BlindError, GuestError, GuestRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.clock import Clock
    from orchestrator.record import Record
    from orchestrator.wire import Message

TIMEOUT_S = 60.0
ACTION = "stacks"
_HELD = {"T": "was stopped by a signal", "t": "is held by a debugger"}  # states of the kernel


class Asked(Protocol):
    """What taking stacks needs of the guest."""

    def call(self, verb: str, request: Mapping[str, object], *, timeout_s: float) -> list[Message]:
        """Ask once."""
        ...


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What the ranks said. `path` is the folder below the run's directory, None if it could not be kept."""

    attempt: int
    path: str | None
    files: tuple[str, ...]
    problems: tuple[str, ...]
    stacks: tuple[RankStack, ...]
    ways: tuple[str, ...]  # of each stack: `py-spy`, `faulthandler` or `none`

    @property
    def text(self) -> str:
        """One line for a person."""
        parts = [summarize(self.stacks), *self.problems]
        return "; ".join([*parts, f"kept in {self.path}" if self.path else "not kept"])

    @property
    def paused(self) -> str:
        """Which processes somebody holds still, by a signal or a debugger; empty if none is."""
        held = [each for each in self.stacks if each.state in _HELD]
        if not held:
            return ""
        named = ", ".join(
            f"{each.who} (process {each.pid})" if each.rank is not None else each.who for each in held
        )
        how = " and ".join(dict.fromkeys(_HELD[each.state] for each in held))
        go_on = f"; `kill -CONT {' '.join(str(each.pid) for each in held)}` in the container lets it go on"
        return f"{named} {how}, which is somebody's will{go_on if any(e.state == 'T' for e in held) else ''}"

    def detail(self) -> dict[str, Any]:
        """As an event and `--json` have it."""
        return {
            "path": self.path,
            "files": list(self.files),
            "problems": list(self.problems),
            "ranks": [
                {
                    "rank": each.rank,
                    "pid": each.pid,
                    "how": way,
                    "state": each.state,
                    "place": place(main_frames(each.text)) or None,
                }
                for each, way in zip(self.stacks, self.ways, strict=True)
            ],
        }


@dataclass
class HangLook:
    """How far the look into one run's hang has come."""

    is_under_way: bool = False
    is_answered: bool = False  # or cannot be had: whoever is called to it has what there is
    taken: Taken | None = None
    _is_begun: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether this hang was not looked into yet."""
        return not self._is_begun and not self.is_under_way

    def begin(self) -> None:
        """The ranks are being asked."""
        self._is_begun, self.is_under_way, self.taken = True, True, None

    def end(self, *, again: bool) -> None:
        """They have answered, or cannot be asked; `again`: not now."""
        self.is_under_way, self.is_answered = False, True
        self._is_begun = self._is_begun and not again

    def forget(self) -> None:
        """It does not hang any more; a look that is under way goes on to its end."""
        self._is_begun, self.is_answered, self.taken = False, False, None


def take_stacks(
    client: Asked, state_dir: str, run: str, attempt: int | None = None, *, timeout_s: float = TIMEOUT_S
) -> Taken:
    """Ask the ranks of the newest attempt, which has to be `attempt` if that is given.

    Raises:
        GuestRefused: Nothing of it lives.
        BlindError: The connection broke, or the answer is not the protocol.
    """
    request = {"state_dir": state_dir, "run": run, "attempt": attempt}
    messages = client.call("stacks", request, timeout_s=timeout_s)
    try:
        return _taken(messages)
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise GuestError(f"{run}: the answer to `stacks` is not what DESIGN.md says: {error!r}") from error


def _taken(messages: Sequence[Message]) -> Taken:
    end = next(message for message in messages if message["type"] == "stacks")
    told = [message for message in messages if message["type"] == "stack"]
    return Taken(
        attempt=int(end["attempt"]),
        path=str(end["path"]) if end["path"] is not None else None,
        files=tuple(str(name) for name in end["files"]),
        problems=tuple(str(problem) for problem in end["problems"]),
        stacks=tuple(
            RankStack(
                pid=int(one["pid"]),
                rank=int(one["rank"]) if one["rank"] is not None else None,
                text=str(one["text"]),
                state=str(one["state"]),
            )
            for one in told
        ),
        ways=tuple(str(one["how"]) for one in told),
    )


def take_and_record(
    client: Asked, state_dir: str, run: str, attempt: int, record: Record, run_id: int, clock: Clock
) -> Taken:
    """Take the stacks of what hangs; that it was tried is on record, whatever comes of it.

    Raises:
        GuestRefused, BlindError: As `take_stacks`.
        RecordError: The record cannot be written.
    """
    reason = "it hangs; every rank is asked where it is"
    action = record.intend(run_id, attempt, ACTION, reason, {"pid": os.getpid()}, clock.now())
    try:
        taken = take_stacks(client, state_dir, run, attempt)
    except (GuestRefused, BlindError) as error:
        record.outcome(action, "failed", clock.now(), error=str(error))
        raise
    record.outcome(action, taken.text, clock.now())
    return taken
