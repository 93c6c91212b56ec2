"""A guest whose runs are not there: it speaks the wire for `benchmarks.watchscale`, stdlib only.

Its runs step by the clock. Those that are named in `<state>/storm` die at the next look, five times a second,
as a real guest would see it; the instant from which they are dead goes into `<state>/deaths.jsonl`.
"""

from __future__ import annotations

import base64
import json
import os
import select
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

LOOK_S = 0.2
GPU_EVERY_S = 30.0
TEXT = """\
Traceback (most recent call last):
  File "/opt/train/train_dflash.py", line 412, in worker
    loss = step(batch)
  File "/opt/venv/lib/python3.11/site-packages/torch/_dynamo/eval_frame.py", line 749, in compile_wrapper
    raise RuntimeError(
RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function. \
This is not supported at the moment.
"""


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Out:
    """Numbered lines to standard output."""

    def __init__(self) -> None:
        self.seq = 0
        self.lines: list[str] = []

    def send(self, kind: str, **fields: Any) -> None:  # noqa: ANN401
        """Add one line."""
        self.lines.append(json.dumps({"schema": 1, "seq": self.seq, "type": kind, **fields}))
        self.seq += 1

    def flush(self) -> None:
        """Write what was added."""
        if self.lines:
            sys.stdout.write("\n".join(self.lines) + "\n")
            sys.stdout.flush()
            self.lines = []


class Run:
    """One run that is not there."""

    def __init__(self, name: str, out: Out, step_s: float, place: int) -> None:
        self.name, self.out, self.step_s = name, out, step_s
        self.step = self.log_offset = self.metrics_offset = 0
        self.due = time.monotonic() + step_s * (place % 50) / 50
        self.is_alive = True
        self.begin()

    def attempt(self, kind: str, **fields: Any) -> None:  # noqa: ANN401
        """Send a line of the run's attempt."""
        self.out.send(kind, run=self.name, attempt=1, **fields)

    def begin(self) -> None:
        """A stream's first words."""
        self.line(alive=True)
        self.beat()

    def line(self, *, alive: bool) -> None:
        """Send the `run` line."""
        self.out.send(
            "run", run=self.name, attempts=[1], attempt=1,
            spec={"run": self.name, "attempt": 1, "kind": "trainer", "argv": ["python3"], "by": "user"},
            attempt_info={"boot_id": "b", "pid1_start_ticks": 5, "started_at": stamp(time.time())},
            alive={"lock_held": alive, "pids": [7] if alive else [], "supervisor": alive, "session": True},
            stop=None, checkpoint_step=self.step // 100 * 100, checkpoint_bytes=1000,
        )  # fmt: skip

    def beat(self) -> None:
        """Send the heartbeat."""
        value = {
            "schema": 1, "phase": "train", "step": self.step, "total_steps": 100_000, "loss": 2.5,
            "tokens_per_s": 4e4, "step_s": self.step_s, "recompiles": 0, "skipped_steps": 0, "rollbacks": 0,
            "peak_memory_bytes": 1 << 36, "resumed_from_step": 0, "checkpoint_step": self.step // 100 * 100,
            "pid": 7, "at": stamp(time.time()),
        }  # fmt: skip
        self.attempt("heartbeat", value=value)

    def log(self, text: str) -> None:
        """Send more of the log."""
        data = text.encode()
        self.attempt("log", offset=self.log_offset, data=base64.b64encode(data).decode())
        self.log_offset += len(data)

    def look(self, now: float) -> None:
        """Take the step that is due."""
        if not self.is_alive or now < self.due:
            return
        self.due += self.step_s
        self.step += 1
        self.log(f"step {self.step}/100000 loss 2.5 lr 1.0e-04 grad_norm 0.71 40,064 tokens/s 1.02 s\n")
        row = {
            "schema": 1, "kind": "train", "step": self.step, "loss": 2.5, "lr": 1e-4, "grad_norm": 0.7,
            "tokens_per_s": 4e4, "step_s": self.step_s, "acceptance_length": None, "at": stamp(time.time()),
        }  # fmt: skip
        begin, self.metrics_offset = self.metrics_offset, self.metrics_offset + 200
        self.attempt("metrics", offset=begin, next_offset=self.metrics_offset, lines=[row])
        self.beat()

    def die(self) -> None:
        """Send a death as a guest does: log, last words, exit, that nothing lives."""
        self.is_alive = False
        self.log(TEXT)
        error = {
            "schema": 1, "exception": "RuntimeError", "message": TEXT.splitlines()[-1].partition(": ")[2],
            "traceback": TEXT, "rank": 0, "phase": "train", "step": self.step, "kind": None,
            "at": stamp(time.time()),
        }  # fmt: skip
        self.attempt("last_words", value=error)
        end: dict[str, Any] = {
            "schema": 1, "attempt": 1, "code": 1, "signal": None, "at": stamp(time.time()),
            "duration_s": 60.0, "leftover": [], "error": None,
        }  # fmt: skip
        self.attempt("exit", value=end)
        self.line(alive=False)


def gpus() -> list[dict[str, Any]]:
    return [
        {
            "index": index, "uuid": f"GPU-{index}", "name": "H200", "memory_used_bytes": 100 << 30,
            "memory_total_bytes": 140 << 30, "utilization_pct": 97, "power_w": 650.0, "temperature_c": 60,
            "processes": [], "problem": None,
        }
        for index in range(8)
    ]  # fmt: skip


def hello(out: Out, state: Path) -> None:
    out.send(
        "hello", python="3.11.2", tmux="3.3a", now=time.time(), uid=0, boot_id="b", pid1_start_ticks=5,
        uptime_s=1e5, state_dir=str(state), free_bytes=1 << 40, shm_free_bytes=1 << 36,
    )  # fmt: skip


def watch(request: dict[str, Any], out: Out) -> None:
    state = Path(request["state_dir"])
    step_s = float((state / "step_s").read_text())
    hello(out, state)
    runs = {name: Run(name, out, step_s, place) for place, name in enumerate(sorted(request["runs"]))}
    out.send("disk", free_bytes=1 << 40, total_bytes=1 << 41, log_bytes=1000)
    out.flush()
    storm, gpus_due, waiting = state / "storm", 0.0, b""
    while True:
        ready, _, _ = select.select([0], [], [], LOOK_S)
        if ready:
            piece = os.read(0, 1 << 16)
            if not piece:
                return
            *lines, waiting = (waiting + piece).split(b"\n")
            for line in lines:
                if json.loads(line)["type"] == "ping":
                    out.send("pong", now=time.time())
        now = time.monotonic()
        for run in runs.values():
            run.look(now)
        if now >= gpus_due:
            gpus_due = now + GPU_EVERY_S
            out.send("gpu", gpus=gpus(), source="nvml", problem=None)
        if storm.exists():
            asked = json.loads(storm.read_text())
            storm.unlink()
            with (state / "deaths.jsonl").open("a") as deaths:
                for name in asked["runs"]:
                    deaths.write(json.dumps({"run": name, "at": asked["at"]}) + "\n")
                    runs[name].die()
        out.flush()


def main() -> None:
    verb, out = sys.argv[-1], Out()
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(0, 1)  # what follows it belongs to the verb
    request = json.loads(line)
    if verb == "watch":
        watch(request, out)
    else:
        hello(out, Path(request["state_dir"]))
    out.flush()


if __name__ == "__main__":
    main()
