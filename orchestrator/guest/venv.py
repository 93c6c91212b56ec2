"""`venv`: a virtual environment with what a lock names, whole or absent; its key says what is in it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator import wire
from orchestrator.guest import asked, clock, files, lock, masks, paths, venvs
from orchestrator.guest.piprun import Left, Teller
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from orchestrator.guest.link import Link

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


@dataclass(frozen=True)
class Install:
    """One call of pip."""

    requirements: tuple[str, ...]
    index: str | None
    no_deps: bool


@dataclass(frozen=True)
class Order:
    """What a request asks for."""

    state: Path
    key: str
    installs: tuple[Install, ...]
    constraints: str
    imports: tuple[str, ...]
    from_wheelhouse: bool
    rebuild: bool
    min_free_bytes: int
    facts: dict[str, Any]

    @property
    def final(self) -> Path:
        """Where it lies, from the first file on."""
        return venvs.folder(self.state) / self.key

    @property
    def house(self) -> Path:
        """Where its wheels lie."""
        return venvs.wheelhouse(self.state, self.key)


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer `said` lines, then `made`."""
    del verb
    order = _order(request)
    home = venvs.folder(order.state)
    home.mkdir(parents=True, exist_ok=True)
    held = lock.take(home / ".lock")
    if held is None:
        raise Refusal(
            "busy", f"{home}: another provisioning is at work there", "wait for its end, then try again"
        )
    try:
        already = venvs.stamp(order.final) is not None and not order.rebuild
        if order.rebuild and (pids := venvs.users(order.final)):
            message = f"{order.final} has to be made anew, and process {pids[0]} runs by it"
            raise Refusal("in_use", message, "stop the run first", pids=pids)
        if not already:
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
    except Left:
        pass  # nobody listens any more
    finally:
        os.close(held)


def _order(request: wire.Message) -> Order:
    key, constraints, facts = request.get("key"), request.get("constraints"), request.get("facts")
    if not isinstance(key, str) or not venvs.KEY.fullmatch(key):
        raise Refusal("bad_request", f"key: {key!r} must be 16 hexadecimal digits")
    installs = request.get("installs")
    if not isinstance(installs, list) or not installs or not isinstance(constraints, str):
        raise Refusal("bad_request", "installs: must be a list, with a text of constraints")
    return Order(
        state=paths.resolve_state(request.get("state_dir")),
        key=key,
        installs=tuple(_install(each) for each in installs),
        constraints=constraints,
        imports=_words(request.get("imports"), "imports"),
        from_wheelhouse=bool(request.get("wheelhouse")),
        rebuild=bool(request.get("rebuild")),
        min_free_bytes=asked.integer(request, "min_free_bytes", 0),
        facts=facts if isinstance(facts, dict) else {},
    )


def _install(told: Any) -> Install:  # noqa: ANN401
    if not isinstance(told, dict) or not isinstance(told.get("index"), (str, type(None))):
        raise Refusal("bad_request", "installs: each has `requirements`, `index` and `no_deps`")
    words = _words(told.get("requirements"), "requirements")
    if any(word.startswith("-") for word in words):
        raise Refusal("bad_request", f"requirements: {words!r}: an option is none")
    return Install(words, told.get("index"), bool(told.get("no_deps")))


def _words(told: object, key: str) -> tuple[str, ...]:
    if not isinstance(told, list) or not all(asked.is_text(word) for word in told):
        raise Refusal("bad_request", f"{key}: must be a list of texts")
    return tuple(told)


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
