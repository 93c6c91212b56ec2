"""The catalogue of failures: a page a class, from what the program itself matches, says and does. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.classify.classes import ClassInfo, Domain, describe
from orchestrator.classify.match import BY_NAME
from orchestrator.classify.signature import Where
from orchestrator.cli.playbooks import rule_lines
from orchestrator.playbook import load, shipped
from orchestrator.types.failure import FailureClass, Role
from scripts.docs.examples import examples
from scripts.docs.text import block, bullets, cell, code, page, prose, sentence, table

if TYPE_CHECKING:
    from orchestrator.classify.signature import Signature

BOOK = load(shipped())
DOMAINS = {
    Domain.WORKLOAD: ("The program", "its code, its data, its configuration"),
    Domain.INFRASTRUCTURE: ("What it runs on", "cards, memory, disks, network, container, host"),
    Domain.OPERATOR: ("A person", "who did it, or has to do something"),
    Domain.TRANSPORT: ("The way to it", "it says nothing about the run"),
    Domain.HISTORY: ("Its history", "only several steps or attempts show it"),
    Domain.NONE: ("No failure", "the run is well, or done"),
}
_ROLES = {
    Role.ROOT: "the cause",
    Role.CASCADE: "a consequence of another failure, never the cause",
    Role.CONFIRMATION: "a confirmation of a cause that something else names",
    Role.PREDICTION: "a warning, told when it is printed",
}
_ABOUT = (
    "What dflashctl can tell of a run, by whose failure it is. Each page has the words by which it is known, "
    "what they mean, what they do not prove, and what the shipped playbook does about it."
)
_MORE = (
    "`dflashctl rules list` and `dflashctl rules show CLASS` say the same in a terminal, "
    "`dflashctl rules test FILE` holds a log of yours against all of it, and a "
    "[playbook](../playbooks.md) changes what is done. The cards' own numbers are [Xid errors](xid.md)."
)
_ACTS = "../playbook-keys.md#for-each-failure-class"


def path_of(failure: FailureClass) -> str:
    """Return the page of a class."""
    return f"failures/{failure.value}.md"


def by_domain() -> dict[Domain, list[FailureClass]]:
    """Return the classes of each domain, in the catalogue's order."""
    return {each: [f for f in FailureClass if describe(f).domain is each] for each in DOMAINS}


def pages() -> dict[str, str]:
    """Return every page by its path."""
    return {"failures/index.md": _index(), **{path_of(each): _class(describe(each)) for each in FailureClass}}


def _index() -> str:
    parts = ["# Failures", _ABOUT, _MORE]
    for domain, failures in by_domain().items():
        name, meaning = DOMAINS[domain]
        rows = [
            [
                f"[`{each.value}`]({each.value}.md)",
                cell(describe(each).title),
                f"`{BOOK.rule(each).act.value}`",
            ]
            for each in failures
        ]
        parts += [f"## {name}", sentence(meaning), table(("class", "what happened", "what is done"), rows)]
    return page(*parts)


def _class(info: ClassInfo) -> str:
    shown = [each for each in BY_NAME.values() if each.failure is info.failure]
    by_words = [each for each in shown if each.words]
    return page(
        f"# {code(info.name)}: {prose(info.title)}",
        prose(info.sentence),
        _facts(info),
        f"## What confirms it\n\n{bullets(prose(each) for each in info.confirming)}"
        if info.confirming
        else "",
        f"## What it does not prove\n\n{sentence(prose(info.not_proof))}",
        _done(info.failure),
        "## What it looks like" if shown else "",
        "\n\n".join(map(_signature, by_words)),
        _by_code([each for each in shown if not each.words]),
        examples(info.failure),
        _commands(info.failure),
    )


def _facts(info: ClassInfo) -> str:
    name, meaning = DOMAINS[info.domain]
    return bullets(
        (
            f"Whose failure: {name.lower()} ({meaning}).",
            f"Found by: {prose(info.found_by)}.",
            f"A line that names it is: {'; '.join(_ROLES[role] for role in info.roles)}.",
        )
    )


def _done(failure: FailureClass) -> str:
    rule = BOOK.rule(failure)
    lines = rule_lines(rule, BOOK)[1:]
    return page(
        "## What is done about it",
        f"By the shipped playbook: [{code(rule.act.value)}]({_ACTS}). {prose(rule.why)}",
        bullets(prose(line.strip()) for line in lines),
    ).rstrip()


def _signature(each: Signature) -> str:
    notes = [_ROLES[each.role]] if each.role is not Role.ROOT else []
    notes += ["only as the text of an exception"] if each.where is Where.EXCEPTION else []
    notes += ["decides only where nothing stronger is seen"] if each.weak else []
    told = f" ({'; '.join(notes)})" if notes else ""
    pattern = block(each.pattern.pattern).replace("\n", "\n    ")
    return f'{code(each.name)}{told}:\n\n{block(each.example)}\n\n??? note "Its pattern"\n    {pattern}'


def _by_code(found: list[Signature]) -> str:
    if not found:
        return ""
    names = ", ".join(code(each.name) for each in found)
    return f"Found by code, from frames, numbers or steps: {names}."


def _commands(failure: FailureClass) -> str:
    lines = (
        f"dflashctl rules show {failure.value}",
        f"dflashctl playbook show {failure.value}",
        f"dflashctl playbook explain RUN --if {failure.value}",
    )
    return f"## In a terminal\n\n{block(chr(10).join(lines), 'bash')}"
