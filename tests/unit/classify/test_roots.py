"""The root is found through chains, ranks and what was survived before: properties over kinds of failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.classify import Limits, LogScanner, diagnose
from orchestrator.types.failure import Diagnosis, FailureClass
from orchestrator.types.seen import Present
from tests.builders import GONE, make_exit, make_snapshot

if TYPE_CHECKING:
    from orchestrator.types.snapshot import LogReading

_F = FailureClass
HEAD = "Traceback (most recent call last):\n"
FRAME = '  File "/run/{name}.py", line {line}, in {name}\n    {name}()\n'
DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
SPECIFIC = {
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": _F.OOM_CUDA,
    "RuntimeError: CUDA error: an illegal memory access was encountered": _F.CUDA_ILLEGAL_ACCESS,
    "OSError: [Errno 28] No space left on device: 'x'": _F.DISK_FULL,
    "ModuleNotFoundError: No module named 'flash_attn'": _F.IMPORT_ERROR,
    "RuntimeError: Failed to find C compiler.": _F.COMPILE_ERROR,
    "huggingface_hub.errors.GatedRepoError: 401 Client Error.": _F.AUTH_ERROR,
    "RuntimeError: PytorchStreamReader failed reading zip archive: invalid header": _F.IO_ERROR,
    "trainer.errors.NonFinite: the loss is nan at step 120": _F.NAN_LOSS,
    "OSError: [Errno 98] Address already in use": _F.PORT_IN_USE,
}
GENERIC = ("RuntimeError: step failed", "ValueError: bad state", "KeyError: 'x'")
ECHOES = (
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process exited",
    "RuntimeError: [pair.cc:538] Read error [127.0.0.1]:6021: Connection reset by peer",
)
specific = st.sampled_from(sorted(SPECIFIC))
names = st.sampled_from(["step", "forward", "load", "save"])


def traceback(last: str, frames: list[str]) -> str:
    return (
        HEAD + "".join(FRAME.format(name=name, line=7 + at) for at, name in enumerate(frames)) + last + "\n"
    )


def steps(first: int, last: int, prefix: str = "") -> str:
    return "".join(f"{prefix}step {n} | loss {9 - n / 900:.3f} | lr 1e-4\n" for n in range(first, last))


def read(text: str, chunk: int = 1 << 16) -> LogReading:
    scanner, raw = LogScanner(), text.encode()
    for start in range(0, len(raw), chunk):
        scanner.feed(raw[start : start + chunk], start)
    return scanner.reading()


def died(text: str, chunk: int = 1 << 16) -> Diagnosis:
    log = read(text, chunk)
    return diagnose(make_snapshot(liveness=Present(GONE), exit=Present(make_exit(1)), log=log), Limits())


@given(
    specific,
    st.lists(st.tuples(st.sampled_from(GENERIC), st.sampled_from([DIRECT, DURING])), max_size=4),
    st.integers(0, 4),
    st.lists(names, min_size=1, max_size=5),
)
def test_a_chain_is_followed_to_the_link_that_says_most(
    known: str, others: list[tuple[str, str]], place: int, frames: list[str]
):
    links = [text for text, _ in others]
    links.insert(min(place, len(links)), known)
    joints = [joint for _, joint in others]
    text = traceback(links[0], frames)
    for joint, link in zip(joints, links[1:], strict=True):
        text += joint + traceback(link, frames)
    found = died(steps(0, 20) + text)
    assert found.failure is SPECIFIC[known]
    assert found.evidence[0].text == known


@given(specific, specific, st.data(), st.integers(1, 200))
def test_of_two_ranks_the_one_that_failed_first_is_the_root(
    one: str, two: str, data: st.DataObject, chunk: int
):
    sides = [
        [f"[rank{rank}]: {line}" for line in traceback(text, ["forward", "step"]).splitlines()]
        for rank, text in enumerate((one, two))
    ]
    order = data.draw(st.permutations([0] * len(sides[0]) + [1] * len(sides[1])))
    lines = [sides[rank].pop(0) for rank in order]
    ends = {rank: max(at for at, each in enumerate(order) if each == rank) for rank in (0, 1)}
    first = min(ends, key=lambda rank: ends[rank])
    found = died(steps(0, 5) + "\n".join(lines) + "\n", chunk)
    assert found.failure is SPECIFIC[(one, two)[first]]
    assert found.evidence[0].rank == first


@given(specific, st.lists(st.sampled_from(ECHOES), max_size=3), st.booleans())
def test_what_the_other_ranks_saw_is_never_the_root(known: str, echoes: list[str], is_late: bool):
    own = "".join(f"[rank2]: {line}\n" for line in traceback(known, ["step"]).splitlines())
    others = "".join(
        f"[rank{rank}]: {line}\n"
        for rank, echo in enumerate(echoes)
        for line in traceback(echo, ["all_reduce"]).splitlines()
    )
    found = died(steps(0, 5) + (others + own if is_late else own + others))
    assert found.failure is SPECIFIC[known]


@given(specific, specific, st.integers(1, 40), st.booleans())
def test_what_was_caught_an_hour_ago_is_not_what_ended_it(
    caught: str, last: str, more: int, is_sentence: bool
):
    early = f"warning: skipped a batch: {caught}\n" if is_sentence else traceback(caught, ["forward"])
    text = steps(0, 50) + early + steps(50, 50 + more) + traceback(last, ["step"])
    found = died(text)
    assert found.failure is SPECIFIC[last]
    offset = found.evidence[0].offset
    assert offset is not None
    assert offset > text.index(early) + len(early)


@given(specific, st.integers(1, 30))
def test_a_run_that_goes_on_after_an_exception_is_not_dead_of_it(caught: str, more: int):
    log = read(steps(0, 50) + traceback(caught, ["forward"]) + steps(50, 50 + more))
    assert all(match.handled for match in log.matches)
