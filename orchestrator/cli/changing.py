"""stop and relaunch."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import completing, options
from orchestrator.cli.context import (
    SETTINGS,
    confirm,
    counted,
    find_run,
    opened_record,
    print_json,
    target_of,
)
from orchestrator.cli.notifying import check_messages
from orchestrator.cli.reaching import operator, push_progress, site_of, with_login
from orchestrator.cli.reporting import report
from orchestrator.cli.secrets import check_secrets
from orchestrator.cli.specifying import read_config
from orchestrator.cli.watching import watch_rows
from orchestrator.errors import ConfigError
from orchestrator.launch import RunSpec, parse_setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def register(app: typer.Typer) -> None:
    """Add this file's verbs."""
    app.command(rich_help_panel="Act")(stop)
    app.command(rich_help_panel="Act")(relaunch)


def stop(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    grace: Annotated[str, typer.Option("--grace", help="Between SIGTERM and SIGKILL: 30s, 2m.")] = "30s",
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Stop a run: SIGTERM (the trainer saves a checkpoint), then SIGKILL. A watch never relaunches it.

    Examples:

        dflashctl stop
        dflashctl stop b32 --grace 2m
    """
    grace_s = options.seconds(grace)
    with opened_record() as record:
        row = find_run(record, run, host, ct)
        if dry_run:
            from orchestrator.connection import dry_run_lines

            for argv in dry_run_lines(with_login(target_of(row)), ("stop",)):
                SETTINGS.out.print(shlex.join(argv), markup=False)
            return
        site = site_of(row)
        try:
            doing = f"stopping {row.name}, up to {grace}"
            if not SETTINGS.err.is_terminal:
                SETTINGS.err.print(doing, markup=False)
            with SETTINGS.err.status(doing):
                stopped = operator(site, record).stop(row, reason="dflashctl stop", grace_s=grace_s)
        finally:
            site.close()
    if as_json:
        print_json(
            {
                "run": row.name,
                "target": row.target_key,
                **{k: stopped.get(k) for k in ("already", "terminated", "killed")},
            }
        )
        return
    killed = f", {len(stopped['killed'])} by SIGKILL" if stopped.get("killed") else ""
    text = (
        "was not running"
        if stopped.get("already")
        else f"stopped ({counted(len(stopped.get('terminated') or []), 'process', 'processes')}{killed})"
    )
    SETTINGS.out.print(f"{row.name} at {row.target_key}: {text}", markup=False)


def relaunch(
    run: options.RunName = None,
    host: options.Host = None,
    ct: options.Ct = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Change a configuration key.")] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            help="Another configuration: a name or a TOML file.",
            autocompletion=completing.config_names,
        ),
    ] = None,
    python: Annotated[str | None, typer.Option("--python", help="Another python for the trainer.")] = None,
    inject: Annotated[
        list[str] | None, typer.Option("--inject", help="Make the trainer really fail, as hang@40.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on to watch it.")] = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Stop a run if it lives, and start its next attempt from the last checkpoint, with changes if given.

    Examples:

        dflashctl relaunch --set optim.lr=3e-4
        dflashctl relaunch b32 --config my.toml --watch
    """
    if watch:
        check_messages()
    changes = [parse_setting(item) for item in settings or []]
    name, text = read_config(config) if config else (None, None)
    check_secrets(RunSpec(run="", config=name, config_toml=text, overrides=tuple(changes)), {})

    def change(old: RunSpec) -> RunSpec:
        fields: dict[str, Any] = {"inject": tuple(inject or ())}
        if python:
            fields["python"] = python
        if name:
            fields.update(config=name, config_toml=text)
        return changed(old, fields, changes)

    with opened_record() as record:
        row = find_run(record, run, host, ct)
        confirm(f"relaunch {row.name} at {row.target_key}? What runs there is stopped first", yes=yes)
        site = site_of(row)
        try:
            with push_progress("sending the trainer") as progress:
                launched = operator(site, record).relaunch(
                    row, change, reason="relaunched by its user", progress=progress
                )
        finally:
            site.close()
        command = tuple(row.spec.get("command") or ())
        spec = RunSpec(run=row.name, command=command, config=name or row.spec.get("config"))
        report(launched, spec, as_json=as_json, in_line=watch)
        if watch:
            raise typer.Exit(watch_rows(record, [launched.row], as_json=as_json, playbook=None))


def changed(old: RunSpec, fields: Mapping[str, Any], settings: Sequence[tuple[str, str]]) -> RunSpec:
    """Return the spec with fields replaced and configuration keys set.

    Raises:
        ConfigError: A configuration is given to a command of the user's own, which reads none.
    """
    if old.is_command and (settings or fields.get("config") or fields.get("inject")):
        raise ConfigError(
            f"{old.run} runs a command of its own; --config, --set and --inject are for the bundled trainer",
            hint=f"`dflashctl stop {old.run}`, then `dflashctl launch --run {old.run} ... -- COMMAND`",
        )
    return replace(old, **fields).with_changes(settings)
