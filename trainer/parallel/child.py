"""One rank, as its parent sees it: a process with a session, an output and an end. No torch here."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.parallel.death import LAUNCHER, PEER_EXIT
from trainer.parallel.marks import Marker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

READ_BYTES = 1 << 16
STORE = "store"
"""Files of the launcher's own folder."""


@dataclass(slots=True)
class Child:
    """A rank that was started; `code` is its exit code once it has ended, or minus the signal."""

    rank: int
    process: subprocess.Popen[bytes]
    output: int
    """Reading end of its output; -1 when that has ended."""
    marker: Marker
    code: int | None = None
    is_killed: bool = False
    """By us, for a peer's failure."""

    @property
    def is_victim(self) -> bool:
        """Whether another rank's failure is why it ended."""
        return self.is_killed or self.code == PEER_EXIT

    def has_ended(self) -> bool:
        """Whether it can be reaped; it is not, so its process id stays its own."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end_session(self) -> None:
        """Kill what it left behind, and it too, then reap it."""
        if self.code is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.code = self.process.wait()

    def signal(self, number: int) -> None:
        """Send a signal, unless it was reaped."""
        if self.code is None:
            os.kill(self.process.pid, number)

    def read(self, *, everything: bool) -> tuple[bytes, bool]:
        """Return what can be read now, at most one piece unless `everything`, and whether it is the last."""
        data = b""
        with suppress(BlockingIOError):
            while chunk := os.read(self.output, READ_BYTES):
                data += chunk
                if not everything:
                    return data, False
            return data, True
        return data, everything

    def close(self) -> None:
        """Read no more."""
        os.close(self.output)
        self.output = -1


def start_child(command: list[str], rank: int, count: int, base: Mapping[str, str], folder: Path) -> Child:
    """Start a rank in a session of its own: Ctrl-C in a terminal comes once, and its helpers can be ended.

    Raises:
        OSError: the command cannot be started.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        # Our standard input is theirs: under a supervisor it is the run's lock, held while any of them lives.
        process = subprocess.Popen(
            command,
            env=rank_environ(base, rank, count, folder / STORE),
            stdout=write_end,
            stderr=write_end,
            start_new_session=True,
        )
    finally:
        os.close(write_end)
    os.set_blocking(read_end, False)
    return Child(rank, process, read_end, Marker(rank))


def rank_environ(base: Mapping[str, str], rank: int, count: int, store: Path) -> dict[str, str]:
    """Return torchrun's variables for one node, and where the ranks find each other."""
    cores = len(os.sched_getaffinity(0))
    defaults = {
        "OMP_NUM_THREADS": str(max(1, cores // count)),
        "GLOO_SOCKET_IFNAME": "lo",  # else gloo asks what address the host's name has, which may be none
        **_flight_recorder(base, store.parent),
    }
    place = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "TRAINER_STORE": str(store),
        LAUNCHER: str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
    }
    return {**defaults, **base, **place}


def _flight_recorder(base: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables by which NCCL's last collectives are kept, and written when a rank hangs.

    A rank writes them when a collective times out, or when a watcher writes into its pipe.
    """
    attempt = base.get("DFLASHCTL_ATTEMPT_DIR")
    if attempt is None:
        return {}
    return {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": f"{attempt}/stacks/nccl-rank-",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(folder / "nccl-"),
    }
