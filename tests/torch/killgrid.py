"""Kill -9 in every phase of one run, each time another rank, and look whether training ever noticed.

    python -m tests.torch.killgrid --targets 5 --drafters 3 --seed 1 --out table.md
    python -m tests.torch.killgrid --targets 2 --drafters 1 --every-rank

A chain is one run of a tiny shape: attempt 1 is killed in the first phase, attempt 2 resumes and is killed
in the second, and so on; the last one is left alone. Then losses, evaluations and exported weights are those
of a run that nobody disturbed, bit for bit. Phases are the leader's, from heartbeat.json; ranks are drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.torch.jobs import STEPS, Attempt, Figures, Shape, figures, finish, is_gone, log
from trainer.heartbeat import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

PHASES = tuple(phase.value for phase in Phase)
GONE_S = 120.0  # a silent peer is given up after half an hour
TRIES = 4


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One attempt that was killed, and what it left."""

    phase: str
    seen: str
    """The phase that heartbeat.json told right after the kill."""
    rank: int
    role: str
    attempt: int
    step: int
    code: int
    gone_s: float
    error: dict[str, object] | None

    @property
    def hit(self) -> bool:
        return self.seen == self.phase

    def problems(self) -> list[str]:
        """What is not as it should be."""
        told, where = self.error or {}, f"attempt {self.attempt}, rank {self.rank} in {self.seen}"
        checks = {
            f"gone after {self.gone_s:.1f} s": self.gone_s <= GONE_S,
            f"exit code {self.code}": self.code == 128 + signal.SIGKILL,
            f"error.json names rank {told.get('rank')}": told.get("rank") == self.rank,
            f"error.json says {told.get('message')!r}": "SIGKILL" in str(told.get("message")),
        }
        return [f"{where}: {what}" for what, is_right in checks.items() if not is_right]


def kill_in_phase(run: Path, shape: Shape, phase: str, rank: int, draw: random.Random) -> Kill | None:
    """Start an attempt and kill the rank in a phase; None if the attempt or the rank ended before that.

    In training the kill comes after some steps, and in the first phase, which is long, after some time.
    """
    attempt = Attempt(run, shape)
    try:
        seconds = draw.random() / 2 if phase == "init" else 0.0
        if not attempt.reach(phase, steps=draw.randrange(3), seconds=seconds):
            return None
        is_late = is_gone(attempt.pids[rank])
        with suppress(ProcessLookupError):
            os.kill(attempt.pids[rank], signal.SIGKILL)
        began, seen, step = time.monotonic(), attempt.told(), attempt.step()
        code = attempt.await_end()
        gone_s = time.monotonic() - began
    finally:
        attempt.end()
    if is_late or (phase == "done" and code == 0):
        return None
    error = attempt.folder / "error.json"
    return Kill(
        phase=phase,
        seen=str(seen.get("phase")),
        rank=rank,
        role=shape.role(rank),
        attempt=attempt.number,
        step=step,
        code=code,
        gone_s=gone_s,
        error=json.loads(error.read_text()) if error.exists() else None,
    )


def chain(run: Path, shape: Shape, ranks: Mapping[str, int], seed: int) -> list[Kill]:
    """Kill a rank in each phase, then let the run end; every attempt that was killed, misses included.

    A phase may be over before the kill is out; it is then tried again in the next attempt.

    Raises:
        AssertionError: a phase was missed each time, or the last attempt failed.
    """
    draw = random.Random(seed)
    kills: list[Kill] = []
    for phase, rank in ranks.items():
        for _ in range(TRIES):
            kill = kill_in_phase(run, shape, phase, rank, draw)
            if kill is not None:
                kills.append(kill)
            if kill is not None and kill.hit:
                break
        else:
            raise AssertionError(f"{phase} was over {TRIES} times before rank {rank} was killed")
    code = finish(run, shape)
    assert code == 0, f"the last attempt ended with {code}:\n{log(run)}"
    return kills


