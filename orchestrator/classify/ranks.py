"""What a job of several ranks says of the one that failed first: which, and how it ended. Pure.

A rank that is killed cannot speak; the trainer's launcher, or the other ranks, write for it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.classify import match
from orchestrator.classify.exits import CODES, Cause, signal_words
from orchestrator.classify.text import MAX_TEXT, normalize
from orchestrator.types.failure import Evidence, FailureClass, Role
from orchestrator.types.seen import Present

if TYPE_CHECKING:
    from orchestrator.types.snapshot import LogReading, Snapshot

_F = FailureClass

SIGNATURE = "failed_first"
_FIRST = re.compile(r"rank (-?\d+) \(([\w-]+)\) failed first: (.+)")
_KILLED = re.compile(r"^process \d+: killed by (SIG[A-Z0-9]+|signal \d+)")
_LEFT = re.compile(r"^process \d+: exit code (\d+)")
_GONE = re.compile(r"^process \d+ is gone")
_UNHEARD = re.compile(r"^not heard of for|^the store that its node holds is gone")
_EXCEPTION = "RankDied"
# How a peer's death looks from another rank, or true of almost every death.
_ECHOES = frozenset({_F.PYTHON_EXCEPTION, _F.NCCL_ERROR, _F.NCCL_TIMEOUT, _F.HANG, _F.SIGNAL_EXIT})
_VAGUE = ("died_of_signal", "traceback_cut")


def is_spoken_for(snapshot: Snapshot) -> bool:
    """Whether error.json was written for a rank that could not do it itself."""
    words = snapshot.last_words
    return isinstance(words, Present) and words.value.exception.rpartition(".")[2] == _EXCEPTION


def first_failure(snapshot: Snapshot) -> Cause | None:
    """Return how the rank that failed first ended, by error.json or else by the log; None if nothing says."""
    told = _told(snapshot.log)
    if not is_spoken_for(snapshot) or not isinstance(snapshot.last_words, Present):
        return _cause(told) if told is not None else None
    words = snapshot.last_words.value
    said = Evidence(source="error.json", text=words.message[:MAX_TEXT], signature=SIGNATURE, rank=words.rank)
    cause = _cause(said)
    if cause is None or told is None or words.message not in told.text:
        return cause
    # The same sentence in the log: its line and offset are the better proof for a person.
    return replace(cause, root=replace(told, role=Role.ROOT, rank=cause.root.rank), evidence=(said,))


def explain_death(died: Cause, logged: Cause | None) -> Cause:
    """Return the cause, given what the log's own root is: the rank's word on its death, not its peers'."""
    if logged is None:
        return died
    is_vague = logged.root.signature in _VAGUE
    if logged.failure is _F.SIGNAL_EXIT and died.failure is _F.SIGNAL_EXIT:
        if died.mark == "rank vanished":  # a launcher's table knows the signal
            return replace(logged, evidence=(died.root, *died.evidence), who=died.who)
        return replace(died, evidence=(*died.evidence, logged.root))
    # The leader's lines carry no rank.
    is_own = logged.root.rank == died.root.rank or (logged.root.rank is None and died.root.rank == 0)
    if is_own and not is_vague:
        return replace(logged, evidence=(died.root, *died.evidence), who=died.who)
    if logged.failure not in _ECHOES:
        who = died.who if logged.failure is _F.OOM_HOST else ""
        return replace(logged, evidence=(died.root, *died.evidence), who=who)
    return died


def _told(log: LogReading) -> Evidence | None:
    """The line that says it best: the launcher's, who knows the signal, else the first."""
    lines = [m.evidence for m in log.matches if m.evidence.signature == SIGNATURE]
    return next((line for line in lines if "killed by" in line.text), next(iter(lines), None))


def _cause(said: Evidence) -> Cause | None:
    found = _FIRST.search(said.text)
    if found is None:
        return None
    number, role, message = int(found[1]), found[2], found[3]
    root = replace(said, role=Role.ROOT, rank=number if number >= 0 else None)
    who = f"rank {number} ({role})" if number >= 0 else f"the {role}"
    failure, words, mark, confidence = _read(message)
    return Cause(failure=failure, root=root, words=words, mark=mark, confidence=confidence, who=who)


def _read(message: str) -> tuple[FailureClass, str, str, float]:
    """Return class, words, what makes the fingerprint, and confidence, as a lone trainer's end would give."""
    if (killed := _KILLED.search(message)) is not None:
        failure = _F.KILLED_BY_USER if killed[1] == "SIGINT" else _F.SIGNAL_EXIT
        return failure, signal_words(killed[1]), f"ended by {killed[1].lower()}", 0.9
    if (left := _LEFT.search(message)) is not None:
        unknown = (_F.UNKNOWN, f"exit code {left[1]}, and nothing in its log says why")
        failure, words = CODES.get(int(left[1]), unknown)
        return failure, words, "exit code <n>", 0.3 if failure is _F.UNKNOWN else 0.9
    if _GONE.search(message):
        words = "vanished: its process is gone, and nobody saw how it ended"
        return _F.SIGNAL_EXIT, words, "rank vanished", 0.5
    if _UNHEARD.search(message):
        return _F.NCCL_ERROR, "its node is silent: switched off, or cut off", "rank not heard of", 0.5
    # An exception of a rank whose own log is not this one.
    return match.match_exception(message).failure, "", normalize(message), 0.7
