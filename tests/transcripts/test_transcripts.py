"""Every transcript gives the diagnosis it asks for, however its bytes arrive."""

from __future__ import annotations

import pytest

from orchestrator.classify.classes import Domain, domain
from orchestrator.types.failure import FailureClass
from tests.transcripts.runner import Transcript, judge, read_all

ALL = read_all()
IDS = [f"{case.about}/{case.name}" for case in ALL]


@pytest.mark.parametrize("case", ALL, ids=IDS)
def test_the_transcript_is_diagnosed_as_it_says(case: Transcript):
    expect = case.data["expect"]
    found = judge(case.data)
    said = found.failure.value if found.failure is not None else None
    assert (found.state.value, said) == (expect["state"], expect["failure"]), found.summary
    if "root" in expect:
        assert expect["root"] in found.evidence[0].text
    if "rank" in expect:
        assert found.evidence[0].rank == expect["rank"]
    if "cascade" in expect:
        assert any(expect["cascade"] in evidence.text for evidence in found.cascades)
        assert all(expect["cascade"] not in evidence.text for evidence in found.evidence[:1])
    if "warning" in expect:
        assert any(expect["warning"] in evidence.text for evidence in found.warnings)
    if "summary" in expect:
        assert expect["summary"] in found.summary


@pytest.mark.parametrize("case", ALL, ids=IDS)
def test_the_diagnosis_does_not_depend_on_where_the_chunks_end(case: Transcript):
    whole, pieces = judge(case.data), judge(case.data, chunk=7)
    assert pieces == whole


@pytest.mark.parametrize(
    "case", [c for c in ALL if "log" in c.data and c.is_firing], ids=lambda c: f"{c.about}-{c.name}"
)
def test_log_evidence_stands_at_its_offset(case: Transcript):
    raw = case.data["log"].encode("utf-8")
    for evidence in judge(case.data).evidence:
        if evidence.source != "log" or evidence.signature is None:
            continue  # a reading about the log, or of something else
        assert evidence.offset is not None
        line = raw[evidence.offset :].split(b"\n", 1)[0].split(b"\r", 1)[0].decode("utf-8")
        assert evidence.text[:40] in line


# What one attempt's files cannot show: only several attempts do, or the host, or the record of a session.
ELSEWHERE = {FailureClass.CONTAINER_FROZEN, FailureClass.HOST_REBOOTED, FailureClass.SESSION_LOST}
BY_ONE_ATTEMPT = [f for f in FailureClass if domain(f) is not Domain.HISTORY and f not in ELSEWHERE]


@pytest.mark.parametrize("failure", BY_ONE_ATTEMPT, ids=lambda f: f.value)
def test_each_class_has_two_firing_transcripts_and_four_quiet_ones(failure: FailureClass):
    cases = [case for case in ALL if case.about == failure.value]
    firing = [case for case in cases if case.is_firing]
    assert len(firing) >= 2
    assert len(cases) - len(firing) >= 4
