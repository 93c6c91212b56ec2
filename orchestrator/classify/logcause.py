"""Why an attempt died, from its log alone: the first root that was not survived, its echoes apart. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.classify import match
from orchestrator.classify.classes import Domain, domain
from orchestrator.classify.exits import Cause, logged_signal, signal_words
from orchestrator.types.failure import Evidence, FailureClass, Role

if TYPE_CHECKING:
    from orchestrator.types.snapshot import LogMatch, LogReading

_F = FailureClass

HARDWARE = frozenset({_F.GPU_LOST, _F.GPU_ECC, _F.GPU_NVLINK})
# True of almost every death, so they explain none.
_LAST = ("cuda_check_frames", "died_of_signal", "loader_exited", "traceback_cut", "caught_in_worker")
_SURE, _LIKELY, _FAINT = 0.95, 0.7, 0.4
MAX_PROOFS = 6
CUT_ATTENTION = (
    "a crash in the draft model's attention; the exception line is cut off; "
    "likely fx_trace_race or an attention OOM"
)
_CUT_DENSE = (
    "a crash in the dense path of attention, which no compiled run enters; the exception line is cut off; "
    "likely an attention OOM"
)
_CUT = "a crash whose exception line is cut off"


def from_log(log: LogReading) -> Cause | None:
    """Return the first root that was not survived; a weak one only where nothing better is."""
    matches = [m for m in log.matches if not m.handled and not is_of_the_way(m)]
    roots = [m for m in matches if m.evidence.role in (Role.ROOT, Role.CONFIRMATION)]
    cards = [m for m in roots if m.failure in HARDWARE]
    strong = [m for m in roots if not m.weak]
    if cards or strong:
        first = (cards or strong)[0]
        return _with_proofs(_cause(first, _certainty(first)), roots)
    weak = sorted(roots, key=lambda m: (_vagueness(m), m.evidence.offset or 0))
    if weak:
        return _with_proofs(_from_weak(weak[0], log), roots)
    return _from_echoes(matches, log)


def is_of_the_way(found: LogMatch) -> bool:
    """Whether ssh, pct or tmux speak: of the way to the run, not of the run."""
    return domain(found.failure) is Domain.TRANSPORT


def _cause(found: LogMatch, confidence: float) -> Cause:
    return Cause(failure=found.failure, root=found.evidence, confidence=confidence)


def _vagueness(found: LogMatch) -> int:
    name = found.evidence.signature
    return _LAST.index(name) + 1 if name in _LAST else 0


def _certainty(found: LogMatch) -> float:
    if "tracing" in found.hints and found.failure is _F.FX_TRACE_RACE:
        return 0.6  # the trace is in this very thread: more likely a misuse that repeats than a race
    return 0.85 if found.failure is _F.PYTHON_EXCEPTION else _SURE


def _from_weak(found: LogMatch, log: LogReading) -> Cause:
    name = found.evidence.signature
    if name not in ("traceback_cut", "fx_frames"):
        return _cause(found, _FAINT if name == "cuda_check_frames" else _LIKELY)
    limit = first(log, "recompile_limit_hit")
    if name == "traceback_cut" and limit is not None:
        return Cause(failure=_F.RECOMPILE_LIMIT, root=limit, evidence=(found.evidence,), confidence=_FAINT)
    if "recompiling" in found.hints:
        also = (_F.COMPILE_ERROR, _F.FX_TRACE_RACE)
        cut = replace(_cause(found, _FAINT), failure=_F.RECOMPILE_LIMIT, also=also)
        return replace(cut, words="a crash where a call is compiled anew; the exception line is cut off")
    if "dense" in found.hints:
        cut = replace(_cause(found, _FAINT), failure=_F.OOM_DENSE_FALLBACK, words=_CUT_DENSE)
        return replace(cut, also=(_F.OOM_CUDA, _F.FX_TRACE_RACE), mark="dense attention, cut off")
    if "attention" in found.hints:
        cut = replace(_cause(found, _FAINT), failure=_F.FX_TRACE_RACE, words=CUT_ATTENTION)
        return replace(cut, also=(_F.OOM_DENSE_FALLBACK, _F.OOM_CUDA), mark="attention, cut off")
    if name == "fx_frames":
        return replace(_cause(found, _FAINT), words=f"{_CUT}; its frames are those of fx_trace_race")
    return replace(_cause(found, _FAINT), words=_CUT)


def from_survived(log: LogReading) -> Cause | None:
    """Return the last traceback of a failed attempt, though steps were printed after it.

    A thread may have died of it while others went on.
    """
    tracebacks = [m for m in log.matches if m.is_traceback and m.evidence.role is Role.ROOT]
    survived = [m for m in tracebacks if m.handled]
    return _cause(survived[-1], _FAINT) if survived else None


def _barely_survived(log: LogReading) -> LogMatch | None:
    """The last traceback, if one step at most came after it: a bar is drawn once more at the end."""
    raised = [m for m in log.matches if m.is_traceback and m.handled and m.evidence.role is Role.ROOT]
    if not raised or log.last_step is None or raised[-1].last_step_before is None:
        return None
    return raised[-1] if 0 <= log.last_step - raised[-1].last_step_before <= 1 else None


def _from_echoes(matches: list[LogMatch], log: LogReading) -> Cause | None:
    """A launcher's table, or a peer that is gone: what is seen of a failure whose own words are not."""
    tables = [m for m in matches if m.failure is _F.TORCHRUN_WRAPPER]
    if not tables:
        return None
    if (latest := _barely_survived(log)) is not None:
        return _cause(latest, _LIKELY)
    rows = [m for m in tables if m.evidence.signature == "launcher_row"]
    root = (rows[-1:] or tables)[0].evidence  # the table ends with the rank that failed first
    words = "a rank failed, and only the launcher's words are to be seen; read more of the log"
    return Cause(failure=_F.TORCHRUN_WRAPPER, root=root, words=words, confidence=0.5)


