"""The judge of the chaos suite: a clean story passes, and each thing that must not be is found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.record import Batch, Record
from orchestrator.types.failure import Diagnosis, FailureClass, RunState
from tests.builders import NOW
from tests.integration.chaos.judge import judge
from tests.integration.chaos.nursery import Child
from tests.integration.chaos.played import Played, Told
from tests.integration.chaos.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCHEDULE = Schedule(seed=5, steps=2, step_s=0.1, checkpoint_every=1, deaths=(), faults=())
LOGS = {1: ["000001 attempt 1", "000002 step 1/2"], 2: ["000001 attempt 2", "000002 step 2/2", "000003 done"]}


@dataclass
class Place:
    """Where the run's files are."""

    runs: Path
    witness: Path


def event(kind: str, attempt: int, text: str = "", **detail: Any) -> dict[str, Any]:
    return {"kind": kind, "attempt": attempt, "text": text, "detail": detail}


def witnessed(attempt: int, what: str, at: float, **more: Any) -> dict[str, Any]:
    return {"attempt": attempt, "event": what, "at": at, **more}


class Story:
    """Attempt 1 dies of the FX error, attempt 2 finishes; one watch sees it all."""

    def __init__(self, home: Path) -> None:
        self.played = Played(SCHEDULE, Place(home / "runs", home), home, "c5")  # type: ignore[arg-type]
        self.seen = [
            witnessed(1, "begin", 1), witnessed(1, "dying", 2, how="fx"),
            witnessed(2, "begin", 3), witnessed(2, "finished", 4),
        ]  # fmt: skip
        self.events = [event("state", 1, "healthy", state="healthy"), *self.said(1)]
        self.events += [
            event("diagnosis", 1, "dead", state="dead"),
            event("act", 1, "relaunching"),
            *self.said(2),
        ]
        self.events += [event("diagnosis", 2, "finished", state="finished")]
        self.name, self.read, self.code = FailureClass.FX_TRACE_RACE, len(self.text(2)), 0
        self.is_open = False

    @staticmethod
    def said(attempt: int) -> list[dict[str, Any]]:
        return [event("log", attempt, line) for line in LOGS[attempt]]

    @staticmethod
    def text(attempt: int) -> str:
        return "\n".join(LOGS[attempt]) + "\n"

    def judged(self) -> list[str]:
        played = self.played
        (played.place.witness / "c5.jsonl").write_text("".join(json.dumps(e) + "\n" for e in self.seen))
        for number in LOGS:
            folder = played.place.runs / "c5" / "attempts" / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "log").write_text(self.text(number))
        out = played.home / "1-watch.jsonl"
        out.write_text("".join(json.dumps(e) + "\n" for e in self.events))
        out.with_suffix(".err").write_text("")
        out.with_suffix(".code").write_text(str(self.code))
        played.watches = [Told(Child(1, out, out.with_suffix(".err")), "a")]
        self.write_record()
        return judge(played)

    def write_record(self) -> None:
        path = self.played.record_path("a")
        path.parent.mkdir(parents=True, exist_ok=True)
        with Record.open(path) as record:
            row = record.save_run("c5", {}, "pve/200", {}, NOW)
            dead = Diagnosis(state=RunState.DEAD, summary="dead", failure=self.name, confidence=0.9)
            for number in LOGS:
                record.save_attempt(row.id, number)
            record.transition(row.id, 1, None, RunState.DEAD, "dead", NOW)
            record.diagnosis(row.id, 1, dead, NOW)
            batch = Batch()
            batch.move_cursor((row.id, 1), len(self.text(1)), 0)
            batch.move_cursor((row.id, 2), self.read, 0)
            record.save_batch(batch)
            action = record.intend(row.id, 2, "relaunch", "why", {}, NOW)
            if not self.is_open:
                record.outcome(action, "started", NOW)
            record.transition(row.id, 2, RunState.HEALTHY, RunState.FINISHED, "finished", NOW)


@pytest.fixture
def story(tmp_path) -> Story:
    return Story(tmp_path)


def test_a_clean_story_passes(story):
    assert story.judged() == []


def doubled(story: Story) -> None:
    story.seen.insert(3, witnessed(2, "double", 3))


def told_to_stop(story: Story) -> None:
    story.seen.insert(1, witnessed(1, "term", 1.5))


def killed_by_nobody(story: Story) -> None:
    del story.seen[1]


def begun_after_the_end(story: Story) -> None:
    story.seen[1] = witnessed(1, "finished", 2)


def never_finished(story: Story) -> None:
    story.seen.pop()


def a_line_lost(story: Story) -> None:
    story.events = [e for e in story.events if e["text"] != "000002 step 2/2"]


def the_last_line_lost(story: Story) -> None:
    story.events = [e for e in story.events if e["text"] != "000003 done"]


def a_line_doubled(story: Story) -> None:
    at = next(i for i, e in enumerate(story.events) if e["text"] == "000002 step 1/2")
    story.events.insert(at, story.events[at])


def acted_while_blind(story: Story) -> None:
    at = next(i for i, e in enumerate(story.events) if e["kind"] == "act")
    story.events.insert(at, event("blind", 1, "blind", state="blind"))


def called_hung(story: Story) -> None:
    story.events.append(event("diagnosis", 2, "hung", state="hung"))


def a_fault_told(story: Story) -> None:
    story.events.append(event("fault", 2, "a turn failed"))


def needs_a_person(story: Story) -> None:
    story.code = 13


def wrongly_named(story: Story) -> None:
    story.name = FailureClass.SIGNAL_EXIT


def an_act_left_open(story: Story) -> None:
    story.is_open = True


def not_read_to_its_end(story: Story) -> None:
    story.read -= 1


def user_overruled(story: Story) -> None:
    story.played.num_at_stop = 1


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (doubled, "two trainers at once"),
        (told_to_stop, "told to stop while it was well"),
        (killed_by_nobody, "nobody is known who ended it"),
        (begun_after_the_end, "had finished, and 2 was begun"),
        (never_finished, "it never finished"),
        (a_line_lost, "lines lost or doubled"),
        (the_last_line_lost, "never told: 2 to 2 of 3"),
        (a_line_doubled, "lines lost or doubled"),
        (acted_while_blind, "while the run was blind"),
        (called_hung, "called hung and was not"),
        (a_fault_told, "a turn failed"),
        (needs_a_person, "exit code 13"),
        (wrongly_named, "died of fx and was called signal_exit"),
        (an_act_left_open, "acts without an outcome"),
        (not_read_to_its_end, "the log was read up to"),
        (user_overruled, "after its user had stopped"),
    ],
)
def test_each_thing_that_must_not_be_is_found(story: Story, spoil: Callable[[Story], None], word: str):
    spoil(story)
    assert any(word in problem for problem in story.judged()), story.judged()
