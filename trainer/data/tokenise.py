"""One pass over the documents: tokens, limits, the held-out split, and what could not be used.

Memory does not grow with the corpus: a batch of documents is held at a time, and of the held-out ones of
another file their hashes.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import numpy as np

from trainer.data.documents import BadLine
from trainer.data.store import HELD_OUT, PARTS, TRAIN, PartWriter, write_manifest
from trainer.data.tokenizers import Encoded
from trainer.errors import DataInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from trainer.config import DataConfig
    from trainer.data.documents import Content, Found
    from trainer.data.tokenizers import Tokenizer

HELD_OUT_ONE_IN = 64
MIN_SUPERVISED = 2
"""An anchor, and a label after it."""
BATCH_DOCUMENTS, BATCH_CHARACTERS = 256, 1 << 20
"""A batch is handed to the tokenizer as soon as it reaches either."""
TOLD_LINES = 20
"""Bad lines that are also told in the log."""
TELL_EVERY_S, ALIVE_EVERY_S = 10.0, 0.5
BYTES_A_TOKEN = 64
"""Hardly any text has longer tokens: so much of a plain text file is read for each token that is kept."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is kept of a document."""

    max_tokens: int

    @classmethod
    def of(cls, data: DataConfig) -> Limits:
        """Those configured; no document is longer than a row."""
        return cls(min(data.max_document_tokens or data.context_tokens, data.context_tokens))

    @property
    def max_text_bytes(self) -> int:
        """What is read of a plain text file."""
        return max(1 << 20, self.max_tokens * BYTES_A_TOKEN)


def tokenise(
    found: Mapping[str, Iterator[Found]],
    tokenizer: Tokenizer,
    limits: Limits,
    directory: Path,
    *,
    fingerprint: str,
    vocab_size: int,
    max_bad: int,
    alive: Callable[[int], None],
    tell: Callable[[str], None],
) -> None:
    """Write a store of what is `found`: `held-out` first if it has documents of its own, then `train`.

    Raises:
        DataInvalid: more than `max_bad` bad lines, nothing in a part, or ids beyond the vocabulary.
        OSError: the disk is full.
    """
    directory.mkdir()
    with ExitStack() as stack:
        bad_lines = stack.enter_context((directory / "bad-lines.txt").open("w", encoding="utf-8"))
        parts = {name: PartWriter(directory / name, stack) for name in PARTS}
        work = _Pass(limits, vocab_size, max_bad, parts, bad_lines, tell, split=HELD_OUT not in found)
        progress = _Progress(alive, tell)
        for name, documents in found.items():
            for batch in _batches(documents, work.refuse):
                encoded = tokenizer.encode([content for _, content in batch])
                for (where, _), answer in zip(batch, encoded, strict=True):
                    work.take(name, where, answer)
                progress.told(work.counts["read"], parts[TRAIN].num_tokens + parts[HELD_OUT].num_tokens)
        for part in parts.values():
            part.finish()
    _require_documents(parts, work.counts)
    write_manifest(directory, fingerprint, _complete(work.counts), parts)


def _batches(
    documents: Iterator[Found], refuse: Callable[[str, str], None]
) -> Iterator[list[tuple[str, Content]]]:
    batch: list[tuple[str, Content]] = []
    characters = 0
    for document in documents:
        if document.content is None:
            refuse(document.where, document.problem)
            continue
        batch.append((document.where, document.content))
        characters += _num_characters(document.content)
        if len(batch) >= BATCH_DOCUMENTS or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _num_characters(content: Content) -> int:
    return len(content) if isinstance(content, str) else sum(len(turn.text) for turn in content)


