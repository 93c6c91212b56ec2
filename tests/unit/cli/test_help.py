"""--help: what stands there is readable on a terminal of 80 columns."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from orchestrator.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

    import typer

SHOWN = 78  # columns of 80 that a help page uses


def helps(of: typer.Typer) -> Iterator[tuple[str, str]]:
    for command in of.registered_commands:
        assert command.callback is not None
        yield command.name or command.callback.__name__, inspect.getdoc(command.callback) or ""
    for group in of.registered_groups:
        assert group.typer_instance is not None
        yield from helps(group.typer_instance)


def test_no_line_of_a_help_is_broken_in_its_middle():
    told = dict(helps(app))
    assert {"diff", "replay", "show"} <= told.keys()
    # The first paragraph flows; the line breaks of those after it are kept, as the examples need them.
    long = {
        name: line
        for name, text in told.items()
        for line in text.partition("\n\n")[2].splitlines()
        if len(line) > SHOWN
    }
    assert long == {}
