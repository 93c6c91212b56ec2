"""What a scan holds is bounded by ranks and signatures, never by the log: counts and sizes, not clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.classify import LogScanner
from orchestrator.classify.catalog import SIGNATURES
from orchestrator.classify.found import MAX_SLOTS
from tests.fuzz.size import deep_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
TRACE = 'Traceback (most recent call last):\n  File "/opt/t/train.py", line 88, in run\n    step()\n'
AGAIN = "\nDuring handling of the above exception, another exception occurred:\n\n"


def endless_frames(number: int) -> str:
    return f'  File "/opt/a.py", line {number}, in f\n    f()\n' * 200


def endless_chain(number: int) -> str:
    return (TRACE + f"RuntimeError: Broken pipe {number}\n" + AGAIN) * 100


def a_new_rank_each_time(number: int) -> str:
    return "".join(f"[rank{number * 40 + i}]: step 3 loss 2.1\n" for i in range(40))


def a_traceback_of_each_rank(number: int) -> str:
    frames = f'[rank{number}]:   File "/opt/a.py", line 8, in {"f" * 400}\n' * 200
    return (
        f"[rank{number}]: Traceback (most recent call last):\n{frames}[rank{number}]: ValueError: x{number}\n"
    )


def every_signature_of_every_rank(number: int) -> str:
    return "".join(f"[rank{number}]: {signature.example}\n" for signature in SIGNATURES)


def long_lines(number: int) -> str:
    return f"CUDA out of memory {number} " + "error " * 50_000 + "\n"


def lost_losses(number: int) -> str:
    return f"[rank{number}]: step {number} loss nan\n" * 500


def bars_without_an_end(number: int) -> str:
    return f"\rtrain: 10%| | {number}/900 [05:14<46:46, loss=2.31]" * 500


KINDS: dict[str, tuple[Callable[[int], str], float]] = {
    "endless_frames": (endless_frames, 0.5),
    "endless_chain": (endless_chain, 0.5),
    "a_new_rank_each_time": (a_new_rank_each_time, 2),
    "a_traceback_of_each_rank": (a_traceback_of_each_rank, 24),
    "every_signature_of_every_rank": (every_signature_of_every_rank, 2),
    "long_lines": (long_lines, 0.5),
    "lost_losses": (lost_losses, 1),
    "bars_without_an_end": (bars_without_an_end, 0.5),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_is_bounded(kind: str):
    make, limit_mib = KINDS[kind]
    scanner, at = LogScanner(), 0
    for number in range(300):
        data = make(number).encode()
        scanner.feed(data, at)
        at += len(data)
        if number % 150 == 149:
            assert deep_bytes(scanner) < limit_mib * MIB
    assert len(scanner.reading().matches) <= 3 * MAX_SLOTS


def test_a_line_of_2_gb_is_not_held():
    scanner, piece = LogScanner(), b"x error: " * (MIB // 9)
    for number in range(2 * 1024):
        scanner.feed(piece, number * len(piece))
    assert deep_bytes(scanner) < MIB // 8
    at = 2 * 1024 * len(piece)
    scanner.feed(b"\n" + TRACE.encode() + b"KeyError: 'x'\n", at)
    assert [m.evidence.offset for m in scanner.reading().matches] == [at + 1 + len(TRACE)]
