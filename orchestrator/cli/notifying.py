"""notify: who is told what matters, and whether a message gets there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, counted, print_json
from orchestrator.durations import format_duration
from orchestrator.errors import ConfigError, Exit

if TYPE_CHECKING:
    from orchestrator.notify import Message, NotifySink, Settings
    from orchestrator.notify.targets import Target
    from orchestrator.record import RunRow
    from orchestrator.watch.events import Sink

_ANSWER_S = 60.0

HELP = """Messages to people who are not looking: of deaths, hangs, calls for a person, warnings, ends.

A watch sends them to the URLs of the variable DFLASHCTL_NOTIFY_URLS, or of
`urls` in ~/.config/dflashctl/notify.yaml, a file of mode 0600. The URLs are
apprise's: ntfy, Slack, mail and many more.
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@contextmanager
def messaging(view: Sink, rows: Sequence[RunRow], *, wanted: bool = True) -> Iterator[NotifySink | None]:
    """A sink that sends what matters and shows all in `view`; None if nobody is to be told.

    Raises:
        ConfigError: The settings are wrong, or others may read them.
    """
    from orchestrator.notify.settings import load

    settings = load() if wanted else None
    if settings is None or not settings.is_on:
        yield None
        return
    from orchestrator.clock import timestamp
    from orchestrator.notify import NotifySink
    from orchestrator.notify.memory import Memory
    from orchestrator.notify.targets import build
    from orchestrator.places import record_path

    record = SETTINGS.record or record_path()
    begun = {(row.target_key, row.name): timestamp(row.created_at) for row in rows}
    memory = Memory(record.with_name(f"{record.name}.told"), begun)
    with NotifySink(view, settings, build(settings.addresses), SETTINGS.clock, memory) as sink:
        yield sink


def check_messages() -> None:
    """See that messages could be sent, before something is begun whose watch would be refused.

    Raises:
        ConfigError: As `messaging`.
    """
    from orchestrator.notify.settings import load
    from orchestrator.notify.targets import build

    build(load().addresses)


@app.command("test")
def try_targets(as_json: options.Json = False) -> None:
    """Send a test message to every target, whatever the hour, and say of each whether it went.

    Examples:

        dflashctl notify test
        dflashctl notify test --json
    """
    from orchestrator.notify.settings import load
    from orchestrator.notify.targets import build

    settings = load()
    if not settings.addresses:
        raise _nobody()
    targets = build(settings.addresses)
    with SETTINGS.err.status(f"sending to {counted(len(targets), 'target')}"):
        answers = _send(targets, _test_message())
    if as_json:
        told = [
            {"service": each.service, "origin": each.origin, "sent": why is None, "problem": why}
            for each, why in answers
        ]
        print_json({"targets": told})
    else:
        for each, why in answers:
            line = f"+ {each.name}: sent" if why is None else f"x {each.name}: not sent: {why}"
            SETTINGS.out.print(line, markup=False)
    if any(why is not None for _, why in answers):
        raise typer.Exit(Exit.ERROR)


def _send(targets: Sequence[Target], message: Message) -> list[tuple[Target, str | None]]:
    from queue import SimpleQueue

    from orchestrator.notify.sender import Report, Worker, join

    answers = []
    for target in targets:
        reports: SimpleQueue[Report[Message]] = SimpleQueue()
        worker = Worker(target.name, target.send, reports, retry_after_s=())
        worker.start()
        worker.post(message)
        answers.append((target, worker, reports))
    late = f"no answer within {_ANSWER_S:.0f} s"
    join([worker for _, worker, _ in answers], _ANSWER_S)
    return [(target, late if got.empty() else got.get_nowait().problem) for target, _, got in answers]


def _test_message() -> Message:
    import socket

    from orchestrator.notify import Kind, Message, Severity
    from orchestrator.notify.message import Key, words

    now = SETTINGS.clock.now()
    title, body = words(
        f"a test from {socket.gethostname()}",
        ["This is how a message of a watch looks.", now.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")],
    )
    return Message(
        kind=Kind.TEST, severity=Severity.INFO, at=now, run="-", target="-", attempt=None, title=title,
        body=body, keys=(Key("-", "-", None, Kind.TEST, now.isoformat()),),
    )  # fmt: skip


@app.command("show")
def show_targets(as_json: options.Json = False) -> None:
    """Show who is told what, and when; no address is shown, only where it is written.

    Examples:

        dflashctl notify show
        dflashctl notify show --json
    """
    from orchestrator.notify.settings import default_path, load
    from orchestrator.notify.targets import build

    settings = load()
    targets = build(settings.addresses)
    if as_json:
        print_json(_body(settings, targets))
        return
    say = SETTINGS.out.print
    say(f"settings: {settings.source or f'{default_path()} does not exist'}", markup=False)
    for target in targets:
        say(f"tells:    {target.name}", markup=False)
    if not targets:
        say("tells:    nobody; `dflashctl notify --help` says how to change that", markup=False)
    for line in _lines(settings):
        say(line, markup=False)


def _lines(settings: Settings) -> list[str]:
    pinged, quiet, rate = settings.deadman, settings.quiet, settings.rate
    every = format_duration(settings.deadman_every_s)
    dead_man = f"pinged every {every} while every run is seen ({pinged.origin})" if pinged else "none"
    hours = f"{quiet.begin:%H:%M} to {quiet.end:%H:%M}, when only {quiet.passes.word} passes" if quiet else ""
    return [
        f"dead-man: {dead_man}",
        f"rate:     {rate.messages} messages in {format_duration(rate.per_s)}, the rest in one summary",
        f"quiet:    {hours or 'never'}",
        f"blind:    told after {format_duration(settings.blind_after_s)}",
        *(f"{word + ':':<9} {', '.join(kinds)}" for word, kinds in _levels(settings).items()),
    ]


def _levels(settings: Settings) -> dict[str, list[str]]:
    """Return the kinds of messages by what they count as, the gravest first."""
    from orchestrator.notify.message import SEVERITIES

    levels: dict[str, list[str]] = {}
    for kind in sorted(SEVERITIES, key=lambda kind: -(settings.severity_of(kind) or 0)):
        severity = settings.severity_of(kind)
        levels.setdefault(severity.word if severity else "not told", []).append(kind.value)
    return levels


def _body(settings: Settings, targets: Sequence[Target]) -> dict[str, Any]:
    from orchestrator.notify.message import SEVERITIES

    dead, quiet = settings.deadman, settings.quiet
    severities = {kind: settings.severity_of(kind) for kind in SEVERITIES}
    return {
        "settings": settings.source,
        "targets": [{"service": target.service, "origin": target.origin} for target in targets],
        "deadman": {"origin": dead.origin, "every_s": settings.deadman_every_s} if dead else None,
        "rate": {"messages": settings.rate.messages, "per_s": settings.rate.per_s},
        "quiet": {"from": f"{quiet.begin:%H:%M}", "to": f"{quiet.end:%H:%M}", "passes": quiet.passes.word}
        if quiet
        else None,
        "blind_after_s": settings.blind_after_s,
        "severity": {kind.value: each.word if each else "off" for kind, each in severities.items()},
    }


def _nobody() -> ConfigError:
    from orchestrator.notify.settings import URLS, default_path

    return ConfigError(
        f"nobody to tell: no URL in {URLS} or in {default_path()}",
        hint="URLs are apprise's, such as ntfys://TOPIC; the file is YAML, `urls: [...]`, of mode 0600",
    )
