"""A small model that is trained alone, as DDP replicas or as FSDP2 shards, the same way each time."""

from __future__ import annotations

import json
import os
import resource
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from trainer.checkpoint import Checkpoints
from trainer.config import OptimConfig
from trainer.optim import learning_rate, make_optimizer, scale_and_clip, set_learning_rate, step_unless

if TYPE_CHECKING:
    from pathlib import Path

TOTAL = 10
CONFIG = OptimConfig(lr=1e-2, warmup_ratio=0.3)


@dataclass(frozen=True)
class TinyShape:
    """What a checkpoint of it names."""

    width: int = 6
    num_layers: int = 3


class Tiny(nn.Module):
    """Uneven widths, so that shards are uneven too."""

    def __init__(self, shape: TinyShape, device: str = "cpu") -> None:
        super().__init__()
        self.shape = shape
        generator = torch.Generator().manual_seed(5)
        self.layers = nn.ModuleList(
            nn.Linear(shape.width, shape.width, device=device) for _ in range(shape.num_layers)
        )
        self.norm = nn.LayerNorm(shape.width, device=device)
        for parameter in self.parameters():
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator).to(device)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        out: Tensor = self.norm(x)
        return out


def make(how: str = "plain", shape: TinyShape | None = None, device: str = "cpu") -> tuple[nn.Module, Any]:
    """The untrained model and its optimizer, `plain`, `ddp` or `fsdp`."""
    torch.manual_seed(1)
    model: nn.Module = Tiny(shape or TinyShape(), device)
    if how == "ddp":
        model = nn.parallel.DistributedDataParallel(model)  # on the current device
    elif how == "fsdp":
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        for layer in model.layers:  # type: ignore[union-attr] # a ModuleList
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, make_optimizer(model, CONFIG)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    """Steps `first` to `last` - 1; what is drawn depends on the step and on torch's own generator."""
    device = next(model.parameters()).device
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(4, 6, generator=generator).to(device)
        noise = torch.randn(4, 6).to(device)
        set_learning_rate(optimizer, learning_rate(step, TOTAL, CONFIG))
        model(x + 0.1 * noise).square().sum().backward()
        scale_and_clip(model.parameters(), 0.25, CONFIG.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def bits(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of the state, whole, on the host; `module.` of DDP left out."""
    found = {}
    for name, parameter in model.named_parameters():
        name = name.removeprefix("module.")
        found[name] = parameter
        for key, value in optimizer.state.get(parameter, {}).items():
            found[f"{name}.{key}"] = value
    whole = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in found.items()}
    return {name: tensor.detach().cpu().clone() for name, tensor in whole.items()}


def join(rank: int, size: int, folder: Path, backend: str = "gloo") -> None:
    """Become one of `size` ranks that meet in a file."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=size)


def save_as(rank: int, size: int, folder: Path, how: str, before: str | None, device: str = "cpu") -> None:
    """A rank that resumes from `before`, if given, trains two steps, and saves into `how`."""
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    join(rank, size, folder, "gloo" if device == "cpu" else "nccl")
    group = dist.group.WORLD
    model, optimizer = make(how, device=device)
    first = 0
    if before is not None:
        resumed = Checkpoints(folder / before, 2, group).resume(model, optimizer)
        assert resumed is not None
        first = resumed["step"]
        _tell(rank, folder / f"{how}-resumed.pt", bits(model, optimizer))
    train(model, optimizer, first, first + 2)
    checkpoints = Checkpoints(folder / how, 2, group)
    checkpoints.save(first + 2, model, optimizer, {"loss": 1.5}, wait=False)
    _tell(rank, folder / f"{how}.pt", bits(model, optimizer))
    assert checkpoints.finish() == first + 2
    dist.barrier()
    dist.destroy_process_group()


def save_beside_a_target(rank: int, folder: Path) -> None:
    """Rank 0 takes no part; 1 and 2 save, find one corrupt, resume the one before, and fail on one."""
    torch.set_num_threads(1)
    join(rank, 3, folder)
    drafters = dist.new_group([1, 2])
    if rank:
        told = _drafter_beside_a_target(folder / "checkpoints", drafters)
        (folder / f"{rank}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


def _drafter_beside_a_target(directory: Path, group: Any) -> dict[str, Any]:
    model, optimizer = make()
    checkpoints = Checkpoints(directory, 3, group)
    for step in (1, 2):
        train(model, optimizer, step - 1, step)
        checkpoints.save(step, model, optimizer, {}, wait=True)
    if dist.get_rank(group) == 0:
        file = directory / "step-2" / "__1_0.distcp"
        file.write_bytes(file.read_bytes()[::-1])
    dist.barrier(group)
    state = checkpoints.resume(model, optimizer)
    told = {"resumed": state and state["step"], "begun": checkpoints.begun(), "errno": 0}
    if dist.get_rank(group) == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
    try:
        checkpoints.save(3, model, optimizer, {}, wait=True)
    except OSError as error:
        told |= {"errno": error.errno, "words": str(error)}
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    checkpoints.save(4, model, optimizer, {}, wait=True)
    return {**told, "newest": checkpoints.newest()}


def _tell(rank: int, path: Path, found: dict[str, Tensor]) -> None:
    if rank == 0:
        torch.save(found, path)


def save_in_a_loop(directory: Path) -> None:
    """Resume, then save a step after the other until killed."""
    torch.set_num_threads(1)
    model, optimizer = make()
    checkpoints = Checkpoints(directory, 2)
    resumed = checkpoints.resume(model, optimizer)
    step = 0 if resumed is None else resumed["step"]
    while True:
        step += 1
        train(model, optimizer, step % TOTAL, step % TOTAL + 1)
        checkpoints.save(step, model, optimizer, {"sum": checksum(model)}, wait=step % 3 == 0)


def checksum(model: nn.Module) -> float:
    """A number that says which weights these are."""
    return float(sum(p.detach().double().sum() for p in model.parameters()))


def save_within(directory: Path, file_bytes: int, answer: Any) -> None:
    """A save with files limited in size; sends what came of it."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    model, optimizer = make()
    checkpoints = Checkpoints(directory, 2)
    try:
        checkpoints.save(2, model, optimizer, {}, wait=True)
    except OSError as error:
        answer.send((error.errno, str(error)))
    else:
        answer.send((0, ""))


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
    """A step whose gradient is clipped; the norm before."""
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    (100 * model(x).square().sum()).backward()
    norm = scale_and_clip(model.parameters(), torch.tensor(0.5), 1.0)
    assert norm > 1
    optimizer.step()
    return norm


def step_sharded(rank: int, size: int, folder: Path) -> None:
    """A rank that takes `one_step` on shards."""
    torch.set_num_threads(1)
    join(rank, size, folder)
    model, optimizer = make("fsdp")
    norm = one_step(model, optimizer)
    found = bits(model, optimizer)
    if rank == 0:
        torch.save((norm, found), folder / "step.pt")
    dist.barrier()
    dist.destroy_process_group()


def step_latched(rank: int, size: int, folder: Path) -> None:
    """A rank whose fused optimizer takes one step on shards, and then one that the latch holds back."""
    torch.set_num_threads(1)
    join(rank, size, folder)
    model, optimizer = make("fsdp")
    kept = ("params", "weight_decay", "betas")
    groups = [{key: group[key] for key in kept} for group in optimizer.param_groups]
    optimizer = torch.optim.AdamW(groups, lr=CONFIG.lr, fused=True, foreach=False)
    told = []
    for shut in (0.0, 1.0):
        (model(torch.ones(4, 6)).square().sum() * (torch.nan if shut else 1.0)).backward()
        step_unless(optimizer, torch.tensor(shut))
        optimizer.zero_grad(set_to_none=True)
        told.append(bits(model, optimizer))
    if rank == 0:
        torch.save(told, folder / "latched.pt")
    dist.barrier()
    dist.destroy_process_group()
