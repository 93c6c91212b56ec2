"""launch."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import completing, options
from orchestrator.cli.context import SETTINGS, load_playbook, opened_record, print_json
from orchestrator.cli.notifying import check_messages
from orchestrator.cli.reaching import (
    check_container,
    connect_options,
    operator,
    push_progress,
    resolve_target,
    site_at,
    with_login,
)
from orchestrator.cli.reporting import ignored, report
from orchestrator.cli.specifying import make_spec, parse_gpus, read_env
from orchestrator.cli.watching import watch_rows
from orchestrator.errors import CommandFailed, ConfigError, GuestRefused
from orchestrator.launch import DEFAULT_RUN, RunSpec, start_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.inventory import Target
    from orchestrator.record import Record
    from orchestrator.site import Site

LAUNCH_HELP = """Start a run in a container, or report that it runs already.

Examples:

    dflashctl launch --host 10.1.2.6 --ct 200
    dflashctl launch --host 10.1.2.6 --ct 200 --config my.toml --watch
    dflashctl launch --host local --ct 200 --run b32 --set block.size=32
    dflashctl launch --host 10.1.2.6 --ct 200 -- /root/venv/bin/torchrun train.py
"""


def register(app: typer.Typer) -> None:
    """Add this file's verbs."""
    app.command(help=LAUNCH_HELP, rich_help_panel="Act")(launch)


def launch(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="After `--`: a trainer of your own instead of the bundled one."),
    ] = None,
    host: options.Host = None,
    ct: options.Ct = None,
    container: options.ContainerName = None,
    run: Annotated[str, typer.Option("--run", "-r", help="The run's name.")] = DEFAULT_RUN,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            help="A bundled configuration's name or a TOML file; default the inventory's, else `tiny`.",
            autocompletion=completing.config_names,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A configuration key: --set optim.lr=3e-4.")
    ] = None,
    inject: Annotated[
        list[str] | None,
        typer.Option(
            "--inject",
            help="Make the trainer really fail, to see what happens: hang@40; all: python -m trainer -h.",
        ),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", help="Pass this variable of yours on, by name.")
    ] = None,
    env_file: Annotated[
        Path | None, typer.Option("--env-file", help="NAME=VALUE lines for the trainer.")
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option("--mask", help="Variables to mask in all output, beside *TOKEN*, *KEY ...; !NAME: not."),
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", help="The trainer's Python there; default `provision`'s.")
    ] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", help="GPUs of the run: 0,1,2.")] = None,
    user: options.User = None,
    port: options.Port = None,
    identity: options.Identity = None,
    known_hosts: options.KnownHosts = None,
    accept_new_host_key: options.AcceptKey = False,
    on_host: options.OnHost = False,
    state_dir: options.StateDir = None,
    checkpoint_dir: Annotated[
        str | None, typer.Option("--checkpoint-dir", help="Instead of one in the run's folder.")
    ] = None,
    playbook: options.Playbook = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on to watch it.")] = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Start a run in a container, or report that it runs already."""
    target = resolve_target(
        host=host,
        ct=ct,
        container=container,
        known_hosts=known_hosts,
        user=user,
        port=port,
        identity=identity,
        python=python,
        state_dir=state_dir,
        checkpoint_dir=checkpoint_dir,
        gpus=parse_gpus(gpus),
    )
    check_container(target, host, "the trainer would run on the Proxmox host itself", on_host=on_host)
    load_playbook(playbook)  # a mistake in it would be met by the watch, when it matters
    if watch:
        check_messages()
    files = [Path(path) for path in (target.env_file, env_file) if path]
    values = read_env(env, files)
    spec = make_spec(run, target, config, settings or [], inject or [], command or [], values, mask or [])
    if dry_run:
        from orchestrator.preparing import check_here

        check_here(spec, target.key)
        _print_dry_run(spec, target, as_json=as_json)
        return
    site = site_at(target, connect_options(accept_new_host_key=accept_new_host_key))
    with opened_record() as record:
        try:
            refusals = _undone_if_refused(record, spec.run, target)
            with refusals, push_progress("sending the trainer") as progress:
                book = str(playbook.resolve()) if playbook else None
                spec = _with_python(spec, target, site)
                launched = operator(site, record).launch(spec, values, playbook=book, progress=progress)
        finally:
            site.close()
        is_old = launched.already is not None
        said = {"--config": config, "--python": python, "--gpus": gpus}
        given = [name for name, value in said.items() if value is not None]
        left = ignored(spec, launched.row.spec, given=given) if is_old else ()
        report(launched, spec, as_json=as_json, in_line=watch, left=left)
        if watch:
            raise typer.Exit(watch_rows(record, [launched.row], as_json=as_json, playbook=playbook))


def _with_python(spec: RunSpec, target: Target, site: Site) -> RunSpec:
    """Return the spec with the Python that `provision` made there, if nobody named one.

    By its own place, not by the link to the last: a later provisioning changes nothing for this run.
    """
    from orchestrator.preparing import provisioned_python

    if spec.is_command or target.python is not None:
        return spec
    return replace(spec, python=provisioned_python(site) or spec.python)


@contextmanager
def _undone_if_refused(record: Record, run: str, target: Target) -> Iterator[None]:
    """Take a run of which no attempt was made out of the record again; what was tried stays in its events.

    A lost connection is no refusal: the run may have started.
    """
    before = {row.id for row in record.runs()}
    try:
        yield
    except KeyboardInterrupt:
        # The record has a run before its start is asked for.
        if not any((row.name, row.target_key) == (run, target.key) for row in record.runs()):
            SETTINGS.interrupted = "nothing was started"
        raise
    except (GuestRefused, ConfigError, CommandFailed):
        for row in record.runs():
            is_new = row.id not in before and (row.name, row.target_key) == (run, target.key)
            if is_new and not record.attempts(row.id):
                record.remove_run(row.id, SETTINGS.clock.now())
        raise


def _print_dry_run(spec: RunSpec, target: Target, *, as_json: bool) -> None:
    from orchestrator.connection import dry_run_lines, trainer_archive

    if not spec.is_command:
        sha256 = trainer_archive().sha256
        spec = replace(spec, trainer_sha256=sha256, trainer_dir=f"{target.state_dir}/trainers/{sha256}")
    request = start_request(spec, state_dir=target.state_dir, attempt=1, created_at="", env=None)
    checks = (*(("capture",) if spec.gpus else ()), *(() if spec.is_command else ("install",)))
    verbs = ("hello", "look", *checks, "start")
    lines = [shlex.join(argv) for argv in dry_run_lines(with_login(target), verbs)]
    inner = shlex.join(request["spec"]["argv"])
    is_named = target.python is not None or spec.is_command
    made = None if is_named else f"{target.state_dir}/venv/bin/python"
    if as_json:
        print_json(
            {
                "dry_run": True,
                "target": target.key,
                "commands": lines,
                "trainer": inner,
                "spec": request["spec"],
                "python_if_provisioned": made,
            }
        )
        return
    out = SETTINGS.out
    out.print("nothing is run; this would be:", markup=False)
    for line in lines:
        out.print(f"  {line}", markup=False)
    place = f", in {spec.trainer_dir}" if spec.trainer_dir else ""
    out.print(f"and in the container{place}, followed in tmux session {spec.run}:\n  {inner}", markup=False)
    if made is not None:
        out.print(f"instead of {spec.python}, {made} if `dflashctl provision` made it", markup=False)
