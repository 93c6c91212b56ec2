"""provision: a bare container made ready for a run, step by step."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options, wheelhouses
from orchestrator.cli.context import SETTINGS
from orchestrator.cli.provisiontable import Bars, close, show
from orchestrator.cli.reaching import check_container, connect_options, resolve_target, site_at
from orchestrator.errors import ConfigError, Exit

if TYPE_CHECKING:
    from orchestrator.inventory import Target
    from orchestrator.provision import Job, Outcome, Source, Wishes
    from orchestrator.provision.lock import Lock
    from orchestrator.site import Site

TORCH_INDEX, INDEX = "DFLASHCTL_TORCH_INDEX", "DFLASHCTL_INDEX"
PACKAGES = "Packages"


def register(app: typer.Typer) -> None:
    """Add this file's verb."""
    app.command(rich_help_panel="Act")(provision)


def provision(
    host: options.Host = None,
    ct: options.Ct = None,
    container: options.ContainerName = None,
    only_check: Annotated[
        bool,
        typer.Option("--check", help="Say what would be done; change nothing. Exit code 14 if anything."),
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--file", help="Steps of your own, instead of the bundled provision.yaml.")
    ] = None,
    torch_index: Annotated[
        str | None,
        typer.Option(
            "--torch-index",
            envvar=TORCH_INDEX,
            help="Where torch comes from: PyTorch's cpu, cu130 ..., or a URL; default PyPI's CUDA build.",
            rich_help_panel=PACKAGES,
        ),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            "--index",
            envvar=INDEX,
            help="URL of a package index instead of PyPI; for one with a password use the variable.",
            rich_help_panel=PACKAGES,
        ),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline",
            help="The container reaches no index: download here what it needs, and carry it there.",
            rich_help_panel=PACKAGES,
        ),
    ] = False,
    wheelhouse: Annotated[
        Path | None,
        typer.Option("--wheelhouse", help="Carry the wheels of this folder.", rich_help_panel=PACKAGES),
    ] = None,
    make_wheelhouse: Annotated[
        Path | None,
        typer.Option(
            "--make-wheelhouse",
            help="Download here what the container will need into this folder, and do no more.",
            rich_help_panel=PACKAGES,
        ),
    ] = None,
    for_python: Annotated[
        str | None,
        typer.Option(
            "--for-python",
            help="With --make-wheelhouse or --offline: 3.11, where the container has no Python to ask yet.",
            rich_help_panel=PACKAGES,
        ),
    ] = None,
    user: options.User = None,
    port: options.Port = None,
    identity: options.Identity = None,
    known_hosts: options.KnownHosts = None,
    accept_new_host_key: options.AcceptKey = False,
    on_host: options.OnHost = False,
    state_dir: options.StateDir = None,
    as_json: options.Json = False,
) -> None:
    """Make a bare container ready: python3, tmux, the locked packages, the trainer.

    Each step is looked at first and done only where it is lacking: a second call
    changes nothing, and one after a cut goes on where it was. `launch` then takes
    the virtual environment by itself; a run that lives keeps the one it has.

    Examples:

        dflashctl provision --host 10.1.2.6 --ct 200 --check
        dflashctl provision --host 10.1.2.6 --ct 200 --torch-index cu130
        dflashctl provision --host 10.1.2.6 --ct 200 --offline
        dflashctl provision --make-wheelhouse wheels --for-python 3.11
        dflashctl provision --host 10.1.2.6 --ct 200 --wheelhouse wheels
    """
    from orchestrator import provision as steps

    book, lock = steps.load(file)
    if wheelhouse is not None and (make_wheelhouse is not None or offline):
        raise ConfigError("--wheelhouse: it is carried as it is: leave out --make-wheelhouse and --offline")
    source = _source(torch_index, index)
    if make_wheelhouse is not None and for_python is not None:
        goal = wheelhouses.goal_here(for_python)
        house = wheelhouses.make(make_wheelhouse, book, steps.Wishes(source=source, lock=lock), goal)
        wheelhouses.tell(make_wheelhouse, house, goal, as_json=as_json)
        return
    target = resolve_target(
        host=host,
        ct=ct,
        container=container,
        user=user,
        port=port,
        identity=identity,
        known_hosts=known_hosts,
        state_dir=state_dir,
    )
    check_container(target, host, "the Proxmox host itself would be changed", on_host=on_host)
    site = site_at(target, connect_options(accept_new_host_key=accept_new_host_key))
    try:
        wishes = _wishes(site, target, lock, source)
        if make_wheelhouse is not None:
            goal = wheelhouses.goal_of(site, book, wishes, None)
            house = wheelhouses.make(make_wheelhouse, book, wishes, goal)
            wheelhouses.tell(make_wheelhouse, house, goal, as_json=as_json)
            return
        carried = None
        if wheelhouse is not None:
            carried = wheelhouses.read(wheelhouse)
        elif offline:
            carried = wheelhouses.own(site, book, wishes, for_python, is_check=only_check)
        if wheelhouse is not None or offline:
            wishes = replace(wishes, source=wheelhouses.carried(carried))
        job = steps.Job(site=site, provision=book, wishes=wishes, clock=SETTINGS.clock, house=carried)
        raise typer.Exit(_check(job, as_json=as_json) if only_check else _apply(job, as_json=as_json))
    finally:
        site.close()


