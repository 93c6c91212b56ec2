"""Start the ranks of tests/torch/ranks.py under our launcher or torchrun, and look at what they left."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.cli import LONG_S

ROOT = Path(__file__).parents[2]
RANKS = str(Path(__file__).with_name("ranks.py"))
LAUNCH = """
import sys
from pathlib import Path
from trainer.parallel.spawn import launch
targets, count = int(sys.argv[4]), int(sys.argv[5])
sys.exit(launch([sys.executable, *sys.argv[1:5]], count, attempt=Path(sys.argv[3]),
                role_of=lambda rank: "drafter" if rank < count - targets else "target"))
"""


def environ(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **more}


def launch(mode, out, *, targets, count, **more):
    """Our launcher, in the background."""
    with (out / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", LAUNCH, RANKS, mode, str(out), str(targets), str(count)],
            cwd=ROOT,
            env=environ(**more),
            stdout=log,
            stderr=log,
        )


def torchrun(mode, out, *, targets, nodes, each):
    """One torchrun agent a node, meeting on loopback, in the background."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    agents = []
    for node in range(nodes):
        with (out / f"log-{node}").open("ab") as log:
            agents.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}"),
                        *(f"--nproc-per-node={each}", "--rdzv-backend=c10d", "--rdzv-id=test"),
                        *(f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"),
                        f"--rdzv-conf=is_host={'true' if node == 0 else 'false'}",
                        *(RANKS, mode, str(out), str(targets)),
                    ],
                    cwd=ROOT,
                    env=environ(),
                    stdout=log,
                    stderr=log,
                )
            )
    return agents


def logs(out):
    return "\n".join(path.read_text(errors="replace") for path in sorted(out.glob("log*")))


def await_ranks(out, name, ranks, processes, limit_s=LONG_S):
    """Wait until each rank has left the file; fail with the log if the launcher ends before."""
    deadline = time.monotonic() + limit_s
    while not all((out / f"{name}-{rank}").exists() for rank in ranks):
        assert all(process.poll() is None for process in processes), logs(out)
        assert time.monotonic() < deadline, logs(out)
        time.sleep(0.05)


def pids(out):
    return {int(path.name.partition("-")[2]): int(path.read_text()) for path in out.glob("pid-*")}


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


def await_end(out, limit_s=120):
    """Wait until no rank is left: long before a backend gives a silent peer up, which takes half an hour."""
    began = time.monotonic()
    while not all(is_gone(pid) for pid in pids(out).values()):
        assert time.monotonic() - began < limit_s, logs(out)
        time.sleep(0.02)


def told(out, rank, name="told"):
    return json.loads((out / f"{name}-{rank}.json").read_text())


def error(out):
    return json.loads((out / "error.json").read_text())
