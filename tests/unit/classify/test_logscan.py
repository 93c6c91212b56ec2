"""The scanner: by offset, in any pieces, in bounded memory."""

from __future__ import annotations

import random
import sys
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.classify import LogScanner
from orchestrator.types.failure import Evidence, FailureClass, Role

if TYPE_CHECKING:
    from orchestrator.types.snapshot import LogMatch, LogReading

STEP = "step {}/380 loss 2.314 lr 5.9e-04 grad 0.71 12.3 ktok/s 0.31 s/step\n"
TRACE = 'Traceback (most recent call last):\n  File "/opt/t/train.py", line 88, in run\n    step()\n'
FX = "RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function.\n"
FLEX = "flex_attention.py:1704: UserWarning: flex_attention called without torch.compile() - unfused\n"


def scan(text: str | bytes, *, chunk: int = 1 << 16) -> LogReading:
    data = text.encode() if isinstance(text, str) else text
    scanner = LogScanner()
    for start in range(0, len(data), chunk):
        scanner.feed(data[start : start + chunk], start)
    return scanner.reading()


def roots(reading: LogReading) -> list[LogMatch]:
    return [m for m in reading.matches if m.evidence.role is Role.ROOT and not m.handled]


def steps(first: int, last: int, prefix: str = "") -> str:
    return "".join(prefix + STEP.format(i) for i in range(first, last))


