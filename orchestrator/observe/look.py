"""One look at a run, asked for once: what a command needs that does not go on watching."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from orchestrator.errors import GuestRefused
from orchestrator.observe.tracker import RunTracker
from orchestrator.types.seen import Present

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.clock import Clock
    from orchestrator.types.snapshot import Snapshot
    from orchestrator.userrules import CustomRule
    from orchestrator.wire import Message

LOOK_TIMEOUT_S = 30.0
LOOK_LOG_BYTES = 256 * 1024


class Asked(Protocol):
    """What looking needs of the guest."""

    def call(self, verb: str, request: Mapping[str, object], *, timeout_s: float) -> list[Message]:
        """Ask once."""
        ...


class Place(Protocol):
    """Where to look; `site.Site` is one."""

    @property
    def state_dir(self) -> str:
        """The state folder in the container."""
        ...

    @property
    def hello(self) -> Message:
        """What the guest said of the container."""
        ...

    def client(self) -> Asked:
        """Return the guest."""
        ...


def look(
    place: Place,
    run: str,
    clock: Clock,
    *,
    log_bytes: int = LOOK_LOG_BYTES,
    gpus: bool = False,
    custom: Sequence[CustomRule] = (),
) -> RunTracker:
    """Return what the container shows of a run right now; a run that never was has no view.

    `gpus` asks for a reading of the GPUs too, which takes a moment, and seconds if the driver is stuck.
    The log is also read for the user's own rules, `custom`.

    Raises:
        BlindError: It cannot be reached.
        GuestRefused: The container is not ready.
    """
    tracker = RunTracker(run)
    tracker.custom = custom
    request = {"state_dir": place.state_dir, "run": run, "log_bytes": log_bytes, "gpus": gpus}
    tracker.apply(place.hello, clock.now())
    try:
        messages = place.client().call("look", request, timeout_s=LOOK_TIMEOUT_S)
    except GuestRefused as refusal:
        if refusal.reason != "not_found":
            raise
        messages = []
    for message in messages:
        tracker.apply(message, clock.now())
    tracker.container = "running"
    return tracker


def is_alive(snapshot: Snapshot | None) -> bool:
    """Whether any process of the run lives, by positive proof."""
    return (
        snapshot is not None
        and isinstance(snapshot.liveness, Present)
        and not snapshot.liveness.value.is_gone
    )
