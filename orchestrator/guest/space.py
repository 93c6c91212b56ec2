"""`sizes` and `remove`: what an ended run takes, and giving it back. A living run is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.guest import checkpoints, files, liveness, lock, paths, session
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from orchestrator import wire
    from orchestrator.guest.link import Link

KEEP = 1
# Costs minutes to make again and is of no other use: it goes only when it is named.
CACHE = "compile-cache"

Item = dict[str, Any]


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer `sizes` or `removed`. Items: `path`, `bytes`, `kept`, for checkpoints `step` and `complete`."""
    place = paths.run_dir(request)
    what, keep = request.get("what"), request.get("keep")
    keep = KEEP if keep is None else keep
    if what not in ("run", "checkpoints"):
        raise Refusal("bad_request", f'what: {what!r} must be "run" or "checkpoints"')
    if not isinstance(keep, int) or isinstance(keep, bool) or keep < 0:
        raise Refusal("bad_request", f"keep: {keep!r} must be a number of checkpoints, 0 or more")
    with_cache = bool(request.get("cache"))
    if verb == "sizes":
        alive = liveness.look(place, place.attempts())
        is_alive = bool(alive.pids) or liveness.is_by_hand(place, place.attempts())
        link.send("sizes", {"items": _items(place, what, keep, with_cache=with_cache), "alive": is_alive})
        return
    held = lock.take(place.lock)
    try:
        alive = liveness.look(place, place.attempts())
        by_hand = liveness.is_by_hand(place, place.attempts())
        if held is None or alive.pids or alive.supervisor or by_hand:
            message = f'run "{place.name}" is alive; nothing was removed'
            raise Refusal("run_alive", message, "stop it first", pids=list(alive.pids))
        found = _items(place, what, keep, with_cache=with_cache)
        items = [item for item in found if not item.get("kept")]
        if what == "run":
            session.kill(place.name, place.path)
        for item in items:
            _remove(Path(item["path"]), spare=[Path(each["path"]) for each in found if each.get("kept")])
    finally:
        if held is not None:
            os.close(held)
    link.send("removed", {"items": items, "bytes": sum(item["bytes"] for item in items)})


def _items(place: paths.RunDir, what: str, keep: int, *, with_cache: bool) -> list[Item]:
    directory = checkpoints.directory(place, files.read_json(place.path / "run.json"))
    if what == "checkpoints":
        return _checkpoint_items(directory, keep)
    cached = 0 if with_cache else checkpoints.num_bytes(place.path / CACHE)
    items: list[Item] = [{"path": str(place.path), "bytes": checkpoints.num_bytes(place.path) - cached}]
    if cached:
        items.append({"path": str(place.path / CACHE), "bytes": cached, "kept": True})
    if directory.exists() and place.path not in directory.parents:
        # Somebody put it there on purpose; its checkpoints can be removed as such.
        items.append({"path": str(directory), "bytes": checkpoints.num_bytes(directory), "kept": True})
    return items


def _checkpoint_items(directory: Path, keep: int) -> list[Item]:
    found = checkpoints.steps(directory)
    complete = [step for step, is_complete in found.items() if is_complete]
    kept = set(complete[len(complete) - keep :] if keep else [])
    return [
        {
            "path": str(directory / f"step-{step}"),
            "bytes": checkpoints.num_bytes(directory / f"step-{step}"),
            "step": step,
            "complete": is_complete,
            "kept": step in kept,
        }
        for step, is_complete in found.items()
    ]


def _remove(path: Path, spare: list[Path]) -> None:
    """Remove a tree; a checkpoint loses its mark first, so that half of one is never taken for a whole."""
    (path / "COMPLETE").unlink(missing_ok=True)
    if not any(kept.parent == path for kept in spare):
        shutil.rmtree(path)
        return
    for child in path.iterdir():
        if child in spare:
            continue
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()
