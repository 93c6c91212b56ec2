"""What the API answers: by its own models, whatever is on record."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import BlindError, HostUnreachable, NotFound, RecordError
from orchestrator.record.rows import MetricRow
from orchestrator.serve import curves, models
from orchestrator.serve.logs import MAX_BYTES, Piece
from orchestrator.types.failure import RunState
from tests.builders import NOW
from tests.unit.serve.stage import HOSTILE, LEAKED, SECRET, add_run, begin, full_card, make_card, staged, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.serve.stage import Stage


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> Iterator[Stage]:
    """One run with a story, its watch going."""
    with staged(tmp_path_factory.mktemp("api")) as stage:
        add_run(stage, "first", attempts=3)
        add_run(stage, "second", attempts=1)
        begin(stage)
        yield stage


def test_the_fleet_and_the_session_are_as_their_models_say(shown):
    client = shown.client()
    fleet = models.Fleet.model_validate_json(client.get("/api/v1/fleet").content, strict=True)
    assert [run.name for run in fleet.runs] == ["first", "second"]
    assert all(run.has_ended for run in fleet.runs)
    assert fleet.health.is_well
    session = models.Session.model_validate_json(client.get("/api/v1/session").content, strict=True)
    assert (session.is_signed_in, session.csrf) == (False, None)


def test_a_runs_page_has_all_that_is_on_record_masked(shown):
    answer = shown.client().get("/api/v1/runs/1")
    run = models.RunDetail.model_validate_json(answer.content, strict=True)
    assert [each.n for each in run.attempts] == [1, 2, 3]
    assert [each.is_death for each in run.attempts] == [True, True, False]
    assert run.attempts[0].failure_title == "the GPU ran out of memory"
    assert run.attempts[0].changes[0].value == "8"
    assert {each.kind for each in run.timeline} >= {
        "started",
        "ended",
        "diagnosis",
        "action",
        "outcome",
        "transition",
    }
    assert [each.level for each in run.timeline if each.kind == "diagnosis"] == ["bad", "bad", "good"]
    assert run.diagnoses[0].evidence[0].offset == 12
    assert run.diagnoses[0].cascades[0].rank == 3
    assert [(each.kind, each.outcome, each.error) for each in run.actions][-1] == ("relaunch", "done", "late")
    assert run.environment is not None
    assert (run.environment.old, run.environment.new) == (2, 3)
    assert [(each.key, each.old, each.new) for each in run.environment.changes] == [("torch", "2.2", "2.3")]
    assert run.playbook.problem == "it has ended, so nothing is done about it"
    assert run.playbook.source == "default.yaml"
    assert [each.attempt for each in run.logs] == [1, 2, 3]
    text = answer.text
    assert LEAKED not in text
    assert "\\u001b" not in text
    assert "<script>" in text


def test_a_run_that_is_not_there_is_told_in_one_line(shown):
    for path in ("", "/curves", "/gpus", "/lines", "/log"):
        answer = shown.client().get(f"/api/v1/runs/99{path}")
        assert answer.status_code == 404
        refusal = models.Refusal.model_validate_json(answer.content)
        assert refusal.error.message == "run 99: no such run in the record"


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/api/v1/runs/x", "run_id"),
        ("/api/v1/runs/0", "run_id"),
        ("/api/v1/runs/99999999999999999999", "run_id"),
        ("/api/v1/runs/1/lines?after=-1", "after"),
        ("/api/v1/runs/1/log?length=-1", "length"),
        (f"/api/v1/runs/1/log?length={MAX_BYTES + 1}", "length"),
        ("/api/v1/runs/1/log?attempt=0", "attempt"),
        ("/api/v1/runs/1/log?start=1e9", "start"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name_and_value(shown, path, names):
    answer = shown.client().get(path)
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith(f"{names}: ")


@pytest.mark.parametrize(
    ("path", "status"), [("/nowhere", 404), ("/api/v2/fleet", 404), ("/docs", 404), ("/redoc", 404)]
)
def test_what_is_not_there_is_not_there(shown, path, status):
    answer = shown.client().get(path)
    assert answer.status_code == status
    assert models.Refusal.model_validate_json(answer.content).error.code == "http_error"


def test_a_method_that_is_not_there_is_refused(shown):
    answer = shown.client().post("/api/v1/fleet", headers={"authorization": f"Bearer {SECRET}"})
    assert answer.status_code == 405
    assert "GET" in answer.headers["allow"]


def test_lines_come_after_the_last_one_known(stage):
    add_run(stage)
    begin(stage)
    for number in range(1, 6):
        stage.board.emit(told(f"line {number} \x1b[1m{LEAKED}", kind="log"))
    body = models.Lines.model_validate_json(
        stage.client().get("/api/v1/runs/1/lines?after=3").content, strict=True
    )
    assert (body.last, [each.seq for each in body.lines]) == (5, [4, 5])
    assert body.lines[0].text == "line 4 hf_" + "*" * (len(LEAKED) - 3)
    nothing = stage.client().get("/api/v1/runs/1/lines?after=9").json()
    assert nothing == {"last": 9, "lines": []}


# -- curves


def metric(step: int, loss: float | None, attempt: int = 1) -> MetricRow:
    at = NOW + timedelta(seconds=step)
    return MetricRow(
        run_id=1,
        attempt=attempt,
        kind="train",
        step=step,
        at=at,
        loss=loss,
        tokens_per_s=1.0,
        step_s=math.inf,
    )


def test_curves_tell_attempts_and_where_they_died(shown):
    body = models.Curves.model_validate_json(shown.client().get("/api/v1/runs/1/curves").content, strict=True)
    assert [each.attempt for each in body.series] == [1, 2, 3]
    assert body.series[0].steps == list(range(1, 21))
    assert len(body.series[0].loss) == len(body.series[0].step_s) == len(body.series[0].tokens_per_s) == 20
    assert [(each.attempt, each.step, each.label) for each in body.deaths] == [
        (1, 20, "oom_cuda"),
        (2, 20, "oom_cuda"),
    ]
    assert body.deaths[0].loss == 0.25


def test_the_first_losses_do_not_flatten_the_rest_and_a_note_says_what_is_beyond():
    rows = [metric(step, 18.1 if step < 3 else 1.0 + step / 1_000, 1) for step in range(1, 101)]
    body = models.Curves.model_validate(curves.curves_body([], [*rows, metric(101, math.nan)]))
    assert body.loss_limits is not None
    assert 1.0 < body.loss_limits.high < 2.0
    assert body.loss_limits.note.startswith("training loss: 2 of 100 points above 1.")
    assert body.loss_limits.note.endswith("(up to 18.1) are not shown")
    assert body.series[0].loss[:2] == [18.1, 18.1], "the points themselves are sent"


def test_curves_without_losses_far_off_are_shown_whole():
    rows = [metric(step, 1.0 + step / 100) for step in range(1, 101)]
    assert curves.curves_body([], rows)["loss_limits"] is None
    assert curves.curves_body([], [*rows[:2], metric(3, 99.0)])["loss_limits"] is None, "each is the curve"
    assert curves.curves_body([], [metric(1, None)])["loss_limits"] is None


def test_long_curves_are_thinned_with_their_peaks_and_ends():
    rows = [metric(step, 1.0 + (step == 77_777) * 50 - (step == 33_333) * 0.5) for step in range(100_000)]
    body = models.Curves.model_validate(curves.curves_body([], rows))
    (series,) = body.series
    assert len(series.steps) <= curves.MAX_POINTS
    assert {0, 33_333, 77_777, 99_999} <= set(series.steps)
    assert series.steps == sorted(set(series.steps))


def test_many_attempts_share_the_points_that_a_page_gets():
    rows = [metric(step, 1.0, attempt) for attempt in range(1, 101) for step in range(1000)]
    body = curves.curves_body([], rows)
    assert len(body["series"]) == 100
    assert sum(len(each["steps"]) for each in body["series"]) <= curves.MAX_ALL_POINTS


def test_what_is_no_number_is_null(shown):
    rows = [metric(1, math.nan), metric(2, None), metric(3, 4.0), metric(4, math.inf)]
    (series,) = curves.curves_body([], rows)["series"]
    assert series["loss"] == [None, None, 4.0, None]
    assert series["step_s"] == [None] * 4
    assert curves.thinned(rows, 4, lambda row: row.loss) == rows
    assert [row.step for row in curves.thinned(rows * 3, 4, lambda row: row.loss)] == [1, 3, 4]


def test_gpus_are_told_by_index_with_what_is_seen_now(stage):
    add_run(stage)
    begin(stage)
    stage.show(full_card(1))
    body = models.GpuHistory.model_validate_json(
        stage.client().get("/api/v1/runs/1/gpus").content, strict=True
    )
    (gpu,) = body.gpus
    assert (gpu.index, gpu.name, gpu.memory_total_bytes) == (0, "NVIDIA H200", 139 << 30)
    assert gpu.utilization_pct == [50.0, 50.0]
    assert gpu.times == sorted(gpu.times)
    assert gpu.power_w == [None, None]


# -- logs


class FixedLog:
    """A reader whose container says one thing."""

    def __init__(self, says: Piece | Exception) -> None:
        self.says = says
        self.asked: list[tuple[str, int | None, int, int]] = []

    def read(self, row, attempt, start, length, newest) -> Piece:
        self.asked.append((row.name, attempt, start, length))
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@pytest.fixture
def with_log(shown, monkeypatch):
    def use(says: Piece | Exception) -> FixedLog:
        reader = FixedLog(says)
        object.__setattr__(shown.parts, "logs", reader)
        return reader

    before = shown.parts.logs
    yield use
    object.__setattr__(shown.parts, "logs", before)


def test_a_range_of_a_log_comes_as_bytes_with_where_it_lies(shown, with_log):
    reader = with_log(Piece(2, 5 << 30, b"<b>\x00\xff\r\n", (5 << 30) + 7, "container"))
    answer = shown.client(accept="text/html").get("/api/v1/runs/1/log?attempt=2&start=5368709120&length=7")
    assert answer.content == b"<b>\x00\xff\r\n"
    assert answer.headers["content-type"] == "application/octet-stream"
    told = {name: answer.headers[f"x-log-{name}"] for name in ("size", "start", "attempt", "source")}
    assert told == {"size": "5368709127", "start": "5368709120", "attempt": "2", "source": "container"}
    shown.client().get("/api/v1/runs/2/log")
    assert reader.asked == [("first", 2, 5 << 30, 7), ("second", None, -65536, 65536)]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (HostUnreachable("pve: no route", hint="is it up?"), 503, "host_unreachable"),
        (BlindError(f"x {LEAKED}"), 503, "blind_error"),
        (NotFound("no attempt 9"), 404, "not_found"),
        (RecordError("the disk is full"), 500, "record_error"),
        (ZeroDivisionError(f"secret {LEAKED}"), 500, "internal_error"),
    ],
)
def test_a_fault_is_an_answer_with_a_code_and_never_a_trace(shown, with_log, caplog, error, status, code):
    with_log(error)
    answer = shown.client().get("/api/v1/runs/1/log")
    assert answer.status_code == status
    refusal = models.Refusal.model_validate_json(answer.content)
    assert refusal.error.code == code
    assert LEAKED not in answer.text
    assert "Traceback" not in answer.text


# -- health


def test_a_watch_that_sees_is_well_and_one_that_does_not_is_told(stage):
    add_run(stage)
    client = stage.client()
    assert client.get("/healthz").status_code == 503, "it has not turned yet"
    assert "has not turned yet" in client.get("/healthz").text
    begin(stage)
    assert (client.get("/healthz").status_code, client.get("/healthz").text) == (200, "ok\n")
    stage.show(make_card(1, looked_at=stage.parts.clock.now(), blind="no route to host"))
    blind = client.get("/healthz")
    assert blind.status_code == 503
    assert "run-1 at pve/200 is not seen: no route to host" in blind.text
    stage.show(make_card(1, state=RunState.BLIND, has_ended=True))
    assert client.get("/healthz").status_code == 200
    stage.parts.hub.fault = ZeroDivisionError("x")
    assert client.get("/healthz").text == "not well\nthe stream of the pages ended: x\n"
    stage.fleet.fault = RecordError(f"the record is gone {HOSTILE}")
    ended = client.get("/healthz")
    assert ended.status_code == 503
    assert "the watch ended: the record is gone" in ended.text
    assert "\x1b" not in ended.text
    assert ended.headers["content-type"] == "text/plain; charset=utf-8"


def test_every_text_of_a_card_is_json_that_a_browser_can_read(stage):
    stage.show(make_card(1, summary="\u2028\u2029\x00\ud800 ok"))
    body = json.loads(stage.client().get("/api/v1/fleet").content)
    assert body["runs"][0]["summary"].endswith(" ok")
