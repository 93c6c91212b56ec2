"""What a built page would ask of another host: scripts, styles, fonts, pictures, frames.

`python -m scripts.docs.outside SITE`.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where a browser asks by itself; a link that a person follows (`a`) is not among them.
_ASKING = {
    "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src",
    "embed": "src", "object": "data", "link": "href", "form": "action", "use": "href",
}  # fmt: skip
_TOLD_ONLY = frozenset({"canonical", "next", "prev", "edit", "license"})
_ELSEWHERE = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)
_IN_STYLE = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])\s*((?:https?:)?//[^'\")\s]+)", re.IGNORECASE)


class _Reader(HTMLParser):
    """Collects what a page asks for elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        value = told.get(_ASKING.get(tag, ""), "")
        if _ELSEWHERE.match(value) and not (set(told.get("rel", "").split()) & _TOLD_ONLY):
            self.found.append(f"<{tag}> {value}")
        self.found += [f"style {url}" for url in _IN_STYLE.findall(told.get("style", ""))]


def asked_of_page(html: str) -> list[str]:
    """Return what a page asks of another host, its own styles included."""
    reader = _Reader()
    reader.feed(html)
    return reader.found + asked_of_style("".join(re.findall(r"<style.*?</style>", html, re.DOTALL)))


def asked_of_style(css: str) -> list[str]:
    """Return what a style sheet asks of another host."""
    return [f"style {url}" for url in _IN_STYLE.findall(css)]


def asked_of_site(folder: Path) -> Iterator[str]:
    """Yield what any page or style sheet below `folder` asks of another host, with the file's name."""
    for path in sorted(folder.rglob("*")):
        looks = {".html": asked_of_page, ".css": asked_of_style}.get(path.suffix)
        for each in looks(path.read_text(encoding="utf-8")) if looks else ():
            yield f"{path.relative_to(folder)}: {each}"


def main(folder: Path) -> int:
    """Print what is asked of another host; 1 if anything is, or nothing is there to look at."""
    pages = sum(1 for _ in folder.rglob("*.html"))
    found = list(asked_of_site(folder))
    for each in found:
        sys.stderr.write(f"{each}\n")
    sys.stdout.write(f"docs: {pages} pages, {len(found)} requests to other hosts\n")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
