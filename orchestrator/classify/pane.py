"""What the last lines of a pane or of a bare log tell. Pure; it says less than a record does, and says so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.classify import match
from orchestrator.classify.cause import log_cause
from orchestrator.classify.exits import Cause, exit_signal, from_record
from orchestrator.classify.logcause import (
    explain_signal,
    from_survived,
    is_of_the_way,
    is_weak_by_nature,
)
from orchestrator.classify.panelines import cut_short, ends_in_prompt, last_word, spinning
from orchestrator.classify.titles import title
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, Role, RunState

if TYPE_CHECKING:
    from orchestrator.types.seen import ExitRecord
    from orchestrator.types.snapshot import LogMatch, LogReading

_F = FailureClass

PANE_CONFIDENCE = 0.7
SEE_MORE = "to see the rest: dflashctl logs RUN, or tmux capture-pane -pJ -S - -t SESSION"

# What goes on after a signal that the shell or the launcher tells of; a person's is left alone.
_BY_HAND = ("SIGINT", "SIGTERM", "SIGHUP")


def diagnose_pane(log: LogReading, *, is_dead: bool, exit_record: ExitRecord | None = None) -> Diagnosis:
    """Return what the last lines show; `is_dead` says that tmux marks the pane dead.

    A shell may outlive the trainer in its pane, so a living pane proves nothing; only the lines do, and the
    exit status where it is known. The words of ssh, pct and tmux say nothing about the run.
    """
    cause = log_cause(log)
    way = _way(log)
    if way is not None and (cause is None or (way.evidence.offset or 0) > (cause.root.offset or 0)):
        return _blind(way)
    if cause is not None and not _is_outlived(cause, log, exit_record):
        return _crashed(_of_pane(cause), log, is_over=is_dead or exit_record is not None)
    lost = next((m for m in log.matches if m.evidence.signature == "nonfinite_loss" and not m.handled), None)
    if lost is not None:
        words = "its losses are no finite numbers"
        return _crashed(Cause(failure=_F.NAN_LOSS, root=lost.evidence, words=words), log, is_over=is_dead)
    if exit_record is not None and not exit_record.is_success:
        return _from_exit(exit_record, log)
    return _without_cause(log, is_dead=is_dead, is_success=exit_record is not None)


def _way(log: LogReading) -> LogMatch | None:
    """Return what ssh, pct or tmux said first that is more than a warning; tmux says last what it did."""
    found = [m for m in log.matches if is_of_the_way(m) and not m.handled]
    same = [m for m in found if m.failure is found[0].failure]
    told = [m for m in same if not match.BY_NAME[m.evidence.signature or ""].generic] or same
    if not told:
        return None
    return told[-1] if told[0].failure is _F.TMUX_ERROR else told[0]


def _blind(way: LogMatch) -> Diagnosis:
    text = f'{title(way.failure)} ("{way.evidence.text[:160]}"); this says nothing about the run'
    return Diagnosis(
        state=RunState.BLIND,
        failure=way.failure,
        summary=text,
        evidence=(way.evidence,),
        confidence=0.9,
        fingerprint=way.failure.value,
    )


def _is_outlived(cause: Cause, log: LogReading, exit_record: ExitRecord | None) -> bool:
    """Whether the exit status contradicts it: a program that ends with 0 got over what it mentions.

    So did one that went on after a thread's traceback and says at its end that it is finished.
    """
    if exit_record is None or not exit_record.is_success:
        return False
    return cause.confidence <= PANE_CONFIDENCE or (_went_on(cause, log) and last_word(log) is not None)


def _of_pane(cause: Cause) -> Cause:
    """Say what a pane cannot tell apart, and let the failure's own line stand for it."""
    cause = explain_signal(cause)
    if cause.failure is _F.OOM_DENSE_FALLBACK and cause.cascades:
        raised, rest = cause.cascades[0], (cause.root, *cause.evidence)
        return replace(cause, root=raised, evidence=rest, cascades=())
    signal = (cause.mark or "").removeprefix("ended by ").upper()
    if cause.failure is _F.SIGNAL_EXIT and signal == "SIGKILL":
        words = "killed (SIGKILL): most likely the OOM killer, else a person; dmesg and memory.events tell"
        return replace(cause, failure=_F.OOM_HOST, also=(_F.SIGNAL_EXIT,), words=words, confidence=0.6)
    if cause.failure is _F.SIGNAL_EXIT and signal in _BY_HAND:
        return replace(cause, failure=_F.KILLED_BY_USER, also=(_F.SIGNAL_EXIT,), confidence=0.6)
    return cause


