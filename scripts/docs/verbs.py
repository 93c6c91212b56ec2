"""The reference of the command line, from its own help: a page a verb, and one of what all share. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.app import EPILOG, NAME, app
from orchestrator.cli.manpage import FILE_TEXTS, VARIABLE_TEXTS, exits, metavar, takes_value, verbs_of
from orchestrator.cli.settings import VARIABLES
from scripts.docs.text import block, code, page, prose, table

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = typer.main.get_command(app)
VERBS: dict[str, Any] = dict(verbs_of(ROOT, NAME))  # click's commands, or those of typer's own copy


def path_of(words: str) -> str:
    """Return the page of a verb: `dflashctl rules show` is `verbs/rules-show.md`."""
    return f"verbs/{words.removeprefix(NAME).strip().replace(' ', '-')}.md"


def pages() -> dict[str, str]:
    """Return every page by its path."""
    return {"verbs/index.md": _index(), **{path_of(words): _verb(words) for words in VERBS}}


def _index() -> str:
    rows = [[f"[{words}]({path_of(words).removeprefix('verbs/')})", _first(VERBS[words])] for words in VERBS]
    return page(
        "# Verbs",
        f"Each page is what `{NAME} VERB --help` says. `{NAME} man` has the same as manual pages, and "
        f"`{NAME} --install-completion` completes verbs, hosts, containers and runs.",
        table(("verb", "what it does"), rows),
        "## Options before the verb",
        _options(ROOT),
        "## Exit codes",
        table(("code", "means"), [[code(number), prose(text)] for number, text in exits(EPILOG)]),
        "## Environment",
        table(
            ("variable", "what it does"),
            [[code(name), prose(VARIABLE_TEXTS.get(name, ""))] for name in VARIABLES],
        ),
        "## Files",
        table(("file", "what it is"), [[code(name), prose(text)] for name, text in FILE_TEXTS.items()]),
    )


def _verb(words: str) -> str:
    command = VERBS[words]
    head, _, examples = (command.help or "").partition("Examples:")
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    shown = [metavar(each) if each.required else f"[{metavar(each)}]" for each in arguments]
    usage = " ".join([words, "[OPTIONS]", *shown])
    told = [each for each in arguments if getattr(each, "help", None)]
    named = "\n\n".join(_definition(code(metavar(each)), each.help) for each in told)
    lines = "\n".join(line.strip() for line in examples.splitlines() if line.strip())
    return page(
        f"# {words}",
        "\n\n".join(prose(part) for part in head.strip().split("\n\n")),
        block(usage),
        f"## Examples\n\n{block(lines, 'bash')}" if lines else "",
        f"## Arguments\n\n{named}" if named else "",
        "## Options",
        _options(command),
    )


def _options(command: Any) -> str:  # noqa: ANN401
    return "\n\n".join(_definition(*each) for each in _told_options(command))


def _told_options(command: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    for each in command.params:
        if each.param_type_name != "option" or each.hidden:
            continue
        names = ", ".join(code(option) for option in (*each.opts, *each.secondary_opts))
        value = f" {metavar(each)}" if takes_value(each) else ""
        variable = f" Environment: `{each.envvar}`." if isinstance(each.envvar, str) else ""
        yield names + value, (each.help or "Show it and end.") + variable
    yield "`--help`", "Show the help and end."


def _definition(name: str, text: str) -> str:
    return f"{name}\n:   {prose(text)}"


def _first(command: Any) -> str:  # noqa: ANN401
    return prose((command.help or "").strip().split("\n\n")[0])
