"""The wheelhouse of `provision`: read, made for a container, or made and carried in one go."""

from __future__ import annotations

import hashlib
import platform
from typing import TYPE_CHECKING

from orchestrator.cli.context import SETTINGS, print_json
from orchestrator.cli.provisiontable import bar_of
from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.provision import Goal, Provision, Source, Venv, Wheelhouse, Wishes
    from orchestrator.provision.lock import Lock
    from orchestrator.site import Site


def carried(house: Wheelhouse | None) -> Source:
    """Return a wheelhouse as the source of packages; None is one that is yet to be made, with pip in it."""
    from orchestrator.provision import Source

    if house is None:
        return Source(label="a wheelhouse that is made first", wheels=("pip-0-py3-none-any.whl",))
    return Source(label=house.label, wheels=house.names)


def read(folder: Path) -> Wheelhouse:
    """Return the wheels of a folder.

    Raises:
        ConfigError: There are none, or it is not as its manifest says.
    """
    from orchestrator.provision import read_wheelhouse

    with bar_of("wheelhouse") as told:
        return read_wheelhouse(folder, told)


def own(
    site: Site, book: Provision, wishes: Wishes, python: str | None, *, is_check: bool
) -> Wheelhouse | None:
    """Return this machine's own wheelhouse for a container, made unless it is there; None if only checking.

    Raises:
        ConfigError: Nobody knows for which Python, or it cannot be made here.
        CommandFailed: pip could not.
    """
    import platformdirs

    from orchestrator.provision.wheelhouse import MANIFEST

    goal = goal_of(site, book, wishes, python)
    told = f"{_lock_of(wishes).text}\n{goal}\n{wishes.source.label}\n{_venv_of(book).requirements}"
    name = hashlib.sha256(told.encode()).hexdigest()[:12]
    folder = platformdirs.user_cache_path("dflashctl", appauthor=False) / "wheelhouse" / name
    if (folder / MANIFEST).is_file():
        return read(folder)
    return None if is_check else make(folder, book, wishes, goal)


def goal_of(site: Site, book: Provision, wishes: Wishes, python: str | None) -> Goal:
    """Return for what container the wheels are; it is asked.

    Raises:
        ConfigError: It has no Python, and none was named.
    """
    from orchestrator.provision import Goal, look

    seen = look(site, book, wishes)
    minor = seen.minor or python
    if minor is None or seen.machine is None:
        raise ConfigError(
            f"{site.target_key}: no {wishes.guest_python} is there, so nobody knows for which Python",
            hint="name it: --for-python 3.11 (Debian 12), 3.13 (Debian 13), 3.12 (Ubuntu 24.04)",
        )
    return Goal(python=minor, machine=seen.machine, glibc=seen.glibc)


def goal_here(python: str) -> Goal:
    """Return the goal for a named Python, on such a machine as this."""
    from orchestrator.provision import Goal

    return Goal(python=python, machine=platform.machine())


def make(folder: Path, book: Provision, wishes: Wishes, goal: Goal) -> Wheelhouse:
    """Download into a folder what the container will need.

    Raises:
        ConfigError: It cannot be made here.
        CommandFailed: pip could not.
    """
    from orchestrator.provision import make_wheelhouse

    with bar_of("wheelhouse") as told:
        return make_wheelhouse(folder, _venv_of(book), _lock_of(wishes), wishes.source, goal, told)


def tell(folder: Path, house: Wheelhouse, goal: Goal, *, as_json: bool) -> None:
    """Say what was made."""
    if as_json:
        wheels = [each.told for each in house.files]
        print_json({"folder": str(folder), "python": goal.python, "bytes": house.num_bytes, "wheels": wheels})
        return
    text = f"{folder}: {len(house.files)} wheels for Python {goal.python}, {house.num_bytes / 1e6:.0f} MB"
    SETTINGS.out.print(f"{text}; `dflashctl provision --wheelhouse {folder}` carries them", markup=False)


def _venv_of(book: Provision) -> Venv:
    found = next((step.venv for step in book.steps if step.venv is not None), None)
    if found is None:
        raise ConfigError("the provision file has no venv step, so no wheel is needed")
    return found


def _lock_of(wishes: Wishes) -> Lock:
    if wishes.lock is None:
        raise ConfigError("the provision file names no lock")
    return wishes.lock
