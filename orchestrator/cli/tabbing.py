"""The answer to a Tab, without the libraries of the command line: these take longer to load than all else.

It walks `verbs.json`, the verbs and options as `verbtree` wrote them, in the way that typer walks its own,
and answers in the shell's form as typer's scripts for bash, zsh and fish expect it. What is not here (another
shell, the scripts themselves) is left to typer.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.cli.completing import Name

TREE = Path(__file__).parent / "verbs.json"
_SPACE = re.compile(r"\s")
Node = dict[str, Any]  # a verb or a group of verbs, or an option or argument of one


@dataclass
class Words:
    """What was typed of one verb: its values by parameter, as a click context has them."""

    node: Node
    parent: Words | None = None
    params: dict[str, Any] = field(default_factory=dict)
    typed: set[str] = field(default_factory=set)
    """The parameters that stand in the line; another may have its value of the environment."""
    rest: list[str] = field(default_factory=list)
    """What follows a group's own options: the verb and its words."""

    def give(self, param: Node, values: list[str]) -> None:
        """Take what the line says of a parameter; a flag has no value."""
        self.typed.add(param["to"])
        self.params[param["to"]] = {0: True, 1: "".join(values)}.get(param["nargs"], values)

    def find_root(self) -> Words:
        """Return the program's own."""
        return self if self.parent is None else self.parent.find_root()


def answer(asked: str, env: Mapping[str, str]) -> int | None:
    """Write what a shell asks for, and return the exit code; None if it is not for here."""
    if asked not in ("complete_bash", "complete_zsh", "complete_fish"):
        return None
    try:
        tree: Node = json.loads(TREE.read_bytes())
        before, incomplete = typed(env, asked)
    except (OSError, ValueError, KeyError, IndexError):
        return None
    found = found_names(tree, before, incomplete, env)
    if asked == "complete_fish" and env.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return 0 if found else 1
    form = {"complete_bash": bash, "complete_zsh": zsh, "complete_fish": fish}[asked]
    sys.stdout.write(form(found) + "\n")
    sys.stdout.flush()
    return 0


def typed(env: Mapping[str, str], asked: str) -> tuple[list[str], str]:
    """Return the whole words after the program's name, and the one that is not finished.

    Raises:
        KeyError: The shell's variables are not there.
        ValueError: The place of the cursor is no number.
    """
    if asked == "complete_bash":
        words, place = split(env["COMP_WORDS"]), int(env["COMP_CWORD"])
        return words[1:place], words[place] if place < len(words) else ""
    line = env["_TYPER_COMPLETE_ARGS"]
    words = split(line)[1:]
    if words and not line.endswith(" "):
        return words[:-1], words[-1]
    return words, ""


def split(line: str) -> list[str]:
    """Return a line's words as a shell reads them; an open quote or escape ends with the line."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:
        words.append(lexer.token)
    return words


def found_names(tree: Node, before: list[str], incomplete: str, env: Mapping[str, str]) -> list[Name]:
    """Return what the unfinished word may become."""
    words = walk(tree, before, env)
    if incomplete == "=":
        incomplete = ""
    elif "=" in incomplete and incomplete.startswith("-"):
        name, _, incomplete = incomplete.partition("=")
        before = [*before, name]
    if incomplete.startswith("-") and "--" not in before:
        return _options(words, incomplete)
    for option in words.node["options"]:
        last = before[-option["nargs"] :] if option["nargs"] else []
        named = next((word for word in reversed(last) if word.startswith("-")), None)
        if named in option["names"]:
            return _values(option, words, incomplete)
    for argument in words.node["arguments"]:
        if argument["nargs"] == -1 or argument["to"] not in words.typed:
            return _values(argument, words, incomplete)
    verbs = words.node.get("verbs", {})
    return [(name, verb["help"]) for name, verb in verbs.items() if name.startswith(incomplete)]


def walk(tree: Node, before: list[str], env: Mapping[str, str]) -> Words:
    """Return the innermost verb or group that the words name, with what was given to each."""
    words = _read(tree, before, None, env)
    while words.rest and (node := words.node.get("verbs", {}).get(words.rest[0])) is not None:
        words = _read(node, words.rest[1:], words, env)
    return words


def _read(node: Node, given: list[str], parent: Words | None, env: Mapping[str, str]) -> Words:
    """Read a verb's words; at one that cannot be read the rest is left alone, as it may yet be finished."""
    words = Words(node, parent)
    is_group, left, places = "verbs" in node, list(given), []
    while left:
        word = left.pop(0)
        if word == "--":
            places += left
            break
        if word.startswith("-") and len(word) > 1:
            if not _take(words, word, left):
                return _with_environment(words, env)
        elif is_group:
            words.rest = [word, *left]
            break
        else:
            places.append(word)
    for argument in node["arguments"]:
        count = len(places) if argument["nargs"] == -1 else argument["nargs"]
        if taken := places[:count]:
            words.give(argument, taken)
        places = places[count:]
    return _with_environment(words, env)


def _with_environment(words: Words, env: Mapping[str, str]) -> Words:
    for option in words.node["options"]:
        if (name := option.get("env")) and env.get(name):
            words.params.setdefault(option["to"], env[name])
    return words


def _take(words: Words, word: str, left: list[str]) -> bool:
    """Read an option, or the letters of several, and its value from `left`; whether it can be read."""
    name, has_value, value = word.partition("=")
    if not word.startswith("--") and len(word) > 2:
        name, has_value, value = word[:2], "", word[2:]
    option = next((each for each in words.node["options"] if name in each["names"]), None)
    if option is None:
        return False
    if not option["nargs"]:
        words.give(option, [])
        return not value or (not word.startswith("--") and _take(words, f"-{value}", left))
    if has_value or value:
        left.insert(0, value)
    if len(left) < option["nargs"]:
        return False
    words.give(option, [left.pop(0) for _ in range(option["nargs"])])
    return True


def _options(words: Words, incomplete: str) -> list[Name]:
    """Return the options that can still be given."""
    return [
        (name, option["help"])
        for option in words.node["options"]
        if option.get("multiple") or option["to"] not in words.typed
        for name in option["names"]
        if name.startswith(incomplete)
    ]


def _values(param: Node, words: Words, incomplete: str) -> list[Name]:
    if "choices" in param:
        return [(choice, "") for choice in param["choices"] if choice.startswith(incomplete)]
    if "by" not in param:
        return []
    from orchestrator.cli import completing

    found: list[Name] = getattr(completing, param["by"])(words, incomplete)
    return found


def bash(found: list[Name]) -> str:
    """Return the words alone."""
    return "\n".join(name for name, _ in found)


def zsh(found: list[Name]) -> str:
    """Return what is evaluated there: the words with their texts, or the files."""
    if not found:
        return "_files"
    lines = (f'"{_zsh(name)}":"{_zsh(text)}"' if text else f'"{_zsh(name)}"' for name, text in found)
    return "_arguments '*: :(({}))'".format("\n".join(lines))


def _zsh(text: str) -> str:
    for old, new in (('"', '""'), ("'", "''"), ("$", "\\$"), ("`", "\\`"), (":", r"\\:")):
        text = text.replace(old, new)
    return text


def fish(found: list[Name]) -> str:
    """Return a word a line, its text after a tab."""
    return "\n".join("\t".join(filter(None, (name, _SPACE.sub(" ", text)))) for name, text in found)
