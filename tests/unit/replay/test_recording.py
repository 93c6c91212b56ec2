"""A recording: written from what the record knows and the files tell, and told again in order."""

from __future__ import annotations

import io
import json
import re
import tarfile
import tempfile
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cli import app
from orchestrator.errors import ConfigError, Exit, NotFound
from orchestrator.playbook import parse
from orchestrator.replay.archive import unpacked
from orchestrator.replay.judge import shipped_playbook
from orchestrator.replay.known import Known, merged
from orchestrator.replay.player import play
from orchestrator.replay.recorder import Recorder
from orchestrator.replay.recording import read_recording
from orchestrator.replay.timeline import moments
from orchestrator.wire import unpack_bytes
from tests.unit.replay.folders import BEGAN, FX, TRACE, Folder, at, beat, classes, ended, said


def test_a_crash_its_relaunch_and_the_end_are_told_in_order(tmp_path):
    folder = Folder(tmp_path / "r")
    log = "step 1 loss 2.5\n" * 40 + TRACE
    folder.attempt(1, begin=0, log=log, heartbeat=beat(50, 40), exit=ended(60, 1))
    last = beat(190, 90, resumed_from_step=40)
    folder.attempt(
        2, begin=80, log="step 90 loss 1\n", heartbeat=last, exit=ended(200, 0), result={"at": at(199)}
    )
    told = folder.told()
    assert classes(told)[-1] == "completed"
    crash = next(e for e in told if e.kind == "diagnosis" and e.detail["state"] == "dead")
    assert crash.detail["class"] == "fx_trace_race"
    assert crash.at == BEGAN + timedelta(seconds=60)
    assert crash.evidence[0].offset == log.index(FX)
    first, last_ = [each for each in told if each.kind == "decision"]
    assert (first.attempt, first.detail["kind"]) == (1, "relaunch_with_changes")
    assert (last_.attempt, last_.detail["kind"]) == (2, "none")
    assert [each.at for each in told] == sorted(each.at for each in told)


def test_a_ladder_goes_on_from_what_the_recorded_attempt_used(tmp_path):
    """As in a watch: a variable that is set is no rung, and a value is scaled from the one that was used."""
    spec = {"schema": 1, "attempt": 1, "kind": "trainer", "env_names": ["PYTORCH_CUDA_ALLOC_CONF"]}
    oom = 'Traceback (most recent call last):\n  File "/srv/t.py", line 3, in step\n    f(x)\n'
    oom += "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    config = {"config": {"loss": {"chunk_tokens": 4096}}}
    folder = Folder(tmp_path / "r")
    folder.attempt(
        1,
        begin=0,
        log="step 1 loss 2.5\n" + oom,
        heartbeat=beat(50, 40),
        exit=ended(60, 1),
        run=spec,
        environment=config,
    )
    (decision,) = [each for each in folder.told() if each.kind == "decision"]
    assert decision.detail["changes"] == [{"set": "loss.chunk_tokens", "value": "2048"}]


def test_the_budget_of_a_run_is_spent_over_its_attempts(tmp_path):
    folder = Folder(tmp_path / "r")
    for number in range(1, 5):
        folder.attempt(
            number,
            begin=number * 4000,
            log=TRACE,
            heartbeat=beat(number * 4000 + 5, 3),
            exit=ended(number * 4000 + 60, 1),
        )
    kinds = [each.detail["kind"] for each in folder.told() if each.kind == "decision"]
    allowed = shipped_playbook().rules[
        next(f for f in shipped_playbook().rules if f.value == "fx_trace_race")
    ]
    assert kinds[: allowed.attempts] == ["relaunch_with_changes"] * allowed.attempts
    assert "relaunch_with_changes" not in kinds[allowed.attempts :]


def test_a_silence_past_the_limit_is_a_hang_and_steady_steps_are_none(tmp_path):
    steps = [
        {"kind": "train", "step": n, "loss": 2.0, "step_s": 10.0, "at": at(n * 10)} for n in range(1, 300)
    ]
    well = Folder(tmp_path / "well", alive={"lock_held": True, "pids": [7]}, recorded_at=at(3000))
    well.attempt(1, begin=0, metrics=steps, heartbeat=beat(2990, 299))
    assert "hang" not in classes(well.told())
    hung = Folder(tmp_path / "hung", alive={"lock_held": True, "pids": [7]}, recorded_at=at(6000))
    hung.attempt(1, begin=0, metrics=steps, heartbeat=beat(2990, 299))
    assert classes(hung.told())[-1] == "hang"


