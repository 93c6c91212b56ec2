"""Find, check and load what `[target]` names."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib import util
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from trainer.errors import ConfigInvalid, DataInvalid
from trainer.seeds import generator
from trainer.target import own, own_files
from trainer.target.files import config_table, find_tensor, is_own, special_tokens, target_directory
from trainer.target.hf import HfTarget, require_plain_head, scaled_embedding, shape_of

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.config import TargetConfig
    from trainer.target.api import Target, TargetShape, Vocabulary

RANDOM_STD = 0.02
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Tables:
    """An embedding and a head alone; an `api.Vocabulary`."""

    embedding: Tensor
    head: Tensor


def load_target(config: TargetConfig, device: torch.device | str, dtype: torch.dtype) -> Target:
    """The whole frozen target.

    Raises:
        ConfigInvalid: it is a shape without weights, or a model whose head a drafter cannot share.
        DataInvalid: its files are missing or cannot be read.
    """
    if is_own(config):
        if config.weights == "load":
            return own_files.load_own(target_directory(config), device, dtype)
        model = own.TargetModel(own_files.read_shape(target_directory(config)))
        _draw(model.to(device, dtype))
        return own.frozen(model)
    if config.weights == "random":
        return HfTarget(_random_model(config, device, dtype), config.path)
    return HfTarget(_read_model(config, dtype, device).to(device), config.path)


def load_vocabulary(config: TargetConfig, device: torch.device | str, dtype: torch.dtype) -> Vocabulary:
    """The target's embedding and head, without reading or holding the rest of it.

    Raises:
        ConfigInvalid, DataInvalid: as `load_target`.
    """
    if is_own(config):
        model = load_target(config, "cpu", dtype)
        table = model.embedding.to(device)
        return Tables(table, table)
    skeleton = _skeleton(config)
    require_plain_head(skeleton, config.path)
    names = {id(parameter): name for name, parameter in skeleton.named_parameters()}
    embed = skeleton.get_input_embeddings()
    embed_name = names[id(embed.weight)]
    head_name = names[id(skeleton.get_output_embeddings().weight)]
    tables: dict[str, Tensor] = {}
    for name, like in ((embed_name, embed.weight), (head_name, skeleton.get_output_embeddings().weight)):
        if name not in tables:
            tables[name] = _one_table(config, name, like, device, dtype)
    embed.weight = nn.Parameter(tables[embed_name], requires_grad=False)
    return Tables(scaled_embedding(embed), tables[head_name])


def read_shape(config: TargetConfig) -> TargetShape:
    """Its shape, from its config.json alone.

    Raises:
        ConfigInvalid, DataInvalid: as `load_target`.
    """
    return own_files.read_shape(target_directory(config)) if is_own(config) else shape_of(_hf_config(config))


def mask_token(config: TargetConfig) -> int:
    """The id that stands for what is to be drafted, checked against the target's config.json.

    Raises:
        ConfigInvalid: it is not said, not in the vocabulary, or is the end-of-text or padding token.
    """
    if is_own(config) and config.mask_token < 0:
        return int(config_table(target_directory(config)).get("mask_token_id", own_files.MASK_TOKEN))
    rows = read_shape(config).vocab_size
    token = config.mask_token
    if not 0 <= token < rows:
        said = "is not said" if token < 0 else f"{token} is not in the vocabulary"
        raise ConfigInvalid(
            f"target.mask_token: {said}, of {rows} rows in {config.path}; allowed: an id from 0 to "
            f"{rows - 1} that stands for nothing else (Qwen3: 151669, Qwen3.6: 248070)"
        )
    for name, value in special_tokens(config):
        if token == value:
            raise ConfigInvalid(
                f"target.mask_token: {token} is {name} of {config.path} too, which the drafter must be able "
                "to tell apart; allowed: an id that stands for nothing else"
            )
    return token


def target_sha256(config: TargetConfig) -> str:
    """sha256 that changes with the target's files, without reading all of a large model.

    It covers config.json, and of each safetensors file its name, its size and its first and last MiB (the
    first holds the names, types and places of its tensors). A change in the middle of a file alone goes
    unseen.
    """
    directory = target_directory(config)
    digest = hashlib.sha256(json.dumps(config_table(directory), sort_keys=True).encode())
    digest.update(config.weights.encode())
    files = sorted(directory.glob("*.safetensors")) if config.weights == "load" and directory.is_dir() else []
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(MIB))
            file.seek(max(MIB, size - MIB))
            digest.update(file.read(MIB))
    return digest.hexdigest()


def _hf_config(config: TargetConfig) -> Any:  # noqa: ANN401 - a transformers config
    transformers = _transformers()
    directory = target_directory(config)
    try:
        if directory.suffix != ".json":
            return transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
        table = config_table(directory)
        return transformers.AutoConfig.for_model(table.pop("model_type"), **table)
    except (OSError, ValueError, KeyError) as error:
        raise _unusable(config, error) from error


def _skeleton(config: TargetConfig) -> Any:  # noqa: ANN401 - a transformers model
    """The model without memory behind its tensors."""
    hf_config = _hf_config(config)
    try:
        with torch.device("meta"):
            return _transformers().AutoModelForCausalLM.from_config(hf_config, attn_implementation="sdpa")
    except (ValueError, ImportError) as error:
        raise _unusable(config, error) from error


def _read_model(config: TargetConfig, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:  # noqa: ANN401 - a transformers model
    placed: dict[str, Any] = {}
    if torch.device(device).type == "cuda" and util.find_spec("accelerate"):
        placed["device_map"] = {
            "": str(torch.device(device))
        }  # straight there, not by way of the CPU's memory
    try:
        return _transformers().AutoModelForCausalLM.from_pretrained(
            target_directory(config), dtype=dtype, attn_implementation="sdpa", local_files_only=True, **placed
        )
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise _unusable(config, error) from error


def _random_model(config: TargetConfig, device: torch.device | str, dtype: torch.dtype) -> Any:  # noqa: ANN401
    """Made on the device itself, where drawing billions of numbers takes seconds."""
    hf_config = _hf_config(config)
    with torch.device(device):
        model = _transformers().AutoModelForCausalLM.from_config(
            hf_config, dtype=dtype, attn_implementation="sdpa"
        )
    _draw(model)
    return model


def _draw(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            _draw_one(name, parameter)


@torch.no_grad()
def _draw_one(name: str, parameter: Tensor) -> None:
    """Normal numbers that depend on the name alone: a rank that holds one table has the target's own."""
    parameter.normal_(std=RANDOM_STD, generator=generator(0, f"target/{name}", 0, parameter.device))


