"""One place to run things in, resolved: where it is, how it is reached, what its defaults are.

Takes options and an inventory, gives a `Target`; never opens a connection.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from pydantic import ValidationError

from orchestrator.errors import ConfigError, NotFound
from orchestrator.inventory.address import host_from
from orchestrator.inventory.models import CONTAINER_STATE_DIR, LOCAL_STATE_DIR, MAX_CT, Container, Host
from orchestrator.yamlfile import show

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Unpack

    from orchestrator.inventory.load import Inventory


LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a run lives.

    `host` None is the machine dflashctl runs on; `ct` None is the host itself, without a container. `jumps`
    are the hosts
    on the way, the first hop first; empty leaves it to ~/.ssh/config. `container` is the inventory's name,
    if it has one.
    """

    host: Host | None = None
    ct: int | None = None
    container: str | None = None
    jumps: tuple[Host, ...] = ()
    known_hosts: str | None = None
    become: tuple[str, ...] | None = None
    python: str | None = None  # the trainer's; None: what `provision` made there, else python3
    guest_python: str = "python3"
    state_dir: str = CONTAINER_STATE_DIR
    checkpoint_dir: str | None = None
    config: str | None = None
    env_file: str | None = None
    gpus: tuple[int, ...] | None = None
    mask: tuple[str, ...] = ()

    @property
    def host_key(self) -> str:
        """The host's part of `key`: `local`, `10.1.2.6`, `user@10.1.2.6:2222`."""
        if self.host is None:
            return LOCAL
        user = f"{self.host.user}@" if self.host.user not in (None, "root") else ""
        address = f"[{self.host.address}]" if ":" in self.host.address else self.host.address
        port = f":{self.host.port}" if self.host.port not in (None, 22) else ""
        return f"{user}{address}{port}"

    @property
    def key(self) -> str:
        """A stable name for the record, by whatever name the host was given: `10.1.2.6/200`, `local`."""
        return self.host_key if self.ct is None else f"{self.host_key}/{self.ct}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data for the record; holds no secret."""
        body = {field.name: getattr(self, field.name) for field in fields(self)}
        body["host"] = self.host.model_dump(mode="json") if self.host else None
        body["jumps"] = [host.model_dump(mode="json") for host in self.jumps]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in body.items()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Target:
        """Return what `to_json` gave; unknown keys are ignored.

        Raises:
            ConfigError: A value is not what `to_json` writes.
        """
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in body.items() if name in known}
        try:
            values["host"] = Host.model_validate(values["host"]) if values.get("host") else None
            values["jumps"] = tuple(Host.model_validate(host) for host in values.get("jumps") or ())
        except ValidationError as cause:
            raise ConfigError(
                f"the record's target {show(body)} is not readable: {cause.errors()[0]['msg']}"
            ) from cause
        for name in ("become", "gpus"):
            values[name] = tuple(values[name]) if values.get(name) is not None else None
        values["mask"] = tuple(values.get("mask") or ())
        return cls(**values)


class Options(TypedDict, total=False):
    """Options of the command line; None leaves the inventory's value or the default."""

    user: str | None
    port: int | None
    identity: str | None
    known_hosts: str | None
    become: tuple[str, ...] | None
    python: str | None
    guest_python: str | None
    state_dir: str | None
    checkpoint_dir: str | None
    config: str | None
    env_file: str | None
    gpus: tuple[int, ...] | None


def resolve(
    inventory: Inventory,
    *,
    host: str | None = None,
    ct: int | None = None,
    container: str | None = None,
    host_only: bool = False,
    **options: Unpack[Options],
) -> Target:
    """Return the target that the options mean.

    With `host` alone the inventory's one container on it is taken, else the host itself; with `host_only`
    always the host. With neither host nor container, the inventory's one container is taken.

    Raises:
        ConfigError: Options contradict each other, or say too little.
        NotFound: No container of that name.
    """
    _check_options(host, ct, container)
    entry = None if host_only else _pick(inventory, host, ct, container)
    if entry is not None and host is None:
        host = entry.host
    if host is None:
        names = ", ".join(sorted(inventory.containers)) or "none"
        raise ConfigError(
            f"no host given, and the inventory does not settle it (containers: {names})",
            hint="give --host ADDRESS --ct ID, --host local, or --container NAME",
        )
    where = None if host == LOCAL else _with_login(inventory.host(host), options)
    ct = ct if entry is None or ct is not None else entry.ct
    return _build(inventory, entry, options, where, ct)