def test_a_run_that_lived_when_it_was_recorded_is_not_dead(tmp_path):
    folder = Folder(tmp_path / "r", alive={"lock_held": True, "pids": [7]}, recorded_at=at(100))
    folder.attempt(1, begin=0, log="step 1 loss 2\n", heartbeat=beat(99, 20))
    told = folder.told()
    assert said(told, "decision") == []
    assert classes(told)[-1] == "healthy"
    unknown = Folder(tmp_path / "u", alive=None, recorded_at=at(100))
    unknown.attempt(1, begin=0, log="step 1 loss 2\n", heartbeat=beat(99, 20))
    assert said(unknown.told(), "decision") == []


def test_a_stop_of_its_user_and_a_restarted_container_are_told_as_such(tmp_path):
    stop = {"by": "user", "reason": "enough", "attempt": 1, "at": at(30)}
    stopped = Folder(tmp_path / "s", stop=stop)
    stopped.attempt(1, begin=0, heartbeat=beat(29, 9), exit=ended(31, 75))
    last = [each for each in stopped.told() if each.kind == "diagnosis"][-1]
    assert last.detail["state"] == "stopped"
    restarted = Folder(tmp_path / "c", container={"boot_id": "b", "pid1_start_ticks": 8})
    restarted.attempt(1, begin=0, heartbeat=beat(29, 9), exit=ended(31, None, 15))
    assert classes(restarted.told())[-1] == "container_restarted"


def test_the_hosts_kernel_lines_confirm_what_happened(tmp_path):
    line = (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=ns,mems_allowed=0,"
        "oom_memcg=/lxc/200,task_memcg=/lxc/200/ns,task=python3,pid=7,uid=0"
    )
    killed = "Memory cgroup out of memory: Killed process 7 (python3) total-vm:1kB, anon-rss:1kB"
    kernel = [{"at": at(58), "line": line}, {"at": at(58), "line": killed}]
    folder = Folder(tmp_path / "r")
    folder.attempt(1, begin=0, heartbeat=beat(50, 9), kernel=kernel, exit=ended(60, None, 9))
    assert classes(folder.told())[-1] == "oom_host"
    alone = Folder(tmp_path / "a")
    alone.attempt(1, begin=0, heartbeat=beat(50, 9), exit=ended(60, None, 9))
    assert classes(alone.told())[-1] == "signal_exit"


def test_a_log_whose_pieces_were_kept_keeps_its_offsets(tmp_path):
    folder = Folder(tmp_path / "r")
    folder.attempt(1, begin=0, exit=ended(60, 1))
    place = tmp_path / "r" / "attempts" / "1"
    (place / "log").write_text("head\n" + TRACE)
    pieces = [{"at": 0, "bytes": 5}, {"at": 5000, "bytes": len(TRACE)}]
    (place / "log.json").write_text(json.dumps({"size": 5000 + len(TRACE), "pieces": pieces}))
    crash = next(e for e in folder.told() if e.kind == "diagnosis" and e.detail["state"] == "dead")
    assert crash.evidence[0].offset == 5000 + TRACE.index(FX)
    assert crash.detail["confidence"] <= 0.7
    (place / "log").write_text("head\n")
    with pytest.raises(ConfigError, match="it was cut or changed"):
        folder.told()


def test_every_byte_of_a_log_is_told_once_and_before_the_end(tmp_path):
    folder = Folder(tmp_path / "r")
    log = "".join(f"step {n} loss 1.{n}\n" for n in range(20_000))
    folder.attempt(1, begin=0, log=log, exit=ended(60, 0))
    folder.told()
    found = list(moments(read_recording(folder.place)))
    parts = [m.message for m in found if m.message["type"] == "log"]
    assert len(parts) > 3
    assert b"".join(unpack_bytes(part["data"]) for part in parts) == log.encode()
    last = max(place for place, m in enumerate(found) if m.message["type"] == "log")
    assert [m.message["type"] for m in found].index("exit") > last


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("recording.json", '{"schema": 9}', "schema 9; this program reads 1"),
        ("recording.json", "[1]", "a JSON object was expected, not list"),
        ("recording.json", "{", "no JSON object"),
        ("attempts/1/exit.json", "[]", "a JSON object was expected, not list"),
        ("attempts/1/log.json", "{}", 'no list "pieces"'),
        ("attempts/1/gpus.jsonl", '{"at": 3, "gpus": 7}', None),
        ("attempts/1/heartbeat.json", '{"phase": "dancing"}', None),
        ("attempts/1/metrics.jsonl", '{"step": "x"}\n{"cut', None),
    ],
)
def test_a_damaged_recording_is_told_or_read_as_far_as_it_goes(tmp_path, name, text, says):
    folder = Folder(tmp_path / "r")
    folder.attempt(1, begin=0, log="a\n", exit=ended(60, 1))
    folder.told()
    (folder.place / name).write_text(text)
    if says is None:
        assert list(play(read_recording(folder.place), shipped_playbook()))
        return
    with pytest.raises(ConfigError) as caught:
        list(play(read_recording(folder.place), shipped_playbook()))
    assert says in str(caught.value)


