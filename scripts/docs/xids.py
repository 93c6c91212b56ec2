"""NVIDIA's Xid errors, as the program knows them: a page of its table. Pure."""

from __future__ import annotations

from orchestrator.classify.xid import Action, Blame, find
from scripts.docs.text import cell, code, page, table

PATH = "failures/xid.md"
CODES = [number for number in range(1, 1000) if find(number).description != find(0).description]
_ABOUT = (
    "What the NVIDIA driver writes into the *host's* kernel log, by its number. A line is told of a death "
    "only if it is about a card of that run, near in time, and no step followed it. The table is that of "
    "NVIDIA's catalogue of October 2025; whose failure it is, is dflashctl's. `journalctl -k` has them:"
)
_BLAMES = {
    Blame.HARDWARE: "the card, its memory or its links; beats every NCCL line",
    Blame.PROGRAM: "most often the program's own",
    Blame.CONSEQUENCE: "a consequence, never a cause",
    Blame.NOTE: "nothing on its own",
}


def pages() -> dict[str, str]:
    """Return the page by its path."""
    rows = [_row(number) for number in CODES]
    head = ("Xid", "what it is", "what the catalogue asks for", "whose it is", "class")
    example = (
        "```text\nNVRM: Xid (PCI:0000:44:00): 79, pid=2741, name=python3, GPU has fallen off the bus.\n```"
    )
    return {PATH: page("# Xid errors", _ABOUT, example, table(head, rows))}


def _row(number: int) -> list[str]:
    xid = find(number)
    asked = "" if xid.action is Action.NONE else xid.action.value
    failure = f"[{code(xid.failure.value)}]({xid.failure.value}.md)" if xid.failure is not None else ""
    return [str(number), cell(xid.description), cell(asked), _BLAMES[xid.blame], failure]
