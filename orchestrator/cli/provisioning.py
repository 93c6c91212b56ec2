"""provision: a bare container made ready for a run, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, print_json
from orchestrator.cli.reaching import connect_options, resolve_target, site_at
from orchestrator.errors import ConfigError, Exit
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.errors import OrchestratorError
    from orchestrator.inventory import Target
    from orchestrator.provision import Job, Moment, Outcome, Provision, Source, Step, Venv, Wheelhouse, Wishes
    from orchestrator.provision.lock import Lock
    from orchestrator.site import Site

PACKAGES = "Packages"
_STYLES = {"ok": "green", "changed": "yellow", "would": "cyan", "failed": "bold red", "skipped": "dim"}
_STATUS_WIDTH = 8
_NAME_WIDTH = 10
_LONGEST = 500
_TEXT_WIDTH = 44


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
            envvar="DFLASHCTL_TORCH_INDEX",
            help="Where torch comes from: PyTorch's cpu, cu130 ..., or a URL; default PyPI's CUDA build.",
            rich_help_panel=PACKAGES,
        ),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            "--index",
            envvar="DFLASHCTL_INDEX",
            help="URL of a package index instead of PyPI; for one with a password use the variable.",
            rich_help_panel=PACKAGES,
        ),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline",
            help="The container reaches no index: carry the wheelhouse that --make-wheelhouse made.",
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
            help="For --make-wheelhouse: 3.11, so that no container is asked.",
            rich_help_panel=PACKAGES,
        ),
    ] = None,
    user: options.User = None,
    port: options.Port = None,
    identity: options.Identity = None,
    known_hosts: options.KnownHosts = None,
    accept_new_host_key: options.AcceptKey = False,
    on_host: Annotated[
        bool,
        typer.Option(
            "--on-host", help="Without a container, on a remote host itself.", rich_help_panel="Where"
        ),
    ] = False,
    state_dir: options.StateDir = None,
    as_json: options.Json = False,
) -> None:
    """Make a bare container ready: python3, tmux, the locked packages, the trainer.

    Each step is looked at first and done only where it is lacking: a second call
    changes nothing, and one after a cut goes on where it was. `launch` then takes
    the virtual environment by itself. What you installed yourself is left alone.

    Examples:

        dflashctl provision --host 10.1.2.6 --ct 200 --check
        dflashctl provision --host 10.1.2.6 --ct 200 --torch-index cu130
        dflashctl provision --make-wheelhouse wheels --for-python 3.11
        dflashctl provision --host 10.1.2.6 --ct 200 --wheelhouse wheels
    """
    from orchestrator import provision as steps

    book, lock = steps.load(file)
    source = _source(torch_index, index)
    if make_wheelhouse is not None and for_python is not None:
        _make_alone(make_wheelhouse, for_python, book, lock, source, as_json=as_json)
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
    if target.host is not None and target.ct is None and not on_host:
        raise ConfigError(
            f"--host {host}: no container is named, and the Proxmox host itself would be changed",
            hint="give --ct ID (`pct list` shows them), or --on-host if you mean it",
        )
    site = site_at(target, connect_options(accept_new_host_key=accept_new_host_key))
    try:
        wishes = _wishes(site, target, lock, source)
        if make_wheelhouse is not None:
            _make(make_wheelhouse, book, wishes, _goal(site, book, wishes), as_json=as_json)
            return
        house = _house(wheelhouse, lock, source, is_offline=offline)
        if house is not None:
            wishes = _wishes(site, target, lock, _carried(house))
        job = steps.Job(site=site, provision=book, wishes=wishes, clock=SETTINGS.clock, house=house)
        code = _check(job, as_json=as_json) if only_check else _apply(job, as_json=as_json)
    finally:
        site.close()
    raise typer.Exit(code)


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
    from orchestrator.provision import Source, torch_index

    for option, value in (("--torch-index", torch_index(torch)), ("--index", index)):
        if value is not None and (
            "://" not in value or value.startswith("-") or not value.isprintable() or " " in value
        ):
            raise ConfigError(
                f"{option}: {_bare(value)!r} is no URL", hint="such as https://host/simple, or cpu, cu130"
            )
    return Source(
        label=_bare(torch) if torch else "PyPI",
        index=index,
        torch_index=torch_index(torch),
        is_cpu=torch == "cpu",
    )


def _bare(url: str) -> str:
    """Return a URL without the login in it."""
    scheme, mark, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{mark}{authority.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def _carried(house: Wheelhouse) -> Source:
    from orchestrator.provision import Source

    return Source(label=house.label, wheels=house.names)


# -- the wheelhouse


def _default_house(lock: Lock | None) -> Path:
    """Return where `--offline` without a folder looks: one for each lock."""
    import hashlib

    import platformdirs

    name = hashlib.sha256((lock.text if lock else "").encode()).hexdigest()[:12]
    return platformdirs.user_cache_path("dflashctl", appauthor=False) / "wheelhouse" / name


def _house(folder: Path | None, lock: Lock | None, source: Source, *, is_offline: bool) -> Wheelhouse | None:
    from orchestrator.provision import read_wheelhouse

    if folder is None and not is_offline:
        return None
    if source.index is not None or source.torch_index is not None:
        raise ConfigError(
            "--wheelhouse: the container takes its packages from it, and from no index",
            hint="leave out --index and --torch-index; they are for --make-wheelhouse",
        )
    with _bar("wheelhouse") as told:
        return read_wheelhouse(folder or _default_house(lock), told)


def _venv_of(book: Provision) -> Venv:
    found = next((step.venv for step in book.steps if step.venv is not None), None)
    if found is None:
        raise ConfigError("--make-wheelhouse: the provision file has no venv step")
    return found


def _goal(site: Site, book: Provision, wishes: Wishes) -> Any:  # noqa: ANN401
    from orchestrator.provision import Goal, look

    seen = look(site, book, wishes)
    if seen.minor is None or seen.machine is None:
        raise ConfigError(
            f"{site.target_key}: no {wishes.guest_python} is there, so nobody knows for which Python",
            hint="name it: --for-python 3.11 (Debian 12), 3.13 (Debian 13), 3.12 (Ubuntu 24.04)",
        )
    return Goal(python=seen.minor, machine=seen.machine, glibc=seen.glibc)


def _make_alone(
    folder: Path, python: str, book: Provision, lock: Lock | None, source: Source, *, as_json: bool
) -> None:
    import platform

    from orchestrator.provision import Goal, Wishes

    goal = Goal(python=python, machine=platform.machine())
    _make(folder, book, Wishes(source=source, lock=lock), goal, as_json=as_json)


def _make(folder: Path, book: Provision, wishes: Wishes, goal: Any, *, as_json: bool) -> None:  # noqa: ANN401
    from orchestrator.provision import make_wheelhouse

    venv = _venv_of(book)
    if wishes.lock is None:
        raise ConfigError("--make-wheelhouse: the provision file names no lock")
    with _bar("wheelhouse") as told:
        house = make_wheelhouse(folder, venv, wishes.lock, wishes.source, goal, told)
    if as_json:
        wheels = [{"name": each.path.name, "size": each.size, "sha256": each.sha256} for each in house.files]
        print_json({"folder": str(folder), "python": goal.python, "bytes": house.num_bytes, "wheels": wheels})
        return
    text = f"{folder}: {len(house.files)} wheels for Python {goal.python}, {house.num_bytes / 1e6:.0f} MB"
    SETTINGS.out.print(f"{text}; `dflashctl provision --wheelhouse {folder}` carries them", markup=False)


# -- the steps


def _check(job: Job, *, as_json: bool) -> Exit:
    from orchestrator.provision import check

    started = SETTINGS.clock.monotonic()
    outcomes = []
    for outcome in check(job):
        outcomes.append(outcome)
        if not as_json:
            _show(outcome)
    return _close(job, outcomes, SETTINGS.clock.monotonic() - started, as_json=as_json, is_check=True)


def _apply(job: Job, *, as_json: bool) -> Exit:
    from orchestrator.provision import apply

    started = SETTINGS.clock.monotonic()
    outcomes: list[Outcome] = []
    bars = _Bars()
    try:
        for outcome in apply(job, bars.begin):
            bars.end()
            outcomes.append(outcome)
            if not as_json:
                _show(outcome)
    except KeyboardInterrupt:
        bars.end()
        SETTINGS.err.print(
            f"stopped in `{bars.step}`: nothing half done counts, and the same command goes on from here",
            markup=False,
        )
        raise
    finally:
        bars.end()
    return _close(job, outcomes, SETTINGS.clock.monotonic() - started, as_json=as_json, is_check=False)


def _show(outcome: Outcome) -> None:
    out = SETTINGS.out
    out.print(f"{outcome.status.value:<{_STATUS_WIDTH}}", style=_STYLES[outcome.status.value], end="")
    said = outcome.seen
    if outcome.does is not None:
        took = f" ({outcome.seconds:.1f} s)" if outcome.seconds else ""
        said = f"{outcome.seen}: {outcome.does}{took}"
    out.print(f"{outcome.step:<{_NAME_WIDTH}}{one_line(said, _LONGEST)}", markup=False)


def _close(job: Job, outcomes: list[Outcome], took_s: float, *, as_json: bool, is_check: bool) -> Exit:
    counts = Counter(outcome.status.value for outcome in outcomes)
    error = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
    code = error.exit_code if error else Exit.NOT_READY if counts["would"] else Exit.OK
    if as_json:
        print_json(
            {
                "target": job.site.target_key,
                "exit_code": int(code),
                "check": is_check,
                "seconds": took_s,
                "changed": counts["changed"],
                "would_change": counts["would"],
                "steps": [_body(outcome) for outcome in outcomes],
            }
        )
        return code
    if error is not None:
        _tell(error, next(outcome.tail for outcome in outcomes if outcome.error is not None))
    change = f"would={counts['would']}" if is_check else f"changed={counts['changed']}"
    recap = f"ok={counts['ok']} {change} failed={counts['failed']} skipped={counts['skipped']}"
    SETTINGS.out.print(f"{job.site.target_key}: {recap}, in {took_s:.1f} s", markup=False)
    if counts["changed"] and error is None:
        SETTINGS.out.print("ready: `dflashctl launch` takes this environment by itself", markup=False)
    return code


def _tell(error: OrchestratorError, tail: tuple[str, ...]) -> None:
    err = SETTINGS.err
    for line in tail:
        err.print(f"    {one_line(line, _LONGEST)}", markup=False, style="dim")
    hint = f"; {error.hint}" if error.hint else ""
    err.print(f"dflashctl: {one_line(error.message, 1500)}{hint}", markup=False)


def _body(outcome: Outcome) -> dict[str, Any]:
    error = outcome.error
    told = (
        {"code": error.code, "message": error.message, "hint": error.hint, "tail": outcome.tail}
        if error
        else None
    )
    return {
        "step": outcome.step,
        "status": outcome.status.value,
        "seen": outcome.seen,
        "does": outcome.does,
        "seconds": outcome.seconds,
        "error": told,
    }


# -- what is seen meanwhile


class _Bars:
    """One bar at a time, of the step that is being done."""

    def __init__(self) -> None:
        self.step = ""
        self._open: Any = None

    def begin(self, step: Step, does: str) -> Callable[[Moment], None]:
        """Open a step's bar."""
        del does
        self.end()
        self.step = step.name
        self._open = _bar(step.name)
        told: Callable[[Moment], None] = self._open.__enter__()
        return told

    def end(self) -> None:
        """Take it away."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


@contextmanager
def _bar(step: str) -> Iterator[Callable[[Moment], None]]:
    """A bar for one step; silent where standard error is no terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        TextColumn("{task.fields[amount]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=SETTINGS.err, disable=not SETTINGS.err.is_terminal, transient=True
    ) as bar:
        task = bar.add_task(step, total=None, amount="")

        def told(moment: Moment) -> None:
            text = one_line(f"{step}: {moment.text}", 200)
            text = text if len(text) <= _TEXT_WIDTH else f"{text[: _TEXT_WIDTH - 1]}~"
            bar.update(
                task, description=text, completed=moment.done, total=moment.total, amount=_amount(moment)
            )

        yield told


def _amount(moment: Moment) -> str:
    if moment.total is None:
        return ""
    if not moment.is_bytes:
        return f"{moment.done}%"
    return f"{moment.done / 1e6:.0f}/{moment.total / 1e6:.0f} MB"
