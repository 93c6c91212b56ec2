"""Reads a transcript: what an attempt left behind, and what must be said of it. A new failure, a new file."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from orchestrator.classify import Limits, LogScanner, diagnose, diagnose_pane
from orchestrator.types.seen import (
    Absent,
    Blind,
    ExitRecord,
    Heartbeat,
    HostLine,
    LastWords,
    Liveness,
    Phase,
    Present,
    Reading,
)
from orchestrator.types.snapshot import Snapshot

if TYPE_CHECKING:
    from orchestrator.types.failure import Diagnosis

FOLDER = Path(__file__).parent
NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=timezone.utc)
KEYS = {
    *("says", "log", "exit", "last_words", "result", "kind", "heartbeat", "liveness"),
    *("container", "container_restarted", "stop_by", "host_lines", "expect", "pane"),
}
EXPECTED = {"state", "failure", "root", "rank", "cascade", "warning", "summary"}


@dataclass(frozen=True)
class Transcript:
    """One case of one folder; the folder is the class that it is about, firing or quiet."""

    about: str
    name: str
    data: dict[str, Any]

    @property
    def is_firing(self) -> bool:
        """The diagnosis must be the folder's class."""
        return bool(self.data["expect"]["failure"] == self.about)


def read_all() -> list[Transcript]:
    """Return every transcript, checked for unknown keys: a misspelt expectation would never fail."""
    found = []
    for path in sorted(FOLDER.glob("*/*.yaml")):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        unknown = (set(data) - KEYS) | (set(data["expect"]) - EXPECTED)
        assert not unknown, f"{path}: unknown keys {sorted(unknown)}"
        assert {"state", "failure"} <= set(data["expect"]), f"{path}: expect needs state and failure"
        found.append(Transcript(path.parent.name, path.stem, data))
    return found


def judge(data: dict[str, Any], *, chunk: int = 1 << 16) -> Diagnosis:
    """Return the diagnosis of a transcript whose log arrives in chunks of `chunk` bytes."""
    seen = snapshot(data, chunk=chunk)
    if data.get("pane"):
        record = seen.exit.value if isinstance(seen.exit, Present) else None
        return diagnose_pane(seen.log, is_dead=False, exit_record=record)
    return diagnose(seen, Limits())


def snapshot(data: dict[str, Any], *, chunk: int = 1 << 16) -> Snapshot:
    """Return what would have been observed."""
    log = str(data.get("log", "")).encode("utf-8")
    scanner = LogScanner(truncated=bool(data.get("pane")))
    for start in range(0, len(log), chunk):
        scanner.feed(log[start : start + chunk], start)
    beat = data.get("heartbeat")
    silent_s = beat.pop("silent_s", 0.5) if isinstance(beat := dict(beat) if beat else None, dict) else 0.5
    return Snapshot(
        now=NOW,
        run="dflash",
        attempt=1,
        liveness=_liveness(data.get("liveness", "gone" if "exit" in data else "alive")),
        heartbeat=Present(_heartbeat(beat)) if beat else Absent(),
        exit=_exit(data.get("exit")),
        last_words=Present(LastWords(**data["last_words"])) if "last_words" in data else Absent(),
        result=Present({}) if data.get("result") else Absent(),
        log=scanner.reading(),
        gpus=Absent(),
        stop_by=data.get("stop_by"),
        started_at=NOW - timedelta(hours=1),
        heartbeat_seen_at=NOW - timedelta(seconds=silent_s) if beat else None,
        container=data.get("container", "running"),
        container_restarted=bool(data.get("container_restarted")),
        kind=data.get("kind", "trainer"),
        host_lines=tuple(HostLine(text, NOW) for text in data.get("host_lines", ())),
    )


def _liveness(word: str) -> Reading[Liveness]:
    if word == "blind":
        return Blind("connection lost")
    is_alive = word in ("alive", "unsupervised")
    supervisor = word == "alive"
    pids = (101, 102) if is_alive else ()
    return Present(Liveness(lock_held=is_alive, pids=pids, supervisor=supervisor, session=True))


def _exit(record: dict[str, int] | None) -> Reading[ExitRecord]:
    if record is None:
        return Absent()
    code, signal = record.get("code"), record.get("signal")
    return Present(ExitRecord(code=code, signal=signal, at=NOW, duration_s=60.0))


def _heartbeat(beat: dict[str, Any]) -> Heartbeat:
    return Heartbeat(**{"at": NOW, "step": 40, **beat, "phase": Phase(beat.get("phase", "train"))})
