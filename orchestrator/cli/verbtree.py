"""Write `verbs.json`, the verbs and options that a Tab completes, from the application itself.

python -m orchestrator.cli.verbtree
"""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from orchestrator.cli.app import app
from orchestrator.cli.tabbing import TREE, Node

if TYPE_CHECKING:
    from collections.abc import Callable


def tree() -> Node:
    """Return every verb with its options and arguments, in the order of the help."""
    return _node(typer.main.get_command(app))


def text(node: Node) -> str:
    """Return it as the file has it: a line for each option, so that two changes meet only where they must."""
    return "\n".join(_lines(node)) + "\n"


def _lines(node: Node) -> list[str]:
    """Return a verb's lines: of each list the items, of a group the verbs."""
    parts = [[f'"help": {json.dumps(node["help"], ensure_ascii=False)}']]
    for name in ("options", "arguments"):
        items = [json.dumps(item, ensure_ascii=False) for item in node[name]]
        parts.append([f'"{name}": [', *_joined([[item] for item in items]), "]"])
    if "verbs" in node:
        verbs = [_named(name, _lines(verb)) for name, verb in node["verbs"].items()]
        parts.append(['"verbs": {', *_joined(verbs), "}"])
    return ["{", *_joined(parts), "}"]


def _named(name: str, lines: list[str]) -> list[str]:
    return [f'"{name}": {lines[0]}', *lines[1:]]


def _joined(parts: list[list[str]]) -> list[str]:
    """Return the parts one step further in, with a comma after each but the last."""
    lines: list[str] = []
    for number, part in enumerate(parts, 1):
        comma = "," if number < len(parts) else ""
        lines += [f" {line}" for line in part[:-1]] + [f" {part[-1]}{comma}"]
    return lines


# Commands and parameters are click's, or those of typer's own copy, by its version: hence Any.
def _node(command: Any) -> Node:  # noqa: ANN401
    context = command.make_context(command.name, [], resilient_parsing=True)
    shown = [param for param in command.get_params(context) if not getattr(param, "hidden", False)]
    by = _completers(command.callback)
    node: Node = {"help": command.get_short_help_str(), "options": [], "arguments": []}
    for param in shown:
        if param.param_type_name == "option":
            node["options"].append(_option(param, by))
        else:
            node["arguments"].append({"to": param.name, "nargs": param.nargs, **_values(param, by)})
    if hasattr(command, "commands"):
        node["verbs"] = {name: _node(each) for name, each in command.commands.items() if not each.hidden}
    return node


def _completers(callback: Callable[..., Any] | None) -> dict[str, str]:
    """Return which function of `completing` each parameter of a verb has."""
    hints = get_type_hints(inspect.unwrap(callback), include_extras=True) if callback else {}
    told = ((name, info) for name, hint in hints.items() for info in getattr(hint, "__metadata__", ()))
    return {name: found.__name__ for name, info in told if (found := getattr(info, "autocompletion", None))}


def _option(param: Any, by: dict[str, str]) -> Node:  # noqa: ANN401
    takes_value = not (param.is_flag or param.count)
    node: Node = {
        "names": [*param.opts, *param.secondary_opts],
        "to": param.name,
        "nargs": param.nargs if takes_value else 0,
        "help": param.help or "",
    }
    if param.multiple:
        node["multiple"] = True
    if isinstance(param.envvar, str):
        node["env"] = param.envvar
    return {**node, **(_values(param, by) if takes_value else {})}


def _values(param: Any, by: dict[str, str]) -> Node:  # noqa: ANN401
    if param.name in by:
        return {"by": by[param.name]}
    choices = [item.value for item in param.shell_complete(None, "") if item.value]
    return {"choices": choices} if choices else {}


if __name__ == "__main__":
    TREE.write_text(text(tree()), encoding="utf-8")
