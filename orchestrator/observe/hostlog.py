"""What the host's kernel said about one run: its container, its cards, since its attempt began."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from orchestrator.classify.kernel import KernelEvent, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from orchestrator.types.seen import Gpu, HostLine

_KEPT_FIRST = 3
_KEPT_LAST = 3
_KEPT_KINDS = 256
_BEFORE = timedelta(seconds=5)


class HostLog:
    """Bounded: of a storm of one kind of line about one card, the first and the last stay."""

    def __init__(self, ct: int | None = None) -> None:
        self.ct = ct
        self._kept: OrderedDict[tuple[object, ...], list[KernelEvent]] = OrderedDict()
        self._index: dict[str, int] = {}  # a card that fell off the bus is in no later reading

    def note_gpus(self, gpus: Iterable[Gpu]) -> None:
        """Learn which card has which address."""
        self._index.update({gpu.pci: gpu.index for gpu in gpus if gpu.pci is not None})

    def add(self, event: KernelEvent, own: frozenset[int] | None) -> KernelEvent | None:
        """Keep the event if it may be about this run; return it with its card's index, or None.

        `own` are the run's cards; None for all that its container sees.
        """
        if event.kind is Kind.OOM_KILL and event.ct != self.ct:
            return None
        named = self._named(event)
        if own is not None and named.line.gpu is not None and named.line.gpu not in own:
            return None
        code = named.xid.xid.code if named.xid is not None else None
        kept = self._kept.setdefault((named.kind, code, named.pci, named.pid), [])
        kept.append(named)
        if len(kept) > _KEPT_FIRST + _KEPT_LAST:
            del kept[_KEPT_FIRST]
        if len(self._kept) > _KEPT_KINDS:
            self._kept.popitem(last=False)
        return named

    def add_all(self, events: Iterable[KernelEvent], own: frozenset[int] | None) -> None:
        """Keep those of the events that may be about this run."""
        for event in events:
            self.add(event, own)

    def _named(self, event: KernelEvent) -> KernelEvent:
        index = self._index.get(event.pci or "")
        return event if index is None else replace(event, line=replace(event.line, gpu=index))

    def lines(self, since: datetime | None, own: frozenset[int] | None) -> tuple[HostLine, ...]:
        """Return the kept lines from the attempt's beginning on, in their order."""
        if not self._kept:
            return ()
        events = [self._named(event) for kept in self._kept.values() for event in kept]
        lines = {event.line for event in events if _is_own(event.line, own)}
        wanted = [line for line in lines if since is None or line.at is None or line.at >= since - _BEFORE]
        return tuple(sorted(wanted, key=lambda line: (line.at.timestamp() if line.at else 0.0, line.text)))


def _is_own(line: HostLine, own: frozenset[int] | None) -> bool:
    return own is None or line.gpu is None or line.gpu in own
