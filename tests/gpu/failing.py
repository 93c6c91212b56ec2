"""Programs that print steps and then really fail on a GPU: `python -m tests.gpu.failing NAME`.

None is a text that somebody wrote: the driver, cuBLAS, Triton, flex attention and NCCL say what they say.
`RANKS` names those that torchrun starts with two ranks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 1 << 30
KERNELS = """\
import triton
import triton.language as tl


@triton.jit
def write(at, far):
    tl.store(at + far, 1.0)


@triton.jit
def multiply(at, SIZE: tl.constexpr):
    places = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tile = tl.load(at + places)
    tl.store(at + places, tl.dot(tile, tl.trans(tile)).to(tl.bfloat16))
"""
HOLDER = """\
import time, torch
kept = torch.empty({size}, dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(120)
"""


def step(number: int) -> None:
    print(f"step {number}/400 loss {4.2 - number / 100:.2f} lr 5.9e-04 grad 0.71 12.3 ktok/s", flush=True)


def free_bytes() -> int:
    return int(torch.cuda.mem_get_info()[0])


def device_assert() -> None:
    table = nn.Embedding(512, 64).cuda()
    tokens = torch.full((4, 128), 512, device="cuda")
    print(table(tokens).sum().item())


def kernels() -> Any:
    """Return KERNELS as a module: Triton reads a kernel's source from its file."""
    folder = Path(os.environ["FAILING_DIR"])
    (folder / "badkernels.py").write_text(KERNELS)
    sys.path.insert(0, str(folder))
    return import_module("badkernels")


def illegal_access() -> None:
    kernels().write[(1,)](torch.zeros(4, device="cuda"), 1 << 50)
    torch.cuda.synchronize()


def oom_cuda() -> None:
    kept = [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(free_bytes() // GIB - 2)]
    logits = torch.empty(8 * GIB, dtype=torch.uint8, device="cuda")
    print(len(kept), logits.shape)


def oom_backward() -> None:
    kept = torch.empty(free_bytes() - 4 * GIB, dtype=torch.uint8, device="cuda")
    hidden = torch.randn(GIB // 4, device="cuda", requires_grad=True)
    hidden.sin().cos().exp().sum().backward()
    print(kept.shape)


def oom_beside_another() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(size=free_bytes() - 6 * GIB)], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        print(torch.empty(8 * GIB, dtype=torch.uint8, device="cuda").shape)
    finally:
        holder.kill()


def oom_fragmentation() -> None:
    # Two to a segment of 20 MiB: with one of each gone, half of the card is reserved and no segment is free.
    count = free_bytes() // (20 << 20) * 2 - 100
    pieces = [torch.empty(9 << 20, dtype=torch.uint8, device="cuda") for _ in range(count)]
    del pieces[::2]
    print(torch.empty(30 * GIB, dtype=torch.uint8, device="cuda").shape)


def oom_dense() -> None:
    shape = (1, 32, 65536, 128)
    query, key, value = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    print(flex_attention(query, key, value).shape)


def oom_survived() -> None:
    for number in range(130, 200, 10):
        try:
            if number == 150:
                oom_cuda()
        except torch.OutOfMemoryError as error:
            print(f"WARNING: step {number} ran out of memory, batch skipped: {error}", flush=True)
            torch.cuda.empty_cache()
        step(number)


def cublas_init() -> None:
    kept = torch.empty(free_bytes() - (64 << 20), dtype=torch.uint8, device="cuda")
    left = torch.empty(2048, 64, device="cuda")
    print((left @ left.T).shape, kept.shape)


def no_such_gpu() -> None:
    torch.zeros(4, device="cuda:6")


def compile_resources() -> None:
    tile = torch.zeros(256, 256, device="cuda", dtype=torch.bfloat16)
    kernels().multiply[(1,)](tile, 256, num_warps=16)


def worker_raises() -> None:
    from torch.utils.data import DataLoader

    for batch in DataLoader(_Broken(), batch_size=4, num_workers=2):
        print(batch.shape)


class _Broken(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index > 20:
            raise ValueError(f"row {index}: 3 tokens, 128 wanted")
        return torch.zeros(128)


def join(timeout_s: float = 20.0) -> int:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", timeout=timedelta(seconds=timeout_s))
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))
    torch.cuda.synchronize()
    return rank


def keep_reducing(before: Callable[[int], None]) -> None:
    rank = join()
    for number in range(130, 400, 10):
        before(rank) if number == 160 else None
        dist.all_reduce(torch.ones(1 << 20, device="cuda"))
        torch.cuda.synchronize()
        step(number) if rank == 0 else None


def nccl_timeout() -> None:
    keep_reducing(lambda rank: time.sleep(300) if rank == 1 else None)


def nccl_raise() -> None:
    def fail(rank: int) -> None:
        if rank == 1:
            raise KeyError("input_ids")

    keep_reducing(fail)


def nccl_kill() -> None:
    keep_reducing(lambda rank: os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else None)


def nccl_oom() -> None:
    keep_reducing(lambda rank: oom_cuda() if rank == 1 else None)


def nccl_assert() -> None:
    keep_reducing(lambda rank: device_assert() if rank == 0 else None)


def nccl_same_gpu() -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", timeout=timedelta(seconds=20))
    dist.all_reduce(torch.ones(4, device="cuda"))


def compile_race() -> None:
    layer = torch.compile(nn.Linear(64, 64).cuda())
    tracing, go = threading.Event(), threading.Event()

    class Held(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tracing.set()
            go.wait(60)
            return x

    thread = threading.Thread(target=lambda: torch.fx.symbolic_trace(Held()))
    thread.start()
    tracing.wait(60)
    try:
        print(layer(torch.zeros(4, 64, device="cuda")).shape)
    finally:
        go.set()
        thread.join()


RANKS = ("nccl_timeout", "nccl_raise", "nccl_kill", "nccl_oom", "nccl_assert", "nccl_same_gpu")


def main() -> None:
    for number in range(100, 130, 10):
        if os.environ.get("RANK", "0") == "0":
            step(number)
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
