"""Makes a wheelhouse here by pip, for a container's Python: what it would install, and pip itself."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import CommandFailed, ConfigError
from orchestrator.masking import Masker, secret_values
from orchestrator.provision.lock import canonical
from orchestrator.provision.saying import Moment, Reader, why_pip
from orchestrator.provision.wheelhouse import MANIFEST, Wheelhouse, read_wheelhouse, write_manifest
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.provision.form import Venv
    from orchestrator.provision.lock import Lock
    from orchestrator.provision.plan import Source

OLDEST_GLIBC = 17  # of manylinux2014
DEFAULT_GLIBC = 28  # what torch's wheels ask for


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What the wheels are for: `python` such as 3.11, `glibc` such as 2.36."""

    python: str
    machine: str
    glibc: str | None = None


def make_wheelhouse(
    folder: Path, venv: Venv, lock: Lock, source: Source, goal: Goal, told: Callable[[Moment], None]
) -> Wheelhouse:
    """Download into `folder` what the container would; what is there already stays. Return its wheels.

    pip reads the conditions of requirements as its own Python does, so it must be of the same version here.

    Raises:
        ConfigError: There is no such Python here, or this is another kind of machine.
        CommandFailed: pip could not.
    """
    python = interpreter(goal)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        constraints = Path(scratch) / "lock"
        constraints.write_text(lock.text, encoding="utf-8")
        base = [python, "-m", "pip", "download", "--dest", str(folder), "--constraint", str(constraints)]
        base += [*_target(goal), "--find-links", str(folder)]
        torch = [each for each in venv.requirements if canonical(each) == "torch"]
        if source.torch_index is not None and torch:
            _pip([*base, "--no-deps", *torch], source.torch_index, told)
        _pip([*base, "pip", *venv.requirements], source.index, told)
    (folder / MANIFEST).unlink(missing_ok=True)
    house = read_wheelhouse(folder, told)
    write_manifest(folder, house, {"python": goal.python, "machine": goal.machine, "glibc": goal.glibc})
    return house


def interpreter(goal: Goal) -> str:
    """Return a Python of this machine that is of the goal's version and has pip.

    Raises:
        ConfigError: There is none, or this machine is another one.
    """
    if platform.system() != "Linux" or platform.machine() != goal.machine:
        here = f"{platform.system()} on {platform.machine()}"
        raise ConfigError(
            f"--make-wheelhouse: the wheels are for Linux on {goal.machine}, and this is {here}",
            hint="make it on such a machine, and carry the folder",
        )
    mine = ".".join(map(str, sys.version_info[:2]))
    names = [*([sys.executable] if mine == goal.python else []), f"python{goal.python}"]
    for name in names:
        path = shutil.which(name)
        if (
            path
            and subprocess.run([path, "-m", "pip", "--version"], capture_output=True, check=False).returncode
            == 0
        ):
            return path
    raise ConfigError(
        f"--make-wheelhouse: there is no Python {goal.python} with pip here, and the container's is one",
        hint="pip reads requirements as its own Python does: make it on a machine that has that version",
    )


def _target(goal: Goal) -> list[str]:
    """Return the options for wheels that the container can load, by its glibc."""
    minor = int(goal.glibc.split(".")[1]) if goal.glibc and goal.glibc.startswith("2.") else DEFAULT_GLIBC
    tags = [f"manylinux_2_{each}_{goal.machine}" for each in range(minor, OLDEST_GLIBC - 1, -1)]
    tags += [f"manylinux2014_{goal.machine}", f"linux_{goal.machine}"]
    words = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", goal.python]
    return [*words, *(word for tag in tags for word in ("--platform", tag))]


def _pip(argv: list[str], index: str | None, told: Callable[[Moment], None]) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    env["PIP_PROGRESS_BAR"] = "raw" if _has_raw_bar(argv[0]) else "off"
    if index is not None:
        env["PIP_INDEX_URL"] = index
        env.pop("PIP_EXTRA_INDEX_URL", None)
    reader, masker = Reader(), Masker(secret_values(os.environ))
    with subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as pip:
        try:
            for line in pip.stdout or ():
                moment = reader.read(one_line(masker.text(line.decode("utf-8", "replace")), 500).strip())
                if moment is not None:
                    told(moment)
        except BaseException:
            pip.terminate()
            raise
    if pip.returncode != 0:
        what, fix = why_pip(tuple(reader.lines))
        here = fix if fix and "--make-wheelhouse" not in fix else "has this machine a network?"
        raise CommandFailed(f"--make-wheelhouse: pip download ended with {pip.returncode}: {what}", hint=here)


def _has_raw_bar(python: str) -> bool:
    code = "import pip, sys; sys.exit(tuple(int(p) for p in pip.__version__.split('.')[:2]) < (24, 1))"
    return subprocess.run([python, "-c", code], check=False).returncode == 0
