"""What is new in a fleet, for many readers at once. Each card is made into JSON once, whoever reads.

Only the event loop's thread uses this; the watch pokes it. A reader keeps a place, never a queue: one that
was slow gets all that changed since its place in one piece.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.clock import timestamp
from orchestrator.contained import contained
from orchestrator.fleet.card import STALE_S
from orchestrator.serve.cards import health_body, is_news, run_body, told_body
from orchestrator.serve.models import SCHEMA_VERSION
from orchestrator.serve.texts import encoded

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.clock import Clock
    from orchestrator.fleet import Board, RunCard
    from orchestrator.fleet.health import Health

logger = logging.getLogger(__name__)

EVERY_S = 0.5
PROGRESS_EVERY_S = 2.0  # of each of many runs; of up to FEW their progress is told at once
FEW = 50
LOOK_EVERY_S = 1.0  # health changes with time alone
MAX_REMOVED = 1_000
MAX_TOLD = 500
FIRST_TOLD = 50  # with the whole fleet


@dataclass(frozen=True)
class Place:
    """How far a reader has come: in the versions of cards and in the events told."""

    version: int
    told: int


@dataclass
class _Known:
    card: RunCard
    version: int
    body: bytes
    at: float  # monotonic, when that was told


class Hub:
    """The fleet as its readers get it."""

    def __init__(self, board: Board, clock: Clock, health: Callable[[], Health], *, acting: bool) -> None:
        self.board = board
        self.num_readers = 0
        self.fault: Exception | None = None  # what ended it, if not `close`
        self._clock = clock
        self._health = health
        self._acting = acting
        self._boot = secrets.token_hex(4)  # places of another process mean nothing here
        self._version = 0
        self._known: dict[int, _Known] = {}
        self._removed: OrderedDict[int, int] = OrderedDict()
        self._forgotten = 0  # removals up to this version are no longer known
        self._told: deque[tuple[int, bytes]] = deque(maxlen=MAX_TOLD)
        self._seen_told = 0
        self._well = b""
        self._due = -math.inf  # monotonic
        self._merged: dict[tuple[int, int], bytes] = {}
        self._news = asyncio.Event()
        self._poked = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_closed = False

    async def run(self) -> None:
        """Look for what is new while somebody reads, until closed; a fault ends the readers, and is told."""
        self._loop = asyncio.get_running_loop()
        end = self.board.listen(self._poke)
        try:
            with contained(self._failed):
                await self._look()
        finally:
            end()

    async def _look(self) -> None:
        while not self.is_closed:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._poked.wait(), LOOK_EVERY_S)
            await asyncio.sleep(max(0.0, self._due - self._clock.monotonic()))
            self._poked.clear()
            if self.num_readers:
                self.refresh()
            else:
                await asyncio.sleep(EVERY_S)

    def _failed(self, error: Exception) -> None:
        logger.error("the stream of the pages ended", exc_info=error)
        self.fault = error
        self.close()

    def close(self) -> None:
        """End every reader."""
        self.is_closed = True
        self._wake()
        self._poked.set()

    def _poke(self) -> None:
        """Called by the watch, in its thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._poked.set)

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    # -- what is new

    def refresh(self) -> None:
        """Take in the fleet as it is now, at most twice a second; wake the readers if something is new."""
        ticks = self._clock.monotonic()
        if ticks < self._due:
            return
        self._due = ticks + EVERY_S
        has_cards = self._take_cards()
        has_told = self._take_told()
        well = encoded(health_body(self._health()))
        if has_cards or has_told or well != self._well:
            if has_cards or well != self._well:
                self._version += 1
            self._well = well
            self._merged.clear()
            self._wake()

    def _take_cards(self) -> bool:
        fleet, next_version = self.board.fleet, self._version + 1
        changed, ticks = False, self._clock.monotonic()
        every_s = PROGRESS_EVERY_S if len(fleet.cards) > FEW else 0.0
        for card in fleet.cards:
            known = self._known.get(card.id)
            if known is not None and not is_news(known.card, card, is_due=ticks - known.at >= every_s):
                continue
            self._known[card.id] = _Known(card, next_version, encoded(run_body(card)), ticks)
            self._removed.pop(card.id, None)
            changed = True
        if len(self._known) > len(fleet.cards):
            for run_id in self._known.keys() - {card.id for card in fleet.cards}:
                del self._known[run_id]
                self._removed[run_id] = next_version
                changed = True
            while len(self._removed) > MAX_REMOVED:
                self._forgotten = self._removed.popitem(last=False)[1]
        return changed

    def _take_told(self) -> bool:
        fresh = self.board.told(self._seen_told)
        if not fresh:
            return False
        ids = {(each.card.target, each.card.name): run_id for run_id, each in self._known.items()}
        for told in fresh:
            run_id = ids.get((told.event.target, told.event.run))
            self._told.append((told.seq, encoded(told_body(told, run_id))))
        self._seen_told = fresh[-1].seq
        return True

    # -- what a reader gets

    def whole(self) -> bytes:
        """Return the body of `models.Fleet`."""
        runs = b",".join(each.body for each in self._known.values())
        told = b",".join(body for _, body in list(self._told)[-FIRST_TOLD:])
        head = {
            "schema_version": SCHEMA_VERSION,
            "version": self._version,
            "at": timestamp(self._clock.now()),
            "acting": self._acting,
            "stale_after_s": STALE_S,
        }
        return b'%s,"health":%s,"runs":[%s],"told":[%s]}' % (encoded(head)[:-1], self._well, runs, told)

    def changes(self, version: int) -> bytes:
        """Return the body of `models.Changes` from a version to the present one; readers share it."""
        key = (version, self._version)
        if key not in self._merged:
            runs = b",".join(each.body for each in self._known.values() if each.version > version)
            removed = [run_id for run_id, at in self._removed.items() if at > version]
            head = {"version": self._version, "at": timestamp(self._clock.now())}
            self._merged[key] = b'%s,"health":%s,"runs":[%s],"removed":%s}' % (
                encoded(head)[:-1],
                self._well,
                runs,
                encoded(removed),
            )
        return self._merged[key]

    def ping(self) -> bytes:
        """Return an event that says only that the server is there, and its time."""
        return b"event: ping\ndata: %s\n\n" % encoded({"at": timestamp(self._clock.now())})

    def told_after(self, seq: int) -> list[tuple[int, bytes]]:
        """Return the events after one, as JSON."""
        return [each for each in self._told if each[0] > seq] if self._seen_told > seq else []

    @property
    def place(self) -> Place:
        """Where a reader is that has seen everything."""
        return Place(self._version, self._seen_told)

    def event_id(self, place: Place) -> str:
        """Return what a reader gives back to go on from there."""
        return f"{self._boot}.{place.version}.{place.told}"

    def place_of(self, event_id: str | None) -> Place | None:
        """Return where a reader was; None if it has to begin anew."""
        boot, _, rest = (event_id or "").partition(".")
        version, _, told = rest.partition(".")
        if boot != self._boot or not (_is_number(version) and _is_number(told)):
            return None
        place = Place(int(version), int(told))
        is_known = self._forgotten <= place.version <= self._version and place.told <= self._seen_told
        return place if is_known else None

    async def wait(self, place: Place, limit_s: float) -> bool:
        """Wait until there is something after that place; whether there is."""
        news = self._news
        if place != self.place or self.is_closed:
            return True
        try:
            await asyncio.wait_for(news.wait(), limit_s)
        except asyncio.TimeoutError:
            return False
        return True


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 16
