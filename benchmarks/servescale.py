"""The service over many runs: `python -m benchmarks.servescale [--runs 200] [--readers 0 1 10]`.

The runs are those of `benchmarks.watchscale`, simulated behind a real sshd. The service is the program as a
person starts it; CPU and memory are the kernel's own counts for that one process. Readers follow the stream
over HTTP as a page does. At the end some runs die at once, and the delay is from a run's death to the event.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks.detection import quantile
from benchmarks.watchscale import ROOT, SETTLE_S, TICKS, simulated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.watchscale import Place

STALLED = 50
TARGET_CORES = 0.19  # what the watch alone takes for 200 runs


class Service:
    """`dflashctl serve` as a process, with the kernel's counts of it."""

    def __init__(self, record: Path, home: Path) -> None:
        begin, end = os.pipe()
        words = ["--record", str(record), "serve", "--observe-only", "--no-notify", "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *words, "--ready-fd", str(end)],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(end,),
            env={**os.environ, "XDG_CONFIG_HOME": str(home)},
        )  # fmt: skip
        os.close(end)
        with os.fdopen(begin) as ready:
            self.place = urlsplit(ready.readline().strip()).netloc

    def cpu_s(self) -> float:
        """Seconds of CPU so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mib(self, what: str = "VmRSS") -> float:
        """VmRSS (now) or VmHWM (the most ever)."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith(what))

    def get(self, path: str) -> bytes:
        """Return the whole answer."""
        connection = http.client.HTTPConnection(self.place, timeout=30)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def end(self) -> None:
        """SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


class Reader(threading.Thread):
    """Follows the stream; counts bytes, and notes when each run was first told dead."""

    def __init__(self, place: str) -> None:
        super().__init__(daemon=True)
        self.num_bytes = 0
        self.num_events = 0
        self.dead: dict[str, float] = {}
        self._parses = False
        self._connection = http.client.HTTPConnection(place, timeout=60)
        self._connection.request("GET", "/api/v1/stream")
        self._socket: socket.socket = self._connection.sock
        self._answer = self._connection.getresponse()

    def run(self) -> None:
        """Read until the stream ends."""
        while line := self._answer.readline():
            self.num_bytes += len(line)
            self.num_events += line.startswith(b"event: ")
            if self._parses and line.startswith(b"data: ") and b'"dead"' in line:
                now = time.time()
                for run in json.loads(line[6:]).get("runs", ()):
                    if run["state"] == "dead":
                        self.dead.setdefault(run["name"], now)

    def note_deaths(self) -> None:
        """From now on look into what comes."""
        self._parses = True

    def leave(self) -> None:
        """Close the page."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.join(10)
        self._connection.close()


@contextmanager
def reading(place: str, count: int) -> Iterator[list[Reader]]:
    readers = [Reader(place) for _ in range(count)]
    for reader in readers:
        reader.start()
    try:
        yield readers
    finally:
        for reader in readers:
            reader.leave()


