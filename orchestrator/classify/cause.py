"""Why an attempt died, from everything that could know: its last words, its log, its exit, its host. Pure."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.classify import match, ranks
from orchestrator.classify.exits import Cause, exit_signal, from_exit, logged_signal, signal_words
from orchestrator.classify.hostside import ask_host
from orchestrator.classify.text import MAX_TEXT
from orchestrator.types import (
    Absent,
    Blind,
    Evidence,
    FailureClass,
    LastWords,
    LogMatch,
    LogReading,
    Present,
    Role,
    Snapshot,
)

_F = FailureClass

_KINDS: dict[str, FailureClass] = {
    "dense_attention_refused": _F.OOM_DENSE_FALLBACK,
    "config_invalid": _F.CONFIG_ERROR,
    "checkpoint_corrupt": _F.IO_ERROR,
    "data_invalid": _F.IO_ERROR,
    "non_finite": _F.NAN_LOSS,
    "interrupted": _F.INTERRUPTED,
}
_LAST = ("died_of_signal", "traceback_cut")  # true of almost every death, so they explain none


def find_cause(snapshot: Snapshot) -> Cause:
    """Return why the attempt ended: last words, first root in the log, signal or exit code, in that order."""
    log = snapshot.log
    spoken = None if ranks.is_spoken_for(snapshot) else _from_last_words(snapshot.last_words)
    logged = _from_log(log)
    if spoken is None and logged is not None and _is_mere_mention(logged, snapshot):
        logged = None
    died = ranks.first_failure(snapshot) if spoken is None else None
    known = ranks.explain_death(died, logged) if died is not None else _prefer(spoken, logged)
    cause = known or _from_survived(snapshot) or from_exit(snapshot)
    cause = _explain_signal(_explain_dense(cause, log))
    cause = ask_host(cause, snapshot)
    return replace(cause, cascades=_cascades(cause, log))


def log_cause(log: LogReading) -> Cause | None:
    """Return the root that the log alone shows, or None."""
    logged = _from_log(log)
    return _explain_dense(logged, log) if logged is not None else None


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


def _from_log(log: LogReading) -> Cause | None:
    """Return the first root that was not survived; a weak one only where nothing better is."""
    open_matches = [
        m for m in log.matches if not m.handled and m.evidence.role in (Role.ROOT, Role.CONFIRMATION)
    ]
    strong = [m for m in open_matches if not m.weak and m.evidence.role is Role.ROOT]
    if strong:
        first = strong[0]
        generic = first.failure is _F.PYTHON_EXCEPTION
        return Cause(
            failure=first.failure, root=first.evidence, confidence=_certainty(first, generic=generic)
        )
    weak = sorted(open_matches, key=lambda m: (m.evidence.signature in _LAST, m.evidence.offset or 0))
    limit = _first(log, "recompile_limit_hit")
    if weak and weak[0].evidence.signature == "traceback_cut" and limit is not None:
        known = (weak[0].evidence,)
        return Cause(failure=_F.RECOMPILE_LIMIT, root=limit, evidence=known, confidence=0.4)
    if weak:
        return Cause(failure=weak[0].failure, root=weak[0].evidence, confidence=0.7)
    return None


def _certainty(match: LogMatch, *, generic: bool) -> float:
    if "tracing" in match.hints and match.failure is _F.FX_TRACE_RACE:
        return 0.6  # the trace is in this very thread: more likely a misuse that repeats than a race
    return 0.85 if generic else 0.95


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
    signature = match.BY_NAME[logged.root.signature or ""]
    return logged.confidence <= 0.7 and not signature.weak and logged.root.role is Role.ROOT


def _from_survived(snapshot: Snapshot) -> Cause | None:
    """Return the last traceback of a failed attempt, though steps were printed after it.

    A thread may have died of it while others went on.
    """
    is_failure = isinstance(snapshot.exit, Present) and snapshot.exit.value.code == 1
    tracebacks = [m for m in snapshot.log.matches if m.is_traceback and m.evidence.role is Role.ROOT]
    survived = [m for m in tracebacks if m.handled]
    if not is_failure or not survived:
        return None
    return Cause(failure=survived[-1].failure, root=survived[-1].evidence, confidence=0.4)


def _explain_dense(cause: Cause, log: LogReading) -> Cause:
    """Put an out-of-memory after a dense fallback behind its cause: the recompile limit, or the fallback."""
    warned = _first(log, "flex_unfused")
    limit = _first(log, "recompile_limit_hit")
    if cause.failure is _F.OOM_CUDA and warned is None:
        return cause
    if cause.failure not in (_F.OOM_CUDA, _F.OOM_DENSE_FALLBACK):
        return cause
    # With or without the warnings in view it is the same cause, so the fingerprint is made of neither line.
    dense = replace(cause, failure=_F.OOM_DENSE_FALLBACK, mark="dense attention")
    known = tuple(e for e in (limit, warned) if e is not None)
    if not known:
        return dense
    words = "attention fell back to dense after the recompile limit" if limit is not None else ""
    evidence = (*known[1:], *cause.evidence)
    return replace(
        dense, root=known[0], words=words, evidence=evidence, cascades=(cause.root,), confidence=0.95
    )


def _explain_signal(cause: Cause) -> Cause:
    """Say what a launcher's line about a signal means, and fingerprint it as an exit record would be."""
    signal = logged_signal(cause.root.text) if cause.root.signature == "died_of_signal" else None
    if signal is None:
        return cause
    return replace(cause, words=signal_words(signal), mark=f"ended by {signal.lower()}")


def _first(log: LogReading, name: str) -> Evidence | None:
    return next((m.evidence for m in log.matches if m.evidence.signature == name), None)


def _cascades(cause: Cause, log: LogReading) -> tuple[Evidence, ...]:
    """Everything that followed from the cause: later roots, victims in other ranks, launchers' tables."""
    shown = {cause.root, *cause.evidence, *cause.cascades}
    rest = (
        m.evidence
        for m in log.matches
        if not m.handled and m.evidence not in shown and m.evidence.role is not Role.PREDICTION
    )
    return tuple(replace(e, role=Role.CASCADE) for e in (*cause.cascades, *rest))[:20]
