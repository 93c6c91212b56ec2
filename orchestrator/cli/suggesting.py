"""What was meant by a verb or an option that does not exist. Looks at the command line's own tree alone."""

from __future__ import annotations

import re
import shlex
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

# A context is click's, or that of typer's own copy, by its version: hence Any.
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import typer

_NO_VERB = re.compile(r"No such command ['\"](?P<word>.*?)['\"]\.?(?: |$)")
_NO_OPTION = re.compile(r"No such option:? ['\"]?(?P<word>-[^\s'\"]*)")
_MOST = 3
_CLOSE = 0.6
_AS_CLOSE = 0.15  # what is further off than this from the nearest is noise

# What other tools call it: docker, kubectl, tmux, systemctl, supervisorctl, sky.
_ELSEWHERE = {
    "cancel": "stop", "compare": "diff", "delete": "rm", "describe": "status", "down": "stop",
    "enter": "attach", "history": "events", "info": "status", "inspect": "status", "kill": "stop",
    "list": "ps", "log": "logs", "ls": "ps", "monitor": "watch", "queue": "ps", "remove": "rm",
    "restart": "relaunch", "resume": "relaunch", "run": "launch", "show": "status", "start": "launch",
    "tail": "logs", "up": "launch", "why": "explain",
}  # fmt: skip


def suggestion(error: typer.BadParameter, asked: list[str]) -> tuple[str, str] | None:
    """Return the complaint and what to write instead; None if it is of another kind."""
    context = error.ctx
    if context is None:
        return None
    if (found := _NO_VERB.match(error.message)) is not None:
        meant = _verbs(found["word"], context)
        return f"No such command {found['word']!r}", _did_you_mean(meant)
    if (found := _NO_OPTION.match(error.message)) is not None:
        return f"No such option: {found['word']}", _option_hint(found["word"], context, asked)
    return None


def _verbs(word: str, context: Any) -> list[str]:  # noqa: ANN401
    """Return what may be meant, as it is typed: another tool's word, a near one, the same one elsewhere."""
    path, here = context.command_path, context.command.commands
    shown = {name: f"{path} {name}" for name, command in here.items() if not command.hidden}
    meant = [shown[name] for name in _near(word, shown)]
    root = context.find_root()
    if context is root and word in _ELSEWHERE:
        meant.insert(0, f"{path} {_ELSEWHERE[word]}")
    # `dflashctl scan`, `dflashctl cache status`: a verb that is there, in another place.
    meant += [
        words for words in _everywhere(root.command.commands, root.command_path) if words.endswith(f" {word}")
    ]
    return list(dict.fromkeys(meant))[:_MOST]


def _everywhere(commands: Mapping[str, Any], path: str) -> list[str]:
    found = []
    for name, command in commands.items():
        words = f"{path} {name}"
        found += _everywhere(command.commands, words) if hasattr(command, "commands") else [words]
    return found


def _option_hint(word: str, context: Any, asked: list[str]) -> str:  # noqa: ANN401
    """Return which option is near; or that it is one of those before the verb, and how that is written."""
    meant = _near(word, _options(context.command))
    root = context.find_root()
    if meant or context is root or not (early := _near(word, _options(root.command))):
        return _did_you_mean(meant)
    verb = context.command_path.removeprefix(root.command_path).strip()
    value = _value_after(word, asked)
    return f"it goes before the verb: `{root.command_path} {early[0]}{value} {verb}`"


def _value_after(word: str, asked: list[str]) -> str:
    """Return ` VALUE` if a value followed the option, so that the line can be shown whole."""
    place = asked.index(word) if word in asked else len(asked)
    following = asked[place + 1 : place + 2]
    return f" {shlex.quote(following[0])}" if following and not following[0].startswith("-") else ""


def _options(command: Any) -> list[str]:  # noqa: ANN401
    every = [option for each in command.params for option in (*each.opts, *each.secondary_opts)]
    return [option for option in every if option.startswith("-")] + ["--help"]


def _did_you_mean(meant: list[str]) -> str:
    if not meant:
        return ""
    shown = [f"`{each}`" for each in meant]
    return f"did you mean {' or '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))}?"


def _near(word: str, known: Iterable[str]) -> list[str]:
    """Return those of `known` that `word` is a slip of, the nearest first."""
    scores = sorted(
        ((SequenceMatcher(None, word.lower(), each).ratio(), each) for each in known), reverse=True
    )
    best = scores[0][0] if scores else 0.0
    return [each for score, each in scores if score >= max(_CLOSE, best - _AS_CLOSE)][:_MOST]
