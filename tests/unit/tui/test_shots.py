"""What the view looks like; each picture was looked at before it was kept."""

from __future__ import annotations

import re
from datetime import timedelta

from orchestrator.fleet import GpuCard
from orchestrator.types.failure import RunState
from orchestrator.types.seen import Gpu
from tests.builders import NOW, ago
from tests.unit.tui.stage import GIB, eight_gpus, settle, text_of

LONG = "a-run-with-a-name-of-sixty-characters-to-see-what-is-cut-off"
HOSTILE = "A\x1b]52;c;ZXZpbA==\x07B[red]C[/]\x1b[2J\x9b2J\u202eD\x08E\u4e2d\u6587F"


def test_no_run_says_how_to_start_one(stage, shot):
    played = stage.play((80, 24))
    assert "dflashctl launch --host HOST --ct CT" in played.text
    shot(played, "none")


def test_one_run_at_80_columns(stage, shot):
    card = stage.add("dflash", gpus=tuple(eight_gpus(own=8)))
    stage.record.save_attempt(card.id, 1, started_at=ago(3600), by="user")
    stage.metrics(card, 1, 10, 1234)
    stage.log("dflash", *(f"step {n} loss {2 + 100 / n:.3f}" for n in range(1200, 1235)))
    shot(stage.play((80, 24)), "one")
    shot(stage.play((80, 24), "1"), "one-curves")
    shot(stage.play((80, 24), "2"), "one-gpus")


def test_two_hundred_runs(stage, shot):
    states = list(RunState)
    for n in range(200):
        state = states[n % len(states)]
        ended = state in (RunState.FINISHED, RunState.STOPPED)
        blind = "host pve: no answer within 20 s" if state is RunState.BLIND else None
        stage.add(f"run-{n:03}", state, step=40 * n, has_ended=ended, blind=blind, looked_at=ago(n % 9))
    played = stage.play((80, 24))
    assert "200 runs" in played.text
    shot(played, "200-runs")
    shot(stage.play((120, 40), "N end"), "200-runs-wide-at-the-end")


def test_a_death_with_its_proof(stage, shot):
    stage.a_death()
    stage.add("b32")
    played = stage.play((120, 40))
    assert "root (log byte 6475 rank 0)" in played.text
    assert "x oom_cuda at 390, fx_trace_race at 700" in played.text
    shot(played, "death")
    shot(stage.play((80, 24), "3"), "death-story")


def test_a_death_without_colour(stage, shot, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    stage.desk["colours"] = False
    stage.a_death()
    stage.add("b32")
    played = stage.play((120, 40))
    assert "\u2717 dead" in played.text
    colours = {word for word in played.svg.split() if word.startswith("fill:")}
    shot(played, "death-without-colour")
    assert not any("cc555a" in colour for colour in colours), "no red is left"


def test_a_blind_host_is_blind_and_its_past_is_past(stage, shot):
    stage.add("dflash", blind="pve: no answer within 20 s to `guest watch`", looked_at=ago(95), summary="")
    stage.add("gone-quiet", looked_at=ago(40))
    played = stage.play((80, 24))
    assert "? blind" in played.text
    assert "~ stale" in played.text
    assert "healthy" not in played.text.splitlines()[2]
    shot(played, "blind")


def test_a_name_of_sixty_characters(stage, shot):
    assert len(LONG) == 60
    stage.add(LONG)
    played = stage.play((80, 24))
    assert LONG in played.text, "the facts have it whole"
    shot(played, "long-name")
    shot(stage.play((120, 40)), "long-name-wide")


def test_a_clock_that_is_three_minutes_off(stage, shot):
    stage.add("dflash", clock_skew_s=180.0, started_at=NOW - timedelta(hours=1))
    played = stage.play((80, 24))
    assert "its clock is 3m ahead" in played.text
    shot(played, "clock-ahead")


def test_hostile_text_is_harmless(stage, shot):
    gpu = Gpu(index=0, memory_used_bytes=GIB, memory_total_bytes=80 * GIB, problem=HOSTILE)
    stage.add(
        HOSTILE, RunState.DEAD, target=HOSTILE, summary=HOSTILE, phase=HOSTILE, remark=HOSTILE,
        holders=HOSTILE, gpus=(GpuCard(gpu=gpu, is_own=True),),
    )  # fmt: skip
    stage.tell("log", HOSTILE + "\tlong " + "x" * 5000, HOSTILE, target=HOSTILE)
    stage.tell("diagnosis", HOSTILE, HOSTILE, target=HOSTILE)

    async def act(app, pilot):
        for keys in ("", "enter", "escape l", "escape e", "escape s", "n 3", "2"):
            for key in keys.split():
                await pilot.press(key)
            await settle(app, pilot)
            text = text_of(app)
            assert "[red]C" in text, keys
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text), keys

    stage.play((120, 40), act=act)
    shot(stage.play((80, 24), act=act), "hostile")
