"""The counts of a labelled replay, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.cli.tables import print_table
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from rich.console import Console

_LISTS = (
    ("wrong", "answered wrong"),
    ("evidence_missed", "evidence line not found"),
    ("alarmed", "well, and not left alone"),
    ("relaunched_though_call", "would be relaunched though a person should be called"),
)


def print_score(out: Console, counts: Mapping[str, Any]) -> None:
    """Print totals, precision and recall by class, what was taken for what, and every miss."""
    for part, whole, what in (
        ("right", "cases", "right"),
        ("unambiguous_right", "unambiguous", "of the unambiguous right"),
        ("evidence_found", "with_evidence_line", "evidence lines found"),
        ("well_and_silent", "well", "that were well left alone"),
    ):
        share = f" ({counts[part] / counts[whole]:.1%})" if counts[whole] else ""
        out.print(f"{counts[part]} of {counts[whole]} {what}{share}", markup=False)
    rows = [
        [name, str(row["cases"]), _share(row["precision"]), _share(row["recall"])]
        for name, row in counts["classes"].items()
    ]
    print_table(("CLASS", "CASES", "PRECISION", "RECALL"), rows, elastic={"CLASS": 16})
    for pair in counts["confusion"]:
        out.print(f"{pair['label']} taken for {pair['said']}: {pair['count']}", markup=False)
    for key, title in _LISTS:
        for case in counts[key]:
            mark = ", ambiguous" if case["ambiguous"] else ""
            line = one_line(case["line"] or "no line", 100)
            where = one_line(case["file"], 100)
            told = f"{case['label']} -> {case['said']}, {case['decision']}{mark}: {line}"
            out.print(f"{title}: {where}: {told}", markup=False)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
