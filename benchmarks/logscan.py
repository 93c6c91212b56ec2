"""How fast one attempt's log is read, and in how much memory: MB/s of CPU time on one core, by kind of log.

    python -m benchmarks.logscan                        every kind, 48 MB each, and a line of 2 GB
    python -m benchmarks.logscan --only healthy bars --megabytes 200 --json
    python -m benchmarks.logscan --chunk 4096           in pieces as a slow writer makes them

Logs are made while they are read; nothing is on disk. Time and memory are taken in passes of their own, since
tracing memory makes reading slower. The peak is what the scanner itself holds and makes on top of a piece.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import tracemalloc
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from orchestrator.classify import LogScanner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEGABYTE = 1_000_000
BLOCK_BYTES = 1 << 20
MEMORY_MEGABYTES = 16

STEP = "step {}/900000 loss 2.314 lr 5.9e-04 grad 0.71 12.3 ktok/s 0.31 s/step"
TRACE = 'Traceback (most recent call last):\n  File "/opt/t/train.py", line 88, in run\n    step()\n'


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One kind of log: how much was read, how fast (MB/s of CPU time), the peak of memory in bytes."""

    kind: str
    megabytes: float
    mb_per_s: float
    peak_bytes: int
    num_matches: int


def healthy(number: int) -> str:
    """Step lines, and now and then an evaluation and a checkpoint."""
    if number % 500 == 499:
        return f"eval at step {number}: loss 2.298, acceptance length 3.41\nsaved checkpoints/step-{number}"
    return STEP.format(number)


def dictionaries(number: int) -> str:
    """The Hugging Face trainer's lines."""
    return f"{{'loss': 2.31, 'grad_norm': 0.71, 'learning_rate': 5.9e-05, 'epoch': {number / 1000:.3f}}}"


def warnings(number: int) -> str:
    """Words of the catalogue in every line, none of them a failure."""
    return f"W1129 12:00:01.{number:06d} 4711 torch/x.py:12] UserWarning: expected no error, retry {number}"


def mixed(number: int) -> str:
    """Every other line has a word of the catalogue, the rest are steps."""
    return STEP.format(number) if number % 2 else warnings(number)


WORDS = (
    *(
        "the",
        "a",
        "model",
        "of",
        "data",
        "memory",
        "is",
        "in",
        "and",
        "error",
        "to",
        "batch",
        "that",
        "no",
        "file",
    ),
    *(
        "network",
        "layer",
        "with",
        "token",
        "array",
        "was",
        "gradient",
        "for",
        "each",
        "it",
        "cache",
        "on",
        "kernel",
    ),
    *(
        "business",
        "device",
        "time",
        "config",
        "key",
        "value",
        "loaded",
        "open",
        "from",
        "table",
        "as",
        "they",
    ),
)


def prose(number: int) -> str:
    """Text as a model writes it: hardly two lines alike, now and then a word that a failure has, too."""
    rng = random.Random(number)
    return " ".join(rng.choices(WORDS, k=18))


def addresses(number: int) -> str:
    """Frames of a C++ stack, hardly two alike, none of them in a traceback of Python."""
    rng = random.Random(number)
    place, address = rng.getrandbits(24), rng.getrandbits(48)
    return f"frame #{number % 60}: <unknown function> + {place:#x} ({address:#x} in libtorch.so)"


def mentions(number: int) -> str:
    """Every line matches a signature and is survived by the next step."""
    return STEP.format(number) if number % 2 else f"CUDA out of memory at micro-batch {number}: smaller one"


def survived(number: int) -> str:
    """A whole traceback every tenth line, survived by newer steps."""
    return STEP.format(number) if number % 10 else f"{TRACE}ValueError: sample {number} is empty"


def unended(number: int) -> str:
    """Frames of a traceback without end."""
    return '  File "/opt/t/train.py", line 88, in run' if number % 2 else "    step()"


def ranks(number: int) -> str:
    """64 ranks, interleaved."""
    return f"[rank{number % 64}]: {STEP.format(number // 64)}"


def rank_warnings(number: int) -> str:
    """64 ranks, interleaved, each line with words of the catalogue."""
    return f"[rank{number % 64}]: {warnings(number)}"


def bars(number: int) -> str:
    """A progress bar that is redrawn after a carriage return."""
    label = f"train:  10%|##        | {number}/900000 [05:14<46:46,  1.28it/s, loss=2.31]"
    return f"\r{label}" * 12


