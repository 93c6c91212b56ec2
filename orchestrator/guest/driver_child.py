"""Asks the driver once, for `checkup`: nodes, versions, cards. A stuck driver holds it only."""

from __future__ import annotations

import json
import os
from typing import Any

import pynvml

from orchestrator.guest import devices, gpu_child
from orchestrator.guest.gpu_health import quiet


def main(arguments: list[str]) -> int:
    """`driver-child`: print one reading."""
    del arguments
    nodes = devices.nodes()
    initialized: list[bool] = []
    reading = gpu_child.reading(initialized)
    fields = {**reading, "nodes": nodes, "module": devices.module_version(), "library": None, "cuda": None}
    fields["library"] = devices.library_version()
    if initialized:
        fields["module"] = fields["module"] or _text(quiet(pynvml.nvmlSystemGetDriverVersion))
        fields["cuda"] = quiet(pynvml.nvmlSystemGetCudaDriverVersion)
        for gpu in reading["gpus"]:
            gpu["capability"] = quiet(lambda index=gpu["index"]: _capability(index))  # type: ignore[misc]
    os.write(1, json.dumps(fields).encode("ascii") + b"\n")
    return 0


def _capability(index: int) -> list[int]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return [int(part) for part in pynvml.nvmlDeviceGetCudaComputeCapability(handle)]


def _text(value: Any) -> str | None:  # noqa: ANN401
    return value.decode(errors="replace") if isinstance(value, bytes) else value
