"""What a rank needs before it can work: target or vocabulary, data, and the drafter's shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.attention import refuse_backend, refuse_dense
from trainer.console import say
from trainer.data.buckets import buckets
from trainer.data.dataset import Data, open_data
from trainer.errors import ConfigInvalid
from trainer.flash import require_flash
from trainer.model import DraftShape, draft_shape
from trainer.plan import forecast, require_fit
from trainer.target.files import is_own
from trainer.target.load import load_target, load_vocabulary, mask_token, read_shape, target_sha256

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.job import Job
    from trainer.target.api import Target, TargetShape, Vocabulary


@dataclass(frozen=True, slots=True)
class Machine:
    """Where this rank computes, and how."""

    device: torch.device
    dtype: torch.dtype
    backend: str


@dataclass(slots=True)
class Loaded:
    """What does not change while training goes on."""

    machine: Machine
    target: Target | None
    """None on a rank that does not run it."""
    vocabulary: Vocabulary
    target_shape: TargetShape
    target_sha256: str
    shape: DraftShape
    mask_token: int
    data: Data


def choose_machine(config: Config) -> Machine:
    """Resolve `auto`.

    Raises:
        ConfigInvalid: cuda was asked for, and there is none.
    """
    compute = config.compute
    available = torch.cuda.is_available()
    if compute.device == "cuda" and not available:
        raise ConfigInvalid(
            f"compute.device: cuda, but torch {torch.__version__} finds no CUDA device; allowed here: cpu; "
            "or see what nvidia-smi says"
        )
    kind = ("cuda" if available else "cpu") if compute.device == "auto" else compute.device
    on_gpu = kind == "cuda"
    dtype = ("bfloat16" if on_gpu else "float32") if compute.dtype == "auto" else compute.dtype
    backend = ("inductor" if on_gpu else "aot_eager") if compute.compile_backend == "auto" else None
    # Always the first: a rank sees its own GPU alone, since the compile cache keys on the index.
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    return Machine(device, getattr(torch, dtype), backend or compute.compile_backend)


def require_memory(config: Config, drafters: int, machine: Machine) -> None:
    """Refuse what would not fit, before anything is allocated.

    Raises:
        ConfigInvalid: the worst step is forecast to take more than the device has, or compute.attention is
            flash where that cannot compute.
        DenseAttentionRefused: on the CPU, its dense attention would be over its limit; on a GPU, the backend
            would run attention densely.
    """
    found = read_shape(config.target)
    if config.compute.attention == "flash":
        require_flash(machine.device, machine.dtype, config.draft.head_dim or found.head_dim)
    rows = buckets(config.data)[-1]
    queries = rows.anchors * config.draft.block_size
    shape = {
        "batch": rows.rows,
        "heads": config.draft.num_attention_heads or found.num_attention_heads,
        "queries": queries,
        "keys": rows.context_tokens + queries,
    }
    if machine.device.type == "cpu":
        refuse_dense(device="cpu", limit_bytes=config.compute.dense_limit_bytes, **shape)
        return
    refuse_backend(device="cuda", backend=machine.backend, **shape)
    limit = config.compute.memory_limit_bytes or torch.cuda.mem_get_info(machine.device)[1]
    predicted = forecast(config, found, drafters, memory_bytes=limit)
    say(f"forecast {predicted.total / 2**30:.1f} GiB of {limit / 2**30:.1f} GiB in the worst step")
    require_fit(predicted, limit)


def check_target(config: Config) -> int:
    """The mask token, if the target goes with [data] and [draft]; told before documents are read.

    Raises:
        ConfigInvalid: it has no such token, or only the trainer's own kind of target will do.
    """
    token, path = mask_token(config.target), config.target.path
    if not is_own(config.target):
        if config.draft.init == "target":
            raise ConfigInvalid(
                f"draft.init: target, but {path} is not of the trainer's own kind, whose layers alone can be "
                "copied; allowed: random"
            )
        if config.data.source == "stdlib" and config.target.weights == "load":
            raise ConfigInvalid(
                f"data.source: stdlib is bytes, which are not the tokens of {path}; allowed: chat, text (or "
                "target.weights = random, to measure speed)"
            )
    return token


def load(job: Job, machine: Machine) -> Loaded:
    """Read the target and the data.

    Raises:
        ConfigInvalid, DataInvalid: what was given cannot be used.
    """
    config, topology = job.config, job.topology
    found = read_shape(config.target)
    shape = draft_shape(found, config.draft, config.target)
    token = check_target(config)
    data = open_data(
        config, found.vocab_size, job.run_dir.run / "data", lead=topology.is_leader, beat=job.alive
    )
    for line in data.lines:
        say(line)
    job.alive()
    target: Target | None = None
    if topology.is_target and topology.placement != "cached":
        target = load_target(config.target, machine.device, machine.dtype)
    vocabulary = target or load_vocabulary(config.target, machine.device, machine.dtype)
    job.alive()
    return Loaded(
        machine=machine,
        target=target,
        vocabulary=vocabulary,
        target_shape=found,
        target_sha256=target_sha256(config.target),
        shape=shape,
        mask_token=token,
        data=data,
    )