def test_an_archive_is_unpacked_and_a_hostile_one_refused(tmp_path, capsys):
    folder = Folder(tmp_path / "b32-recording")
    folder.attempt(1, begin=0, log=TRACE, exit=ended(60, 1))
    folder.told()
    packed = tmp_path / "b32.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(folder.place, arcname="b32-recording")
    assert app.run(["replay", str(packed), "--json"]) == Exit.OK
    told = json.loads(capsys.readouterr().out)["replays"][0]["told"]
    assert told[-1]["decision"]["kind"] == "relaunch_with_changes"
    assert app.run(["replay", str(packed)]) == Exit.OK
    assert "decision: relaunch_with_changes: " in capsys.readouterr().out

    for bad in ("../out", "/etc/out"):
        hostile = tmp_path / "bad.tar.gz"
        with tarfile.open(hostile, "w:gz") as archive:
            archive.addfile(tarfile.TarInfo(bad), io.BytesIO())
        with pytest.raises(ConfigError, match="no plain file below the archive"), unpacked(hostile):
            pass
    link = tarfile.TarInfo("recording.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tmp_path / "link.tar.gz", "w:gz") as archive:
        archive.addfile(link)
    with pytest.raises(ConfigError), unpacked(tmp_path / "link.tar.gz"):
        pass
    (tmp_path / "junk.tar.gz").write_bytes(b"junk")
    with pytest.raises(ConfigError, match="cannot be unpacked"), unpacked(tmp_path / "junk.tar.gz"):
        pass
    with pytest.raises(NotFound), unpacked(tmp_path / "none.tar.gz"):
        pass


def test_a_folder_that_is_nothing_of_ours_is_said_plainly(tmp_path, capsys):
    assert app.run(["replay", str(tmp_path)]) == Exit.NOT_FOUND
    assert "neither a recording" in capsys.readouterr().err


def test_at_a_pace_it_waits_as_long_as_it_happened(tmp_path, monkeypatch):
    from orchestrator.cli.context import SETTINGS
    from orchestrator.cli.playing import paced

    class Clock:
        def __init__(self) -> None:
            self.ticks = 5.0

        def monotonic(self) -> float:
            return self.ticks

        def sleep(self, seconds: float) -> None:
            self.ticks += seconds

    clock = Clock()
    monkeypatch.setattr(SETTINGS, "clock", clock)
    folder = Folder(tmp_path / "r")
    folder.attempt(1, begin=0, log=TRACE, exit=ended(60, 1))
    told = folder.told()
    assert list(paced(iter(told), 10)) == told
    assert clock.ticks == pytest.approx(5.0 + 6.0)
    assert list(paced(iter(told), None)) == told
    assert clock.ticks == pytest.approx(5.0 + 6.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-50, 300), st.integers(-50, 300)), max_size=12), st.integers(0, 250))
def test_windows_are_in_order_apart_and_hold_what_was_asked(windows, size):
    found = merged(windows, size)
    assert all(0 <= begin < end <= size for begin, end in found)
    assert all(one[1] < two[0] for one, two in pairwise(found))
    wanted = {at for begin, end in windows for at in range(max(0, begin), min(size, end))}
    assert {at for begin, end in found for at in range(begin, end)} == wanted


def test_what_the_record_knows_is_enough_without_the_container(tmp_path):
    known = Known(run="b32", attempts=[], events=[], diagnoses=[], metrics=[], gpus=[])
    Recorder(known, tmp_path / "r").write(None, "no route to host", BEGAN)
    assert json.loads((tmp_path / "r" / "recording.json").read_text())["unreached"] == "no route to host"
    with pytest.raises(ConfigError, match="no attempt in it"):
        read_recording(tmp_path / "r")


KEYS = (
    *("at", "started_at", "code", "signal", "duration_s", "phase", "step", "loss", "exception", "message"),
    *(
        "gpus",
        "index",
        "line",
        "gpu",
        "source",
        "step_s",
        "kind",
        "trainer_pid",
        "boot_id",
        "pieces",
        "bytes",
    ),
    *(
        "pid1_start_ticks",
        "alive",
        "stop",
        "container",
        "attempts",
        "n",
        "lock_held",
        "pids",
        "by",
        "attempt",
    ),
    *("recorded_at", "checkpoint_step", "rung", "traceback", "rank", "error", "resumed_from_step"),
)


