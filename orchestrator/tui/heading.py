"""The lines above and below: who is watched, what was told last, which panels there are. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.text import Text

from orchestrator.terminal import one_line
from orchestrator.tui.words import sign_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from orchestrator.fleet import RunCard, Told

STANDS_STILL_S = 10.0
PANELS = ("curves", "gpus", "story", "log")
TITLES = {"curves": "loss and speed", "gpus": "GPUs", "story": "story", "log": "log"}
PAUSED = " (paused, G follows)"
_STYLES = {"bad": "bold red", "warning": "yellow", "good": "green"}


def head(
    cards: Sequence[RunCard],
    now: datetime,
    width: int,
    *,
    verb: str,
    acts: bool,
    only: str = "",
    shown: int = 0,
) -> Text:
    """Return the first line; `only`: the filter, which `shown` runs pass."""
    counts = Counter(sign_of(card, now) for card in cards)
    gravest_first = sorted(counts, key=lambda sign: sign.rank)
    told = ", ".join(f"{counts[sign]} {sign.word}" for sign in gravest_first)
    text = Text(f"dflashctl {verb}", style="bold", no_wrap=True, overflow="ellipsis")
    if only:
        text.append(f"  only /{one_line(only, 40)}: {shown}", style="yellow")
    text.append(f"  {'acts by the playbook' if acts else 'only looks'}", style="not bold")
    text.append(
        f"  {len(cards)} run{'' if len(cards) == 1 else 's'}{f': {told}' if told else ''}", style="not bold"
    )
    text.truncate(max(1, width - 10), overflow="ellipsis", pad=True)
    return text.append(f"  {now.astimezone():%H:%M:%S}")


def status(said: str, turned_s_ago: float | None, newest: Told | None) -> Text:
    """Return the line above the keys: what is wrong, what was said, else what was told last of any run."""
    if turned_s_ago is not None and turned_s_ago > STANDS_STILL_S:
        return Text(f"the watch has not turned for {turned_s_ago:.0f} s", style="bold red")
    if said:
        return Text(said, style="yellow", no_wrap=True, overflow="ellipsis")
    if newest is None:
        return Text()
    event = newest.event
    says_kind = event.text.startswith(f"{event.kind} ")
    words = one_line(event.text if says_kind else f"{event.kind}: {event.text}", 300)
    text = Text(no_wrap=True, overflow="ellipsis").append(f"{event.at.astimezone():%H:%M:%S} ", style="dim")
    return text.append(f"{one_line(event.run, 60)} {words}", style=_STYLES.get(event.level.value, ""))


def tabs(opened: str, panels: Sequence[str], *, is_paused: bool) -> Text:
    """Return the names of the panels, where only one of them is in sight."""
    text = Text(no_wrap=True)
    for number, name in enumerate(PANELS, 1):
        if name in panels:
            title = TITLES[name] + (PAUSED if name == "log" and is_paused else "")
            text.append(f" {number} {title} ", style="bold reverse" if name == opened else "dim").append(" ")
    return text
