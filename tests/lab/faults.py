"""What a bad day brings: the part of the lab that breaks things on purpose."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.furnish import library_dir
from tests.lab.gpus import STATE_IN_CONTAINER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.container import Container
    from tests.lab.gpus import GpuState
    from tests.lab.sshd import Sshd


class Faults:
    """Everything here is undone by `Lab.reset`."""

    ct = 200
    state: Path
    sshd: Sshd
    containers: dict[int, Container]

    @property
    def rootfs(self) -> Path:
        """The root of container 200 as seen from the host (/tmp, /run and /dev are mounted inside only)."""
        return self.containers[self.ct].root

    @property
    def gpu_state(self) -> Path:
        """The file that drives the stub NVML of container 200; `GpuState(...).write(path)` writes it."""
        return self.rootfs / STATE_IN_CONTAINER

    def start_container(self, ct: int = 200) -> None:
        """Start a container; a running one is left alone."""
        self.containers[ct].start()

    def stop_container(self, ct: int = 200) -> None:
        """Kill a container at once."""
        self.containers[ct].stop()

    def freeze(self, ct: int = 200) -> None:
        """Freeze a container, as a backup in suspend mode does."""
        self.containers[ct].freeze()

    def unfreeze(self, ct: int = 200) -> None:
        """Thaw it."""
        self.containers[ct].unfreeze()

    def lock(self, ct: int = 200, reason: str = "backup") -> None:
        """Set the container's lock, as vzdump does."""
        self.unlock(ct)
        with self.containers[ct].pve_config.open("a") as file:
            file.write(f"lock: {reason}\n")

    def unlock(self, ct: int = 200) -> None:
        """Drop the lock."""
        path = self.containers[ct].pve_config
        lines = [line for line in path.read_text().splitlines() if not line.startswith("lock:")]
        path.write_text("\n".join(lines) + "\n")

    @contextmanager
    def config_locked(self, ct: int = 200) -> Iterator[None]:
        """Hold the lock of the container's configuration, which push, pull and start wait 10 s for."""
        with (self.state / "run" / f"pve-config-{ct}.lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def set_pct_delay(self, seconds: float) -> None:
        """Make every `pct` take that long to start; the real one is Perl."""
        (self.state / "pct-delay").write_text(f"{seconds:g}\n")

    def set_nvml(self, which: str) -> None:
        """Put in place the "new" stub, the "old" one without newer symbols, or "none" (no library at all)."""
        installed = self.rootfs / library_dir() / "libnvidia-ml.so.1"
        built = {"new": "nvml-new.so", "old": "nvml-old.so", "none": None}[which]
        installed.unlink(missing_ok=True)
        if built is not None:
            shutil.copy2(self.state / "build" / built, installed)

    def set_gpus(self, gpus: GpuState) -> None:
        """What the stub NVML and nvidia-smi answer from now on."""
        gpus.write(self.gpu_state)

    def kernel_says(self, text: str, *, at: float | None = None) -> None:
        """Make the host's kernel print a line, now or at a time of its clock (epoch seconds)."""
        path = self.state / "kernel.jsonl"
        micros = int((time.time() if at is None else at) * 1e6)
        with path.open("a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            entry = {"__CURSOR": f"s=lab;i={path.stat().st_size:x}", "__REALTIME_TIMESTAMP": str(micros)}
            file.write(json.dumps({**entry, "MESSAGE": text}) + "\n")

    def hide_kernel_log(self, how: str) -> None:
        """`kernel-denied`: nobody may read it. `no-journal`: only dmesg. `real-kernel`: this machine's."""
        (self.state / how).touch()

    def show_kernel_log(self) -> None:
        """Forget what the kernel said and who may not read it."""
        for name in ("kernel.jsonl", "kernel-denied", "no-journal", "real-kernel"):
            (self.state / name).unlink(missing_ok=True)

    @property
    def cgroup(self) -> str:
        """The directory of this lab's containers in every cgroup hierarchy."""
        raise NotImplementedError

    def limit_memory(self, size: int, ct: int = 200) -> Path:
        """Limit a container's memory, as `pct set --memory` does; return the cgroup's directory."""
        name = f"{self.cgroup}/lxc/{ct}"
        legacy, unified = Path("/sys/fs/cgroup/memory") / name, Path("/sys/fs/cgroup") / name
        if legacy.is_dir():
            (legacy / "memory.limit_in_bytes").write_text(str(size))
            return legacy
        (unified / "memory.max").write_text(str(size))
        return unified

    def restart_sshd(self, *, new_host_key: bool = False) -> None:
        """Restart the listener; live connections stay. A new host key is not put into `known_hosts`."""
        self.sshd.restart(new_host_key=new_host_key)

    def stop_sshd(self) -> None:
        """Make the host unreachable: connections drop and the port refuses."""
        self.sshd.stop()

    def start_sshd(self) -> None:
        """Make it reachable again, on the same port with the same key."""
        self.sshd.start()

    def kill_ssh_connections(self) -> int:
        """Drop every live connection; return how many processes served them."""
        return self.sshd.kill_connections()
