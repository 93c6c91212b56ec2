"""From a crash to the next attempt's first step, in the lab: `python -m benchmarks.relaunch [--crashes 10]`.

Real sshd, pct, LXC and tmux; a stand-in that comes further each time and dies of the FX-trace error; a
playbook without backoff. The crash is the instant of the trainer's last words, before its process ends. What
the trainer itself needs from its start to its first step is told apart.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.detection import quantile
from orchestrator.observe.parse import instant
from tests.cli import ROOT, Cli
from tests.integration.local import EVER_FURTHER
from tests.lab.lab import PREFIX, Lab

RUN = "relaunch"
STANDIN = "/opt/standin.py"
STEP_S = 0.05
STEPS_AN_ATTEMPT = 20
PLAYBOOK = """\
extends: default
backoff: [0s]
jitter: 0
max_attempts_per_day: 1000
crash_loop: {deaths: 1000, within: 1h}
rules:
  fx_trace_race: {act: relaunch, attempts: 100, why: the benchmark wants each of them back}
"""


def play(lab: Lab, home: Path, crashes: int) -> Path:
    """Let the run crash and be brought back; return its attempts' folder."""
    shutil.copy(ROOT / "tests" / "standin.py", lab.rootfs / STANDIN[1:])
    login = ("--host", lab.host, "--port", str(lab.port), "--identity", str(lab.identity))
    cli = Cli(home, (*login, "--known-hosts", str(lab.known_hosts), "--ct", str(lab.ct)))
    (home / "playbook.yaml").write_text(PLAYBOOK)
    numbers = map(str, (crashes, STEPS_AN_ATTEMPT * (crashes + 1), STEP_S))
    command = ("python3", "-c", EVER_FURTHER, STANDIN, *numbers)
    cli.launch("--run", RUN, "--playbook", str(home / "playbook.yaml"), "--", *command)
    watch = cli.watch(RUN, "--no-log")
    try:
        code = watch.end(60.0 + 30.0 * crashes)
    finally:
        cli.end_watches()
    if code != 0:
        raise SystemExit(f"the watch ended with {code}: {watch.story()}")
    return lab.rootfs / "var/lib/dflashctl/runs" / RUN / "attempts"


def read(path: Path) -> dict[str, Any]:
    body = json.loads(path.read_text())
    return dict(body)


def took(attempts: Path, number: int) -> tuple[float, float]:
    """Return the seconds from the crash before to this attempt's start, and on to its first step."""
    crashed = instant(read(attempts / str(number - 1) / "error.json")["at"])
    started = instant(read(attempts / str(number) / "attempt.json")["started_at"])
    first = json.loads((attempts / str(number) / "metrics.jsonl").read_text().splitlines()[0])
    return (started - crashed).total_seconds(), (instant(first["at"]) - started).total_seconds()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crashes", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lab = Lab(Path(tempfile.mkdtemp(prefix=f"{PREFIX}-")))
    home = Path(tempfile.mkdtemp(prefix="dflashctl-relaunch-"))
    lab.start(owner=os.getpid())
    try:
        begin = time.monotonic()
        attempts = play(lab, home, options.crashes)
        pairs = [took(attempts, number) for number in range(2, options.crashes + 2)]
        found = {
            "crashes": len(pairs),
            "wall_s": time.monotonic() - begin,
            "ours_median_s": statistics.median(ours for ours, _ in pairs),
            "ours_max_s": quantile([ours for ours, _ in pairs], 1.0),
            "trainer_median_s": statistics.median(own for _, own in pairs),
            "load_average": os.getloadavg()[0],
        }
    finally:
        lab.stop()
        shutil.rmtree(home, ignore_errors=True)
    print("{crashes} crashes, each brought back".format(**found))
    print(
        "crash to the next trainer's start: median {ours_median_s:.2f} s, max {ours_max_s:.2f} s".format(
            **found
        )
    )
    print("the trainer's own start to its first step: median {trainer_median_s:.2f} s".format(**found))
    print("the machine's load average was {load_average:.1f}".format(**found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
