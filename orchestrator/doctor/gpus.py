"""The GPUs: device nodes, driver and library, cards, who holds them, and computing on each. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.doctor.findings import Verdict, bad, ok, size, skipped, unknown, warn
from orchestrator.doctor.inside import _inside
from orchestrator.types.seen import Blind, Present

if TYPE_CHECKING:
    from orchestrator.doctor.readings import Card, Inside, Readings

HELD_BYTES = 1 << 30  # the floor over which the playbook starts nothing on a GPU
NEEDED = ("nvidiactl", "nvidia-uvm")


def has_none(read: Readings) -> bool:
    """Whether nothing of NVIDIA is on host or container, and none is asked for."""
    inside = read.inside
    if inside is None or read.wanted_gpus:
        return False
    on_host = read.host is not None and bool(read.host.module or read.host.devices)
    return not on_host and not inside.module and inside.nodes == () and inside.has_driver is False


def _where(read: Readings) -> str:
    return "the container" if read.ct is not None else "it"


def _with_gpus(read: Readings) -> Inside | Verdict:
    inside = _inside(read)
    return skipped("there is no GPU") if not isinstance(inside, Verdict) and has_none(read) else inside


def nodes(read: Readings) -> Verdict:
    """Whether the device nodes are there, of the driver that is loaded now, and may be opened."""
    inside = _inside(read)
    if isinstance(inside, Verdict):
        return inside
    if inside.nodes is None:
        return unknown("/dev could not be read")
    if has_none(read):
        return warn("no NVIDIA driver and no GPU here; a trainer would run on the CPU")
    there = {node.name for node in inside.nodes}
    cards = sorted(int(n.removeprefix("nvidia")) for n in there if n.removeprefix("nvidia").isdigit())
    lacks = [f"/dev/{name}" for name in NEEDED if name not in there]
    lacks += [] if cards else ["/dev/nvidia0"]
    if lacks:
        return bad(f"{_where(read)} has no {', '.join(lacks)}", _make_fix(read, lacks))
    stale = [f"/dev/{node.name}" for node in inside.nodes if node.is_current is False]
    if stale:
        seen = f"{', '.join(stale)}: made for another boot of the host, its number is no longer the driver's"
        return bad(seen, _remake_fix(read))
    refused = [f"/dev/{node.name}: {node.error}" for node in inside.nodes if node.error]
    if refused:
        fix = "allow it (lxc.cgroup2.devices.allow, or dev0: entries), then restart the container"
        return bad("; ".join(refused), fix if read.ct is not None else "udev's rights, or the driver")
    return ok(f"{len(cards)} GPU{'s' * (len(cards) != 1)}, nvidiactl, nvidia-uvm")


def _make_fix(read: Readings, lacks: list[str]) -> str:
    if read.ct is None:
        return "`nvidia-modprobe -c 0 -u` makes them; else the driver is not installed"
    on_host = {name.removeprefix("/dev/") for name in read.host.devices} if read.host else set()
    missing = [path for path in lacks if path.removeprefix("/dev/") not in on_host]
    if missing:
        return (
            f"the host has none either: `nvidia-modprobe -c 0 -u` there (at each boot), "
            f"then `pct reboot {read.ct}`"
        )
    return f"pass them in: `pct set {read.ct} --dev0 {lacks[0]}` (dev1, ...), then `pct reboot {read.ct}`"


def _remake_fix(read: Readings) -> str:
    if read.ct is None:
        return "`nvidia-modprobe -c 0 -u` makes them anew"
    return f"`nvidia-modprobe -c 0 -u` on the host (at each boot), then `pct reboot {read.ct}`"


def driver(read: Readings) -> Verdict:
    """Whether the kernel's module and the library inside are of one version."""
    inside = _with_gpus(read)
    if isinstance(inside, Verdict):
        return inside
    module = inside.module or (read.host.module if read.host else None)
    problem = inside.nvml_problem or ""
    fix = f"install the NVIDIA libraries of {module or 'the module that is loaded'} in {_where(read)} "
    fix += "(NVIDIA-Linux-x86_64-*.run --no-kernel-module), or reboot the host after a driver update"
    if "mismatch" in problem or (module and inside.library and module != inside.library):
        return bad(f"module {module or '?'}, library {inside.library or '?'}: they must be the same", fix)
    if module is None and inside.library is None and not inside.cards:
        return unknown("neither module nor library tells a version")
    if inside.library is None and not inside.cards:
        return bad(f"module {module}, and no NVIDIA library in {_where(read)}", fix)
    return ok(f"module {module or 'not told'}, library {inside.library or 'not told'}")


