"""Of several ranks the first that failed is the cause, told by whoever could."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.classify import Limits, LogScanner, diagnose
from orchestrator.types.failure import Diagnosis, FailureClass
from orchestrator.types.seen import LastWords, Present
from tests.builders import GONE, make_exit, make_heartbeat, make_snapshot

if TYPE_CHECKING:
    from orchestrator.types.snapshot import LogReading

F = FailureClass
STEPS = "".join(f"step {n}/90 loss 2.{n} lr 1e-4 grad 1.0 3.0 ktok/s 0.1 s/step\n" for n in range(10, 50, 10))


def read(text: str) -> LogReading:
    scanner = LogScanner()
    scanner.feed(text.encode(), 0)
    return scanner.reading()


def died(message: str | None, *, log: str = "", rank: int = 1, code: int = 1, **changes: Any) -> Diagnosis:
    """Diagnose a job of which error.json says `rank 1 (target) failed first: <message>`, or nothing."""
    if message is not None:
        who = f"rank {rank} ({'target' if rank else 'drafter'})"
        exception, text = "trainer.errors.RankDied", f"{who} failed first: {message}"
        words = LastWords(exception=exception, message=text, rank=rank)
        changes["last_words"] = Present(words)
    known = {"liveness": Present(GONE), "exit": Present(make_exit(code)), "log": read(STEPS + log)}
    return diagnose(make_snapshot(**known, **changes), Limits())


@pytest.mark.parametrize(
    ("message", "failure", "words"),
    [
        ("process 7: killed by SIGKILL, without a word of its own", F.SIGNAL_EXIT, "killed from outside"),
        ("process 7: killed by SIGBUS, without a word of its own", F.SIGNAL_EXIT, "/dev/shm is full"),
        ("process 7: killed by signal 35, without a word of its own", F.SIGNAL_EXIT, "ended by signal 35"),
        ("process 7: exit code 3, without a word of its own", F.UNKNOWN, "exit code 3"),
        (
            "process 7: exit code 78, without a word of its own",
            F.CONFIG_ERROR,
            "the configuration is invalid",
        ),
        ("process 7 is gone, without a word of its own", F.SIGNAL_EXIT, "vanished"),
        ("not heard of for 301.2 s, without a word of its own", F.NCCL_ERROR, "its node is silent"),
        ("the store that its node holds is gone, without a word of its own", F.NCCL_ERROR, "silent"),
    ],
)
def test_each_silent_death_is_named_with_its_rank_and_role(message, failure, words):
    found = died(message)
    assert found.failure is failure
    assert "on rank 1 (target): " in found.summary
    assert words in found.summary
    assert found.evidence[0].rank == 1


def test_a_killed_rank_has_the_fingerprint_of_a_killed_trainer():
    alone = diagnose(make_snapshot(liveness=Present(GONE), exit=Present(make_exit(None, 9))), Limits())
    killed = died("process 7: killed by SIGKILL, without a word of its own", code=137)
    other = died("process 9: killed by SIGKILL, without a word of its own", rank=0, code=137)
    assert (alone.failure, alone.fingerprint) == (killed.failure, killed.fingerprint)
    assert other.fingerprint == killed.fingerprint


def test_what_the_dead_rank_said_itself_explains_its_signal():
    said = "[rank1]: terminate called after throwing an instance of 'std::bad_alloc'\n"
    found = died("process 7: killed by SIGABRT, without a word of its own", log=said, code=134)
    assert found.failure is F.OOM_HOST
    assert "on rank 1 (target)" in found.summary


def test_what_a_survivor_said_does_not():
    said = "[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process\n"
    found = died("process 7: killed by SIGABRT, without a word of its own", log=said, code=134)
    assert found.failure is F.SIGNAL_EXIT
    assert any("NCCL error" in each.text for each in found.cascades)


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", F.OOM_CUDA),
        ("KeyError: 'layers.9.self_attn'", F.PYTHON_EXCEPTION),
    ],
)
def test_a_peers_word_is_taken_where_the_rank_itself_logs_elsewhere(line, failure):
    found = died(None, log=f"[rank0]: rank 9 (target) failed first: {line}\n", code=71)
    assert found.failure is failure
    assert "on rank 9 (target)" in found.summary


def test_a_peers_word_never_stands_before_the_ranks_own_traceback():
    own = "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: bad shape\n"
    found = died(None, log=f"[rank0]: rank 1 (target) failed first: ValueError: bad shape\n{own}", code=1)
    assert (found.evidence[0].rank, found.evidence[0].text) == (1, "ValueError: bad shape")


def test_a_death_tells_what_the_guard_did_before_and_nothing_if_it_did_nothing():
    message = "process 7: killed by SIGKILL, without a word of its own"
    beat = make_heartbeat(skipped_steps=2, rollbacks=1)
    told = [each.text for each in died(message, heartbeat=Present(beat)).evidence]
    assert "before it: 2 steps left out, 1 return to a checkpoint" in told
    assert not any("before it" in each.text for each in died(message).evidence)
