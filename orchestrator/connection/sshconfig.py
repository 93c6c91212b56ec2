"""~/.ssh/config as fabric wants it, with `Include`, which paramiko passes over."""

from __future__ import annotations

import glob
import os
import shlex
from pathlib import Path

import fabric
import paramiko

from orchestrator.connection.translate import translating
from orchestrator.errors import ConfigError
from orchestrator.userfile import read_text

MAX_DEPTH = 16  # OpenSSH's own
SYSTEM = Path("/etc/ssh/ssh_config")
_AS_EMPTY = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)  # as ssh takes them


def load(path: Path | None = None, ahead: str = "") -> fabric.Config:
    """Return fabric's configuration over one ssh config, or over the user's and then the system's.

    `ahead` is ssh config that wins over both, as options do over files.

    fabric's own files and environment variables are left out: they can hold passwords and switch checks off.

    Raises:
        ConfigError: The ssh config is not readable, or no plain file.
    """
    paths = [path] if path is not None else [Path("~/.ssh/config").expanduser(), SYSTEM]
    text = "\nHost *\n".join([ahead, *(expand(each) for each in paths)])
    with translating(str(paths[0])):
        config = paramiko.SSHConfig.from_text(text)
    return fabric.Config(overrides={"user": "root"}, ssh_config=config, lazy=True)


def expand(path: Path, depth: int = 0) -> str:
    """Return the text of one ssh config with its `Include` lines replaced by the files; "" without one.

    Raises:
        ConfigError: It, or one that it includes, is there but is no plain file, or is far too large for one.
    """
    try:
        text = read_text(path, errors="replace")
    except _AS_EMPTY:
        return ""
    except OSError as error:
        if path.exists() and path.samefile(os.devnull):
            return ""
        # Without it the user and the jump hosts would be others, and the wrong machine be asked.
        raise ConfigError(f"{path}: the ssh config cannot be read: {error.strerror or error}") from error
    lines: list[str] = []
    block = "Host *"
    for line in text.splitlines():
        keyword, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        if keyword.lower() in ("host", "match"):
            block = line.strip()
        if keyword.lower() != "include" or depth >= MAX_DEPTH:
            lines.append(line)
            continue
        for included in _files(rest, path):
            lines.append(expand(included, depth + 1))
        lines.append(block)  # what an included file opened ends with it
    return "\n".join(lines)


def _files(patterns: str, path: Path) -> list[Path]:
    folder = path.parent if path == SYSTEM else Path("~/.ssh").expanduser()
    try:
        words = shlex.split(patterns, comments=True)
    except ValueError:
        return []
    found: list[Path] = []
    for word in words:
        found += [Path(name) for name in sorted(glob.glob(str(folder / Path(word).expanduser())))]  # noqa: PTH207
    return found
