"""One bare log, without anything beside it: what it shows, and what the playbook would do. No clock.

A bare log may be the last lines of a pane whose program still runs. What is not known is not dead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from orchestrator.classify import CustomReader, LogScanner, diagnose_pane, title
from orchestrator.classify.custom import apply_custom
from orchestrator.classify.match import BY_NAME
from orchestrator.masking import Masker
from orchestrator.replay.alone import decide_alone, decision_json
from orchestrator.replay.unwrap import Unwrapper
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, Role, RunState
from orchestrator.types.seen import Absent, ExitRecord, Liveness, Present, Reading
from orchestrator.types.snapshot import LogReading, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.playbook import Playbook
    from orchestrator.types.decision import Decision
    from orchestrator.userrules import CustomRule

_F = FailureClass
_THEN = datetime(2000, 1, 1, tzinfo=timezone.utc)  # a bare log has no time; budgets of one death need none
_TRANSPORT = (_F.SSH_ERROR, _F.PCT_ERROR, _F.TMUX_ERROR, _F.SESSION_LOST)
_QUIET_STATES = (RunState.HEALTHY, RunState.FINISHED)
_SIGNALS = frozenset(range(1, 65))
_LAST_SHELL_CODE = 192  # 128 + 64; above it a code is the program's own, 255 most often ssh's
HEAD_BYTES = 4096
MAX_ALSO = 4


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What one log shows, and what would be done about it."""

    diagnosis: Diagnosis
    failure: FailureClass
    evidence: Evidence | None
    also: tuple[FailureClass, ...]
    decision: Decision

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data, in the form that `replay --log --json` prints."""
        shown, masker = self.evidence, Masker()
        is_nothing = self.failure is _F.UNKNOWN and self.diagnosis.state is not RunState.DEAD
        return {
            "state": self.diagnosis.state.value,
            "class": self.failure.value,
            "role": shown.role.value if shown is not None else None,
            "confidence": round(self.diagnosis.confidence, 3),
            "evidence": {
                "line": masker.text(shown.text) if shown is not None else None,
                "offset": shown.offset if shown is not None else None,
                "rank": shown.rank if shown is not None else None,
                "source": shown.source if shown is not None else None,
            },
            "also": [failure.value for failure in self.also],
            "decision": decision_json(self.decision),
            "title": "nothing is known of it" if is_nothing else title(self.failure),
            "summary": masker.text(self.diagnosis.summary),
            "fingerprint": masker.text(self.diagnosis.fingerprint) if self.diagnosis.fingerprint else None,
        }


def judge_log(
    log: bytes, *, exit_status: int | None, width: int | None, playbook: Playbook | None = None
) -> Judgement:
    """Return what a bare log shows, as `judge_chunks`."""
    return judge_chunks([log], exit_status=exit_status, width=width, playbook=playbook)


def judge_chunks(
    chunks: Iterable[bytes],
    *,
    exit_status: int | None,
    width: int | None,
    playbook: Playbook | None = None,
) -> Judgement:
    """Return what a bare log shows that comes in chunks.

    `exit_status` is the shell's: 128 + n for signal n, and None where it is not known. `width` is the pane's,
    in columns; lines that fill it are joined. Without a playbook the shipped one decides.
    """
    rules = playbook or shipped_playbook()
    log = read_log(chunks, width, rules.custom)
    snapshot = _snapshot(log, exit_status)
    record = exit_record(exit_status) if exit_status is not None else None
    diagnosis = _of_a_living_pane(diagnose_pane(log, is_dead=False, exit_record=record), log)
    return _judgement(apply_custom(diagnosis, snapshot), snapshot, rules)


def shipped_playbook() -> Playbook:
    """Return the playbook that comes with the program."""
    from orchestrator.playbook import load, shipped

    return load(shipped())


def read_log(chunks: Iterable[bytes], width: int | None, custom: Sequence[CustomRule] = ()) -> LogReading:
    """Return what a log shows, also to rules of the user's own; the offsets are those of what came in."""
    scanner, reader = LogScanner(), CustomReader(custom)
    unwrapper = Unwrapper(width) if width is not None else None
    at, head = 0, b""
    for chunk in chunks:
        head = (head + chunk)[:HEAD_BYTES] if len(head) < HEAD_BYTES else head
        data = unwrapper.feed(chunk) if unwrapper is not None else chunk
        scanner.feed(data, at)
        reader.feed(data, at)
        at += len(data)
    if unwrapper is None:
        return replace(scanner.reading(), custom=reader.matches(), truncated=_begins_within(head))
    scanner.feed(last := unwrapper.end(), at)
    reader.feed(last, at)
    log = replace(scanner.reading(), custom=reader.matches(), truncated=True)  # a pane has no beginning
    return _moved(log, unwrapper)


