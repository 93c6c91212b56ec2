from __future__ import annotations

import math
import re
import sys
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from orchestrator.errors import ConfigError, NotFound
from orchestrator.plot import chart, plot_run, read_curves, svg_file
from orchestrator.plot.picture import _draw
from orchestrator.plot.scale import robust_limits, thinned, ticks
from orchestrator.record import Record
from orchestrator.types.failure import FailureClass
from orchestrator.types.seen import Gpu

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = datetime(2026, 11, 29, tzinfo=timezone.utc)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    with Record.open(tmp_path / "record.sqlite3") as opened:
        yield opened


def save(record: Record, run: int, n: int, first: int, last: int, failure: FailureClass | None) -> None:
    ended = NOW if failure else None
    record.save_attempt(
        run, n, started_at=NOW, ended_at=ended, failure=failure, first_step=first, last_step=last
    )
    lines = [
        {"step": s, "loss": 5 * math.exp(-s / 150) + 1, "tokens_per_s": 900 + s % 7}
        for s in range(first + 1, last + 1)
    ]
    record.add_metrics(run, n, lines, NOW)


@pytest.fixture
def run(record: Record) -> int:
    run = record.save_run("a $x$ run", {}, "local", {}, NOW).id
    save(record, run, 1, 0, 130, FailureClass.FX_TRACE_RACE)
    save(record, run, 2, 100, 240, FailureClass.OOM_CUDA)
    save(record, run, 3, 200, 380, FailureClass.COMPLETED)
    return run


def test_a_run_becomes_a_png_and_nothing_else(record: Record, run: int, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    out = plot_run(record, run, tmp_path / "new" / "loss.png")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in out.parent.iterdir()] == ["loss.png"]


def test_deaths_and_resumes_are_named(record: Record, run: int) -> None:
    figure = _draw(read_curves(record, run))
    loss, speed = figure.axes
    assert [text.get_text() for text in loss.texts] == ["fx_trace_race", "oom_cuda"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "attempt 1",
        "attempt 2, resumed from step 100",
        "attempt 3, resumed from step 200",
        "death",
        "checkpoint resumed from",
    ]
    assert speed.get_ylabel() == "speed (tokens/s)"


def test_deaths_at_one_place_are_told_as_one(record: Record) -> None:
    run = record.save_run("loop", {}, "local", {}, NOW).id
    for n in range(1, 6):
        save(record, run, n, 0, 100, FailureClass.HANG)
    save(record, run, 6, 0, 400, FailureClass.NAN_LOSS)
    assert [d.label for d in read_curves(record, run).deaths] == [
        "hang x5",
        "nan_loss",
    ]


def test_attempts_that_died_before_a_step_are_counted(record: Record, run: int) -> None:
    assert read_curves(record, run, 1).title == "a $x$ run: loss across 1 attempt"
    for n in (4, 5):
        record.save_attempt(run, n, started_at=NOW, ended_at=NOW, failure=FailureClass.IMPORT_ERROR)
    title = "a $x$ run: loss across 3 attempts (2 more without a logged step)"
    assert read_curves(record, run).title == title


def test_without_metrics_it_says_so(record: Record, tmp_path: Path) -> None:
    run = record.save_run("new", {}, "local", {}, NOW).id
    with pytest.raises(NotFound, match='run "new": no metric was recorded yet'):
        plot_run(record, run, tmp_path / "x.png")
    with pytest.raises(NotFound, match="no such run"):
        plot_run(record, 99, tmp_path / "x.png")


def test_a_place_that_cannot_be_written_is_told(record: Record, run: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="the plot cannot be written"):
        plot_run(record, run, tmp_path / "file" / "x.png")


