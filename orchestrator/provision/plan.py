"""From what was seen to what is to be done: of each step whether it is as it should be. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.provision.lock import Lock, canonical, key_of
from orchestrator.provision.seen import version_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.provision.form import Check, Step, Venv
    from orchestrator.provision.seen import Seen, VenvSeen

PYTORCH = "https://download.pytorch.org/whl/"
OLDEST_PYTHON = (3, 10)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where packages come from. `wheels` None: from an index; else the names in the wheelhouse."""

    label: str  # names the source in the key; holds no password
    index: str | None = None
    torch_index: str | None = None
    wheels: tuple[str, ...] | None = None
    is_cpu: bool = False

    @property
    def has_pip(self) -> bool:
        """Whether the wheelhouse brings pip itself, so that no ensurepip is needed."""
        return self.wheels is not None and any(name.startswith("pip-") for name in self.wheels)


@dataclass(frozen=True, kw_only=True)
class Fine:
    """Nothing is to be done."""

    seen: str


@dataclass(frozen=True, kw_only=True)
class Lacking:
    """Something is to be done: what was seen, and what will be done."""

    seen: str
    does: str


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """Nothing here can do it."""

    seen: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the judgement needs to know beside the container."""

    source: Source
    guest_python: str = "python3"
    lock: Lock | None = None
    trainer: str = ""  # its sha256
    state_dir: str = ""


Verdict = Fine | Lacking | Blocked


def judge(step: Step, seen: Seen, wishes: Wishes) -> Verdict:
    """Return whether a step is done, to be done, or cannot be done."""
    if step.venv is not None:
        return _venv(step.venv, seen, wishes)
    if step.trainer is not None:
        short = wishes.trainer[:12]
        if seen.has_trainer:
            return Fine(seen=f"{short} is there")
        return Lacking(seen=f"{short} is not there", does=f"send it to {wishes.state_dir}/trainers")
    missing = _missing(step, seen, wishes)
    if step.run is not None:
        does = f"run {' '.join(step.run)}"
        return Lacking(seen=missing, does=does) if missing else Fine(seen="its check holds")
    if not missing:
        return Fine(seen=_told(step, seen))
    return _apt(step, seen, wishes, missing)


def _apt(step: Step, seen: Seen, wishes: Wishes, missing: str) -> Verdict:
    packages = " ".join(step.apt or ())
    own = step.check.program if step.check else None
    if own == wishes.guest_python and "/" in wishes.guest_python:
        return Blocked(seen=missing, fix="is guest_python right in the inventory?")
    said = _program(own, seen, wishes) if own is not None else None
    if own is not None and said is not None and _is_too_old(step.check, said):
        return Blocked(seen=missing, fix=_newer(own, wishes))
    if not seen.has_apt:
        return Blocked(seen=f"{missing}, and no apt-get", fix=f"install there what Debian calls {packages}")
    if seen.uid not in (0, None):
        return Blocked(seen=f"{missing}, and you are not root there", fix=f"sudo apt-get install {packages}")
    return Lacking(seen=missing, does=f"apt-get install {packages}")


def _newer(program: str, wishes: Wishes) -> str:
    if program == wishes.guest_python:
        return (
            "a newer release in the container, or name a newer Python in the inventory (guest_python: /path)"
        )
    return f"a newer release in the container, or {program} by hand"


def _missing(step: Step, seen: Seen, wishes: Wishes) -> str:
    """Return what a check lacks, "" for nothing."""
    check = step.check
    if check is None:
        lacks = [name for name in step.apt or () if name.partition("=")[0] not in seen.packages]
        return f"{', '.join(lacks)} not installed" if lacks else ""
    if check.program is not None:
        if (said := _program(check.program, seen, wishes)) is None:
            return f"there is no {check.program}"
        if _is_too_old(check, said):
            return f"{check.program} is {said}; {check.at_least} or newer is needed"
    is_brought = check.module == "ensurepip" and wishes.source.has_pip
    if check.module is not None and check.module not in seen.modules and not is_brought:
        return f"its Python has no {check.module}"
    if check.run is not None and not seen.commands.get(step.name, False):
        return f"`{' '.join(check.run)}` does not end with 0"
    return ""


def _program(name: str, seen: Seen, wishes: Wishes) -> str | None:
    """Return what a program says of its version; `python3` is the guest's Python, by whatever name."""
    return seen.python if name in ("python3", wishes.guest_python) else seen.programs.get(name)


