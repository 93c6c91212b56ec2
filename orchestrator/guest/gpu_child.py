"""The child that reads the GPUs and prints a JSON line each: NVML, else nvidia-smi, else what is missing."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
from typing import Any

import pynvml

from orchestrator.guest import clock, gpu_health
from orchestrator.guest.gpu_health import quiet

SMI_LIMIT_S = 3.0
SMI_FIELDS = "index,uuid,name,memory.used,memory.total,utilization.gpu,power.draw,temperature.gpu,pci.bus_id"
MIB = 1 << 20
NO_DRIVER = "none"
Reading = dict[str, Any]


def main(arguments: list[str]) -> int:
    """`gpu-child EVERY_S`: print readings until nobody listens."""
    every_s = float(arguments[0]) if arguments else 2.0
    initialized: list[bool] = []
    while True:
        line = json.dumps(reading(initialized)).encode("ascii") + b"\n"
        try:
            os.write(1, line)
        except BrokenPipeError:
            return 0
        clock.wait(every_s)


def reading(initialized: list[bool]) -> Reading:
    """Return one reading of all GPUs; NVML stays initialized (not empty) until it fails as a whole."""
    try:
        if not initialized:
            pynvml.nvmlInit()
            initialized.append(True)
        gpus = [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        initialized.clear()
        quiet(pynvml.nvmlShutdown)
        found = _without_nvml(f"NVML: {error}")
        is_missing = isinstance(error, pynvml.NVMLError_LibraryNotFound)
        if is_missing and shutil.which("nvidia-smi") is None:
            # No driver at all is an answer (a machine without GPUs), unlike a driver that does not answer.
            return {**found, "source": NO_DRIVER}
        return found
    return {"gpus": gpus, "source": "nvml", "problem": None}


def _gpu(index: int) -> Reading:
    empty: Reading = dict.fromkeys(
        (
            "uuid",
            "name",
            "memory_used_bytes",
            "memory_total_bytes",
            "utilization_pct",
            "power_w",
            "temperature_c",
            *gpu_health.FIELDS,
        )
    )
    gpu = {"index": index, **empty, "processes": [], "problem": None}
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        return {**gpu, "problem": f"NVML: {error}"}
    power = quiet(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
    rates = quiet(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    return {
        **gpu,
        "uuid": _text(quiet(lambda: pynvml.nvmlDeviceGetUUID(handle))),
        "name": _text(quiet(lambda: pynvml.nvmlDeviceGetName(handle))),
        "memory_used_bytes": int(memory.used),
        "memory_total_bytes": int(memory.total),
        "utilization_pct": None if rates is None else float(rates.gpu),
        "power_w": None if power is None else power / 1000,
        "temperature_c": quiet(
            lambda: float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
        ),
        "processes": _processes(handle),
        **gpu_health.read(handle),
    }


def _text(value: Any) -> str | None:  # noqa: ANN401
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _processes(handle: Any) -> list[Reading]:  # noqa: ANN401
    """Compute processes, with the host's process ids; older drivers lack the newer symbols."""
    for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
        function = getattr(pynvml, name, None)
        found = quiet(lambda call=function: call(handle)) if function else None  # type: ignore[misc]
        if found is not None:
            return [{"pid": int(p.pid), "memory_bytes": p.usedGpuMemory} for p in found]
    return []


def _without_nvml(problem: str) -> Reading:
    command = ["nvidia-smi", f"--query-gpu={SMI_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=SMI_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return {"gpus": [], "source": None, "problem": f"{problem}; no nvidia-smi"}
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"gpus": [], "source": None, "problem": f"{problem}; nvidia-smi: {error}"}
    gpus = [
        _smi_gpu(row)
        for row in csv.reader(io.StringIO(answer.stdout), skipinitialspace=True)
        if len(row) == 9
    ]
    if answer.returncode != 0 or not gpus:
        said = (answer.stderr or answer.stdout).strip()[:300]
        problem = f"{problem}; nvidia-smi (code {answer.returncode}): {said}"
        return {"gpus": gpus, "source": "nvidia-smi" if gpus else None, "problem": problem}
    return {"gpus": gpus, "source": "nvidia-smi", "problem": None}


def _smi_gpu(row: list[str]) -> Reading:
    index, uuid, name, used, total, busy, power, degrees, bus = row
    numbers = [_number(text) for text in (used, total, busy, power, degrees)]
    bad = [text for text in row if text.startswith("[") and "N/A" not in text and "Not Supported" not in text]
    return {
        "index": int(_number(index) or 0),
        "uuid": uuid,
        "name": name,
        "memory_used_bytes": None if numbers[0] is None else int(numbers[0] * MIB),
        "memory_total_bytes": None if numbers[1] is None else int(numbers[1] * MIB),
        "utilization_pct": numbers[2],
        "power_w": numbers[3],
        "temperature_c": numbers[4],
        "processes": [],
        "problem": f"nvidia-smi: {bad[0]}" if bad else None,
        **dict.fromkeys(gpu_health.FIELDS),
        "pci": gpu_health.address(bus),
    }


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
