"""One watch over many runs: `python -m benchmarks.watchscale [--runs 200] [--storm 50] [--real 20]`.

The watch is the program as a person starts it; it reaches its runs over a real sshd on loopback. Simulated
runs are those of `benchmarks.fakeguest`, eight a container; with `--real N` the lab's container trains N
stand-ins instead. CPU and memory are the kernel's own counts for that one process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.detection import quantile
from orchestrator.clock import SystemClock
from orchestrator.inventory import Target
from orchestrator.inventory.models import Host
from orchestrator.launch import RunSpec, spec_document
from orchestrator.observe.parse import instant
from orchestrator.operate import Operator
from orchestrator.record import Record
from orchestrator.site import Site
from tests.lab.lab import PREFIX, Lab
from tests.lab.sshd import Sshd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
A_CONTAINER = 8  # runs
SETTLE_S = 10.0
TICKS = os.sysconf("SC_CLK_TCK")
PCT = """\
#!/bin/sh
# pct of a host whose containers are folders: `pct exec N ... -- argv`, `pct status N`
case "$1" in
exec) while [ "$1" != -- ]; do shift; done; shift; exec "$@";;
status) echo "status: running";;
esac
"""


@dataclass(frozen=True)
class Place:
    """Runs to watch: their record, and how to let some of them die at once."""

    record: Path
    names: tuple[str, ...]
    kill: Callable[[list[str]], dict[str, float]]  # the epoch seconds of each run's death


@contextmanager
def simulated(count: int, step_s: float) -> Iterator[Place]:
    """Runs that are not there, behind a real sshd."""
    home = Path(tempfile.mkdtemp(prefix="dflashctl-scale-"))
    bin_dir = home / "bin"
    bin_dir.mkdir()
    for name, text in (
        ("pct", PCT),
        ("guest-python", f'#!/bin/sh\nexec {sys.executable} -S -E {ROOT}/benchmarks/fakeguest.py "$@"\n'),
    ):
        (bin_dir / name).write_text(text)
        (bin_dir / name).chmod(0o755)
    sshd = Sshd(home / "ssh", bin_dir)
    try:
        sshd.start()
        yield _simulated(home, sshd, bin_dir, count, step_s)
    finally:
        sshd.stop()
        shutil.rmtree(home)


def _simulated(home: Path, sshd: Sshd, bin_dir: Path, count: int, step_s: float) -> Place:
    targets: dict[str, Target] = {}
    host = Host(name="bench", address="127.0.0.1", user="root", port=sshd.port, identity=str(sshd.identity))
    for index in range(count):
        ct = 200 + index // A_CONTAINER
        state = home / "state" / str(ct)
        state.mkdir(parents=True, exist_ok=True)
        (state / "step_s").write_text(str(step_s))
        targets[f"run-{index:03d}"] = Target(
            host=host, ct=ct, known_hosts=str(sshd.known_hosts), guest_python=str(bin_dir / "guest-python"),
            state_dir=str(state),
        )  # fmt: skip
    path, now = home / "record.sqlite3", SystemClock().now()
    with Record.open(path) as record:
        for name, target in targets.items():
            spec = spec_document(
                RunSpec(run=name, config="tiny"), state_dir=target.state_dir, attempt=1, created_at="t"
            )
            record.save_run(name, target.to_json(), target.key, spec, now)

    def kill(names: list[str]) -> dict[str, float]:
        by_state: dict[str, list[str]] = {}
        for name in names:
            by_state.setdefault(targets[name].state_dir, []).append(name)
        at = time.time()
        for state, mine in by_state.items():
            part = Path(state) / "storm.part"
            part.write_text(json.dumps({"runs": mine, "at": at}))
            part.rename(Path(state) / "storm")
        return dict.fromkeys(names, at)

    return Place(path, tuple(targets), kill)


@contextmanager
def real(count: int, step_s: float) -> Iterator[Place]:
    """Stand-in trainers in the lab's container."""
    home = Path(tempfile.mkdtemp(prefix="dflashctl-scale-"))
    lab = Lab(Path(tempfile.mkdtemp(prefix=f"{PREFIX}-")))
    lab.start(owner=os.getpid())
    try:
        shutil.copy(ROOT / "tests" / "standin.py", lab.rootfs / "opt/standin.py")
        host = Host(name="bench", address="127.0.0.1", user="root", port=lab.port, identity=str(lab.identity))
        target = Target(host=host, ct=200, known_hosts=str(lab.known_hosts))
        site, names = Site(target), [f"real-{index}" for index in range(count)]
        with Record.open(home / "record.sqlite3") as record:
            for name in names:
                words = ("--steps", "100000", "--step-s", str(step_s), "--checkpoint-every", "100")
                spec = RunSpec(run=name, command=("python3", "/opt/standin.py", *words))
                Operator(site, record, SystemClock()).launch(spec, {}, playbook=None)
        site.close()

        def kill(victims: list[str]) -> dict[str, float]:
            pids = {name: _trainer(lab, name) for name in victims}
            at = {}
            for name, pid in pids.items():
                at[name] = time.time()
                os.kill(pid, signal.SIGKILL)
            return at

        yield Place(home / "record.sqlite3", tuple(names), kill)
    finally:
        lab.stop()
        shutil.rmtree(home)


