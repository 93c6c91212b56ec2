"""How the stand-in for `pct` reads its command line, and how it ends when that is wrong.

Cited as in pct.py. CLIHandler.pm, JSONSchema.pm and RESTEnvironment.pm are in pve-common's src/PVE.
"""

from __future__ import annotations

import sys
from typing import NoReturn

DIED = 255  # what Perl's die gives when neither errno nor $? is set

BOOL, TEXT = "bool", "text"
PUSH_PULL = {"perms": TEXT, "user": TEXT, "group": TEXT}
# verb -> (positional arguments, whether more may follow, options, usage): cmddef at pct.pm:1140-1200
VERBS: dict[str, tuple[int, bool, dict[str, str], str]] = {
    "config": (1, False, {"current": BOOL, "snapshot": TEXT}, "pct config <vmid> [OPTIONS]"),
    "exec": (1, True, {"keep-env": BOOL}, "pct exec <vmid> [<extra-args>] [OPTIONS]"),
    "list": (0, False, {}, "pct list"),
    "pull": (3, False, PUSH_PULL, "pct pull <vmid> <path> <destination> [OPTIONS]"),
    "push": (3, False, PUSH_PULL, "pct push <vmid> <file> <destination> [OPTIONS]"),
    "reboot": (1, False, {"timeout": TEXT}, "pct reboot <vmid> [OPTIONS]"),
    "shutdown": (1, False, {"timeout": TEXT, "forceStop": BOOL}, "pct shutdown <vmid> [OPTIONS]"),
    "start": (1, False, {"debug": BOOL, "skiplock": BOOL}, "pct start <vmid> [OPTIONS]"),
    "status": (1, False, {"verbose": BOOL}, "pct status <vmid> [OPTIONS]"),
    "stop": (1, False, {"skiplock": BOOL}, "pct stop <vmid> [OPTIONS]"),
    "unlock": (1, False, {}, "pct unlock <vmid>"),
}


def die(message: str, code: int = DIED) -> NoReturn:
    """End as Perl's die does."""
    sys.stderr.write(f"{message}\n")
    sys.exit(code)


def usage_error(verb: str, *lines: str) -> NoReturn:
    """End with messages and the verb's usage (CLIHandler.pm)."""
    die("\n".join([*lines, VERBS[verb][3]]))


def as_bool(verb: str, name: str, value: str) -> bool:
    """A boolean as JSONSchema.pm's parse_boolean reads it."""
    if value.lower() in {"", "1", "on", "yes", "true"}:
        return True
    if value.lower() in {"0", "off", "no", "false"}:
        return False
    usage_error(
        verb, "400 Parameter verification failed.", f"{name}: type check ('boolean') failed - got '{value}'"
    )


def parse(verb: str, argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """Split arguments and options as Getopt::Long does: options before `--`, unique prefixes allowed."""
    num_wanted, more, known, _ = VERBS[verb]
    positional: list[str] = []
    options: dict[str, str] = {}
    bad: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            positional += rest
            break
        if not word.startswith("-") or word == "-":
            positional.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        matches = [option for option in known if option.lower().startswith(name.lower())]
        exact = [option for option in matches if option.lower() == name.lower()]
        if len(exact or matches) != 1:
            bad.append(f"Unknown option: {name.lower()}")
            continue
        option = (exact or matches)[0]
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        options[option] = value
    if bad:
        usage_error(verb, *bad, "400 unable to parse option")  # JSONSchema.pm, get_options
    if len(positional) < num_wanted:
        usage_error(verb, "400 not enough arguments")
    if len(positional) > num_wanted and not more:
        usage_error(verb, "400 too many arguments")
    return positional, options


def check_vmid(verb: str, text: str) -> None:
    """A container's id is a number from 100 (JSONSchema.pm, the standard option pve-vmid)."""
    if not text.isascii() or not text.isdigit():
        wrong = f"vmid: type check ('integer') failed - got '{text}'"
    elif int(text) < 100:
        wrong = "vmid: value must have a minimum value of 100"
    else:
        return
    usage_error(verb, "400 Parameter verification failed.", wrong)
