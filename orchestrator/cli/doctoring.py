"""doctor: every link from here to a GPU that computes, checked at once."""

from __future__ import annotations

import itertools
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, counted, print_json
from orchestrator.cli.reaching import connect_options, resolve_target, site_at
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.doctor import Finding

_NAME_WIDTH = 12
_STATUS_WIDTH = 8
_LONGEST = 900
_STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red", "unknown": "magenta", "skipped": "dim"}


def register(app: typer.Typer) -> None:
    """Add this file's verb."""
    app.command(rich_help_panel="Look")(doctor)


def doctor(
    host: options.Host = None,
    ct: options.Ct = None,
    container: options.ContainerName = None,
    python: Annotated[
        str | None,
        typer.Option("--python", help="The trainer's Python; default the inventory's, else `provision`'s."),
    ] = None,
    user: options.User = None,
    port: options.Port = None,
    identity: options.Identity = None,
    known_hosts: options.KnownHosts = None,
    state_dir: options.StateDir = None,
    accept_new_host_key: options.AcceptKey = False,
    as_json: options.Json = False,
) -> None:
    """Check the whole way to a run: ssh, pct, the container, its GPUs, its torch. Each fault with its fix.

    It changes nothing there but the guest's file, and leaves a GPU in use alone.
    A check that rests on one that failed is skipped; what cannot be read is
    unknown, and no fault. Exit code 0 ready, 14 not ready, 4 unreachable.

    Examples:

        dflashctl doctor --host 10.1.2.6 --ct 200
        dflashctl doctor --container trainer --python /root/venv/bin/python
        dflashctl doctor --host local --json
    """
    from orchestrator.doctor import collect, examine, exit_code

    target = resolve_target(
        host=host,
        ct=ct,
        container=container,
        user=user,
        port=port,
        identity=identity,
        known_hosts=known_hosts,
        state_dir=state_dir,
        python=python,
    )
    started = SETTINGS.clock.monotonic()
    site = site_at(target, connect_options(accept_new_host_key=accept_new_host_key))
    try:
        with SETTINGS.err.status(f"looking at {target.key}"):
            findings = examine(collect(site, SETTINGS.clock))
    except KeyboardInterrupt:
        SETTINGS.interrupted = "nothing was changed"
        raise
    finally:
        site.close()
    took = SETTINGS.clock.monotonic() - started
    code = exit_code(findings)
    if as_json:
        checks = [
            {"check": f.check, "status": f.status.value, "seen": f.seen, "fix": f.fix} for f in findings
        ]
        print_json({"target": target.key, "exit_code": int(code), "seconds": took, "checks": checks})
    else:
        _show(target.key, findings, took)
    raise typer.Exit(code)


def _show(place: str, findings: tuple[Finding, ...], took_s: float) -> None:
    out = SETTINGS.out
    for status, check, said in _rows(findings):
        text = one_line(said, _LONGEST)
        head, *rest = _folded(text) if out.is_terminal else [text]
        out.print(f"{status:<{_STATUS_WIDTH}}", style=_STYLES[status], end="")
        out.print(f"{check:<{_NAME_WIDTH}}{head}", markup=False)
        for line in rest:
            out.print(" " * (_STATUS_WIDTH + _NAME_WIDTH) + line, markup=False)
    out.print(f"{place}: {_tally(findings)}, in {took_s:.1f} s", markup=False)


def _rows(findings: tuple[Finding, ...]) -> Iterator[tuple[str, str, str]]:
    """Yield status, check and text; what follows each other and is skipped for one reason shares a line."""
    for (status, seen), group in itertools.groupby(findings, key=_sameness):
        alike = list(group)
        if status == "skipped" and len(alike) > 1:
            names = ", ".join(finding.check for finding in alike)
            yield status, f"{len(alike)} checks", f"{seen}: {names}"
            continue
        for finding in alike:
            yield status, finding.check, finding.seen + (f"; {finding.fix}" if finding.fix else "")


def _sameness(finding: Finding) -> tuple[str, str]:
    return finding.status.value, finding.seen


def _folded(text: str) -> list[str]:
    """Return the lines of a text beside the names, as wide as the terminal allows."""
    width = max(30, SETTINGS.out.width - _STATUS_WIDTH - _NAME_WIDTH)
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def _tally(findings: tuple[Finding, ...]) -> str:
    """Return how many there are of each status; a person looks for the faults first."""
    statuses = [finding.status.value for finding in findings]
    told = [counted(statuses.count("bad"), "fault")] if "bad" in statuses else ["no fault"]
    told += [f"{statuses.count(s)} {s}" for s in ("warn", "unknown", "skipped", "ok") if s in statuses]
    return ", ".join(told)
