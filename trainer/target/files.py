"""The folder that `target.path` means, and what can be read of it without loading a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from trainer.errors import ConfigInvalid, DataInvalid
from trainer.target.own_files import EMBEDDED

if TYPE_CHECKING:
    from trainer.config import TargetConfig

SHAPES = Path(__file__).parent / "shapes"
GENERATION = "generation_config.json"
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


def special_tokens(config: TargetConfig) -> list[tuple[str, int]]:
    """Name and id of each token of the target's that ends or pads text."""
    directory = target_directory(config)
    tables = [config_table(directory)]
    tables += [table["text_config"] for table in tables if isinstance(table.get("text_config"), dict)]
    if (directory / GENERATION).is_file():
        tables.append(_read_table(directory, directory / GENERATION))
    found: list[tuple[str, int]] = []
    for table in tables:
        for name in ("eos_token_id", "pad_token_id"):
            value = table.get(name)
            values = value if isinstance(value, list) else [value]
            found += [(name, item) for item in values if isinstance(item, int)]
    return found


def target_directory(config: TargetConfig) -> Path:
    """The folder of the target's files; for a shape alone, the file of its config.json."""
    if config.path == "embedded":
        return EMBEDDED
    shape = SHAPES / f"{config.path}.json"
    if Path(config.path).is_dir() or not shape.is_file():
        return Path(config.path)
    if config.weights != "random":
        raise ConfigInvalid(
            f"target.path: {config.path} is a shape without weights; allowed: target.weights=random, or the "
            "model's own directory"
        )
    return shape


def config_table(directory: Path) -> dict[str, Any]:
    """What config.json says.

    Raises:
        DataInvalid: it is missing or not a JSON object.
    """
    return _read_table(directory, directory if directory.suffix == ".json" else directory / "config.json")


def _read_table(directory: Path, path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataInvalid(
            f"target {directory}: {path.name} cannot be read: {error}; give the directory of a causal "
            "language model, or embedded"
        ) from error
    if not isinstance(table, dict):
        raise DataInvalid(f"target {directory}: {path.name} is not an object; give a model's directory")
    return table


def is_own(config: TargetConfig) -> bool:
    """Whether `trainer.train_target` made it: only those name their mask token in config.json."""
    table = config_table(target_directory(config))
    return table.get("model_type") == "qwen3" and "mask_token_id" in table


def find_tensor(directory: Path, name: str) -> tuple[str, str] | None:
    """File and key of a tensor, whose checkpoint may be a multimodal model's, or have no prefix."""
    keys = _keys(directory)
    if name in keys:
        return keys[name], name
    tail = ".".join(name.split(".")[-2:])
    alike = [key for key in keys if key == tail or key.endswith(f".{tail}")]
    return (keys[alike[0]], alike[0]) if len(alike) == 1 else None


def _keys(directory: Path) -> dict[str, str]:
    """File of each tensor."""
    try:
        if (directory / INDEX).is_file():
            weight_map: dict[str, str] = json.loads((directory / INDEX).read_text())["weight_map"]
            return weight_map
        if (directory / SINGLE).is_file():
            with safe_open(directory / SINGLE, framework="pt") as file:
                return dict.fromkeys(file.keys(), SINGLE)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise DataInvalid(f"target {directory}: its list of tensors cannot be read: {error}") from error
    return {}