def _check_options(host: str | None, ct: int | None, container: str | None) -> None:
    if ct is not None and not 100 <= ct <= MAX_CT:
        raise ConfigError(f"--ct: {ct} is no container id; allowed: 100 to {MAX_CT}, as `pct list` shows")
    if container is not None and (host is not None or ct is not None):
        raise ConfigError(
            f"--container {container}: it names host and container already; leave out --host and --ct"
        )


def _build(
    inventory: Inventory, entry: Container | None, options: Options, where: Host | None, ct: int | None
) -> Target:
    base = entry or Container(name="adhoc", host=LOCAL, ct=ct)
    is_local = where is None and ct is None
    default = LOCAL_STATE_DIR if is_local else CONTAINER_STATE_DIR
    state_dir = options.get("state_dir") or base.state_dir or default
    checkpoint_dir = options.get("checkpoint_dir") or base.checkpoint_dir
    for option, path in (("--state-dir", state_dir), ("--checkpoint-dir", checkpoint_dir)):
        allowed = ("/", "~/") if is_local else ("/",)
        if path is not None and (not path.startswith(allowed) or "\n" in path or "\0" in path):
            raise ConfigError(f"{option}: {show(path)} is not allowed; allowed: a path that begins with /")
    known_hosts, gpus = options.get("known_hosts"), options.get("gpus")
    python = options.get("python") or base.python
    return Target(
        host=where,
        ct=ct,
        container=entry.name if entry else None,
        jumps=inventory.jumps(where) if where else (),
        known_hosts=_own_file(known_hosts) if known_hosts else None,
        become=options.get("become") or (where.become if where else None),
        python=_program(python, is_local) if python is not None else None,
        guest_python=_program(options.get("guest_python") or base.guest_python, is_local),
        state_dir=state_dir,
        checkpoint_dir=checkpoint_dir,
        config=options.get("config") or base.config,
        env_file=options.get("env_file") or base.env_file,
        gpus=gpus if gpus is not None else base.gpus,
        mask=base.mask,
    )


def _program(python: str, is_local: bool) -> str:  # noqa: FBT001
    """Return a program that means the same from any folder: a name, or an absolute path."""
    if "/" not in python or python.startswith("/"):
        return python
    if is_local:
        # Not resolved: a virtual environment's python is a link, and works by its own name only.
        return str(Path(python).expanduser().absolute())
    raise ConfigError(f"--python: {show(python)} is not allowed; allowed: a name, or a path from /")


def _own_file(path: str) -> str:
    """Return a file of this machine so that it means the same from any folder: the record keeps it."""
    return str(Path(path).expanduser().absolute())


def _pick(inventory: Inventory, host: str | None, ct: int | None, container: str | None) -> Container | None:
    """Return the inventory's entry that the options mean, if there is exactly one."""
    if container is not None:
        if container not in inventory.containers:
            names = ", ".join(sorted(inventory.containers)) or "none"
            raise NotFound(
                f'--container: "{container}" is not in the inventory (containers: {names})',
                hint=f"it was read from {', '.join(inventory.sources) or 'no file: give --inventory DIR'}",
            )
        return inventory.containers[container]
    if host is None and ct is None:
        found = list(inventory.containers.values())
    else:
        found = [
            entry
            for entry in inventory.containers.values()
            if (host is None or _same_host(inventory, entry.host, host)) and (ct is None or entry.ct == ct)
        ]
    if len(found) > 1 and host is not None and ct is None:
        names = ", ".join(sorted(entry.name for entry in found))
        raise ConfigError(
            f"--host {host}: the inventory has several containers on it ({names})",
            hint="give --ct or --container",
        )
    return found[0] if len(found) == 1 else None


def _same_host(inventory: Inventory, left: str, right: str) -> bool:
    if left == right:
        return True
    if LOCAL in (left, right):
        return False
    return inventory.host(left).address == inventory.host(right).address


def _with_login(host: Host, options: Options) -> Host:
    identity = options.get("identity")
    given = {
        "user": options.get("user"),
        "port": options.get("port"),
        "identity": _own_file(identity) if identity else None,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    return host_from({**host.model_dump(), **changes}) if changes else host
