"""Read a drafter in the published format, this trainer's own or another's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from trainer.errors import DataInvalid
from trainer.model import DraftModel, DraftShape

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
MAX_CONFIG_BYTES = 1 << 20
LIMITS = {
    "hidden_size": 1 << 16,
    "intermediate_size": 1 << 20,
    "num_hidden_layers": 64,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 12,
    "num_target_layers": 1 << 12,
    "vocab_size": 1 << 26,
}
"""Largest value of each number that decides how much memory is asked for."""
MAX_BLOCK_SIZE = 256


def load_export(directory: Path) -> tuple[DraftModel, int]:
    """The drafter, in float32 on the CPU, and its mask token's id.

    Nothing is allocated before config.json and the names and shapes in model.safetensors agree.

    Raises:
        DataInvalid: a file is missing, damaged, or not of a DFlash drafter that this trainer knows.
    """
    config = _read_config(directory)
    shape = _shape(directory, config)
    mask_token = _integer(directory, config["dflash_config"], "mask_token_id", 0, config["vocab_size"] - 1)
    tensors = _read_tensors(directory, published_tensors(shape))
    with torch.device("meta"):
        draft = DraftModel(shape)
    draft.load_state_dict(tensors, assign=True)
    return draft, mask_token


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


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise _unusable(directory, f"config.json has over {MAX_CONFIG_BYTES:,} bytes")
        config = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise _unusable(directory, f"config.json cannot be read: {error}") from error
    if not isinstance(config, dict) or config.get("architectures") != ["DFlashDraftModel"]:
        raise _unusable(directory, "config.json does not say architectures: [DFlashDraftModel]")
    if not isinstance(config.get("dflash_config"), dict):
        raise _unusable(directory, "config.json has no dflash_config")
    return config


def _shape(directory: Path, config: dict[str, Any]) -> DraftShape:
    numbers = {name: _integer(directory, config, name, 1, limit) for name, limit in LIMITS.items()}
    inner = config["dflash_config"]
    if numbers["num_attention_heads"] % numbers["num_key_value_heads"] or numbers["head_dim"] % 2:
        raise _unusable(directory, "its heads do not share key heads evenly, or head_dim is odd")
    sliding_layers, window = _sliding(directory, config, numbers["num_hidden_layers"])
    return DraftShape(
        hidden_size=numbers["hidden_size"],
        intermediate_size=numbers["intermediate_size"],
        num_layers=numbers["num_hidden_layers"],
        num_attention_heads=numbers["num_attention_heads"],
        num_key_value_heads=numbers["num_key_value_heads"],
        head_dim=numbers["head_dim"],
        rms_norm_eps=_positive(directory, config, "rms_norm_eps"),
        rope_theta=_rope_theta(directory, config),
        # Newer configs of others have it in dflash_config.
        block_size=_integer(
            directory, config if "block_size" in config else inner, "block_size", 2, MAX_BLOCK_SIZE
        ),
        target_layer_ids=_layer_ids(directory, inner, numbers["num_target_layers"]),
        num_target_layers=numbers["num_target_layers"],
        sliding_layers=sliding_layers,
        sliding_window=window,
    )


def _layer_ids(directory: Path, inner: dict[str, Any], depth: int) -> tuple[int, ...]:
    ids = inner.get("target_layer_ids")
    if not isinstance(ids, list) or not ids or len(ids) > depth:
        raise _unusable(directory, f"target_layer_ids is {_short(ids)}, not a list of 1 to {depth} ids")
    if not all(type(layer) is int and 0 <= layer < depth for layer in ids) or len(set(ids)) < len(ids):
        raise _unusable(directory, f"target_layer_ids is {_short(ids)}, not different ids below {depth}")
    return tuple(ids)


def _sliding(directory: Path, config: dict[str, Any], layers: int) -> tuple[int, int | None]:
    types = config.get("layer_types", ["full_attention"] * layers)
    sliding = types.count("sliding_attention") if isinstance(types, list) else 0
    if types != ["sliding_attention"] * sliding + ["full_attention"] * (layers - sliding):
        raise _unusable(directory, f"layer_types is {_short(types)}, not sliding layers, then full ones")
    inner = config["dflash_config"]
    if inner.get("causal") is not None or (inner.get("use_swa") and not sliding):
        raise _unusable(
            directory, "dflash_config.causal or use_swa ask for a mask that it was not trained on"
        )
    if not sliding:
        return 0, None
    return sliding, _integer(directory, config, "sliding_window", 1, 1 << 30)


def _rope_theta(directory: Path, config: dict[str, Any]) -> float:
    """From either place; where both give it they must agree."""
    parameters = config.get("rope_parameters") or {}
    if not isinstance(parameters, dict) or parameters.get("rope_type", "default") != "default":
        raise _unusable(directory, f"rope_parameters is {_short(parameters)}, not the default kind")
    if config.get("rope_scaling") is not None:
        raise _unusable(directory, "it scales rotary positions (rope_scaling)")
    found = {
        _positive(directory, table, "rope_theta") for table in (config, parameters) if "rope_theta" in table
    }
    if len(found) != 1:
        raise _unusable(directory, f"it gives {len(found)} values of rope_theta, not one")
    return found.pop()


def _read_tensors(directory: Path, expected: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    path = directory / "model.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no dict
            if found != expected:
                differing = sorted(name for name, _ in set(found.items()) ^ set(expected.items()))
                raise _unusable(directory, f"tensors differ from what config.json says: {_short(differing)}")
            return {name: file.get_tensor(name).float() for name in found}
    except (OSError, SafetensorError) as error:
        raise _unusable(directory, f"model.safetensors cannot be read: {error}") from error


def _integer(directory: Path, table: dict[str, Any], name: str, low: int, high: int) -> int:
    value = table.get(name)
    if type(value) is not int or not low <= value <= high:
        raise _unusable(directory, f"{name} is {_short(value)}, not a whole number from {low} to {high}")
    return value


def _positive(directory: Path, table: dict[str, Any], name: str) -> float:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
        raise _unusable(directory, f"{name} is {_short(value)}, not a positive number")
    return float(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _unusable(directory: Path, reason: str) -> DataInvalid:
    told = " ".join(reason.split())
    return DataInvalid(f"drafter {directory}: {told}; give the export folder of a DFlash drafter")
