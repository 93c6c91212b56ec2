"""What a live host says of its containers, as inventory entries.

Pure parsers of `pct list` and `pct config`, and one function that asks a shell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from orchestrator.errors import CommandFailed, HostDenied

if TYPE_CHECKING:
    from orchestrator.inventory.target import Target

_NVIDIA = re.compile(r"/dev/nvidia(\d+)\b")
# pct prints "%-10s %-10s %-12s %-20s": the Lock column is often blank, so words cannot be counted.
_STATUS, _LOCK, _NAME = 11, 22, 35


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One line of `pct list`."""

    ct: int
    status: str
    lock: str | None
    name: str


@dataclass(frozen=True, kw_only=True)
class Found:
    """A container and what its configuration says about GPUs; `gpus` are indices as the host counts them."""

    listed: Listed
    hostname: str | None
    gpus: tuple[int, ...]
    has_all_gpus: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command printed and how it ended."""

    exit_code: int | None
    stdout: str
    stderr: str


Ask = Callable[[Sequence[str]], Answer]


def parse_list(text: str) -> tuple[Listed, ...]:
    """Return the containers that `pct list` printed; nothing at all means that there are none."""
    found = []
    for line in text.splitlines():
        ct, status, lock, name = line[:_STATUS], line[_STATUS:_LOCK], line[_LOCK:_NAME], line[_NAME:]
        if not ct.strip().isdigit():
            continue
        if not ct.endswith(" ") or not (status[-1:] or " ").isspace() or not (lock[-1:] or " ").isspace():
            ct, status, lock, name = _by_words(line)
        found.append(Listed(ct=int(ct), status=status.strip(), lock=lock.strip() or None, name=name.strip()))
    return tuple(found)


def _by_words(line: str) -> tuple[str, str, str, str]:
    """Return the fields of a line whose columns another pct has laid out otherwise."""
    words = line.split()
    if len(words) == 3:
        return words[0], words[1], "", words[2]
    return words[0], ([*words, ""])[1], ([*words, "", ""])[2], " ".join(words[3:])


def parse_config(text: str) -> dict[str, list[str]]:
    """Return the keys of `pct config`; a raw `lxc.` key can stand there several times."""
    keys: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() and not key.startswith((" ", "#")):
            keys.setdefault(key.strip(), []).append(value.strip())
    return keys


def gpus_of(config: dict[str, list[str]]) -> tuple[tuple[int, ...], bool]:
    """Return the GPU indices passed through, and whether all of /dev is bound.

    The new form is `dev0: /dev/nvidia0,...`; the old one `lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none
    bind,...`. A cgroup2 rule `c 195:* rwm` alone allows every GPU but puts none there.
    """
    gpus: set[int] = set()
    for key, values in config.items():
        if re.fullmatch(r"dev\d+", key):
            devices = [value.split(",")[0].removeprefix("path=") for value in values]
        elif key == "lxc.mount.entry":
            devices = [value.split()[0] for value in values if value.split()]
        else:
            continue
        gpus |= {int(match[1]) for device in devices if (match := _NVIDIA.fullmatch(device))}
    mounts = [value.split()[0] for value in config.get("lxc.mount.entry", []) if value.split()]
    return tuple(sorted(gpus)), "/dev" in mounts


def scan(ask: Ask, target: Target) -> tuple[Found, ...]:
    """Ask a host for its containers. `ask` runs an argv on the host itself.

    Raises:
        CommandFailed: pct said no.
        HostDenied: pct needs root.
    """
    pct = (*(target.become or ()), "pct")
    listed = parse_list(_stdout(ask, (*pct, "list"), target))
    found = []
    for each in listed:
        config = parse_config(_stdout(ask, (*pct, "config", str(each.ct)), target))
        gpus, has_all = gpus_of(config)
        hostname = next(iter(config.get("hostname", [])), None)
        found.append(Found(listed=each, hostname=hostname, gpus=gpus, has_all_gpus=has_all))
    return tuple(found)


def _stdout(ask: Ask, argv: tuple[str, ...], target: Target) -> str:
    answer = ask(argv)
    if answer.exit_code == 0:
        return answer.stdout
    said = " ".join(answer.stderr.split()) or f"exit code {answer.exit_code}"
    if re.search(r"run as root|ipcc_send_rec|password is required", said):
        raise HostDenied(
            f"{target.host_key}: pct needs root there: {said}", hint="log in as root, or set become"
        )
    if "not found" in said:
        raise CommandFailed(f"{target.host_key}: {said}", hint="is it a Proxmox VE host?")
    raise CommandFailed(f"{target.host_key}: `{' '.join(argv)}` said: {said}")


def render(target: Target, found: Sequence[Found]) -> str:
    """Return inventory YAML for a host and its containers, to paste into a file."""
    body: dict[str, dict[str, object]] = {}
    host_name = "local"
    if target.host is not None:
        host_name = target.host.name
        host = target.host.model_dump(exclude={"name"}, exclude_none=True, mode="json")
        body["hosts"] = {host_name: host}
    containers: dict[str, object] = {}
    for each in found:
        entry: dict[str, object] = {"host": host_name, "ct": each.listed.ct}
        if each.gpus:
            # Inside the container NVML and CUDA count from 0, whatever the host's numbers are.
            entry["gpus"] = list(range(len(each.gpus)))
        containers[_entry_name(each, containers)] = entry
    if containers:
        body["containers"] = containers
    text = yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=100)
    notes = "".join(f"# {line}\n" for line in (*_key_notes(target), *_notes(found)))
    return f"{notes}{text}" if body else f"{notes}# {target.host_key} has no containers\n"


def _entry_name(found: Found, taken: dict[str, object]) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", found.hostname or found.listed.name).strip("-.")
    if not name or name == "local" or name in taken:
        return f"ct{found.listed.ct}"
    return name


def _key_notes(target: Target) -> list[str]:
    """What an entry cannot carry: whoever uses it must know the host's key already."""
    if target.host is None or target.host.host_key is not None:
        return []
    where = target.known_hosts or "~/.ssh/known_hosts"
    again = f"; give --known-hosts {target.known_hosts} again" if target.known_hosts else ""
    return [f"the host's key must be in {where}, or its fingerprint in a line host_key of the host{again}"]


def _notes(found: Sequence[Found]) -> list[str]:
    notes = []
    for each in found:
        listed = each.listed
        lock = f", locked ({listed.lock})" if listed.lock else ""
        gpus = f"GPUs of the host: {', '.join(map(str, each.gpus))}" if each.gpus else "no GPU passed through"
        gpus = "all of /dev is passed through" if each.has_all_gpus and not each.gpus else gpus
        notes.append(f"{listed.ct} {listed.name}: {listed.status}{lock}; {gpus}")
    return notes
