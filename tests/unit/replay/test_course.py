"""What a recording's steps and attempts prove together: told once, as a watch tells it, or not at all."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.cli import app
from orchestrator.errors import Exit
from orchestrator.playbook import parse
from tests.unit.replay.folders import BEGAN, TRACE, Folder, at, beat, classes, ended, said

if TYPE_CHECKING:
    from orchestrator.replay.player import Told

ALIVE = {"lock_held": True, "pids": [7]}
BOOT = {"boot_id": "b", "pid1_start_ticks": 7}


def steps(*times: float, begin: float = 0, first: int = 1, **more: Any) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl of steps that took so long, one after the other."""
    rows, now = [], begin
    for place, step_s in enumerate(times):
        now += step_s
        rows.append({"kind": "train", "step": first + place, "step_s": step_s, "at": at(now), **more})
    return rows


def living(folder: Folder, metrics: list[dict[str, Any]], number: int = 1, **files: Any) -> None:
    """An attempt that was alive when it was recorded, shortly after its last step."""
    last = metrics[-1]
    folder.meta.update(alive=ALIVE, recorded_at=last["at"])
    begin = files.pop("begin", 0)
    heartbeat = {"schema": 1, "phase": "train", "step": last["step"], "at": last["at"]}
    folder.attempt(number, begin=begin, metrics=metrics, heartbeat=heartbeat, **files)


def patterns(told: list[Told]) -> list[tuple[int, str]]:
    return [(each.attempt, each.detail["class"]) for each in told if each.kind == "pattern"]


# -- slower than before


def test_steps_that_became_slower_are_told_once_while_they_are_slow(tmp_path):
    folder = Folder(tmp_path / "r")
    living(folder, steps(*[2.0] * 60, *[5.0] * 60))
    told = folder.told()
    assert patterns(told) == [(1, "throughput_regression")]
    (found,) = [each for each in told if each.kind == "pattern"]
    assert found.detail["informs_only"] is True
    assert "2.5 times as long" in found.text
    slow_for_s = (found.at - BEGAN - timedelta(seconds=120)).total_seconds()
    assert 80 <= slow_for_s <= 100 + 35, "the share of 20 recent steps that it takes, and the look after it"
    assert said(told, "decision") == []


def test_the_same_work_in_an_earlier_attempt_is_a_measure(tmp_path):
    folder = Folder(tmp_path / "r")
    folder.attempt(1, begin=0, log=TRACE, metrics=steps(*[2.0] * 60), exit=ended(125, 1))
    living(folder, steps(*[5.0] * 40, begin=140, first=61), 2, begin=140)
    assert patterns(folder.told()) == [(2, "throughput_regression")]


def test_steps_of_other_work_are_no_measure(tmp_path):
    folder = Folder(tmp_path / "r")
    folder.attempt(1, begin=0, log=TRACE, metrics=steps(*[2.0] * 60), exit=ended(125, 1))
    run = {"schema": 1, "attempt": 2, "kind": "trainer", "overrides": {"data.batch_rows": "64"}}
    living(folder, steps(*[5.0] * 40, begin=140, first=61), 2, begin=140, run=run)
    assert patterns(folder.told()) == []


def test_a_few_slow_steps_are_not_told(tmp_path):
    folder = Folder(tmp_path / "r")
    living(folder, steps(*[2.0] * 60, *[9.0] * 6, *[2.0] * 60))
    assert patterns(folder.told()) == []


# -- slow ranks


def test_a_slow_rank_is_told_once_and_named(tmp_path):
    folder = Folder(tmp_path / "r")
    living(folder, steps(*[2.0] * 100, rank_s=[0.2, 0.2, 0.45]))
    told = folder.told()
    assert patterns(told) == [(1, "stragglers")]
    assert "rank 2 slower than the rest" in said(told, "pattern")[0]


@pytest.mark.parametrize(
    "rank_s", [[0.2, 0.21, 0.2], None], ids=["ranks alike", "times of the ranks that nobody wrote down"]
)
def test_where_no_rank_is_slow_or_none_is_known_to_be_nothing_is_told(tmp_path, rank_s):
    folder = Folder(tmp_path / "r")
    living(folder, steps(*[2.0] * 100, rank_s=rank_s))
    assert patterns(folder.told()) == []


def test_a_rank_that_was_slow_for_a_while_is_not_told(tmp_path):
    folder = Folder(tmp_path / "r")
    slow = steps(*[2.0] * 10, rank_s=[0.2, 0.2, 0.45])
    living(folder, slow + steps(*[2.0] * 80, begin=20, first=11, rank_s=[0.2, 0.2, 0.2]))
    assert patterns(folder.told()) == []


# -- the same step, and a crash loop


