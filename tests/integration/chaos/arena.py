"""A lab of many lanes: each has a container, an sshd, a small disk and a clock of its own."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.chaos import trainer
from tests.lab.container import Container, is_mounted, unmount
from tests.lab.host import LabError, run
from tests.lab.lab import Lab
from tests.lab.sshd import Sshd

if TYPE_CHECKING:
    from tests.lab.host import LentPython

HERE = Path(__file__).resolve().parent
FIRST_CT = 210
DISK = "size=112m"
IN_CONTAINER = "/var/lib/chaos"
STATE_DIR = f"{IN_CONTAINER}/state"
TRAINER = "/opt/chaos/trainer.py"


class SmallDiskContainer(Container):
    """A container whose state folder is on a small disk that outlives its restarts."""

    @property
    def disk(self) -> Path:
        """The small disk, as the host sees it."""
        return self.lab / "disks" / str(self.ct)

    def prepare(self, lower: Path, cgroup: str, lent: LentPython | None) -> None:
        """Mount the disk too."""
        super().prepare(lower, cgroup, lent)
        self.disk.mkdir(parents=True, exist_ok=True)
        if not is_mounted(self.disk):
            run(["mount", "-t", "tmpfs", "-o", f"{DISK},mode=755", "dflashctl-chaos", self.disk])
        set_clock(self.disk / "clock", 0)
        entry = f"lxc.mount.entry = {self.disk} {IN_CONTAINER[1:]} none bind,create=dir 0 0\n"
        with (self.lab / "lxc" / str(self.ct) / "config").open("a") as config:
            config.write(entry)

    def discard(self) -> None:
        """The disk goes too."""
        super().discard()
        unmount(self.disk)
        shutil.rmtree(self.disk, ignore_errors=True)


class Arena(Lab):
    """A lab with `lanes` containers in place of the usual two."""

    ct = FIRST_CT

    def __init__(self, state: Path, lanes: int) -> None:
        super().__init__(state)
        self.containers = {
            FIRST_CT + n: SmallDiskContainer(self.state, FIRST_CT + n, f"lane{n}", num_gpus=0)
            for n in range(lanes)
        }
        self.lanes = [Place(self, ct) for ct in self.containers]

    @property
    def clock_library(self) -> Path:
        """What moves a process's wall clock."""
        return self.state / "build" / "clockjump.so"

    def open(self) -> None:
        """Start everything."""
        self.start(owner=os.getpid())
        run(["gcc", "-O1", "-Wall", "-shared", "-fPIC", HERE / "clockjump.c", "-o", self.clock_library])
        for place in self.lanes:
            place.furnish()
            place.container.start()
            place.sshd.start()

    def close(self) -> None:
        """End everything."""
        for place in self.lanes:
            if place.sshd.home.exists():
                place.unmute()
                place.sshd.stop()
        self.stop()


@dataclass
class Place:
    """One lane's container, reached through an sshd that serves nobody else."""

    arena: Arena
    ct: int

    @property
    def container(self) -> SmallDiskContainer:
        """The container."""
        found = self.arena.containers[self.ct]
        assert isinstance(found, SmallDiskContainer)
        return found

    @property
    def sshd(self) -> Sshd:
        """The way in."""
        return Sshd(self.arena.state / f"ssh-{self.ct}", self.arena.pct_bin_dir)

    @property
    def runs(self) -> Path:
        """The runs, as the host sees them."""
        return self.container.disk / "state" / "runs"

    @property
    def witness(self) -> Path:
        """Where trainers write what they know; no fault touches it."""
        return self.container.root / "opt/chaos"

    def where(self) -> list[str]:
        """Return the words that reach it."""
        return [
            "--host", "127.0.0.1", "--port", str(self.sshd.port), "--identity", str(self.sshd.identity),
            "--known-hosts", str(self.sshd.known_hosts), "--ct", str(self.ct), "--state-dir", STATE_DIR,
        ]  # fmt: skip

    def furnish(self) -> None:
        """Put the trainer and the movable clock in."""
        self.witness.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(trainer.__file__), self.container.root / TRAINER[1:])
        shutil.copy(self.arena.clock_library, self.container.root / "usr/lib/clockjump.so")
        (self.container.root / "etc/ld.so.preload").write_text("/usr/lib/clockjump.so\n")

    # -- what is done to it

    def mute(self) -> None:
        """The host takes connections and says nothing."""
        self.sshd.kill_connections()
        self._signal_sshd(signal.SIGSTOP)

    def unmute(self) -> None:
        """It speaks again."""
        self._signal_sshd(signal.SIGCONT)

    def _signal_sshd(self, number: signal.Signals) -> None:
        pid = self.sshd.pid()
        if pid is not None:
            os.kill(pid, number)

    def processes(self, *words: str) -> list[int]:
        """Return the host's pids of this container's processes whose command line holds all of `words`."""
        found = []
        mark = f"/lxc/{self.ct}".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                line = (entry / "cmdline").read_bytes()
                fits = bool(line) and all(word.encode() in line for word in words)
                if fits and mark in (entry / "cgroup").read_bytes():
                    found.append(int(entry.name))
            except OSError:  # it ended meanwhile
                continue
        return found

    def kill(self, *words: str) -> int:
        """SIGKILL them; return how many there were."""
        pids = self.processes(*words)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return len(pids)

    def kill_tmux(self) -> None:
        """End the tmux server that the runs' sessions are in."""
        self.attach("tmux", "-L", "dflashctl", "kill-server")

    def attach(self, *argv: str) -> None:
        """Run argv inside; what it says, and whether it could, does not matter."""
        try:
            self.container.lxc("lxc-attach", "--clear-env", "--", *argv, check=False)
        except LabError:
            return

    def fill_disk(self) -> None:
        """Leave a few kilobytes."""
        subprocess.run(
            ["dd", "if=/dev/zero", f"of={self.container.disk}/ballast", "bs=4k"],
            capture_output=True, check=False,
        )  # fmt: skip

    def empty_disk(self) -> None:
        """Give the space back."""
        (self.container.disk / "ballast").unlink(missing_ok=True)

    def heal(self) -> None:
        """Undo every fault that can be undone from outside; the clocks stay where they are."""
        self.unmute()
        self.sshd.start()
        self.empty_disk()
        if self.container.state() in ("FROZEN", "FREEZING"):
            self.container.unfreeze()
        self.container.start()


def set_clock(path: Path, seconds: int) -> None:
    """Move a clock: what is loaded maps this very file, so it is written in place."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(struct.pack("<q", seconds))
