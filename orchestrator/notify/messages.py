"""What is worth a message, and what is not: the watch's events in, messages out. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from orchestrator.durations import format_duration
from orchestrator.notify.message import SEVERITIES, Key, Kind, Message, words
from orchestrator.types.decision import ActKind
from orchestrator.types.failure import FailureClass, RunState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.watch.events import WatchEvent

DECISION_WITHIN = timedelta(seconds=5)  # what is done about a death is decided in the same turn
_EVIDENCE = 3
_FALLEN = {RunState.DEAD.value: Kind.DEATH, RunState.HUNG.value: Kind.HANG}
_CALLS = {ActKind.CALL.value: "needs a person", ActKind.GIVE_UP.value: "gave up"}
# These come out of the container itself; what the host's kernel says is no sight of the run.
_SIGHTS = frozenset({"log", "metrics", "state", "diagnosis", "attempt", "guard"})


@dataclass
class _Story:
    """What one run's messages told so far, and what waits to be told."""

    waiting: WatchEvent | None = None  # a death or a hang whose decision has not come
    fallen: tuple[int, Kind] | None = None  # the attempt that died or hung last
    blind_since: datetime | None = None
    last_blind: WatchEvent | None = None
    is_blind_told: bool = False


class Translator:
    """Makes messages of one watch's events. `blind_after_s`: for how long seeing nothing is no news."""

    def __init__(self, blind_after_s: float = 600.0) -> None:
        self._blind_after = timedelta(seconds=blind_after_s)
        self._stories: dict[tuple[str, str], _Story] = {}
        self._seen_again: list[Message] = []  # a host that answers again shows all of its runs at once

    def resume(self, told: Iterable[Key]) -> None:
        """Go on after a watch before this one told that: what fell is told when it trains again."""
        for key in sorted(told, key=lambda key: key.attempt or 0):
            story = self._stories.setdefault((key.target, key.run), _Story())
            if key.attempt is None:
                continue
            if key.kind in (Kind.DEATH, Kind.HANG, Kind.NEEDS_PERSON):
                fallen = Kind.HANG if key.kind is Kind.HANG else Kind.DEATH
                story.fallen = (key.attempt, fallen)
            elif key.kind in (Kind.RECOVERED, Kind.FINISHED):
                story.fallen = None

    def take(self, event: WatchEvent) -> list[Message]:
        """Return what is to be told now that this happened."""
        story = self._stories.setdefault((event.target, event.run), _Story())
        told: list[Message] = []
        if event.kind in _SIGHTS:
            self._seen_again += _sight(story, event)
        if event.kind == "diagnosis":
            told += _diagnosed(story, event)
        elif event.kind == "decision":
            told += _decided(story, event)
        elif event.kind in ("prediction", "disk"):
            told.append(_prediction(event))
        elif event.kind == "attempt":
            told += _release(story)
        elif event.kind == "metrics":
            told += _stepped(story, event)
        elif event.kind == "state":
            told += _changed(story, event)
        elif event.kind == "blind":
            story.blind_since = story.blind_since or event.at
            story.last_blind = event
        return told

    def tick(self, now: datetime) -> list[Message]:
        """Return what is to be told because time went by."""
        told, blind = [], []
        for story in self._stories.values():
            if story.waiting is not None and abs(now - story.waiting.at) >= DECISION_WITHIN:
                told += _release(story)
            blind += _too_long_blind(story, now, self._blind_after)
        again, self._seen_again = self._seen_again, []
        return [*told, *_by_host(blind, "are not seen"), *_by_host(again, "are seen again")]

    def flush(self) -> list[Message]:
        """Return what was waited with: nothing more comes."""
        told = [message for story in self._stories.values() for message in _release(story)]
        return [*told, *_by_host(self._seen_again, "are seen again")]


def _sight(story: _Story, event: WatchEvent) -> list[Message]:
    since, was_told = story.blind_since, story.is_blind_told
    story.blind_since, story.last_blind, story.is_blind_told = None, None, False
    if since is None or not was_told:
        return []
    age = format_duration((event.at - since).total_seconds())
    return [_message(Kind.SEEN_AGAIN, event, f"is seen again after {age}", [event.text], since.isoformat())]


def _too_long_blind(story: _Story, now: datetime, limit: timedelta) -> list[Message]:
    event, since = story.last_blind, story.blind_since
    if since is not None and now < since:  # the clock was set back
        story.blind_since = since = now
    if event is None or since is None or story.is_blind_told or now - since < limit:
        return []
    story.is_blind_told = True
    age = format_duration((now - since).total_seconds())
    lines = [event.text, "This says nothing about the run; nothing is done about it until it is seen again."]
    return [_message(Kind.BLIND, event, f"has not been seen for {age}", lines, since.isoformat())]


def _by_host(messages: Sequence[Message], what: str) -> list[Message]:
    """Return one message for each host: its cut, and not each run behind it, is the news."""
    hosts: dict[str, list[Message]] = {}
    for message in messages:
        hosts.setdefault(message.target.partition("/")[0], []).append(message)
    return [
        same[0] if len(same) == 1 else _joined(same, f"{len(same)} runs at {host} {what}")
        for host, same in hosts.items()
    ]