def cards(read: Readings) -> Verdict:
    """Whether NVML sees every GPU, and none asks for help."""
    inside = _with_gpus(read)
    if isinstance(inside, Verdict):
        return inside
    if inside.cards is None:
        return unknown(inside.nvml_problem or "the GPUs were not read")
    if not inside.cards:
        return bad(inside.nvml_problem or "NVML sees no GPU", "see the checks above")
    missing = sorted(set(read.wanted_gpus or ()) - {card.index for card in inside.cards})
    if missing:
        there = ", ".join(str(card.index) for card in inside.cards)
        lost = ", ".join(map(str, missing))
        return bad(
            f"no GPU {lost} there; it has {there}", "pass it in, or name others (gpus: in the inventory)"
        )
    sick = [text for card in inside.cards if (text := _sick(card))]
    if sick:
        return bad("; ".join(sick), "do what the driver asks, on the host, with every client gone")
    due = [str(card.index) for card in inside.cards if card.remap_pending]
    names = _tally(inside)
    if due:
        return warn(f"{names}; GPU {', '.join(due)} waits for a reset to replace bad memory", "reset it soon")
    return ok(names)


def _tally(inside: Inside) -> str:
    names = [card.name or "GPU" for card in inside.cards or ()]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _sick(card: Card) -> str | None:
    if card.problem:
        return f"GPU {card.index}: {card.problem}"
    if card.recovery:
        return f"GPU {card.index}: the driver asks to {card.recovery}"
    if card.remap_failed:
        return f"GPU {card.index}: bad memory, and no spare rows left"
    return None


def holders(read: Readings) -> Verdict:
    """Whether the GPUs are free, or in the hands of our own runs."""
    inside = _with_gpus(read)
    if isinstance(inside, Verdict):
        return inside
    mine = _mine(read, inside)
    if mine is None:
        return unknown("the GPUs were not read")
    held = [card for card in mine if (card.used_bytes or 0) > HELD_BYTES or card.pids]
    if not held:
        if any(card.used_bytes is None for card in mine):
            return unknown("their memory was not told")
        return ok("nothing is on them")
    used = ", ".join(f"GPU {card.index} {size(card.used_bytes or 0)}" for card in held)
    who = read.holders
    if not isinstance(who, Present):
        why = who.reason if isinstance(who, Blind) else "the host named nobody"
        return warn(f"in use ({used}) by nobody knows whom: {why}", "nvidia-smi on the host names them")
    foreign = [each for each in who.value if not (each.run and each.ct == read.ct)]
    if not foreign and who.value:
        runs = ", ".join(sorted({each.run for each in who.value if each.run}))
        return ok(f"in use by run {runs} ({used})")
    if not foreign:
        return warn(f"in use ({used}), and the host names nobody", "nvidia-smi on the host may name them")
    seen = "; ".join(each.text for each in foreign[:4])
    is_over = any((card.used_bytes or 0) > HELD_BYTES for card in held)
    verdict = bad if is_over else warn
    return verdict(f"in use ({used}): {seen}", "; ".join(each.remedy(read.ct) for each in foreign[:4]))


def _mine(read: Readings, inside: Inside) -> list[Card] | None:
    """Return the cards that runs here would use; None if they could not be read."""
    if inside.cards is None:
        return None
    return [c for c in inside.cards if read.wanted_gpus is None or c.index in read.wanted_gpus]


def cuda(read: Readings) -> Verdict:
    """Whether each GPU really computes. One in use is left alone."""
    inside = _with_gpus(read)
    if isinstance(inside, Verdict):
        return inside
    mine = _mine(read, inside)
    if not mine:
        return unknown("no GPU was read, so none was tried")
    failed = {
        card.index: card.cuda.value for card in mine if isinstance(card.cuda, Present) and card.cuda.value
    }
    if failed:
        return bad(_by_reason(failed), _cuda_fix(read, " ".join(failed.values())))
    done = [card for card in mine if isinstance(card.cuda, Present)]
    untold = {card.index: card.cuda.reason for card in mine if isinstance(card.cuda, Blind)}
    if not done:
        return unknown(_by_reason(untold))
    seen = f"{len(done)} of {len(mine)} allocated, wrote and read back"
    return ok(f"{seen}; {_by_reason(untold)}" if untold else seen)


def _by_reason(told: dict[int, str]) -> str:
    groups: dict[str, list[str]] = {}
    for index, reason in told.items():
        groups.setdefault(reason, []).append(str(index))
    return "; ".join(f"GPU {', '.join(each)}: {reason}" for reason, each in groups.items())


def _cuda_fix(read: Readings, said: str) -> str:
    if "libcuda" in said:
        return f"install the NVIDIA libraries in {_where(read)}, of the host's driver version"
    if "999" in said or "unknown error" in said:
        return _remake_fix(read)
    if "no kernel image" in said:
        return "this torch was not built for this GPU: see the check below"
    return "`dmesg` on the host may show an Xid; a reset or reboot of it may be due"
