"""Text to signature: a plain line, or an exception with the frames of its traceback. Pure."""

from __future__ import annotations

import re

from orchestrator.classify.catalog import SIGNATURES
from orchestrator.classify.signature import Signature, Where
from orchestrator.classify.words import Words
from orchestrator.types.failure import FailureClass, Role

_F = FailureClass


def _by_frames(
    name: str,
    failure: FailureClass,
    *,
    role: Role = Role.ROOT,
    weak: bool = False,
    generic: bool = False,
) -> Signature:
    """A signature that code finds, from frames or numbers; its pattern is never searched for."""
    never = re.compile(r"(?!)")
    return Signature(
        name=name, failure=failure, words=(), pattern=never, example="", role=role, weak=weak, generic=generic
    )


DENSE_OOM = _by_frames("dense_oom", _F.OOM_DENSE_FALLBACK)
FRAGMENTED_OOM = _by_frames("oom_fragmented", _F.OOM_FRAGMENTATION)
CALLED_IN_TRACE = _by_frames("called_in_trace", _F.FX_TRACE_RACE)
CUT_LAUNCHER = _by_frames("launcher_cut", _F.TORCHRUN_WRAPPER, role=Role.CASCADE)
CUT_RACE = _by_frames("fx_frames", _F.FX_TRACE_RACE, weak=True)
CUT_TRACEBACK = _by_frames("traceback_cut", _F.PYTHON_EXCEPTION, weak=True)
UNKNOWN_EXCEPTION = _by_frames("exception", _F.PYTHON_EXCEPTION, generic=True)
NONFINITE_LOSS = _by_frames("nonfinite_loss", _F.NAN_LOSS)

_FOUND_BY_CODE = (
    *(DENSE_OOM, FRAGMENTED_OOM, CALLED_IN_TRACE, CUT_RACE, CUT_LAUNCHER, CUT_TRACEBACK),
    *(UNKNOWN_EXCEPTION, NONFINITE_LOSS),
)
BY_NAME = {s.name: s for s in (*SIGNATURES, *_FOUND_BY_CODE)}
_WORDS = tuple((word, order) for order, s in enumerate(SIGNATURES) for word in s.words)
_INDEX = Words(word.encode() for word, _ in _WORDS)

_DENSE_FRAME = re.compile(r"\b(?:sdpa_dense(?:_backward)?|_?math_attention(?:_inner)?)\b")
_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory")
_TRACING_FRAME = re.compile(
    r"in (?:dispatch_trace|symbolic_trace)\b|_symbolic_trace\.py\", line \d+, in trace\b"
)
_CALLED_IN_TRACE = re.compile(r"in (?:module_call_wrapper|call_module)\b|_orig_module_call\(")
_LAUNCHER_FRAME = re.compile(r"^[^\"]*torch/distributed/(?:run|launcher/api)\.py")
# What reports to a service runs in threads of its own, and trains nothing.
_REPORTER_FRAME = re.compile(
    r"^[^\"]*/(?:wandb|tensorboardX?|torch/utils/tensorboard|comet_ml|mlflow|neptune|clearml|tqdm|swanlab)/"
)
_ANNOTATE_FRAME = re.compile(r"torch/fx/traceback\.py")
_RECOMPILING_FRAME = re.compile(r"^[^\"]*torch/_dynamo/convert_frame\.py")
_ATTENTION_FRAME = re.compile(r"\bself\.(?:self_)?attn\w*\(|\bflex_attention\b|\battn_output\b")


def _wrapped(pattern: str) -> re.Pattern[str]:
    """Let each blank be missing: a pane may have broken the message there."""
    return re.compile(pattern.replace(" ", r"\s?"))


_SIZE = r"(?<![\d.])([\d.]+) ([KMGT]i?B|bytes)"
_CAPACITY = _wrapped(rf"total capac\w* of {_SIZE}|{_SIZE} total capacity")
_UNALLOCATED = _wrapped(rf"{_SIZE} is reserved by PyTorch but unallocated")
_RESERVED = _wrapped(rf"{_SIZE} (?:reserved in total by PyTorch|cached)")
_ALLOCATED = _wrapped(rf"{_SIZE} already allocated")
_UNITS = {"b": 1.0, "k": 1024.0, "m": 1024.0**2, "g": 1024.0**3, "t": 1024.0**4}
# Some of what the allocator holds is always in pieces; only a good part of the card is fragmentation.
FRAGMENTED_SHARE = 0.1