def _with_proofs(cause: Cause, roots: list[LogMatch]) -> Cause:
    """Put the other lines that show the same class beside the first."""
    others = (m.evidence for m in roots if m.failure is cause.failure and m.evidence != cause.root)
    return replace(cause, evidence=(*cause.evidence, *others)[:MAX_PROOFS])


def explain_dense(cause: Cause, log: LogReading) -> Cause:
    """Put an out-of-memory after a dense fallback behind its cause: the recompile limit, or the fallback."""
    warned = first(log, "flex_unfused")
    limit = first(log, "recompile_limit_hit")
    if cause.failure in (_F.OOM_CUDA, _F.OOM_FRAGMENTATION) and warned is None:
        return cause
    if cause.failure not in (_F.OOM_CUDA, _F.OOM_FRAGMENTATION, _F.OOM_DENSE_FALLBACK):
        return cause
    # With or without the warnings in view it is the same cause, so the fingerprint is made of neither line.
    dense = replace(cause, failure=_F.OOM_DENSE_FALLBACK, mark="dense attention")
    known = tuple(e for e in (limit, warned) if e is not None)
    if not known:
        return dense
    words = "attention fell back to dense after the recompile limit" if limit is not None else ""
    evidence = (*known[1:], *cause.evidence)
    return replace(
        dense, root=known[0], words=words, evidence=evidence, cascades=(cause.root,), confidence=_SURE
    )


def explain_signal(cause: Cause) -> Cause:
    """Say what a launcher's line about a signal means, and fingerprint it as an exit record would be."""
    signal = logged_signal(cause.root.text) if cause.root.signature == "died_of_signal" else None
    if signal is None:
        return cause
    return replace(cause, words=signal_words(signal), mark=f"ended by {signal.lower()}")


def first(log: LogReading, name: str) -> Evidence | None:
    """Return the first line that shows the signature, survived or not."""
    return next((m.evidence for m in log.matches if m.evidence.signature == name), None)


def is_weak_by_nature(evidence: Evidence) -> bool:
    """Whether the catalogue itself holds the signature for weak."""
    return match.BY_NAME[evidence.signature or ""].weak