def deaths(folder: Folder, *last: tuple[int, int], every_s: float = 100, **row: Any) -> None:
    """One attempt after the other that ends at a step, its newest checkpoint beside it."""
    for number, (step, checkpoint) in enumerate(last, 1):
        begin = number * every_s
        heartbeat = beat(begin + 40, step, resumed_from_step=1, checkpoint_step=checkpoint)
        folder.attempt(number, begin=begin, log=TRACE, heartbeat=heartbeat, exit=ended(begin + 50, 1))
        folder.meta["attempts"].append({"n": number, "by": "user" if number == 1 else "watch", **row})


def test_the_same_step_ending_attempt_after_attempt_is_told_at_the_third(tmp_path):
    folder = Folder(tmp_path / "r")
    deaths(folder, (40, 25), (40, 25), (40, 25), (40, 25))
    told = folder.told()
    assert patterns(told) == [(3, "no_progress"), (4, "no_progress")], (
        "of each attempt that shows it, as a watch"
    )
    found = next(each for each in told if each.kind == "pattern")
    assert found.at == BEGAN + timedelta(seconds=350)
    assert [each.text[:9] for each in found.evidence[:2]] == ["attempt 1", "attempt 2"]
    kinds = [each.kind for each in told if each.attempt == 3]
    assert kinds[-3:] == ["diagnosis", "pattern", "decision"]


def test_where_an_attempt_began_is_the_records_word(tmp_path):
    """As in a watch, which saw the first heartbeats, too."""
    folder = Folder(tmp_path / "r")
    deaths(folder, (40, 25), (40, 25), (40, 25), first_step=0)
    (found,) = [each for each in folder.told() if each.kind == "pattern"]
    assert found.evidence[0].text.startswith("attempt 1 from step 0: ")


def test_ends_at_other_steps_or_from_outside_are_no_standstill(tmp_path):
    apart = Folder(tmp_path / "apart")
    deaths(apart, (40, 25), (41, 25), (40, 25))
    assert patterns(apart.told()) == []
    outside = Folder(tmp_path / "outside")
    for number in (1, 2, 3):
        info = {"trainer_pid": 7, "started_at": at(number * 100), **BOOT, "pid1_start_ticks": number}
        last = beat(number * 100 + 40, 40, resumed_from_step=25)
        outside.attempt(number, begin=0, attempt=info, heartbeat=last, exit=ended(number * 100 + 50, None, 9))
    outside.meta["container"] = {"boot_id": "b", "pid1_start_ticks": 4}
    told = outside.told()
    assert classes(told).count("container_restarted") == 3
    assert patterns(told) == []


def test_a_crash_loop_is_told_with_its_history(tmp_path):
    folder = Folder(tmp_path / "r")
    deaths(folder, (40, 25), (41, 25), (42, 25), (43, 25), (44, 25))
    told = folder.told()
    assert patterns(told) == [(5, "crash_loop")]
    assert said(told, "pattern") == ["crash loop: 5 deaths within 30m, and no checkpoint advanced"]


def test_the_playbook_says_what_a_crash_loop_is(tmp_path):
    folder = Folder(tmp_path / "r")
    deaths(folder, (40, 25), (41, 25))
    assert patterns(folder.told()) == []
    book = parse("extends: default\ncrash_loop: {deaths: 2, within: 30m}\n", "mine.yaml")
    assert patterns(folder.told(book)) == [(2, "crash_loop")]


@pytest.mark.parametrize(
    ("last", "every_s"),
    [
        ([(40, 25), (51, 50), (77, 75), (102, 100), (130, 125)], 100),
        ([(40, 25), (41, 25), (42, 25), (43, 25), (44, 25)], 700),
    ],
    ids=["checkpoints advanced", "longer apart than the window"],
)
def test_deaths_that_are_no_loop_are_not_told(tmp_path, last, every_s):
    folder = Folder(tmp_path / "r")
    deaths(folder, *last, every_s=every_s)
    assert patterns(folder.told()) == []


def test_what_a_person_began_anew_each_time_is_neither(tmp_path):
    folder = Folder(tmp_path / "r")
    deaths(folder, *[(40, 25)] * 5, by="user")
    assert patterns(folder.told()) == []


def test_who_began_an_attempt_its_own_spec_says_where_the_record_does_not(tmp_path):
    folder = Folder(tmp_path / "r")
    deaths(folder, *[(40, 25)] * 5, by=None)
    for number in range(1, 6):
        spec = {"schema": 1, "attempt": number, "kind": "trainer", "by": "user"}
        (folder.place / "attempts" / str(number) / "run.json").write_text(json.dumps(spec))
    assert patterns(folder.told()) == []


