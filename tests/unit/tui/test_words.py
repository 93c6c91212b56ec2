"""The words and lines of the view, without drawing them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from rich.cells import cell_len

from orchestrator.fleet import NextAct, RunCard
from orchestrator.fleet.board import Told
from orchestrator.tui.columns import Columns, row_of
from orchestrator.tui.facts import facts_lines, gpu_lines
from orchestrator.tui.history import moment_lines, moments_of, with_told
from orchestrator.tui.keys import foot
from orchestrator.tui.words import (
    SIGNS,
    STALE,
    age_text,
    gpu_cells,
    next_text,
    rate_text,
    sign_of,
    skew_text,
    squeezed,
    step_text,
)
from orchestrator.types.decision import ActKind
from orchestrator.types.failure import FailureClass, RunState
from orchestrator.types.seen import Gpu
from orchestrator.watch.events import WatchEvent
from tests.builders import NOW, ago


def card(**changes) -> RunCard:
    fields = {"id": 1, "name": "a", "target": "pve/200", "state": RunState.HEALTHY, "looked_at": ago(1)}
    return RunCard(**{**fields, **changes})


def test_a_healthy_run_whose_next_step_is_overdue_says_since_when():
    still = card(phase="train", step=9, total_steps=40, step_s=0.2, moved_at=ago(120), summary="alive")

    def told(each: RunCard) -> str:
        return facts_lines(each, NOW, 80, acts=True, utf8=True)[1].plain

    assert told(still) == "\u25cf healthy, no new step for 2m: alive"
    for quiet in (
        replace(still, moved_at=ago(5)),
        replace(still, moved_at=None),
        replace(still, phase="checkpoint"),
        replace(still, step_s=30.0),  # ten of its steps have not passed yet
        replace(still, looked_at=ago(60)),  # not seen now: nothing is said of what it does
        replace(still, state=RunState.FINISHED, has_ended=True),
    ):
        assert "no new step" not in told(quiet)


def test_every_state_has_a_sign_and_a_word_of_its_own():
    assert set(SIGNS) == set(RunState)
    signs = [*SIGNS.values(), STALE]
    for column in ("ascii", "word", "rank"):
        assert len({getattr(sign, column) for sign in signs}) == len(signs), column
    assert len({sign.glyph for sign in signs}) == len(signs)
    assert all(sign.ascii.isascii() and cell_len(sign.glyph) == 1 for sign in signs)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "healthy"),
        ({"looked_at": ago(9)}, "healthy"),
        ({"looked_at": ago(40)}, "stale"),
        ({"blind": "no route"}, "blind"),
        ({"blind": "no route", "looked_at": None}, "blind"),
        ({"blind": "not looked yet", "looked_at": None, "state": RunState.NEW}, "new"),
        ({"state": RunState.CONTAINER_STOPPED, "blind": "stopped"}, "CT stopped"),
        (
            {"state": RunState.FINISHED, "has_ended": True, "blind": "no route", "looked_at": ago(900)},
            "finished",
        ),
        ({"state": RunState.DEAD, "has_ended": True, "looked_at": ago(900)}, "dead"),
    ],
)
def test_what_is_not_seen_is_not_shown_as_what_it_was(changes, word):
    assert sign_of(card(**changes), NOW).word == word


def test_the_past_of_what_is_blind_is_told_as_the_past():
    (_, state, *_) = facts_lines(card(blind="no route", looked_at=ago(95)), NOW, 80, acts=True, utf8=True)
    assert state.plain == "? blind; it was healthy 95s ago; no route"
    (_, state, *_) = facts_lines(card(blind="no route", looked_at=None), NOW, 80, acts=True, utf8=True)
    assert state.plain == "? blind: no route"


def test_numbers_are_short_and_the_unknown_is_a_dash():
    assert [age_text(s) for s in (None, 0, 59, 119, 120, 7199, 7200, 200_000)] == [
        "-", "0s", "59s", "119s", "2m", "120m", "2h", "2d",
    ]  # fmt: skip
    assert [rate_text(r) for r in (None, 0, 999, 1000, 12_345, 2_500_000)] == [
        "-", "0", "999", "1.0k", "12.3k", "2.50M",
    ]  # fmt: skip
    assert step_text(card()) == "-"
    assert step_text(card(step=5)) == "5"
    assert step_text(card(step=12_345, total_steps=2_000_000)) == "12.3k/2.00M"
    assert gpu_cells(Gpu(index=0), utf8=True, width=80) == [
        "memory -", "util   -", "  - W", " - C", "no process",
    ]  # fmt: skip


def test_a_clock_is_told_only_if_it_is_off():
    assert skew_text(0.4) == ""
    assert skew_text(180) == "its clock is 3m ahead"
    assert skew_text(-90) == "its clock is 1m30s behind"


def test_what_comes_next_says_when_and_whether_this_watch_does_it():
    act = NextAct(
        kind=ActKind.RELAUNCH_WITH, reason="a smaller batch fits", rule="oom", attempts_left=1,
        due_at=NOW + timedelta(seconds=12), changes=(("data.batch_rows", "4"),),
    )  # fmt: skip
    said = "relaunch with in 12s, 1 left, with data.batch_rows=4. a smaller batch fits"
    assert next_text(act, NOW, acts=True) == f"next: {said}"
    assert next_text(act, NOW, acts=False) == f"an acting watch would: {said}"
    assert next_text(None, NOW, acts=True) == ""
    call = replace(act, kind=ActKind.CALL, due_at=None)
    assert next_text(call, NOW, acts=True) == "a person is needed: a smaller batch fits"


@pytest.mark.parametrize("text", ["a", "a" * 60, "\u4e2d" * 40, "ab\u4e2dcd" * 9, "", "x\x1b[2Jy\nz"])
@pytest.mark.parametrize("width", [1, 5, 6, 10, 21, 60])
def test_a_name_takes_exactly_its_cells(text, width):
    assert cell_len(squeezed(text, width)) == width
    assert "\x1b" not in squeezed(text, width)


@pytest.mark.parametrize("width", [50, 54, 80, 92, 200])
def test_a_row_fills_its_width_and_no_more(width):
    cards = [
        card(name="x" * 60, state=RunState.UNSUPERVISED, phase="checkpoint", step=12_345, total_steps=99_999),
        card(name="\u4e2d" * 30, target="pve/" + "9" * 40),
    ]
    rows = [row_of(each, NOW, utf8=True) for each in cards]
    columns = Columns.fit(rows, width)
    lines = [columns.head("state", "v"), *(columns.line(row, utf8=True) for row in rows)]
    assert {cell_len(line) for line in lines} == {max(width, cell_len(lines[0]))}
    assert cell_len(lines[0]) <= max(width, 66)


def test_gpus_that_are_not_the_runs_own_come_after_it_under_a_word():
    from tests.unit.tui.stage import eight_gpus

    gpus = tuple(reversed(tuple(eight_gpus(own=2))))
    told = [line.plain for line in gpu_lines(card(gpus=gpus, holders="python3 (pid 9)"), 80, utf8=False)]
    assert told[0].startswith("GPU0 ")
    assert told[2] == "not the run's own:"
    assert told[3].startswith("GPU2 ")
    assert told[-1] == "held by python3 (pid 9)"
    assert all(line.isascii() for line in told)
    assert gpu_lines(card(gpu_problem="no driver"), 80, utf8=True)[0].plain == "not seen: no driver"
    assert gpu_lines(card(), 80, utf8=True)[0].plain == "none seen"


def test_the_story_has_each_thing_once_with_its_proof(stage):
    run = stage.a_death()
    stage.record.transition(run.id, 3, None, RunState.NEW, "being started", NOW)
    found = {each.id: each for each in stage.record.diagnoses(run.id)}
    moments = moments_of(stage.record.events(run.id), found)
    assert [moment.kind for moment in moments].count("transition") == 0, "it says what the diagnosis says"
    (death,) = [moment for moment in moments if moment.kind == "diagnosis"]
    assert death.proof[0].startswith("root (log byte 6475 rank 0): RuntimeError")

    def told(seq: int, kind: str, text: str, at: float) -> Told:
        event = WatchEvent(kind=kind, at=ago(at), run="dflash", target="t", attempt=2, text=text)
        return Told(seq, event)

    stage.record.intend(run.id, 3, "relaunch", "relaunch 1 of 3", {}, NOW)
    moments = moments_of(stage.record.events(run.id), found)
    merged = with_told(
        moments,
        [told(1, "blind", "blind for 30s", 5000), told(2, "diagnosis", "again", 1), told(3, "metrics", "", 1),
         told(4, "decision", "relaunch: 1 of 3", 1), told(5, "decision", "call: other", 1)],
    )  # fmt: skip
    more = [moment.text for moment in merged if moment not in moments]
    assert more == ["blind for 30s", "call: other"]
    assert [moment.at for moment in merged] == sorted(moment.at for moment in merged)
    lines = [line.plain for line in moment_lines(merged)]
    assert any("attempt 2 ended: fx_trace_race" in line for line in lines)


def test_a_story_over_days_tells_the_days():
    events = [
        WatchEvent(kind="blind", at=ago(seconds), run="a", target="t", attempt=1, text="blind")
        for seconds in (86400 * 2, 86400 * 2 - 5, 10)
    ]
    lines = moment_lines(with_told([], [Told(n, event) for n, event in enumerate(events)]))
    assert [line.plain[:14] for line in lines] == [
        "--- 2026-11-27", "12:00:00 [1] b", "12:00:05 [1] b", "--- 2026-11-29", "11:59:50 [1] b",
    ]  # fmt: skip


def test_the_foot_says_first_how_to_leave_and_never_more_than_fits():
    for width in (10, 20, 40, 80, 200):
        assert len(foot(width, verb="watch")) <= max(width, 15)
    assert foot(80, verb="watch").startswith("q end the watch  ? help")
    assert foot(80, verb="top").startswith("q leave")


def test_a_run_that_was_never_seen_is_told_as_the_record_has_it():
    unseen = card(state=RunState.BLIND, blind="no route", looked_at=None, attempt=2, step=40,
                  failure=FailureClass.OOM_CUDA)  # fmt: skip
    lines = [line.plain for line in facts_lines(unseen, NOW, 80, acts=True, utf8=True)]
    assert lines[1] == "? blind: no route; on record: oom_cuda"
    assert lines[2] == "on record: attempt 2  step 40"
    seen = facts_lines(replace(unseen, looked_at=ago(60)), NOW, 80, acts=True, utf8=True)
    assert not any("on record" in line.plain for line in seen)
    alive = facts_lines(replace(unseen, failure=None), NOW, 80, acts=True, utf8=True)
    assert alive[1].plain == "? blind: no route"
    none = facts_lines(replace(unseen, attempt=None, step=None), NOW, 80, acts=True, utf8=True)
    assert none[2].plain == "no attempt seen"