@given(st.lists(st.integers(min_value=1, max_value=300), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_the_reading_does_not_depend_on_the_pieces(cuts: list[int]):
    text = (
        FLEX
        + steps(1, 30)
        + "\u00e4\u00f6\r\n"
        + "[rank1]: "
        + TRACE.replace("\n", "\n[rank1]: ")
        + FX
        + steps(30, 40)
    )
    data = text.encode()
    scanner, at = LogScanner(), 0
    for cut in [*cuts, len(data)]:
        scanner.feed(data[at : at + cut], at)
        at += len(data[at : at + cut])
    assert scanner.reading() == scan(data)


def test_bytes_that_come_twice_are_read_once():
    text = (FLEX + steps(1, 5)).encode()
    scanner = LogScanner()
    news: list[Evidence] = []
    for start in (0, 10, 0, len(text) - 5):
        news.extend(scanner.feed(text[start:], start))
    assert [evidence.signature for evidence in news] == ["flex_unfused"]
    assert scanner.reading() == scan(text)


def test_a_gap_is_noted_and_reading_goes_on():
    scanner = LogScanner()
    scanner.feed(steps(1, 5).encode(), 0)
    scanner.feed((TRACE + FX).encode(), 100_000)
    reading = scanner.reading()
    assert reading.truncated
    assert reading.read_bytes == 100_000 + len(TRACE + FX)
    assert [m.failure for m in roots(reading)] == [FailureClass.FX_TRACE_RACE]
    assert roots(reading)[0].evidence.offset == 100_000 + len(TRACE)


def test_a_whole_log_is_not_truncated():
    assert not scan(steps(1, 5)).truncated
    assert LogScanner(truncated=True).reading().truncated


def test_a_last_line_without_an_end_counts_and_is_not_consumed():
    scanner = LogScanner()
    scanner.feed((steps(1, 5) + TRACE + FX[:75]).encode(), 0)
    assert roots(scanner.reading())[0].failure is FailureClass.FX_TRACE_RACE
    scanner.feed(FX[75:].encode(), len(steps(1, 5) + TRACE + FX[:75]))
    assert roots(scanner.reading())[0].evidence.text == FX.strip()


def test_predictions_are_told_once_and_when_printed():
    scanner = LogScanner()
    line = FLEX.encode()
    assert [e.signature for e in scanner.feed(line, 0)] == ["flex_unfused"]
    assert scanner.feed(line, len(line)) == ()


def test_an_exception_that_newer_steps_follow_is_handled():
    reading = scan(steps(1, 20) + TRACE + "ValueError: sample 7 is empty\n" + steps(20, 22))
    assert roots(reading) == []
    assert [m.handled for m in reading.matches] == [True]


def test_an_older_step_redrawn_after_an_exception_handles_nothing():
    reading = scan(steps(1, 20) + TRACE + "ValueError: sample 7 is empty\n" + STEP.format(19))
    assert [m.failure for m in roots(reading)] == [FailureClass.PYTHON_EXCEPTION]


def test_steps_with_lost_numbers_handle_nothing():
    lost = "step 21/380 loss nan lr 5.9e-04 grad nan\n"
    reading = scan(steps(1, 20) + TRACE + "ValueError: sample 7 is empty\n" + lost)
    assert FailureClass.PYTHON_EXCEPTION in [m.failure for m in roots(reading)]


def test_the_progress_of_another_rank_handles_nothing():
    trace = "".join(f"[rank1]: {line}\n" for line in (TRACE + FX).splitlines())
    reading = scan(steps(1, 9, "[rank0] ") + steps(1, 9, "[rank1] ") + trace + steps(9, 12, "[rank0] "))
    assert [(m.failure, m.evidence.rank) for m in roots(reading)] == [(FailureClass.FX_TRACE_RACE, 1)]


def test_interleaved_tracebacks_of_two_ranks_are_kept_apart():
    one = [f"[rank0]: {line}" for line in (TRACE + "KeyError: 'a'").splitlines()]
    two = [f"[rank1]: {line}" for line in (TRACE + "KeyError: 'b'").splitlines()]
    reading = scan("\n".join(line for pair in zip(one, two, strict=True) for line in pair) + "\n")
    assert [(m.evidence.rank, m.evidence.text) for m in roots(reading)] == [
        (0, "KeyError: 'a'"),
        (1, "KeyError: 'b'"),
    ]


def test_a_progress_bar_between_frames_does_not_end_a_traceback():
    bar = "\rtrain:  10%|##  | 402/4000 [05:14<46:46,  1.28it/s, loss=2.31]\n"
    lines = TRACE.splitlines(keepends=True)
    reading = scan(lines[0] + bar + "".join(lines[1:]) + FX)
    assert [m.failure for m in roots(reading)] == [FailureClass.FX_TRACE_RACE]
    assert reading.exception is not None
    assert any("line 88" in line for line in reading.traceback)


def test_the_newest_and_the_first_of_a_signature_are_kept_and_no_more():
    text = "".join(steps(i, i + 1) + TRACE + f"ValueError: sample {i}\n" for i in range(1, 400))
    reading = scan(text)
    assert len(reading.matches) <= 3
    assert (reading.matches[0].evidence.text, reading.matches[0].handled) == ("ValueError: sample 1", True)
    assert (reading.matches[-1].evidence.text, reading.matches[-1].handled) == (
        "ValueError: sample 399",
        False,
    )


def test_quiet_blocks_still_give_the_last_step():
    assert scan(steps(1, 60_000)).last_step == 59_999


def test_a_line_without_an_end_is_bounded():
    scanner = LogScanner()
    piece = b"x" * (1 << 20)
    tracemalloc.start()
    for number in range(64):
        scanner.feed(piece, number << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    scanner.feed(b"\n" + (TRACE + FX).encode(), 64 << 20)
    assert [m.failure for m in roots(scanner.reading())] == [FailureClass.FX_TRACE_RACE]


def test_memory_stays_bounded_whatever_comes():
    rng = random.Random(7)
    scanner, at = LogScanner(), 0
    words = [
        b"Traceback (most recent call last):\n",
        b'  File "x", line 1, in f\n',
        b"[rank%d]: KeyError: 'a'\n",
    ]
    tracemalloc.start()
    for number in range(400):
        noise = rng.randbytes(2000) + rng.choice(words).replace(b"%d", b"%d" % number) * 30
        scanner.feed(noise, at)
        at += len(noise)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
    assert len(scanner.reading().matches) < 3 * 512


@given(st.binary(max_size=3000), st.integers(min_value=1, max_value=50))
@settings(max_examples=80, deadline=None)
def test_no_bytes_can_break_the_scanner(data: bytes, chunk: int):
    reading = scan(data, chunk=chunk)
    assert reading.read_bytes == len(data)
    assert all(len(line) <= 600 for line in reading.tail)
    assert "\x1b" not in "".join(reading.tail)


def test_a_recursion_error_keeps_its_outer_and_inner_frames():
    frames = "".join(f'  File "/opt/a.py", line {i}, in f\n    f()\n' for i in range(20_000))
    reading = scan(
        "Traceback (most recent call last):\n" + frames + "RecursionError: maximum recursion depth exceeded\n"
    )
    assert [m.evidence.text for m in roots(reading)] == ["RecursionError: maximum recursion depth exceeded"]
    assert len(reading.traceback) <= 80


def test_a_traceback_with_10_000_foreign_lines_is_given_up():
    noise = "".join(f"unrelated warning {i}\n" for i in range(10_000))
    reading = scan(TRACE + noise + "KeyError: 'x'\n")
    assert [m.evidence.text for m in roots(reading)] == ["KeyError: 'x'"]


def test_the_tail_is_what_a_person_would_see():
    bars = "".join(f"\r{i}/9 bar" for i in range(9))
    assert scan("one\n\x1b[31mtwo\x1b[0m\n" + bars + "\nlast").tail == ("one", "two", "8/9 bar", "last")


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer makes it slow")
def test_an_ordinary_log_is_read_fast():
    from time import process_time

    data = steps(1, 120_000).encode()
    began = process_time()
    scan(data)
    assert len(data) / (process_time() - began) > 15e6  # 70 MB/s on a core of its own; CI machines are shared


@pytest.mark.parametrize(
    "lead", ["(Worker pid=4711) ", "2026-11-29 12:00:01,123 ", "(VllmWorker rank=1 pid=7) | ", "a-host: "]
)
def test_what_stands_before_each_line_of_a_traceback_is_taken_off(lead: str):
    chained = TRACE + FX + "\nThe above exception was the direct cause of the following exception:\n\n"
    lines = (chained + TRACE + "RuntimeError: step 3 failed").splitlines()
    reading = scan("".join(f"{lead}{line}\n" for line in lines))
    assert [(m.failure, m.evidence.text) for m in roots(reading)] == [
        (FailureClass.FX_TRACE_RACE, FX.strip())
    ]
    assert len(reading.traceback) == 6
    assert reading.traceback[0].startswith('  File "')


def test_a_sentence_before_a_traceback_stands_before_its_first_line_only():
    said = "step 3 failed: 7 retries: " + TRACE + "KeyError: 'x'\n" + "step 3 failed: 8 retries: gone\n"
    reading = scan(said)
    assert [m.evidence.text for m in roots(reading)] == ["KeyError: 'x'"]


def test_a_lead_is_taken_off_while_its_traceback_is_read_and_no_longer():
    lead = "a-host: "
    trace = "".join(f"{lead}{line}\n" for line in (TRACE + "KeyError: 'x'").splitlines())
    reading = scan(trace + steps(1, 3) + f"{lead}MyError: a word in passing\n")
    assert roots(reading) == []


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "AssertionError", "StopIteration", "pkg.StaleError"])
def test_a_frame_without_source_does_not_swallow_a_bare_exception(name: str):
    trace = 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
    reading = scan(steps(1, 3) + trace + name + "\n")
    assert [m.evidence.text for m in roots(reading)] == [name]


def test_what_is_asked_at_a_shell_after_a_crash_is_no_part_of_its_message():
    crash = TRACE + "RuntimeError: CUDA error: unknown error\n"
    asked = "root@pve:~# nvidia-smi\nUnable to determine the device handle for GPU5: 0000:9A:00.0: Unknown\n"
    found = [m.failure for m in scan(steps(1, 3) + crash + asked).matches]
    assert FailureClass.GPU_LOST in found


def test_the_summary_of_a_whole_run_heals_no_lost_losses():
    lost = "".join(f"{{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.{n}}}\n" for n in range(1, 4))
    reading = scan(lost + "{'train_runtime': 100.0, 'train_loss': 0.5, 'epoch': 0.3}\n")
    assert [(m.failure, m.handled) for m in reading.matches] == [(FailureClass.NAN_LOSS, False)]
