"""Two logs of a class, from the tests: one that is it, and one that looks like it and is not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from scripts.docs.included import REPOSITORY
from scripts.docs.text import block, prose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.types.failure import FailureClass

FOLDER = REPOSITORY / "tests" / "transcripts"
MOST_LINES = 16
_STEP = re.compile(r"step \d+/\d+ ")


def examples(failure: FailureClass) -> str:
    """Return the part of a page; empty where no log is kept of the class."""
    # What leans on the case beside it ("The same over gloo.") comes last.
    cases = sorted(filter(_log, _cases(failure)), key=lambda case: str(case["says"]).startswith("The same"))
    is_it = next((case for case in cases if _named(case) == failure.value), None)
    is_not = next((case for case in cases if _named(case) != failure.value), None)
    parts = [
        f"**{title}** {prose(case['says'])}\n\n{_shown(case)}"
        for title, case in (("This is it.", is_it), ("This is not.", is_not))
        if case is not None
    ]
    return "\n\n".join(["## Two logs", *parts] if len(parts) > 1 else [])


def _cases(failure: FailureClass) -> Iterator[dict[str, Any]]:
    for path in sorted((FOLDER / failure.value).glob("*.yaml")):
        yield yaml.safe_load(path.read_text(encoding="utf-8"))


def _named(case: dict[str, Any]) -> str:
    return str(case["expect"]["failure"])


def _log(case: dict[str, Any]) -> str:
    """Return the end of what was read, without the steps before the last one at its beginning."""
    lines = str(case.get("log") or case.get("pane") or "").splitlines()
    while len(lines) > 1 and _STEP.match(lines[0]) and _STEP.match(lines[1]):
        del lines[0]
    return "\n".join(lines[-MOST_LINES:])


def _shown(case: dict[str, Any]) -> str:
    """Return the log, what else was known, and what it is then."""
    ended = [f"{key} {value}" for key, value in (case.get("exit") or {}).items() if value is not None]
    host = [str(line) for line in case.get("host_lines") or ()]
    expect = case["expect"]
    state, name = expect["state"].replace("_", " "), expect["failure"]
    verdict = f"{state}, `{name}`" if name not in (None, expect["state"]) else state
    known = [f"Its exit record: {', '.join(ended)}."] if ended else []
    said = [f"The host's kernel log:\n\n{block(chr(10).join(host))}"] if host else []
    return "\n\n".join([block(_log(case)), *said, " ".join([*known, f"So: {verdict}."])])
