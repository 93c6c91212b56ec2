"""What a job's first failure looks like, and how a rank's death without a word is told. No torch here."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.clock import utc_now
from trainer.files import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping

PEER_EXIT = 71
"""Exit code of a rank that left because another one failed; never the code of a first failure."""
RANK_DIED = "trainer.errors.RankDied"
LAUNCHER = "TRAINER_LAUNCHER"
"""Process id of our own launcher, which then tells of silent deaths: it alone knows the signal."""
_COMMUNICATION = re.compile(
    r"nccl|gloo|tcpstore|connection (closed|reset|refused)|broken pipe|socket|process ?group|collective",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """The first rank of a job that failed."""

    rank: int
    role: str
    message: str
    at: str
    silent: bool = False
    """Whether it could not say it itself."""

    def line(self) -> str:
        """One line for the log."""
        return f"rank {self.rank} ({self.role}) failed first: {self.message}"

    def dump(self) -> str:
        """For the store."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str | bytes) -> Failure:
        """From the store."""
        return cls(**json.loads(text))


def is_communication(error: BaseException) -> bool:
    """Whether it may be no more than the echo of another rank's death: a peer or the store that is gone."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    if any(name.startswith(("torch.distributed.", "torch._C._Dist")) for name in names):
        return True
    return isinstance(error, (RuntimeError, OSError)) and bool(_COMMUNICATION.search(str(error)))


def signal_name(number: int) -> str:
    """SIGKILL, or the number of one that has no name here."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def write_error(path: Path, failure: Failure, heartbeat: Mapping[str, object]) -> bool:
    """Write error.json for a rank that could not, unless there is one.

    `heartbeat` gives phase and step, as last told. Raises OSError if it cannot be written.
    """
    value = {
        "schema": SCHEMA,
        "exception": RANK_DIED,
        "message": failure.line(),
        "traceback": "",
        "rank": failure.rank,
        "phase": heartbeat.get("phase", "init"),
        "step": heartbeat.get("step", 0),
        "kind": None,
        "at": failure.at,
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}.rank.tmp")
    temporary.write_text(json.dumps(value))
    try:
        os.link(temporary, path)  # exclusive and atomic at once
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def read_heartbeat(attempt: Path) -> dict[str, object]:
    """What the leader told last, or nothing."""
    try:
        value: dict[str, object] = json.loads((attempt / "heartbeat.json").read_text())
    except (OSError, ValueError):
        return {}
    return value


def silent_failure(rank: int, role: str, how: str) -> Failure:
    """A death without a word."""
    return Failure(
        rank=rank, role=role, message=f"{how}, without a word of its own", at=utc_now(), silent=True
    )


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this pid namespace, by its id and start, so that a reused id is not taken for it."""

    space: str
    pid: int
    started: str

    @classmethod
    def own(cls) -> Process:
        """This one."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
        return cls(space, os.getpid(), _start(os.getpid()) or "")

    def is_gone(self) -> bool:
        """Whether it has ended; a zombie has."""
        return _start(self.pid) != self.started


def _start(pid: int) -> str | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()
