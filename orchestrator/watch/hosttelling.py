"""Tells what the host's kernel says about a run while it is watched: each thing once, consequences never."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from orchestrator.classify.hostwords import news
from orchestrator.classify.kernel import KernelEvent, Kind
from orchestrator.classify.xid import Blame
from orchestrator.watch.events import Level

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.watch.telling import Teller

_BEFORE = timedelta(seconds=5)
_KEPT = 512
_LOUD = frozenset({Kind.GPU_GONE, Kind.OOM_KILL, Kind.DISK})


class HostTeller:
    """One run's. What happened before the watch began is told by the diagnosis that it explains."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._began_at: datetime | None = None
        self._told: set[tuple[object, ...]] = set()

    def begin(self, now: datetime) -> None:
        """The watch sees its run for the first time."""
        self._began_at = self._began_at or now

    def tell(self, event: KernelEvent, now: datetime, skew_s: float) -> None:
        """Tell an event that is new; `skew_s` is the container's clock minus the near one."""
        self.begin(now)
        blame = event.xid.xid.blame if event.xid is not None else None
        code = event.xid.xid.code if event.xid is not None else None
        key = (self._teller.attempt, event.kind, code, event.line.gpu, event.pci, event.pid)
        if blame is Blame.CONSEQUENCE or key in self._told or self._is_old(event, skew_s):
            return
        if len(self._told) >= _KEPT:
            return
        self._told.add(key)
        is_loud = event.kind in _LOUD or blame is Blame.HARDWARE
        detail = {
            "line": event.line.text,
            "kind": event.kind.value,
            "xid": code,
            "gpu": event.line.gpu,
            "pci": event.pci,
            "action": event.xid.xid.action.value if event.xid is not None else None,
        }
        level = Level.WARNING if is_loud else Level.INFO
        self._teller.emit("host", now, f"kernel: {news(event)}", level=level, detail=detail)

    def mute(self, host: str, reason: str, now: datetime) -> None:
        """Say once that the kernel log cannot be read, which is no alarm."""
        text = f"the kernel log of {host} cannot be read ({reason}); an OOM kill or an Xid there goes unseen"
        hint = "log in as root, or put the user into the group systemd-journal there"
        self._teller.emit("host", now, text, detail={"hint": hint})

    def _is_old(self, event: KernelEvent, skew_s: float) -> bool:
        if event.line.at is None or self._began_at is None:
            return False
        return event.line.at - timedelta(seconds=skew_s) < self._began_at - _BEFORE
