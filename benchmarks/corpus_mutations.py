"""How answers hold when labelled logs are changed: widths, colours, rank marks, two ranks, cut at every line.

    python -m benchmarks.corpus_mutations FOLDER        or with the folder in DFLASHCTL_CORPUS
    python -m benchmarks.corpus_mutations FOLDER --only width-60 cut-head --wrong --json

The folder has `index.jsonl` and the files that it names, as `replay` reads them; ambiguous logs are left out.
Per change: how many answers are right (or one that the label accepts), how many say too little (unknown, any
exception, a bare launcher's table or signal, healthy or nothing), how many name something else, how many show
the label's line where that can be seen, and how many would be relaunched though the playbook relaunches
nothing of what it really was. A log that is cut may have lost its line: counted apart.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import OrchestratorError
from orchestrator.replay.judge import judge_log, shipped_playbook
from orchestrator.replay.labels import INDEX, Label, read_labels
from orchestrator.replay.score import Answer
from orchestrator.replay.unwrap import Unwrapper
from orchestrator.types.failure import FailureClass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrator.playbook import Playbook

_F = FailureClass
WIDTHS = (60, 80, 100, 132)
STEP = "step {}/9000 loss 2.314 lr 5.9e-04 grad 0.71 12.3 ktok/s 0.31 s/step"
# Nobody's launcher marks these with a rank: ssh, pct and tmux speak for themselves.
UNRANKED = (_F.SSH_ERROR, _F.PCT_ERROR, _F.TMUX_ERROR)
VAGUE = (
    *(_F.UNKNOWN, _F.PYTHON_EXCEPTION, _F.TORCHRUN_WRAPPER, _F.SIGNAL_EXIT),
    *(_F.HEALTHY, _F.COMPLETED),
)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One changed log: its lines, the width they are wrapped at, whether the label's line is still there."""

    text: str
    width: int | None = None
    exit_status: int | None = None
    has_line: bool = True


@dataclass
class Row:
    """The count of answers for one kind of change."""

    change: str
    logs: int = 0
    right: int = 0
    vague: int = 0
    wrong: int = 0
    lined: int = 0
    evidence: int = 0
    relaunched_though_call: int = 0
    told: Counter[str] = field(default_factory=Counter)

    def add(self, answer: Answer, playbook: Playbook, *, has_line: bool) -> None:
        """Count one answer."""
        said = answer.found.failure
        is_vague = not answer.is_right and said in VAGUE
        is_lined = answer.label.has_line and has_line
        is_against = answer.is_relaunched_against(playbook)
        self.logs += 1
        self.right += answer.is_right
        self.vague += is_vague
        self.wrong += not answer.is_right and not is_vague
        self.lined += is_lined
        self.evidence += is_lined and answer.has_evidence
        self.relaunched_though_call += is_against
        if not answer.is_right or is_against:
            self.told[f"{answer.label.file}: {said.value}"] += 1


def unwrapped(data: bytes, width: int | None) -> str:
    """Return a log with the lines joined that fill its pane."""
    if width is None:
        return data.decode("utf-8", "replace")
    unwrapper = Unwrapper(width)
    return (unwrapper.feed(data) + unwrapper.end()).decode("utf-8", "replace")


def wrapped(text: str, width: int) -> str:
    """Return a text as a pane of `width` columns shows it; a redrawn bar shows its last state."""
    rows: list[str] = []
    for line in text.split("\n"):
        shown = line.rstrip("\r").rsplit("\r", 1)[-1]
        rows.extend(shown[at : at + width] for at in range(0, max(len(shown), 1), width))
    return "\n".join(rows)


def _as_is(text: str, label: Label) -> Iterator[Mutant]:
    del label
    yield Mutant(text=text)


def _width(columns: int) -> Callable[[str, Label], Iterator[Mutant]]:
    def change(text: str, label: Label) -> Iterator[Mutant]:
        del label
        yield Mutant(text=wrapped(text, columns), width=columns)

    return change


def _colours(text: str, label: Label) -> Iterator[Mutant]:
    del label
    coloured = (f"\x1b[1;3{n % 8}m{line}\x1b[0m\x1b[K" for n, line in enumerate(text.split("\n")))
    yield Mutant(text="\n".join(coloured))


def _carriage(text: str, label: Label) -> Iterator[Mutant]:
    del label
    yield Mutant(text=text.replace("\r\n", "\n").replace("\n", "\r\n"))


def _ranked(mark: str) -> Callable[[str, Label], Iterator[Mutant]]:
    def change(text: str, label: Label) -> Iterator[Mutant]:
        if label.failure not in UNRANKED:
            yield Mutant(text="\n".join(mark + line for line in text.split("\n")))

    return change


def _two_ranks(text: str, label: Label) -> Iterator[Mutant]:
    if label.failure not in UNRANKED:
        lines = text.split("\n")
        yield Mutant(text="\n".join(f"[rank0]: {line}\n[rank1]: {line}" for line in lines))


