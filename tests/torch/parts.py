"""Whole trainers, as a supervisor starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.cli import LONG_S

if TYPE_CHECKING:
    from pathlib import Path


def trainer_command(run_dir: Path, *more: str) -> list[str]:
    """A short run that logs each step and decodes nothing."""
    settings = [
        *("log_every=1", "checkpoint.every_steps=5", "eval.prompts=0", "data.context_tokens=64"),
        "compute.threads=1",  # several run at a time
    ]
    sets = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "trainer", "--config", "fast", "--run-dir", str(run_dir)]
    return [*command, *sets, *more]


def environment(**more: str) -> dict[str, str]:
    """This process's environment without a supervisor's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DFLASHCTL_")}
    return {**kept, **more}


def run_trainer(run_dir: Path, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        trainer_command(run_dir, *more),
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )


def start_trainer(run_dir: Path, *more: str) -> subprocess.Popen[str]:
    """In the background."""
    return subprocess.Popen(
        trainer_command(run_dir, *more),
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def wait_for(path: Path, wanted: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LONG_S
    while not (path.exists() and wanted in path.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
