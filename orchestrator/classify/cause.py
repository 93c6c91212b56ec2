"""Why an attempt died, from everything that could know: its last words, its log, its exit, its host. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.classify import match
from orchestrator.classify.text import MAX_TEXT, normalize
from orchestrator.types import (
    Absent,
    Blind,
    Evidence,
    ExitRecord,
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
# The exit codes that our trainer keeps for itself.
_CODES: dict[int, tuple[FailureClass, str]] = {
    65: (_F.IO_ERROR, "the data cannot be used"),
    66: (_F.IO_ERROR, "no checkpoint can be read back"),
    70: (_F.NAN_LOSS, "the loss is no finite number"),
    75: (_F.INTERRUPTED, "it was asked to stop from outside and wrote a checkpoint"),
    78: (_F.CONFIG_ERROR, "the configuration is invalid"),
}
_LAST = ("died_of_signal", "traceback_cut")  # true of almost every death, so they explain none
_SIGNALS = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE"}
_SIGNALS |= {9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM"}
_SIGNAL_WORDS = {
    "SIGKILL": "killed from outside (SIGKILL); a person or the OOM killer",
    "SIGTERM": "asked to end from outside (SIGTERM)",
    "SIGHUP": "its terminal was closed (SIGHUP)",
    "SIGINT": "interrupted by hand (SIGINT)",
    "SIGBUS": "a bus error (SIGBUS); most often /dev/shm is full",
}


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The failure, the line that shows it first, what else shows it, and the consequences apart."""

    failure: FailureClass
    root: Evidence
    words: str = ""
    evidence: tuple[Evidence, ...] = ()
    cascades: tuple[Evidence, ...] = ()
    confidence: float = 0.9

    @property
    def fingerprint(self) -> str:
        """The same cause gives the same text in every attempt."""
        return f"{self.failure.value}: {normalize(self.root.text)}"


def find_cause(snapshot: Snapshot) -> Cause:
    """Return why the attempt ended. The order: last words, first root in the log, signal or exit code, nothing."""
    log = snapshot.log
    spoken = _from_last_words(snapshot.last_words)
    logged = _from_log(log)
    cause = _prefer(spoken, logged) or _from_survived(snapshot) or _from_exit(snapshot)
    cause = _explain_dense(cause, log)
    cause = _confirm_by_host(cause, snapshot)
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
    """The first root that was not survived; a weak one, or a mere consequence, only where nothing better is."""
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
    """The trainer's own word counts, unless it is a general or a consequential one and the log has the specific root."""
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


def _from_survived(snapshot: Snapshot) -> Cause | None:
    """An exit code of failure without any open root: the last traceback, though something printed steps after it.

    A thread may have died of it while others went on.
    """
    is_failure = isinstance(snapshot.exit, Present) and snapshot.exit.value.code == 1
    survived = [m for m in snapshot.log.matches if m.handled and m.is_traceback and m.evidence.role is Role.ROOT]
    if not is_failure or not survived:
        return None
    return Cause(failure=survived[-1].failure, root=survived[-1].evidence, confidence=0.4)


def _from_exit(snapshot: Snapshot) -> Cause:
    if not isinstance(snapshot.exit, Present):
        text = "no exit record: the supervisor and every process of the run are gone"
        root = Evidence(source="exit.json", text=text, signature="vanished")
        return Cause(failure=_F.SIGNAL_EXIT, root=root, words=f"vanished: {text}", confidence=0.5)
    record = snapshot.exit.value
    signal = exit_signal(record)
    if signal is not None:
        words = _SIGNAL_WORDS.get(signal, f"ended by {signal}")
        root = Evidence(source="exit.json", text=f"ended by {signal}", signature=signal.lower())
        failure = _F.KILLED_BY_USER if signal == "SIGINT" else _F.SIGNAL_EXIT
        return Cause(failure=failure, root=root, words=words, confidence=0.8)
    if record.error is not None:
        root = Evidence(source="exit.json", text=record.error[:MAX_TEXT], signature="start_error")
        return Cause(
            failure=_F.CONFIG_ERROR, root=root, words=f"could not be started: {record.error}", confidence=0.8
        )
    return _from_code(record, snapshot.log)


