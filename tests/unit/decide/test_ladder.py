"""Ladders: what the next rung changes, what it may not, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.decide import decide
from orchestrator.ladder import Facts, climb, facts
from orchestrator.playbook import Bounds, Rung, load, shipped
from orchestrator.types.decision import ActKind, Decision, History, PastAttempt
from orchestrator.types.failure import Diagnosis, FailureClass, RunState
from orchestrator.types.seen import Present
from tests.builders import NOW, ago, make_heartbeat, make_snapshot

OOM = "oom_cuda: cuda out of memory"
SHIPPED = load(shipped())
CONFIG = {"loss.chunk_tokens": "4096", "data.anchors": "48", "draft.tied": "true"}
EXPANDABLE = (("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),)
HALF = Rung(why="Half of it.", scales=(("loss.chunk_tokens", 0.5),))


def oom(*rungs: int | None, known: Facts, allow: dict[str, Bounds] | None = None) -> Decision:
    """The decision about the death that follows attempts started with those rungs (the first with none)."""
    attempts = [
        PastAttempt(
            attempt=n, failure=FailureClass.OOM_CUDA, fingerprint=OOM, started_at=ago(900), ended_at=ago(600),
            first_step=0, last_step=40, checkpoint_step=None, rung=rung,
        )
        for n, rung in enumerate((None, *rungs), 1)
    ]  # fmt: skip
    snapshot = make_snapshot(attempt=len(attempts), heartbeat=Present(make_heartbeat(checkpoint_step=None)))
    book = replace(SHIPPED, allow={**SHIPPED.allow, **(allow or {})}, loop_deaths=50)
    died = Diagnosis(state=RunState.DEAD, failure=FailureClass.OOM_CUDA, summary="", fingerprint=OOM)
    return decide(died, book, History(attempts=tuple(attempts)), snapshot, NOW, 0.0, known)


def test_the_shipped_ladder_for_memory_is_climbed_within_what_is_allowed():
    known = Facts(settings=CONFIG)
    first = oom(known=known)
    assert (first.kind, first.rung, first.changes) == (ActKind.RELAUNCH_WITH, 0, ())
    assert first.env_changes == EXPANDABLE
    known = replace(known, env_names=frozenset({"PYTORCH_CUDA_ALLOC_CONF"}))
    second = oom(0, known=known)
    assert (second.rung, second.changes) == (1, (("loss.chunk_tokens", "2048"),))
    assert "With: loss.chunk_tokens=2048." in second.reason
    third = oom(0, 1, known=replace(known, settings={**CONFIG, "loss.chunk_tokens": "2048"}))
    assert (third.rung, third.changes) == (2, (("loss.chunk_tokens", "1024"),))


def test_fewer_anchors_need_the_owners_word():
    known = Facts(settings={**CONFIG, "loss.chunk_tokens": "1024"})
    refused = oom(0, 1, 2, known=known)
    assert refused.kind is ActKind.GIVE_UP
    assert "data.anchors may not be changed; `allow: {data.anchors: {}}`" in refused.reason
    allowed = oom(0, 1, 2, known=known, allow={"data.anchors": Bounds(minimum=24)})
    assert (allowed.rung, allowed.changes) == (3, (("data.anchors", "36"),))


def test_a_change_outside_the_bounds_is_passed_over_and_said():
    known = Facts(settings={**CONFIG, "loss.chunk_tokens": "600"})
    found = oom(0, known=known, allow={"data.anchors": Bounds(minimum=24)})
    assert found.rung == 3
    assert "loss.chunk_tokens=300 is outside what the playbook allows, at least 512" in found.reason
    assert "rung 2 is passed over" in found.reason
    assert "rung 3 is passed over" in found.reason


def test_a_rung_that_was_passed_over_is_not_tried_later():
    known = Facts(settings={**CONFIG, "loss.chunk_tokens": "600"})
    allow = {"data.anchors": Bounds(minimum=24)}
    assert oom(0, 3, known=known, allow=allow).kind is ActKind.GIVE_UP
    assert oom(0, 3, known=Facts(settings=CONFIG), allow=allow).kind is ActKind.GIVE_UP


def test_a_value_that_is_not_known_is_not_guessed():
    found = oom(0, known=Facts())
    assert found.kind is ActKind.GIVE_UP
    assert "loss.chunk_tokens: its value is not known" in found.reason


def test_what_the_owner_set_in_the_environment_stays():
    known = Facts(settings=CONFIG, env_names=frozenset({"PYTORCH_CUDA_ALLOC_CONF"}))
    found = oom(known=known)
    assert (found.rung, found.env_changes) == (1, ())
    assert "PYTORCH_CUDA_ALLOC_CONF is set already" in found.reason


def test_a_command_of_ones_own_gets_variables_and_no_settings():
    known = Facts(is_command=True)
    assert oom(known=known).env_changes == EXPANDABLE
    refused = oom(0, known=known, allow={"data.anchors": Bounds()})
    assert refused.kind is ActKind.GIVE_UP
    assert "a command of your own takes no settings" in refused.reason


def test_a_value_that_is_there_already_is_no_rung():
    ladder = (Rung(why="One of two.", changes=(("a", "2"),)), Rung(why="As it was."))
    found = climb(ladder, 0, {"a": Bounds()}, Facts(settings={"a": "2"}))
    assert (found.place, found.changes, found.passed) == (1, (), ("rung 1 is passed over: a is 2 already",))


@pytest.mark.parametrize(("value", "wanted"), [("0.0001", "1e-4"), ("2.0", "2"), ("1e3", "1000")])
def test_a_value_that_is_only_written_in_another_way_is_no_rung(value: str, wanted: str):
    rung = Rung(why="The same number.", changes=(("a", wanted),))
    assert climb((rung,), 0, {"a": Bounds()}, Facts(settings={"a": value})).place is None


@pytest.mark.parametrize(
    ("value", "factor", "want"),
    [
        ("1.0", 0.5, "0.5"),
        ("2.0", 0.25, "0.5"),
        ("1234567.0", 0.5, "617283.5"),
        ("3", 0.5, "1"),
        ("-4", 0.5, "-2"),
    ],
)
def test_a_fraction_that_happens_to_be_whole_stays_a_fraction(value: str, factor: float, want: str):
    rung = Rung(why="Less of it.", scales=(("optim.max_grad_norm", factor),))
    known = Facts(settings={"optim.max_grad_norm": value})
    found = climb((rung,), 0, {"optim.max_grad_norm": Bounds()}, known)
    assert found.changes == (("optim.max_grad_norm", want),)


def test_a_whole_number_is_never_scaled_to_nothing_and_a_word_not_at_all():
    for value, said in (("1", "nothing would be left of 1 times 0.5"), ("auto", "=auto is no number")):
        found = climb(
            (HALF,), 0, {"loss.chunk_tokens": Bounds()}, Facts(settings={"loss.chunk_tokens": value})
        )
        assert found.place is None
        assert said in found.passed[0]


@pytest.mark.parametrize(
    ("value", "bounds", "allowed"),
    [
        ("2", Bounds(), True),
        ("word", Bounds(), True),
        ("word", Bounds(maximum=3), False),
        ("3", Bounds(maximum=3), True),
        ("3.01", Bounds(maximum=3), False),
        ("nan", Bounds(minimum=1), False),
        ("inf", Bounds(maximum=3), False),
    ],
)
def test_bounds(value: str, bounds: Bounds, allowed: bool):
    found = climb((Rung(why="Another one.", changes=(("a", value),)),), 0, {"a": bounds}, Facts())
    assert (found.place is not None) is allowed, found


@given(
    st.integers(min_value=-(10**9), max_value=10**9), st.floats(min_value=0.01, max_value=100),
    st.integers(min_value=0, max_value=10**6), st.integers(min_value=0, max_value=10**6),
)  # fmt: skip
def test_nothing_ever_leaves_the_bounds(value: int, factor: float, low: int, high: int):
    bounds = Bounds(minimum=min(low, high), maximum=max(low, high))
    ladder = (Rung(why="Another one.", scales=(("k", factor),)),)
    found = climb(ladder, 0, {"k": bounds}, Facts(settings={"k": str(value)}))
    for _, changed in found.changes:
        assert min(low, high) <= int(changed) <= max(low, high)
    assert found.changes or found.passed


def test_facts_come_from_what_the_attempt_really_used():
    spec = {"overrides": {"loss.chunk_tokens": "64", "x": 1}, "env_names": ["HF_HOME"], "kind": "trainer"}
    environment = {"config": {"loss": {"chunk_tokens": 128, "labels": "data"}, "seed": 3, "deep": [1]}}
    found = facts(spec, environment)
    assert found.settings == {"loss.chunk_tokens": "128", "x": "1", "loss.labels": "data", "seed": "3"}
    assert (found.env_names, found.is_command) == (frozenset({"HF_HOME"}), False)
    assert facts(spec, None).settings["loss.chunk_tokens"] == "64"
    assert facts({"kind": "command"}, None).is_command


@pytest.mark.parametrize("junk", [None, {}, {"overrides": 3, "env_names": "x", "config": 4}])
def test_facts_of_junk_are_none(junk: Any):
    assert facts(junk, junk) == Facts()


def test_half_of_an_odd_number_is_whole_and_of_a_fraction_is_one():
    for value, want in (("5", "2"), ("0.5", "0.25"), ("1e3", "500")):
        found = climb(
            (HALF,), 0, {"loss.chunk_tokens": Bounds()}, Facts(settings={"loss.chunk_tokens": value})
        )
        assert found.changes == (("loss.chunk_tokens", want),)
