"""The chain: the checks in their order, what each rests on, and the exit code. Pure.

What rests on a link that failed is skipped: one fault is one alarm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from orchestrator.doctor import gpus, inside, torches, way
from orchestrator.doctor.findings import Finding, Status, Verdict, skipped
from orchestrator.errors import Exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.doctor.readings import Readings


class Check(NamedTuple):
    """One link. It is skipped if one of `rests_on` failed, or one of `needs` is not known to hold."""

    name: str
    judge: Callable[[Readings], Verdict]
    rests_on: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    is_of_ct: bool = False
    is_of_ssh: bool = False


REACH = ("name", "tcp", "host key", "login")
_HOST = ("login",)
_PLACE = ("exists", "running", "frozen")
CHECKS = (
    Check("name", way.name),
    Check("tcp", way.tcp, ("name",), is_of_ssh=True),
    Check("host key", way.host_key, ("name", "tcp"), is_of_ssh=True),
    Check("login", way.login, ("name", "tcp", "host key"), is_of_ssh=True),
    Check("root", way.root, _HOST, ("login",), is_of_ct=True),
    Check("pct", way.pct, _HOST, ("login",), is_of_ct=True),
    Check("exists", way.exists, ("root", "pct"), ("login",), is_of_ct=True),
    Check("running", way.running, ("root", "pct", "exists"), ("login",), is_of_ct=True),
    Check("frozen", way.unfrozen, ("root", "pct", "exists", "running"), ("login",), is_of_ct=True),
    Check("lock", way.unlocked, ("root", "pct", "exists"), ("login",), is_of_ct=True),
    Check("enter", way.enter, ("root", "pct", *_PLACE), ("login",)),
    Check("first byte", way.first_byte, (), ("enter",)),
    Check("python3", inside.python3, (), ("enter",)),
    Check("tmux", inside.tmux, (), ("enter",)),
    Check("guest", inside.guest, ("python3",), ("enter",)),
    Check("locale", inside.locale, (), ("guest",)),
    Check("clock", inside.clock, (), ("guest",)),
    Check("disk", inside.disk, (), ("guest",)),
    Check("memory", inside.memory, (), ("guest",)),
    Check("/dev/shm", inside.shm, (), ("guest",)),
    Check("ulimits", inside.limits, (), ("guest",)),
    Check("gpu nodes", gpus.nodes, (), ("guest",)),
    Check("driver", gpus.driver, ("gpu nodes",), ("guest",)),
    Check("gpus", gpus.cards, ("gpu nodes", "driver"), ("guest",)),
    Check("holders", gpus.holders, ("gpu nodes", "driver", "gpus"), ("guest",)),
    Check("cuda", gpus.cuda, ("gpu nodes", "driver", "gpus"), ("guest",)),
    Check("torch", torches.torch, (), ("guest",)),
    Check("torch build", torches.build, ("torch",), ("guest",)),
    Check("known bad", torches.known_bad, ("torch",), ("guest",)),
)


def examine(read: Readings) -> tuple[Finding, ...]:
    """Return a finding for each link, in the order of the chain."""
    found: dict[str, Finding] = {}
    failed: dict[str, str] = {}  # check -> the first link that failed below it
    for check in CHECKS:
        if (check.is_of_ct and read.ct is None) or (check.is_of_ssh and read.hop is None):
            continue
        cause = _cause(check, found, failed)
        if cause is not None:
            failed[check.name] = cause
            verdict = skipped(f"it rests on `{cause}`")
        else:
            verdict = check.judge(read)
        found[check.name] = Finding(
            check=check.name, status=verdict.status, seen=verdict.seen, fix=verdict.fix
        )
    return tuple(found.values())


def _cause(check: Check, found: dict[str, Finding], failed: dict[str, str]) -> str | None:
    """Return the link that keeps this check from being made, or None."""
    for name in (*check.rests_on, *check.needs):
        if name not in found:
            continue
        if name in failed:
            return failed[name]
        status = found[name].status
        if status is Status.BAD or (status is Status.UNKNOWN and name in check.needs):
            return name
    return None


def exit_code(findings: tuple[Finding, ...]) -> Exit:
    """Return 4 if the host was not reached, or what lies behind it is not known; 14 if anything is bad; 0."""
    by_name = {finding.check: finding.status for finding in findings}
    if any(by_name.get(name) in (Status.BAD, Status.UNKNOWN) for name in REACH):
        return Exit.UNREACHABLE
    if Status.BAD in by_name.values():
        return Exit.NOT_READY
    is_blind = any(by_name.get(name) is Status.UNKNOWN for name in ("enter", "guest"))
    return Exit.UNREACHABLE if is_blind else Exit.OK
