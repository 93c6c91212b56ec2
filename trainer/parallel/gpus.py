"""Each rank sees one GPU, as cuda:0: the compile cache keys on the device index. No torch here.

NCCL reaches a peer's memory directly (P2P) all the same: since CUDA 10.1 the peer need not be visible.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from trainer.config import Config

VISIBLE = "CUDA_VISIBLE_DEVICES"
OWN = "TRAINER_OWN_GPU"
"""Set once a rank has hidden the others, so that doing it again changes nothing."""


def visible_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """Return the GPUs that CUDA would see, as indices, UUIDs or MIG names; else count the device nodes."""
    listed = environ.get(VISIBLE)
    if listed is None:
        count = sum(bool(re.fullmatch(r"nvidia\d+", node.name)) for node in devices.iterdir())
        return [str(index) for index in range(count)]
    names = []
    for name in (part.strip() for part in listed.split(",")):
        if not name or name.startswith("-"):  # CUDA stops at the first one that is none
            break
        names.append(name)
    return names


def hide_other_gpus(environ: MutableMapping[str, str], local_rank: int, devices: Path = Path("/dev")) -> None:
    """Leave only the local_rank-th visible GPU. To be called before CUDA is initialised.

    Raises:
        ConfigInvalid: there is no such GPU.
    """
    if OWN in environ:
        return
    names = visible_gpus(environ, devices)
    if local_rank >= len(names):
        raise ConfigInvalid(
            f"parallel.processes: local rank {local_rank} has no GPU, {len(names)} visible ({VISIBLE}="
            f"{environ.get(VISIBLE, 'not set')}); allowed: at most one process a GPU, or compute.device = cpu"
        )
    environ[VISIBLE] = environ[OWN] = names[local_rank]


def num_processes(config: Config, environ: Mapping[str, str], devices: Path = Path("/dev")) -> int:
    """Return how many ranks this node starts: parallel.processes, or one a visible GPU, or one on the CPU."""
    if config.parallel.processes:
        return config.parallel.processes
    return 1 if config.compute.device == "cpu" else max(1, len(visible_gpus(environ, devices)))
