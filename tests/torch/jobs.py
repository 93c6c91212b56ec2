"""Whole jobs of several ranks on a tiny shape: started, watched, and what they computed."""

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LOOK_S = 0.001
MEET_S = 0.02
ATTEMPT_S = 300.0
STEPS = 8
TINY = (
    *(f"total_steps={STEPS}", "log_every=1", "checkpoint.every_steps=3", "eval.every_steps=4"),
    *("eval.prompts=0", "eval.windows=1", "data.context_tokens=48", "data.anchors=6", "data.batch_rows=1"),
    *("draft.num_layers=1", "draft.intermediate_size=64", "draft.num_target_layers=1"),
    # Thirty files: every rank reads them, and the whole library takes half a second of each.
    f"data.stdlib={sysconfig.get_path('stdlib')}/asyncio",
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Ranks of a split, or with no target of a job where each rank is both."""

    targets: int
    drafters: int
    micro_batches: int = 0
    more: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return self.targets + self.drafters

    def settings(self) -> list[str]:
        split = ("parallel.placement=split", f"parallel.targets={self.targets}") if self.targets else ()
        own = (f"parallel.processes={self.ranks}", f"optim.micro_batches={self.micro_batches}")
        return [word for each in (*TINY, *split, *own, *self.more) for word in ("--set", each)]

    def role(self, rank: int) -> str:
        return "drafter" if rank < self.drafters else "target"


@dataclass(frozen=True)
class Figures:
    """What a run computed: by step, whichever attempt came last."""

    losses: dict[int, float] = field(default_factory=dict)
    lengths: dict[int, float] = field(default_factory=dict)
    weights: bytes = b""


def trainer(run: Path, shape: Shape, *more: str) -> list[str]:
    return ["-m", "trainer", "--config", "fast", "--run-dir", str(run), *shape.settings(), *more]


def environment(**more: str) -> dict[str, str]:
    """Without a supervisor's or another launcher's variables."""
    foreign = ("DFLASHCTL_", "TORCHELASTIC_", "COVERAGE", "TRAINER_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **more}


def start(run: Path, shape: Shape, *more: str) -> "subprocess.Popen[bytes]":
    """Our launcher and its ranks, in the background; all they say goes to `run`/log."""
    return _background(trainer(run, shape, *more), run / "log", environment())


def torchrun(run: Path, shape: Shape, nodes: int, **variables: str) -> list["subprocess.Popen[bytes]"]:
    """One torchrun agent a node with an equal share of the ranks, meeting on loopback, in the background."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    agent = ["-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={shape.ranks // nodes}"]
    agent += ["--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint=127.0.0.1:{port}"]
    return [
        _background(
            [
                *agent,
                *("--local-addr=127.0.0.1", f"--node-rank={node}"),
                f"--rdzv-conf=is_host={'true' if node == 0 else 'false'}",
                *trainer(run, shape),
            ],
            run / f"log-{node}",
            environment(**variables),
        )
        for node in range(nodes)
    ]


def _background(words: list[str], log: Path, variables: dict[str, str]) -> "subprocess.Popen[bytes]":
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen([sys.executable, *words], cwd=ROOT, env=variables, stdout=file, stderr=file)


def finish(run: Path, shape: Shape, *more: str) -> int:
    """Run to the end; the exit code."""
    process = start(run, shape, *more)
    try:
        return process.wait(ATTEMPT_S)
    finally:
        end(process)


def read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def log(run: Path) -> str:
    """The end of what a run said, for a test that failed."""
    return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(run.glob("log*")))


def end(process: "subprocess.Popen[bytes]") -> None:
    """Whatever happened, leave nothing: ranks end when their launcher is gone."""
    for pid in rank_pids(process.pid).values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()


def figures(run: Path) -> Figures:
    found = Figures(weights=(run / "export/model.safetensors").read_bytes())
    for attempt in sorted((run / "attempts").iterdir(), key=lambda path: int(path.name)):
        path = attempt / "metrics.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            value = json.loads(line)
            if value["kind"] == "train":
                found.losses[value["step"]] = value["loss"]
            else:
                found.lengths[value["step"]] = value["acceptance_length"]
    return found


def rank_pids(launcher: int) -> dict[int, int]:
    """Process ids of the launcher's children, by the RANK in their environment."""
    found: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal() or _parent(path) != launcher:
            continue
        with suppress(OSError):
            for item in (path / "environ").read_bytes().split(b"\0"):
                if item.startswith(b"RANK="):
                    found[int(item[5:])] = int(path.name)
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


class Attempt:
    """One that runs: its launcher or agents, its ranks as far as they are known, what its leader tells."""

    def __init__(self, run: Path, shape: Shape, *more: str, nodes: int = 0, **variables: str) -> None:
        """`nodes`: torchrun's, 0 for our own launcher."""
        self.number = 1 + max((int(path.name) for path in (run / "attempts").glob("*")), default=0)
        self.folder = run / "attempts" / str(self.number)
        self.pids: dict[int, int] = {}
        self._shape, self._run = shape, run
        self._looked_at = float("-inf")
        self.processes = torchrun(run, shape, nodes, **variables) if nodes else [start(run, shape, *more)]

    def reach(self, phase: str, *, steps: int = 0, seconds: float = 0.0) -> bool:
        """Wait for a phase, and in training for some steps, else for some time. False: it ended before."""
        deadline = time.monotonic() + ATTEMPT_S
        while self.told().get("phase") != phase or len(self.pids) < self._shape.ranks:
            if any(process.poll() is not None for process in self.processes):
                return False
            assert time.monotonic() < deadline, f"phase {phase} did not come:\n{log(self._run)}"
            self._meet()
            time.sleep(LOOK_S)
        time.sleep(seconds)
        while phase == "train" and self._steps() < steps and self.told().get("phase") == "train":
            time.sleep(LOOK_S)
        return True

    def await_steps(self, steps: int) -> None:
        """Until as many are logged, in whatever phase that is."""
        while self._steps() < steps:
            assert self.processes[0].poll() is None, log(self._run)
            time.sleep(LOOK_S)

    def told(self) -> dict[str, Any]:
        """The heartbeat."""
        try:
            return read(self.folder / "heartbeat.json")
        except FileNotFoundError:
            return {}

    def step(self) -> int:
        """The last one told; the heartbeat tells no more than two a second."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return max([int(self.told().get("step", 0)), *(int(json.loads(line)["step"]) for line in lines)])

    def await_end(self) -> int:
        """Until each launcher and every rank is gone; the largest exit code."""
        code = max(process.wait(ATTEMPT_S) for process in self.processes)
        while not all(is_gone(pid) for pid in self.pids.values()):
            time.sleep(LOOK_S)
        return code

    def end(self) -> None:
        """Whatever happened, leave nothing."""
        for process in self.processes:
            end(process)

    def _meet(self) -> None:
        if len(self.pids) < self._shape.ranks and time.monotonic() - self._looked_at > MEET_S:
            self.pids = {rank: pid for each in self.processes for rank, pid in rank_pids(each.pid).items()}
            self._looked_at = time.monotonic()

    def _steps(self) -> int:
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0


def _parent(path: Path) -> int:
    try:
        return int((path / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0
