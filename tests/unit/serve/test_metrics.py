"""What Prometheus scrapes, and the dashboard that asks for it."""

from __future__ import annotations

import json
import math
import re

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from orchestrator.serve.grafana import dashboard
from orchestrator.types.failure import RunState
from tests.builders import NOW
from tests.unit.serve.stage import HOSTILE, add_run, begin, full_card, make_card


def scraped(stage, **headers) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = stage.client(**headers).get("/metrics")
    assert answer.status_code == 200
    read = parse_openmetrics if "openmetrics" in answer.headers["content-type"] else parse
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in read(answer.text)
        for sample in family.samples
    }


def of(found, name: str, **labels: str) -> list[float]:
    return [
        value for (each, own), value in found.items() if each == name and labels.items() <= dict(own).items()
    ]


def test_a_run_is_in_one_state_and_its_numbers_are_there(stage):
    add_run(stage, attempts=3)
    begin(stage)
    stage.show(full_card(1), make_card(2))
    found = scraped(stage)
    states = {dict(own)["state"]: value for (name, own), value in found.items()
              if name == "dflash_run_state" and dict(own)["run"] == "run-1"}  # fmt: skip
    assert {state for state, value in states.items() if value} == {"dead"}
    assert set(states) == {state.value for state in RunState}
    for name, value in {
        "dflash_run_step": 40, "dflash_run_steps_planned": 100, "dflash_run_loss": 2.5,
        "dflash_run_tokens_per_second": 1234.5, "dflash_run_checkpoint_step": 30, "dflash_run_blind": 1,
        "dflash_run_attempts_left": 2, "dflash_run_clock_skew_seconds": -1.5, "dflash_run_attempts_total": 3,
        "dflash_gpu_memory_used_bytes": 5 << 30, "dflash_gpu_utilization_ratio": 0.97,
        "dflash_gpu_power_watts": 650.5,
        "dflash_gpu_temperature_celsius": 61,
    }.items():  # fmt: skip
        assert of(found, name, run="run-1") == [value], name
    assert of(found, "dflash_run_deaths_total", run="run-1", failure="oom_cuda") == [2]
    assert of(found, "dflash_run_info", run="run-1", phase="train", failure="oom_cuda") == [1]
    assert of(found, "dflash_run_look_age_seconds", run="run-2")[0] > 0
    assert of(found, "dflash_watch_well") == [0.0]
    assert 0 <= of(found, "dflash_watch_turn_age_seconds")[0] < 30


def test_what_is_unknown_or_no_number_is_left_out_and_a_hostile_name_is_a_label(stage):
    stage.show(make_card(1, name=f'a"b\\c\n{HOSTILE}', loss=math.nan, tokens_per_s=math.inf))
    for accept in ("", "application/openmetrics-text;version=1.0.0"):
        found = scraped(stage, accept=accept)
        assert of(found, "dflash_run_loss") == []
        assert of(found, "dflash_run_tokens_per_second") == []
        assert of(found, "dflash_run_step") == []
        (name,) = {dict(own)["run"] for (each, own) in found if each == "dflash_run_blind"}
        assert name.startswith('a"b\\c ')
        assert "\x1b" not in name


def test_of_a_run_that_lives_the_age_of_its_newest_step_is_there(stage):
    fields = {"phase": "train", "step": 9, "moved_at": NOW}
    stage.show(
        make_card(1, **fields), make_card(2, **fields, blind="no route"),
        make_card(3, **fields, has_ended=True), make_card(4, **fields, state=RunState.DEAD),
    )  # fmt: skip
    found = scraped(stage)
    assert of(found, "dflash_run_step_age_seconds", run="run-1")[0] > 0
    for run in ("run-2", "run-3", "run-4"):
        assert of(found, "dflash_run_step_age_seconds", run=run) == []


def test_before_the_first_turn_it_is_not_well(stage):
    found = scraped(stage)
    assert of(found, "dflash_watch_well") == [0.0]
    assert of(found, "dflash_watch_turn_age_seconds") == [math.inf]


def test_the_record_is_not_asked_at_every_scrape(stage, monkeypatch):
    add_run(stage)
    begin(stage)
    stage.show(make_card(1))
    asked = []
    real = stage.record.attempts

    def counted(run):
        asked.append(run)
        return real(run)

    monkeypatch.setattr(stage.record, "attempts", counted)
    client = stage.client()
    for _ in range(5):
        assert client.get("/metrics").status_code == 200
    assert asked == [1]
    stage.show(make_card(1, attempt=3, state=RunState.DEAD))
    assert client.get("/metrics").status_code == 200
    assert asked == [1, 1], "its state changed"


def test_the_dashboard_asks_only_for_what_there_is(stage):
    add_run(stage, attempts=3)
    begin(stage)
    stage.show(full_card(1, state=RunState.HEALTHY, blind=None))
    labels: dict[str, set[str]] = {}
    for name, own in scraped(stage):
        labels.setdefault(name, set()).update(dict(own))
    body = json.loads(dashboard())
    queries = [target["expr"] for panel in body["panels"] for target in panel["targets"]]
    queries += [each["expr"] for each in body["annotations"]["list"]]
    queries += [each["query"]["query"] for each in body["templating"]["list"] if each["type"] == "query"]
    asked = set()
    for query in queries:
        for name, selector in re.findall(r"\b(dflash_\w+)(\{[^}]*\})?", query):
            assert name in labels, f"{name} in {query}"
            assert set(re.findall(r"(\w+)=~?\"", selector)) <= labels[name], query
            asked.add(name)
    for legend in (target["legendFormat"] for panel in body["panels"] for target in panel["targets"]):
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= {"run", "target", "state", "failure", "gpu"}
    numbers = {name for name in labels if not name.endswith("_info")}
    assert numbers - asked <= {
        "dflash_stream_readers",
        "dflash_run_attempt",
        "dflash_run_step_seconds",
        "dflash_run_clock_skew_seconds",
    }
    assert len({panel["id"] for panel in body["panels"]}) == len(body["panels"])
