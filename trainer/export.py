"""Write the drafter in the published format, as SGLang, vLLM and TensorRT-LLM load it, and read it back.

Servers skip tensors whose names they do not know without a word, so the set of names and shapes is checked
here, against a list that does not come from the model.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save

from trainer.files import sync_directory, write_durably

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.model import DraftModel, DraftShape
    from trainer.target import TargetShape

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class ExportError(RuntimeError):
    """What was written is not what a server expects."""


def export(directory: Path, draft: DraftModel, target: TargetShape, *, mask_token: int, dtype: str) -> None:
    """Replace `directory` by config.json and model.safetensors of the drafter.

    Raises:
        ExportError: the files read back differ from the published format or from the weights.
    """
    temporary = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    tensors = {name: value.to(DTYPES[dtype]).contiguous() for name, value in draft.state_dict().items()}
    config = draft_config(draft.shape, target, mask_token=mask_token, dtype=dtype)
    write_durably(temporary / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    write_durably(temporary / "config.json", (json.dumps(config, indent=2) + "\n").encode())
    verify_export(temporary, draft, dtype)
    shutil.rmtree(directory, ignore_errors=True)
    temporary.rename(directory)
    sync_directory(directory.parent)


def draft_config(shape: DraftShape, target: TargetShape, *, mask_token: int, dtype: str) -> dict[str, Any]:
    """The published config.json keys.

    `rope_theta` is given twice, since loaders older than `rope_parameters` silently take a default.
    """
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": shape.block_size,
        "num_target_layers": shape.num_target_layers,
        "dflash_config": {"mask_token_id": mask_token, "target_layer_ids": list(shape.target_layer_ids)},
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "layer_types": ["full_attention"] * shape.num_layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": shape.num_layers,
        "max_position_embeddings": target.max_position_embeddings,
        "vocab_size": target.vocab_size,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "dtype": dtype,
    }


def published_tensors(shape: DraftShape) -> dict[str, tuple[int, ...]]:
    """Name and shape of each tensor of the published format."""
    width, head = shape.hidden_size, shape.head_dim
    queries, keys = shape.num_attention_heads * head, shape.num_key_value_heads * head
    tensors: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, len(shape.target_layer_ids) * width),
        "hidden_norm.weight": (width,),
        "norm.weight": (width,),
    }
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (queries, width),
        "self_attn.k_proj.weight": (keys, width),
        "self_attn.v_proj.weight": (keys, width),
        "self_attn.o_proj.weight": (width, queries),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "mlp.gate_proj.weight": (shape.intermediate_size, width),
        "mlp.up_proj.weight": (shape.intermediate_size, width),
        "mlp.down_proj.weight": (width, shape.intermediate_size),
    }
    for index in range(shape.num_layers):
        tensors.update({f"layers.{index}.{name}": size for name, size in layer.items()})
    return tensors


def verify_export(directory: Path, draft: DraftModel, dtype: str) -> None:
    """Read the files back and hold them against the published format and the weights.

    Raises:
        ExportError: they differ.
    """
    tensors = load_file(directory / "model.safetensors")
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    expected = published_tensors(draft.shape)
    if found != expected:
        differing = sorted(set(found.items()) ^ set(expected.items()))
        raise ExportError(f"{directory}: tensors differ from the published format: {differing}")
    state = draft.state_dict()
    for name, value in tensors.items():
        if not torch.equal(value, state[name].to(DTYPES[dtype])):
            raise ExportError(f"{directory}: {name} was not read back as it was written")
    config = json.loads((directory / "config.json").read_text())
    if config["rope_theta"] != config["rope_parameters"]["rope_theta"]:
        raise ExportError(f"{directory}: config.json gives two different rope_theta")
    if not 0 <= config["dflash_config"]["mask_token_id"] < config["vocab_size"]:
        raise ExportError(f"{directory}: the mask token is not in the vocabulary")
