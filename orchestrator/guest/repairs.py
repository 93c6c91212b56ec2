"""What a start puts right in the run's files first. The run's lock is held: nothing trains meanwhile.

A checkpoint is set aside, never removed. What was done by a start that was cut is not done twice.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from orchestrator import wire
from orchestrator.guest import checkpoints, clock, files
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from orchestrator.guest.paths import RunDir

SKIPS = "skips.jsonl"
MAX_STEPS = 64


def carry_out(place: RunDir, request: wire.Message, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Do what the request asks for; returns what was done, for the answer.

    Raises:
        Refusal: `no_checkpoint`: none is there to go back to, or none tells which data a step is of.
        OSError: The disk is full or may not be written.
    """
    step, skips = _asked(request)
    directory = checkpoints.directory(place, spec)
    lines = _skip_lines(place, directory, skips)
    aside = _set_aside(directory, step) if step is not None else None
    if lines:
        _append(place.path / SKIPS, lines)
    return {"set_aside": None if aside is None else str(aside), "skipped_steps": skips}


def _asked(request: wire.Message) -> tuple[int | None, list[int]]:
    step, skips = request.get("set_aside_step"), request.get("skip_steps") or []
    if step is not None and not _is_step(step):
        raise Refusal("bad_request", f"set_aside_step: {step!r} is no step")
    if not isinstance(skips, list) or len(skips) > MAX_STEPS or not all(map(_is_step, skips)):
        raise Refusal("bad_request", f"skip_steps: must be a list of at most {MAX_STEPS} steps")
    return step, skips


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _set_aside(directory: Path, step: int) -> Path | None:
    """Rename checkpoint `step` if it is the newest; a newer or an older one than was meant is left alone."""
    complete = [each for each, is_complete in checkpoints.steps(directory).items() if is_complete]
    if not complete or complete[-1] != step:
        return None
    if len(complete) == 1:
        message = f"{directory}: step-{step} is the only complete checkpoint; there is none before it"
        raise Refusal("no_checkpoint", message, "look at it, and relaunch by hand")
    path = directory / f"step-{step}"
    # Not `step-<n>` with something behind it: a trainer of somebody's own may look for `step-*`.
    name, number = f"rejected-step-{step}", 1
    while (directory / name).exists():
        name, number = f"rejected-step-{step}.{number + 1}", number + 1
    aside = directory / name
    path.rename(aside)
    files.sync_directory(directory)
    return aside


def _skip_lines(place: RunDir, directory: Path, skips: list[int]) -> list[bytes]:
    """Return the lines to add to skips.jsonl: steps on the data that the newest checkpoint was trained on."""
    if not skips:
        return []
    newest = checkpoints.newest(directory)
    state = files.read_json(directory / f"step-{newest}" / "state.json") if newest is not None else None
    data = (state or {}).get("data")
    if not isinstance(data, str):
        message = f"{directory}: no checkpoint there tells which data step {skips[0]} is of"
        raise Refusal("no_checkpoint", message, "look at the step, and relaunch by hand")
    known = _known(place.path / SKIPS, data)
    fields = {"schema": wire.SCHEMA, "reason": "playbook", "loss": None, "grad_norm": None, "data": data}
    return [
        json.dumps({**fields, "step": step, "at": clock.now()}).encode()
        for step in skips
        if step not in known
    ]


def _known(path: Path, data: str) -> set[object]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return set()
    rows = (files.parse_object(line) or {} for line in lines)
    return {row.get("step") for row in rows if row.get("data") == data}


def _append(path: Path, lines: list[bytes]) -> None:
    """Add whole lines, durably; half a line that a kill left behind is ended first."""
    with path.open("ab+", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        torn = end > 0 and os.pread(file.fileno(), 1, end - 1) != b"\n"
        file.write(b"\n" * torn + b"".join(line + b"\n" for line in lines))
        os.fsync(file.fileno())
    files.sync_directory(path.parent)
