"""Logs for the properties: the catalogue's own examples, steps, tracebacks, what broken programs print."""

from __future__ import annotations

from hypothesis import strategies as st

from orchestrator.classify.catalog import SIGNATURES

EXAMPLES = tuple(signature.example for signature in SIGNATURES if signature.example)

_HEADER = "Traceback (most recent call last):"
_FRAMES = (
    '  File "/opt/t/train.py", line 88, in run',
    '  File "/opt/torch/nn/attention/flex_attention.py", line 282, in sdpa_dense',
    '  File "/opt/torch/fx/_symbolic_trace.py", line 871, in module_call_wrapper',
    '  File "/opt/torch/fx/traceback.py", line 12, in annotate',
    "    return self.self_attn(hidden)",
    "           ^^^^^^^^^^^^^^^^^^^^^^",
)
_LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
    "Exception in thread Thread-3 (replica 1):",
    "Exception ignored in: <function f at 0x7f00>",
    "--- Logging error ---",
    "[rank0]:[W1129 12:00:00.123 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called",
    "warning: rank 1 (target) failed first: process 12: killed by SIGKILL, without a word of its own",
)
_NAMES = ("ValueError", "KeyError: 'custom'", "torch.OutOfMemoryError: CUDA out of memory", "my.FooInvalid")
_PREFIXES = ("", "", "", "[rank0]: ", "[rank1]: ", "[rank12]: ", "[default3]:", "3: ", "[80746] [rank1]: ")
_COLOURS = ("", "", "", "", "\x1b[31m", "\x1b[1;32m[rank1]: ", "\x1b]0;title\x07")

_number = st.integers(0, 10**6)


@st.composite
def step_lines(draw: st.DrawFn) -> str:
    """Draw a step's line, its loss now and then no number."""
    step, total = draw(_number | st.integers(1, 99)), draw(_number)
    loss = draw(st.sampled_from(("2.314", "0.0", "nan", "inf", "-inf", "1e-3", "11", "1e999")))
    grad = draw(st.sampled_from(("0.71", "nan", "inf")))
    return draw(
        st.sampled_from(
            (
                f"step {step}/{total} loss {loss} lr 5.9e-04 grad {grad} 12.3 ktok/s",
                f"{{'loss': {loss}, 'grad_norm': {grad}, 'learning_rate': 5e-05, 'epoch': {step / 100}}}",
                f"train:  10%|##  | {step}/{total} [05:14<46:46,  1.28it/s, loss={loss}]",
                f"Loading shards: 10%|## | {step}/{total} [05:14<46:46,  1.28it/s]",
                f"iter {step} ok",
                f"step {step} time 3 s",
                f"step {step} loss {loss}: weights unchanged",
            )
        )
    )


@st.composite
def _with_digits(draw: st.DrawFn, lines: st.SearchStrategy[str]) -> str:
    """Draw a line with some of its digits changed."""
    line = draw(lines)
    if draw(st.booleans()):
        return line
    digits = draw(st.text("0123456789", min_size=1, max_size=4))
    changed = iter(digits * (len(line) + 1))
    return "".join(next(changed) if c.isdigit() else c for c in line)


def lines() -> st.SearchStrategy[str]:
    """Draw one line, its launcher's prefix and colours included."""
    known = _with_digits(st.sampled_from((*EXAMPLES, *_LINKS)))
    ends = st.sampled_from((*_NAMES, *EXAMPLES))
    noise = st.text(max_size=30)
    spoken = st.builds(
        "{}{}{}".format, st.sampled_from(("", "W1129 12:00:00.1 7 x.py:1] ", "  ")), known, noise
    )
    body = st.one_of(step_lines(), spoken, known, ends, st.sampled_from((_HEADER, *_FRAMES)), noise)
    return st.builds("{}{}{}".format, st.sampled_from(_COLOURS), st.sampled_from(_PREFIXES), body)


def tracebacks() -> st.SearchStrategy[str]:
    """Draw a traceback with frames and an end."""
    frames = st.lists(st.sampled_from(_FRAMES), min_size=1, max_size=6).map("\n".join)
    return st.builds("{}\n{}\n{}".format, st.just(_HEADER), frames, st.sampled_from((*_NAMES, *EXAMPLES)))


def logs(max_parts: int = 40) -> st.SearchStrategy[bytes]:
    """Draw a log: lines of all kinds, some of them many times, with ends of all kinds."""
    many = st.builds(lambda line, count: "\n".join([line] * count), lines(), st.integers(2, 20))
    steps = st.lists(step_lines(), min_size=2, max_size=8).map("\n".join)
    text = st.one_of(lines(), lines(), tracebacks(), many, steps).map(lambda t: t.encode(errors="replace"))
    part = st.one_of(text, text, text, st.binary(max_size=40))
    ends = st.sampled_from((b"\n", b"\n", b"\n", b"\r", b"\r\n", b""))
    joined = st.lists(st.tuples(part, ends), max_size=max_parts)
    return joined.map(lambda parts: b"".join(data + end for data, end in parts))


def cut(data: bytes, sizes: list[int]) -> list[tuple[int, bytes]]:
    """Return a log's pieces with their offsets: of these sizes again and again, the last the rest."""
    pieces, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)] if sizes else len(data)
        pieces.append((at, data[at : at + size]))
        at, turn = at + size, turn + 1
    return pieces
