"""`[user@]address[:port]` -> Host. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from orchestrator.errors import ConfigError
from orchestrator.inventory.models import Host
from orchestrator.yamlfile import show

if TYPE_CHECKING:
    from collections.abc import Mapping

# A bare IPv6 address has two colons or more, so it cannot carry a port.
_ADDRESS = re.compile(
    r"(?:(?P<user>[^@]+)@)?"
    r"(?:(?P<bare>[^@:\[\]]*:[^@\[\]]*:[^@\[\]]*)"
    r"|(?:\[(?P<bracketed>[^\[\]]+)\]|(?P<plain>[^@:\[\]]+))(?::(?P<port>[0-9]+))?)"
)


def host_at(text: str, option: str = "--host") -> Host:
    """Return the host that the text names; an IPv6 address with a port stands in brackets.

    Raises:
        ConfigError: It is no address; the message begins with `option`.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None:
        allowed = "an inventory name or [user@]address[:port]"
        raise ConfigError(f"{option}: {show(text)} is no address; allowed: {allowed}")
    address, port = match["bracketed"] or match["plain"] or match["bare"], match["port"]
    values = {"name": _name(address), "address": address, "user": match["user"]}
    return host_from({**values, "port": int(port) if port else None}, option)


def host_from(values: Mapping[str, Any], option: str = "--host") -> Host:
    """Return a host of checked values.

    Raises:
        ConfigError: One is not allowed; the message names its option, `option` for the address.
    """
    try:
        return Host.model_validate(values)
    except ValidationError as cause:
        problem = cause.errors(include_url=False)[0]
        name = str(problem["loc"][0])
        where = option if name in ("address", "name") else f"--{name}"
        allowed = Host.model_fields[name].description or "letters, digits, dots and dashes"
        raise ConfigError(f"{where}: {show(problem['input'])} is not allowed; allowed: {allowed}") from cause


def _name(address: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", address).lstrip(".-") or "host"
