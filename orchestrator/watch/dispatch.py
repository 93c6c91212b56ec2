"""What was observed of a container or a host, given to the runs that it is about."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from orchestrator.observe import (
    ContainerSeen,
    Cursor,
    HostMute,
    HostReady,
    HostSaid,
    Lost,
    Observation,
    Received,
)
from orchestrator.watch.kernelwait import KERNEL_OPEN_S, KERNEL_WAIT_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from orchestrator.observe.attempt import AttemptView
    from orchestrator.watch.faults import Faults
    from orchestrator.watch.runwatch import RunWatch

logger = logging.getLogger(__name__)

REREAD_BYTES = 64 << 20


class Dispatch:
    """One watch's runs, by the target that they are on and by the host whose kernel log tells of them."""

    def __init__(self, faults: Faults) -> None:
        self.by_target: dict[str, list[RunWatch]] = {}
        self.by_host: dict[str, list[RunWatch]] = {}
        self._faults = faults

    def add(self, run: RunWatch, host: str | None) -> None:
        """Add a run; `host`: its kernel log is followed."""
        self.by_target.setdefault(run.row.target_key, []).append(run)
        if host is not None:
            self.by_host.setdefault(host, []).append(run)
            run.kernel_wait.limit_s = KERNEL_OPEN_S

    def remove(self, run: RunWatch) -> None:
        """Forget a run."""
        for groups in (self.by_target, self.by_host):
            # The streams' threads read these lists: they get whole new ones.
            for key, runs in [(key, runs) for key, runs in groups.items() if run in runs]:
                groups[key] = [each for each in runs if each is not run]
                if not groups[key]:
                    del groups[key]

    def cursors(self, target: str) -> Mapping[str, Cursor]:
        """Return from where the target's guest should send, by run."""
        return {run.row.name: _cursor(run.tracker.view) for run in self.by_target.get(target, ())}

    def kernel_since(self, host: str) -> datetime | None:
        """Return when the first of the host's attempts began; None while that of one is not known."""
        views = [run.tracker.view for run in self.by_host.get(host, ())]
        known = [view.began_at if view is not None else None for view in views]
        begins = [at for at in known if at is not None]
        return min(begins) if begins and len(begins) == len(known) else None

    def apply(self, observation: Observation, now: datetime) -> None:
        """Give it to its runs.

        Raises:
            RecordError: The record cannot be written.
        """
        if isinstance(observation, HostSaid | HostMute | HostReady):
            self._apply_host(observation, now)
            return
        for run in self.by_target.get(observation.target, ()):  # none: it was removed a moment ago
            match observation:
                case Received(message=message):
                    if message.get("run") in (None, run.row.name):
                        with self._faults.contained(run, "what the guest sent cannot be understood"):
                            run.apply(message, now)
                    if message["type"] == "hello":
                        run.container("running")
                case Lost(error=error, retry_in_s=retry_in_s):
                    run.lost(error.code, str(error), now)
                    logger.info(
                        "stream of %s lost, next try in %.1f s: %s", observation.target, retry_in_s, error
                    )
                case ContainerSeen(state=state):
                    run.container(state)

    def _apply_host(self, observation: HostSaid | HostMute | HostReady, now: datetime) -> None:
        runs = self.by_host.get(observation.target, [])
        if isinstance(observation, HostMute) and runs:
            runs[0].host_teller.mute(observation.target, observation.reason, now)
        for run in runs:
            if isinstance(observation, HostMute):
                run.kernel_wait.limit_s = 0.0
                continue
            if isinstance(observation, HostReady):
                run.kernel_wait.limit_s = KERNEL_WAIT_S if observation.is_ready else KERNEL_OPEN_S
                continue
            what = "what the kernel said cannot be understood"
            with self._faults.contained(run, what, is_deafening=False):
                run.host(observation.event, now)


def _cursor(view: AttemptView | None) -> Cursor:
    """Return what was seen already; a first look reads no more than the last REREAD_BYTES."""
    if view is None:
        return Cursor(None, -REREAD_BYTES, 0)
    return Cursor(view.number, view.log_offset, view.metrics_offset)
