"""What a Tab, --version and --help cost: a process each, the median of its CPU time and of its wall time.

python -m benchmarks.startup
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

from orchestrator.record import Record

ROUNDS = 15
ROOT = Path(__file__).resolve().parents[1]
ASKS: dict[str, tuple[list[str], dict[str, str]]] = {
    "python alone": (["-c", "pass"], {}),
    "Tab, a verb": ([], {"COMP_WORDS": "dflashctl lo", "COMP_CWORD": "1"}),
    "Tab, a run of 500": ([], {"COMP_WORDS": "dflashctl logs ", "COMP_CWORD": "2"}),
    "Tab, a host of 200": ([], {"COMP_WORDS": "dflashctl launch --host ", "COMP_CWORD": "3"}),
    "--version": (["--version"], {}),
    "--help": (["--help"], {}),
    "logs --help": (["logs", "--help"], {}),
}


def prepare(folder: Path) -> None:
    hosts = "".join(f"  h{n}: {{address: 10.0.{n // 256}.{n % 256}}}\n" for n in range(200))
    (folder / "inventory").mkdir()
    (folder / "inventory" / "a.yaml").write_text(f"hosts:\n{hosts}")
    with Record.open(folder / "r.sqlite3") as record:
        for n in range(500):
            record.save_run(f"r{n}", {}, "local", {}, datetime(2026, 11, 30, tzinfo=timezone.utc))


def once(words: list[str], env: dict[str, str], folder: Path) -> tuple[float, float]:
    command = [sys.executable, *([] if words[:1] == ["-c"] else ["-m", "orchestrator"]), *words]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, check=True)
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall_s


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        base = {**os.environ, "PYTHONPATH": str(ROOT), "DFLASHCTL_RECORD": str(folder / "r.sqlite3")}
        print("| start | CPU | wall |\n|---|---|---|")
        for title, (words, env) in ASKS.items():
            asked = {"_DFLASHCTL_COMPLETE": "complete_bash"} if env else {}
            found = [once(words, {**base, **env, **asked}, folder) for _ in range(ROUNDS)]
            cpu_s, wall_s = (statistics.median(column) for column in zip(*found, strict=True))
            print(f"| {title} | {cpu_s * 1e3:.0f} ms | {wall_s * 1e3:.0f} ms |")


if __name__ == "__main__":
    main()
