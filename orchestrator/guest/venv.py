"""`venv`: a virtual environment with what a lock names, whole or absent; its key says what is in it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from orchestrator import wire
from orchestrator.guest import clock, files, masks, paths, venvhold, venvs
from orchestrator.guest.piprun import Left, Teller
from orchestrator.guest.refusal import Refusal
from orchestrator.guest.venvorder import read

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from orchestrator.guest.link import Link
    from orchestrator.guest.venvorder import Install, Order

LEFTOVER_S = 3.0
_VERSIONS = """
import importlib, importlib.metadata as metadata, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps({each.metadata["Name"]: each.version for each in metadata.distributions()}))
"""
# A bar for programs. Debian 12's pip has none, so the locked pip is the first thing that is installed.
_HAS_RAW_BAR = (
    "import pip, sys; sys.exit(tuple(int(part) for part in pip.__version__.split('.')[:2]) < (24, 1))"
)


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer `said` lines, then `made`."""
    del verb
    order = read(request)
    with contextlib.suppress(Left), venvhold.hold(order.state, request) as held:  # `Left`: nobody listens
        already = venvs.stamp(order.final) is not None and not order.rebuild
        if not already:
            _require_unused(order.final)
            _make(order, link, held)
        if venvs.current_python(order.state) != str(order.final / "bin" / "python"):
            venvs.point(order.state, order.key)
        shutil.rmtree(order.house, ignore_errors=True)
        with contextlib.suppress(OSError):
            order.house.parent.rmdir()
        packages = (venvs.stamp(order.final) or {}).get("packages")
        python = str(order.final / "bin" / "python")
        link.send(
            "made", {"path": str(order.final), "python": python, "packages": packages, "already": already}
        )


def _require_unused(final: Path) -> None:
    """Refuse where processes run by what has to be made anew; those of a call that was cut end soon."""
    deadline = clock.ticking() + LEFTOVER_S
    while pids := venvs.users(final):
        if clock.ticking() >= deadline:
            message = f"{final} has to be made anew, and process {pids[0]} runs by it"
            raise Refusal("in_use", message, "stop the run first", pids=pids)
        clock.wait(0.1)


def _make(order: Order, link: Link, held: int) -> None:
    """Make it in its place; until its stamp is in it, it is nobody's, and the next call removes it."""
    free = paths.free_bytes(order.final)
    if free is not None and free < order.min_free_bytes:
        message = f"{order.final.parent}: {free} bytes are free, {order.min_free_bytes} are needed"
        raise Refusal("no_space", message, "free space in the container", free_bytes=free)
    teller = Teller(link, masks.own(), held)
    scratch = order.final.with_name(f".{order.key}.tmp")  # /tmp may be small, and in memory
    try:
        for leftover in (order.final, scratch):
            if leftover.exists():
                shutil.rmtree(leftover)
        scratch.mkdir()
        (scratch / "lock").write_text(order.constraints, encoding="utf-8")
        env = _environment(order, scratch)
        pip = _begin(order, teller, env)
        for install in order.installs:
            _pip(order, teller, [*pip, *_options(order, install, scratch)], env, install)
            pip = [str(order.final / "bin" / "python"), "-m", "pip"]
        packages = _verified(order, teller, env)
        fields = {"schema": wire.SCHEMA, **order.facts, "packages": packages, "at": clock.now()}
        files.write_json(order.final / venvs.STAMP, fields)
        shutil.rmtree(_cache(order), ignore_errors=True)
    except BaseException:
        shutil.rmtree(order.final, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _cache(order: Order) -> Path:
    """What was downloaded whole before a cut; gone once nothing needs it."""
    return order.final.parent / ".pip-cache"


def _environment(order: Order, scratch: Path) -> dict[str, str]:
    """The container's own settings of pip hold, but for what would ask or look elsewhere."""
    ours = {
        "LC_ALL": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(scratch),
        "PIP_CACHE_DIR": str(_cache(order)),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_RETRIES": "3",
    }
    return {**os.environ, **ours}


def _begin(order: Order, teller: Teller, env: Mapping[str, str]) -> list[str]:
    """Make the empty environment; return the words of a pip for it.

    A wheelhouse that has pip's own wheel needs no ensurepip, which Debian ships apart.
    """
    own = sorted(order.house.glob("pip-*.whl")) if order.from_wheelhouse else []
    argv = [sys.executable, "-m", "venv", *(["--without-pip"] if own else []), str(order.final)]
    teller.say(f"making {order.final}".encode())
    if teller.run(argv, env) != 0:
        raise Refusal("install_failed", f"{sys.executable} cannot make a virtual environment", None)
    python = str(order.final / "bin" / "python")
    return [python, f"{own[-1]}/pip"] if own else [python, "-m", "pip"]


def _options(order: Order, install: Install, scratch: Path) -> list[str]:
    words = ["install", "--constraint", str(scratch / "lock"), *(["--no-deps"] if install.no_deps else [])]
    if install.requirements == ("pip",):
        words.append("--no-compile")  # most of it is never imported
    if order.from_wheelhouse:
        words += ["--no-index", "--find-links", str(order.house)]
    return [*words, *install.requirements]


def _pip(order: Order, teller: Teller, words: list[str], env: Mapping[str, str], install: Install) -> None:
    own = {**env}
    if install.index is not None and not order.from_wheelhouse:
        own["PIP_INDEX_URL"] = install.index  # not in the argv, where everybody there would see its password
        own.pop("PIP_EXTRA_INDEX_URL", None)
    python = str(order.final / "bin" / "python")
    if words[1:3] == ["-m", "pip"] and teller.run([python, "-c", _HAS_RAW_BAR], env) == 0:
        own["PIP_PROGRESS_BAR"] = "raw"
    else:
        own["PIP_PROGRESS_BAR"] = "off"
    code = teller.run(words, own)
    if code != 0:
        what = " ".join(install.requirements)
        raise Refusal("install_failed", f"pip ended with exit code {code} while it installed {what}", None)


def _verified(order: Order, teller: Teller, env: Mapping[str, str]) -> dict[str, str]:
    """Import what must be there; return name and version of every package."""
    python = str(order.final / "bin" / "python")
    teller.say(f"importing {', '.join(order.imports)}".encode())
    done = subprocess.run(
        [python, "-I", "-c", _VERSIONS, json.dumps(order.imports)],
        env=dict(env),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        teller.say(*done.stderr.splitlines()[-20:])
        last = masks.own().text(done.stderr.decode("utf-8", "replace")).strip().splitlines()[-1:] or [
            "no word"
        ]
        raise Refusal("install_failed", f"{python} cannot import {', '.join(order.imports)}: {last[0]}", None)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found