def _begins_within(head: bytes) -> bool:
    """Whether the first line is one of a traceback's inner lines, so that what came before it is missing."""
    first = head.lstrip(b"\r\n").split(b"\n", 1)[0]
    return first[:1] in (b" ", b"\t", b"^", b"~")


def _moved(log: LogReading, unwrapper: Unwrapper) -> LogReading:
    def move(evidence: Evidence) -> Evidence:
        if evidence.offset is None:
            return evidence
        return replace(evidence, offset=unwrapper.original(evidence.offset))

    matches = tuple(replace(match, evidence=move(match.evidence)) for match in log.matches)
    exception = move(log.exception) if log.exception is not None else None
    custom = tuple(replace(match, evidence=move(match.evidence)) for match in log.custom)
    return replace(log, matches=matches, exception=exception, custom=custom)


def exit_record(status: int) -> ExitRecord:
    """Return a shell's exit status as the supervisor would have written it; a negative one is a signal."""
    signal = status - 128 if 128 < status <= _LAST_SHELL_CODE else -status
    is_signal = signal in _SIGNALS
    code, number = (None, signal) if is_signal else (status, None)
    return ExitRecord(code=code, signal=number, at=_THEN, duration_s=0.0)


def _snapshot(log: LogReading, exit_status: int | None) -> Snapshot:
    exit_: Reading[ExitRecord] = Absent() if exit_status is None else Present(exit_record(exit_status))
    gone = Liveness(lock_held=False, pids=(), supervisor=False, session=True)
    return Snapshot(
        now=_THEN,
        run="log",
        attempt=1,
        liveness=Present(gone),
        heartbeat=Absent(),
        exit=exit_,
        last_words=Absent(),
        result=Absent(),
        log=log,
        gpus=Absent(),
        started_at=_THEN,
        kind="command",
    )


def _of_a_living_pane(diagnosis: Diagnosis, log: LogReading) -> Diagnosis:
    """Nothing in the pane looks like a crash or says that its program ended: it is taken for alive."""
    if diagnosis.failure is not None or diagnosis.state is not RunState.UNSUPERVISED or not log.tail:
        return diagnosis
    if log.last_step is not None:
        return replace(diagnosis, state=RunState.HEALTHY, failure=_F.HEALTHY)
    words = "nothing decisive is to be seen in these lines; read more of the log"
    return replace(diagnosis, state=RunState.HEALTHY, failure=_F.HEALTHY, summary=words, confidence=0.3)


def _judgement(diagnosis: Diagnosis, snapshot: Snapshot, playbook: Playbook) -> Judgement:
    if diagnosis.failure in _TRANSPORT:
        diagnosis = replace(diagnosis, state=RunState.BLIND)  # of the way there, so nothing of the run
    decision = decide_alone(diagnosis, snapshot, playbook)
    shown = next(iter(diagnosis.evidence), None)
    failure = diagnosis.failure or _F.UNKNOWN
    warned = _first_warning(snapshot.log)
    if diagnosis.state in _QUIET_STATES and failure is not _F.NAN_LOSS and warned is not None:
        failure, shown = _class_of(warned) or failure, warned
    return Judgement(
        diagnosis=diagnosis,
        failure=failure,
        evidence=shown,
        also=_also(diagnosis, snapshot.log, failure),
        decision=decision,
    )


def _first_warning(log: LogReading) -> Evidence | None:
    return next((m.evidence for m in log.matches if m.evidence.role is Role.PREDICTION), None)


def _class_of(evidence: Evidence) -> FailureClass | None:
    signature = BY_NAME.get(evidence.signature or "")
    return signature.failure if signature is not None else None


def _also(diagnosis: Diagnosis, log: LogReading, failure: FailureClass) -> tuple[FailureClass, ...]:
    """Return the other classes that the same lines show; a doubtful answer names the weak ones too."""
    is_sure = diagnosis.confidence > 0.7
    open_roots = (
        m.failure
        for m in log.matches
        if not m.handled and m.evidence.role in (Role.ROOT, Role.PREDICTION) and not (m.weak and is_sure)
    )
    told = (kind for each in diagnosis.evidence if (kind := _class_of(each)) is not None)
    found = dict.fromkeys(each for each in (*diagnosis.also, *told, *open_roots) if each is not failure)
    return tuple(found)[:MAX_ALSO]
