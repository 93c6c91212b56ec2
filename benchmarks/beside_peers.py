"""Our step beside the peers' in one run: each in a process of its own, taking turns on one device.

    python -m benchmarks.beside_peers --src FOLDER
    python -m benchmarks.beside_peers --src FOLDER --shape packed --impl flex --impl automodel --json
    python -m benchmarks.beside_peers --src FOLDER --tiny --device cpu     whether all give the same loss

FOLDER has each peer's repository in a folder of its name: SpecForge, TorchSpec, Automodel, speculators. None
of it is copied. The order of a round is that of --impl, and the next round begins anew: A, B, C, A, B, C. The
first step of all has the same weights, tokens, hidden states and anchors, so its losses are compared; later
ones draw their own. Trainers that cannot pack get each document in a row of its own.

Variants, after a plus: flex+rows and automodel+rows (a document a row), specforge+mask (its mask compiled,
which it does not do by itself), automodel+compile (its drafter compiled, an option of its recipes).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.beside_process import Trainer, TrainerFailed
from benchmarks.peer_sources import SOURCES

OURS = ("flex", "flex+rows", "flash")
IMPLEMENTATIONS = (*OURS, *SOURCES, "specforge+mask", "automodel+rows", "automodel+compile")
DEFAULT = ("flex", "specforge", "torchspec", "automodel")
SHAPES = ("seed", "packed", "small")
SAME_LOSS = {"cpu": 1e-5, "cuda": 2e-3}
"""How far the first loss may be from ours, as a share of it."""
HEADINGS = (
    "| | rows | anchors | ms a step (median; of each turn) | context tokens/s | to the best peer | "
    "peak GiB | first step s | recompiles | first loss |"
)


@dataclass(slots=True)
class Row:
    """What one trainer did."""

    implementation: str
    layout: str
    facts: dict[str, Any] = field(default_factory=dict)
    first: dict[str, Any] = field(default_factory=dict)
    turns: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""

    @property
    def ours(self) -> bool:
        """Whether it is this trainer."""
        return self.implementation in OURS

    @property
    def median_ms(self) -> float:
        """Of a step, over all turns."""
        return float(statistics.median(ms for turn in self.turns for ms in turn["ms"]))

    @property
    def tokens_per_s(self) -> float:
        """Context tokens."""
        return float(self.facts["tokens"]) / self.median_ms * 1000


def main(argv: list[str] | None = None) -> int:
    """Measure each shape; 1 if a trainer failed or a loss is not ours, 2 if a source is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--src", type=Path, help="the folder with the peers' repositories")
    parser.add_argument("--shape", action="append", choices=SHAPES, help="default: all")
    parser.add_argument(
        "--impl", action="append", choices=IMPLEMENTATIONS, help="default: " + ", ".join(DEFAULT)
    )
    parser.add_argument("--rounds", type=int, default=2, help="turns of each (default 2)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps a turn (default 5)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="dimensions that a CPU computes in no time")
    parser.add_argument("--patience", type=float, default=300, help="seconds to wait for an answer")
    parser.add_argument("--json", action="store_true", help="a line for each shape")
    options = parser.parse_args(argv)
    implementations = list(dict.fromkeys(options.impl or DEFAULT))
    if options.rounds < 1 or options.steps < 1:
        parser.error("--rounds and --steps: at least 1")
    for base in dict.fromkeys(name.partition("+")[0] for name in implementations):
        if base in SOURCES and (missing := SOURCES[base].missing(options.src)):
            parser.error(f"{missing}; or choose others with --impl")
    well = True
    for shape in options.shape or SHAPES:
        rows = measure(shape, implementations, options)
        faults = differing(rows, SAME_LOSS[options.device], options.device)
        if options.json:
            print(json.dumps(told(shape, rows, faults)), flush=True)
        else:
            print("\n".join(table(shape, rows, faults)), flush=True)
        well = well and not faults and not any(row.failure for row in rows)
    return 0 if well else 1


def layout_of(shape: str, implementation: str) -> str:
    """How documents lie for it: in one row where it can pack them."""
    base, _, variant = implementation.partition("+")
    packs = base in ("flex", "flash") or SOURCES[base].packs
    return "packed" if (packs and variant != "rows") or shape != "packed" else "rows"


def measure(shape: str, implementations: list[str], options: argparse.Namespace) -> list[Row]:
    """All get ready at once, then nothing on the device overlaps."""
    rows = [Row(name, layout_of(shape, name)) for name in implementations]
    with tempfile.TemporaryDirectory(prefix="beside-") as logs:
        trainers = [
            Trainer(row.implementation, shape, row.layout, options, Path(logs) / f"{number}.log")
            for number, row in enumerate(rows)
        ]
        try:
            _ask(rows, trainers, None, options.patience)
            _ask(rows, trainers, "first", options.patience)
            for _ in range(options.rounds):
                _ask(rows, trainers, options.steps, options.patience)
        finally:
            for trainer in trainers:  # all at once: a process takes seconds to let go of a GPU
                trainer.dismiss()
            for trainer in trainers:
                trainer.end()
    return rows


def _ask(rows: list[Row], trainers: list[Trainer], what: str | int | None, patience: float) -> None:
    """One after another; who fails is left out from then on."""
    for row, trainer in zip(rows, trainers, strict=True):
        if row.failure:
            continue
        try:
            answer = trainer.answer(what, patience)
        except TrainerFailed as failure:
            row.failure = str(failure)
            trainer.end()
            _say(row, row.failure)
            continue
        if what is None:
            row.facts = answer
        elif what == "first":
            row.first = answer
            _say(row, f"first step {answer['first_step_s']:.1f} s, loss {answer['loss']:.6f}")
        else:
            row.turns.append(answer)
            _say(row, f"{statistics.median(answer['ms']):.1f} ms a step")


def _say(row: Row, words: str) -> None:
    """As it happens: the table comes last."""
    print(f"{row.implementation}: {words}", file=sys.stderr, flush=True)


def differing(rows: list[Row], bound: float, device: str) -> list[str]:
    """First losses that are not ours; on a CPU TorchSpec has no mask, and is not looked at."""
    faults = []
    for row in rows:
        if row.ours or not row.first or (device == "cpu" and row.implementation == "torchspec"):
            continue
        same = [other for other in rows if other.ours and other.first and other.layout == row.layout]
        for ours in same[:1]:
            loss, wanted = row.first["loss"], ours.first["loss"]
            if not math.isclose(loss, wanted, rel_tol=bound):
                faults.append(f"{row.implementation}: its first loss is {loss:.6f}, ours {wanted:.6f}")
    return faults


def best_peer(rows: list[Row]) -> Row | None:
    """The fastest of the others."""
    peers = [row for row in rows if not row.ours and row.turns and not row.failure]
    return max(peers, key=lambda row: row.tokens_per_s, default=None)


def told(shape: str, rows: list[Row], faults: list[str]) -> dict[str, Any]:
    """The table as an object."""
    best = best_peer(rows)
    return {
        "shape": shape,
        "best_peer": best and best.implementation,
        "faults": faults,
        "trainers": [_told(row, best) for row in rows],
    }


def _told(row: Row, best: Row | None) -> dict[str, object]:
    told: dict[str, object] = {"implementation": row.implementation, "layout": row.layout, **row.facts}
    if row.failure or not row.turns:
        return told | {"failure": row.failure}
    peaks = [answer["peak_gib"] for answer in (row.first, *row.turns)]
    return told | {
        "median_ms": round(row.median_ms, 1),
        "turns_ms": [round(statistics.median(turn["ms"]), 1) for turn in row.turns],
        "context_tokens_per_s": round(row.tokens_per_s),
        "of_best_peer": round(row.tokens_per_s / best.tokens_per_s, 3) if best else None,
        "peak_gib": None if None in peaks else round(max(peaks), 2),
        "first_step_s": round(row.first["first_step_s"], 1),
        "recompiles": row.turns[-1]["recompiles"],
        "first_loss": round(row.first["loss"], 6),
    }


def table(shape: str, rows: list[Row], faults: list[str]) -> list[str]:
    """In Markdown, as `RESULTS.md` has it."""
    facts: dict[str, Any] = next((row.facts for row in rows if row.facts), {})
    lines = [
        f"{shape}: {facts.get('device')}, torch {facts.get('torch')}",
        "",
        HEADINGS,
        "|---" * (HEADINGS.count("|") - 1) + "|",
    ]
    best = best_peer(rows)
    for row in rows:
        cell = _told(row, best)
        if "failure" in cell:
            lines.append(f"| {row.implementation} | failed: {row.failure} |")
            continue
        turns = ", ".join(map(str, cell["turns_ms"]))  # type: ignore[call-overload]
        lines.append(
            f"| {row.implementation} | {cell['rows']} | {cell['anchors']} x {cell['block_size']} | "
            f"{cell['median_ms']}; {turns} | {cell['context_tokens_per_s']:,} | {cell['of_best_peer']} | "
            f"{cell['peak_gib']} | {cell['first_step_s']} | {cell['recompiles']} | {cell['first_loss']} |"
        )
    return [*lines, *faults, ""]


if __name__ == "__main__":
    sys.exit(main())
