"""One trainer in a process of its own, which takes a turn whenever `beside_peers` asks for one."""

from __future__ import annotations

import argparse
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.peer_sources import SOURCES
from benchmarks.peer_steps import Ours, Side
from benchmarks.step_given import Given, make_given
from trainer.compiling.warmup import num_graphs

GIB = 1 << 30


def main() -> None:
    """Get ready, then answer until told to end: `first`, and a number of steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--implementation", required=True)
    parser.add_argument("--shape", required=True)
    parser.add_argument("--layout", required=True)
    parser.add_argument("--src", type=Path)
    parser.add_argument("--device", required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--talk", type=int, required=True, help="the socket to answer on")
    options = parser.parse_args()
    talk = Connection(options.talk)
    device = torch.device(options.device)
    base = options.implementation.partition("+")[0]
    attention = "flash" if base == "flash" else "flex"
    given = make_given(options.shape, options.layout, attention, device, tiny=options.tiny)
    side = _side(options.implementation, options.src, given)
    talk.send(_facts(given))
    worker = _Turns(side, device)
    while (asked := talk.recv()) is not None:
        talk.send(worker.first() if asked == "first" else worker.take(asked))


def _side(implementation: str, src: Path | None, given: Given) -> Side:
    base, _, variant = implementation.partition("+")
    if base not in SOURCES:
        return Ours(given)
    assert src is not None
    SOURCES[base].open(src)
    from benchmarks.peer_models import PEERS  # not above: transformers takes seconds, and ours needs none

    return PEERS[base](given, variant)


class _Turns:
    """Steps, timed with nothing else at work on the device."""

    def __init__(self, side: Side, device: torch.device) -> None:
        self._side = side
        self._device = device
        self._index = 0
        self._graphs = 0

    def first(self) -> dict[str, object]:
        """The first step, compiling and all, with the given anchors, and one more."""
        with self._side.pinned():
            seconds, loss = self._step()
        self._step()
        self._graphs = num_graphs()
        return {"first_step_s": seconds, "loss": loss, "peak_gib": self._rest()}

    def take(self, steps: int) -> dict[str, object]:
        """One step to take memory again, then these; drawn anchors."""
        self._step()
        times = [self._step()[0] * 1000 for _ in range(steps)]
        return {"ms": times, "recompiles": num_graphs() - self._graphs, "peak_gib": self._rest()}

    def _step(self) -> tuple[float, float]:
        """Seconds and loss."""
        self._wait()
        begun = time.perf_counter()
        loss = self._side.step(self._index)
        self._wait()
        seconds = time.perf_counter() - begun
        self._index += 1
        return seconds, float(loss)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _rest(self) -> float | None:
        """Give memory back, for the others' turns; the peak so far."""
        if self._device.type != "cuda":
            return None
        peak = torch.cuda.max_memory_allocated() / GIB
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return peak


def _facts(given: Given) -> dict[str, object]:
    """For the table's head."""
    batch, slots = given.batch, given.config.data.anchors
    on_gpu = given.device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return {
        "tokens": batch.num_tokens,
        "rows": len(batch.lengths),
        "anchors": slots * len(batch.lengths),
        "block_size": given.config.draft.block_size,
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
