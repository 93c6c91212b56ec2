"""record: a run written down for a replay or a bug report."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, counted, find_run, opened_record, print_json
from orchestrator.cli.reaching import site_of
from orchestrator.errors import BlindError, ConfigError, GuestRefused
from orchestrator.sizes import size_text
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from orchestrator.record import Record, RunRow
    from orchestrator.replay.known import Known
    from orchestrator.site import Site

ENDING = ".tar.gz"
MAX_EVENTS = 10_000


def register(app: typer.Typer) -> None:
    """Add this file's verb."""
    app.command(rich_help_panel="Take")(record)


def record(
    run: options.RunName = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A folder, or a .tar.gz; default ./<run>-recording.tar.gz."),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="All of each log, not only its head, tail and evidence.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the recording that is there.")] = False,
    host: options.Host = None,
    ct: options.Ct = None,
    as_json: options.Json = False,
) -> None:
    """Write a run down: its attempts, logs, numbers, GPU readings and ends, with their times, secrets masked.

    `dflashctl replay` reads it again, and it is small enough for a bug report. A
    container that cannot be reached leaves what the record knows. Look through it
    before you give it away.

    Examples:

        dflashctl record b32
        dflashctl record b32 --whole --out b32-whole/
    """
    with opened_record() as database:
        row = find_run(database, run, host, ct)
        known = _known(database, row)
    place = (out or Path(f"{row.name}-recording{ENDING}")).expanduser().absolute()
    _require_free(place, force=force)
    unreached = _write(row, known, place, whole=whole)
    files = [place] if place.is_file() else [each for each in sorted(place.rglob("*")) if each.is_file()]
    total = sum(each.stat().st_size for each in files)
    if as_json:
        print_json({"run": row.name, "path": str(place), "bytes": total, "unreached": unreached})
        return
    out_ = SETTINGS.out
    if unreached is not None:
        SETTINGS.err.print(f"{unreached}; this is what the record knows", markup=False)
    out_.print(f"{place}: {counted(len(known.attempts), 'attempt')}, {size_text(total)}", markup=False)
    out_.print(f"replay it: dflashctl replay {place}", markup=False)


def _require_free(place: Path, *, force: bool) -> None:
    """Refuse to write where something is; of folders only a recording is ever replaced.

    Raises:
        ConfigError: Something is there, and may not be replaced.
    """
    from orchestrator.replay.recording import is_recording

    is_folder = place.is_dir()
    if not place.exists() or (is_folder and not any(place.iterdir())):
        return
    if is_folder and not is_recording(place):
        what = "a folder that is no recording, and --force does not replace it"
        raise ConfigError(f"{one_line(str(place))}: {what}", hint="name a folder that is not there")
    if not force:
        raise ConfigError(f"{one_line(str(place))}: it is there already", hint="give --force to replace it")


def _known(database: Record, row: RunRow) -> Known:
    from orchestrator.replay.known import Known

    return Known(
        run=row.name,
        attempts=database.attempts(row.id),
        events=database.events(row.id, limit=MAX_EVENTS),
        diagnoses=database.diagnoses(row.id),
        metrics=database.metrics(row.id),
        gpus=database.gpus(row.id),
    )


def _write(row: RunRow, known: Known, place: Path, *, whole: bool) -> str | None:
    """Make the folder or the archive, whole or not at all; return why the container was not reached."""
    from orchestrator.replay.archive import is_archive, recording_name

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".recording-") as made:
            name = recording_name(place)
            folder = Path(made) / name
            unreached = _fill(row, known, folder, whole=whole)
            ready = folder
            if is_archive(place):
                ready = Path(made) / "packed"
                with tarfile.open(ready, "w:gz") as archive:
                    archive.add(folder, arcname=name)
            if place.is_dir():
                shutil.rmtree(place)
            ready.replace(place)
    except OSError as error:
        raise ConfigError(f"{one_line(str(place))}: cannot be written: {error.strerror or error}") from error
    return unreached


def _fill(row: RunRow, known: Known, folder: Path, *, whole: bool) -> str | None:
    from orchestrator.replay.recorder import Recorder

    now, site = SETTINGS.clock.now(), site_of(row)
    try:
        client = site.client()
        heard = _with_kernel(known, site)
        Recorder(heard, folder, whole=whole).write(client, None, now)
    except (BlindError, GuestRefused) as error:
        unreached = one_line(error.message)
        shutil.rmtree(folder, ignore_errors=True)
        Recorder(known, folder).write(None, unreached, now)
        return unreached
    finally:
        site.close()
    return None


def _with_kernel(known: Known, site: Site) -> Known:
    """Add what the host's kernel said since the first attempt, where there is a host to ask."""
    from orchestrator.replay.kernel import kernel_lines

    ct = site.target.ct
    began = min((row.started_at for row in known.attempts if row.started_at is not None), default=None)
    if ct is None or began is None:
        return known
    lines, problem = kernel_lines(site, ct, began, SETTINGS.clock)
    return replace(known, kernel=lines, kernel_problem=problem)