def leftovers(run: Path) -> list[str]:
    """Files in the run's directory that a killed attempt should not have left."""
    hidden = [*run.glob(".*"), *(run / "checkpoints").glob(".*"), *(run / "export").glob(".*")]
    return sorted(str(path.relative_to(run)) for path in hidden)


def draw_ranks(shape: Shape, seed: int) -> dict[str, int]:
    """A rank for each phase."""
    draw = random.Random(seed)
    return {phase: draw.randrange(shape.ranks) for phase in PHASES}


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    shape = Shape(targets=options.targets, drafters=options.drafters)
    root = options.folder or Path(tempfile.mkdtemp(prefix="killgrid-"))
    ranks = range(shape.ranks) if options.every_rank else [0]
    assert finish(root / "undisturbed", shape) == 0, log(root / "undisturbed")
    expected = figures(root / "undisturbed")
    kills: list[Kill] = []
    problems: list[str] = []
    for offset in ranks:
        if options.every_rank:
            drawn = {phase: (offset + place) % shape.ranks for place, phase in enumerate(PHASES)}
        else:
            drawn = draw_ranks(shape, options.seed)
        run = root / f"chain-{offset}"
        found = chain(run, shape, drawn, options.seed + offset)
        problems += [f"chain {offset}: {problem}" for problem in judge(run, found, expected)]
        kills += found
        print(
            f"chain {offset}: ranks {[*drawn.values()]}, {len(found)} kills, {len(problems)} problems so far",
            flush=True,
        )
    text = table(shape, kills, problems, len(ranks))
    print(text)
    if options.out:
        options.out.write_text(text)
    if not options.folder and not problems:
        shutil.rmtree(root)
    return 1 if problems else 0


def judge(run: Path, kills: list[Kill], expected: Figures) -> list[str]:
    """What a finished chain has wrong."""
    found = figures(run)
    problems = [problem for kill in kills for problem in kill.problems()]
    problems += [f"left behind: {path}" for path in leftovers(run)]
    if found.losses != expected.losses:
        steps = [step for step, loss in expected.losses.items() if found.losses.get(step) != loss]
        problems.append(f"losses differ from the undisturbed run's at steps {steps}")
    if found.lengths != expected.lengths:
        problems.append(f"acceptance lengths {found.lengths}, undisturbed {expected.lengths}")
    if found.weights != expected.weights:
        problems.append("exported weights differ from the undisturbed run's")
    return problems


def table(shape: Shape, kills: list[Kill], problems: list[str], chains: int) -> str:
    """Markdown: one line a kill."""
    slowest = max(kill.gone_s for kill in kills)
    told = (
        f"{shape.targets} targets + {shape.drafters} drafters, {STEPS} steps, {chains} chains, {len(kills)} "
        f"kills; the launcher and every rank gone within {slowest:.1f} s of each."
    )
    lines = [
        told,
        "",
        "| phase | rank | step | all gone after | exit | error.json |",
        "|---|---|---|---|---|---|",
    ]
    for kill in kills:
        phase = kill.phase if kill.hit else f"{kill.seen} ({kill.phase} was over)"
        words = (kill.error or {}).get("message", "none")
        rank = f"{kill.rank} ({kill.role})"
        lines.append(f"| {phase} | {rank} | {kill.step} | {kill.gone_s:.1f} s | {kill.code} | {words} |")
    lines += [
        "",
        *(
            problems
            or ["Losses, acceptance lengths and exported weights: bit for bit the undisturbed run's."]
        ),
    ]
    return "\n".join(lines) + "\n"


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torch.killgrid", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--targets", type=int, default=2, help="0: each rank is target and drafter")
    parser.add_argument("--drafters", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1, help="draws the rank killed in each phase, and when")
    parser.add_argument(
        "--every-rank", action="store_true", help="a chain for each rank: all phases, all ranks"
    )
    parser.add_argument("--out", type=Path, help="write the table there too")
    parser.add_argument("--folder", type=Path, help="keep the runs there")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
