"""How many drafted tokens the target accepts, teacher-forced: a block's context is its document's own text.

Verification is real: the target's greedy token at every offset, given the document up to the anchor and the
proposal before that offset.

Shapes: R rows, T context tokens, A anchor slots, S block tokens, Q = A*S, M tokens run now, E = taps * D.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.blocks import Anchors, spread_anchors
from trainer.data.buckets import bucket_of
from trainer.decoding.draftsession import DraftSession
from trainer.decoding.greedy import lookup
from trainer.loss import accepted_lengths
from trainer.masks import MaskRule, dense_mask
from trainer.target.own import TargetModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from trainer.batch import Batch
    from trainer.drafting import Drafting
    from trainer.target.api import Session, Target
    from trainer.target.own import Cache

LOOKUP_SIZE = 4
NOTHING = -1  # no token: a look-up without an answer proposes what is never accepted
CHUNK_TOKENS = 1024  # run at a time where only the cache is wanted: logits exist for as many
SCORE_LIMIT_BYTES = 1 << 29  # of one masked verification call
MAX_SESSION_ANCHORS = 32  # a row, where each costs a call of the target

BatchPropose = Callable[["Batch", "Tensor", "Anchors"], "Tensor"]
"""(batch, taps [R, T, E], anchors) -> proposed tokens [R, A, S-1]."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What became of a number of verifications."""

    length: float
    """Mean accepted draft tokens; the target's own token is not counted."""
    verifications: int
    reached: tuple[float, ...]
    """Share of verifications in which position k = 1, 2, ... was accepted."""
    conditional: tuple[float, ...]
    """The same among those in which every position before k was; 0 where there were none."""

    @classmethod
    def of(cls, lengths: Tensor, positions: int) -> Acceptance:
        """Of accepted lengths [n], each from 0 to `positions`."""
        count = len(lengths)
        survivors = [int((lengths >= k).sum()) for k in range(positions + 1)]
        pairs = list(itertools.pairwise(survivors))
        return cls(
            length=float(lengths.double().mean()) if count else 0.0,
            verifications=count,
            reached=tuple(after / max(1, count) for _, after in pairs),
            conditional=tuple(after / max(1, before) for before, after in pairs),
        )


@torch.no_grad()
def teacher_forced(
    drafting: Drafting,
    target: Target,
    batches: Sequence[Batch],
    propose: BatchPropose,
    beat: Callable[[], None],
) -> Acceptance:
    """Acceptance over anchors spread evenly over each row; `beat` is called once a batch."""
    size, data = drafting.config.draft.block_size, drafting.config.data
    lengths: list[Tensor] = []
    for on_cpu in batches:
        batch = on_cpu.to(target.device)
        anchors = spread_anchors(batch, bucket_of(data, batch.tokens.shape[1]).anchors, size)
        verified, anchors = _verify_batch(drafting, target, batch, anchors, propose)
        lengths.append(verified[anchors.keep].cpu())
        beat()
    return Acceptance.of(torch.cat(lengths) if lengths else torch.zeros(0), size - 1)


def _verify_batch(
    drafting: Drafting, target: Target, batch: Batch, anchors: Anchors, propose: BatchPropose
) -> tuple[Tensor, Anchors]:
    """Accepted lengths [R, A], and the anchors that they are of."""
    if isinstance(target, TargetModel):
        observation, cache = target.read(batch, drafting.tap_layers, last=True)
        proposed = propose(batch, observation.taps, anchors)
        return accepted_lengths(proposed, verify_masked(target, batch, cache, anchors, proposed)), anchors
    observation = target.observe(batch, drafting.tap_layers, last=False)
    proposed = propose(batch, observation.taps, anchors)
    chosen = _thinned(anchors)
    kept = Anchors(*(getattr(anchors, name)[:, chosen] for name in Anchors.__slots__))
    proposed = proposed[:, chosen]
    return accepted_lengths(proposed, verify_in_sessions(target, batch, kept, proposed)), kept


def _thinned(anchors: Anchors) -> Tensor:
    """Evenly spread slots, no more than are worth a call of the target each."""
    slots = anchors.index.shape[1]
    return torch.linspace(0, slots - 1, min(slots, MAX_SESSION_ANCHORS)).long().to(anchors.index.device)


