"""Durations, limits and the text of one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.classify.text import clean, normalize, read_step, split_rank
from orchestrator.durations import format_duration, parse_duration
from orchestrator.limits import Limits
from orchestrator.types.seen import Phase


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("10m", 600),
        ("2h", 7200),
        ("1h30m", 5400),
        ("0", 0),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("2d", 172800),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "5x", "-5s", "s", "5 s", "1h 30m", "1e3s", "9999999h", "nan"])
def test_what_is_no_duration_is_refused_with_what_is_allowed(text: str):
    with pytest.raises(ValueError, match="30s, 10m, 2h or 1h30m"):
        parse_duration(text)


@given(
    st.integers(min_value=1, max_value=59).flatmap(
        lambda n: st.sampled_from([f"{n}s", f"{n}m", f"{n % 23 + 1}h"])
    )
)
def test_a_formatted_duration_is_read_back(text: str):
    assert format_duration(parse_duration(text)) == text


def test_a_slow_model_gets_more_time_to_make_a_step():
    limits = Limits(train_s=600, train_steps=5)
    assert limits.limit_s(Phase.TRAIN) == 600
    assert limits.limit_s(Phase.TRAIN, step_s=300.0) == 1500
    assert Limits(median_step_s=200.0).limit_s(Phase.TRAIN, step_s=1.0) == 1000
    assert limits.limit_s(Phase.EVAL, step_s=300.0) == limits.eval_s


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_has_a_limit(phase: Phase):
    assert Limits().limit_s(phase) > 0


def test_our_step_line_is_read():
    step = read_step("step 120/380 loss 2.314 lr 5.9e-04 grad 0.71 12.3 ktok/s 0.31 s/step")
    assert step is not None
    assert (step.step, step.loss, step.grad) == (120, 2.314, 0.71)


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("train:  10%|##  | 402/4000 [05:14<46:46,  1.28it/s, loss=2.31]", 402),
        ("  1%|# | 7/1184 [00:24<1:09:10,  3.52s/it]", 7),
        ("Epoch 0 | iter 19 step 19 | loss train: 2.1, val: n/a | iter time: 9.004 s (step)", 19),
        ("step     6 | loss 1.25 | grad_norm 0.1", 6),
        ("| INFO | train_inner | epoch 003: 1210 / 21194 loss=4.212, num_updates=43600, lr=2.9e-05", 43600),
    ],
)
def test_common_step_lines_are_read(line: str, step: int):
    found = read_step(line)
    assert found is not None
    assert found.step == step


@pytest.mark.parametrize(
    "line",
    [
        "Loading checkpoint shards: 100%|####| 4/4 [00:09<00:00,  2.31s/it]",
        "Downloading: 10%|# | 10/100 [00:09<00:00,  2.31s/it]",
        "training for 380 steps",
        "saving at step 100",
        "loss function: cross entropy",
        "warning: step 6: loss nan, gradient norm nan; left out, weights unchanged (2 in a row)",
        "warning: step 9: gradient norm 210 is over 20 times 1.2, 4 in a row, over guard.max_skips: back",
        "went back from step 8 to the checkpoint of step 5",
        "warning: compile: rank 1 waits for rank 0, pid 13652, 10 s so far (/run/turn.lock)",
    ],
)
def test_what_only_sounds_like_progress_is_none(line: str):
    assert read_step(line) is None


@pytest.mark.parametrize(
    ("line", "is_finite"),
    [
        ("step 6/9 loss nan lr 1e-3 grad nan", False),
        ("step 6/9 loss inf lr 1e-3", False),
        ("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1.3e-07, 'epoch': 0.2}", False),
        ("step 6/9 loss 2.1 lr 1e-3 grad inf", True),
        ("{'loss': 0.0, 'grad_norm': 0.0, 'epoch': 0.2}", True),
    ],
)
def test_lost_numbers_are_told_from_a_scaler_at_work(line: str, is_finite: bool):
    step = read_step(line)
    assert step is not None
    assert step.is_finite is is_finite


@pytest.mark.parametrize(
    ("line", "rank", "rest"),
    [
        ("[rank3]: boom", 3, "boom"),
        ("[rank3]:   File", 3, "  File"),
        ("[default1]:boom", 1, "boom"),
        ("12: boom", 12, "boom"),
        ("[80746] [rank0]:[E", 0, "[E"),
        ("[rank2] step 3", 2, "step 3"),
        ("2026-11-29 10:00:00 boom", None, "2026-11-29 10:00:00 boom"),
        ("[1/4] building", None, "[1/4] building"),
        ("step 12: loss", None, "step 12: loss"),
    ],
)
def test_the_rank_is_taken_off(line: str, rank: int | None, rest: str):
    assert split_rank(line) == (rank, rest)


def test_terminal_sequences_and_broken_utf8_are_cleaned():
    assert clean(b"\x1b[31mred\x1b[0m \x1b]0;title\x07t\xc3\xa4\xff\x00\x07  ") == "red t\u00e4\ufffd"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12 MiB",
            "OutOfMemoryError: CUDA out of memory. Tried 9 GiB",
        ),
        ("KeyError: 'x' at 0x7f12ab", "KeyError: 'x' at 0x99"),
        ("OSError: '/data/run/a.bin' gone", "OSError: '/scratch/b/c.bin' gone"),
        ("ValueError: got 12 of 14", "ValueError: got 1 of 99"),
    ],
)
def test_the_same_thing_on_another_day_normalizes_to_the_same(one: str, other: str):
    assert normalize(one) == normalize(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("KeyError: 'x'", "KeyError: 'y'"), ("ValueError: bad shape", "TypeError: bad shape"), ("A: b", "A: c")],
)
def test_different_things_normalize_differently(one: str, other: str):
    assert normalize(one) != normalize(other)
