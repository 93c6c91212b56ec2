"""Manual pages in roff's man macros, from the command line's own tree: what `--help` says. Pure."""

from __future__ import annotations

import re
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from orchestrator.cli.settings import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WIDTH = 78  # columns of the source

# A command is click's, or that of typer's own copy, by its version: hence Any.
_BOLD = re.compile(r"`([^`]+)`")
_EXITS = re.compile(r"(?:^|, )(\d+) (.*?)(?=, \d+ |\.?$)")
_SPECIAL = {"\\": "\\e", "-": "\\-", "^": "\\(ha", "~": "\\(ti", "'": "\\(aq", '"': "\\(dq"}


def pages(root: Any, name: str, version: str, epilog: str) -> dict[str, str]:  # noqa: ANN401
    """Return every page by its file's name: the program's, and one for each verb."""
    verbs = dict(verbs_of(root, name))
    found = {f"{name}.1": _program(root, name, version, verbs, epilog)}
    for words, command in verbs.items():
        found[f"{words.replace(' ', '-')}.1"] = _page(command, words, name, version)
    return found


def verbs_of(group: Any, path: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Yield every verb that is shown, by the words that are typed."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        words = f"{path} {name}"
        if hasattr(command, "commands"):
            yield from verbs_of(command, words)
        else:
            yield words, command


def _program(root: Any, name: str, version: str, verbs: Mapping[str, Any], epilog: str) -> str:  # noqa: ANN401
    lines = [
        *_head(name, version, root.help or ""),
        ".SH SYNOPSIS",
        f".B {name}",
        "[\\fIOPTIONS\\fR] \\fIVERB\\fR ...",
        ".SH DESCRIPTION",
        _text(root.help or ""),
        ".SH VERBS",
    ]
    for words, command in verbs.items():
        page = words.replace(" ", "-")
        lines += [
            ".TP",
            f"\\fB{_text(words)}\\fR",
            f"{_text(_first(command.help))} See \\fB{_text(page)}\\fR(1).",
        ]
    lines += [".SH OPTIONS", *_options(root), *_exits(epilog), ".SH ENVIRONMENT"]
    lines += [f".TP\n\\fB{variable}\\fR\n{_text(VARIABLE_TEXTS.get(variable, ''))}" for variable in VARIABLES]
    lines += [".SH FILES", *_files()]
    return _whole(lines)


def _page(command: Any, words: str, name: str, version: str) -> str:  # noqa: ANN401
    head, _, examples = (command.help or "").partition("Examples:")
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    usage = " ".join(["[\\fIOPTIONS\\fR]", *(f"[\\fI{_text(metavar(each))}\\fR]" for each in arguments)])
    lines = [*_head(words.replace(" ", "-"), version, head), ".SH SYNOPSIS", f".B {_text(words)}", usage]
    lines += [".SH DESCRIPTION", "\n.PP\n".join(_text(" ".join(part.split())) for part in _paragraphs(head))]
    told = [each for each in arguments if getattr(each, "help", None)]
    if told:
        lines += [".SH ARGUMENTS"]
        lines += [f".TP\n\\fI{_text(metavar(each))}\\fR\n{_text(each.help)}" for each in told]
    lines += [".SH OPTIONS", *_options(command)]
    if examples.strip():
        shown = [_text(line.strip()) for line in examples.splitlines() if line.strip()]
        lines += [".SH EXAMPLES", ".nf", *shown, ".fi"]
    return _whole([*lines, ".SH SEE ALSO", f".BR {name} (1)"])


def _head(page: str, version: str, text: str) -> list[str]:
    about = _text(_first(text).rstrip("."))
    title = _text(page).upper()
    return [
        f'.TH "{title}" "1" "" "dflashctl {version}" "User Commands"',
        ".SH NAME",
        f"{_text(page)} \\- {about}",
    ]


def _options(command: Any) -> Iterator[str]:  # noqa: ANN401
    for each in command.params:
        if each.param_type_name != "option" or each.hidden:
            continue
        names = ", ".join(f"\\fB{_text(option)}\\fR" for option in (*each.opts, *each.secondary_opts))
        value = f" \\fI{_text(metavar(each))}\\fR" if takes_value(each) else ""
        variable = f" Environment: {each.envvar}." if isinstance(each.envvar, str) else ""
        yield f".TP\n{names}{value}\n{_text((each.help or 'Show it and end.') + variable)}"
    yield ".TP\n\\fB\\-\\-help\\fR\nShow the help and end."


def takes_value(option: Any) -> bool:  # noqa: ANN401
    """Whether a value stands after the option's name."""
    if option.is_flag or option.count:
        return False
    return not (option.is_eager and option.type.name == "boolean")


def metavar(parameter: Any) -> str:  # noqa: ANN401
    """Return what stands for the parameter's value in a line of usage."""
    plain = str(parameter.metavar or (parameter.name or "").upper().replace("_", "-"))
    if plain.startswith("[") and plain.endswith("]"):
        plain = plain[1:-1]
    return f"{plain} ..." if getattr(parameter, "multiple", False) or parameter.nargs == -1 else plain


def _exits(epilog: str) -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for code, text in exits(epilog):
        yield f".TP\n\\fB{code}\\fR\n{_text(text)}"


def exits(epilog: str) -> Iterator[tuple[str, str]]:
    """Yield each exit code with its meaning."""
    for code, text in _EXITS.findall(epilog.partition(":")[2].strip()):
        yield code, text.rstrip(".")


def _files() -> Iterator[str]:
    for path, text in FILE_TEXTS.items():
        yield f".TP\n\\fI{_text(path)}\\fR\n{_text(text)}"


VARIABLE_TEXTS = {
    "DFLASHCTL_INVENTORY": "The inventory's folder, as --inventory.",
    "DFLASHCTL_RECORD": "The record's file, as --record.",
    "DFLASHCTL_NOTIFY_URLS": "Who is told, in the place of the URLs of notify.yaml.",
    "DFLASHCTL_DEADMAN_URL": "Asked after each pass that saw every run, in the place of notify.yaml's.",
    "DFLASHCTL_MIRROR_QUOTA": "Room for the copies of all runs' logs, in the place of mirror.yaml's quota.",
    "DFLASHCTL_MIRROR_RUN_QUOTA": "Room for those of one run, in the place of its run_quota.",
    "DFLASHCTL_TORCH_INDEX": "Where `provision` takes torch from, as --torch-index.",
    "DFLASHCTL_INDEX": "The package index of `provision`, as --index.",
    "XDG_CONFIG_HOME": "Where notify.yaml, mirror.yaml and the user's inventory are; default ~/.config.",
    "XDG_STATE_HOME": "Where the record lies; default ~/.local/state.",
    "NO_COLOR": "If it is set and not empty: no colour.",
    "FORCE_COLOR": "If it is set and not empty: colour into a pipe too.",
    "TERM": "The kind of terminal; dumb has no colour.",
    "COLUMNS": "The width to print tables and help for.",
    "TZ": "The zone in which a time without one is meant.",
    "SSH_AUTH_SOCK": "The agent that holds keys for ssh.",
    "TMUX_TMPDIR": "Where tmux on this machine has its sockets, for --host local.",
}
FILE_TEXTS = {
    "./inventory/*.yaml": "Hosts and containers; then $XDG_CONFIG_HOME/dflashctl/inventory.",
    "./playbooks/default.yaml": "What is done about each failure, in the place of the bundled rules.",
    "$XDG_STATE_HOME/dflashctl/record.sqlite3": "The record of all runs, their attempts and diagnoses.",
    "$XDG_STATE_HOME/dflashctl/record.sqlite3.logs": "Copies of the runs' logs, which a watch keeps.",
    "$XDG_CONFIG_HOME/dflashctl/mirror.yaml": "Whether they are kept, and in how much room.",
    "~/.ssh/config, ~/.ssh/known_hosts": "Read as ssh reads them.",
}


def _paragraphs(text: str) -> list[str]:
    return [part for part in text.strip().split("\n\n") if part.strip()]


def _first(text: str | None) -> str:
    """Return the first sentence or paragraph, on one line."""
    return " ".join((_paragraphs(text or "") or [""])[0].split())


def _text(text: str) -> str:
    """Return `text` so that roff prints it as it is; what stands in backquotes is bold."""
    parts = _BOLD.split(text.replace("\n", " "))
    shown = "".join(
        f"\\fB{_escaped(part)}\\fR" if place % 2 else _escaped(part) for place, part in enumerate(parts)
    )
    return _guarded(shown)


def _escaped(text: str) -> str:
    return "".join(
        _SPECIAL.get(c, c if c.isascii() else f"\\[u{ord(c):04X}]") for c in text if c.isprintable()
    )


def _whole(lines: list[str]) -> str:
    """Return the page; long lines of its text are broken at spaces, those of its examples are not."""
    whole: list[str] = []
    is_filled = True
    for line in "\n".join(filter(None, lines)).split("\n"):
        is_filled = line == ".fi" or (is_filled and line != ".nf")
        if is_filled and not line.startswith("."):
            whole += [
                _guarded(part) for part in wrap(line, WIDTH, break_long_words=False, break_on_hyphens=False)
            ]
        else:
            whole.append(line)
    return "\n".join(whole) + "\n"


def _guarded(line: str) -> str:
    """Return the line so that roff takes it for text: a dot or a quote at its start would make it a macro."""
    return f"\\&{line}" if line[:1] in (".", "'") else line