def _beside(text: str, label: Label) -> Iterator[Mutant]:
    """Another rank's steps between the lines, and none after the last."""
    if label.failure not in UNRANKED:
        lines = text.rstrip("\n").split("\n")
        pairs = (f"[rank1]: {STEP.format(100 + n)}\n[rank0]: {line}" for n, line in enumerate(lines))
        yield Mutant(text="\n".join(pairs) + "\n")


def _cut_head(text: str, label: Label) -> Iterator[Mutant]:
    """Only the last lines, as many as a small pane shows: from all but the first to the last alone."""
    lines = text.rstrip("\n").split("\n")
    for start in range(1, len(lines)):
        rest = "\n".join(lines[start:]) + "\n"
        yield Mutant(text=rest, exit_status=label.exit_status, has_line=_holds(rest, label))


def _cut_tail(text: str, label: Label) -> Iterator[Mutant]:
    """Only the first lines, the program still running."""
    lines = text.rstrip("\n").split("\n")
    for stop in range(1, len(lines)):
        rest = "\n".join(lines[:stop]) + "\n"
        yield Mutant(text=rest, has_line=_holds(rest, label))


def _holds(text: str, label: Label) -> bool:
    wanted = "".join(label.root_cause_line.split())
    return label.has_line and wanted in "".join(text.split())


CHANGES: dict[str, Callable[[str, Label], Iterator[Mutant]]] = {
    "as-is": _as_is,
    **{f"width-{columns}": _width(columns) for columns in WIDTHS},
    "colours": _colours,
    "crlf": _carriage,
    "rank-marks": _ranked("[rank3]: "),
    "worker-marks": _ranked("(Worker pid=4711) "),
    "time-marks": _ranked("2026-11-29 12:00:01,123 "),
    "two-ranks": _two_ranks,
    "beside-steps": _beside,
    "cut-head": _cut_head,
    "cut-tail": _cut_tail,
}
CUTS = ("cut-head", "cut-tail")


def measure(change: str, labels: list[tuple[Label, bytes]], *, has_line: bool = True) -> Row:
    """Return the counts of one change over all logs; of a cut one those with or without the label's line."""
    playbook = shipped_playbook()
    is_cut = change in CUTS
    row = Row(f"{change}, {'with' if has_line else 'without'} its line" if is_cut else change)
    for label, data in labels:
        for mutant in CHANGES[change](unwrapped(data, label.width), label):
            if is_cut and mutant.has_line is not has_line:
                continue
            status = mutant.exit_status if is_cut else label.exit_status
            text = mutant.text.encode()
            found = judge_log(text, exit_status=status, width=mutant.width, playbook=playbook)
            row.add(Answer(label=label, found=found), playbook, has_line=mutant.has_line)
    return row


def read(folder: Path) -> list[tuple[Label, bytes]]:
    """Return the labelled logs of a folder that are not ambiguous."""
    return [
        (label, (folder / label.file).read_bytes())
        for label in read_labels(folder / INDEX)
        if not label.ambiguous
    ]


def main(argv: list[str] | None = None) -> int:
    """Measure each change asked for and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", nargs="?", default=os.environ.get("DFLASHCTL_CORPUS"), help="the labelled logs"
    )
    parser.add_argument("--only", nargs="*", choices=CHANGES, default=list(CHANGES), metavar="CHANGE")
    parser.add_argument("--wrong", action="store_true", help="name the logs that are answered wrong")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    args = parser.parse_args(argv)
    if args.folder is None:
        parser.error("name a folder of labelled logs, or set DFLASHCTL_CORPUS")
    try:
        labels = read(Path(args.folder))
    except (OrchestratorError, OSError) as error:
        print(f"corpus_mutations: {error}", file=sys.stderr)
        return 2
    rows = []
    if not args.json:
        print(
            "| change | logs | right | says too little | names another | its line | relaunched though call |"
        )
        print("|---|---|---|---|---|---|---|")
    for change in args.only:
        for has_line in (True, False) if change in CUTS else (True,):
            row = measure(change, labels, has_line=has_line)
            rows.append(asdict(row))
            if not args.json:
                _print(row, is_wrong_told=args.wrong)
    if args.json:
        print(json.dumps(rows))
    return 0


def _print(row: Row, *, is_wrong_told: bool) -> None:
    counts = (row.right, row.vague, row.wrong)
    shares = " | ".join(f"{count} ({_percent(count, row.logs)})" for count in counts)
    line = f"{row.evidence} of {row.lined} ({_percent(row.evidence, row.lined)})" if row.lined else "-"
    shares += f" | {line} | {row.relaunched_though_call}"
    print(f"| {row.change} | {row.logs} | {shares} |", flush=True)
    if is_wrong_told:
        for name, count in row.told.most_common():
            print(f"    {count} {name}")


def _percent(count: int, total: int) -> str:
    return f"{100 * count / max(total, 1):.0f} %"


if __name__ == "__main__":
    sys.exit(main())
