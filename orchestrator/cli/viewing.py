"""top, and the live view that `watch` is on a terminal."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.context import SETTINGS, load_playbook, opened_record
from orchestrator.cli.mirrored import keeper
from orchestrator.cli.notifying import messaging
from orchestrator.cli.reaching import site_of
from orchestrator.cli.reading import last_lines, session_argv
from orchestrator.cli.telling import explained
from orchestrator.errors import ConfigError, Exit, OrchestratorError, PlaybookError

if TYPE_CHECKING:
    from orchestrator.connection import ShellOptions
    from orchestrator.fleet import Board, FleetWatch
    from orchestrator.playbook import Playbook
    from orchestrator.record import Record, RunRow
    from orchestrator.site import Site
    from orchestrator.tui import Desk
    from orchestrator.watch.events import Sink, WatchEvent

LAST_TOLD = 20
ASKED_S = 60.0
_PLAIN_TERMINALS = ("", "dumb", "unknown")
_FEW_COLOURS = ("vt52", "vt100", "vt102", "vt220", "vt320")


def register(app: typer.Typer) -> None:
    """Add this file's verb."""
    app.command(rich_help_panel="Look")(top)


def top() -> None:
    """See all runs of the record live: state, speed, curves, GPUs, log, story. Only looks, until you leave.

    The same view as `watch` has on a terminal, which acts by the playbook and
    ends with its runs. This one never acts by itself; its keys stop and
    relaunch a run after a question. ? shows all keys, q leaves.

    Examples:

        dflashctl top
        dflashctl --record /backup/record.sqlite3 top
    """
    if not is_terminal():
        raise ConfigError(
            "top: it needs a terminal to draw on", hint="`dflashctl ps`, or `dflashctl watch --json`"
        )
    with opened_record() as record:
        code = view(record, verb="top", acting=False, telling=False)
    raise typer.Exit(code)


def is_terminal() -> bool:
    """Whether a person looks at a terminal that can be drawn on."""
    is_drawn_on = os.environ.get("TERM", "") not in _PLAIN_TERMINALS
    return is_drawn_on and all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def check_playbooks(rows: Sequence[RunRow], book: Callable[[RunRow], Playbook]) -> None:
    """Where one run alone is wrong, the others are watched, and it is only looked at.

    Raises:
        PlaybookError: No run has one that can be used: a single run's, or what was given for all, is wrong.
    """
    errors: list[PlaybookError] = []
    for row in rows:
        try:
            book(row)
        except PlaybookError as error:
            errors.append(error)
        else:
            return
    if errors:
        raise errors[0]


def view(
    record: Record,
    *,
    verb: str,
    rows: Sequence[RunRow] | None = None,
    acting: bool,
    telling: bool,
    mirroring: bool = False,
    playbook: Path | None = None,
    show_log: bool = True,
    options_: ShellOptions | None = None,
) -> Exit:
    """Show the runs of `rows` until they have ended, or all of the record until the person leaves.

    Raises:
        PlaybookError: None of the runs has a playbook that can be used.
        ConfigError: The settings of messages or of the mirror are wrong, or others may read the former.
        RecordError: The record cannot be read or written.
    """
    from orchestrator.fleet import Asking, Board, FleetWatch, Ways
    from orchestrator.playbook import shipped
    from orchestrator.tui import Desk

    def book(row: RunRow) -> Playbook:
        return load_playbook(playbook or row.playbook)

    def site(row: RunRow) -> Site:
        return site_of(row, options_)

    check_playbooks(rows or (), book)
    ids = None if rows is None else {row.id for row in rows}
    ways = Ways(
        site=site,
        playbook=book,
        shipped=lambda: load_playbook(shipped()),
        wants=lambda row: ids is None or row.id in ids,
        takes_ended=ids is not None,
    )
    mirror = keeper(record, wanted=mirroring)
    board = Board(SETTINGS.clock)
    after = _Afterwards(board, many=rows is not None and len(rows) > 1)
    with messaging(after, rows or (), wanted=telling) as sink:
        told_to: Sink = sink or after
        watch = FleetWatch(record, board, SETTINGS.clock, ways, acting=acting, sink=told_to, mirror=mirror)
        asking = Asking(record, SETTINGS.clock, site)
        watch.each_turn.append(lambda: asking.tell(told_to))
        if sink is not None:
            sink.attach(watch)
        desk = Desk(
            board=board,
            record=record,
            clock=SETTINGS.clock,
            watch=watch,
            asking=asking,
            explain=lambda row: explained(record, row),
            tail=lambda row: last_lines(record, row),
            attach=lambda row: session_argv(record, row),
            verb=verb,
            acts=acting,
            ends=ids is not None,
            shows_log=show_log,
            utf8=(sys.stdout.encoding or "").lower().replace("-", "").startswith("utf"),
            colours=_has_colours(),
        )
        code = _show(desk, watch)
        if names := asking.under_way:
            SETTINGS.err.print(
                f"finishing what was asked: {', '.join(names)}; Ctrl-C leaves it", markup=False
            )
            asking.join(ASKED_S)
        if desk.ends:
            after.print_last()
    if watch.fault is not None and code is None:
        if isinstance(watch.fault, OrchestratorError):
            raise watch.fault
        raise OrchestratorError(f"the watch ended: {watch.fault}", hint="-v tells more")
    return code if code is not None else Exit.ERROR


def _show(desk: Desk, watch: FleetWatch) -> Exit | None:
    """Draw until the end; None: the watch, or the view itself, has failed."""
    from orchestrator.tui import WatchApp

    with _held_logs():
        watch.start()
        try:
            ending = WatchApp(desk).run()
        finally:
            watch.stop()
    return ending.code if ending is not None else None


class _Afterwards:
    """The board; once the view has ended, what is still told is printed as well."""

    def __init__(self, board: Board, *, many: bool) -> None:
        from orchestrator.view.plain import PlainSink

        self._board = board
        self._lines = PlainSink(sys.stdout, colour=SETTINGS.has_colour, many=many, width=_columns)
        self._is_over = False

    def emit(self, event: WatchEvent) -> None:
        """Keep one event, or print it."""
        self._board.emit(event)
        if self._is_over and event.kind != "log":
            self._lines.emit(event)

    def refresh(self) -> None:
        """Make the cards anew."""
        self._board.refresh()

    def print_last(self) -> None:
        """Print the newest of what was told, since the view took it with it."""
        self._is_over = True
        for each in self._board.told()[-LAST_TOLD:]:
            self._lines.emit(each.event)


def _columns() -> int:
    """Return how wide the terminal is now."""
    return shutil.get_terminal_size().columns


def _has_colours() -> bool:
    """Whether colours are wanted and there are some; else the view is told so by the variable it knows."""
    if SETTINGS.no_color or os.environ.get("TERM", "").startswith(_FEW_COLOURS):
        os.environ["NO_COLOR"] = "1"
    return not os.environ.get("NO_COLOR")


@contextmanager
def _held_logs() -> Iterator[None]:
    """What is logged meanwhile is written afterwards: it would be written across the view."""
    held: list[logging.LogRecord] = []
    root = logging.getLogger()
    handlers = list(root.handlers)

    class Holding(logging.Handler):
        def emit(self, entry: logging.LogRecord) -> None:
            held.append(entry)
            del held[:-200]

    root.handlers = [Holding()]
    try:
        yield
    finally:
        root.handlers = handlers
        for entry in held:
            root.handle(entry)