def _trainer(lab: Lab, run: str) -> int:
    """The host's pid of a run's trainer."""
    del lab
    mark = f"DFLASHCTL_RUN={run}\0".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"/opt/standin.py" in words[:2] and mark in (entry / "environ").read_bytes() + b"\0":
                return int(entry.name)
        except OSError:  # it ended meanwhile
            continue
    raise SystemExit(f"{run}: its trainer is not there")


class Watch:
    """The watch as a process, with the kernel's counts of it."""

    def __init__(self, record: Path) -> None:
        self.out = record.with_name("watch.jsonl")
        self._at = 0
        self.peak_mib = 0.0
        argv = [sys.executable, "-m", "orchestrator", "--record", str(record)]
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [*argv, "watch", "--json", "--observe-only"], stdout=out, cwd=ROOT, stdin=subprocess.DEVNULL
            )

    def cpu_s(self) -> float:
        """Seconds of CPU so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mib(self, what: str) -> float:
        """VmRSS (now) or VmHWM (the most ever); 0 of a watch that has ended."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        sizes = (int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith(what))
        return next(sizes, 0.0)

    def fresh(self) -> list[dict[str, Any]]:
        """Return the events since the last call."""
        with self.out.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return [json.loads(line) for line in whole.splitlines() if b'"log"' not in line[:120]]

    def wait_for(self, names: set[str], kind: str, state: str, limit_s: float) -> dict[str, dict[str, Any]]:
        """Return the first event of each run that has this kind and state."""
        found: dict[str, dict[str, Any]] = {}
        deadline = time.monotonic() + limit_s
        while names - set(found) and time.monotonic() < deadline:
            time.sleep(0.25)
            self.peak_mib = max(self.peak_mib, self.memory_mib("VmHWM"))  # it ends with its last run
            for event in self.fresh():
                if event["kind"] == kind and event["detail"].get("state") == state:
                    found.setdefault(event["run"], event)
        return found

    def end(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)


def measure(place: Place, storm: int, seconds: float) -> dict[str, Any]:
    """Watch, idle, then let `storm` runs die at once."""
    watch = Watch(place.record)
    begin = time.monotonic()
    try:
        healthy = watch.wait_for(set(place.names), "state", "healthy", 180)
        seen_s = time.monotonic() - begin
        time.sleep(SETTLE_S)
        cpu, clock = watch.cpu_s(), time.monotonic()
        time.sleep(seconds)
        idle = (watch.cpu_s() - cpu) / (time.monotonic() - clock)
        rss = watch.memory_mib("VmRSS")
        victims = list(place.names)[:: max(1, len(place.names) // storm)][:storm]
        watch.fresh()
        at, cpu = place.kill(victims), watch.cpu_s()
        dead = watch.wait_for(set(victims), "diagnosis", "dead", 120)
        delays = [instant(event["at"]).timestamp() - at[run] for run, event in dead.items()]
        return {
            "runs": len(place.names), "seen": len(healthy), "all_seen_after_s": seen_s, "idle_cores": idle,
            "memory_mib": rss, "storm": len(victims), "diagnosed": len(dead),
            "named_right": sum(e["detail"]["failure"] in ("fx_trace_race", "signal_exit", "oom_host")
                               for e in dead.values()),
            "median_s": quantile(delays, 0.5), "p99_s": quantile(delays, 0.99), "max_s": max(delays),
            "storm_cpu_s": watch.cpu_s() - cpu, "peak_mib": watch.peak_mib,
            "load_average": os.getloadavg()[0],
        }  # fmt: skip
    finally:
        watch.end()


def report(found: dict[str, Any]) -> None:
    told = {key: f"{value:.2f}" if isinstance(value, float) else value for key, value in found.items()}
    print("{seen} of {runs} runs seen alive {all_seen_after_s} s after the start".format(**told))
    print("alive and stepping: {idle_cores} cores, {memory_mib} MiB".format(**told))
    print("{storm} deaths at once: {diagnosed} diagnosed, {named_right} named right".format(**told))
    print("to the diagnosis: median {median_s} s, p99 {p99_s} s, max {max_s} s".format(**told))
    print("peak {peak_mib} MiB; the machine's load average was {load_average}".format(**told))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--storm", type=int, default=50)
    parser.add_argument("--real", type=int, metavar="N", help="N stand-ins in the lab instead")
    parser.add_argument("--step-s", type=float, default=1.0, help="seconds a step of every run")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long it is watched before the storm")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    count = options.real or options.runs
    where = real(count, options.step_s) if options.real else simulated(count, options.step_s)
    with where as place:
        found = measure(place, min(options.storm, count), options.seconds)
    report(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
