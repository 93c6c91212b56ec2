"""Write the drafter in the published format, as SGLang, vLLM and TensorRT-LLM load it.

Servers skip tensors whose names they do not know without a word, so the set of names and shapes is checked
here, against a list that does not come from the model.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save

from trainer.exported import DTYPES, load_export, published_tensors
from trainer.files import sync_directory, write_durably

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.model import DraftModel, DraftShape
    from trainer.target.api import TargetShape


class ExportError(RuntimeError):
    """What was written is not what a server expects."""


def export(directory: Path, draft: DraftModel, target: TargetShape, *, mask_token: int, dtype: str) -> None:
    """Replace `directory` by config.json and model.safetensors of the drafter.

    Raises:
        ExportError, DataInvalid: the files read back differ from the published format or from the weights.
    """
    temporary = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    tensors = {
        name: value.detach().to("cpu", DTYPES[dtype]).contiguous()
        for name, value in draft.state_dict().items()
    }
    require_published(tensors, draft.shape)
    config = draft_config(draft.shape, target, mask_token=mask_token, dtype=dtype)
    write_durably(temporary / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    write_durably(temporary / "config.json", (json.dumps(config, indent=2) + "\n").encode())
    verify_export(temporary, tensors, draft.shape, mask_token)
    shutil.rmtree(directory, ignore_errors=True)
    temporary.rename(directory)
    sync_directory(directory.parent)


def draft_config(shape: DraftShape, target: TargetShape, *, mask_token: int, dtype: str) -> dict[str, Any]:
    """The published config.json keys.

    `rope_theta` is given twice, since loaders older than `rope_parameters` silently take a default. Sliding
    layers are told by `layer_types` alone, as z-lab and SpecForge do: servers then take sliding layers as
    causal and full ones as not. `dflash_config.causal` would override that for all layers, and `use_swa` is
    for drafters whose `layer_types` do not say which layers slide.
    """
    sliding = "sliding_attention" in shape.layer_types
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
        "layer_types": list(shape.layer_types),
        "sliding_window": shape.sliding_window if sliding else None,
        "use_sliding_window": sliding,
        "max_window_layers": shape.num_layers,
        "max_position_embeddings": target.max_position_embeddings,
        "vocab_size": target.vocab_size,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "dtype": dtype,
    }


def require_published(tensors: dict[str, torch.Tensor], shape: DraftShape) -> None:
    """Hold names and shapes against the published list.

    Raises:
        ExportError: they differ.
    """
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    expected = published_tensors(shape)
    if found != expected:
        differing = sorted(set(found.items()) ^ set(expected.items()))
        raise ExportError(f"export: tensors differ from the published format: {differing}")


def verify_export(
    directory: Path, tensors: dict[str, torch.Tensor], shape: DraftShape, mask_token: int
) -> None:
    """Read the files back, as a stranger would, and compare.

    Raises:
        ExportError: shape, mask token or a weight is not what was written.
        DataInvalid: the files cannot be read at all.
    """
    draft, found_token = load_export(directory)
    if draft.shape != shape or found_token != mask_token:
        raise ExportError(
            f"{directory}: read back as {draft.shape} with mask token {found_token}, and was written as "
            f"{shape} with {mask_token}"
        )
    for name, value in draft.state_dict().items():
        if not torch.equal(value, tensors[name].to(value.dtype)):
            raise ExportError(f"{directory}: {name} was not read back as it was written")
