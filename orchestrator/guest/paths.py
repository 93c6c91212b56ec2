"""Names and places in the state directory. A run's name becomes a path: it is checked here."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.guest import asked
from orchestrator.guest.refusal import Refusal

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class RunDir:
    """One run's directory; see DESIGN.md for what lies in it."""

    state: Path
    name: str

    @property
    def path(self) -> Path:
        """`<state>/runs/<run>`."""
        return self.state / "runs" / self.name

    @property
    def lock(self) -> Path:
        """The file whose flock every trainer process inherits."""
        return self.path / "lock"

    @property
    def stop(self) -> Path:
        """The intent to stop."""
        return self.path / "stop.json"

    @property
    def attempts_dir(self) -> Path:
        """The parent of the numbered attempts."""
        return self.path / "attempts"

    def attempt(self, number: int) -> Path:
        """The directory of one attempt."""
        return self.attempts_dir / str(number)

    def attempts(self) -> list[int]:
        """The numbers of the attempts, oldest first."""
        try:
            names = os.listdir(self.attempts_dir)  # noqa: PTH208  the watch calls it five times a second
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdigit())


def resolve_state(text: object) -> Path:
    """Return the state directory, `~`, variables and links resolved as the container has them."""
    return Path(os.path.realpath(expand(text, "state_dir")))


def expand(text: object, key: str) -> Path:
    """Expand `~` and variables in the path that the request has at `key`.

    Raises:
        Refusal: No path, or one that is not absolute after expansion.
    """
    if not isinstance(text, str) or not text or not asked.is_text(text):
        raise Refusal("bad_request", f"{key}: {text!r} is no path")
    expanded = os.path.expanduser(os.path.expandvars(text))  # noqa: PTH111  both, in this order
    if not os.path.isabs(expanded) or "$" in expanded:  # noqa: PTH117
        raise Refusal("bad_request", f"{key}: {text!r} gives {expanded!r}; it must be absolute")
    return Path(expanded)


def run_dir(request: dict[str, Any], *, must_exist: bool = True) -> RunDir:
    """Return the run directory that a request names.

    Raises:
        Refusal: `bad_request` for a name that is no run name, `not_found` for a run that is not there.
    """
    run = RunDir(resolve_state(request.get("state_dir")), checked_name(request.get("run")))
    if must_exist and not run.path.is_dir():
        raise Refusal("not_found", f'no run "{run.name}" in {run.path.parent}')
    return run


def checked_name(name: object) -> str:
    """Return `name` if it can be a run's name.

    Raises:
        Refusal: It cannot.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name) or ".." in name:
        message = f"run: {name!r} is no run name"
        raise Refusal(
            "bad_request", message, "a letter or digit, then up to 63 letters, digits, . _ - (no ..)"
        )
    return name


def all_runs(state: Path) -> list[RunDir]:
    """Every run of a state directory, by name."""
    try:
        names = sorted(os.listdir(state / "runs"))  # noqa: PTH208
    except FileNotFoundError:
        return []
    return [RunDir(state, name) for name in names if NAME.fullmatch(name) and ".." not in name]


def free_bytes(path: Path) -> int | None:
    """Free bytes where `path` is or will be; None if the file system does not say."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None
