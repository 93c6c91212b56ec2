"""inventory/*.yaml -> Inventory.

Takes files or folders, gives the hosts and containers that they declare, never looks at a host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.errors import ConfigError, InventoryError
from orchestrator.inventory.address import host_at
from orchestrator.inventory.models import Container, Host
from orchestrator.places import SUFFIXES
from orchestrator.yamlfile import Document, read, show, validate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

E = TypeVar("E", Host, Container)
_SECTIONS = ("hosts", "containers")


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """Hosts and containers by name, and the files they were read from."""

    hosts: Mapping[str, Host] = field(default_factory=dict)
    containers: Mapping[str, Container] = field(default_factory=dict)
    sources: tuple[str, ...] = ()

    @classmethod
    def load(cls, paths: Sequence[Path]) -> Inventory:
        """Read every file, and every `*.yaml` and `*.yml` of every folder, as one inventory.

        Raises:
            InventoryError: A file is wrong, a name is given twice, or a container's host is not declared.
        """
        documents = [read(path, InventoryError) for path in _files(paths)]
        hosts = _section(documents, "hosts", Host)
        containers = _section(documents, "containers", Container)
        for name, (container, document) in containers.items():
            if container.host != "local" and container.host not in hosts:
                where = document.where(("containers", name, "host"))
                known = ", ".join(["local", *sorted(hosts)])
                raise InventoryError(f"{where}: {show(container.host)} is not among the hosts ({known})")
        inventory = cls(
            hosts={name: host for name, (host, _) in hosts.items()},
            containers={name: container for name, (container, _) in containers.items()},
            sources=tuple(document.path for document in documents),
        )
        for name, (host, document) in hosts.items():
            _check_jumps(inventory, host, document, name)
        return inventory

    def host(self, text: str) -> Host:
        """Return the host of that name or address, or a new one from `[user@]address[:port]`.

        Raises:
            ConfigError: The text is no address.
        """
        if text in self.hosts:
            return self.hosts[text]
        given = host_at(text)
        listed = [host for host in self.hosts.values() if host.address == given.address]
        if len(listed) != 1:
            return given
        changes = {"user": given.user, "port": given.port}
        return listed[0].model_copy(update={key: value for key, value in changes.items() if value})

    def jumps(self, host: Host) -> tuple[Host, ...]:
        """Return the hosts on the way to `host`, the first hop first.

        Raises:
            ConfigError: The way leads in a circle, or a jump is no address.
        """
        chain: list[Host] = []
        hop = host
        while hop.jump is not None:
            hop = self.hosts.get(hop.jump) or host_at(hop.jump, f"hosts.{hop.name}.jump")
            if (hop.address == host.address and hop.port == host.port) or hop in chain:
                raise InventoryError(f"hosts.{host.name}.jump: the way leads in a circle through {hop.name}")
            chain.insert(0, hop)
        return tuple(chain)


def _check_jumps(inventory: Inventory, host: Host, document: Document, name: str) -> None:
    try:
        inventory.jumps(host)
    except ConfigError as cause:
        raise InventoryError(
            f"{document.path}:{document.line(('hosts', name, 'jump'))}: {cause.message}"
        ) from cause


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
        elif path.exists():
            found.append(path)
        else:
            raise InventoryError(f"{path}: no such file or folder", hint="give --inventory DIR")
    return found


def _section(documents: Sequence[Document], section: str, model: type[E]) -> dict[str, tuple[E, Document]]:
    entries: dict[str, tuple[E, Document]] = {}
    for document in documents:
        for name, body in _table(document, section).items():
            place = (section, name)
            if name in entries:
                first = entries[name][1]
                raise InventoryError(
                    f"{document.where(place)}: the name is given twice",
                    hint=f"it is at {first.where(place)} already",
                )
            entry = validate(model, {**body, "name": name}, document, place, InventoryError)
            entries[name] = (_at_home(entry, document), document)
    return entries


def _table(document: Document, section: str) -> dict[str, dict[str, Any]]:
    data = document.data
    if not isinstance(data, dict):
        raise InventoryError(
            f"{document.path}:1: {show(data)} is no mapping; allowed keys: {', '.join(_SECTIONS)}"
        )
    for key in data:
        if key not in _SECTIONS:
            where = document.where((str(key),))
            raise InventoryError(
                f"{where}: unknown key with the value {show(data[key])}; allowed: {', '.join(_SECTIONS)}"
            )
    table = data.get(section) or {}
    if not isinstance(table, dict):
        raise InventoryError(
            f"{document.where((section,))}: {show(table)} is not allowed; allowed: name: {{key: value}}"
        )
    for name, body in table.items():
        place = (section, str(name))
        if not isinstance(name, str):
            raise InventoryError(
                f"{document.where(place)}: the name {show(name)} is no text; put it in quotes"
            )
        if not isinstance(body, dict) or "name" in body:
            raise InventoryError(
                f"{document.where(place)}: {show(body)} is not allowed; allowed: keys and values of one entry"
            )
    return table


def _at_home(entry: E, document: Document) -> E:
    """Return the entry with this machine's paths made absolute: relative ones start at the file's folder."""
    folder = Path(document.path).resolve().parent
    changes: dict[str, str] = {}
    for key in ("identity", "env_file"):
        value = getattr(entry, key, None)
        if value is not None:
            changes[key] = str(folder / Path(value).expanduser())
    return entry.model_copy(update=changes) if changes else entry