def test_a_hang_that_the_watch_ended_was_decided_at_the_hang(tmp_path):
    """As in a watch, which goes on with that decision and looks for no pattern at the end of it."""
    folder = Folder(tmp_path / "r")
    for number in (1, 2, 3):
        begin = number * 10_000
        heartbeat = beat(begin + 40, 40, resumed_from_step=1)
        end = ended(begin + 5000, None, 9)
        folder.attempt(number, begin=begin, log="step 40 loss 2\n", heartbeat=heartbeat, exit=end)
        stop = {"by": "watch", "reason": "it hangs", "attempt": number, "at": at(begin + 4990)}
        folder.meta["attempts"].append({"n": number, "stop": stop})
    told = folder.told()
    assert classes(told).count("hang") >= 3
    assert patterns(told) == []


# -- from step 0 beside a checkpoint


def from_zero(folder: Folder, *, furthest: int, on_disk: int | None, resumed: int | None = None) -> None:
    """Attempt 1 leaves the checkpoint of step 50; attempt 2 lives and trains from `resumed` on."""
    old = beat(50, 60, resumed_from_step=None, checkpoint_step=50)
    folder.attempt(1, begin=0, log=TRACE, heartbeat=old, exit=ended(60, 1))
    folder.meta.update(alive=ALIVE, recorded_at=at(500), checkpoint_step=on_disk)
    first = (resumed or 0) + 1
    metrics = steps(*[4.0] * (furthest - first + 1), begin=100, first=first)
    heartbeat = beat(498, furthest, resumed_from_step=resumed)
    folder.attempt(2, begin=80, metrics=metrics, heartbeat=heartbeat)


def test_an_attempt_from_zero_beside_a_checkpoint_is_told_soon_after_its_first_step(tmp_path):
    folder = Folder(tmp_path / "r")
    from_zero(folder, furthest=45, on_disk=50)
    told = folder.told()
    assert patterns(told) == [(2, "resumed_from_zero")]
    (found,) = [each for each in told if each.kind == "pattern"]
    assert found.at <= BEGAN + timedelta(seconds=104 + 35), "not only when its last heartbeat came"
    assert "the checkpoint of step 50 is there" in found.text


def test_of_an_attempt_that_ended_the_records_row_tells_of_the_checkpoint(tmp_path):
    folder = Folder(tmp_path / "r")
    from_zero(folder, furthest=45, on_disk=None)
    folder.meta["attempts"] = [{"n": 1, "by": "user"}, {"n": 2, "by": "watch", "checkpoint_step": 50}]
    folder.attempt(3, begin=600, log=TRACE, exit=ended(610, 1))
    assert (2, "resumed_from_zero") in patterns(folder.told())


@pytest.mark.parametrize(
    ("furthest", "on_disk", "resumed"),
    [(90, 75, 50), (45, 25, None), (45, None, None), (70, 50, None)],
    ids=["it resumed", "a person took it away", "nobody looked", "the checkpoint may be its own"],
)
def test_what_no_checkpoint_proves_is_no_start_from_zero(tmp_path, furthest, on_disk, resumed):
    folder = Folder(tmp_path / "r")
    from_zero(folder, furthest=furthest, on_disk=on_disk, resumed=resumed)
    assert patterns(folder.told()) == []


# -- a container that was restarted is an end, and told as one


@pytest.mark.parametrize(
    ("ticks", "code", "signal", "said_class"),
    [
        (8, None, 9, "container_restarted"),
        (7, None, 9, "signal_exit"),
        (8, 1, None, "fx_trace_race"),
    ],
    ids=["restarted", "the same container", "it had ended by itself before"],
)
def test_a_restart_under_an_attempt_is_told_by_the_attempt_after_it(
    tmp_path, ticks, code, signal, said_class
):
    folder = Folder(tmp_path / "r")
    log = TRACE if code else "step 9 loss 2.5\n"
    folder.attempt(1, begin=0, log=log, heartbeat=beat(29, 9), exit=ended(31, code, signal))
    info = {"trainer_pid": 7, "started_at": at(60), **BOOT, "pid1_start_ticks": ticks}
    folder.attempt(2, begin=60, attempt=info, log=TRACE, exit=ended(90, 1))
    told = folder.told()
    assert [each.detail["class"] for each in told if each.kind == "diagnosis" and each.attempt == 1][
        -1
    ] == said_class
    assert patterns(told) == []


# -- for people and programs


def test_a_pattern_is_printed_as_informing_only_with_its_proof(tmp_path, capsys):
    folder = Folder(tmp_path / "r")
    deaths(folder, (40, 25), (40, 25), (40, 25))
    folder.told()
    assert app.run(["replay", str(folder.place)]) == Exit.OK
    text = capsys.readouterr().out
    assert "[3] pattern (informs only): no_progress - 3 attempts in a row ended at step 40" in text
    assert "confirmation (history): attempt 1" in text
    assert app.run(["replay", str(folder.place), "--json"]) == Exit.OK
    told = json.loads(capsys.readouterr().out)["replays"][0]["told"]
    (found,) = [each for each in told if each["kind"] == "pattern"]
    assert found["pattern"]["class"] == "no_progress"
    assert found["pattern"]["informs_only"] is True
    assert len(found["evidence"]) == 3
