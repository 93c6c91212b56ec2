"""Lines to findings, rank by rank: tracebacks joined, chains followed to the root, survivals noted. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.classify import lines, match
from orchestrator.classify.found import WRAPPER, Found, Ledger
from orchestrator.classify.message import MAX_CONTINUATION, alone, read_on
from orchestrator.classify.rankstate import RankState, Trace
from orchestrator.classify.text import StepLine, clean, is_bar, read_step, split_rank
from orchestrator.types.failure import FailureClass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.classify.signature import Signature
    from orchestrator.types.failure import Evidence

MAX_RANKS = 1024
MAX_FOREIGN = 200  # lines of others between the frames of one traceback


class Analysis:
    """The state of a scan, line by line. Copyable; bounded by the number of ranks and signatures."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.last_step: int | None = None
        self.last_line: StepLine | None = None  # that told a step, or a place within epochs
        self.num_restarts = 0  # that a launcher told, of all its ranks
        self.news: list[Evidence] = []
        self._ranks: dict[int | None, RankState] = {}
        self._busy: set[int | None] = set()

    @property
    def is_busy(self) -> bool:
        """True while every line counts: a traceback or an exception's message is being read."""
        return bool(self._busy)

    @property
    def has_only_steps(self) -> bool:
        """True while nothing was met but steps with finite numbers."""
        is_new = not (self._busy or self.news or self.ledger.slots or self.num_restarts)
        return is_new and all(state.has_only_steps for state in self._ranks.values())

    def feed(self, raw: bytes, offset: int) -> None:
        """Take one line, without its end."""
        text = clean(raw)
        if not text:
            return
        rank_number, body = split_rank(text)
        state = self._state(rank_number)
        if lines.HEADER not in body:
            body = state.drop_lead(body)
        if not body or self._feed_traceback(state, rank_number, body, offset):
            return
        if lines.RESTART in body:
            self._restart()
        if (step := read_step(body)) is not None:
            self._feed_step(state, rank_number, step, body, offset)
        self._feed_plain(state, rank_number, body, offset, is_step=step is not None)

    def feed_quiet(self, raw: bytes, offset: int) -> None:
        """Take one line that holds no word of the catalogue: only its step can matter."""
        text = clean(raw)
        rank_number, body = split_rank(text)
        if (step := read_step(body)) is not None:
            self._feed_step(self._state(rank_number), rank_number, step, body, offset)

    def findings(self) -> list[Found]:
        """Return everything met, in the order of the log, open ends included."""
        return sorted((*self.ledger.all(), *self._open_ends()), key=lambda found: found.offset)

    def _state(self, rank: int | None) -> RankState:
        state = self._ranks.get(rank)
        if state is None:
            if len(self._ranks) >= MAX_RANKS:
                return self._ranks.setdefault(None, RankState())
            state = self._ranks[rank] = RankState()
        return state

    def _open_ends(self) -> Iterator[Found]:
        for number, state in self._ranks.items():
            if state.current is not None:
                yield alone(state.current)
            if state.trace is not None and not state.trace.is_noise and state.trace.lines:
                frames = "\n".join(state.trace.lines)
                cut = self._found(state, number, match.match_cut(frames), state.trace.text, state.trace.at)
                cut.hints = match.frame_hints(frames, is_thread=state.trace.is_thread)
                yield cut
            if (lost := state.lost) is not None:
                yield lost

    def _feed_traceback(self, state: RankState, number: int | None, body: str, offset: int) -> bool:
        """Return True if the line was a part of a traceback."""
        if self._feed_heading(state, number, body, offset):
            return True
        if state.trace is None:
            if not lines.FRAME.match(body):
                return self._feed_exception(state, number, body, offset)
            self._open_trace(state, number, offset)
        trace = state.trace
        if trace is None:
            return False
        # Panels and loggers indent the exception's own line; a frame's source line never looks like one.
        is_indented = body[0].isspace() or body[0] in lines.PANEL
        if is_indented and lines.ALONE.match(body.strip()) and match.match_line(body) is not None:
            body, is_indented = body.strip(), False
        if is_indented:
            trace.add(body, offset)
            return True
        if trace.mend(body):
            return True
        return self._close_trace(state, number, trace, body, offset)

    def _feed_heading(self, state: RankState, number: int | None, body: str, offset: int) -> bool:
        """Return True if the line announces a traceback, or says how the next one belongs to the last."""
        if lines.HEADER in body:
            if state.current is not None and state.current.signature.name == WRAPPER:
                state.is_chained = True
            self._open_trace(state, number, offset)
            state.learn_lead(body[: body.index(lines.HEADER)])
        elif body.startswith(lines.LOOKS):
            state.is_noise = True
            self._open_trace(state, number, offset)
        elif body.startswith("Exception in thread"):
            state.is_thread = True
        elif body.startswith(lines.NOISE):
            state.is_noise = True
        elif state.current is not None and body.startswith(lines.CHAINS):
            state.is_chained = True
            state.continuing = MAX_CONTINUATION
        else:
            return False
        return True

    def _open_trace(self, state: RankState, number: int | None, offset: int) -> None:
        if not state.is_chained:
            self._commit(state)
        state.trace = Trace(offset=offset, is_thread=state.is_thread, is_noise=state.is_noise)
        state.is_thread = state.is_noise = False
        self._busy.add(number)

    def _close_trace(
        self, state: RankState, number: int | None, trace: Trace, body: str, offset: int
    ) -> bool:
        named = lines.EXCEPTION.match(body)
        is_name = named is not None and named.group(2) not in lines.NO_EXCEPTION
        if named is None or not is_name or not (named.group(1) or named.group(2)[0].isupper()):
            trace.num_foreign += 1
            if trace.num_foreign > MAX_FOREIGN:
                state.trace = None
                self._settle(state, number)
            return False
        state.trace = None
        frames = "\n".join(trace.lines)
        if trace.is_noise or (trace.is_thread and match.is_of_reporter(frames)):
            self._settle(state, number)
            return True
        hints = match.frame_hints(frames, is_thread=trace.is_thread)
        signature = match.match_exception(body, frames)
        found = self._found(state, number, signature, body, offset)
        found.is_traceback, found.hints = True, hints
        found.lines = (*trace.lines, body)
        self._take_exception(state, number, found)
        return True

    def _feed_exception(self, state: RankState, number: int | None, body: str, offset: int) -> bool:
        """Take an exception's last line whose frames were not seen, or a line that goes on with a message."""
        if state.continuing > 0 and state.current is not None:
            return self._continue(state, number, state.current, body, offset)
        if not lines.ALONE.match(body):
            return False
        found = self._found(state, number, match.match_exception(body), body, offset)
        # Without frames it may be a sentence about an error that was survived.
        found.weak = found.weak or found.signature is match.UNKNOWN_EXCEPTION or "etrying in" in body
        self._take_exception(state, number, found)
        return True

    def _take_exception(self, state: RankState, number: int | None, found: Found) -> None:
        root = state.current
        if root is not None and state.is_chained:
            if found.telling > root.telling:
                found.lines = (*root.lines, *found.lines)
                state.current = found
            else:
                root.lines = (*root.lines, *found.lines)[-400:]
        else:
            self._commit(state)
            state.current = found
        state.is_chained = False
        state.continuing = MAX_CONTINUATION
        self._busy.add(number)

    def _continue(self, state: RankState, number: int | None, root: Found, body: str, offset: int) -> bool:
        state.continuing -= 1
        if state.continuing == 0 or lines.ends_message(body) or read_step(body) is not None:
            self._commit(state)
            self._settle(state, number)
            return False
        return not is_bar(body) and read_on(root, body, offset)

    def _restart(self) -> None:
        self.num_restarts += 1
        for number, state in self._ranks.items():
            self._commit(state)
            self._settle(state, number)
        self.ledger.restart()

    def _feed_step(
        self, state: RankState, number: int | None, step: StepLine, body: str, offset: int
    ) -> None:
        self._commit(state)
        self._settle(state, number)
        state.count(step, lambda: self._found(state, number, match.NONFINITE_LOSS, body, offset))
        mark, self.last_line = state.advance(step), step
        if step.is_finite:
            self.ledger.progress(number, mark)
        if step.step is not None:
            state.step = self.last_step = step.step

    def _feed_plain(
        self, state: RankState, number: int | None, body: str, offset: int, *, is_step: bool
    ) -> None:
        signature = match.match_line(body)
        if signature is None or ("@" in body and lines.PROMPT.match(body)):
            return
        if is_step and signature.failure is FailureClass.NAN_LOSS:
            return  # the step's own numbers are counted
        found = self._found(state, number, signature, body, offset)
        # A sentence that mentions it; an exception of the same attempt knows better.
        found.weak = not signature.certain
        self._keep(found)

    def _commit(self, state: RankState) -> None:
        if state.current is not None:
            self._keep(alone(state.current))
        state.current, state.continuing, state.is_chained = None, 0, False

    def _settle(self, state: RankState, number: int | None) -> None:
        if state.trace is None and state.current is None:
            self._busy.discard(number)

    def _keep(self, found: Found) -> None:
        if self.ledger.add(found):
            self.news.append(found.evidence())

    def _found(
        self, state: RankState, number: int | None, signature: Signature, text: str, offset: int
    ) -> Found:
        return Found(
            signature=signature,
            offset=offset,
            rank=number,
            text=text.strip(),
            mark_before=state.mark,
            step_before=state.step if state.step is not None else self.last_step,
            weak=signature.weak,
        )