def _one_table(
    config: TargetConfig, name: str, like: Tensor, device: torch.device | str, dtype: torch.dtype
) -> Tensor:
    if config.weights == "random":
        drawn = torch.empty(like.shape, dtype=dtype, device=device)
        _draw_one(name, drawn)
        return drawn
    directory = target_directory(config)
    found = find_tensor(directory, name)
    if found is None:
        # Stored under another name, or not as safetensors: transformers knows how.
        whole: Tensor = _read_model(config, dtype).get_parameter(name)
        return whole.detach().to(device)
    try:
        with safe_open(directory / found[0], framework="pt") as file:
            table: Tensor = file.get_tensor(found[1])
    except (OSError, SafetensorError) as error:
        raise _unusable(config, error) from error
    if table.shape != like.shape:
        raise DataInvalid(
            f"target {config.path}: {found[1]} is {list(table.shape)}, and config.json says "
            f"{list(like.shape)}; give a whole model"
        )
    return table.to(device, dtype)


def _transformers() -> Any:  # noqa: ANN401 - the module
    try:
        import transformers  # seconds, and only this kind of target needs it
    except ImportError as error:
        raise ConfigInvalid(
            f"target: transformers cannot be imported: {error}; install dflashctl[hf], or use "
            "target.path=embedded"
        ) from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()  # each rank would draw one into the log
    return transformers


def _unusable(config: TargetConfig, error: Exception) -> DataInvalid:
    reason = " ".join(str(error).split())[:300]
    return DataInvalid(
        f"target {config.path}: {reason}; give the directory of a causal language model that transformers "
        "loads"
    )
