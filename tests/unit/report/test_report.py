from __future__ import annotations

import re
from base64 import b64encode
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.errors import NotFound
from orchestrator.playbook import load, shipped
from orchestrator.record import Record
from orchestrator.report import collect, page
from orchestrator.types.failure import Diagnosis, Evidence, FailureClass, Role, RunState
from orchestrator.types.seen import Gpu

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START = datetime(2026, 11, 29, 6, tzinfo=timezone.utc)
NOW = datetime(2026, 11, 30, 7, tzinfo=timezone.utc)
HOSTILE = "<script>alert('x')</script> & <img src=x onerror=alert(1)> \"'"
TOKEN = "hf_" + "a1B2" * 9
VOID = {"meta", "br", "rect", "line", "circle", "link", "img"}


class Page(HTMLParser):
    """A page as a reader's program sees it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and data.strip():
            self.texts.append((self._open[-1], " ".join(data.split())))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    def text(self, *tags: str) -> str:
        return " ".join(data for tag, data in self.texts if tag != "style" and (not tags or tag in tags))


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def environment(**more: Any) -> dict[str, Any]:
    gpus = [{"name": "NVIDIA H200"}] * 8
    return {"schema": 1, "torch": "2.11.0", "driver": "570.86", "gpus": gpus, **more}


def tell(record: Record, run: int, n: int, end: float, failure: FailureClass, text: str = "a line") -> None:
    """An attempt that ended, its diagnosis and what was done."""
    done = failure is FailureClass.COMPLETED
    record.save_attempt(
        run,
        n,
        started_at=at(end - 10),
        ended_at=at(end),
        failure=failure,
        exit_code=0 if done else 1,
        first_step=0,
        last_step=100 * n,
        by="watch",
    )
    state = RunState.FINISHED if done else RunState.DEAD
    record.transition(run, n, RunState.HEALTHY, state, text, at(end))
    diagnosis = Diagnosis(
        state=state,
        failure=failure,
        summary=f"it ended: {text}",
        evidence=(Evidence(source="log", text=text, offset=4711, rank=3),),
        cascades=(Evidence(source="log", text="NCCL watchdog", role=Role.CASCADE, offset=5000),),
    )
    record.diagnosis(run, n, diagnosis, at(end + 0.1))


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    with Record.open(tmp_path / "record.sqlite3") as opened:
        yield opened


@pytest.fixture
def run(record: Record) -> int:
    run = record.save_run("b32", {}, "pve/200", {}, START).id
    tell(record, run, 1, 10, FailureClass.FX_TRACE_RACE)
    act = record.intend(run, 1, "relaunch", "once more", {"diagnosis": "the race"}, at(10.2))
    record.outcome(act, "started", at(10.5))
    tell(record, run, 2, 22, FailureClass.HANG)
    record.intend(run, 2, "call", "a person has to look", {}, at(22.2))
    lines = [{"step": n, "loss": 3 - n / 100, "tokens_per_s": 900} for n in range(1, 101)]
    record.add_metrics(run, 1, lines, START)
    return run


def made(record: Record, attempt: int | None = None, now: datetime = NOW) -> str:
    return page(collect(record, record.runs()[0], load(shipped()), now, attempt))


def test_it_tells_attempts_proof_rules_and_acts_in_order(record: Record, run: int) -> None:
    text = Page(made(record)).text()
    wanted = (
        "2 attempts, 2 deaths (fx_trace_race, hang), step 200 reached",
        "Attempt 1: fx_trace_race",
        "A compiled function was called while another thread was tracing",
        "2026-11-29 06:10:00",
        "fx_trace_race: it ended: a line",
        "root (log, byte 4711, rank 3) a line",
        "cascade (log, byte 5000) NCCL watchdog",
        "the playbook's rule: fx_trace_race: relaunch as it was, at most once without progress, then call",
        "decision relaunch: once more",
        "told by: the race",
        "outcome after 18s: started",
        "Attempt 2: hang",
        "decision call: a person has to look",
        "outcome: none is on record",
        "Versions",
    )
    places = [text.find(each) for each in wanted]
    assert -1 not in places, wanted[places.index(-1)]
    assert places == sorted(places)


def test_hostile_text_is_never_html(record: Record) -> None:
    run = record.save_run(HOSTILE, {}, HOSTILE, {"config": HOSTILE}, START).id
    tell(record, run, 1, 10, FailureClass.OOM_CUDA, HOSTILE + "\x1b]0;title\x07\x1b[31m")
    record.save_attempt(
        run, 1, changes={HOSTILE: HOSTILE}, by=HOSTILE, environment=environment(torch=HOSTILE), spec={}
    )
    tell(record, run, 2, 20, FailureClass.OOM_CUDA)
    record.save_attempt(run, 2, environment=environment(**{HOSTILE: HOSTILE}), spec={})
    act = record.intend(run, 1, "relaunch", HOSTILE, {"diagnosis": HOSTILE}, at(11))
    record.outcome(act, HOSTILE, at(11), error=HOSTILE)
    record.add_metrics(run, 1, [{"step": 1, "loss": 2.0}], START)
    found = Page(made(record))
    assert not found.all("script")
    assert not found.all("img")
    assert not [name for _, attrs in found.tags for name in attrs if name.startswith("on")]
    assert found.text("code").count("<script>alert('x')</script> & <img") == 1
    assert "\x1b" not in found.text()
    assert HOSTILE in found.text("h1")
    assert HOSTILE in found.text("dd")


def test_it_asks_for_nothing_and_its_policy_allows_its_own_style_alone(record: Record, run: int) -> None:
    html = made(record)
    found = Page(html)
    styles = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    digest = b64encode(sha256(styles[0].encode()).digest()).decode()
    policy = next(m["content"] for m in found.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert len(styles) == 1
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    for tag, attrs in found.tags:
        assert not {"src", "srcset", "style", "action", "data", "xlink:href"} & set(attrs), tag
        assert (attrs.get("href") or "#").startswith("#")
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", html)


def test_secrets_are_starred_out_wherever_they_stand(record: Record) -> None:
    run = record.save_run("b32", {}, "local", {}, START).id
    hidden = TOKEN[:9] + "\x1b[1m" + TOKEN[9:]
    tell(record, run, 1, 10, FailureClass.AUTH_ERROR, f"401 for {hidden}; {TOKEN}")
    record.save_attempt(run, 1, changes={"key": TOKEN}, environment=environment(), spec={})
    record.outcome(record.intend(run, 1, "relaunch", TOKEN, {}, at(11)), "no", at(12), error=TOKEN)
    tell(record, run, 2, 20, FailureClass.AUTH_ERROR)
    more = environment(config={"wandb_api_key": "plainlookingword", "lr": 3})
    record.save_attempt(run, 2, environment=more, spec={})
    html = made(record)
    assert TOKEN not in html
    assert "plainlookingword" not in html
    assert "config.wandb_api_key" in html
    assert "hf_****" in html


def test_headings_tables_and_the_picture_can_be_heard(record: Record, run: int) -> None:
    found = Page(made(record))
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert all(attrs.get("scope") in {"row", "col"} for attrs in found.all("th"))
    ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    named = " ".join(attrs.get("aria-labelledby") or "" for _, attrs in found.tags).split()
    linked = [str(attrs["href"])[1:] for attrs in found.all("a")]
    assert set(named + linked) <= set(ids)
    assert found.all("svg")[0]["role"] == "img"
    assert "b32: loss across 1 attempt (1 more without a logged step)" in found.text("title")
    assert "deaths: fx_trace_race at step 100" in found.text("desc")
    assert found.all("html")[0]["lang"] == "en"
    assert {"viewport", "color-scheme"} <= {attrs.get("name") for attrs in found.all("meta")}
    assert all(attrs.get("tabindex") == "0" and attrs.get("aria-label")
               for _, attrs in found.tags if attrs.get("role") == "region")  # fmt: skip


def test_the_gpus_are_told_as_they_were_before_the_death(record: Record, run: int) -> None:
    for minute, size in ((21, 100), (21.9, 139), (25, 1)):
        gpu = Gpu(index=0, memory_used_bytes=size * 2**30, utilization_pct=97.0)
        record.add_gpus(run, 2, [gpu], at(minute))
    text = Page(made(record)).text()
    assert "The GPUs when it ended" in text
    assert "GPU 0 139.0 139.0 97 not read not read 6s before" in text


def test_the_gpus_of_a_hang_that_goes_on_are_told_and_of_a_success_not(record: Record) -> None:
    run = record.save_run("b32", {}, "local", {}, START).id
    tell(record, run, 1, 10, FailureClass.COMPLETED)
    record.add_gpus(run, 1, [Gpu(index=0, power_w=300.0)], at(9))
    assert "The GPUs" not in Page(made(record)).text()
    record.save_attempt(run, 2, started_at=at(12))
    hang = Diagnosis(state=RunState.HUNG, failure=FailureClass.HANG, summary="step 5 for 10m")
    record.diagnosis(run, 2, hang, at(20))
    for minute, power in ((19, 120.0), (21, 600.0)):
        record.add_gpus(run, 2, [Gpu(index=0, power_w=power)], at(minute))
    text = Page(made(record)).text()
    assert "The GPUs when it hung" in text
    assert "GPU 0 not read not read not read 120 not read 1m before" in text


def test_a_change_of_the_environment_is_told_with_what_it_was(record: Record, run: int) -> None:
    record.save_attempt(run, 1, environment=environment(), spec={})
    record.save_attempt(run, 2, environment=environment(torch="2.12.0"), spec={})
    text = Page(made(record)).text()
    assert (
        "What changed since attempt 1 key group attempt 1 attempt 2 torch torch build 2.11.0 2.12.0" in text
    )
    assert "torch 2.12.0 driver 570.86 GPUs 8 x NVIDIA H200" in text


def test_a_change_of_state_does_not_repeat_its_diagnosis(record: Record) -> None:
    run = record.save_run("b32", {}, "local", {}, START).id
    tell(record, run, 1, 10, FailureClass.HANG, "nothing moved")
    record.transition(run, 1, RunState.DEAD, RunState.HUNG, "it ended: nothing moved", at(11))
    text = Page(made(record)).text()
    assert text.count("it ended: nothing moved") == 1
    assert "state healthy -> dead: nothing moved" in text
    assert re.search(r"state dead -> hung(?!:)", text)


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({"environment": environment(), "spec": {}}, "Nothing differs from attempt 1."),
        ({"spec": {}}, "as far as that can be told: b32/2 left no environment.json: only what was asked for"),
        ({}, "cannot be compared with attempt 1"),
    ],
)
def test_no_change_and_nothing_to_compare_are_told_apart(record: Record, run: int, second, told) -> None:
    record.save_attempt(run, 1, environment=environment(), spec={})
    record.save_attempt(run, 2, **second)
    text = Page(made(record)).text()
    assert told in text
    assert "What changed" not in text


def test_one_attempt_alone_has_its_own_story(record: Record, run: int) -> None:
    text = Page(made(record, 2)).text()
    assert "this page tells of attempt 2 only" in text
    assert "Attempt 1:" not in text
    assert "decision call" in text
    assert "No step was logged, so there is nothing to draw." in text
    with pytest.raises(NotFound, match=r"no attempt 7 on record.*attempts: 1, 2"):
        made(record, 7)


def test_without_metrics_attempts_or_an_end_it_says_so(record: Record) -> None:
    run = record.save_run("new", {}, "local", {}, START).id
    text = Page(made(record)).text()
    assert "new; no attempt is on record." in text
    assert "No attempt is on record." in text
    record.save_attempt(run, 1, started_at=START)
    text = Page(made(record)).text()
    assert "1 attempt, no death; the newest state on record is new." in text
    assert "Attempt 1: no end on record" in text
    assert "nothing to draw" in text


def test_forty_attempts_and_a_long_name_make_one_page(record: Record) -> None:
    run = record.save_run("n" * 60, {}, "local", {}, START).id
    for n in range(1, 41):
        tell(record, run, n, 20 * n, FailureClass.OOM_CUDA)
    found = Page(made(record))
    assert "40 attempts, 40 deaths (oom_cuda x40)" in found.text()
    assert found.text("h1") == "n" * 60
    assert sum(attrs.get("href") == "#attempts" for attrs in found.all("a")) == 40


def test_only_the_time_differs_between_two_reports(record: Record, run: int) -> None:
    one, two = made(record), made(record, now=NOW + timedelta(hours=1))
    assert one == made(record)
    assert one.replace("2026-11-30 07:00:00", "2026-11-30 08:00:00") == two
