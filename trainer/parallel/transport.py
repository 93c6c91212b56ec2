"""Hidden states from target ranks to drafter ranks, pulled by the drafters.

A drafter posts the receive of micro-batch m on the group that it shares with target m % T, then asks that
target for m by a small message over the control group. The target answers requests as they arrive. So what
is skipped, rolled back, evaluated or stopped is decided by the drafters alone.

It cannot deadlock. On each pair's group both sides issue their operations in the order of that drafter's
requests: the drafter posts before it asks, and the target answers in the order of asking. So every send meets
a receive that is posted, and depends on nothing but the target's own work; no pair waits behind another.
Control messages are sent without waiting, since gloo holds a sender until the receiver listens.
"""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist

from trainer.target.api import Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch.distributed import ProcessGroup, Work

    from trainer.parallel.group import Group
    from trainer.parallel.schedule import Schedule

MESSAGE = 5
REPLY_TAG = 1
SENDS_IN_FLIGHT = 2
BEAT_S = 0.5


class Kind(IntEnum):
    """What a drafter asks for."""

    OBSERVE = 0
    EVALUATE = 1
    BYE = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of a micro-batch's observation: taps [R, T, E] and, unless its width is 0, last [R, T, D]."""

    rows: int
    tokens: int
    taps_width: int
    last_width: int = 0


@dataclass(frozen=True, slots=True)
class _Pending:
    observation: Observation
    works: tuple[Work, ...]


