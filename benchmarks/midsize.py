"""The whole way at middle size, on one GPU in some six minutes: what does the drafter make faster?

    python -m benchmarks.midsize --out /tmp/midsize

Trains a byte-level target of 76 M parameters on the Python standard library, then a drafter of 5 layers and
blocks of 16 beside it, both through their own commands, and decodes held-out files with and without the
drafter on that GPU, one sequence at a time, each step a CUDA graph. Prints acceptance lengths and the ratio
of speeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch

from trainer import settings
from trainer.data.dataset import open_data
from trainer.decoding.speed import measure_speed
from trainer.drafting import Drafting
from trainer.exported import load_export
from trainer.plan.dims import target_parameters
from trainer.target.load import load_target
from trainer.target.own import TargetModel

TARGET = (
    "--hidden-size=768 --intermediate-size=2048 --num-hidden-layers=12 --num-attention-heads=12 "
    "--num-key-value-heads=4 --head-dim=64 --max-position-embeddings=2048 --window=1024 --batch=64 --lr=8e-4 "
    "--dropout=0.1 --include-tests --eval-every=250"
)
DRAFTER = (
    "data.context_tokens=1024 data.batch_rows=8 data.anchors=64 draft.num_layers=5 draft.block_size=16 "
    "draft.num_target_layers=5 draft.init=target loss.labels=target loss.gamma=5.0 optim.lr=1e-3 "
    "optim.min_lr_ratio=0.02 optim.beta2=0.99 log_every=100 checkpoint.every_steps=1000 "
    "eval.every_steps=1000 eval.windows=128 eval.prompts=4 eval.prompt_tokens=512 eval.new_tokens=128"
)


def main(argv: list[str] | None = None) -> int:
    """Train both, then measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for target and drafter")
    parser.add_argument("--target-s", type=float, default=110.0, help="seconds of target training")
    parser.add_argument("--target-steps", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=1600, help="drafter steps")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--new-tokens", type=int, default=192)
    options = parser.parse_args(argv)
    begun = time.monotonic()
    target, run = options.out / "target", options.out / "run"
    if not (target / "config.json").exists():
        _run("trainer.train_target", f"--out={target}", f"--time-limit-s={options.target_s}",
             f"--steps={options.target_steps}", *TARGET.split())  # fmt: skip
    sets = [f"target.path={target}", f"total_steps={options.steps}", *DRAFTER.split()]
    _run("trainer", "--run-dir", str(run), *(word for key in sets for word in ("--set", key)))
    told = measure(sets, run, options.prompts, options.new_tokens)
    told["minutes"] = round((time.monotonic() - begun) / 60, 1)
    (options.out / "figures.json").write_text(json.dumps(told, indent=2) + "\n")
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


def measure(sets: list[str], run: Path, prompts: int, new_tokens: int) -> dict[str, object]:
    """Decode held-out prompts both ways."""
    config = settings.load("tiny", sets)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target = load_target(config.target, device, dtype)
    assert isinstance(target, TargetModel)
    draft, mask_token = load_export(run / "export")
    drafting = Drafting(config, draft.shape, draft.to(device), target, mask_token, dtype)
    data = open_data(config, target.shape.vocab_size, run / "data", lead=True, beat=lambda: None)
    found = measure_speed(drafting, target, data.held_out.prompts(prompts, 512), new_tokens)
    newest = max((run / "attempts").iterdir(), key=lambda path: int(path.name))
    result = json.loads((newest / "result.json").read_text())
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "target_parameters": target_parameters(target.shape),
        "draft_parameters": sum(parameter.numel() for parameter in draft.parameters()),
        "acceptance": result["acceptance"],
        "speed": found.as_json(),
    }


def _run(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
