"""Plain words to Markdown, so that they are shown as they are. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`[^`]+`)")
_MARKS = re.compile(r"([\\*_\[\]{}#])")


def prose(text: str) -> str:
    """Return `text` for a paragraph; what stands in backquotes is code there too."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(part if place % 2 else _escaped(part) for place, part in enumerate(parts))


def cell(text: str) -> str:
    """Return `text` for a cell of a table."""
    return prose(text).replace("|", "&#124;")


def code(text: str) -> str:
    """Return `text` as code within a line."""
    marks = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{marks}{space}{text}{space}{marks}"


def block(text: str, language: str = "text") -> str:
    """Return `text` as a block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bullets(items: Iterable[str]) -> str:
    """Return a list; the items are Markdown."""
    return "\n".join(f"- {item}" for item in items)


def page(*parts: str) -> str:
    """Return a page of its parts, without the empty ones."""
    return "\n\n".join(part for part in parts if part) + "\n"


def sentence(text: str) -> str:
    """Return `text` with a capital at its start and a dot at its end."""
    whole = text[:1].upper() + text[1:]
    return whole if whole.endswith((".", "!", "?")) else f"{whole}."


def _escaped(text: str) -> str:
    return _MARKS.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
