"""One provisioning at a time in a container; the other is told whose it is. Nothing is decided by that."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from orchestrator import wire
from orchestrator.guest import clock, files, lock, venvs
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK = ".lock"  # its content says who holds it
MAX_CHARS = 100
HINT = (
    "wait for its end, then try again: what it made is taken as it is; or end it where it runs (Ctrl-C), "
    "and what it had fetched is taken up"
)


@contextlib.contextmanager
def hold(state: Path, request: wire.Message) -> Iterator[int]:
    """Hold the environments of a container, and its wheels on their way there; gives the lock's descriptor.

    Raises:
        Refusal: `busy`: another provisioning is at work.
    """
    home = venvs.folder(state)
    home.mkdir(parents=True, exist_ok=True)
    path = home / LOCK
    held = lock.take(path)
    if held is None:
        raise Refusal("busy", f"{home}: another provisioning is at work there{_holder(path)}", HINT)
    try:
        _write(held, request.get("by"))
        yield held
    finally:
        os.close(held)


def _write(held: int, by: object) -> None:
    told = by if isinstance(by, dict) else {}
    who = {key: str(told[key])[:MAX_CHARS] for key in ("user", "host", "pid") if key in told}
    body = {"schema": wire.SCHEMA, **who, "guest_pid": os.getpid(), "at": clock.now()}
    with contextlib.suppress(OSError):  # a full disk: it just is not told
        os.ftruncate(held, 0)
        os.pwrite(held, json.dumps(body).encode(), 0)


def _holder(path: Path) -> str:
    who = files.read_json(path)
    if not who:
        return ""
    whose = f": of {who['user']}@{who.get('host')} (pid {who.get('pid')})" if "user" in who else ""
    return f"{whose}, since {who.get('at')}, process {who.get('guest_pid')} in the container"
