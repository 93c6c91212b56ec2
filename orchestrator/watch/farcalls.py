"""The far calls of a watch, each made in a thread of its own: stop, start, and the looks beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from orchestrator.act import Actor
from orchestrator.compilecache import Store
from orchestrator.errors import ActRefused
from orchestrator.observe.holders import told
from orchestrator.types.decision import RemedyKind
from orchestrator.watch.remedies import restore_cache
from orchestrator.watch.stacktaking import take_and_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.clock import Clock
    from orchestrator.connection import GuestClient
    from orchestrator.handover import Handover
    from orchestrator.launch import RunSpec
    from orchestrator.observe import Holder
    from orchestrator.record import Record, RunRow
    from orchestrator.types.decision import Decision
    from orchestrator.watch.stacktaking import Taken

STOP_GRACE_S = 10.0


class ActSite(Protocol):
    """Where acts are carried out; called from threads of their own."""

    @property
    def state_dir(self) -> str:
        """The state folder in the container."""
        ...

    @property
    def ct(self) -> int | None:
        """The container's number."""
        ...

    @property
    def host_key(self) -> str:
        """The host's name; the containers of one host share its connection."""
        ...

    def client(self) -> GuestClient:
        """Return the guest."""
        ...

    def gpu_holders(self, pids: Sequence[int]) -> tuple[Holder, ...]:
        """Who the host's processes are."""
        ...

    def container_state(self) -> str | None:
        """What the host says of the container."""
        ...


class FarCalls:
    """What is done at the sites; every call may block, and raises as the guest and the connection do."""

    def __init__(self, record: Record, sites: Mapping[str, ActSite], clock: Clock) -> None:
        self._record = record
        self._sites = sites
        self._clock = clock
        self._actor = Actor(record, clock)

    def host_of(self, row: RunRow) -> str:
        """Return the host whose connection serves a run."""
        return self._sites[row.target_key].host_key

    def stop(
        self, row: RunRow, spec: RunSpec, attempt: int, decision: Decision, seen: Mapping[str, object]
    ) -> str:
        """End an attempt that hangs, unless it moved from where it was `seen`."""
        site = self._sites[row.target_key]
        self._actor.stop(
            site.client(),
            row.id,
            row.name,
            state_dir=site.state_dir,
            attempt=attempt,
            by="watch",
            reason=decision.reason,
            grace_s=min(spec.stop_grace_s, STOP_GRACE_S),
            unless_moved=seen,
        )
        return f"attempt {attempt} stopped"

    def start(
        self, row: RunRow, spec: RunSpec, attempt: int, decision: Decision, handover: Handover | None = None
    ) -> str:
        """Start an attempt, with the remedies first; with `handover` it is the one that a person asked for.

        Raises:
            ActRefused: The container does not simply run.
        """
        site = self._sites[row.target_key]
        _require_running(site, row.target_key)
        done = []
        if any(remedy.kind is RemedyKind.RESTORE_CACHE for remedy in decision.remedies):
            store = Store.beside(self._record.path)
            done.append(restore_cache(site.client(), store, row.target_key, row.name))
        started = self._actor.start(
            site.client(),
            row.id,
            spec,
            state_dir=site.state_dir,
            attempt=attempt,
            ct=site.ct,
            by="watch" if handover is None else "user",
            reason=decision.reason if handover is None else handover.reason,
            env=None,
            env_update=dict(decision.env_changes),
            rung=decision.rung,
            changes=dict(decision.changes if handover is None else handover.changes),
            remedies=decision.remedies,
            finishes=handover.at if handover is not None else None,
        )
        done += [f"{started['set_aside']} was set aside"] if started.get("set_aside") else []
        done += [f"step {step} is left out" for step in started.get("skipped_steps") or ()]
        return "; ".join([f"attempt {attempt} started, pid {started.get('trainer_pid')}", *done])

    def holders(self, row: RunRow, pids: Sequence[int]) -> str:
        """Ask the host who holds the GPUs; nobody is touched."""
        site = self._sites[row.target_key]
        return told(site.gpu_holders(pids), site.ct)

    def stacks(self, row: RunRow, attempt: int) -> Taken:
        """Ask every rank where it is.

        Raises:
            ActRefused: The container does not simply run.
        """
        site = self._sites[row.target_key]
        _require_running(site, row.target_key)
        return take_and_record(
            site.client(), site.state_dir, row.name, attempt, self._record, row.id, self._clock
        )


def _require_running(site: ActSite, where: str) -> None:
    """A lock or a freeze that came since the stream began is known to the host only.

    Raises:
        ActRefused: The host says that the container does not simply run.
    """
    state = site.container_state()
    if state not in (None, "running"):
        raise ActRefused(f"{where}: the container is {state}")
