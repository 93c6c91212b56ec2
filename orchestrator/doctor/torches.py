"""The trainer's Python: torch against driver and GPU, and combinations that are known to be bad. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.doctor.findings import Verdict, bad, numbers, ok, skipped, unknown, warn
from orchestrator.doctor.gpus import has_none
from orchestrator.doctor.inside import PROVISION, _inside

if TYPE_CHECKING:
    from orchestrator.doctor.readings import Inside, Readings, Torch

OLDEST, TOO_NEW = (2, 9), (2, 15)
INSTALL = "-m pip install 'torch>=2.9,<2.15' numpy safetensors"


class _Known(NamedTuple):
    """What is known of the versions from `first` to below `end`, where more than one GPU trains."""

    first: tuple[int, ...]
    end: tuple[int, ...]
    text: str
    fix: str


_OWN = "the bundled trainer is not hit; in a trainer of your own: "
KNOWN = (
    _Known(
        (2, 0),
        (2, 14),
        "the FX race: any thread that traces breaks every other thread's call of compiled code",
        f"{_OWN}one process a GPU, no threads",
    ),
    _Known(
        (2, 14),
        (2, 15),
        "threads that compile at once die (KeyError: 'custom', 'Subgraph' object has no attribute 'dtype')",
        f"{_OWN}one process a GPU, no threads",
    ),
    _Known(
        (2, 10),
        (2, 11),
        "ranks that compile at once meet in Triton's cache (stale file handle, pytorch #173679)",
        f"{_OWN}let the ranks of a node compile in turn",
    ),
    _Known(
        (2, 12),
        (2, 13),
        "ranks collide in the FX cache on a warm start (pytorch #188332)",
        f"{_OWN}let the ranks of a node compile in turn",
    ),
)


def _torch(read: Readings) -> Torch | Verdict:
    inside = _inside(read)
    if isinstance(inside, Verdict):
        return inside
    if inside.torch is None:
        return unknown(f"{read.python} did not answer in time")
    return inside.torch


def torch(read: Readings) -> Verdict:
    """Whether the trainer's Python has what the bundled trainer needs, in versions that it knows."""
    found = _torch(read)
    if isinstance(found, Verdict):
        return found
    fix = f"{PROVISION} makes an environment that has it; or {read.python} {INSTALL}, or name another Python"
    if found.version is None:
        # Without a Python that was named, a trainer of one's own may well have another.
        verdict = warn if read.python == "python3" else bad
        return verdict(f"{read.python}: {found.error or 'no torch'}", fix)
    version = numbers(found.version)
    if not version:
        return unknown(f"its version reads {found.version!r}")
    if not OLDEST <= version[:2] < TOO_NEW:
        return bad(f"torch {found.version}; the bundled trainer knows 2.9 to 2.14", fix)
    if found.lacks:
        return bad(f"torch {found.version}, but no {', '.join(found.lacks)}", fix)
    return ok(f"torch {found.version} of Python {found.python}")


def build(read: Readings) -> Verdict:
    """Whether torch was built for this driver and these GPUs."""
    found = _torch(read)
    if isinstance(found, Verdict):
        return found
    if has_none(read):
        return skipped("there is no GPU")
    if found.version is None:
        return skipped("there is no torch to look at")
    if found.cuda is None:
        kind = "ROCm" if found.hip else "the CPU"
        fix = "`dflashctl provision --torch-index NAME`, with a CUDA that the driver allows, such as cu130"
        return bad(f"torch {found.version} is built for {kind}, not for CUDA", fix)
    inside = read.inside
    too_old = _driver_too_old(found, inside)
    if too_old:
        return bad(too_old, f"a newer driver on the host, or a torch of CUDA {_major(inside)}")
    missing = _unbuilt(found, inside)
    if missing:
        built = ", ".join(found.arch)
        return bad(f"not built for {', '.join(missing)} (it has {built})", "install a torch that is")
    if inside is None or inside.driver_cuda is None:
        return unknown(f"CUDA {found.cuda}; what the driver knows was not told")
    return ok(
        f"CUDA {found.cuda}, the driver knows {_dotted(inside.driver_cuda)}; {', '.join(found.arch[-3:])}"
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _major(inside: Inside | None) -> str:
    return f"{inside.driver_cuda[0]}" if inside and inside.driver_cuda else "the driver's"


def _driver_too_old(found: Torch, inside: Inside | None) -> str | None:
    """CUDA's minor versions are compatible: only an older major version of the driver's is too old."""
    needs = numbers(found.cuda)
    if inside is None or inside.driver_cuda is None or not needs or needs[0] <= inside.driver_cuda[0]:
        return None
    return f"torch wants CUDA {found.cuda}, and the driver knows up to {_dotted(inside.driver_cuda)}"


def _unbuilt(found: Torch, inside: Inside | None) -> list[str]:
    """Return the cards whose code torch has neither ready nor as PTX of an older one."""
    if inside is None or not found.arch:
        return []
    missing = []
    for card in inside.cards or ():
        if card.capability is not None and not runs_on(found.arch, card.capability):
            missing.append(f"{card.name or 'GPU'} (sm_{card.capability[0]}{card.capability[1]})")
    return list(dict.fromkeys(missing))


def runs_on(arch: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether code of `arch` (sm_90, sm_90a, compute_90) runs on a card of that capability.

    sm_XY runs on its major version from Y on; PTX (compute_XY) on every newer card; sm_XYa on that alone.
    """
    for each in arch:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", each)
        if found is None:
            continue
        built = (int(found[2]), int(found[3]))
        if found[4] == "a":
            is_fit = built == capability
        elif found[1] == "compute":
            is_fit = built <= capability
        else:
            is_fit = built[0] == capability[0] and built[1] <= capability[1]
        if is_fit:
            return True
    return False


def known_bad(read: Readings) -> Verdict:
    """Whether something is known of this torch with this many GPUs."""
    found = _torch(read)
    if isinstance(found, Verdict):
        return found
    if found.version is None:
        return skipped("there is no torch to look at")
    version = numbers(found.version)[:2]
    hits = [known for known in KNOWN if known.first <= version < known.end]
    inside = read.inside
    num_gpus = len(inside.cards or ()) if inside is not None else 0
    num_gpus = min(num_gpus, len(read.wanted_gpus)) if read.wanted_gpus else num_gpus
    if not hits:
        return ok(f"nothing is known against torch {found.version}")
    if num_gpus < 2:
        return ok(f"nothing is known against torch {found.version} on one device")
    fixes = "; ".join(dict.fromkeys(known.fix.removeprefix(_OWN) for known in hits))
    return warn(f"torch {found.version}: {'; '.join(known.text for known in hits)}", _OWN + fixes)
