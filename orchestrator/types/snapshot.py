"""What a diagnosis is made from: what a log showed, and all that is known of an attempt at one instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.types.seen import Present

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.types.failure import Evidence, FailureClass
    from orchestrator.types.seen import (
        ExitRecord,
        Gpu,
        GpuStill,
        Heartbeat,
        HostLine,
        LastWords,
        Liveness,
        Reading,
    )


@dataclass(frozen=True, kw_only=True)
class LogMatch:
    """A signature met in the log, in the order of the log."""

    failure: FailureClass
    evidence: Evidence
    last_step_before: int | None = None
    weak: bool = False  # decides only when nothing stronger was seen
    handled: bool = False  # the same rank went on afterwards with finite numbers
    is_traceback: bool = False
    hints: tuple[str, ...] = ()  # what the frames showed: `dense`, `tracing`, `thread`


@dataclass(frozen=True, kw_only=True)
class CustomMatch:
    """A line that a user's own rule knows, and that was not survived.

    Without a `failure` the class is what the catalogue finds.
    """

    rule: str
    label: str
    evidence: Evidence
    failure: FailureClass | None = None


CUSTOM = "custom:"  # begins the signature of a user's own rule


@dataclass(frozen=True, kw_only=True)
class LogReading:
    """What the log showed up to `read_bytes`, as far as classification needs it.

    `matches` is bounded: the first and the newest of each signature. `exception` is the line that ends the
    root of the last uncaught traceback, if the log ends in one. `tail` is the last lines, cleaned.
    """

    read_bytes: int = 0
    matches: tuple[LogMatch, ...] = ()
    exception: Evidence | None = None
    traceback: tuple[str, ...] = ()
    last_step: int | None = None
    mark: float | None = None  # what the newest step line counts: a step, else a place within epochs
    is_last_step: bool = False  # that line says that no more is to come, such as `step 500/500`
    tail: tuple[str, ...] = ()
    truncated: bool = False  # only a pane's last lines were seen, not the whole log
    custom: tuple[CustomMatch, ...] = ()  # in the order of the playbook


@dataclass(frozen=True, kw_only=True)
class LogPace:
    """How a log was seen to grow, by the near clock; what was not watched is left out.

    `step_s` is the rolling median between two steps that it told, `num_steps` of how many; `pause_s` is the
    longest silence that ended.
    """

    quiet_since: datetime | None = None
    num_steps: int = 0
    step_s: float | None = None
    pause_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All that is known of one attempt at one instant (`now`, the near side's clock, UTC)."""

    now: datetime
    run: str
    attempt: int
    liveness: Reading[Liveness]
    heartbeat: Reading[Heartbeat]
    exit: Reading[ExitRecord]
    last_words: Reading[LastWords]
    result: Reading[dict[str, Any]]
    log: LogReading
    gpus: Reading[tuple[Gpu, ...]]
    stop_by: str | None = None  # "user" or "watch": intent written before the first signal
    stop_reason: str | None = None
    started_at: datetime | None = None
    heartbeat_seen_at: datetime | None = None  # near clock, when the newest *step or phase* change was seen
    log_grew_at: datetime | None = None
    step_seen_at: datetime | None = None  # near clock, when the log or the metrics last told a new step
    log_pace: LogPace = LogPace()
    gpus_still: tuple[GpuStill, ...] = ()
    container: str | None = None  # "running", "stopped", "frozen", "locked:backup", None unknown
    container_lock: str | None = None  # "backup", "snapshot" ...: what Proxmox does with the container
    container_restarted: bool = False  # pid 1 of the container is younger than the attempt
    host_rebooted: bool = False  # the host's boot is another one than when the attempt began
    clock_skew_s: float = 0.0  # the container's clock minus the near one
    host_up_s: float | None = None  # how long pid 1 of the container, or its host, is up
    disk_free_bytes: int | None = None
    kind: str = "trainer"  # or "command": a program of which only its end is known
    is_by_hand: bool = False  # a person began the attempt in the run's directory, without dflashctl
    host_lines: tuple[HostLine, ...] = ()  # of the host's kernel, since the attempt began and about this run

    @property
    def last_step(self) -> int | None:
        """The newest step that anything tells of: a heartbeat is thinned and may lag behind the others."""
        known = [self.log.last_step]
        if isinstance(self.heartbeat, Present):
            known.append(self.heartbeat.value.step)
        if isinstance(self.last_words, Present):
            known.append(self.last_words.value.step)
        return max((step for step in known if step is not None), default=None)
