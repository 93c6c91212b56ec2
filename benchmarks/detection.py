"""How soon a death is known, in the lab: `python -m benchmarks.detection [--crashes 32] [--json FILE]`.

Real sshd, pct, LXC and tmux. Beside it, in the same run, the way it was done by hand: a new ssh every N
seconds for `pct exec ... tmux capture-pane; nvidia-smi`. A death's instant is taken from the trainer's own
last words, which is before its process ends, so every figure here is an upper bound.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import inventory
from orchestrator.clock import SystemClock
from orchestrator.connection.opening import SHARED
from orchestrator.launch import RunSpec
from orchestrator.observe.parse import instant
from orchestrator.operate import Operator
from orchestrator.playbook import load
from orchestrator.record import Record
from orchestrator.site import Site
from orchestrator.watch.loop import Watched, Watcher
from tests.lab.lab import PREFIX, Lab

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.watch.events import WatchEvent

ROOT = Path(__file__).resolve().parents[1]
STANDIN = "/opt/standin.py"
STEP_S = 0.25
ENDLESS = ("--steps", "100000", "--checkpoint-every", "0")
HAND_EVERY_S = 5.0
SEED_EVERY_S = 420.0
GPUS = "index,memory.used --format=csv"


class Deaths:
    """A sink that keeps when each run was first called dead, and of what."""

    def __init__(self) -> None:
        self.told: dict[str, tuple[datetime, str | None]] = {}

    def emit(self, event: WatchEvent) -> None:
        """Keep the first word of a death."""
        if event.kind == "diagnosis" and event.detail.get("state") == "dead":
            self.told.setdefault(event.run, (event.at, event.detail.get("failure")))

    def refresh(self) -> None:
        """Draw nothing."""


def standin_spec(run: str, *words: str) -> RunSpec:
    return RunSpec(run=run, command=("python3", STANDIN, "--step-s", str(STEP_S), *words))


def launch_all(site: Site, record: Record, count: int, rng: random.Random) -> list[Any]:
    """Launch `count` runs whose deaths are spread over the minute after the last launch."""
    rows = []
    begin = time.monotonic()
    for index in range(count):
        due_s = count * 1.2 + 5 + rng.uniform(0, 45) - (time.monotonic() - begin)
        steps = max(4, round(due_s / STEP_S))
        spec = standin_spec(
            f"crash-{index}",
            "--steps",
            "100000",
            "--checkpoint-every",
            "0",
            "--crash-at",
            str(steps),
            "--fx-text",
        )
        rows.append(Operator(site, record, SystemClock()).launch(spec, {}, playbook=None).row)
        print(f"\rlaunched {index + 1} of {count}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


def died_at(lab: Lab, run: str) -> datetime:
    path = lab.rootfs / f"var/lib/dflashctl/runs/{run}/attempts/1/error.json"
    return instant(json.loads(path.read_text())["at"])


def detect(site: Site, lab: Lab, count: int, rng: random.Random) -> tuple[list[float], int]:
    """Return the seconds from each death to its diagnosis, and how many were named right."""
    with tempfile.TemporaryDirectory() as folder, Record.open(Path(folder) / "record.sqlite3") as record:
        rows = launch_all(site, record, count, rng)
        sink = Deaths()
        watched = [Watched(row, site, load(None)) for row in rows]
        Watcher(watched, record, sink, SystemClock(), acting=False).run()
    delays = [(at - died_at(lab, run)).total_seconds() for run, (at, _) in sink.told.items()]
    right = sum(failure == "fx_trace_race" for _, failure in sink.told.values())
    return delays, right


def hand_command(lab: Lab, session: str) -> list[str]:
    inner = f"tmux -L dflashctl capture-pane -p -S -40 -t {session}; nvidia-smi --query-gpu={GPUS}"
    return [*lab.ssh_argv(), f"pct exec 200 -- bash -c '{inner}'"]


def by_hand(site: Site, lab: Lab, count: int, rng: random.Random) -> list[float]:
    """Return the seconds from a death to the look that shows it, looking every HAND_EVERY_S."""
    delays = []
    with tempfile.TemporaryDirectory() as folder, Record.open(Path(folder) / "record.sqlite3") as record:
        for index in range(count):
            run = f"hand-{index}"
            steps = str(max(4, round(rng.uniform(3, 8) / STEP_S)))
            spec = standin_spec(run, *ENDLESS, "--crash-at", steps, "--fx-text")
            Operator(site, record, SystemClock()).launch(spec, {}, playbook=None)
            while True:
                shown = subprocess.run(
                    hand_command(lab, run), capture_output=True, text=True, check=False
                ).stdout
                if "symbolically trace" in shown.replace("\n", " "):
                    break
                time.sleep(HAND_EVERY_S)
            delays.append((SystemClock().now() - died_at(lab, run)).total_seconds())
    return delays


def looks(site: Site, lab: Lab) -> dict[str, float]:
    """Return the median milliseconds of one look: over the kept stream, and by hand."""
    stream = site.open_watch({"runs": {}, "gpus": False, "interval_s": 0.2})
    kept = []
    try:
        for _ in range(200):
            begin = time.perf_counter()
            stream.send("ping", {})
            while (message := stream.read(5.0)) is None or message["type"] != "pong":
                pass
            kept.append(time.perf_counter() - begin)
    finally:
        stream.close()
    hand = []
    for _ in range(20):
        begin = time.perf_counter()
        subprocess.run(hand_command(lab, "hand-0"), capture_output=True, check=False)
        hand.append(time.perf_counter() - begin)
    return {"kept_ms": statistics.median(kept) * 1e3, "hand_ms": statistics.median(hand) * 1e3}


def socket_bytes() -> int:
    """Return the bytes sent and received on the open ssh connections (tcp_info of linux/tcp.h)."""
    total = 0
    for way in SHARED._ways.values():  # noqa: SLF001  # nothing else knows the sockets
        for slot in way.slots:
            sock: Any = slot.connection._transport.sock  # noqa: SLF001
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            acked, received = struct.unpack_from("<QQ", info, 120)
            total += acked + received
    return total


def idle(site: Site, seconds: float) -> float:
    """Return bytes a second, both ways, of a watch over a living run that says nothing."""
    with tempfile.TemporaryDirectory() as folder, Record.open(Path(folder) / "record.sqlite3") as record:
        spec = RunSpec(run="idle", command=("sleep", "3600"))
        operator = Operator(site, record, SystemClock())
        row = operator.launch(spec, {}, playbook=None).row
        stream = site.open_watch({"runs": {"idle": None}, "gpus": True, "interval_s": 0.2})
        try:
            pinged = time.monotonic()
            settled = time.monotonic() + 10
            before, begin = 0, 0.0
            while time.monotonic() < settled + seconds:
                stream.read(0.5)
                if time.monotonic() - pinged > 5:
                    stream.send("ping", {})
                    pinged = time.monotonic()
                if not before and time.monotonic() >= settled:
                    before, begin = socket_bytes(), time.monotonic()
            rate = (socket_bytes() - before) / (time.monotonic() - begin)
        finally:
            stream.close()
        operator.stop(row, reason="measured", grace_s=1.0)
    return rate


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def measure(lab: Lab, crashes: int, hand_crashes: int, seed: int) -> dict[str, Any]:
    shutil.copy(ROOT / "tests" / "standin.py", lab.rootfs / STANDIN.lstrip("/"))
    target = inventory.resolve(
        inventory.Inventory.load([]),
        host=lab.host,
        ct=lab.ct,
        port=lab.port,
        identity=str(lab.identity),
        known_hosts=str(lab.known_hosts),
    )
    rng = random.Random(seed)
    delays, right = detect(Site(target), lab, crashes, rng)  # the watch closes its own
    site = Site(target)
    hand = by_hand(site, lab, hand_crashes, rng)
    look = looks(site, lab)
    rate = idle(site, 30.0)
    site.close()
    return {
        "crashes": len(delays),
        "named_right": right,
        "median_s": statistics.median(delays),
        "p99_s": quantile(delays, 0.99),
        "max_s": max(delays),
        "hand_crashes": len(hand),
        "hand_every_s": HAND_EVERY_S,
        "hand_median_s": statistics.median(hand),
        "hand_max_s": max(hand),
        "seed_expected_s": SEED_EVERY_S / 2 + look["hand_ms"] / 1e3,
        "look_kept_ms": look["kept_ms"],
        "look_hand_ms": look["hand_ms"],
        "idle_bytes_per_s": rate,
    }


def report(found: dict[str, Any]) -> None:
    print(f"{found['named_right']} of {found['crashes']} deaths named right")
    print(f"{'':34}{'median':>10}{'p99':>10}{'max':>10}")
    rows = (
        ("watch, death to diagnosis", "median_s", "p99_s", "max_s"),
        ("by hand every 5 s, death to sight", "hand_median_s", None, "hand_max_s"),
        ("by hand every 420 s, expected", "seed_expected_s", None, None),
    )
    for title, *keys in rows:
        print(f"{title:34}" + "".join(f"{found[key]:>9.3f}s" if key else f"{'':>10}" for key in keys))
    kept, hand = found["look_kept_ms"], found["look_hand_ms"]
    print(f"one look: {kept:.2f} ms kept, {hand:.0f} ms by hand ({hand / kept:.0f} times)")
    print(f"idle watch: {found['idle_bytes_per_s']:.0f} bytes/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crashes", type=int, default=32)
    parser.add_argument("--by-hand", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lab = Lab(Path(tempfile.mkdtemp(prefix=f"{PREFIX}-")))
    lab.start()
    try:
        found = measure(lab, options.crashes, options.by_hand, options.seed)
    finally:
        lab.stop()
    report(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