def test_a_time_that_is_long_ago_does_not_make_it_endless(tmp_path):
    folder = Folder(tmp_path / "r", alive={"lock_held": True, "pids": [7]})
    folder.attempt(1, begin=0, log="step 1 loss 2\n", heartbeat=beat(9, 9))
    place = tmp_path / "r" / "attempts" / "1" / "attempt.json"
    place.write_text(json.dumps({"started_at": "0001-01-02T00:00:00Z"}))
    folder.told()
    assert sum(1 for _ in moments(read_recording(folder.place))) < 10_000


@pytest.mark.parametrize("started", [True, "never", "0001-01-01T00:00:00+23:00", [], 7])
def test_a_start_that_is_no_time_is_not_known_and_the_end_is_told_all_the_same(tmp_path, started):
    folder = Folder(tmp_path / "r")
    folder.attempt(1, begin=0, log=TRACE, exit=ended(60, 1), attempt={"started_at": started})
    assert classes(folder.told())[-1] == "fx_trace_race"


ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats() | st.text(max_size=5) | st.just(at(5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=8,
)
FILES = ("attempt", "run", "exit", "heartbeat", "error", "result", "environment")
LINES = ("metrics", "gpus", "kernel")


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(st.sampled_from(FILES), st.dictionaries(st.sampled_from(KEYS), ODD, max_size=8)),
    st.dictionaries(st.sampled_from(LINES), st.lists(ODD, max_size=4)),
    st.dictionaries(st.sampled_from(KEYS), ODD, max_size=8),
)
def test_whatever_a_recording_holds_it_is_told_or_refused(files, lines, meta):
    with tempfile.TemporaryDirectory() as made:
        folder = Folder(Path(made) / "r", **{"recorded_at": at(60), **meta, "schema": 1})
        folder.attempt(1, begin=0, log="step 1 loss 2\n", **files, **lines)
        try:
            told = folder.told()
        except ConfigError:
            return
        assert all(
            each.kind in ("attempt", "prediction", "diagnosis", "pattern", "decision") for each in told
        )


def test_an_attempt_that_left_no_file_is_told_from_the_records_row(tmp_path):
    rows = [{"n": 1, "started_at": at(0), "ended_at": at(60)}, {"n": []}, {"n": "2"}, {"n": True}, 7]
    (tmp_path / "recording.json").write_text(json.dumps({"schema": 1, "attempts": rows}))
    (attempt,) = read_recording(tmp_path).attempts
    assert (attempt.number, attempt.known["ended_at"]) == (1, at(60))


def test_what_is_wrong_in_an_archive_is_told_by_the_archives_name(tmp_path):
    (tmp_path / "recording.json").write_text('{"schema": 1}')
    archive = tmp_path / "b32.tgz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(tmp_path / "recording.json", arcname="b32/recording.json")
    expected = re.escape(f"{archive}/attempts: no attempt in it")
    with pytest.raises(ConfigError, match=expected), unpacked(archive) as place:
        read_recording(place)


def test_the_silence_of_a_recorded_log_is_made_up_and_no_hang(tmp_path):
    folder = Folder(tmp_path / "r", alive={"lock_held": True, "pids": [7]})
    spec = {"schema": 1, "attempt": 1, "kind": "command"}
    folder.attempt(1, begin=0, log="step 1 loss 2.5\n" * 3, run=spec)
    folder.told()
    playbook = parse("extends: default\nlimits: {silence: 30s}\n", "mine.yaml")
    told = list(play(read_recording(folder.place), playbook))
    assert classes(told) == ["healthy"], "its bytes are spread over hours"


def test_each_kernel_line_is_there_from_its_own_time_on_whatever_their_order(tmp_path):
    rows = [{"at": at(seconds), "line": f"line {seconds}"} for seconds in (40, 10, 25)]
    folder = Folder(tmp_path / "r")
    folder.attempt(1, begin=0, log="step 1 loss 2.5\n" * 9, exit=ended(60, 1), kernel=rows)
    (folder.place / "recording.json").write_text(json.dumps(folder.meta))
    found = list(moments(read_recording(folder.place)))
    for each in found:
        due = [s for s in (10, 25, 40) if BEGAN + timedelta(seconds=s) <= each.at]
        assert [line.text for line in each.host_lines] == [f"line {s}" for s in due]
    assert len(found[-1].host_lines) == 3


def test_what_could_not_be_fetched_is_no_end_without_a_word(tmp_path):
    folder = Folder(tmp_path / "r", unreached="no route to host", attempts=[{"n": 1, "started_at": at(0)}])
    folder.attempt(2, begin=100, log="step 1 loss 2.5\n")
    told = folder.told()
    assert said(told, "attempt") == ["attempt 1", "attempt 2"]
    assert not said(told, "decision")
    reached = Folder(tmp_path / "s", attempts=[{"n": 1, "started_at": at(0)}])
    reached.attempt(2, begin=100, log="step 1 loss 2.5\n")
    assert "vanished" in said(reached.told(), "diagnosis")[0]
