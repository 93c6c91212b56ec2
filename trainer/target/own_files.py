"""The files of the trainer's own target: those shipped with it, and those `trainer.train_target` writes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file

from trainer.errors import DataInvalid
from trainer.target.api import TargetShape
from trainer.target.own import TargetModel, frozen

if TYPE_CHECKING:
    import torch

EMBEDDED = Path(__file__).parent.parent / "assets" / "target"
MASK_TOKEN = 256
"""The first id after the 256 bytes; ids 257 to 259 are unused."""
EMBEDDED_SHAPE = TargetShape(
    vocab_size=260,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    max_position_embeddings=1024,
)


def config_json(shape: TargetShape) -> dict[str, object]:
    """The target's config.json, as transformers reads it."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **asdict(shape),
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "mask_token_id": MASK_TOKEN,
        "dtype": "bfloat16",
    }


def read_shape(directory: Path) -> TargetShape:
    """The shape of a target that `trainer.train_target` wrote.

    Raises:
        DataInvalid: config.json is missing or is not this model's.
    """
    try:
        table = json.loads((directory / "config.json").read_text())
        return TargetShape(**{name: table[name] for name in TargetShape.__dataclass_fields__})
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise _unusable(directory, error) from error


def load_own(directory: Path, device: torch.device | str, dtype: torch.dtype) -> TargetModel:
    """Read a frozen target that `trainer.train_target` wrote, without gradients.

    Raises:
        DataInvalid: a file is missing or is not this model's.
    """
    model = TargetModel(read_shape(directory))
    try:
        tensors = load_file(directory / "model.safetensors")
        model.load_state_dict({name.removeprefix("model."): value for name, value in tensors.items()})
    except (OSError, RuntimeError, SafetensorError) as error:
        raise _unusable(directory, error) from error
    return frozen(model.to(device, dtype))


def _unusable(directory: Path, error: Exception) -> DataInvalid:
    reason = " ".join(str(error).split())[:200]
    return DataInvalid(f"target {directory}: {reason}; give a target that trainer.train_target made")
