"""MkDocs calls this at each build: the generated pages, and their places in the navigation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

# `mkdocs`, unlike `python -m mkdocs`, does not look into the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.docs import failures, included, keys, verbs, xids

_SEARCH = 'data-md-component="search" role="dialog"'

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files


def on_config(config: MkDocsConfig) -> None:
    """Add the generated pages to the sections that wait for them."""
    sections: dict[str, list[Any]] = {"Failures": _failures(), "Verbs": _verbs()}
    for entry in config.nav or []:
        for name in entry.keys() & sections.keys():
            entry[name] += sections[name]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the generated pages to the site."""
    for makes in (failures, xids, verbs, keys, included):
        for path, text in makes.pages().items():
            files.append(File.generated(config, path, content=text))


def on_post_page(output: str, /, **_told: object) -> str:
    """Give the theme's search box a name, for whoever hears the page."""
    return output.replace(_SEARCH, f'{_SEARCH} aria-label="Search"')


on_post_template = on_post_page  # the page that says that there is none


def _failures() -> list[dict[str, Any]]:
    groups = [
        {failures.DOMAINS[domain][0]: [{each.value: failures.path_of(each)} for each in found]}
        for domain, found in failures.by_domain().items()
    ]
    return [*groups, {"Xid errors": xids.PATH}]


def _verbs() -> list[dict[str, str]]:
    return [{words.split(" ", 1)[1]: verbs.path_of(words)} for words in verbs.VERBS]
