"""rules list, show, test: what each failure looks like, and which rules match a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, counted, load_playbook, print_json
from orchestrator.cli.tables import print_table
from orchestrator.errors import NotFound
from orchestrator.masking import Masker
from orchestrator.terminal import one_line, plain
from orchestrator.types.failure import FailureClass
from orchestrator.types.snapshot import CUSTOM

if TYPE_CHECKING:
    from orchestrator.playbook import Playbook
    from orchestrator.replay.linehits import LineHit
    from orchestrator.userrules import CustomRule

app = typer.Typer(
    help="What each failure looks like, shipped and your own: list, show, test on a log.",
    no_args_is_help=True,
)


@app.command(name="list")
def list_(playbook: options.Playbook = None, as_json: options.Json = False) -> None:
    """List every failure class: whose failure it is, how it is found, and what the playbook does about it.

    Examples:

        dflashctl rules list
        dflashctl rules list --playbook my.yaml --json
    """
    from orchestrator.classify.classes import describe

    book = load_playbook(playbook)
    rows = [{**_info(failure), "act": book.rule(failure).act.value} for failure in FailureClass]
    if as_json:
        print_json({"classes": rows, "custom": [_custom_json(rule) for rule in book.custom]})
        return
    lines = []
    for failure, row in zip(FailureClass, rows, strict=True):
        info = describe(failure)
        count = str(len(row["signatures"]) or "")
        lines.append([info.name, info.domain.value, count, row["act"], info.title])
    for rule in book.custom:
        lines.append([f"{CUSTOM}{rule.name}", "yours", "1", rule.rule.act.value, one_line(rule.label)])
    print_table(("CLASS", "DOMAIN", "RULES", "ACT", "TITLE"), lines, elastic={"TITLE": 16, "CLASS": 16})


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A failure class, such as oom_cuda, or a rule of your own.")],
    playbook: options.Playbook = None,
    as_json: options.Json = False,
) -> None:
    """Show one class: what it means and does not prove, its signatures with examples, and what is done.

    Examples:

        dflashctl rules show fx_trace_race
        dflashctl rules show lustre_stall --playbook my.yaml --json
    """
    book = load_playbook(playbook)
    own = next((rule for rule in book.custom if rule.name == name.removeprefix(CUSTOM)), None)
    if own is not None:
        body = _custom_json(own)
    else:
        failure = _class(name, book)
        rule = book.rule(failure)
        body = {**_info(failure), "act": rule.act.value, "why": rule.why}
    if as_json:
        print_json(body)
    else:
        _print_body(body)


@app.command(name="test")
def match_lines(
    file: Annotated[Path, typer.Argument(help="A log or a pane's text; - is standard input.")],
    exit_status: Annotated[
        int | None, typer.Option("--exit-status", help="What the shell said of its end, if it is known.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="Show at most so many lines.", min=1)] = 200,
    playbook: options.Playbook = None,
    as_json: options.Json = False,
) -> None:
    """Show which rules match which lines of a log, and what all of them together come to.

    Of several shipped rules that match a line the first counts. A line that the
    run went on after does not.

    Examples:

        dflashctl rules test train.log --playbook my.yaml
        dflashctl rules test pane.txt --exit-status 1 --json
    """
    from orchestrator.replay.files import read_chunks
    from orchestrator.replay.judge import judge_chunks

    book = load_playbook(playbook)
    collector = _Collector(book, limit)
    chunks = collector.pass_on(read_chunks(file))
    found = judge_chunks(chunks, exit_status=exit_status, width=None, playbook=book)
    verdict = found.to_json()
    if as_json:
        lines = [_hit_json(hit) for hit in collector.hits]
        print_json({"file": str(file), "matched": collector.num_hits, "lines": lines, "together": verdict})
        return
    out = SETTINGS.out
    for hit in collector.hits:
        rank, body = f" rank {hit.rank}" if hit.rank is not None else "", _hit_json(hit)
        out.print(f"line {hit.number} byte {hit.offset}{rank}: {one_line(body['text'], 160)}", markup=False)
        for rule in body["rules"]:
            out.print(f"    {_rule_text(rule)}", markup=False)
    if collector.num_hits > len(collector.hits):
        out.print(
            f"... and {collector.num_hits - len(collector.hits)} more; --limit shows more", markup=False
        )
    out.print(f"{counted(collector.num_hits, 'line')} matched. Together:", markup=False)
    decision = verdict["decision"]
    out.print(f"  {verdict['state']}: {verdict['class']} - {plain(verdict['summary'])}", markup=False)
    out.print(f"  {decision['kind']}: {decision['reason']}", markup=False)


class _Collector:
    """Keeps the first matching lines of a log that is read for something else."""

    def __init__(self, book: Playbook, limit: int) -> None:
        self.hits: list[LineHit] = []
        self.num_hits = 0
        self._book = book
        self._limit = limit

    def pass_on(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks as they are."""
        from orchestrator.replay.linehits import LineReader

        reader = LineReader(self._book.custom)
        for chunk in chunks:
            self._keep(reader.feed(chunk))
            yield chunk
        self._keep(reader.end())

    def _keep(self, hits: Iterable[LineHit]) -> None:
        for hit in hits:
            self.num_hits += 1
            if len(self.hits) < self._limit:
                self.hits.append(hit)