def verify_masked(
    target: TargetModel, batch: Batch, cache: Cache, anchors: Anchors, proposed_RAS: Tensor
) -> Tensor:
    """The target's greedy tokens [R, A, S-1], many slots in one call on top of the rows' cache."""
    rows, context = batch.tokens.shape
    size = proposed_RAS.shape[2] + 1
    score_bytes = 4 * rows * target.shape.num_attention_heads * size * (context + size)
    slots = max(1, SCORE_LIMIT_BYTES // score_bytes)
    greedy: list[Tensor] = []
    for start in range(0, anchors.index.shape[1], slots):
        part = slice(start, start + slots)
        some = Anchors(*(getattr(anchors, name)[:, part] for name in Anchors.__slots__))
        blocks_RAS = torch.cat(
            (batch.tokens.gather(1, some.index)[..., None], proposed_RAS[:, part].clamp(min=0)), dim=-1
        )
        positions_RAS = some.positions[..., None] + torch.arange(size, device=target.device)
        output = target(
            blocks_RAS.flatten(1),
            positions_RT=positions_RAS.flatten(1),
            mask=dense_mask(some, MaskRule(context, size, causal=True)),
            past=cache,
        )
        greedy.append(output.logits.argmax(dim=-1).unflatten(1, (-1, size))[..., :-1])
    return torch.cat(greedy, dim=1)


def verify_in_sessions(target: Target, batch: Batch, anchors: Anchors, proposed_RAS: Tensor) -> Tensor:
    """The same for any target: a document's cache grows from anchor to anchor, each block cut off again."""
    greedy_RAS = torch.zeros_like(proposed_RAS)
    for row, slot, tokens, context in _by_document(batch, anchors):
        if slot.first:
            session = target.session(())
        run_all(session, tokens[session.length : context])
        block = [tokens[context], *proposed_RAS[row, slot.index].clamp(min=0).tolist()]
        logits, _ = session.run(block)
        session.truncate(context)
        greedy_RAS[row, slot.index] = logits[:-1].argmax(dim=-1)
    return greedy_RAS


def run_all(session: Session, tokens: Sequence[int]) -> None:
    """Put tokens into the cache, whose logits nobody wants, a limited number at a time."""
    for start in range(0, len(tokens), CHUNK_TOKENS):
        session.run(tokens[start : start + CHUNK_TOKENS])


@dataclass(frozen=True, slots=True)
class _Slot:
    index: int
    first: bool
    """Whether it is the first anchor of its document."""


def _by_document(batch: Batch, anchors: Anchors) -> Iterator[tuple[int, _Slot, list[int], int]]:
    """Row, slot, tokens of the document, and tokens before the anchor, in the order of the text."""
    index, starts, ends = anchors.index.tolist(), anchors.starts.tolist(), anchors.ends.tolist()
    keep = anchors.keep.tolist()
    for row, tokens in enumerate(batch.tokens.tolist()):
        begun = -1
        for slot, kept in enumerate(keep[row]):
            if kept:
                start = starts[row][slot]
                text = tokens[start : ends[row][slot]]
                yield row, _Slot(slot, first=start != begun), text, index[row][slot] - start
                begun = start


def by_drafter(drafting: Drafting) -> BatchPropose:
    """All blocks in one masked call, as in training; on a GPU a compiled one."""
    return drafting.propose


def by_draft_sessions(drafting: Drafting) -> BatchPropose:
    """The same tokens block by block, with kept context: needs nothing compiled."""

    def propose(batch: Batch, taps_RTE: Tensor, anchors: Anchors) -> Tensor:
        size = drafting.config.draft.block_size
        proposed_RAS = torch.zeros(*anchors.index.shape, size - 1, dtype=torch.long, device=taps_RTE.device)
        starts = anchors.starts.tolist()
        for row, slot, tokens, context in _by_document(batch, anchors):
            if slot.first:
                session = DraftSession(drafting)
            start = starts[row][slot.index]
            session.extend(taps_RTE[row, start + session.length : start + context])
            proposed_RAS[row, slot.index] = session.logits(tokens[context]).argmax(dim=-1)
        return proposed_RAS

    return propose


def by_lookup(count: int) -> BatchPropose:
    """What followed the newest earlier occurrence of the last tokens in the document."""

    def propose(batch: Batch, taps_RTE: Tensor, anchors: Anchors) -> Tensor:
        proposed_RAS = torch.full((*anchors.index.shape, count), NOTHING, device=taps_RTE.device)
        for row, slot, tokens, context in _by_document(batch, anchors):
            found = lookup(tokens[: context + 1], LOOKUP_SIZE, count)
            proposed_RAS[row, slot.index, : len(found)] = torch.tensor(found, dtype=torch.long)
        return proposed_RAS

    return propose
