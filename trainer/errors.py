# ruff: noqa: N818 - named for what happened, as `error.json` tells it
"""What can end a training run on purpose, each with its exit code and the kind told in `error.json`.

TrainerError               1
|-- ConfigInvalid         78
|-- DataInvalid           65
|-- CheckpointCorrupt     66
|-- NonFinite             70
|-- Interrupted           75
|-- DenseAttentionRefused  1
|-- RankDied               1 (told by the others or by the launcher, which exits as the rank did)
`-- DecodeMismatch         1
"""

from __future__ import annotations

from typing import ClassVar


class TrainerError(Exception):
    """The trainer ends itself; the message is one line that says where, what, and what to do."""

    exit_code: ClassVar[int] = 1
    kind: ClassVar[str | None] = None


class ConfigInvalid(TrainerError):
    """The configuration, an override or a flag is wrong."""

    exit_code = 78
    kind = "config_invalid"


class DataInvalid(TrainerError):
    """The corpus or the target's files cannot be used."""

    exit_code = 65
    kind = "data_invalid"


class CheckpointCorrupt(TrainerError):
    """No checkpoint of the run can be read back as it was written."""

    exit_code = 66
    kind = "checkpoint_corrupt"


class NonFinite(TrainerError):
    """The loss or the gradient is not a finite number; the weights were not touched by that step."""

    exit_code = 70
    kind = "non_finite"


class Interrupted(TrainerError):
    """Asked to stop; everything up to the last finished step is in a checkpoint."""

    exit_code = 75
    kind = "interrupted"


class DenseAttentionRefused(TrainerError):
    """Attention would have materialised its full score matrix."""

    kind = "dense_attention_refused"


class RankDied(TrainerError):
    """A rank ended without a word of its own: killed, or gone with its node.

    Nobody raises it; `trainer.parallel.death` writes it into error.json.
    """


class DecodeMismatch(TrainerError):
    """Speculative decoding produced a token that the target's own greedy decoding did not."""
