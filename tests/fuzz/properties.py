"""What must hold for any bytes and any readings: no exception, an end, bounds, no act without proof."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from orchestrator.classify import Limits, LogScanner, diagnose, diagnose_pane
from orchestrator.decide import decide
from orchestrator.observe import parse
from orchestrator.playbook import Playbook, load, shipped
from orchestrator.replay.judge import judge_log
from orchestrator.types.decision import ActKind
from orchestrator.types.failure import RunState
from orchestrator.types.seen import Blind, Present
from orchestrator.types.snapshot import LogReading
from tests.fuzz.attempts import histories, snapshots
from tests.fuzz.logs import cut, logs
from tests.fuzz.messages import messages
from tests.fuzz.size import deep_bytes

if TYPE_CHECKING:
    from orchestrator.types.failure import Evidence
    from orchestrator.types.snapshot import Snapshot

MAX_SCANNER_BYTES = 4 << 20  # for logs of the sizes drawn here
SIZES = st.lists(st.integers(1, 4000), max_size=6)
_ACTS = (ActKind.RELAUNCH, ActKind.RELAUNCH_WITH)
_DEAD = (RunState.DEAD, RunState.HUNG)


@functools.cache
def playbook() -> Playbook:
    """Return the shipped playbook."""
    return load(shipped())


def read(log: bytes, sizes: list[int], gap: int) -> LogReading:
    """Return what a log shows in pieces, `gap` bytes lost before its second piece."""
    scanner = LogScanner()
    for number, (at, piece) in enumerate(cut(log, sizes)):
        scanner.feed(piece, at + (gap if number else 0))
        if number < 3:
            scanner.reading()
    assert deep_bytes(scanner) < MAX_SCANNER_BYTES
    return scanner.reading()


def check_reading(reading: LogReading, log: bytes) -> None:
    """Hold a reading without gaps against the log: each offset is the first byte of a line."""
    assert reading.read_bytes == len(log)
    for match in reading.matches:
        _check_offset(match.evidence, log)


def _check_offset(evidence: Evidence, log: bytes) -> None:
    at = evidence.offset
    assert at is not None
    assert 0 <= at < len(log)
    assert at == 0 or log[at - 1 : at] in (b"\n", b"\r")


def check_attempt(data: st.DataObject) -> None:
    """Diagnose and decide on a drawn log and drawn readings."""
    log, sizes = data.draw(logs()), data.draw(SIZES)
    gap = data.draw(st.sampled_from((0, 0, 1, 10**9)))
    reading = read(log, sizes, gap)
    if gap == 0:
        check_reading(reading, log)
    snapshot = data.draw(snapshots(reading))
    check_decision(snapshot, data)
    diagnose_pane(reading, is_dead=data.draw(st.booleans()))


def check_decision(snapshot: Snapshot, data: st.DataObject) -> None:
    """Diagnose, decide, and hold both to what may never be."""
    diagnosis = diagnose(snapshot, Limits())
    assert 0.0 <= diagnosis.confidence <= 1.0
    assert diagnosis.summary
    if isinstance(snapshot.liveness, Blind) and snapshot.container not in ("stopped", "frozen"):
        assert diagnosis.state is RunState.BLIND
    jitter = data.draw(st.floats(-1, 1))
    decision = decide(diagnosis, playbook(), data.draw(histories()), snapshot, snapshot.now, jitter)
    if decision.kind in _ACTS:
        assert diagnosis.state in _DEAD
        assert isinstance(snapshot.liveness, Present)
        assert snapshot.stop_by != "user"
        assert diagnosis.state is RunState.HUNG or snapshot.liveness.value.is_gone


def check_messages(data: st.DataObject) -> None:
    """Parse whatever a container may send, then diagnose and decide on it."""
    words = messages()
    snapshot = replace(
        data.draw(snapshots(LogReading())),
        heartbeat=parse.reading(data.draw(words), parse.heartbeat, "heartbeat.json"),
        exit=parse.reading(data.draw(words), parse.exit_record, "exit.json"),
        last_words=parse.reading(data.draw(words), parse.last_words, "error.json"),
        liveness=parse.reading(data.draw(words), parse.liveness, "the run"),
    )
    gpu_message = data.draw(words)
    if isinstance(gpu_message, dict):
        snapshot = replace(snapshot, gpus=parse.gpus(gpu_message))
    check_decision(snapshot, data)


def check_bare_log(data: st.DataObject) -> None:
    """Judge a bare log, as `replay --log` does."""
    width = data.draw(st.none() | st.integers(1, 200))
    status = data.draw(st.none() | st.integers(-64, 300))
    shown = judge_log(data.draw(logs()), exit_status=status, width=width, playbook=playbook()).to_json()
    assert json.loads(json.dumps(shown)) == shown
    assert 0.0 <= shown["confidence"] <= 1.0