def _wishes(site: Site, target: Target, lock: Lock | None, source: Source) -> Wishes:
    from orchestrator.connection import trainer_archive
    from orchestrator.provision import Wishes, state_dir

    return Wishes(
        source=source,
        guest_python=target.guest_python,
        lock=lock,
        trainer=trainer_archive().sha256,
        state_dir=state_dir(site),
    )


def _source(torch: str | None, index: str | None) -> Source:
    """Return where packages come from.

    Raises:
        ConfigError: It is no URL, or one whose password every user of this machine would see.
    """
    from orchestrator.provision import Source, torch_index

    _check_url("--torch-index", torch_index(torch), torch, TORCH_INDEX)
    _check_url("--index", index, index, INDEX)
    return Source(
        label=_bare(torch) if torch else "PyPI",
        index=index,
        torch_index=torch_index(torch),
        is_cpu=torch is not None and _bare(torch).rstrip("/").endswith("cpu"),
    )


def _check_url(option: str, url: str | None, given: str | None, variable: str) -> None:
    if url is None:
        return
    if "://" not in url or not url.isprintable() or " " in url:
        raise ConfigError(
            f"{option}: {_bare(url)!r} is no URL", hint="such as https://host/simple, or cpu, cu130"
        )
    if url != _bare(url) and os.environ.get(variable) != given:
        raise ConfigError(
            f"{option} {_bare(url)}: a login in a command line is seen by every user here",
            hint=f"put the URL into {variable} instead",
        )


def _bare(url: str) -> str:
    """Return a URL without the login in it, and without what follows its path."""
    scheme, mark, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    bare = f"{authority.rpartition('@')[2]}{slash}{path}" if mark else scheme
    return f"{scheme}{mark}{bare}".partition("?")[0] if mark else bare


def _check(job: Job, *, as_json: bool) -> Exit:
    from orchestrator.provision import check

    started = SETTINGS.clock.monotonic()
    outcomes = []
    for outcome in check(job):
        outcomes.append(outcome)
        if not as_json:
            show(outcome)
    return close(job, outcomes, SETTINGS.clock.monotonic() - started, as_json=as_json, is_check=True)


def _apply(job: Job, *, as_json: bool) -> Exit:
    from orchestrator.provision import apply

    started = SETTINGS.clock.monotonic()
    outcomes: list[Outcome] = []
    bars = Bars()
    try:
        for outcome in apply(job, bars.begin):
            bars.end()
            outcomes.append(outcome)
            if not as_json:
                show(outcome)
    except KeyboardInterrupt:
        where = f"stopped in `{bars.step}`: " if bars.step else ""
        SETTINGS.interrupted = f"{where}nothing half done counts, the same command goes on from here"
        raise
    finally:
        bars.end()
    return close(job, outcomes, SETTINGS.clock.monotonic() - started, as_json=as_json, is_check=False)