def match_line(text: str) -> Signature | None:
    """Return the first signature that a plain line shows, or None."""
    found = next((s for s in _candidates(text) if s.where is Where.LINE and s.pattern.search(text)), None)
    return _by_numbers(found, text) if found is not None else None


def matching(text: str) -> list[Signature]:
    """Return every signature whose pattern is in `text`, in the order of the catalogue."""
    return [signature for signature in _candidates(text) if signature.pattern.search(text)]


def match_exception(text: str, frames: str = "") -> Signature:
    """Return the signature of an exception's text, with the frames of its traceback."""
    if "KeyError: 'custom'" in text and _ANNOTATE_FRAME.search(frames):
        # 2.14's other face: annotations of a trace that another thread ended
        return BY_NAME["fx_subgraph_race"]
    if _MEMORY.search(text) and _DENSE_FRAME.search(frames):
        return DENSE_OOM  # whatever the size: a giant allocation alone is no proof, a small one no disproof
    found = next((s for s in _candidates(text) if s.pattern.search(text)), UNKNOWN_EXCEPTION)
    if found is UNKNOWN_EXCEPTION and _CALLED_IN_TRACE.search(frames) and not _TRACING_FRAME.search(frames):
        return CALLED_IN_TRACE  # modules are hooked while one is traced, and this thread traces none
    return _by_numbers(found, text)


def match_wrapped(text: str) -> Signature | None:
    """Return what the name of a worker's exception shows, where its message is not to be seen."""
    name = text.partition(":")[0]
    found = (s for s in _candidates(f"{name}: ") if s.pattern.search(f"{name}: "))
    return next((s for s in found if s.failure is not _F.PYTHON_EXCEPTION), None)


def _by_numbers(found: Signature, text: str) -> Signature:
    return FRAGMENTED_OOM if found.name == "cuda_oom" and is_fragmented(text) else found


def is_fragmented(text: str) -> bool:
    """Whether an out-of-memory message tells of much memory that is reserved and not in use."""
    capacity = _bytes(_CAPACITY, text)
    unallocated = _bytes(_UNALLOCATED, text)
    if unallocated is None:
        reserved, allocated = _bytes(_RESERVED, text), _bytes(_ALLOCATED, text)
        unallocated = reserved - allocated if reserved is not None and allocated is not None else None
    return capacity is not None and unallocated is not None and unallocated >= FRAGMENTED_SHARE * capacity


def _bytes(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    if found is None:
        return None
    number, unit = (part for part in found.groups() if part is not None)
    try:
        return float(number) * _UNITS[unit[0].lower()]
    except ValueError:
        return None  # "1.2.3": no number after all


def _candidates(text: str) -> list[Signature]:
    """Return the signatures of which a word is in `text`, in the order of the catalogue."""
    found = _INDEX.find(text.lower().encode(errors="replace"))
    return [SIGNATURES[order] for order in dict.fromkeys(_WORDS[number][1] for number in found)]


def match_cut(frames: str) -> Signature:
    """Return the signature of a traceback whose last line never came."""
    if _LAUNCHER_FRAME.search(frames.rpartition('File "')[2]):
        return CUT_LAUNCHER
    return CUT_RACE if _CALLED_IN_TRACE.search(frames) else CUT_TRACEBACK


def is_of_reporter(frames: str) -> bool:
    """Whether the innermost frame is of a program that reports to a service."""
    return _REPORTER_FRAME.search(frames.rpartition('File "')[2]) is not None


def frame_hints(frames: str, *, is_thread: bool) -> tuple[str, ...]:
    """Return what the frames of a traceback show beside its last line.

    `recompiling`, `dense`, `tracing`, `attention`, `thread`, as far as they are there.
    """
    innermost = frames.rpartition('File "')[2]
    shown = (
        ("recompiling", _RECOMPILING_FRAME.search(innermost)),
        ("dense", _DENSE_FRAME.search(frames)),
        ("tracing", _TRACING_FRAME.search(frames)),
        ("attention", _ATTENTION_FRAME.search(frames)),
    )
    return (*(name for name, there in shown if there), *(("thread",) if is_thread else ()))
