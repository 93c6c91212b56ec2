"""Names for the shell to complete, from the inventory's files and the record; no host is asked.

A Tab must answer at once: the files are read as they are, without the checks and the libraries that a verb
needs. What cannot be read completes to nothing.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Name = tuple[str, str]  # what is typed, and what a shell shows beside it


class Typed(Protocol):
    """What was typed before, by parameter: a click context, or `tabbing`'s own."""

    @property
    def params(self) -> dict[str, Any]:
        """The values of this verb."""

    def find_root(self) -> Typed:
        """Return those before the verb."""


_WAIT_S = 0.1  # for another process's lock on the record
_MOST = 500
_PLAIN = re.compile(r"[A-Za-z0-9_.:@\[\]%-]+")  # a name that a shell takes without quotes
_RUNS = "SELECT name, target_key, state FROM runs WHERE removed_at IS NULL ORDER BY created_at DESC LIMIT 500"


def run_names(ctx: Typed, incomplete: str) -> list[Name]:
    """Complete a run's name, those at the host and container given before."""
    host, ct = ctx.params.get("host"), ctx.params.get("ct")
    rows = [
        row
        for row in _runs(ctx)
        if host in (None, _host_of(row[1])) and str(ct or "") in ("", _ct_of(row[1]))
    ]
    return _matching(((name, f"{state} at {key}") for name, key, state in rows), incomplete)


def host_names(ctx: Typed, incomplete: str) -> list[Name]:
    """Complete a host: of the inventory by name, of the record by address."""
    listed = _section(ctx, "hosts")
    found = [(name, str(body.get("address", ""))) for name, body in listed.items()]
    known = {address for _, address in found}
    found += [(host, "in the record") for _, key, _ in _runs(ctx) if (host := _host_of(key)) not in known]
    return _matching([*found, ("local", "this machine")], incomplete)


def ct_ids(ctx: Typed, incomplete: str) -> list[Name]:
    """Complete a container's id, those of the host given before."""
    host = ctx.params.get("host")
    hosts = _section(ctx, "hosts")
    address = hosts.get(str(host), {}).get("address", host)
    listed = _section(ctx, "containers")
    found = [
        (str(body["ct"]), f"{name} at {body.get('host')}")
        for name, body in listed.items()
        if body.get("ct") is not None and (host is None or body.get("host") in (host, address))
    ]
    seen = [key for _, key, _ in _runs(ctx) if host is None or _host_of(key) in (host, address)]
    found += [(ct, f"in the record, at {_host_of(key)}") for key in seen if (ct := _ct_of(key))]
    return _matching(found, incomplete)


def container_names(ctx: Typed, incomplete: str) -> list[Name]:
    """Complete a container by its name in the inventory."""
    listed = _section(ctx, "containers")
    return _matching(
        ((name, f"{body.get('host')}/{body.get('ct', '-')}") for name, body in listed.items()), incomplete
    )


def config_names(ctx: Typed, incomplete: str) -> list[Name]:  # noqa: ARG001  # each completer has both
    """Complete a configuration: the bundled ones and the TOML files here; other folders are the shell's."""
    spec = find_spec("trainer")
    folders = spec.submodule_search_locations or () if spec is not None else ()
    bundled = [file.stem for folder in folders for file in sorted(Path(folder, "configs").glob("*.toml"))]
    here = [file.name for file in sorted(Path().glob("*.toml"))]
    return _matching(
        [*((name, "bundled") for name in bundled), *((name, "a file") for name in here)], incomplete
    )


def _matching(found: Iterable[Name], incomplete: str) -> list[Name]:
    """Return each name once that begins so; the first word on it stays."""
    named: dict[str, str] = {}
    for name, text in found:
        if name.startswith(incomplete) and _PLAIN.fullmatch(name):
            named.setdefault(name, text if text.isprintable() else "")
    return list(named.items())[:_MOST]


def _host_of(target_key: str) -> str:
    return target_key.rpartition("/")[0] or target_key


def _ct_of(target_key: str) -> str:
    head, _, ct = target_key.rpartition("/")
    return ct if head and ct.isdigit() else ""


def _runs(ctx: Typed) -> list[tuple[str, str, str]]:
    """Return name, target and state of the record's runs, the newest first; the file is not written."""
    import sqlite3
    from contextlib import closing

    from orchestrator.places import record_path

    path = Path(ctx.find_root().params.get("record") or record_path()).expanduser()
    try:
        where = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(where, uri=True, timeout=_WAIT_S)) as record:
            return [(str(name), str(key), str(state)) for name, key, state in record.execute(_RUNS)]
    except (OSError, ValueError, sqlite3.Error):
        return []


def _section(ctx: Typed, section: str) -> dict[str, dict[str, Any]]:
    """Return a section of all the inventory's files, as it stands there."""
    found: dict[str, dict[str, Any]] = {}
    for data in _documents(ctx):
        entries = data.get(section) if isinstance(data, dict) else None
        if isinstance(entries, dict):
            found.update({str(name): body for name, body in entries.items() if isinstance(body, dict)})
    return found


def _documents(ctx: Typed) -> Iterator[Any]:
    import yaml

    from orchestrator.places import SUFFIXES, inventory_paths
    from orchestrator.userfile import read_bytes

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    given = ctx.find_root().params.get("inventory_dir")
    try:
        paths = inventory_paths(Path(given) if given else None)
        files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    except OSError:
        return
    for file in files:
        if file.suffix not in SUFFIXES:
            continue
        try:
            yield yaml.load(read_bytes(file, limit=1 << 20), loader)  # either is a safe one
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            continue