def _joined(messages: Sequence[Message], title: str) -> Message:
    title, body = words(title, [*(message.title for message in messages), *messages[0].body.splitlines()])
    keys = tuple(key for message in messages for key in message.keys)
    return replace(messages[0], title=title, body=body, keys=keys, attempt=None)


def _diagnosed(story: _Story, event: WatchEvent) -> list[Message]:
    state = event.detail.get("state")
    told = _release(story)
    if state == RunState.FINISHED.value:
        story.fallen = None
        return [*told, _message(Kind.FINISHED, event, "has finished", [event.text])]
    is_stop_of_hang = (
        state == RunState.DEAD.value
        and story.fallen == (event.attempt, Kind.HANG)
        and event.detail.get("failure") in (FailureClass.HANG.value, None)
    )
    if state in _FALLEN and not is_stop_of_hang:
        story.waiting = event
    return told


def _decided(story: _Story, event: WatchEvent) -> list[Message]:
    act = str(event.detail.get("kind"))
    if act not in _CALLS:
        return _release(story, event)
    cause, story.waiting = story.waiting, None
    if cause is not None and cause.attempt is not None:
        story.fallen = (cause.attempt, _FALLEN[cause.detail["state"]])
    lines = [*_told(cause), event.text]
    return [_message(Kind.NEEDS_PERSON, event, f"{_CALLS[act]}{_failure(cause)}", lines, act)]


def _release(story: _Story, decision: WatchEvent | None = None) -> list[Message]:
    """Tell the death or the hang that was waited with, with what is done about it if that is known."""
    event, story.waiting = story.waiting, None
    if event is None:
        return []
    kind = _FALLEN[event.detail["state"]]
    if event.attempt is not None:
        story.fallen = (event.attempt, kind)
    act = f"next: {decision.text}" if decision is not None else "next: nothing is done about it"
    verb = "hangs" if kind is Kind.HANG else "died"
    return [_message(kind, event, f"{verb}{_failure(event)}", [*_told(event), act])]


def _prediction(event: WatchEvent) -> Message:
    signature = event.detail.get("signature") or event.detail.get("failure") or "warning"
    is_dense = signature == "flex_unfused"
    title = (
        "attention fell back to dense, which runs out of memory"
        if is_dense
        else "the disk fills up"
        if event.kind == "disk"
        else f"a death is near: {signature}"
    )
    rank = event.detail.get("rank")
    where = [f"rank {rank}"] if rank is not None else []
    return _message(Kind.PREDICTION, event, title, [event.text, *where], str(signature))


def _stepped(story: _Story, event: WatchEvent) -> list[Message]:
    """A row of metrics is the proof that a new attempt trains; that its process lives is none."""
    step = event.detail.get("step")
    if story.fallen is None or event.attempt is None or not isinstance(step, int):
        return []
    if event.attempt <= story.fallen[0]:
        return []
    text = f"attempt {event.attempt} trains, at step {step}; attempt {story.fallen[0]} was the last that fell"
    story.fallen = None
    return [_message(Kind.RECOVERED, event, "trains again", [text])]


def _changed(story: _Story, event: WatchEvent) -> list[Message]:
    state = event.detail.get("state")
    if state == RunState.STOPPED.value:
        story.waiting, story.fallen = None, None  # by its user, who knows
        return []
    told = _release(story)
    if state == RunState.HEALTHY.value and story.fallen == (event.attempt, Kind.HANG):
        story.fallen = None
        told.append(_message(Kind.RECOVERED, event, "goes on by itself after a hang", [event.text]))
    return told


def _failure(event: WatchEvent | None) -> str:
    failure = event.detail.get("failure") if event is not None else None
    return f": {failure}" if failure else ""


def _told(event: WatchEvent | None) -> list[str]:
    """Return a diagnosis with the first lines that prove it."""
    if event is None:
        return []
    items: Sequence[dict[str, Any]] = event.detail.get("evidence") or ()
    proof = dict.fromkeys(
        f"  {item['source']}{_rank(item)}: {' '.join(str(item['text']).split())}" for item in items
    )
    return [event.text, *list(proof)[:_EVIDENCE]]


def _rank(item: dict[str, Any]) -> str:
    return f" rank {item['rank']}" if item.get("rank") is not None else ""


def _message(kind: Kind, event: WatchEvent, what: str, lines: Sequence[str], part: str = "") -> Message:
    number = f" (attempt {event.attempt})" if event.attempt is not None else ""
    when = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    title, body = words(f"{event.run}{number} {what}", [*lines, f"{event.target}, {when}"])
    return Message(
        kind=kind,
        severity=SEVERITIES[kind],
        at=event.at,
        run=event.run,
        target=event.target,
        attempt=event.attempt,
        title=title,
        body=body,
        keys=(Key(event.target, event.run, event.attempt, kind, part),),
    )
