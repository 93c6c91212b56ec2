"""The words before a stop or a relaunch: true for the run that is asked about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.tui.questions import relaunch_text, stop_text
from orchestrator.types.failure import RunState


@pytest.fixture
def seen(stage):
    """A healthy run that was seen a moment ago, and its row."""
    card = stage.add("amy")
    return card, stage.watch.rows[card.id]


def command(row):
    return replace(row, spec={**row.spec, "kind": "command", "command": ["python", "train.py"]})


def test_a_living_run_saves_a_checkpoint_when_it_is_stopped(seen):
    card, row = seen
    said = "gets SIGTERM and saves a checkpoint, then SIGKILL. No watch relaunches it afterwards."
    assert stop_text(card, row) == f"It {said}"
    assert stop_text(replace(card, blind="no route"), row) == f"It is not seen now. If it lives it {said}"
    assert stop_text(replace(card, looked_at=None), row).startswith("It is not seen now. If it lives")
    assert "SIGTERM and can save a checkpoint" in stop_text(card, command(row))


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (RunState.FINISHED, "It has finished already: "),
        (RunState.STOPPED, "It is stopped already: "),
        (RunState.DEAD, "It is dead already: "),
    ],
)
def test_a_run_that_has_ended_gets_no_signal_and_saves_nothing(seen, state, said):
    card, row = seen
    text = stop_text(replace(card, state=state, looked_at=None), row)
    assert text.startswith(said)
    assert "saves no checkpoint" in text
    assert "SIGTERM" not in text
    assert "stopped first" not in relaunch_text(replace(card, state=state), row)


def test_a_relaunch_says_where_it_resumes_if_that_is_known(seen):
    card, row = seen
    head = "What lives of it is stopped first. The next attempt resumes from the last checkpoint"
    assert relaunch_text(card, row) == f"{head}, step 1200, unchanged."
    assert relaunch_text(replace(card, blind="x"), row) == f"{head}, step 1200 when last seen, unchanged."
    assert relaunch_text(replace(card, checkpoint_step=None), row) == f"{head}, unchanged."


def test_a_command_is_started_again_and_resumes_by_itself(seen):
    card, row = seen
    text = relaunch_text(card, command(row))
    assert "The command is started again as it was; it resumes by itself if" in text
    assert "$DFLASHCTL_CHECKPOINT_DIR" in text
    assert "1200" not in text
