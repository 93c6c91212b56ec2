"""A stand-in trainer: stdlib only, it writes the files of the disk contract and dies as told.

`python tests/standin.py --steps 50 --crash-at 20 --crash-attempts 1 --fx-text`
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

FX_TEXT = """\
Traceback (most recent call last):
  File "/opt/train/train_dflash.py", line 412, in worker
    loss = step(batch)
  File "/opt/train/train_dflash.py", line 377, in step
    out = self.attention(q, k, v, block_mask=mask)
  File "/opt/venv/lib/python3.11/site-packages/torch/_dynamo/eval_frame.py", line 749, in compile_wrapper
    raise RuntimeError(
RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function. \
This is not supported at the moment.
"""


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def write(path: Path, fields: dict[str, Any]) -> None:
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    with temp.open("w") as file:
        json.dump({"schema": 1, **fields}, file)
        file.flush()
        os.fsync(file.fileno())
    temp.replace(path)


class StandIn:
    """One attempt, from the newest complete checkpoint to the last step or the ordered end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        run_dir = Path(os.environ.get("DFLASHCTL_RUN_DIR") or options.run_dir)
        self.attempt = int(os.environ.get("DFLASHCTL_ATTEMPT", "1"))
        self.dir = Path(os.environ.get("DFLASHCTL_ATTEMPT_DIR") or run_dir / "attempts" / str(self.attempt))
        self.checkpoints = Path(os.environ.get("DFLASHCTL_CHECKPOINT_DIR") or run_dir / "checkpoints")
        self.export = run_dir / "export"
        self.dir.mkdir(parents=True, exist_ok=True)
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        done = [int(p.parent.name.split("-")[1]) for p in self.checkpoints.glob("step-*/COMPLETE")]
        self.resumed_from = self.checkpoint_step = max(done, default=None)
        self.step = self.resumed_from or 0
        self.is_stopping = False

    @property
    def loss(self) -> float:
        return 5.0 / (1 + self.step) + 1.0

    def beat(self, phase: str) -> None:
        write(
            self.dir / "heartbeat.json",
            {
                "phase": phase, "step": self.step, "total_steps": self.options.steps, "loss": self.loss,
                "tokens_per_s": 1000.0, "step_s": self.options.step_s, "recompiles": 0,
                "peak_memory_bytes": 1 << 20, "resumed_from_step": self.resumed_from,
                "checkpoint_step": self.checkpoint_step, "pid": os.getpid(), "at": now(),
            },
        )  # fmt: skip

    def log_metrics(self) -> None:
        line = {
            "schema": 1, "kind": "train", "step": self.step, "loss": self.loss, "lr": 1e-3, "grad_norm": 1.0,
            "tokens_per_s": 1000.0, "step_s": self.options.step_s, "acceptance_length": None, "at": now(),
        }  # fmt: skip
        with (self.dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"step {self.step}/{self.options.steps} loss {self.loss:.4f}", flush=True)

    def last_words(self, exception: str, message: str, text: str = "", kind: str | None = None) -> None:
        fields = {
            "exception": exception, "message": message, "traceback": text, "rank": 0, "phase": "train",
            "step": self.step, "kind": kind, "at": now(),
        }  # fmt: skip
        write(self.dir / "error.json", fields)

    def save(self) -> None:
        self.beat("checkpoint")
        directory = self.checkpoints / f"step-{self.step}"
        directory.mkdir(exist_ok=True)
        (directory / "model.bin").write_bytes(b"\0" * self.options.checkpoint_bytes)
        (directory / "COMPLETE").touch()
        self.checkpoint_step = self.step

    def fail(self) -> int:
        """Die in the ordered way; the exit code if it is a way that returns."""
        options = self.options
        if options.signal:
            os.kill(os.getpid(), getattr(signal, f"SIG{options.signal.upper().removeprefix('SIG')}"))
            time.sleep(60)
        if options.fx_text:
            print(FX_TEXT, end="", flush=True)
            self.last_words(
                "RuntimeError", FX_TEXT.strip().splitlines()[-1][len("RuntimeError: ") :], FX_TEXT
            )
            return 1
        if options.exit_code is not None:
            print(f"ending with exit code {options.exit_code}", flush=True)
            return int(options.exit_code)
        try:
            raise RuntimeError(f"ordered crash at step {self.step}")  # noqa: TRY301
        except RuntimeError as error:
            text = traceback.format_exc()
            print(text, end="", flush=True)
            self.last_words("RuntimeError", str(error), text)
            return 1

    def has_to(self, at: int | None) -> bool:
        return at is not None and self.step >= at and self.attempt <= self.options.crash_attempts

    def train(self) -> int:
        options = self.options
        while True:
            is_cued = options.cue is None or options.cue.exists()
            if self.is_stopping:
                self.save()
                self.last_words("Interrupted", "asked to stop", kind="interrupted")
                return 75
            if is_cued and self.has_to(options.hang_at):
                print("hanging", flush=True)
                while True:
                    time.sleep(3600)
            if is_cued and self.has_to(options.crash_at):
                return self.fail()
            if is_cued and self.step >= options.steps:
                return self.finish()
            time.sleep(options.step_s)
            self.step += 1
            if options.checkpoint_every and self.step % options.checkpoint_every == 0:
                self.save()
            self.log_metrics()
            self.beat("train")

    def finish(self) -> int:
        self.beat("export")
        self.export.mkdir(exist_ok=True)
        (self.export / "model.safetensors").write_bytes(b"\0" * 64)
        write(
            self.dir / "result.json",
            {
                "step": self.step, "loss": self.loss, "export": str(self.export), "acceptance_length": 2.0,
                "acceptance": {"trained": 2.0}, "at": now(),
            },
        )  # fmt: skip
        self.beat("done")
        print("done", flush=True)
        return 0

    def run(self) -> int:
        handler = signal.SIG_IGN if self.options.ignore_term else self.on_term
        signal.signal(signal.SIGTERM, handler)
        self.beat("init")
        write(self.dir / "environment.json", {"python": sys.version.split()[0], "at": now()})
        print(f"stand-in, attempt {self.attempt}, from step {self.step}", flush=True)
        for _ in range(self.options.escapees):
            escape()
        return self.train()

    def on_term(self, *_: object) -> None:
        self.is_stopping = True


def escape() -> None:
    """Leave a grandchild behind in a session of its own, with nothing in its environment."""
    code = "import os,time\nif os.fork(): os._exit(0)\nos.setsid()\n" + (
        "os.execve('/bin/sleep', ['[innocent]', '3601'], {})"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={}, stdin=subprocess.DEVNULL)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--run-dir", default=".")
    add("--steps", type=int, default=20)
    add("--step-s", type=float, default=0.05)
    add("--checkpoint-every", type=int, default=5)
    add("--checkpoint-bytes", type=int, default=1024)
    add("--crash-at", type=int, help="the step at which to die; by default with a traceback and code 1")
    add("--crash-attempts", type=int, default=1 << 30, help="die (or hang) only in attempts 1 to N")
    add("--exit-code", type=int, help="die with this code and no traceback")
    add("--signal", help="die by this signal, for example KILL")
    add("--fx-text", action="store_true", help="die with the FX-trace error's text, code 1")
    add("--hang-at", type=int)
    add("--cue", type=Path, help="train on, past any --steps, until this file is there; then end as ordered")
    add("--ignore-term", action="store_true")
    add(
        "--escapees",
        type=int,
        default=0,
        help="grandchildren in their own sessions, with an empty environment",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(StandIn(parse()).run())
