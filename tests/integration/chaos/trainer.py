"""The trainer of the chaos suite, inside the container: stdlib only, resumes, numbers every line of its log.

What it knows of itself it also writes to a witness file that no fault touches, and it holds a lock there: of
two trainers at once the second finds it held, and says so.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
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
  File "/opt/venv/lib/python3.11/site-packages/torch/_dynamo/eval_frame.py", line 749, in compile_wrapper
    raise RuntimeError(
RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function. \
This is not supported at the moment.
"""
OOM_TEXT = """\
Traceback (most recent call last):
  File "/opt/train/train_dflash.py", line 377, in step
    out = self.mlp(hidden)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of \
139.81 GiB of which 1.06 GiB is free. Of the allocated memory 136.00 GiB is allocated by PyTorch, and \
1.10 GiB is reserved by PyTorch but unallocated.
"""
WITNESS = Path("/opt/chaos")
FLOOD_LINES = 12_000


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def write(path: Path, fields: dict[str, Any]) -> None:
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    with temp.open("w") as file:
        json.dump({"schema": 1, **fields}, file)
    temp.replace(path)


class Trainer:
    """One attempt, from the newest complete checkpoint on."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.run = os.environ["DFLASHCTL_RUN"]
        self.attempt = int(os.environ["DFLASHCTL_ATTEMPT"])
        self.dir = Path(os.environ["DFLASHCTL_ATTEMPT_DIR"])
        self.checkpoints = Path(os.environ["DFLASHCTL_CHECKPOINT_DIR"])
        self.line = 0
        self.is_stopping = False
        self.lock = os.open(WITNESS / f"{self.run}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.witness("begin")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.witness("double")
        done = [int(p.parent.name.split("-")[1]) for p in self.checkpoints.glob("step-*/COMPLETE")]
        self.resumed_from = self.checkpoint_step = max(done, default=None)
        self.step = self.resumed_from or 0

    def witness(self, event: str, **more: object) -> None:
        fields = {
            "attempt": self.attempt,
            "event": event,
            "pid": os.getpid(),
            "at": time.clock_gettime(time.CLOCK_BOOTTIME),
            **more,
        }
        with (WITNESS / f"{self.run}.jsonl").open("a") as file:
            file.write(json.dumps(fields) + "\n")

    def say(self, text: str) -> None:
        self.line += 1
        print(f"{self.line:06d} {text}", flush=True)

    def beat(self, phase: str) -> None:
        fields = {
            "phase": phase, "step": self.step, "total_steps": self.options.steps, "loss": 2.0,
            "tokens_per_s": 1000.0, "step_s": self.options.step_s, "recompiles": 0,
            "peak_memory_bytes": 1 << 20, "resumed_from_step": self.resumed_from,
            "checkpoint_step": self.checkpoint_step, "pid": os.getpid(), "at": now(),
        }  # fmt: skip
        write(self.dir / "heartbeat.json", fields)

    def save(self) -> None:
        self.beat("checkpoint")
        partial = self.checkpoints / f".step-{self.step}.tmp"
        partial.mkdir(parents=True, exist_ok=True)
        (partial / "model.bin").write_bytes(b"\0" * 4096)
        (partial / "COMPLETE").write_text("{}")
        whole = self.checkpoints / f"step-{self.step}"
        if not whole.exists():
            partial.rename(whole)
        self.checkpoint_step = self.step

    def last_words(self, exception: str, message: str, text: str) -> None:
        fields = {
            "exception": exception, "message": message, "traceback": text, "rank": 0, "phase": "train",
            "step": self.step, "kind": "interrupted" if exception == "Interrupted" else None, "at": now(),
        }  # fmt: skip
        write(self.dir / "error.json", fields)

    def die(self, how: str) -> int:
        self.witness("dying", how=how)
        if how in ("KILL", "SEGV", "ABRT"):
            os.kill(os.getpid(), getattr(signal, f"SIG{how}"))
            time.sleep(60)
        if how == "hang":
            self.say("waiting for ever")
            while True:
                time.sleep(3600)
        if how == "flood":
            for number in range(FLOOD_LINES):
                self.say(f"noise {number} " + "x" * 180)
        if how in ("fx", "flood", "oom"):
            text = OOM_TEXT if how == "oom" else FX_TEXT
            print(text, end="", flush=True)
            exception, _, message = text.strip().splitlines()[-1].partition(": ")
            self.last_words(exception, message, text)
            return 1
        if how == "code":
            return 3
        raise RuntimeError(f"ordered crash at step {self.step}")

    def train(self) -> int:
        options = self.options
        plan = [(int(a), int(s), how) for a, s, how in (word.split(":") for word in options.die)]
        while self.step < options.steps:
            if self.is_stopping:
                self.save()
                self.witness("stopped")
                self.last_words("Interrupted", "asked to stop", "")
                return 75
            for attempt, step, how in plan:
                if attempt == self.attempt and self.step >= step:
                    return self.die(how)
            time.sleep(options.step_s)
            self.step += 1
            row = {
                "schema": 1, "kind": "train", "step": self.step, "loss": 2.0, "lr": 1e-3, "grad_norm": 1.0,
                "tokens_per_s": 1e3, "step_s": options.step_s, "acceptance_length": None, "at": now(),
            }  # fmt: skip
            with (self.dir / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            self.say(f"step {self.step}/{options.steps}")
            self.beat("train")
            if self.step % options.checkpoint_every == 0:
                self.save()
        return self.finish()

    def finish(self) -> int:
        fields = {"step": self.step, "loss": 2.0, "export": "x", "acceptance_length": 2.0, "acceptance": {}}
        write(self.dir / "result.json", {**fields, "at": now()})
        self.beat("done")
        self.say("done")
        self.witness("finished")
        return 0

    def on_term(self, number: int, _frame: object) -> None:
        self.witness("term", signal=number)
        self.is_stopping = True


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--checkpoint-every", type=int, required=True)
    parser.add_argument("--die", nargs="*", default=[], help="ATTEMPT:STEP:HOW")
    trainer = Trainer(parser.parse_args())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, trainer.on_term)
    try:
        trainer.beat("init")
        trainer.checkpoints.mkdir(parents=True, exist_ok=True)
        trainer.say(f"attempt {trainer.attempt} from step {trainer.step}")
        return trainer.train()
    except (RuntimeError, OSError) as error:  # the attempt's end, whatever it is: as a trainer's would
        trainer.witness("error", error=repr(error))
        text = traceback.format_exc()
        try:
            print(text, end="", flush=True)
            trainer.last_words(type(error).__qualname__, str(error), text)
        except OSError:  # the disk is full: then nothing can be said
            return 1
        return 1


if __name__ == "__main__":
    sys.exit(main())