class Remote:
    """A drafter's side. Every micro-batch asked for is received, even if nobody wants it any more."""

    def __init__(
        self, group: Group, schedule: Schedule, layout: Callable[[int], Layout], dtype: torch.dtype
    ) -> None:
        self._group = group
        self._schedule = schedule
        self._layout = layout
        self._dtype = dtype
        self._pending: dict[int, _Pending] = {}

    def request(self, micro_batch: int) -> None:
        """Ask for a micro-batch, unless it is on its way already."""
        if micro_batch in self._pending:
            return
        layout = self._layout(micro_batch)
        target = self._target(micro_batch)
        taps = self._empty(layout, layout.taps_width)
        last = self._empty(layout, layout.last_width) if layout.last_width else None
        pair = self._group.pairs[target, self._group.topology.rank]
        works = [_irecv(taps, target, pair)]
        if last is not None:
            works.append(_irecv(last, target, pair))
        sizes = (taps.numel(), 0 if last is None else last.numel())
        works.append(self._ask(target, Kind.OBSERVE, micro_batch, *sizes))
        self._pending[micro_batch] = _Pending(Observation(taps, last), tuple(works))

    def fetch(self, micro_batch: int, ahead: Iterable[int] = ()) -> Observation:
        """Receive a micro-batch, with those of `ahead` asked for before it is waited for."""
        wanted = (micro_batch, *ahead)
        for each in wanted:
            self.request(each)
        for stale in self._pending.keys() - set(wanted):  # of a step that is left out
            self._receive(stale)
        return self._receive(micro_batch)

    def discard(self) -> None:
        """Receive and forget what is on its way: before a rollback, and before the end."""
        for micro_batch in list(self._pending):
            self._receive(micro_batch)

    def evaluate(
        self, step: int, state: Mapping[str, Tensor], beat: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Let target 0 evaluate these weights, sent in the order of their names; the leader alone asks.

        `step` is any number that the evaluator understands; `beat` is called for each `Server.beat`.
        Returns what the evaluator's callback returned.
        """
        target = self._group.topology.target_rank(0)
        asked = self._ask(target, Kind.EVALUATE, step, sum(t.numel() for t in state.values()))
        pair = self._group.pairs[target, self._group.topology.rank]
        for name in sorted(state):
            dist.send(state[name].to(self._group.device).contiguous(), target, group=pair)
        asked.wait()
        size = torch.zeros(1, dtype=torch.long)
        while not size:
            dist.recv(size, target, group=self._group.control, tag=REPLY_TAG)
            beat()
        text = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(text, target, group=self._group.control, tag=REPLY_TAG)
        answer: dict[str, Any] = json.loads(bytes(text.tolist()))
        return answer

    def bye(self) -> None:
        """Release the targets; nothing can be asked afterwards."""
        self.discard()
        topology = self._group.topology
        asked = [self._ask(topology.target_rank(index), Kind.BYE, 0) for index in range(topology.num_targets)]
        for work in asked:
            work.wait()

    def _receive(self, micro_batch: int) -> Observation:
        pending = self._pending.pop(micro_batch)
        for work in pending.works:
            work.wait()
        return pending.observation

    def _target(self, micro_batch: int) -> int:
        return self._group.topology.target_rank(self._schedule.target_of(micro_batch))

    def _empty(self, layout: Layout, width: int) -> Tensor:
        return torch.empty(layout.rows, layout.tokens, width, dtype=self._dtype, device=self._group.device)

    def _ask(self, target: int, kind: Kind, number: int, *sizes: int) -> Work:
        message = torch.zeros(MESSAGE, dtype=torch.long)
        message[: 3 + len(sizes)] = torch.tensor([kind, number, self._group.topology.rank, *sizes])
        return _isend(message, target, self._group.control)


class Server:
    """A target's side."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._sends: deque[list[tuple[Work, Tensor]]] = deque()
        """A micro-batch's each."""
        self._asker: int | None = None
        """Who waits for an evaluation."""
        self._beaten_at = float("-inf")

    def serve(
        self,
        make: Callable[[int], Observation],
        evaluate: Callable[[int], dict[str, Any]] | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Answer until every drafter has said bye.

        `make(m)` computes a micro-batch; its send overlaps the next one's computing. `evaluate(step)` is
        called once the leader's weights have been received into the tensors of `state`; it may call `beat`.

        Raises:
            ValueError: a drafter expects another shape than was made.
        """
        left = self._group.topology.num_drafters
        message = torch.zeros(MESSAGE, dtype=torch.long)
        while left:
            dist.recv(message, group=self._group.control)
            kind, number, drafter, *sizes = message.tolist()
            if kind == Kind.OBSERVE:
                self._send(make(number), number, drafter, sizes)
            elif kind == Kind.EVALUATE:
                self._evaluate(number, drafter, sizes[0], evaluate, state or {})
            else:
                left -= 1
        self._settle(0)

    def beat(self) -> None:
        """Show whoever waits for an evaluation that it goes on; at most twice a second, else nothing."""
        if self._asker is not None and time.monotonic() - self._beaten_at >= BEAT_S:
            self._beaten_at = time.monotonic()
            self._reply(torch.zeros(1, dtype=torch.long))

    def _send(self, made: Observation, micro_batch: int, drafter: int, sizes: list[int]) -> None:
        sent = (made.taps.numel(), 0 if made.last is None or not sizes[1] else made.last.numel())
        if sent != tuple(sizes):
            raise ValueError(
                f"micro-batch {micro_batch}: target rank {self._group.topology.rank} made {sent} numbers, "
                f"drafter rank {drafter} expects {tuple(sizes)}"
            )
        self._settle(SENDS_IN_FLIGHT - 1)
        pair = self._group.pairs[self._group.topology.rank, drafter]
        tensors = (made.taps, made.last if sizes[1] else None)
        wholes = [tensor.contiguous() for tensor in tensors if tensor is not None]
        self._sends.append([(_isend(whole, drafter, pair), whole) for whole in wholes])

    def _settle(self, allowed: int) -> None:
        # Under NCCL waiting only orders the stream: the memory is reused after the send, the host goes on.
        while len(self._sends) > allowed:
            for work, _ in self._sends.popleft():
                work.wait()

    def _evaluate(
        self,
        step: int,
        drafter: int,
        size: int,
        evaluate: Callable[[int], dict[str, Any]] | None,
        state: Mapping[str, Tensor],
    ) -> None:
        expected = sum(tensor.numel() for tensor in state.values())
        if evaluate is None or expected != size:
            raise ValueError(
                f"evaluation: drafter rank {drafter} sends {size} numbers, target rank "
                f"{self._group.topology.rank} {f'expects {expected}' if evaluate else 'does not evaluate'}"
            )
        pair = self._group.pairs[self._group.topology.rank, drafter]
        for name in sorted(state):
            received = torch.empty_like(state[name], memory_format=torch.contiguous_format)
            dist.recv(received, drafter, group=pair)
            with torch.no_grad():
                state[name].copy_(received)
        self._asker = drafter
        text = torch.tensor(list(json.dumps(evaluate(step)).encode()), dtype=torch.uint8)
        self._reply(torch.tensor([len(text)]))
        self._reply(text)
        self._asker = None

    def _reply(self, tensor: Tensor) -> None:
        assert self._asker is not None
        dist.send(tensor, self._asker, group=self._group.control, tag=REPLY_TAG)


def _isend(tensor: Tensor, to: int, group: ProcessGroup | None) -> Work:
    work = dist.isend(tensor, to, group=group)
    assert work is not None  # only for a rank outside the group
    return work


def _irecv(tensor: Tensor, source: int, group: ProcessGroup | None) -> Work:
    work = dist.irecv(tensor, source, group=group)
    assert work is not None  # only for a rank outside the group
    return work
