"""A provision file and its lock, read."""

from __future__ import annotations

from pathlib import Path

from orchestrator import yamlfile
from orchestrator.errors import ConfigError
from orchestrator.playbook import shipped
from orchestrator.provision.form import Provision
from orchestrator.provision.lock import Lock, parse_lock
from orchestrator.userfile import read_text


def load(path: Path | None) -> tuple[Provision, Lock | None]:
    """Return what a file says, the shipped one without a path, and the lock that it names.

    Raises:
        ConfigError: Either cannot be read or is wrong; names file, line, key, value and what is allowed.
    """
    source = path or shipped("provision")
    document = yamlfile.read(source)
    provision = yamlfile.validate(Provision, document.data, document)
    named = next((step.venv.lock for step in provision.steps if step.venv is not None), None)
    return provision, read_lock(source.parent / Path(named).expanduser()) if named is not None else None


def read_lock(path: Path) -> Lock:
    """Return a lock.

    Raises:
        ConfigError: It cannot be read, or a line is no pin.
    """
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"lock {path}: cannot be read: {why}") from error
    return parse_lock(text, str(path))
