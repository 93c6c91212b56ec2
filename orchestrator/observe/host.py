"""Ask the Proxmox host what it knows of a container: the one thing the guest cannot see."""

from __future__ import annotations

import re
from typing import Protocol

from orchestrator.errors import BlindError

_TIMEOUT_S = 15.0


class _Result(Protocol):
    @property
    def exit_code(self) -> int | None: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...


class _Shell(Protocol):
    def run(self, argv: tuple[str, ...], *, timeout_s: float) -> _Result: ...


def parse_status(pct_status: str, lxc_info: str) -> str | None:
    """Return `running`, `stopped`, `frozen`, `frozen:<lock>`, `locked:<lock>`, or None if they say neither.

    A lock alone (a snapshot-mode backup) does not stop a run; it is told since no start is allowed meanwhile.
    """
    lock = re.search(r"^lock:\s*(\S+)", pct_status, re.MULTILINE)
    if re.search(r"State:\s*FROZEN", lxc_info):
        return f"frozen:{lock[1]}" if lock else "frozen"
    status = re.search(r"^status:\s*(\S+)", pct_status, re.MULTILINE)
    if status is None:
        return None
    if status[1] == "running" and lock:
        return f"locked:{lock[1]}"
    return status[1] if status[1] in ("running", "stopped") else None


def container_state(shell: _Shell, ct: int, become: tuple[str, ...] = ()) -> str | None:
    """Return the container's state as the host tells it, or None if the host could not be asked."""
    try:
        status = shell.run((*become, "pct", "status", str(ct), "--verbose"), timeout_s=_TIMEOUT_S)
        info = shell.run((*become, "lxc-info", "-n", str(ct), "-s"), timeout_s=_TIMEOUT_S)
    except BlindError:
        return None
    if status.exit_code != 0:
        missing = b"does not exist" in status.stderr
        return "missing" if missing else None
    return parse_status(status.stdout.decode("utf-8", "replace"), info.stdout.decode("utf-8", "replace"))
