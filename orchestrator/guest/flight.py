"""NCCL's flight recorder: what each rank's last collectives were, dumped by torch when it is asked.

Its variables, in torch's ProcessGroupNCCL: a buffer size above 0 turns it on; `<dump file><rank>` is where a
rank writes; anything written into `<pipe><rank>.pipe` makes it write now. Only what a rank's own environment
names is touched.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.guest import clock, files

if TYPE_CHECKING:
    from collections.abc import Sequence

DUMP_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
PIPE = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DEBUG_INFO_PIPE_FILE")
LIMIT_S = 6.0  # torch looks at its pipe about once a second
SETTLED_S = 0.3
MAX_DUMP_BYTES = 256 << 20


def collect(ranks: Sequence[tuple[int, int | None]], folder: Path | None) -> tuple[list[str], list[str]]:
    """Ask each (pid, rank) for a dump and copy it to `folder`; return what was kept, and problems."""
    dumps: dict[Path, files.Stamp | None] = {}
    asked: set[Path] = set()
    for pid, rank in ranks:
        environ = _environ(pid)
        number = environ.get("RANK", "" if rank is None else str(rank))
        prefix = next((environ[name] for name in DUMP_FILE if environ.get(name)), None)
        if prefix is None or not number.isdecimal():
            continue
        path = Path(f"{prefix}{number}")
        dumps[path] = files.stamp(path)
        pipe = next((environ[name] for name in PIPE if environ.get(name)), None)
        if pipe is not None and _ask(Path(f"{pipe}{number}.pipe")):
            asked.add(path)
    _await_new({path: dumps[path] for path in asked})
    kept, problems = [], []
    for path, before in dumps.items():
        is_new = files.stamp(path) != before
        if path in asked and not is_new:
            problems.append(f"flight recorder: {path.name} was asked for and did not come")
        if folder is None or not (is_new or before is not None):
            continue
        try:
            kept.append(_copy(path, folder))
        except OSError as error:
            problems.append(f"flight recorder: {path.name}: {error.strerror}")
    return kept, problems


def _environ(pid: int) -> dict[str, str]:
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.split(b"=", 1) for item in data.split(b"\0") if b"=" in item)
    return {os.fsdecode(name): os.fsdecode(value) for name, value in pairs}


def _ask(pipe: Path) -> bool:
    """Write into the pipe if a rank reads it; never blocks, and never makes a file."""
    try:
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            return False
        os.write(fd, b"1\n")
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _await_new(dumps: dict[Path, files.Stamp | None]) -> None:
    """Wait until each dump was written anew and has come to rest."""
    deadline = clock.ticking() + LIMIT_S
    seen = dict(dumps)
    changed_at = clock.ticking()
    while dumps and clock.ticking() < deadline:
        now = {path: files.stamp(path) for path in dumps}
        if now != seen:
            seen, changed_at = now, clock.ticking()
        has_all = all(seen[path] != dumps[path] for path in dumps)
        if has_all and clock.ticking() - changed_at > SETTLED_S:
            return
        clock.wait(0.05)


def _copy(path: Path, folder: Path) -> str:
    """Copy a dump, which the next one would overwrite."""
    if not path.is_file() or path.stat().st_size > MAX_DUMP_BYTES:
        raise OSError(0, "is no plain file of a bearable size")
    name = f"nccl-{path.name.rsplit('_', 1)[-1]}" if "_" in path.name else path.name
    shutil.copyfile(path, folder / name, follow_symlinks=False)
    return name
