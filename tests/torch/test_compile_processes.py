"""Warm-up across processes: ranks of gloo under DDP and FSDP2, and what one process saved for the next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli import LONG_S
from tests.torch.test_compile_warmup import needs_cpp
from trainer.compiling.caches import point_caches

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

WRAPPED = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from pathlib import Path
from tests.torch.test_compile_warmup import Layer, Stack, on, warm
from trainer.compiling import warmup
from trainer.compiling.caches import cache_dirs

rank, world, kind, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=rank, world_size=world)
torch.manual_seed(0)
near = {"rtol": 0.05, "atol": 0.05} if kind == "fsdp" else {}  # gathered in bfloat16
call = warmup.compiled(Layer.plain, "aot_eager")
real, plain = Stack(call), Stack(Layer.plain)
plain.load_state_dict(real.state_dict())
if kind == "fsdp":
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
    for layer in real.layers:
        fully_shard(layer, mp_policy=policy)
    wrapped = fully_shard(real, mp_policy=policy)
else:
    wrapped = DistributedDataParallel(real)
dirs = cache_dirs(Path(store), host="here")
dirs.node.mkdir(parents=True, exist_ok=True)
built = Layer() if sys.argv[5] == "plain twin" else warmup.twin(Layer, real.layers[0])
done = warm(dirs, on(built, call), 2)
for seed in range(3):
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(seed))
    mine, theirs = wrapped(x), plain(x)
    assert torch.allclose(mine, theirs, **near)
    mine.sum().backward()
    theirs.sum().backward()
    for one, other in zip(real.parameters(), plain.parameters(), strict=True):
        grad = one.grad.full_tensor() if kind == "fsdp" else one.grad
        assert torch.allclose(grad, other.grad, **near), seed
with torch.no_grad():
    wrapped(x)
assert done.graphs == 3 and done.recompiles() == 0, done
dist.destroy_process_group()
"""


def wrapped(directory: Path, kind: str, twin: str, world: int) -> list[tuple[int, str]]:
    """Gloo ranks that train what was warmed up by a twin: each one's exit code and errors."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WRAPPED]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), kind, str(directory), twin],
            env=environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    errors = [rank.communicate(timeout=LONG_S)[1] for rank in ranks]
    return [(rank.returncode, error) for rank, error in zip(ranks, errors, strict=True)]


@pytest.mark.parametrize(("kind", "world"), [("ddp", 1), ("fsdp", 2)])
def test_a_twin_s_graphs_serve_layers_under(kind, world, tmp_path):
    for code, error in wrapped(tmp_path, kind, "twin", world):
        assert code == 0, error


@pytest.mark.slow
def test_a_twin_that_is_no_twin_does_not_serve_fsdp(tmp_path):
    for code, error in wrapped(tmp_path, "fsdp", "plain twin", 1):
        assert code != 0
        assert "fail_on_recompile" in error


CACHED = """
import json, sys, time, torch
from pathlib import Path
from tests.torch.test_compile_warmup import Layer
from trainer.compiling import artifacts, warmup
from trainer.compiling.caches import cache_dirs

torch._inductor.config.cpp_cache_precompile_headers = False  # they take longer than this layer
torch._inductor.config.cpp.vec_isa_ok = True
dirs = cache_dirs(Path(sys.argv[1]), host=sys.argv[2])
dirs.node.mkdir(parents=True, exist_ok=True)
origin = artifacts.describe(torch.device("cpu"), "inductor", {"width": 8, "rows": (2,)})
call = warmup.compiled(Layer.plain, "inductor")
layer = Layer()
steps = [("step", lambda: call(layer, torch.ones(2, 8)).sum().backward())]
done = warmup.warm_up(steps, dirs=dirs, origin=origin, local_rank=0, beat=lambda: None)
print(json.dumps([done.cache_hits, done.cache_misses, done.seconds]))
"""


def cached(run_dir: Path, host: str) -> tuple[list[float], list[str]]:
    """Hits, misses and seconds of a process's warm-up, and what it said."""
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("TORCHINDUCTOR", "TRITON"))
    }
    environ |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    point_caches(run_dir, environ, host=host)
    command = [sys.executable, "-c", CACHED, str(run_dir), host]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    return json.loads(last), lines


@needs_cpp
@pytest.mark.slow
def test_a_second_process_loads_what_the_first_compiled_and_a_third_what_was_saved(tmp_path):
    (hits, misses, _), lines = cached(tmp_path, "one")
    assert (hits, misses > 0) == (0, True)
    assert "nothing saved" in lines[0]
    assert "saved" in lines[1]

    (hits, misses, _), lines = cached(tmp_path, "one")
    assert (hits > 0, misses) == (True, 0)
    assert lines[0].startswith("compile cache: filled by this node before, ")

    # Another node, or the same one after a clean-up: its own cache is empty.
    (hits, misses, _), lines = cached(tmp_path, "two")
    assert (hits > 0, misses) == (True, 0)
    assert lines[0].startswith("compile cache: loaded ")
    assert len(lines) == 1
