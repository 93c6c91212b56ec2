"""The live view: what stays on the screen, and GPUs that fit it."""

from __future__ import annotations

import io
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from orchestrator.classify.growth import Forecast
from orchestrator.clock import SystemClock
from orchestrator.types.failure import Diagnosis, RunState
from orchestrator.types.seen import Blind, Gpu, Present
from orchestrator.view.live import LiveSink, gpus_of
from orchestrator.watch.events import WatchEvent

GIB = 2**30
EIGHT = tuple(
    Gpu(
        index=n,
        utilization_pct=97.0,
        memory_used_bytes=70 * GIB,
        memory_total_bytes=80 * GIB,
        power_w=650.0,
        temperature_c=61.0,
    )
    for n in range(8)
)


def a_run(
    name: str = "a",
    target: str = "pve/200",
    gpus: list[int] | None = None,
    forecast: Forecast | None = None,
) -> Any:
    """As much of a run's watch as is drawn."""
    return SimpleNamespace(
        row=SimpleNamespace(name=name, target_key=target),
        tracker=SimpleNamespace(
            view=None, gpus=Present(EIGHT), spec={"gpus": gpus}, looked_at=None, liveness=None
        ),
        diagnosis=Diagnosis(state=RunState.HEALTHY, failure=None, summary="alive"),
        decision=None,
        notices=SimpleNamespace(forecast=forecast),
    )


def drawn(*runs: Any, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, soft_wrap=True)
    with LiveSink(console, SystemClock()) as live:
        live.attach(SimpleNamespace(runs=runs))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_last_frame_shows_the_end_though_one_was_drawn_a_moment_before():
    run, out = a_run(), io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    with LiveSink(console, SystemClock()) as live:
        live.attach(SimpleNamespace(runs=[run]))
        live.refresh()
        run.diagnosis = Diagnosis(state=RunState.FINISHED, failure=None, summary="finished")
        live.refresh()
        assert "finished" not in out.getvalue(), "not yet due"
    assert "finished" in out.getvalue().rpartition("healthy")[2]


def test_a_log_that_fills_the_disk_stays_in_sight():
    forecast = Forecast(bytes_per_s=1.2e9 / 3600, free_bytes=3_600_000_000, watched_s=600)
    assert any("log +1.2 GB/h, disk full in about 3h" in line for line in drawn(a_run(forecast=forecast)))
    assert not any("disk full" in line for line in drawn(a_run()))


@pytest.mark.parametrize("width", [80, 100])
def test_eight_gpus_are_wrapped_whole_and_leave_room_for_the_echo_of_ctrl_c(width):
    lines = drawn(a_run(), width=width)
    told = [line for line in lines if "GPU" in line]
    for index in range(8):
        assert any(f"GPU{index} 97% 70.0/80GiB 650W 61C" in line for line in told)
    assert max(map(len, told)) <= width - 2


def test_the_gpus_of_a_target_are_told_once_for_all_its_runs():
    text = "\n".join(drawn(a_run("a"), a_run("b", target="pve/201"), a_run("c")))
    frame = text[text.rindex("a pve/200") :]
    assert frame.count("GPU0") == 2


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ([[0, 1]], [0, 1]),
        ([[2], [5, 2]], [2, 5]),
        ([[1], None], list(range(8))),
        ([[]], []),
        ([7], list(range(8))),
    ],
)
def test_only_the_gpus_that_the_runs_name_are_told(named, shown):
    assert [gpu.index for gpu in gpus_of([a_run(gpus=gpus).tracker for gpus in named])] == shown


def test_why_it_is_blind_is_wrapped_and_not_cut():
    run = a_run()
    run.tracker.gpus, run.tracker.liveness = Blind("gone"), Blind(" ".join(f"word{n}" for n in range(30)))
    lines = drawn(run)
    assert any("word29" in line for line in lines)
    assert max(len(line) for line in lines if "word" in line) <= 78


def test_only_what_is_new_is_starting():
    run = a_run()
    assert "a pve/200 no heartbeat" in "\n".join(drawn(run))
    run.diagnosis = None
    assert "a pve/200 starting" in "\n".join(drawn(run))


def told(kind: str, text: str) -> WatchEvent:
    now = datetime.now(timezone.utc)
    return WatchEvent(kind=kind, at=now, run="a", target="pve/200", attempt=1, text=text)


def test_a_flood_of_lines_does_not_draw_the_table_for_each_and_a_death_comes_after_them():
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    with LiveSink(console, SystemClock()) as live:
        live.attach(SimpleNamespace(runs=[a_run()]))
        live.refresh()
        for n in range(1500):
            live.emit(told("log", f"line{n:04d}"))
        live.emit(told("diagnosis", "dead"))
        live.refresh()
        live.emit(told("log", "the last line"))
    text = out.getvalue()
    assert text.count("a pve/200") < 10, "drawn once a batch, not once a line"
    places = [text.index(f"  | line{n:04d}\n") for n in range(1500)]
    assert places == sorted(places)
    assert places[-1] < text.index("diagnosis: dead") < text.index("the last line")


def test_a_line_of_the_log_is_printed_by_the_next_refresh():
    out = io.StringIO()
    with LiveSink(Console(file=out, width=80, force_terminal=True), SystemClock()) as live:
        live.emit(told("log", "step 1"))
        live.refresh()
        assert "  | step 1" in out.getvalue()