def test_a_folder_is_not_made_of_a_typing_error(record: Record, run: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory; name another file"):
        plot_run(record, run, tmp_path / "missing" / "x.png")
    assert not (tmp_path / "missing").exists()


def test_without_matplotlib_it_gives_the_command(
    record: Record, run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r'pip install "dflashctl\[plot\]"'):
        plot_run(record, run, tmp_path / "x.png")


SVG = "{http://www.w3.org/2000/svg}"


def words(picture: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_an_svg_names_deaths_and_resumes_and_holds_no_script_or_address(record: Record, run: int) -> None:
    picture = svg_file(read_curves(record, run))
    told = words(picture)
    assert {"fx_trace_race", "oom_cuda", "attempt 2 from step 100", "optimizer step"} <= set(told)
    assert "memory of the fullest GPU (GiB)" not in told  # nothing was read
    tree = ElementTree.fromstring(picture)
    assert len(tree.findall(f"{SVG}path/{SVG}title")) == 2  # a cross a death
    assert not re.search(r"<script|href|style=|url\(", picture)
    assert (tree.findtext(f"{SVG}desc") or "").endswith("fx_trace_race at step 130, oom_cuda at step 240")


def test_a_hostile_name_stays_text_in_an_svg(record: Record) -> None:
    run = record.save_run("<script>x</script> & \x1b[31m", {}, "local", {}, NOW).id
    save(record, run, 1, 0, 50, None)
    picture = svg_file(read_curves(record, run))
    assert "<script" not in picture
    assert "\x1b" not in picture
    assert words(picture)[0].startswith("<script>x</script> & : loss")


def test_the_suffix_says_which_picture_is_written(record: Record, run: int, tmp_path: Path) -> None:
    assert plot_run(record, run, tmp_path / "x.SVG").read_text().startswith("<svg ")


def test_memory_lies_at_the_steps_around_its_reading(record: Record) -> None:
    run = record.save_run("memory", {}, "local", {}, NOW).id
    record.save_attempt(run, 1, started_at=NOW, failure=FailureClass.OOM_CUDA, ended_at=NOW)
    lines = [{"step": n, "loss": 2.0, "at": f"2026-11-29T00:{n:02}:00.000000Z"} for n in range(10, 41, 10)]
    record.add_metrics(run, 1, lines, NOW)
    for minute, sizes in ((5, (90, 90)), (15, (20, 60)), (45, (30, 70)), (46, (80, 70))):
        at = NOW + timedelta(minutes=minute)
        gpus = [Gpu(index=i, memory_used_bytes=size * 2**30) for i, size in enumerate(sizes)]
        record.add_gpus(run, 1, gpus, at)
    curves = read_curves(record, run)
    # Before the first step it is still loading; what came after the last one is told at that.
    assert curves.lines[0].memory == [(15.0, 60.0), (40.0, 80.0)]
    assert [panel.title for panel in curves.panels] == [
        "training loss (nats/token)",
        "memory of the fullest GPU (GiB)",
    ]


def test_the_first_losses_do_not_flatten_the_rest_and_a_note_tells(record: Record) -> None:
    run = record.save_run("long", {}, "local", {}, NOW).id
    losses = [11.0, 9.0, *(2.0 - n / 2000 for n in range(998))]
    record.add_metrics(run, 1, [{"step": n, "loss": x} for n, x in enumerate(losses, 1)], NOW)
    record.save_attempt(run, 1, started_at=NOW)
    curves = read_curves(record, run)
    assert curves.panels[0].high < 3
    assert curves.notes == ["training loss: 2 of 1000 points above 2.43 (up to 11) are not shown"]


@pytest.mark.parametrize(
    "values",
    [[11.0, 2.0, 1.9], [5 * math.exp(-n / 150) + 1 for n in range(400)], [1.0] * 100, list(range(1000))],
)
def test_limits_keep_everything_where_that_is_the_curve(values: list[float]) -> None:
    assert robust_limits(values) == (min(values), max(values))


def test_thinning_keeps_ends_and_spikes() -> None:
    points = [(float(n), 50.0 if n == 4321 else 1.0) for n in range(10_000)]
    kept = thinned(points, 200)
    assert len(kept) <= 204
    assert {points[0], points[-1], points[4321]} <= set(kept)
    assert kept == sorted(kept)
    assert thinned(points[:150], 200) == points[:150]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.9, 5.2, [1, 2, 3, 4, 5]), (0, 98_650, [0, 20_000, 40_000, 60_000, 80_000]), (1.0, 1.0, [1.0])],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 5) == pytest.approx(expected)


@pytest.mark.parametrize("width", [40, 80, 132])
def test_a_terminal_shows_it_in_its_width_without_colour(record: Record, run: int, width: int) -> None:
    lines = chart(read_curves(record, run), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert any("\u2801" <= letter <= "\u28ff" for letter in text)
    rows = [line for line in lines if "\u2502" in line]
    assert sum(line.count("x") for line in rows) == 4  # two deaths, on the loss and on the speed
    assert sum(line.count("o") for line in rows) == 2


def test_a_mark_lies_on_the_line_that_it_marks(record: Record) -> None:
    run = record.save_run("flat", {}, "local", {}, NOW).id
    record.save_attempt(run, 1, ended_at=NOW, failure=FailureClass.HANG)
    record.add_metrics(run, 1, [{"step": n, "loss": 2.0} for n in range(1, 9)], NOW)
    (row,) = [line for line in chart(read_curves(record, run)) if "x" in line and "\u2502" in line]
    assert row.endswith("x")
    assert len(row.split("\u2502")[1].strip()) > 60


def test_a_terminal_without_braille_gets_letters_and_with_colours_no_other_picture(
    record: Record, run: int
) -> None:
    curves = read_curves(record, run)
    assert all(line.isascii() for line in chart(curves, 80, braille=False))
    coloured = "\n".join(chart(curves, 80, coloured=True))
    assert "\x1b[31;1mx\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == "\n".join(chart(curves, 80))


def test_many_attempts_are_drawn_with_few_points(record: Record) -> None:
    run = record.save_run("loop", {}, "local", {}, NOW).id
    for n in range(1, 31):
        save(record, run, n, n * 100, n * 100 + 400, FailureClass.HANG)
    curves = read_curves(record, run)
    assert sum(len(line.steps) for line in curves.lines) < 7_000
    assert len([line for line in chart(curves, 80) if "attempt " in line]) <= 10


def test_a_command_without_metrics_is_told_where_they_would_be(record: Record) -> None:
    new = record.save_run("cmd", {}, "local", {"command": ["sleep", "9"]}, NOW).id
    with pytest.raises(NotFound) as raised:
        read_curves(record, new)
    assert "`metrics.jsonl` in its attempt's directory" in str(raised.value.hint)