def _crashed(cause: Cause, log: LogReading, *, is_over: bool) -> Diagnosis:
    is_cut = cause.confidence < 0.5
    more = f"; {SEE_MORE}" if is_cut or cause.failure is _F.TORCHRUN_WRAPPER else ""
    may_go_on = cause.failure is _F.NAN_LOSS or _is_mention(cause) or _went_on(cause, log)
    is_alive = may_go_on and not is_over and not ends_in_prompt(log)
    return Diagnosis(
        state=RunState.UNSUPERVISED if is_alive else RunState.DEAD,
        failure=cause.failure,
        summary=f'the pane shows: {cause.words or title(cause.failure)} ("{cause.root.text[:160]}"){more}',
        evidence=(cause.root, *cause.evidence),
        cascades=cause.cascades,
        confidence=min(cause.confidence, PANE_CONFIDENCE) if log.truncated else cause.confidence,
        fingerprint=cause.fingerprint,
        also=cause.also,
    )


def _is_mention(cause: Cause) -> bool:
    """Whether only a sentence speaks of it, which may be about a try that is made again."""
    is_log = cause.root.source == "log" and cause.root.role is Role.ROOT
    return is_log and 0.5 <= cause.confidence <= PANE_CONFIDENCE and not is_weak_by_nature(cause.root)


def _went_on(cause: Cause, log: LogReading) -> bool:
    """Whether steps were printed after it: of other threads or ranks, which do not heal it, and live."""
    root = next((m for m in log.matches if m.evidence == cause.root), None)
    before = root.last_step_before if root is not None else None
    return before is not None and log.last_step is not None and log.last_step > before


def _from_exit(record: ExitRecord, log: LogReading) -> Diagnosis:
    survived = from_survived(log) if record.code == 1 else None
    cause = survived or cut_short(log) or _warned_of(log) or from_record(record, log)
    signal = exit_signal(record)
    if signal is not None and cause.root.source == "exit.json":
        cause = replace(cause, mark=f"ended by {signal.lower()}")
    found = _crashed(_of_pane(cause), log, is_over=True)
    return replace(found, confidence=min(found.confidence, 0.6))


def _without_cause(log: LogReading, *, is_dead: bool, is_success: bool) -> Diagnosis:
    """Nothing looks like a crash: a warning, a spin, an end, or just a run that goes on."""
    is_over = is_dead or is_success
    at = f", last seen at step {log.last_step}" if log.last_step is not None else ""
    if (warned := _warning(log)) is not None:
        return _quiet(
            RunState.FINISHED if is_success else RunState.HEALTHY,
            warned,
            f"a warning{at}: {title(warned.failure)}",
        )
    if not is_over and (spin := spinning(log)) is not None:
        return replace(spin, summary=f"{spin.summary}{at}")
    if (cut := cut_short(log)) is not None and not is_success:
        return _crashed(cut, log, is_over=is_dead)
    summary = last_word(log)
    if (is_success or summary is not None) and (summary is not None or ends_in_prompt(log)):
        shown = (Evidence(source="pane", text=summary),) if summary is not None else ()
        return Diagnosis(
            state=RunState.FINISHED,
            failure=_F.COMPLETED,
            summary=f"finished{at}",
            evidence=shown,
            confidence=0.6,
        )
    if is_dead:
        text = f"the pane's program has ended, and its lines do not say why{at}; {SEE_MORE}"
        return Diagnosis(state=RunState.DEAD, failure=None, summary=text, confidence=0.5)
    text = f"nothing in the pane looks like a crash{at}"
    if not is_success:
        return Diagnosis(state=RunState.UNSUPERVISED, failure=None, summary=text, confidence=0.5)
    # Nothing says that it is whole; what it survived is a run that went on.
    known = (_F.HEALTHY, _F.COMPLETED) if log.matches else (_F.COMPLETED, _F.HEALTHY)
    return Diagnosis(
        state=RunState.FINISHED,
        failure=known[0],
        also=known[1:],
        summary=f"finished{at}; {text}",
        confidence=0.5,
    )


def _quiet(state: RunState, found: LogMatch, text: str) -> Diagnosis:
    return Diagnosis(
        state=state,
        failure=found.failure,
        summary=f'{text} ("{found.evidence.text[:160]}")',
        evidence=(found.evidence,),
        warnings=(found.evidence,),
        confidence=0.6,
    )


def _warned_of(log: LogReading) -> Cause | None:
    """What was foretold before an end whose own words are not to be seen."""
    warned = _warning(log)
    if warned is None or warned.handled:
        return None
    return Cause(failure=warned.failure, root=warned.evidence, confidence=0.4)


def _warning(log: LogReading) -> LogMatch | None:
    return next((m for m in log.matches if m.evidence.role is Role.PREDICTION), None)
