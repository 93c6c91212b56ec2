"""A recorded run, told again: at once, or at its own pace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.context import SETTINGS
from orchestrator.clock import timestamp
from orchestrator.masking import Masker
from orchestrator.terminal import one_line, plain

if TYPE_CHECKING:
    from orchestrator.playbook import Playbook
    from orchestrator.replay.player import Told


@dataclass(frozen=True, kw_only=True)
class Show:
    """How to show what is replayed. `pace` is how many times as fast as it happened, None: at once."""

    rules: Playbook
    as_json: bool
    pace: float | None = None


def show_recording(path: Path, folder: Path, show: Show) -> dict[str, Any]:
    """Tell a recorded run again and return it as plain data; `path` is its name for people."""
    from orchestrator.replay.player import play
    from orchestrator.replay.recording import read_recording

    recording = read_recording(folder)
    if not show.as_json:
        SETTINGS.out.print(f"{recording.run}, recorded {recording.recorded_at}:", markup=False)
    told = []
    for raw in paced(play(recording, show.rules), show.pace):
        each = _masked(raw)
        told.append(_json(each))
        if not show.as_json:
            _print(each)
    return {"path": str(path), "run": recording.run, "attempts": len(recording.attempts), "told": told}


def _masked(told: Told) -> Told:
    """Star out what is secret by its shape: a recording may have been made by hand."""
    masker = Masker()
    evidence = tuple(replace(each, text=masker.text(each.text)) for each in told.evidence)
    return replace(told, text=masker.text(told.text), detail=masker.json(told.detail), evidence=evidence)


def paced(told: Iterable[Told], pace: float | None) -> Iterator[Told]:
    """Yield each when its time has come, counted from the first."""
    clock = SETTINGS.clock
    started, first = clock.monotonic(), None
    for each in told:
        first = first or each.at
        if pace is not None:
            due = (each.at - first).total_seconds() / pace
            clock.sleep(max(0.0, due - (clock.monotonic() - started)))
        yield each


def _print(told: Told) -> None:
    out = SETTINGS.out
    clock = told.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    has_name = told.kind in ("diagnosis", "pattern")
    name = f"{told.detail['class'] or told.detail['state']} - " if has_name else ""
    kind = "pattern (informs only)" if told.kind == "pattern" else told.kind
    out.print(f"{clock} [{told.attempt}] {kind}: {name}{plain(told.text)}", markup=False)
    for item in told.evidence if has_name else ():
        where = f" byte {item.offset}" if item.offset is not None else ""
        rank = f", rank {item.rank}" if item.rank is not None else ""
        out.print(f"    {item.role.value} ({item.source}{where}{rank}): {one_line(item.text)}", markup=False)
    print_changes(told.detail.get("changes", ()))


def print_changes(changes: Iterable[Mapping[str, str]]) -> None:
    """Print what a relaunch would change, or put right before it."""
    for change in changes:
        kind = next(iter(change))
        sign = ": " if kind == "do" else "="
        SETTINGS.out.print(f"    {kind} {change[kind]}{sign}{plain(change['value'])}", markup=False)


def _json(told: Told) -> dict[str, Any]:
    evidence = [
        {"line": e.text, "offset": e.offset, "rank": e.rank, "source": e.source, "role": e.role.value}
        for e in told.evidence
    ]
    body = {"at": timestamp(told.at), "attempt": told.attempt, "kind": told.kind, "text": told.text}
    return {**body, told.kind: told.detail, "evidence": evidence}
