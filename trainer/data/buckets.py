"""The shapes that a micro-batch can have. Tokens and anchor slots are the same in each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.errors import ConfigInvalid

if TYPE_CHECKING:
    from trainer.config import DataConfig


@dataclass(frozen=True, slots=True)
class Bucket:
    """Rows of one length."""

    context_tokens: int
    """Tokens in a row."""
    rows: int
    """Rows in a micro-batch."""
    anchors: int
    """Anchor slots in a row."""


def buckets(data: DataConfig) -> tuple[Bucket, ...]:
    """Every bucket, the shortest rows first; the last is that of `data.context_tokens`.

    Raises:
        ConfigInvalid: a short bucket does not divide `data.context_tokens`.
    """
    longest = data.context_tokens
    made = []
    for length in sorted({*data.short_buckets, longest}):
        times = longest // length
        if longest % length or not times:
            raise ConfigInvalid(
                f"data.short_buckets: {length} does not divide data.context_tokens, {longest}; "
                f"give for example {longest // 2}"
            )
        made.append(Bucket(length, data.batch_rows * times, max(1, data.anchors // times)))
    return tuple(made)


def bucket_of(data: DataConfig, context_tokens: int) -> Bucket:
    """The bucket of rows this long.

    Raises:
        KeyError: there is none.
    """
    return {bucket.context_tokens: bucket for bucket in buckets(data)}[context_tokens]