def _class(name: str, book: Playbook) -> FailureClass:
    try:
        return FailureClass(name)
    except ValueError:
        own = [f"{CUSTOM}{rule.name}" for rule in book.custom]
        known = ", ".join([failure.value for failure in FailureClass] + own)
        raise NotFound(f"{one_line(name)!r}: no such class or rule", hint=f"there are: {known}") from None


def _info(failure: FailureClass) -> dict[str, Any]:
    from orchestrator.classify.classes import describe
    from orchestrator.classify.match import BY_NAME

    info = describe(failure)
    return {
        "class": info.name,
        "title": info.title,
        "domain": info.domain.value,
        "roles": [role.value for role in info.roles],
        "found_by": info.found_by,
        "confirmed_by": list(info.confirming),
        "sentence": info.sentence,
        "not_proof": info.not_proof,
        "signatures": [
            {
                "name": each.name,
                "role": each.role.value,
                "where": each.where.value,
                "weak": each.weak,
                "pattern": each.pattern.pattern if each.words else None,
                "example": each.example or None,
            }
            for each in BY_NAME.values()
            if each.failure is failure
        ],
    }


def _custom_json(rule: CustomRule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "label": rule.label,
        "regex": rule.pattern.text,
        "class": rule.failure.value if rule.failure else None,
        "act": rule.rule.act.value,
        "attempts": rule.rule.attempts,
        "why": rule.rule.why,
    }


def _hit_json(hit: LineHit) -> dict[str, Any]:
    rules = [
        {
            "name": each.name,
            "class": each.failure.value if each.failure else None,
            "role": each.role.value if each.role else None,
            "counts": each.is_first or each.role is None,
            "needs_exception": each.needs_exception,
        }
        for each in hit.rules
    ]
    text = Masker().text(hit.text)
    return {"line": hit.number, "offset": hit.offset, "rank": hit.rank, "text": text, "rules": rules}


def _rule_text(rule: dict[str, Any]) -> str:
    parts = [rule["class"], rule["role"]]
    parts.append("only as an exception's own line" if rule["needs_exception"] else None)
    parts.append(None if rule["counts"] else "an earlier rule counts")
    said = ", ".join(part for part in parts if part)
    return f"{rule['name']}: {said}" if said else str(rule["name"])


def _print_body(body: dict[str, Any]) -> None:
    out = SETTINGS.out
    for key, value in body.items():
        if key != "signatures":
            shown = "; ".join(map(str, value)) if isinstance(value, list) else value
            out.print(f"{key.replace('_', ' ')}: {plain(str(shown)) if shown else '-'}", markup=False)
    for each in body.get("signatures", ()):
        weak = ", only where nothing stronger is seen" if each["weak"] else ""
        out.print(f"{each['name']}: {each['role']}, {each['where']}{weak}", markup=False)
        if each["pattern"] is None:
            out.print("    found by code: from frames, numbers or steps", markup=False)
            continue
        out.print(f"    pattern: {each['pattern']}", markup=False)
        out.print(f"    example: {each['example']}", markup=False)
