"""inventory list, check, scan."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, counted, load_inventory, print_json
from orchestrator.cli.reaching import connect_options, resolve_target, site_at
from orchestrator.cli.tables import print_table
from orchestrator.errors import Exit, OrchestratorError

if TYPE_CHECKING:
    from orchestrator.inventory import Container, Inventory
    from orchestrator.inventory.scan import Answer

app = typer.Typer(help="Hosts and containers, from YAML files.", no_args_is_help=True)

SCAN_TIMEOUT_S = 30.0


@app.command("list")
def list_(as_json: options.Json = False) -> None:
    """Print the inventory in use.

    Examples:

        dflashctl inventory list
        dflashctl --inventory ./inventory inventory list --json
    """
    found = load_inventory()
    if as_json:
        entries = [entry.model_dump() for _, entry in sorted(found.containers.items())]
        hosts = [host.model_dump() for _, host in sorted(found.hosts.items())]
        print_json({"containers": entries, "hosts": hosts, "sources": list(map(str, found.sources))})
        return
    if not found.containers and not found.hosts:
        SETTINGS.out.print(
            "the inventory is empty; `dflashctl inventory scan --host ADDRESS` prints entries for it",
            markup=False,
        )
        return
    rows = []
    for name, entry in sorted(found.containers.items()):
        gpus = ",".join(map(str, entry.gpus)) if entry.gpus is not None else "all"
        rows.append([name, entry.host, str(entry.ct or "-"), gpus, entry.python or "-", entry.config or "-"])
    titles = ("CONTAINER", "HOST", "CT", "GPUS", "PYTHON", "CONFIG")
    print_table(titles, rows, elastic={"CONFIG": 8, "PYTHON": 12, "HOST": 10, "CONTAINER": 12})
    for name, host in sorted(found.hosts.items()):
        SETTINGS.out.print(f"host {name}: {host.address}", markup=False)
    SETTINGS.out.print(f"read from {', '.join(found.sources)}", markup=False)


def _check(inventory: Inventory, entry: Container) -> tuple[str, bool, str]:
    from orchestrator.inventory import resolve

    try:
        site = site_at(resolve(inventory, container=entry.name))
        try:
            hello = site.hello
        finally:
            site.close()
    except OrchestratorError as error:
        return entry.name, False, str(error)
    tmux = hello.get("tmux") or "missing: apt install tmux"
    return (
        entry.name,
        bool(hello.get("tmux")),
        f"python {hello['python']}, tmux {tmux}, {hello['free_bytes'] / 2**30:.0f} GiB free",
    )


@app.command()
def check(
    name: options.EntryName = None,
    as_json: options.Json = False,
) -> None:
    """Check the files, then reach every container (or the one named) at once.

    Examples:

        dflashctl inventory check
        dflashctl inventory check trainer
    """
    found = load_inventory()
    from orchestrator.inventory import resolve

    if name is not None:
        resolve(found, container=name)
    entries = [entry for entry in found.containers.values() if name in (None, entry.name)]
    with ThreadPoolExecutor(max_workers=16) as pool:
        rows = list(pool.map(lambda entry: _check(found, entry), entries))
    if as_json:
        print_json({"containers": [{"name": n, "ok": ok, "text": text} for n, ok, text in rows]})
    else:
        for container, is_good, text in rows:
            SETTINGS.out.print(f"{'ok  ' if is_good else 'FAIL'} {container}: {text}", markup=False)
        SETTINGS.out.print(
            f"{counted(len(found.hosts), 'host')}, {counted(len(found.containers), 'container')}: "
            "the files are right",
            markup=False,
        )
    raise typer.Exit(Exit.OK if all(ok for _, ok, _ in rows) else Exit.NOT_READY)


@app.command("scan")
def scan_(
    host: options.Host = None,
    user: options.User = None,
    port: options.Port = None,
    identity: options.Identity = None,
    known_hosts: options.KnownHosts = None,
    accept_new_host_key: options.AcceptKey = False,
) -> None:
    """Ask a live host for its containers and GPUs, and print an inventory entry.

    Examples:

        dflashctl inventory scan --host 10.1.2.6 > inventory/pve.yaml
        dflashctl inventory scan --host local
    """
    from orchestrator.connection import host_shell
    from orchestrator.inventory.scan import Answer, render, scan

    target = resolve_target(
        host=host or "local", host_only=True, known_hosts=known_hosts, user=user, port=port, identity=identity
    )
    shell = host_shell(target, options=connect_options(accept_new_host_key=accept_new_host_key))

    def ask(argv: Sequence[str]) -> Answer:
        result = shell.run(tuple(argv), timeout_s=SCAN_TIMEOUT_S)
        return Answer(
            exit_code=result.exit_code,
            stdout=result.stdout.decode("utf-8", "replace"),
            stderr=result.stderr.decode("utf-8", "replace"),
        )

    try:
        text = render(target, scan(ask, target))
    finally:
        shell.close()
    typer.echo(text, nl=False)