def colours(number: int) -> str:
    """Step lines between colour codes."""
    return f"\x1b[32mINFO\x1b[0m \x1b[1m{STEP.format(number)}\x1b[0m"


MAKERS: tuple[Callable[[int], str], ...] = (
    *(healthy, dictionaries, ranks, bars, colours, mixed, warnings, rank_warnings),
    *(prose, addresses, mentions, survived, unended),
)
KINDS = {make.__name__: make for make in MAKERS}


def lines(make: Callable[[int], str], num_bytes: int) -> Iterator[bytes]:
    """Yield whole lines of `make` in blocks, up to about `num_bytes`."""
    number = made = 0
    while made < num_bytes:
        block, size = [], 0
        while size < BLOCK_BYTES:
            text = make(number) + "\n"
            block.append(text)
            size += len(text)
            number += 1
        made += size
        yield "".join(block).encode()


def binary(num_bytes: int) -> Iterator[bytes]:
    """Yield random bytes, as a program that prints its weights."""
    rng = random.Random(7)
    for _ in range(0, num_bytes, BLOCK_BYTES):
        yield rng.randbytes(BLOCK_BYTES)


def one_line(num_bytes: int) -> Iterator[bytes]:
    """Yield one line without an end, with words of the catalogue in it."""
    block = (b"x error: " * (BLOCK_BYTES // 9 + 1))[:BLOCK_BYTES]
    for _ in range(0, num_bytes, BLOCK_BYTES):
        yield block


def pieces(block: bytes, chunk: int) -> list[bytes]:
    """Return a block in pieces of at most `chunk` bytes."""
    return [block[start : start + chunk] for start in range(0, len(block), chunk)]


def scan(blocks: Iterator[bytes], chunk: int) -> tuple[float, LogScanner]:
    """Return the CPU seconds that the scanner took, and the scanner."""
    scanner, at, spent_s = LogScanner(), 0, 0.0
    for block in blocks:
        parts = pieces(block, chunk)
        began = time.process_time()
        for piece in parts:
            scanner.feed(piece, at)
            at += len(piece)
        spent_s += time.process_time() - began
    return spent_s, scanner


def peak_bytes(blocks: Iterator[bytes], chunk: int) -> int:
    """Return the most memory that the scanner took, the log itself not counted."""
    parts = [piece for block in blocks for piece in pieces(block, chunk)]
    tracemalloc.start()
    scanner, at = LogScanner(), 0
    for piece in parts:
        scanner.feed(piece, at)
        at += len(piece)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def measure(kind: str, megabytes: int, chunk: int) -> Measured:
    """Read one kind of log, once for the time and once, shorter, for the memory."""
    spent_s, scanner = scan(stream(kind, megabytes * MEGABYTE), chunk)
    reading = scanner.reading()
    return Measured(
        kind=kind,
        megabytes=reading.read_bytes / MEGABYTE,
        mb_per_s=reading.read_bytes / MEGABYTE / spent_s,
        peak_bytes=peak_bytes(stream(kind, min(megabytes, MEMORY_MEGABYTES) * MEGABYTE), chunk),
        num_matches=len(reading.matches),
    )


def stream(kind: str, num_bytes: int) -> Iterator[bytes]:
    """Yield a log of a kind."""
    if kind in STREAMS:
        return STREAMS[kind](num_bytes)
    return lines(KINDS[kind], num_bytes)


STREAMS: dict[str, Callable[[int], Iterator[bytes]]] = {"binary": binary, "one_line": one_line}


def main(argv: list[str] | None = None) -> int:
    """Measure each kind asked for and print a table."""
    names = [*KINDS, *STREAMS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="*", choices=names, default=names, metavar="KIND", help=", ".join(names)
    )
    parser.add_argument("--megabytes", type=int, default=48, help="of each kind (default 48)")
    parser.add_argument("--line-megabytes", type=int, default=2048, help="of the one line (default 2048)")
    parser.add_argument("--chunk", type=int, default=1 << 16, help="bytes fed at a time (default 65536)")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    args = parser.parse_args(argv)
    rows = []
    if not args.json:
        print("| log | MB | MB/s | peak KiB |", "|---|---|---|---|", sep="\n", flush=True)
    for kind in args.only:
        row = measure(kind, args.line_megabytes if kind == "one_line" else args.megabytes, args.chunk)
        rows.append(asdict(row))
        if not args.json:
            print(
                f"| {row.kind} | {row.megabytes:.0f} | {row.mb_per_s:.0f} | {row.peak_bytes >> 10} |",
                flush=True,
            )
    if args.json:
        print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
