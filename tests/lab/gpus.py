"""The file that drives the stub NVML library and the stand-in for nvidia-smi."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

STATE_IN_CONTAINER = "var/lib/dflashctl-lab/gpus"
TOTAL_MIB = 143771  # what an H200 reports
DRIVER_MISMATCH = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML tells it. Memory in MiB, power in watts; None is "not supported"; pids are the host's."""

    index: int
    used_mib: float | None = 4
    total_mib: float | None = TOTAL_MIB
    utilization_pct: int | None = 0
    power_w: float | None = 75
    temperature_c: int | None = 30
    processes: dict[int, float] = field(default_factory=dict)
    name: str = "NVIDIA H200"
    uuid: str = ""
    recovery: int = 0  # NVML_GPU_RECOVERY_ACTION_*
    ecc_uncorrected: int = 0
    remap_pending: bool = False
    remap_failed: bool = False

    def line(self) -> str:
        """This GPU as a line of the file (see nvml_stub.c)."""
        uuid = self.uuid or f"GPU-00000000-0000-0000-0000-{self.index:012d}"
        numbers = (self.used_mib, self.total_mib, self.utilization_pct, self.power_w, self.temperature_c)
        told = ",".join("-" if number is None else f"{number:g}" for number in numbers)
        processes = " ".join(f"{pid}:{mib:g}" for pid, mib in self.processes.items())
        return f"gpu {self.index},{uuid},{self.name},{told},{processes}"

    @property
    def pci(self) -> str:
        """Its address as the kernel names it."""
        return f"0000:{0x10 + self.index:02x}:00"

    def health(self) -> str:
        """Its health as a line of the file."""
        flags = f"{self.remap_pending:d},{self.remap_failed:d}"
        return f"health {self.index},{self.recovery},{self.ecc_uncorrected},{flags}"


@dataclass(frozen=True)
class GpuState:
    """All that the stub answers: the GPUs and what is wrong with them."""

    gpus: tuple[Gpu, ...] = tuple(Gpu(index) for index in range(8))
    hide_processes: bool = False
    hang_s: float = 0
    lost: tuple[int, ...] = ()
    init_error: int = 0
    driver: str = "570.133.20"

    def with_gpu(self, gpu: Gpu) -> GpuState:
        """The same state with the GPU of that index replaced."""
        return replace(self, gpus=tuple(gpu if old.index == gpu.index else old for old in self.gpus))

    def text(self) -> str:
        """The file's content."""
        lines = [f"driver {self.driver}", *(gpu.line() for gpu in self.gpus)]
        lines += [gpu.health() for gpu in self.gpus]
        lines += [f"lost {index}" for index in self.lost]
        if self.hide_processes:
            lines.append("hide-processes 1")
        if self.hang_s:
            lines.append(f"hang {self.hang_s:g}")
        if self.init_error:
            lines.append(f"init-error {self.init_error}")
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """Replace the file at once, so that no reader sees half of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".gpus-")
        with os.fdopen(handle, "w") as file:
            file.write(self.text())
        path.parent.joinpath(temporary).chmod(0o644)
        path.parent.joinpath(temporary).replace(path)
