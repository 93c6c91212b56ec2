"""Answers hold when logs are changed: the own transcripts, and labelled logs where there are any."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.corpus_mutations import WIDTHS, measure, read
from tests.transcripts.runner import Transcript, judge, read_all

LOGGED = [t for t in read_all() if t.data.get("log")]
CORPUS = os.environ.get("DFLASHCTL_CORPUS")
ANYWHERE = ("as-is", "colours", "crlf", "rank-marks", "worker-marks", "two-ranks", "beside-steps")


def coloured(log: str) -> str:
    return "".join(f"\x1b[1;3{n % 8}m{line}\x1b[0m\x1b[K\n" for n, line in enumerate(log.splitlines()))


def carriage(log: str) -> str:
    return "".join(f"{line}\r\n" for line in log.splitlines())


def redrawn(log: str) -> str:
    """A bar that tells of no step is redrawn between the lines."""
    return "".join(
        f"{line}\nLoading shards: 10%|#  | {n}/99 [00:01<00:09]\r" for n, line in enumerate(log.splitlines())
    )


@pytest.mark.parametrize("change", [coloured, carriage, redrawn])
@pytest.mark.parametrize("transcript", LOGGED, ids=lambda t: f"{t.about}/{t.name}")
def test_what_a_terminal_does_to_a_log_changes_no_answer(transcript: Transcript, change):
    plain = judge(dict(transcript.data))
    shown = judge({**transcript.data, "log": change(str(transcript.data["log"]))})
    assert (shown.state, shown.failure, shown.fingerprint) == (plain.state, plain.failure, plain.fingerprint)


@pytest.mark.skipif(CORPUS is None, reason="DFLASHCTL_CORPUS names no folder of labelled logs")
@pytest.mark.parametrize("change", [*ANYWHERE, *(f"width-{columns}" for columns in WIDTHS)])
def test_labelled_logs_keep_their_answer(change: str):
    row = measure(change, read(Path(CORPUS or "")))
    assert row.logs > 0
    assert row.right >= 0.97 * row.logs, row.told
    assert row.relaunched_though_call == 0, row.told


@pytest.mark.skipif(CORPUS is None, reason="DFLASHCTL_CORPUS names no folder of labelled logs")
@pytest.mark.parametrize("change", ["cut-head", "cut-tail"])
def test_a_labelled_log_that_is_cut_is_seldom_taken_for_another(change: str):
    labels = read(Path(CORPUS or ""))
    with_line, without = measure(change, labels), measure(change, labels, has_line=False)
    assert with_line.right >= 0.95 * with_line.logs, with_line.told
    assert with_line.wrong <= 0.02 * with_line.logs, with_line.told
    assert without.wrong <= 0.12 * without.logs, without.told
