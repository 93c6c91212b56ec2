"""How torch is set up, and environment.json, which tells what this attempt ran on.

It is there to be compared: `dflashctl diff` sets the file of an attempt that worked beside that of one that
does not. So each part is told by itself, versions with the builds behind them, and what cannot be known is
null, not left out. Names of environment variables only, never their values.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer import provenance
from trainer.clock import utc_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.config import Config


MAX_THREADS = 8


def set_up_torch(config: Config, device: torch.device, num_ranks: int) -> None:
    """Threads and determinism."""
    cores = min(MAX_THREADS, len(os.sched_getaffinity(0)))
    torch.set_num_threads(config.compute.threads or max(1, cores // num_ranks))
    # On a GPU every operation of a step is deterministic as it is, given CUBLAS_WORKSPACE_CONFIG (and flex
    # attention); the mode would also fill new memory, and refuse operations that only evaluation uses.
    torch.use_deterministic_algorithms(mode=device.type == "cpu")
    torch.manual_seed(config.seed)


def fingerprint(
    config: Config,
    *,
    corpus: str,
    target_sha256: str,
    overrides: Sequence[str] = (),
    compile_cache: Path | None = None,
) -> dict[str, Any]:
    """Versions, hardware, code, configuration, data and compile cache, as they are when it is called.

    Args:
        config: The configuration, overrides applied.
        corpus: Fingerprint of the data.
        target_sha256: Fingerprint of the target's weights.
        overrides: The `key=value` words of the command line.
        compile_cache: Directory of the compile cache; call before the first compile, as it tells whether
            there is one yet. None takes that of the supervisor's run directory.
    """
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "argv": sys.argv,
        "platform": platform.platform(),
        "kernel": platform.release(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "torch_build": torch_build(),
        "driver": provenance.driver_version(),
        "gpus": gpus(),
        "cpu": {"machine": platform.machine(), "capability": torch.backends.cpu.get_cpu_capability()},
        "packages": provenance.versions(),
        "wheels": provenance.wheel_hashes(),
        "compile_cache": provenance.folder_summary(compile_cache or _cache_of_run()),
        "code": provenance.code(Path(__file__).parent),
        "cpu_threads": torch.get_num_threads(),
        "config": dataclasses.asdict(config),
        "overrides": list(overrides),
        "corpus_sha256": corpus,
        "target_sha256": target_sha256,
        "env_names": sorted(os.environ),
        "at": utc_now(),
    }


def torch_build() -> dict[str, Any]:
    """What torch was built from and with; null where this build has none."""
    is_distributed = torch.cuda.is_available() and torch.distributed.is_available()
    has_nccl = is_distributed and torch.distributed.is_nccl_available()
    return {
        "git": torch.version.git_version,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None,
        "cxx11_abi": torch.compiled_with_cxx11_abi(),
        "arch_list": torch.cuda.get_arch_list(),
    }


def gpus() -> list[dict[str, Any]]:
    """The GPUs that this process sees, in its order."""
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
            }
        )
    return found


def _cache_of_run() -> Path | None:
    run_dir = os.environ.get("DFLASHCTL_RUN_DIR")
    return Path(run_dir) / "compile-cache" if run_dir else None
