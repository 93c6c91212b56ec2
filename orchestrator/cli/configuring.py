"""config show: every setting in force, and where it comes from."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, print_json
from orchestrator.errors import Exit
from orchestrator.masking import Masker, secret_values
from orchestrator.terminal import one_line

app = typer.Typer(help="The settings in force, and where each comes from.", no_args_is_help=True)

_MAX_VALUE = 400


@app.callback()
def _group() -> None:
    """A group though it has one verb, so that `config show` is what is typed."""


@app.command()
def show(
    context: typer.Context,
    origin: Annotated[
        bool,
        typer.Option("--origin", help="Say where each comes from: default, environment, file:line, option."),
    ] = False,
    playbook: options.Playbook = None,
    as_json: options.Json = False,
) -> None:
    """Show every setting in force: record, inventory, playbook, environment; secrets are starred.

    Examples:

        dflashctl config show --origin
        dflashctl --inventory ./lab config show --json
    """
    from orchestrator.cli.settings import gather

    found = gather(context, playbook)
    masker = Masker(secret_values(os.environ))
    shown = [(each, _masked(masker, each.name, each.value)) for each in found.settings]
    if as_json:
        settings = [
            {
                "name": each.name,
                "value": value,
                "origin": {"kind": each.origin.kind, "name": each.origin.name, "line": each.origin.line},
            }
            for each, value in shown
        ]
        print_json({"settings": settings, "problems": [str(each) for each in found.problems]})
    else:
        for each, value in shown:
            if value is not None:
                where = f"  ({each.origin.text})" if origin else ""
                SETTINGS.out.print(f"{each.name} = {one_line(value, _MAX_VALUE)}{where}", markup=False)
        for problem in found.problems:
            SETTINGS.err.print(f"dflashctl: {one_line(str(problem), _MAX_VALUE)}", markup=False)
    raise typer.Exit(Exit.USAGE if found.problems else Exit.OK)


def _masked(masker: Masker, name: str, value: str | None) -> str | None:
    """Return the value without secrets; a setting's name may tell that its value is one."""
    if value is None:
        return None
    key = name.rpartition(".")[2]
    masked: str = masker.json({key: value})[key]
    return masked
