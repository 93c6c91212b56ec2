"""cache list, save, restore, verify: the compile artifacts of runs, so that a warm cache is not lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.cachetable import SHORT, body, collect, kept, store_of, tell
from orchestrator.cli.context import SETTINGS, counted, find_run, opened_record, print_json
from orchestrator.cli.reaching import push_progress, resolve_target, site_at, site_of
from orchestrator.errors import Exit, NotFound, OrchestratorError
from orchestrator.launch import check_run_name
from orchestrator.sizes import size_text

if TYPE_CHECKING:
    from orchestrator.compilecache import Artifact, Store
    from orchestrator.record import Record, RunRow
    from orchestrator.site import Site

app = typer.Typer(help="Compile artifacts of runs: list, save here, restore, verify.", no_args_is_help=True)

Fingerprint = Annotated[
    str | None, typer.Argument(help="The artifact's fingerprint or its beginning; default all of the run's.")
]


def _rows(record: Record, run: str | None, host: str | None, ct: int | None) -> list[RunRow]:
    return [find_run(record, run, host, ct)] if run or host or ct is not None else record.runs()


@app.command("list")
def list_(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    offline: Annotated[bool, typer.Option("--offline", help="Only what is kept on this machine.")] = False,
    as_json: options.Json = False,
) -> None:
    """List compile artifacts: in the containers, and kept on this machine.

    Examples:

        dflashctl cache list
        dflashctl cache list --offline --json
    """
    with opened_record() as record:
        rows = _rows(record, run, host, ct)
        places = kept(record, record.runs(), check=False) if offline else collect(record, rows, check=False)
    tell([p for p in places if run in (None, p["run"])], as_json=as_json, verdict="")


@app.command()
def verify(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    as_json: options.Json = False,
) -> None:
    """Hash every artifact, in the containers and on this machine. Exit code 1 if one is damaged.

    Examples:

        dflashctl cache verify
        dflashctl cache verify b32 --json
    """
    with opened_record() as record:
        places = collect(record, _rows(record, run, host, ct), check=True)
    places = [place for place in places if run in (None, place["run"])]
    tell(places, as_json=as_json, verdict="whole")
    if any(each.problem for place in places for each in place["artifacts"]):
        raise typer.Exit(Exit.ERROR)
    if any(place["problem"] for place in places):
        raise typer.Exit(Exit.UNREACHABLE)


@app.command()
def save(
    run: options.RunName = None,
    fingerprint: Fingerprint = None,
    host: options.Host = None,
    ct: options.Ct = None,
    as_json: options.Json = False,
) -> None:
    """Copy a run's compile artifacts to this machine, beside the record.

    Examples:

        dflashctl cache save
        dflashctl cache save b32 3f9a
    """
    from orchestrator.compilecache import far_artifacts, pick

    with opened_record() as record:
        row = find_run(record, run, host, ct)
        store = store_of(record)
    site = site_of(row)
    saved = []
    try:
        client = site.client()
        where = f"{row.name} at {row.target_key}"
        for each in pick(far_artifacts(client, row.name), fingerprint, where):
            with push_progress(f"saving {each.fingerprint[:SHORT]}") as progress:
                saved.append((each, store.save(client, row.target_key, row.name, each, progress)))
    finally:
        site.close()
    if as_json:
        print_json({"run": row.name, "saved": [{**body(a), "path": str(path)} for a, path in saved]})
        return
    for each, path in saved:
        SETTINGS.out.print(f"{each.fingerprint[:SHORT]} {size_text(each.num_bytes)}: {path}", markup=False)


@app.command()
def restore(
    run: Annotated[
        str, typer.Argument(help="The run to give it to; it may be one that is yet to be launched.")
    ],
    fingerprint: Annotated[
        str | None,
        typer.Argument(
            help="The artifact's fingerprint or its beginning, saved from any run; default this run's."
        ),
    ] = None,
    host: options.Host = None,
    ct: options.Ct = None,
    container: options.ContainerName = None,
    user: options.User = None,
    port: options.Port = None,
    identity: options.Identity = None,
    known_hosts: options.KnownHosts = None,
    state_dir: options.StateDir = None,
    as_json: options.Json = False,
) -> None:
    """Put saved compile artifacts into a run, so that its next attempt compiles nothing anew.

    The trainer loads one only if torch, GPU, code and shapes are the same.
    Loading it runs code: give a container what was saved from a container that
    you trust as much.

    Examples:

        dflashctl cache restore b32
        dflashctl cache restore new 3f9a --host 10.1.2.6 --ct 200
    """
    login = {"user": user, "port": port, "identity": identity, "state_dir": state_dir}
    with opened_record() as record:
        store = store_of(record)
        try:
            row = find_run(record, run, host, ct)
            site = site_of(row)
        except NotFound:
            if host is None and ct is None and container is None:
                raise
            target = resolve_target(host=host, ct=ct, container=container, known_hosts=known_hosts, **login)
            site = site_at(target)
    try:
        chosen = _chosen(store, site.target_key, check_run_name(run), fingerprint)
        sent = _push(site, store, run, chosen)
    finally:
        site.close()
    if as_json:
        told = [{**body(each), "already": not was_sent} for each, was_sent in sent]
        print_json({"run": run, "target": site.target_key, "restored": told})
        return
    for each, was_sent in sent:
        text = "restored" if was_sent else "was there already"
        SETTINGS.out.print(f"{run} at {site.target_key}: {each.fingerprint[:SHORT]} {text}", markup=False)


def _chosen(
    store: Store, target_key: str, run: str, fingerprint: str | None
) -> list[tuple[tuple[str, str], Artifact]]:
    """Return the artifacts meant, each with where it is kept; hashed, as a damaged one helps nobody."""
    from orchestrator.compilecache import pick

    if fingerprint is None:
        source = (target_key, run)
        there = pick(store.artifacts(*source, check=True), None, f"{run} at {target_key}: on this machine")
        return [(source, each) for each in there]
    every = [(place, each) for place in store.places() for each in store.artifacts(*place)]
    named = pick([each for _, each in every], fingerprint, "on this machine")
    if len({each.fingerprint for each in named}) > 1:
        raise OrchestratorError(f"{fingerprint!r} is the beginning of {counted(len(named), 'artifact')}")
    source = next(place for place, each in every if each == named[0])
    checked = store.artifacts(*source, check=True)
    return [(source, each) for each in pick(checked, named[0].fingerprint, "on this machine")]


def _push(
    site: Site, store: Store, run: str, chosen: Sequence[tuple[tuple[str, str], Artifact]]
) -> list[tuple[Artifact, bool]]:
    sent = []
    for source, each in chosen:
        with push_progress(f"restoring {each.fingerprint[:SHORT]}") as progress:
            sent.append((each, store.restore(site.client(), source, run, each, progress)))
    return sent
