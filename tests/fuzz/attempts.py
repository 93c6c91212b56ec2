"""Everything that may be known of an attempt, drawn at random, contradictions included."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from orchestrator.types.decision import History, PastAttempt
from orchestrator.types.failure import FailureClass
from orchestrator.types.seen import (
    Absent,
    Blind,
    ExitRecord,
    Gpu,
    Heartbeat,
    HostLine,
    LastWords,
    Liveness,
    Phase,
    Present,
    Reading,
)
from orchestrator.types.snapshot import LogPace, Snapshot
from tests.fuzz.logs import EXAMPLES

if TYPE_CHECKING:
    from orchestrator.types.snapshot import LogReading

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=timezone.utc)

_times = st.integers(-(10**6), 10**5).map(lambda s: NOW + timedelta(seconds=s))
_maybe_times = st.none() | _times
_steps = st.none() | st.integers(0, 10**6)
_floats = st.none() | st.floats()
_texts = st.text(max_size=40) | st.sampled_from(EXAMPLES)


def _reading(values: st.SearchStrategy[object]) -> st.SearchStrategy[Reading[object]]:
    return st.one_of(st.builds(Absent), st.builds(Blind, st.text(max_size=9)), values.map(Present))


_heartbeats = st.builds(
    Heartbeat,
    phase=st.sampled_from(Phase),
    step=st.integers(0, 10**6),
    at=_times,
    total_steps=_steps,
    loss=_floats,
    step_s=_floats,
    resumed_from_step=_steps,
    checkpoint_step=_steps,
)
_exits = st.builds(
    ExitRecord,
    code=st.none() | st.sampled_from((0, 1, 2, 71, 75, 78, 137, 255)) | st.integers(),
    signal=st.none() | st.integers(-1, 70),
    at=_times,
    duration_s=st.floats(),
)
_words = st.builds(
    LastWords,
    exception=_texts,
    message=_texts,
    traceback=_texts,
    rank=st.integers(-1, 9),
    step=_steps,
    kind=st.none() | st.sampled_from(("non_finite", "interrupted", "data_invalid", "x")),
)
_lives = st.builds(
    Liveness,
    lock_held=st.booleans(),
    pids=st.lists(st.integers(1, 9), max_size=2).map(tuple),
    supervisor=st.booleans(),
    session=st.booleans(),
)
_gpus = st.builds(Gpu, index=st.integers(0, 7), utilization_pct=_floats, power_w=_floats, pids=st.just((7,)))
_host_lines = st.builds(HostLine, text=_texts, at=_maybe_times, gpu=st.none() | st.integers(0, 7))
_paces = st.builds(
    LogPace,
    quiet_since=_maybe_times,
    num_steps=st.integers(0, 50),
    step_s=st.none() | st.floats(-1.0, 1e9),
    pause_s=st.floats(0.0, 1e9),
)
_past = st.builds(
    PastAttempt,
    attempt=st.integers(1, 9),
    failure=st.none() | st.sampled_from(FailureClass),
    fingerprint=st.none() | st.sampled_from(("a", "b")),
    started_at=_maybe_times,
    ended_at=_maybe_times,
    first_step=_steps,
    last_step=_steps,
    checkpoint_step=_steps,
    by_watch=st.booleans(),
)


def histories() -> st.SearchStrategy[History]:
    """Draw the attempts before this one."""
    return st.lists(_past, max_size=12).map(lambda attempts: History(attempts=tuple(attempts)))


@st.composite
def snapshots(draw: st.DrawFn, log: LogReading) -> Snapshot:
    """Draw all that is known beside the log."""
    return draw(
        st.builds(
            Snapshot,
            now=_times,
            run=st.just("dflash"),
            attempt=st.integers(1, 10),
            liveness=_reading(_lives),
            heartbeat=_reading(_heartbeats),
            exit=_reading(_exits),
            last_words=_reading(_words),
            result=_reading(st.just({})),
            log=st.just(log),
            gpus=_reading(st.lists(_gpus, max_size=2).map(tuple)),
            stop_by=st.none() | st.sampled_from(("user", "watch")),
            stop_reason=st.none() | st.just("no progress"),
            started_at=_maybe_times,
            heartbeat_seen_at=_maybe_times,
            log_grew_at=_maybe_times,
            step_seen_at=_maybe_times,
            log_pace=_paces,
            container=st.sampled_from((None, "running", "stopped", "frozen", "locked:backup")),
            container_restarted=st.booleans(),
            host_rebooted=st.booleans(),
            clock_skew_s=st.floats(-1e6, 1e6),
            host_up_s=_floats,
            disk_free_bytes=_steps,
            kind=st.sampled_from(("trainer", "command")),
            host_lines=st.lists(_host_lines, max_size=3).map(tuple),
        )
    )
