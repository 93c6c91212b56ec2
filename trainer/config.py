"""What can be configured: frozen dataclasses, one TOML table each. `trainer.settings` reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def number(default: float, low: float, high: float) -> Any:  # noqa: ANN401 - a dataclass field stands for its value
    """A field that allows `low` to `high`, both included."""
    return field(default=default, metadata={"low": low, "high": high})


def choice(default: str, *others: str) -> Any:  # noqa: ANN401 - a dataclass field stands for its value
    """A field that allows the words given."""
    return field(default=default, metadata={"choices": (default, *others)})


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetConfig:
    """The frozen model that the drafter drafts for."""

    path: str = "embedded"
    """Directory of a target with config.json and model.safetensors; `embedded` is the one shipped with the
    trainer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Windows of text run through the target."""

    stdlib: str = "auto"
    """Directory of Python sources to train on; `auto` is the running Python's standard library."""
    batch_windows: int = number(4, 1, 4096)
    """Windows in a step."""
    window_tokens: int = number(256, 32, 1 << 20)
    """Context tokens in a window."""
    anchors: int = number(48, 1, 1 << 16)
    """Anchor slots in a window; the shape of every step, whatever the text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftConfig:
    """The drafter's own shape; width, heads and vocabulary are the target's."""

    num_layers: int = number(2, 1, 64)
    """Draft layers."""
    block_size: int = number(8, 2, 256)
    """Tokens in a block, the anchor included."""
    num_target_layers: int = number(3, 1, 64)
    """Target layers whose hidden states the drafter reads."""
    intermediate_size: int = number(0, 0, 1 << 20)
    """Width of the MLP; 0 takes the target's."""
    init: str = choice("random", "target")
    """`random`, or `target`: layers begin as copies of the target's first ones; needs intermediate_size =
    0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossConfig:
    """Same-position cross-entropy with a decay along the block."""

    gamma: float = number(4.0, 0.1, 1000.0)
    """Decay length in positions: weight exp(-(k-1)/gamma); 4 for block 8, 5 for 10, 7 for 16."""
    labels: str = choice("data", "target")
    """`data`: the text's own tokens; `target`: the target's distribution given the text before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """AdamW and its schedule."""

    lr: float = number(6e-4, 1e-8, 1.0)
    """Peak learning rate."""
    min_lr_ratio: float = number(0.1, 0.0, 1.0)
    """Learning rate at the end, as a share of the peak."""
    schedule: str = choice("cosine", "wsd")
    """`cosine`, or `wsd`: warm-up, stable, linear decay over the last fifth."""
    warmup_ratio: float = number(0.04, 0.0, 0.9)
    """Share of the steps over which the learning rate rises."""
    weight_decay: float = number(0.01, 0.0, 10.0)
    """AdamW's decoupled decay, on matrices only."""
    beta2: float = number(0.95, 0.5, 0.99999)
    """AdamW's second-moment decay."""
    clip: float = number(1.0, 1e-3, 1e6)
    """Largest gradient norm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeConfig:
    """Where and how it is computed."""

    device: str = choice("cpu", "cuda")
    """Device of the drafter and the target."""
    threads: int = number(0, 0, 1024)
    """CPU threads; 0 takes the cores this process may use, at most 8."""
    compile_backend: str = choice("aot_eager", "inductor")
    """torch.compile backend of the draft layer; `aot_eager` needs no C++ compiler."""
    dense_limit_bytes: int = number(2 << 30, 1 << 16, 1 << 50)
    """Largest dense attention score matrix, in bytes; a bigger one is refused before it is asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """Checkpoints."""

    every_steps: int = number(50, 1, 1 << 30)
    """Steps between checkpoints; the last step always has one."""
    keep: int = number(2, 1, 1000)
    """Newest complete checkpoints kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalConfig:
    """How the finished drafter is measured, on files that neither model was trained on."""

    every_steps: int = number(0, 0, 1 << 30)
    """Steps between quick teacher-forced evaluations in training; 0 for none."""
    windows: int = number(32, 1, 1 << 16)
    """Held-out windows of the final teacher-forced evaluation, rounded up to whole batches."""
    prompts: int = number(6, 0, 1 << 16)
    """Held-out prompts decoded greedily; 0 for none."""
    prompt_tokens: int = number(96, 8, 1 << 20)
    """Tokens of each prompt."""
    new_tokens: int = number(96, 1, 1 << 20)
    """Tokens decoded after each prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """The exported drafter."""

    dtype: str = choice("bfloat16", "float32")
    """Type of the exported weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """All that a training run is told."""

    total_steps: int = number(380, 1, 1 << 40)
    """Optimizer steps."""
    seed: int = number(20261129, 0, 2**63 - 1)
    """Seeds the weights, the order of the windows and the anchors."""
    log_every: int = number(10, 1, 1 << 30)
    """Steps between printed lines and lines of metrics.jsonl."""
    target: TargetConfig = field(default_factory=TargetConfig)
    data: DataConfig = field(default_factory=DataConfig)
    draft: DraftConfig = field(default_factory=DraftConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
