"""GPU readings from a child with a deadline: a stuck driver holds the child, never the guest.

Never two children at once: one that cannot be killed (D state) is left alone and told as a problem.
"""

from __future__ import annotations

import os
import select
import subprocess
from typing import Any

from orchestrator.guest import clock, files, itself

EVERY_S = 2.0
DEADLINE_S = 3.0
FIRST_DEADLINE_S = 10.0  # initialising NVML on eight GPUs without persistence mode takes seconds
RESTART_S = 10.0
# A reading is news if it differs by this much, or after KEEP_S.
NEWS = {"memory_used_bytes": 16 << 20, "utilization_pct": 10, "power_w": 25, "temperature_c": 4}
KEEP_S = 30.0

Reading = dict[str, Any]


def nothing(problem: str) -> Reading:
    """A reading that says only why there is none."""
    return {"gpus": [], "source": None, "problem": problem}


class GpuFeed:
    """Starts the child, reads its lines, and says what is new."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._child: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._due = 0.0
        self._start_at = 0.0
        self._is_stuck = False
        self._sent: Reading | None = None
        self._sent_at = 0.0

    def news(self) -> Reading | None:
        """Return a reading worth sending, or None; never waits."""
        reading = self.poll()
        if reading is None:
            return None
        if (
            self._sent is not None
            and clock.ticking() < self._sent_at + KEEP_S
            and not differs(self._sent, reading)
        ):
            return None
        self._sent, self._sent_at = reading, clock.ticking()
        return reading

    def poll(self) -> Reading | None:
        """Return the child's newest reading, or what is wrong with it; None if nothing is due."""
        now = clock.ticking()
        if self._child is None:
            if now >= self._start_at:
                self._start(now)
            return None
        reading = self._read()
        if reading is not None:
            self._due = now + self._every_s + DEADLINE_S
            return reading
        if self._child.poll() is not None:
            return self._ended(now)
        if now >= self._due and not self._is_stuck:
            self._is_stuck = True
            self._child.kill()
            return nothing("the GPU driver does not answer; the probe was killed")
        if now >= self._due + DEADLINE_S:
            self._due = now + KEEP_S
            return nothing("the GPU driver does not answer and holds the probe; no other one is started")
        return None

    def close(self) -> None:
        """End the child; one that cannot be killed is not waited for."""
        if self._child is None:
            return
        self._child.kill()
        if self._child.stdout is not None:
            self._child.stdout.close()
        try:
            self._child.wait(0.5)
        except subprocess.TimeoutExpired:
            self._child.returncode = 0  # stuck in the driver: leave it, without a word at our end
        self._child = None

    def _start(self, now: float) -> None:
        command = itself.command("gpu-child", str(self._every_s))
        self._child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        if self._child.stdout is not None:
            os.set_blocking(self._child.stdout.fileno(), False)
        self._buffer = b""
        self._is_stuck = False
        self._due = now + FIRST_DEADLINE_S

    def _read(self) -> Reading | None:
        """Return the newest whole line of the child."""
        if self._child is None or self._child.stdout is None:
            return None
        fd = self._child.stdout.fileno()
        while select.select([fd], [], [], 0)[0]:
            piece = os.read(fd, 1 << 16)
            if not piece:
                break
            self._buffer += piece
        *lines, self._buffer = self._buffer.split(b"\n")
        return files.parse_object(lines[-1]) if lines else None

    def _ended(self, now: float) -> Reading | None:
        code, was_stuck = (self._child.returncode if self._child else None), self._is_stuck
        self.close()
        self._start_at = now + RESTART_S
        return None if was_stuck else nothing(f"the GPU probe ended (code {code})")


def once(limit_s: float = FIRST_DEADLINE_S) -> Reading:
    """Take one reading."""
    feed = GpuFeed()
    deadline = clock.ticking() + limit_s
    try:
        while clock.ticking() < deadline:
            reading = feed.poll()
            if reading is not None:
                return reading
            clock.wait(0.02)
        return nothing(f"the GPU driver did not answer within {limit_s:.0f} s")
    finally:
        feed.close()


def differs(old: Reading, new: Reading) -> bool:
    """Whether more than the jitter of a working GPU changed."""
    if {**old, "gpus": None} != {**new, "gpus": None} or len(old["gpus"]) != len(new["gpus"]):
        return True
    return any(_gpu_differs(a, b) for a, b in zip(old["gpus"], new["gpus"], strict=True))


def _gpu_differs(old: Reading, new: Reading) -> bool:
    for key in new:
        a, b = old.get(key), new[key]
        if key == "processes":
            a, b = [p["pid"] for p in a or ()], [p["pid"] for p in b or ()]
        if key in NEWS and a is not None and b is not None:
            if abs(a - b) >= NEWS[key]:
                return True
        elif a != b:
            return True
    return False
