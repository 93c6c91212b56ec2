"""Why an attempt died, from everything that could know: its last words, its log, its exit, its host. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.classify import match, ranks
from orchestrator.classify.exits import Cause, exit_signal, from_exit
from orchestrator.classify.hostside import ask_host
from orchestrator.classify.logcause import (
    explain_dense,
    explain_signal,
    from_log,
    from_survived,
    is_of_the_way,
    is_weak_by_nature,
)
from orchestrator.classify.text import MAX_TEXT
from orchestrator.types.failure import Evidence, FailureClass, Role
from orchestrator.types.seen import Absent, Blind, LastWords, Present

if TYPE_CHECKING:
    from orchestrator.types.snapshot import LogReading, Snapshot

_F = FailureClass

_KINDS: dict[str, FailureClass] = {
    "dense_attention_refused": _F.OOM_DENSE_FALLBACK,
    "config_invalid": _F.CONFIG_ERROR,
    "checkpoint_corrupt": _F.IO_ERROR,
    "data_invalid": _F.IO_ERROR,
    "non_finite": _F.NAN_LOSS,
    "interrupted": _F.INTERRUPTED,
}


def find_cause(snapshot: Snapshot) -> Cause:
    """Return why the attempt ended: last words, first root in the log, signal or exit code, in that order."""
    log = snapshot.log
    spoken = None if ranks.is_spoken_for(snapshot) else _from_last_words(snapshot.last_words)
    logged = from_log(log)
    if spoken is None and logged is not None and _is_mere_mention(logged, snapshot):
        logged = None
    died = ranks.first_failure(snapshot) if spoken is None else None
    known = ranks.explain_death(died, logged) if died is not None else _prefer(spoken, logged)
    cause = known or _from_survived(snapshot) or from_exit(snapshot)
    cause = explain_signal(explain_dense(cause, log))
    cause = ask_host(cause, snapshot)
    return replace(cause, cascades=_cascades(cause, log))


def log_cause(log: LogReading) -> Cause | None:
    """Return the root that the log alone shows, or None."""
    logged = from_log(log)
    return explain_dense(logged, log) if logged is not None else None


def _from_last_words(reading: Present[LastWords] | Absent | Blind) -> Cause | None:
    if not isinstance(reading, Present):
        return None
    words = reading.value
    text = f"{words.exception}: {words.message}" if words.message else words.exception
    signature = match.match_exception(text, words.traceback)
    known = _KINDS.get(words.kind or "")
    failure = known if known is not None else signature.failure
    root = Evidence(
        source="error.json",
        text=text.split("\n", 1)[0][:MAX_TEXT],
        role=Role.ROOT if known is not None else signature.role,
        signature=words.kind if known is not None else signature.name,
        rank=words.rank,
    )
    return Cause(failure=failure, root=root, confidence=0.98 if failure is not _F.PYTHON_EXCEPTION else 0.9)


def _prefer(spoken: Cause | None, logged: Cause | None) -> Cause | None:
    """Return the trainer's own word, unless it is a vague one and the log has the specific root."""
    if spoken is None or logged is None:
        return spoken or logged
    is_vague = (
        spoken.failure is _F.PYTHON_EXCEPTION or spoken.root.role is Role.CASCADE or spoken.confidence < 0.5
    )
    knows_better = logged.confidence > 0.7 and logged.failure is not _F.PYTHON_EXCEPTION
    if (is_vague or spoken.failure is _F.NCCL_ERROR) and knows_better:
        return replace(logged, evidence=(spoken.root,))
    if logged.failure is spoken.failure:
        # The same thing, seen in the log: its line and offset are the better proof for a person.
        return replace(spoken, root=replace(logged.root, role=Role.ROOT), evidence=(spoken.root,))
    return spoken


def _is_mere_mention(logged: Cause, snapshot: Snapshot) -> bool:
    """True if a sentence in the log speaks of a failure, but the process was ended from outside.

    What the catalogue holds for weak by nature (NCCL, a table of exit codes) may still be why it was ended.
    """
    record = snapshot.exit.value if isinstance(snapshot.exit, Present) else None
    if record is None or exit_signal(record) not in ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT"):
        return False
    is_weak = is_weak_by_nature(logged.root)
    return logged.confidence <= 0.7 and not is_weak and logged.root.role is Role.ROOT


def _from_survived(snapshot: Snapshot) -> Cause | None:
    is_failure = isinstance(snapshot.exit, Present) and snapshot.exit.value.code == 1
    return from_survived(snapshot.log) if is_failure else None


def _cascades(cause: Cause, log: LogReading) -> tuple[Evidence, ...]:
    """Everything that followed from the cause: later roots, victims in other ranks, launchers' tables."""
    shown = {cause.root, *cause.evidence, *cause.cascades}
    rest = (
        m.evidence
        for m in log.matches
        if not m.handled
        and m.evidence not in shown
        and m.evidence.role is not Role.PREDICTION
        and not is_of_the_way(m)
    )
    return tuple(replace(e, role=Role.CASCADE) for e in (*cause.cascades, *rest))[:20]
