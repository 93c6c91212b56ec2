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


def integers(*, low: int, high: int) -> Any:  # noqa: ANN401 - a dataclass field stands for its value
    """A list of whole numbers, each from `low` to `high`, both included; empty by default."""
    return field(default=(), metadata={"low": low, "high": high})


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetConfig:
    """The frozen model that the drafter drafts for."""

    path: str = "embedded"
    """Directory of any causal language model that transformers loads (config.json, safetensors, tokenizer);
    `embedded` is the byte-level one shipped with the trainer; `qwen3-8b` and `qwen3.6-27b` are shapes alone,
    for weights = random."""
    weights: str = choice("load", "random")
    """`load` the directory's weights, or draw `random` ones of its shape, for measuring speed."""
    mask_token: int = number(-1, -1, 1 << 24)
    """Id of the token that stands for what is to be drafted; -1 takes the embedded target's own. Any other
    target needs it said, since a guessed one (the padding token) is often the end of text too."""
    layer_ids: tuple[int, ...] = integers(low=0, high=1 << 10)
    """Target layers that are read, 0-based, after which the hidden state is taken; empty for the published
    rule on draft.num_target_layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Documents, packed into rows of constant length."""

    source: str = choice("stdlib", "chat", "text")
    """`stdlib`: Python's own sources, for the embedded target; `chat`: JSON lines of conversations; `text`:
    JSON lines with a text each, or plain text files, one document a file."""
    path: str = ""
    """File or folder of the documents, for chat and text."""
    held_out_path: str = ""
    """Documents kept for evaluation; empty holds out one in 64 of `path`, by a hash of its content."""
    stdlib: str = "auto"
    """Directory of Python sources to train on; `auto` is the running Python's standard library."""
    chat_template: str = ""
    """File of a Jinja chat template; empty takes the tokenizer's own."""
    max_bad_lines: int = number(100, 0, 1 << 40)
    """Unreadable lines that are reported and skipped before it is an error."""
    max_document_tokens: int = number(0, 0, 1 << 24)
    """Longer documents are cut to this many tokens; 0 cuts at context_tokens."""
    batch_rows: int = number(4, 1, 4096)
    """Rows in a micro-batch, one drafter's forward and backward."""
    context_tokens: int = number(256, 32, 1 << 22)
    """Context tokens in a row: documents are packed into it, and the rest is padding."""
    short_buckets: tuple[int, ...] = integers(low=32, high=1 << 22)
    """Shorter rows for short documents, each dividing context_tokens; a micro-batch of them has as many more
    rows, so that tokens and anchor slots stay the same. Every bucket is compiled before the first step."""
    anchors: int = number(48, 1, 1 << 16)
    """Anchor slots in a row of context_tokens; the shape of every step, whatever the text."""


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
    num_attention_heads: int = number(0, 0, 1 << 12)
    """Query heads; 0 takes the target's."""
    num_key_value_heads: int = number(0, 0, 1 << 12)
    """Key and value heads, of which each serves as many query heads; 0 takes the target's."""
    head_dim: int = number(0, 0, 1 << 12)
    """Width of a head, an even number; 0 takes the target's."""
    sliding_layers: int = number(0, 0, 64)
    """Layers, the first ones, that see only the last sliding_window positions and their block causally."""
    sliding_window: int = number(2048, 1, 1 << 22)
    """Positions that a sliding layer's query sees, itself included."""
    init: str = choice("random", "target")
    """`random`, or `target`: layers begin as copies of the target's first ones; needs intermediate_size =
    0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossConfig:
    """Same-position cross-entropy with a weight along the block."""

    objective: str = choice("decay", "dpace")
    """Weight of a block's positions: `decay`, exp(-(k-1)/gamma), or `dpace`, from the drafter's own chance
    of getting that far (D-PACE)."""
    gamma: float = number(4.0, 0.1, 1000.0)
    """Decay length in positions: weight exp(-(k-1)/gamma); 4 for block 8, 5 for 10, 7 for 16."""
    dpace_alpha: float = number(0.5, 0.0, 1.0)
    """D-PACE's smoothing: (1 - alpha) q + alpha, q the probability of the label."""
    labels: str = choice("data", "target")
    """`data`: the text's own tokens; `target`: the target's distribution given the text before
    (distillation)."""
    chunk_tokens: int = number(4096, 1, 1 << 24)
    """Block tokens whose logits exist at one time, rounded up to whole blocks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """AdamW and its schedule."""

    lr: float = number(6e-4, 1e-8, 1.0)
    """Peak learning rate."""
    min_lr_ratio: float = number(0.1, 0.0, 1.0)
    """Learning rate at the end, as a share of the peak."""
    micro_batches: int = number(0, 0, 1 << 20)
    """Micro-batches of a step over all drafters together, a multiple of their number: the rest of it is
    gradient accumulation, so that another number of drafters makes the same steps; 0 is one a drafter."""
    schedule: str = choice("cosine", "wsd")
    """`cosine`, or `wsd`: warm-up, stable, linear decay."""
    decay_ratio: float = number(0.2, 0.0, 1.0)
    """Share of the steps, the last ones, over which `wsd` decays."""
    warmup_ratio: float = number(0.04, 0.0, 0.9)
    """Share of the steps over which the learning rate rises."""
    weight_decay: float = number(0.01, 0.0, 10.0)
    """AdamW's decoupled decay, on matrices only."""
    beta2: float = number(0.95, 0.5, 0.99999)
    """AdamW's second-moment decay."""
    clip: float = number(1.0, 1e-3, 1e6)
    """Largest gradient norm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardConfig:
    """What happens when a loss or a gradient is not a finite number, or a gradient is far too large."""

    max_skips: int = number(3, 0, 1 << 20)
    """Bad steps in a row that are left out, weights untouched, before training goes back to the last good
    checkpoint; 0 ends the run at the first."""
    max_rollbacks: int = number(2, 0, 1 << 20)
    """Times that training goes back before it gives up."""
    spike_factor: float = number(20.0, 0.0, 1e9)
    """A gradient norm over this many times the running median is a spike, and its step is bad; 0 for
    never."""
    spike_window: int = number(100, 8, 1 << 16)
    """Good steps over which that median is taken; none is judged before they are full."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """Processes, one a GPU, and what each of them does."""

    placement: str = choice("colocated", "split", "cached")
    """`colocated`: every rank runs target and drafter; `split`: some ranks run the target and send hidden
    states to the others; `cached`: hidden states are written to disk once and read from there."""
    processes: int = number(0, 0, 4096)
    """Processes of this node; 0 is one a visible GPU, or one on the CPU."""
    targets: int = number(0, 0, 4096)
    """Target ranks of a split, over all nodes; the other ranks are drafters."""
    shard: str = choice("auto", "replicate", "full")
    """`replicate` keeps a whole drafter on each drafter rank (DDP), `full` shares weights and optimizer
    state out among them (FSDP2); `auto` takes full when a replica would fill more than half of the memory."""
    timeout_s: float = number(300.0, 1.0, 1e6)
    """Seconds after which a collective that does not come back is an error."""
    cache_dir: str = ""
    """Folder of the hidden states of `cached`; empty takes the run directory's hidden-states."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeConfig:
    """Where and how it is computed."""

    device: str = choice("auto", "cpu", "cuda")
    """Device of the drafter and the target; `auto` is cuda where there is one."""
    dtype: str = choice("auto", "bfloat16", "float32")
    """Type of the arithmetic; `auto` is bfloat16 on cuda, float32 on the CPU. Weights and optimizer state
    are float32 in any case."""
    threads: int = number(0, 0, 1024)
    """CPU threads; 0 takes the cores this process may use, at most 8."""
    compile_backend: str = choice("auto", "aot_eager", "inductor")
    """torch.compile backend of the draft layer; `auto` is inductor on cuda, and aot_eager, which needs no C++
    compiler, on the CPU."""
    attention: str = choice("flex", "flash")
    """On a GPU: `flex`, or `flash`, FlashAttention 4, which is faster on an H100 or H200 in bfloat16, and the
    same step done twice then differs in its last bits. Needs the extra `flash`."""
    dense_limit_bytes: int = number(2 << 30, 1 << 16, 1 << 50)
    """Largest dense attention score matrix, in bytes; a bigger one is refused before it is asked for."""
    memory_limit_bytes: int = number(0, 0, 1 << 50)
    """Memory that the forecast of the worst step may take; 0 is what the device has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """Checkpoints."""

    every_steps: int = number(50, 1, 1 << 30)
    """Steps between checkpoints; the last step always has one."""
    keep: int = number(2, 1, 1000)
    """Newest complete checkpoints kept."""
    wait: bool = False
    """Wait for each checkpoint to be on disk, instead of writing it while training goes on."""


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
    guard: GuardConfig = field(default_factory=GuardConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
