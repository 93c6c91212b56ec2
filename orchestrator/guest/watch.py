"""`watch`: looks five times a second and sends what changed, until stdin ends or is silent for 30 s."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.guest import (
    asked,
    clock,
    disk,
    files,
    hello,
    itself,
    link,
    paths,
    processes,
    session,
    watchers,
)
from orchestrator.guest.gpu import GpuFeed
from orchestrator.guest.refusal import Refusal
from orchestrator.guest.runfeed import RunFeed

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator import wire
    from orchestrator.guest.link import Link

INTERVAL_S = 0.2
SOON_S = 0.05
SILENCE_S = 30.0
# If a write to a sleeping near side blocks, the alarm ends us.
BLOCKED_S = 40.0
SCAN_EVERY_S = 1.0
# A scan may take this share of the time: on a container of a thousand processes they come more seldom.
SCAN_SHARE = 0.005
TAGS_EVERY_S = 5.0
DISK_EVERY_S = 5.0
WATCHERS_EVERY_S = 2.0
FILE_EVERY_S = 2.0
# A forecast wants some sizes before the disk is full, whatever its size and however fast the log grows.
DISK_TOLD_S = 60.0
DISK_STEP_BYTES = 64 << 20
DISK_LEAST_BYTES = 1 << 20
DISK_STEP_SHARE = 100


@dataclass
class Watch:
    """One container's watch."""

    state: Path
    link: Link
    wants_all: bool
    gpus: GpuFeed | None
    presence: watchers.Presence
    runs: dict[str, RunFeed] = field(default_factory=dict)
    heard_at: float = 0.0
    _tags: set[str] | None = None  # None: tmux could not be asked yet
    _tags_due: float = 0.0
    _scan_due: float = 0.0
    _disk_due: float = 0.0
    _disk_told_at: float = 0.0
    _disk: dict[str, Any] = field(default_factory=dict)
    _runs_stamp: files.Stamp | None = None
    _watchers: list[dict[str, Any]] | None = None
    _watchers_due: float = 0.0
    _file_due: float = 0.0

    def run(self, interval_s: float) -> str:
        """Send until the end; returns why it ended."""
        self.heard()
        while True:
            reason = self.turn()
            if reason is None:
                reason = self._without_file() or self.listen(self._pause_s(interval_s))
            if reason is not None:
                return reason

    def _without_file(self) -> str | None:
        """Without its file no probe of the GPUs starts: the near side sends it again when it comes back."""
        if clock.ticking() < self._file_due:
            return None
        self._file_due = clock.ticking() + FILE_EVERY_S
        return "the guest's own file is gone" if itself.is_gone() else None

    def _pause_s(self, interval_s: float) -> float:
        """No pause while there is more to send, a short one while something is about to change."""
        if any(feed.has_more for feed in self.runs.values()):
            return 0.0
        return min(interval_s, SOON_S) if any(feed.wants_scan for feed in self.runs.values()) else interval_s

    def turn(self) -> str | None:
        """One look at everything; a reason if stdin ended meanwhile."""
        if self.wants_all:
            self._look_for_runs()
        table = self._table()
        for feed in list(self.runs.values()):
            for kind, fields in feed.turn(table, self._tags):
                self.link.send(kind, fields)
            reason = self.listen(0.0)  # a slow line must not look like a silent one
            if reason is not None:
                return reason
        if self.gpus is not None:
            reading = self.gpus.news()
            if reading is not None:
                self.link.send("gpu", reading)
        self._send_disk()
        self._send_watchers()
        return None

    def listen(self, timeout_s: float) -> str | None:
        """Wait for the next look and answer what comes in; returns why the watch ends, if it does."""
        deadline = clock.ticking() + timeout_s
        while True:
            left_s = max(0.0, deadline - clock.ticking())
            message = self.link.lines.message(left_s)
            if message is None:
                break
            self.heard()
            self._answer(message)
        if self.link.lines.is_ended:
            return "stdin ended"
        if clock.ticking() - self.heard_at > SILENCE_S:
            return f"no line for {SILENCE_S:.0f} s"
        return None

    def heard(self) -> None:
        """The near side lives."""
        self.heard_at = clock.ticking()
        link.end_if_silent(BLOCKED_S)

    def _answer(self, message: wire.Message) -> None:
        if message["type"] == "ping":
            self.link.send("pong", {"now": clock.epoch()})
        elif message["type"] == "follow":
            self.follow(paths.checked_name(message.get("run")), message)
        else:
            raise Refusal("bad_request", f'watch: no "{message["type"]}" line is known')

    def follow(self, name: str, where: wire.Message) -> None:
        """Begin (again) with a run at the offsets given."""
        feed = self.runs.setdefault(name, RunFeed(paths.RunDir(self.state, name)))
        attempt = asked.integer(where, "attempt", 0) or None
        log_offset = asked.integer(where, "log_offset", 0, low=-asked.LARGEST)
        feed.follow(attempt, log_offset, asked.integer(where, "metrics_offset", 0))

    def _look_for_runs(self) -> None:
        found = files.stamp(self.state / "runs")
        if found == self._runs_stamp:
            return
        self._runs_stamp = found
        for place in paths.all_runs(self.state):
            if place.name not in self.runs:
                self.follow(place.name, {})

    def _table(self) -> dict[int, processes.Process] | None:
        now = clock.ticking()
        is_due = now >= self._scan_due and not all(feed.is_quiet for feed in self.runs.values())
        if not is_due and not any(feed.wants_scan for feed in self.runs.values()):
            return None
        if now >= self._tags_due or any(feed.wants_scan for feed in self.runs.values()):
            tags = session.tags()
            self._tags = self._tags if tags is None else tags
            self._tags_due = now + TAGS_EVERY_S
        begin = clock.ticking()
        table = processes.scan()
        self._scan_due = begin + max(SCAN_EVERY_S, (clock.ticking() - begin) / SCAN_SHARE)
        return table

    def _send_disk(self) -> None:
        now = clock.ticking()
        if now < self._disk_due:
            return
        self._disk_due = now + DISK_EVERY_S
        logs = {name: feed.run.attempt(n) / "log" for name, feed in self.runs.items() if (n := feed.newest)}
        fields = disk.fields(self.state, logs)
        if fields is None or fields == self._disk:
            return
        if self._has_moved(fields) or now >= self._disk_told_at + DISK_TOLD_S:
            self._disk, self._disk_told_at = fields, now
            self.link.send("disk", fields)

    def _send_watchers(self) -> None:
        if clock.ticking() < self._watchers_due:
            return
        self._watchers_due = clock.ticking() + WATCHERS_EVERY_S
        found = watchers.present(self.state, self.presence.name)
        if found != self._watchers:
            self._watchers = found
            self.link.send("watchers", {"watchers": found})

    def _has_moved(self, fields: dict[str, Any]) -> bool:
        step = min(DISK_STEP_BYTES, max(DISK_LEAST_BYTES, fields["free_bytes"] // DISK_STEP_SHARE))
        numbers = ("free_bytes", "total_bytes", "log_bytes")
        return not self._disk or any(abs(fields[key] - self._disk[key]) >= step for key in numbers)


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Stream until the near side goes."""
    del verb
    state = paths.resolve_state(request.get("state_dir"))
    wanted = request.get("runs")
    if wanted is not None and not isinstance(wanted, dict):
        raise Refusal("bad_request", "runs: must be null or map a run to its offsets")
    interval_s = asked.seconds(request, "interval_s", INTERVAL_S, low=0.01, high=60)
    link.send("hello", hello.fields(state))
    gpus = GpuFeed() if request.get("gpus") else None
    presence = watchers.Presence(state, request)
    watch = Watch(state, link, wanted is None, gpus, presence)
    for name, where in (wanted or {}).items():
        watch.follow(paths.checked_name(name), where if isinstance(where, dict) else {})
    try:
        link.send("bye", {"reason": watch.run(interval_s)})
    finally:
        presence.close()
        if gpus is not None:
            gpus.close()
