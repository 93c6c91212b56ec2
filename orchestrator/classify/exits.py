"""What an exit record alone says about a death, and the value that a cause is. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.classify.text import MAX_TEXT, normalize, read_step
from orchestrator.classify.titles import shorten
from orchestrator.types.failure import Evidence, FailureClass, Role
from orchestrator.types.seen import ExitRecord, Present
from orchestrator.wire import SUPERVISOR_GONE

if TYPE_CHECKING:
    from orchestrator.types.snapshot import LogReading, Snapshot

_F = FailureClass

# The exit codes that our trainer keeps for itself.
CODES: dict[int, tuple[FailureClass, str]] = {
    65: (_F.IO_ERROR, "the data cannot be used"),
    66: (_F.IO_ERROR, "no checkpoint can be read back"),
    70: (_F.NAN_LOSS, "the loss is no finite number"),
    75: (_F.INTERRUPTED, "it was asked to stop from outside and wrote a checkpoint"),
    78: (_F.CONFIG_ERROR, "the configuration is invalid"),
}
PEER_EXIT = 71  # of our trainer's ranks: a consequence, never a root
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
    mark: str | None = None  # what makes the fingerprint where the root line would not
    also: tuple[FailureClass, ...] = ()  # what it may be as well, where the proof is cut off
    who: str = ""  # of several ranks, the one that failed first: "rank 1 (target)"

    @property
    def fingerprint(self) -> str:
        """The same cause gives the same text in every attempt."""
        return f"{self.failure.value}: {self.mark or normalize(self.root.text)}"


def from_exit(snapshot: Snapshot) -> Cause:
    """Return the cause as the exit record tells it, or why there is none: all gone, and nobody said how."""
    if isinstance(snapshot.exit, Present):
        return from_record(snapshot.exit.value, snapshot.log)
    return _vanished("no exit record: the supervisor and every process of the run are gone")


def _vanished(text: str) -> Cause:
    root = Evidence(source="exit.json", text=text, signature="vanished")
    return Cause(failure=_F.SIGNAL_EXIT, root=root, words=f"vanished: {text}", confidence=0.5)


def from_record(record: ExitRecord, log: LogReading) -> Cause:
    """Return the cause as an exit record tells it; `log` says only whether all of it was seen."""
    signal = exit_signal(record)
    if signal is not None:
        words = signal_words(signal)
        root = Evidence(source="exit.json", text=f"ended by {signal}", signature=signal.lower())
        failure = _F.KILLED_BY_USER if signal == "SIGINT" else _F.SIGNAL_EXIT
        return Cause(failure=failure, root=root, words=words, confidence=0.8)
    if record.error == SUPERVISOR_GONE:
        return _vanished("no exit record of its supervisor, which was gone before it")
    if record.error is not None:
        root = Evidence(source="exit.json", text=record.error[:MAX_TEXT], signature="start_error")
        return Cause(
            failure=_F.CONFIG_ERROR, root=root, words=f"could not be started: {record.error}", confidence=0.8
        )
    return _from_code(record, log)


def _from_code(record: ExitRecord, log: LogReading) -> Cause:
    root = Evidence(source="exit.json", text=f"exit code {record.code}", signature="exit_code")
    if record.code in CODES:
        failure, words = CODES[record.code]
        return Cause(failure=failure, root=root, words=words, confidence=0.9)
    if record.code == 0:
        return Cause(
            failure=_F.UNKNOWN, root=root, words="it exited with 0 but left no result", confidence=0.5
        )
    if record.code == PEER_EXIT:
        words = "it left because another rank failed, and nothing says which"
        return Cause(failure=_F.UNKNOWN, root=replace(root, role=Role.CASCADE), words=words, confidence=0.3)
    if record.code in (126, 127):
        return Cause(failure=_F.CONFIG_ERROR, root=root, words="its command cannot be run", confidence=0.8)
    words = f"exit code {record.code}, and nothing in its log says why"
    gone = [m for m in log.matches if m.is_traceback and not m.handled and m.evidence.role is Role.CASCADE]
    if gone:
        words = f"exit code {record.code}; its exception says that its peer was gone, and nothing says why"
        shown = (gone[-1].evidence,)
        return Cause(failure=_F.UNKNOWN, root=root, words=words, evidence=shown, confidence=0.4)
    if log.truncated:
        words = f"exit code {record.code}; only the last lines were seen, read more of the log"
    last = log.tail[-1].strip() if log.tail else ""
    if last and read_step(last) is None:  # such as `sys.exit("no data.path")`: no rule knows it, a person may
        words += f'; the last line: "{shorten(last)}"'
    return Cause(failure=_F.UNKNOWN, root=root, words=words, confidence=0.3)


_SIGNAL_LINES = (
    (re.compile(r"exitcode\s*: -(\d+)|Signal (\d+) \(|return code = -(\d+)|exited on signal (\d+)"), None),
    (re.compile(r"\bKilled\b|SIGKILL"), 9),
    (re.compile(r"Segmentation fault|SIGSEGV"), 11),
    (re.compile(r"Aborted|terminate called|SIGABRT"), 6),
    (re.compile(r"Bus error|SIGBUS"), 7),
    (re.compile(r"\bTerminated\b|SIGTERM"), 15),
    (re.compile(r"\bHangup\b|SIGHUP"), 1),
)


def logged_signal(text: str) -> str | None:
    """Return the name of the signal that a launcher's or a shell's line tells of."""
    for pattern, number in _SIGNAL_LINES:
        if (found := pattern.search(text)) is not None:
            number = number or int(next(filter(None, found.groups())))
            return _SIGNALS.get(number, f"signal {number}")
    return None


def signal_words(signal: str) -> str:
    """Return what a signal's name means to a person."""
    return _SIGNAL_WORDS.get(signal, f"ended by {signal}")


def exit_signal(record: ExitRecord) -> str | None:
    """Return the name of the signal that ended the process, also where a shell told it as 128 + n."""
    number = record.signal
    if number is None and record.code is not None and record.code - 128 in _SIGNALS:
        number = record.code - 128
    if number is None:
        return None
    return _SIGNALS.get(number, f"signal {number}")
