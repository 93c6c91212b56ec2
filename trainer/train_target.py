"""Train the embedded target on the Python standard library's sources.

    python -m trainer.train_target --out target                      on a GPU, some minutes
    python -m trainer.train_target --out target --steps 20 --batch 4  on a CPU, to see it run

Whole files are held out (`trainer.corpus`); the weights kept are those with the lowest held-out loss.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from trainer.console import say
from trainer.corpus import Corpus, Source, read_corpus, stdlib_directory
from trainer.target.own import TargetModel, TargetOutput
from trainer.target.own_files import EMBEDDED_SHAPE, config_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from trainer.target.api import TargetShape

SHAPE_OPTIONS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
WARMUP_STEPS = 200
EVAL_WINDOWS = 512
LOCAL = {"out", "stdlib"}  # folders of the machine, which say nothing to anyone else


def main(argv: list[str] | None = None) -> int:
    """Train, print a line each evaluation, write config.json, model.safetensors and figures.json."""
    options = _parse(argv)
    torch.manual_seed(options.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    corpus = read_corpus(stdlib_directory(options.stdlib), include_tests=options.include_tests)
    say(f"corpus: {len(corpus.train)} files, {corpus.train_bytes} bytes; {len(corpus.held_out)} held out")
    model = TargetModel(_shape(options), dropout=options.dropout).to(device)
    _initialise(model)
    figures = _fit(model, corpus, options, device)
    _write(model, options, figures, corpus)
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer.train_target", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--stdlib", default="auto", help="folder of Python sources (default: this Python's)")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=64, help="windows in a step")
    parser.add_argument("--window", type=int, default=512, help="bytes in a window")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--eval-every", type=int, default=250)
    parser.add_argument("--include-tests", action="store_true", help="train on test folders too")
    parser.add_argument(
        "--time-limit-s", type=float, default=3600.0, help="plan fewer steps to end within it"
    )
    for name in SHAPE_OPTIONS:
        default = getattr(EMBEDDED_SHAPE, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--seed", type=int, default=20261129)
    return parser.parse_args(argv)


def _shape(options: argparse.Namespace) -> TargetShape:
    given = {name: getattr(options, name) for name in SHAPE_OPTIONS}
    return replace(EMBEDDED_SHAPE, **given)


def _initialise(model: TargetModel) -> None:
    residual_std = 0.02 / math.sqrt(2 * model.shape.num_hidden_layers)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            std = residual_std if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
            torch.nn.init.normal_(parameter, std=std)


def _fit(model: TargetModel, corpus: Corpus, options: argparse.Namespace, device: str) -> dict[str, float]:
    """Train in place, leave the best weights in the model, and return the figures."""
    train = _stream(corpus.train, device)
    windows = _spread_windows(_stream(corpus.held_out, device), options.window)
    optimizer = _optimizer(model, options)
    forward = torch.compile(model) if device == "cuda" else model
    generator = torch.Generator().manual_seed(options.seed)
    best: dict[str, float] = {"held_out_loss": math.inf}
    best_state = copy.deepcopy(model.state_dict())
    started = time.monotonic()
    steps, step = options.steps, 0
    while step < steps:
        step += 1
        if step == WARMUP_STEPS:  # until here the schedule does not depend on the number of steps
            steps = min(steps, int(step * options.time_limit_s / (time.monotonic() - started)))
        for group in optimizer.param_groups:
            group["lr"] = options.lr * _schedule(step, steps)
        loss = _loss(forward, _random_windows(train, options, generator), device)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % options.eval_every == 0 or step == steps:
            held_out, loss_value = _held_out_loss(model, windows, device), float(loss.detach())
            say(f"step {step}/{steps} loss {loss_value:.4f} held-out {held_out:.4f}")
            if held_out < best["held_out_loss"]:
                best = {"held_out_loss": held_out, "train_loss": loss_value, "step": step, "steps": steps}
                best_state = copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    return best


def _optimizer(model: TargetModel, options: argparse.Namespace) -> torch.optim.AdamW:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95))


def _schedule(step: int, steps: int) -> float:
    warmup = min(WARMUP_STEPS, max(1, steps // 10))
    if step < warmup:
        return step / warmup
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def _stream(sources: tuple[Source, ...], device: str) -> Tensor:
    """All files joined: a window may cross from one file to the next, as a blank line would."""
    return torch.frombuffer(bytearray(b"\n".join(source.text for source in sources)), dtype=torch.uint8).to(
        device
    )


def _random_windows(stream: Tensor, options: argparse.Namespace, generator: torch.Generator) -> Tensor:
    starts = torch.randint(0, len(stream) - options.window - 1, (options.batch, 1), generator=generator)
    offsets = starts + torch.arange(options.window + 1)
    return stream[offsets.to(stream.device)].long()


def _spread_windows(stream: Tensor, window: int) -> Tensor:
    starts = torch.linspace(0, len(stream) - window - 2, EVAL_WINDOWS).long()[:, None]
    return stream[(starts + torch.arange(window + 1)).to(stream.device)].long()


def _loss(forward: Callable[[Tensor], TargetOutput], windows: Tensor, device: str) -> Tensor:
    """Mean cross-entropy in nats a byte."""
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        logits = forward(windows[:, :-1]).logits
    return F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def _held_out_loss(model: TargetModel, windows: Tensor, device: str) -> float:
    model.eval()
    losses = [_loss(model, part, device).item() for part in windows.split(64)]
    model.train()
    return sum(losses) / len(losses)


def _write(
    model: TargetModel, options: argparse.Namespace, figures: dict[str, float], corpus: Corpus
) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"model.{name}": value.bfloat16().cpu().contiguous() for name, value in model.state_dict().items()
    }
    save_file(tensors, options.out / "model.safetensors", metadata={"format": "pt"})
    (options.out / "config.json").write_text(json.dumps(config_json(model.shape), indent=2) + "\n")
    told = {
        **figures,
        "parameters": sum(p.numel() for p in model.parameters()),
        "corpus_sha256": corpus.fingerprint,
        "torch": torch.__version__,
        "arguments": {key: value for key, value in sorted(vars(options).items()) if key not in LOCAL},
    }
    (options.out / "figures.json").write_text(json.dumps(told, indent=2) + "\n")
    say(f"best held-out loss {figures['held_out_loss']:.4f} nats a byte at step {figures['step']}")


if __name__ == "__main__":
    sys.exit(main())
