"""A log that fills the disk is told in time and once; a burst, a pause and a big disk are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.classify.growth import (
    HORIZON_S,
    MAX_SAMPLES,
    Forecast,
    LogGrowth,
    Sample,
    average,
    in_bytes,
)

GB = 10**9


def watch(
    growth: LogGrowth, rate, *, free: float, seconds: int, every: int = 30, begin: int = 0
) -> list[tuple[int, Forecast]]:
    """Let a log grow by `rate(second)` bytes a second; the news with their times."""
    told, size, left = [], float(sum(rate(s) for s in range(begin))), free
    for second in range(begin, begin + seconds):
        size, left = size + rate(second), left - rate(second)
        if second % every == 0:
            growth.add(Sample(float(second), int(size), int(max(left, 0))))
            news = growth.news()
            if news is not None:
                told.append((second, news))
    return told


@pytest.mark.parametrize(
    ("per_hour", "free", "within_s"),
    [
        (1.2 * GB, 3.6 * GB, 700),
        (40 * GB, 20 * GB, 180),
        (600 * GB, 50 * GB, 120),
        (0.05 * GB, 0.1 * GB, 700),
    ],
)
def test_a_log_that_fills_the_disk_is_told_once_and_long_before(per_hour, free, within_s):
    rate = per_hour / 3600
    told = watch(LogGrowth(), lambda _: rate, free=free, seconds=int(free / rate * 0.9))
    assert len(told) == 1
    second, forecast = told[0]
    assert second <= within_s
    assert forecast.full_in_s == pytest.approx(free / rate - second, rel=0.05)


def test_what_is_told_says_how_fast_how_much_and_when():
    growth = LogGrowth()
    ((_, forecast),) = watch(growth, lambda _: 1.2 * GB / 3600, free=3.8 * GB, seconds=3600)
    assert forecast.summary.startswith(
        "the log grows 1.2 GB/h, and 3.6 GB are free: the disk is full in about 3h"
    )
    assert growth.is_told


QUIET = {
    "a burst at the start": (lambda s: 50e6 if s < 60 else 1e3, 40 * GB),
    "a burst now and then": (lambda s: 20e6 if s % 3600 < 30 else 2e3, 100 * GB),
    "an ordinary log": (lambda s: 2e3, 10 * GB),
    "a fast log on a big disk": (lambda s: 1.2 * GB / 3600, 2000 * GB),
    "a log that stands still": (lambda s: 0, 1000),
    "a fast log that has just begun and stops": (lambda s: 10e6 if s < 100 else 0, 70 * GB),
}


@pytest.mark.parametrize("name", list(QUIET))
def test_what_is_no_danger_is_not_told(name):
    rate, free = QUIET[name]
    assert watch(LogGrowth(), rate, free=free, seconds=3 * 3600) == []


def test_growth_that_wavers_about_the_limit_is_told_once():
    free = 7 * GB
    told = watch(
        LogGrowth(), lambda s: free / HORIZON_S * (1.3 if s // 1200 % 2 else 0.9), free=free, seconds=14_000
    )
    assert len(told) == 1


def test_growth_that_ended_and_comes_again_is_told_again():
    told = watch(LogGrowth(), lambda s: 3e6 if s < 1500 or s > 8000 else 0, free=60 * GB, seconds=12_000)
    assert [second // 8000 for second, _ in told] == [0, 1]


def test_a_new_log_begins_anew():
    growth = LogGrowth()
    growth.add(Sample(0.0, 10 * GB, 5 * GB))
    growth.add(Sample(30.0, 1000, 5 * GB))
    assert growth.forecast() is None
    watch(growth, lambda _: 0, free=5 * GB, seconds=600, begin=31)
    assert growth.forecast() is None


def test_what_grew_while_nobody_watched_has_no_rate():
    growth = LogGrowth()
    for at in (0, 30, 60):
        growth.add(Sample(float(at), at, 10 * GB))
    growth.forget()
    for at in (4000, 4030, 4060, 4090):
        growth.add(Sample(float(at), 9 * GB + at, GB))
    found = growth.forecast()
    assert found is None or found.bytes_per_s < 10


def test_one_look_takes_the_whole_time_and_says_nothing_of_a_young_attempt():
    assert average(2 * GB, 3600.0, 4 * GB) is not None
    assert average(2 * GB, 300.0, 4 * GB) is None
    assert average(2 * GB, 3600.0, 4000 * GB) is None
    assert average(0, 3600.0, GB) is None


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 10**15), st.integers(0, 10**15)), max_size=400))
def test_any_sizes_in_any_order_give_a_number_or_nothing(rows):
    growth = LogGrowth()
    for at, size, free in rows:
        growth.add(Sample(at, size, free))
        found = growth.forecast()
        assert found is None or (found.full_in_s >= 0 and found.summary)
        growth.news()
    assert len(growth._samples) <= MAX_SAMPLES


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1234, "1.2 kB"), (12.4e9, "12 GB"), (640e6, "640 MB"), (3.2e12, "3.2 TB")],
)
def test_bytes_for_people(count, text):
    assert in_bytes(count) == text


def test_a_clock_that_is_set_back_begins_the_watch_anew_and_hides_no_growth():
    growth = LogGrowth()
    for second in range(0, 300, 30):
        growth.add(Sample(7200.0 + second, second * 1000, GB))
    size = 300_000
    told = []
    for second in range(0, 600, 30):  # the clock was set back by two hours
        size += 30 * GB // 3600
        growth.add(Sample(float(second), size, GB))
        told += [news] if (news := growth.news()) is not None else []
    assert len(told) == 1
    assert told[0].bytes_per_s == pytest.approx(GB / 3600, rel=0.2)
