"""What a broken or hostile container may send in place of the contract's files."""

from __future__ import annotations

from hypothesis import strategies as st

_numbers = st.integers() | st.floats() | st.sampled_from((0, 1, 10**400, 1e308, -1))
_texts = st.text(max_size=9) | st.sampled_from(
    ("train", "done", "2026-11-29T12:00:00.000000Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59")
)
_scalars = st.one_of(st.none(), st.booleans(), _numbers, _texts)
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3)
)
_right: dict[str, st.SearchStrategy[object]] = {
    "phase": st.sampled_from(("train", "compile", "load")),
    "at": st.just("2026-11-29T12:00:00.000000Z"),
    "step": st.integers(0, 10**6),
    "exception": st.just("ValueError"),
    "message": st.just("x"),
    "lock_held": st.booleans(),
    "supervisor": st.booleans(),
    "session": st.booleans(),
    "pids": st.lists(st.integers(1, 9), max_size=2),
    "index": st.integers(0, 7),
    "code": st.integers(0, 255),
    "signal": st.none(),
    "duration_s": st.floats(0, 10),
    "source": st.sampled_from(("nvml", "nvidia-smi")),
}
_KEYS = (
    *_right,
    *("total_steps", "loss", "tokens_per_s", "step_s", "recompiles", "skipped_steps", "rollbacks"),
    *("peak_memory_bytes", "resumed_from_step", "checkpoint_step", "error", "oom_kills", "traceback"),
    *("rank", "kind", "uuid", "name", "memory_used_bytes", "memory_total_bytes", "utilization_pct"),
    *("power_w", "temperature_c", "processes", "problem", "pci", "recovery", "ecc_uncorrected", "gpus"),
)


@st.composite
def messages(draw: st.DrawFn) -> object:
    """Draw any JSON value; mostly an object whose keys are right and of whose values a few are not."""
    if draw(st.integers(0, 9)) == 0:
        return draw(_values)
    value: dict[str, object] = {key: draw(strategy) for key, strategy in _right.items()}
    for key in draw(st.lists(st.sampled_from(_KEYS), max_size=3)):
        value[key] = draw(_values)
    if draw(st.booleans()):
        value["gpus"] = [draw(_values), {**value, "gpus": None}]
    return value
