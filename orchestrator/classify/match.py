"""Text to signature: a plain line, or an exception with the frames of its traceback. Pure."""

from __future__ import annotations

import re

from orchestrator.classify.catalog import SIGNATURES, Signature, Where
from orchestrator.types import FailureClass

_F = FailureClass


def _by_frames(name: str, failure: FailureClass, *, weak: bool = False) -> Signature:
    """A signature that code finds, from frames or numbers; its pattern is never searched for."""
    return Signature(name=name, failure=failure, words=(), pattern=re.compile(r"(?!)"), example="", weak=weak)


DENSE_OOM = _by_frames("dense_oom", _F.OOM_DENSE_FALLBACK)
CUT_RACE = _by_frames("fx_frames", _F.FX_TRACE_RACE, weak=True)
CUT_TRACEBACK = _by_frames("traceback_cut", _F.PYTHON_EXCEPTION, weak=True)
UNKNOWN_EXCEPTION = _by_frames("exception", _F.PYTHON_EXCEPTION)
NONFINITE_LOSS = _by_frames("nonfinite_loss", _F.NAN_LOSS)

BY_NAME = {
    s.name: s for s in (*SIGNATURES, DENSE_OOM, CUT_RACE, CUT_TRACEBACK, UNKNOWN_EXCEPTION, NONFINITE_LOSS)
}
# One flat pass over all words is several times cheaper than asking each signature.
_WORDS = tuple((word, order) for order, s in enumerate(SIGNATURES) for word in s.words)

_DENSE_FRAME = re.compile(r"\b(?:sdpa_dense(?:_backward)?|_?math_attention(?:_inner)?)\b")
_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory")
_TRACING_FRAME = re.compile(r"in (?:dispatch_trace|symbolic_trace)\b")
_CALLED_IN_TRACE = re.compile(r"in (?:module_call_wrapper|call_module)\b")
_ANNOTATE_FRAME = re.compile(r"torch/fx/traceback\.py")


def match_line(text: str) -> Signature | None:
    """Return the first signature that a plain line shows, or None."""
    return next((s for s in _candidates(text) if s.where is Where.LINE and s.pattern.search(text)), None)


def match_exception(text: str, frames: str = "") -> Signature:
    """Return the signature of an exception's text, with the frames of its traceback."""
    if "KeyError: 'custom'" in text and _ANNOTATE_FRAME.search(frames):
        return BY_NAME[
            "fx_subgraph_race"
        ]  # 2.14's other face: annotations of a trace that another thread ended
    if _MEMORY.search(text) and _DENSE_FRAME.search(frames):
        return DENSE_OOM  # whatever the size: a giant allocation alone is no proof, a small one no disproof
    return next((s for s in _candidates(text) if s.pattern.search(text)), UNKNOWN_EXCEPTION)


def _candidates(text: str) -> list[Signature]:
    """Return the signatures of which a word is in `text`, in the order of the catalogue."""
    lowered = text.lower()
    orders = [order for word, order in _WORDS if word in lowered]
    return [SIGNATURES[order] for order in dict.fromkeys(orders)]


def match_cut(frames: str) -> Signature:
    """Return the signature of a traceback whose last line never came."""
    return CUT_RACE if _CALLED_IN_TRACE.search(frames) else CUT_TRACEBACK


def frame_hints(frames: str, *, is_thread: bool) -> tuple[str, ...]:
    """Return what the frames of a traceback show beside its last line: `dense`, `tracing`, `thread`."""
    shown = (("dense", _DENSE_FRAME.search(frames)), ("tracing", _TRACING_FRAME.search(frames)))
    return (*(name for name, there in shown if there), *(("thread",) if is_thread else ()))
