"""`stacks`: where every rank of a run is right now, kept in `attempts/<n>/stacks/<time>/`.

A rank is asked by py-spy if the container has it, else by the signal that it registered: it holds a file
open whose name carries its rank, its process id and the signal. Nobody else is ever signalled, for a
process that does not know the signal would die of it. Then the flight recorder of NCCL, if it is on.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.guest import asked, clock, files, flight, liveness, paths, processes, stackdump
from orchestrator.guest.masks import RunMasks
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator import wire
    from orchestrator.guest.link import Link

REGISTERED = re.compile(r"\.rank-(\d+)\.(\d+)\.(\d+)")
MAX_PROCESSES = 64
MAX_FILE_BYTES = 1 << 20
MAX_TEXT_CHARS = 100_000  # escaped six to one it still fits a line of the wire


@dataclass(frozen=True)
class Rank:
    """A process to ask; `signal` is None for one that registered none."""

    pid: int
    rank: int | None = None
    signal: int | None = None
    file: Path | None = None

    @property
    def name(self) -> str:
        """What its kept file is called."""
        return f"rank-{self.rank}.txt" if self.rank is not None else f"pid-{self.pid}.txt"


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer a `stack` per process, then `stacks`."""
    del verb
    place = paths.run_dir(request)
    number = _attempt(place, request)
    directory = place.attempt(number)
    pids = liveness.look(place, [number]).pids
    if not pids:
        raise Refusal("not_found", f'nothing of run "{place.name}" lives, so there are no stacks')
    ranks = find_ranks(directory, pids)
    told, problems = stackdump.dump(ranks)
    folder = _folder(directory, problems)
    masker = RunMasks(place).current()  # py-spy prints command lines
    kept = []
    for rank, dump in zip(ranks, told, strict=True):
        file = _keep(folder, rank.name, dump.text, problems)
        kept += [file] if file else []
        fields = {**dump.fields(), "rank": rank.rank, "file": _relative(place, folder, file)}
        text = _bounded(masker.text(dump.text))
        link.tell("stack", {"run": place.name, "attempt": number, **masker.json(fields), "text": text})
    found, troubles = flight.collect([(rank.pid, rank.rank) for rank in ranks], folder)
    answer = {
        "run": place.name,
        "attempt": number,
        "path": _relative(place, folder, ""),
        "files": [*kept, *found],
        "problems": [*problems, *troubles],
    }
    link.tell("stacks", answer)


def _attempt(place: paths.RunDir, request: wire.Message) -> int:
    newest = place.attempts()[-1:]
    wanted = asked.integer(request, "attempt", 0) or (newest[0] if newest else 0)
    if [wanted] != newest:
        raise Refusal("not_found", f'attempt {wanted} of run "{place.name}" is not the newest one')
    return wanted


def find_ranks(directory: Path, pids: tuple[int, ...]) -> list[Rank]:
    """Return the ranks that registered, by rank; without any, every Python of the run.

    A name alone proves nothing, for process ids are used again: the process must be of the run, hold that
    very file open, and catch the signal.
    """
    found: list[Rank] = []
    folder = directory / "stacks"
    for name in sorted(os.listdir(folder)) if folder.is_dir() else ():  # noqa: PTH208
        match = REGISTERED.fullmatch(name)
        if match is None:
            continue
        rank, pid, number = map(int, match.groups())
        if pid in pids and stackdump.catches(pid, number) and processes.has_open(pid, folder / name):
            found.append(Rank(pid, rank, number, folder / name))
    if not found:
        found = [Rank(pid) for pid in pids if stackdump.is_python(pid)] or [Rank(pid) for pid in pids]
    return sorted(found, key=lambda each: (each.rank or 0, each.pid))[:MAX_PROCESSES]


def _folder(directory: Path, problems: list[str]) -> Path | None:
    """Make this look's own folder; None on a full disk: then the stacks are told and not kept."""
    stamp = clock.now().replace("-", "").replace(":", "")
    folder = directory / "stacks" / stamp
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        problems.append(f"the stacks could not be kept: {error.strerror}")
        return None
    return folder


def _keep(folder: Path | None, name: str, text: str, problems: list[str]) -> str | None:
    if folder is None or not text:
        return None
    try:
        files.write_text(folder / name, text[:MAX_FILE_BYTES])
    except OSError as error:
        problems.append(f"{name} could not be kept: {error.strerror}")
        return None
    return name


def _relative(place: paths.RunDir, folder: Path | None, name: str | None) -> str | None:
    """Return a path below the run's directory, as `pull` takes it."""
    if folder is None or name is None:
        return None
    return str((folder / name).relative_to(place.path))


def _bounded(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    return f"{text[:MAX_TEXT_CHARS]}\n... {len(text) - MAX_TEXT_CHARS} characters left out\n"
