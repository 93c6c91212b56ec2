"""What training and evaluation read: micro-batches by their index, and held-out rows and prompts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from trainer.batch import Batch, pack
from trainer.console import say
from trainer.corpus import read_corpus, stdlib_directory
from trainer.data.buckets import buckets
from trainer.data.packed import PackedHeldOut, PackedLayout
from trainer.data.prepare import prepare
from trainer.data.store import HELD_OUT, TRAIN, Store
from trainer.data.tokenise import HELD_OUT_ONE_IN, MIN_SUPERVISED
from trainer.data.windows import WindowLayout, WindowsHeldOut, open_windows
from trainer.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trainer.batch import Document
    from trainer.config import Config
    from trainer.data.buckets import Bucket

NUM_BYTES = 256


class Layout(Protocol):
    """Which documents are in which micro-batch."""

    def bucket(self, index: int) -> Bucket:
        """The shape of micro-batch `index`."""

    def rows(self, index: int) -> list[list[Document]]:
        """The documents of each of its rows."""

    def per_epoch(self, epoch: int) -> int:
        """Micro-batches in an epoch."""


class HeldOut(Protocol):
    """What nobody trains on."""

    def batches(self, rows: int) -> list[Batch]:
        """Batches of data.batch_rows rows, `rows` together, rounded up; fewer if there are not so many."""

    def prompts(self, count: int, tokens: int) -> list[list[int]]:
        """`count` beginnings of at most `tokens` tokens; fewer if there are not so many."""


class Dataset:
    """Micro-batches without end, on the CPU, each a pure function of its index."""

    def __init__(self, layout: Layout, fingerprint: str, *, pin: bool) -> None:
        self._layout, self._pin = layout, pin
        self.fingerprint = fingerprint
        """sha256 over the documents and all that decides on their order."""

    def bucket(self, index: int) -> Bucket:
        """The shape of micro-batch `index`."""
        return self._layout.bucket(index)

    def per_epoch(self, epoch: int = 0) -> int:
        """Micro-batches in an epoch; the indices 0 to `per_epoch(0)` - 1 are the first one's."""
        return self._layout.per_epoch(epoch)

    def micro_batch(self, index: int) -> Batch:
        """Micro-batch `index`, in memory that a GPU can copy from at once if there is one."""
        batch = pack(self._layout.rows(index), self._layout.bucket(index).context_tokens)
        return batch.pinned() if self._pin else batch


@dataclass(frozen=True, slots=True)
class Data:
    """What `open_data` found."""

    train: Dataset
    held_out: HeldOut
    fingerprint: str
    """sha256 over the documents, the tokenizer and the limits, whatever the order."""
    lines: list[str]
    """For the log."""


def open_data(
    config: Config,
    vocab_size: int,
    directory: Path,
    *,
    lead: bool,
    beat: Callable[[], None],
    tell: Callable[[str], None] = say,
) -> Data:
    """Open the configured documents; the `lead` rank tokenises them under `directory`, the others wait.

    Raises:
        ConfigInvalid: paths, tokenizer or buckets are not given as they must be.
        DataInvalid: the documents cannot be used, or are too few.
        OSError: a file cannot be read or written.
    """
    if config.data.source == "stdlib":
        return _open_stdlib(config, vocab_size)
    shapes = buckets(config.data)
    quiet = tell if lead else _ignore
    store = prepare(config, vocab_size, directory, lead=lead, beat=beat, tell=quiet)
    train, held_out = store.part(TRAIN), store.part(HELD_OUT)
    beat()
    layout = PackedLayout(train, shapes, config.seed, quiet)
    lines = [
        f"data {len(train):,} documents with {int(train.lengths.sum(dtype=np.int64)):,} tokens, "
        f"{len(held_out):,} held out; "
        + ("by a file of their own" if config.data.held_out_path else f"one in {HELD_OUT_ONE_IN} by content"),
        *_lines(store),
    ]
    dataset = Dataset(layout, _ordered(config, store.fingerprint), pin=_wants_pinned(config))
    return Data(dataset, PackedHeldOut(held_out, shapes[-1]), store.fingerprint, lines)


def _open_stdlib(config: Config, vocab_size: int) -> Data:
    if vocab_size < NUM_BYTES:
        raise ConfigInvalid(
            f"data.source: stdlib gives bytes, and the target's vocabulary has {vocab_size} tokens; give text"
        )
    corpus = read_corpus(stdlib_directory(config.data.stdlib))
    data = config.data
    train, held_out = open_windows(corpus, data.context_tokens, config.seed, at_least=data.batch_rows)
    line = f"corpus {len(corpus.train)} files, {corpus.train_bytes:,} bytes, {len(corpus.held_out)} held out"
    layout = WindowLayout(train, buckets(data)[-1])
    dataset = Dataset(layout, _ordered(config, corpus.fingerprint), pin=_wants_pinned(config))
    return Data(dataset, WindowsHeldOut(held_out, data.batch_rows), corpus.fingerprint, [line])


def _lines(store: Store) -> list[str]:
    counts = store.counts
    told = {
        "bad": "bad lines were left out; bad-lines.txt in the tokens' folder has them all",
        "unsupervised": f"documents had fewer than {MIN_SUPERVISED} supervised tokens and were left out",
        "cut": f"documents were too long and lost {counts['cut_tokens']:,} tokens; data.max_document_tokens",
        "also_held_out": "documents are held out too, and were left out of training",
    }
    return [f"{counts[name]:,} of {counts['read']:,} {words}" for name, words in told.items() if counts[name]]


def _ordered(config: Config, fingerprint: str) -> str:
    data = config.data
    order = (
        f"{fingerprint} {config.seed} {data.batch_rows} {data.context_tokens} {sorted(data.short_buckets)}"
    )
    return hashlib.sha256(order.encode()).hexdigest()


def _wants_pinned(config: Config) -> bool:
    return config.compute.device != "cpu" and torch.cuda.is_available()


def _ignore(line: str) -> None:
    del line
