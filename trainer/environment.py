"""How torch is set up, and environment.json, which tells what this attempt ran on.

Names of environment variables only, never their values.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch

from trainer.clock import utc_now

if TYPE_CHECKING:
    from trainer.config import Config


MAX_THREADS = 8


def set_up_torch(config: Config) -> None:
    """Threads and determinism."""
    torch.set_num_threads(config.compute.threads or min(MAX_THREADS, len(os.sched_getaffinity(0))))
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(config.seed)


def fingerprint(config: Config, *, corpus: str, target_sha256: str) -> dict[str, Any]:
    """Versions, hardware, configuration and data."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "argv": sys.argv,
        "platform": platform.platform(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "packages": {name: _version(name) for name in ("numpy", "safetensors", "transformers", "triton")},
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "cpu_threads": torch.get_num_threads(),
        "config": dataclasses.asdict(config),
        "corpus_sha256": corpus,
        "target_sha256": target_sha256,
        "env_names": sorted(os.environ),
        "at": utc_now(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