def _from_code(record: ExitRecord, log: LogReading) -> Cause:
    root = Evidence(source="exit.json", text=f"exit code {record.code}", signature="exit_code")
    if record.code in _CODES:
        failure, words = _CODES[record.code]
        return Cause(failure=failure, root=root, words=words, confidence=0.9)
    if record.code == 0:
        return Cause(
            failure=_F.UNKNOWN, root=root, words="it exited with 0 but left no result", confidence=0.5
        )
    if record.code in (126, 127):
        return Cause(failure=_F.CONFIG_ERROR, root=root, words="its command cannot be run", confidence=0.8)
    words = f"exit code {record.code}, and nothing in its log says why"
    if log.truncated:
        words = f"exit code {record.code}; only the last lines were seen, read more of the log"
    return Cause(failure=_F.UNKNOWN, root=root, words=words, confidence=0.3)


def exit_signal(record: ExitRecord) -> str | None:
    """Return the name of the signal that ended the process, also where a shell told it as 128 + n."""
    number = record.signal
    if number is None and record.code is not None and record.code - 128 in _SIGNALS:
        number = record.code - 128
    if number is None:
        return None
    return _SIGNALS.get(number, f"signal {number}")


def _explain_dense(cause: Cause, log: LogReading) -> Cause:
    """An out-of-memory after a dense fallback is the fallback's; the recompile limit before it is the cause."""
    warned = _first(log, "flex_unfused")
    limit = _first(log, "recompile_limit_hit")
    is_oom = cause.failure in (_F.OOM_CUDA, _F.OOM_DENSE_FALLBACK)
    if not is_oom or (cause.failure is _F.OOM_CUDA and warned is None):
        return cause
    known = tuple(e for e in (limit, warned) if e is not None)
    if limit is None:
        return replace(cause, failure=_F.OOM_DENSE_FALLBACK, evidence=(*known, *cause.evidence))
    # The out-of-memory stays the line that the fingerprint is made of, and is listed after its cause.
    return replace(cause, failure=_F.OOM_DENSE_FALLBACK, evidence=(*known, *cause.evidence), confidence=0.95)


def _confirm_by_host(cause: Cause, snapshot: Snapshot) -> Cause:
    """A SIGKILL is the OOM killer's only when the kernel says so."""
    killer = next(
        (line for line in snapshot.host_lines if match.BY_NAME["oom_killer"].pattern.search(line)), None
    )
    is_kill = (
        cause.failure is _F.SIGNAL_EXIT and "KILL" in f"{cause.root.signature} {cause.root.text}".upper()
    )
    said = _first(snapshot.log, "oom_killer")
    if not is_kill or (killer is None and said is None):
        return cause
    proof = said or Evidence(
        source="host", text=(killer or "")[:MAX_TEXT], role=Role.CONFIRMATION, signature="oom_killer"
    )
    words = "the kernel's OOM killer ended it: the container ran out of memory"
    return replace(
        cause, failure=_F.OOM_HOST, words=words, evidence=(proof, *cause.evidence), confidence=0.95
    )


def _first(log: LogReading, name: str) -> Evidence | None:
    return next((m.evidence for m in log.matches if m.evidence.signature == name), None)


def _cascades(cause: Cause, log: LogReading) -> tuple[Evidence, ...]:
    """Everything that followed from the cause: later roots, victims in other ranks, launchers' tables."""
    shown = {cause.root, *cause.evidence}
    rest = (
        m.evidence
        for m in log.matches
        if not m.handled and m.evidence not in shown and m.evidence.role is not Role.PREDICTION
    )
    return tuple(replace(e, role=Role.CASCADE) for e in rest)[:20]