class _Pass:
    """Decides on each document and counts what it decided."""

    def __init__(
        self,
        limits: Limits,
        vocab_size: int,
        max_bad: int,
        parts: dict[str, PartWriter],
        bad_lines: TextIO,
        tell: Callable[[str], None],
        *,
        split: bool,
    ) -> None:
        self._limits, self._vocab_size, self._max_bad = limits, vocab_size, max_bad
        self._parts, self._bad_lines, self._tell, self._split = parts, bad_lines, tell, split
        self._held_out: set[bytes] = set()
        self.counts: Counter[str] = Counter()

    def refuse(self, where: str, problem: str) -> None:
        """Count a bad line."""
        self.counts["read"] += 1
        self.counts["bad"] += 1
        number = self.counts["bad"]
        self._bad_lines.write(f"{where}: {problem}\n")
        if number > self._max_bad:
            raise DataInvalid(
                f"{where}: {problem}; that is bad line {number}, over data.max_bad_lines, {self._max_bad}; "
                "correct the file or raise it"
            )
        if number <= TOLD_LINES:
            more = "; of further ones, see bad-lines.txt beside the tokens" if number == TOLD_LINES else ""
            self._tell(f"bad line {where}: {problem}{more}")

    def take(self, name: str, where: str, answer: Encoded | BadLine) -> None:
        """Keep a document, or count why not."""
        if isinstance(answer, BadLine):
            self.refuse(where, str(answer))
            return
        self.counts["read"] += 1
        document = self._cut(answer)
        if np.count_nonzero(document.supervised) < MIN_SUPERVISED:
            self.counts["unsupervised"] += 1
            return
        if int(document.tokens.max()) >= self._vocab_size:
            raise DataInvalid(
                f"{where}: token {int(document.tokens.max())} is beyond the target's vocabulary of "
                f"{self._vocab_size}; target.path must name the model that the tokenizer belongs to"
            )
        self._place(name, document)

    def _cut(self, document: Encoded) -> Encoded:
        limit = self._limits.max_tokens
        if len(document.tokens) <= limit:
            return document
        self.counts["cut"] += 1
        self.counts["cut_tokens"] += len(document.tokens) - limit
        return Encoded(document.tokens[:limit], document.supervised[:limit])

    def _place(self, name: str, document: Encoded) -> None:
        """By the hash of what is kept of it, so that no text is in both parts, however often it comes."""
        digest = hashlib.sha256(document.tokens.astype("<u4", copy=False).tobytes()).digest()[:16]
        if self._split:
            name = HELD_OUT if digest[0] % HELD_OUT_ONE_IN == 0 else TRAIN
        elif name == HELD_OUT:
            self._held_out.add(digest)
        elif digest in self._held_out:
            self.counts["also_held_out"] += 1
            return
        self._parts[name].add(document)


class _Progress:
    """Says now and then that it goes on."""

    def __init__(self, alive: Callable[[int], None], tell: Callable[[str], None]) -> None:
        self._alive, self._tell = alive, tell
        self._begun = self._told = self._shown = time.monotonic()

    def told(self, documents: int, tokens: int) -> None:
        """After a batch."""
        now = time.monotonic()
        if now - self._shown >= ALIVE_EVERY_S:
            self._shown = now
            self._alive(documents)
        if now - self._told >= TELL_EVERY_S:
            self._told = now
            rate = documents / (now - self._begun)
            self._tell(f"tokenised {documents:,} documents, {tokens:,} tokens, {rate:,.0f} documents/s")


def _require_documents(parts: dict[str, PartWriter], counts: Counter[str]) -> None:
    for name, cure in (
        (TRAIN, "give more of them with data.path"),
        (HELD_OUT, "name some with data.held_out_path, or give more with data.path"),
    ):
        if not parts[name].num_documents:
            held_out = f", {counts['also_held_out']} are held out too" if counts["also_held_out"] else ""
            raise DataInvalid(f"data.path: no {name} documents, {_summary(counts)}{held_out}; {cure}")


def _complete(counts: Counter[str]) -> dict[str, int]:
    return {
        name: counts[name] for name in ("read", "bad", "unsupervised", "cut", "cut_tokens", "also_held_out")
    }


def _summary(counts: Mapping[str, int]) -> str:
    return (
        f"of {counts['read']} read {counts['bad']} were bad and {counts['unsupervised']} had fewer than "
        f"{MIN_SUPERVISED} supervised tokens"
    )