@contextmanager
def stalled(place: str, count: int) -> Iterator[None]:
    """Readers that ask and then read nothing."""
    host, _, port = place.rpartition(":")
    pages = [socket.create_connection((host, int(port)), timeout=30) for _ in range(count)]
    for page in pages:
        page.sendall(f"GET /api/v1/stream HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
    try:
        yield
    finally:
        for page in pages:
            page.close()


def measure(place: Place, counts: list[int], storm: int, seconds: float) -> dict[str, Any]:
    """Serve, with more and more readers, then let `storm` runs die at once."""
    with tempfile.TemporaryDirectory() as home:
        service = Service(place.record, Path(home))
        try:
            _wait_for_all(service, len(place.names))
            found: dict[str, Any] = {"runs": len(place.names), "readers": {}}
            for count in counts:
                with reading(service.place, count) as readers:
                    time.sleep(SETTLE_S)
                    found["readers"][count] = _idle(service, readers, seconds)
            before = service.memory_mib()
            with stalled(service.place, STALLED):
                time.sleep(SETTLE_S)
                first = service.memory_mib()
                time.sleep(seconds)
                found["stalled_mib"] = (first - before, service.memory_mib() - before)
            found["scrape_ms"] = _timed(service, "/metrics")
            found["fleet_ms"] = _timed(service, "/api/v1/fleet")
            with reading(service.place, max(1, *counts)) as readers:
                time.sleep(3)
                found |= _storm(service, place, readers[0], storm)
            found |= {"peak_mib": service.memory_mib("VmHWM"), "load_average": os.getloadavg()[0]}
            return found
        finally:
            service.end()


def _wait_for_all(service: Service, count: int) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        runs = json.loads(service.get("/api/v1/fleet"))["runs"]
        if sum(run["state"] == "healthy" for run in runs) == count:
            return
        time.sleep(0.5)
    raise SystemExit("not all runs were seen alive in 180 s")


def _idle(service: Service, readers: list[Reader], seconds: float) -> dict[str, float]:
    cpu, clock, sent = service.cpu_s(), time.monotonic(), sum(each.num_bytes for each in readers)
    time.sleep(seconds)
    lasted = time.monotonic() - clock
    each_kib_s = (sum(each.num_bytes for each in readers) - sent) / 1024 / lasted / max(1, len(readers))
    cores = (service.cpu_s() - cpu) / lasted
    return {"cores": cores, "memory_mib": service.memory_mib(), "kib_s_each": each_kib_s}


def _timed(service: Service, path: str) -> float:
    lasted = []
    for _ in range(9):
        begin = time.monotonic()
        service.get(path)
        lasted.append((time.monotonic() - begin) * 1000)
        time.sleep(0.6)
    return quantile(lasted, 0.5)


def _storm(service: Service, place: Place, reader: Reader, storm: int) -> dict[str, Any]:
    victims = list(place.names)[:: max(1, len(place.names) // storm)][:storm]
    reader.note_deaths()
    cpu, at = service.cpu_s(), place.kill(victims)
    deadline = time.monotonic() + 60
    while len(reader.dead) < len(victims) and time.monotonic() < deadline:
        time.sleep(0.1)
    delays = [reader.dead[run] - at[run] for run in victims if run in reader.dead]
    return {
        "storm": len(victims), "told_dead": len(delays), "median_s": quantile(delays, 0.5),
        "p99_s": quantile(delays, 0.99), "max_s": max(delays), "storm_cpu_s": service.cpu_s() - cpu,
    }  # fmt: skip


def report(found: dict[str, Any]) -> None:
    for count, each in found["readers"].items():
        told = "{cores:.2f} cores, {memory_mib:.0f} MiB, {kib_s_each:.0f} KiB/s to each".format(**each)
        print(f"{found['runs']} live runs, {count} readers of the stream: {told}")
    print(f"(the watch alone: {TARGET_CORES} cores)")
    begin, end = found["stalled_mib"]
    print(f"{STALLED} readers that do not read: {begin:.0f} MiB more at once, {end:.0f} MiB more in the end")
    print("a scrape {scrape_ms:.0f} ms, the fleet {fleet_ms:.0f} ms".format(**found))
    print("{told_dead} of {storm} deaths at once told dead over the stream".format(**found))
    print(
        "from the death to the event: median {median_s:.2f} s, p99 {p99_s:.2f} s, max {max_s:.2f} s".format(
            **found
        )
    )
    print("peak {peak_mib:.0f} MiB; the machine's load average was {load_average:.1f}".format(**found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--readers", type=int, nargs="+", default=[0, 1, 10])
    parser.add_argument("--storm", type=int, default=20)
    parser.add_argument("--step-s", type=float, default=1.0, help="seconds a step of every run")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each is measured")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with simulated(options.runs, options.step_s) as place:
        found = measure(place, options.readers, min(options.storm, options.runs), options.seconds)
    report(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