def _is_too_old(check: Check | None, said: str) -> bool:
    if check is None or check.at_least is None:
        return False
    found = version_numbers(said)
    return bool(found) and found < version_numbers(check.at_least)


def _told(step: Step, seen: Seen) -> str:
    """Return what of a step that is fine is worth telling."""
    check = step.check
    if check is not None and check.program is not None:
        return (seen.python if check.program == "python3" else seen.programs.get(check.program)) or "there"
    if check is not None and check.module is not None:
        return (
            f"its Python has {check.module}" if check.module in seen.modules else "the wheelhouse brings pip"
        )
    return "its check holds" if check is not None else f"{', '.join(step.apt or ())} installed"


def venv_key(venv: Venv, seen: Seen, wishes: Wishes) -> str | None:
    """Return the key of the environment that is wanted; None as long as no Python is there."""
    if seen.minor is None or wishes.lock is None:
        return None
    return key_of(wishes.lock, venv.requirements, venv.imports, wishes.source.label, seen.minor)


def _venv(venv: Venv, seen: Seen, wishes: Wishes) -> Verdict:
    key = venv_key(venv, seen, wishes)
    what = _contents(venv, seen.minor, wishes)
    if key is None:
        return Lacking(seen="there is no Python yet", does=f"make one with {what}")
    place = f"{wishes.state_dir}/venvs/{key}"
    there = seen.venvs.get(key)
    if there is None:
        return Lacking(seen="not there", does=f"make {place} with {what}")
    if there.now is None:
        return Lacking(seen=f"{place}: its Python does not run", does=f"make it anew with {what}")
    if lost := _lost(there):
        return Lacking(
            seen=f"{place}: {lost[0]} is not as it was installed", does=f"make it anew with {what}"
        )
    if seen.current != key:
        return Lacking(seen=f"{place} is not the one in use", does=f"let {wishes.state_dir}/venv name it")
    return Fine(seen=f"{place}: {_versions(venv, there.packages)}")


def _contents(venv: Venv, minor: str | None, wishes: Wishes) -> str:
    lock = wishes.lock
    if lock is None or minor is None:
        return f"{', '.join(venv.requirements)} ({wishes.source.label})"
    pins = [(canonical(each), lock.version(each, minor)) for each in venv.requirements]
    return f"{', '.join(f'{name} {version}' for name, version in pins if version)} ({wishes.source.label})"


def _lost(there: VenvSeen) -> list[str]:
    """Return the packages that are gone or have another version; what somebody added is theirs."""
    now = there.now or {}
    return [name for name, version in sorted(there.packages.items()) if now.get(name) != version]


def _versions(venv: Venv, packages: Mapping[str, str]) -> str:
    there = {canonical(name): version for name, version in packages.items()}
    names = [canonical(each) for each in venv.requirements]
    return ", ".join(f"{name} {there[name]}" for name in names if name in there)


def must_rebuild(venv: Venv, seen: Seen, wishes: Wishes) -> bool:
    """Whether one is there under that key which is not as it was made."""
    key = venv_key(venv, seen, wishes)
    there = seen.venvs.get(key) if key else None
    return there is not None and bool(_lost(there))


def installs(venv: Venv, source: Source) -> list[dict[str, object]]:
    """Return the calls of pip, in order. torch has an index of its own; the rest has the usual one."""
    calls: list[dict[str, object]] = []

    def call(words: list[str], index: str | None, *, no_deps: bool = False) -> None:
        calls.append({"requirements": words, "index": index, "no_deps": no_deps})

    if source.wheels is None or source.has_pip:
        call(["pip"], source.index)
    torch = [each for each in venv.requirements if canonical(each) == "torch"]
    if source.wheels is None and source.torch_index is not None and torch:
        call(torch, source.torch_index, no_deps=True)
    call(list(venv.requirements), source.index)
    return calls


def torch_index(word: str | None) -> str | None:
    """Return the index that `cpu`, `cu130` or a URL means."""
    if word is None or "://" in word:
        return word
    return f"{PYTORCH}{word}"
