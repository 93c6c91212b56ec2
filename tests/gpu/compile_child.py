"""One process that compiles a small drafter and trains it: `python -m tests.gpu.compile_child MODE JSON`.

`start-up` warms up as the trainer does, takes steps on other documents and anchors, and prints one JSON line.
`race` has threads take their first steps beside each other, without the gate; `serialised` the same in it.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import sys
import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trainer.attention import make_mask
from trainer.batch import Document, pack
from trainer.blocks import make_blocks, sample_anchors
from trainer.compiling import artifacts, gate, warmup
from trainer.compiling.caches import cache_dirs
from trainer.masks import MaskRule
from trainer.model import DraftLayer, DraftModel, DraftShape, LayerCall, LayerMasks, use_layer_call

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

ROWS, CONTEXT, ANCHORS, BLOCK = 2, 1024, 30, 16
SHAPE = DraftShape(
    hidden_size=256,
    intermediate_size=512,
    num_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    block_size=BLOCK,
    target_layer_ids=(1, 3),
    num_target_layers=6,
)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
BACKEND = "inductor" if DEVICE.type == "cuda" else "aot_eager"


def build(call: LayerCall, shape: DraftShape) -> DraftModel:
    with DEVICE:
        draft = DraftModel(shape)
    use_layer_call(draft, call)
    return draft


def hidden(draft: DraftModel, seed: int, context: int = CONTEXT) -> torch.Tensor:
    """The drafter on random documents and anchors of this seed."""
    generator = torch.Generator().manual_seed(seed)
    cut = int(torch.randint(context // 4, 3 * context // 4, (1,), generator=generator))
    documents = [
        Document(torch.randint(0, 99, (length,), generator=generator), torch.ones(length, dtype=torch.bool))
        for length in (cut, context - cut - 5)
    ]
    batch = pack([documents] * ROWS, context).to(DEVICE)
    anchors = sample_anchors(batch, ANCHORS, generator)
    blocks = make_blocks(batch, anchors, block_size=BLOCK, mask_token=99)
    masks = LayerMasks(make_mask(anchors, MaskRule(context, BLOCK), DEVICE))
    noise = torch.randn(ROWS, ANCHORS * BLOCK, SHAPE.hidden_size, device=DEVICE, dtype=DTYPE)
    taps = torch.randn(ROWS, context, 2 * SHAPE.hidden_size, device=DEVICE, dtype=DTYPE)
    out: torch.Tensor = draft(noise, taps, masks, blocks.positions, batch.positions)
    return out


def step(draft: DraftModel, seed: int, context: int = CONTEXT) -> float:
    loss = hidden(draft, seed, context).float().square().mean()
    loss.backward()
    return loss.item()


def first_step(draft: DraftModel) -> None:
    step(draft, 0)


def look(draft: DraftModel) -> None:
    with torch.no_grad():
        hidden(draft, 0)


def start_up(run_dir: str, host: str) -> dict[str, object]:
    dirs = cache_dirs(Path(run_dir), host=host)
    call = warmup.compiled(DraftLayer.plain, BACKEND)
    stand_in = build(call, dataclasses.replace(SHAPE, num_layers=2))
    origin = artifacts.describe(DEVICE, BACKEND, {"draft": dataclasses.asdict(SHAPE), "context": CONTEXT})
    begun = time.monotonic()
    done = warmup.warm_up(
        [("step", lambda: first_step(stand_in)), ("look", lambda: look(stand_in))],
        dirs=dirs,
        origin=origin,
        local_rank=0,
        beat=lambda: None,
    )
    draft = build(call, SHAPE)
    losses = [step(draft, seed) for seed in range(1, 21)]
    look(draft)
    assert all(0 < loss < 1e4 for loss in losses), losses
    return {
        "hits": done.cache_hits,
        "misses": done.cache_misses,
        "graphs": done.graphs,
        "seconds": done.seconds,
        "begun": begun + done.waited_s,
        "ended": begun + done.waited_s + done.seconds,
        "recompiles": done.recompiles(),
    }


def beside_each_other(threads: int, turn: Callable[[], AbstractContextManager[None]]) -> dict[str, object]:
    """Threads whose first steps have shapes of their own, so that each compiles."""
    call = torch.compile(DraftLayer.plain, backend=BACKEND, fullgraph=True, dynamic=False)
    shape = dataclasses.replace(SHAPE, num_layers=1)
    finished: list[int] = []
    errors: list[str] = []

    def work(index: int) -> None:
        try:
            draft = build(call, shape)
            for seed in range(2):
                with turn():
                    step(draft, seed, CONTEXT + 128 * index)
                print(f"thread {index} finished step {seed}", flush=True)
            finished.append(index)
        except Exception as error:  # noqa: BLE001 - which one it is differs from run to run
            errors.append(f"{type(error).__name__}: {str(error)[:200]}")

    workers = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(threads)]
    begun = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {"finished": len(finished), "errors": errors, "seconds": time.monotonic() - begun}


MODES: dict[str, Callable[..., dict[str, object]]] = {
    "start-up": start_up,
    "race": partial(beside_each_other, turn=nullcontext),
    "serialised": partial(beside_each_other, turn=gate.held),
}

if __name__ == "__main__":
    arguments = json.loads(sys.argv[2])
    faulthandler.dump_traceback_later(arguments.pop("deadline_s"), exit=True)
    print(json.dumps(MODES[sys.argv[1]](**arguments)), flush=True)
