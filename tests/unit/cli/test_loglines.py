"""Lines of a log: which are shown, in which form, and from which time on."""

from __future__ import annotations

import io
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from orchestrator.cli.loglines import LineFilter, LogPrinter, Tail, since_fields, since_remark
from orchestrator.errors import ConfigError, Exit

NOW = datetime(2026, 11, 29, 19, 30, tzinfo=timezone.utc)


def printed(*pieces: bytes, grep: str | None = None, rank: int | None = None, **how: bool) -> bytes:
    kept = io.BytesIO()
    out = io.TextIOWrapper(kept, encoding="utf-8")
    printer = LogPrinter(LineFilter.of(grep, rank), out, **{"raw": False, "colour": False, **how})
    for piece in pieces:
        printer.write(piece)
    printer.finish()
    out.flush()
    return kept.getvalue()


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"one\ntwo\nthr", b"ee\n"], b"one\ntwo\nthree\n"),
        ([b"one\ntwo"], b"one\ntwo\n"),
        ([b"1%\r50%\r100%\nnext\r\n"], b"100%\nnext\n"),
        ([b"\xff\x1b]0;t\x07ok\n"], "\ufffdok\n".encode()),
        ([b""], b""),
    ],
)
def test_a_log_is_written_in_whole_clean_lines(pieces, shown):
    assert printed(*pieces) == shown


def test_a_line_that_never_ends_is_not_kept_for_ever():
    assert len(printed(*[b"x" * (1 << 19)] * 4)) < 10_000


def test_a_pattern_chooses_lines_whatever_their_colour_and_leaves_that_to_a_terminal():
    log = b"fine\n\x1b[31mRuntime\x1b[1mError\x1b[0m: x\nRuntimeerror\n"
    assert printed(log, grep="RuntimeError") == b"RuntimeError: x\n"
    assert printed(log, grep="RuntimeError", colour=True) == b"\x1b[31mRuntime\x1b[1mError\x1b[0m: x\n"
    assert printed(log, grep="(?i)runtimeerror$") == b"Runtimeerror\n"
    assert printed(log, grep="^nothing") == b""


def test_a_line_cut_by_the_pieces_is_matched_as_one():
    assert printed(b"a Key", b"Error b\nKey\nEr", b"ror\n", grep="KeyError") == b"a KeyError b\n"


def test_raw_lines_are_chosen_too_and_keep_their_bytes():
    log = b"\x1b]0;t\x07one\r\ntwo \xff\n"
    assert printed(log, raw=True) == log
    assert printed(log, raw=True, grep="one") == b"\x1b]0;t\x07one\r\n"


def test_a_rank_chooses_the_lines_that_a_launcher_marked():
    log = b"[rank3]: warning: a\n[default1]:b\n3: of srun\nplain 3\n[rank13]: c\n"
    assert printed(log, rank=3) == b"[rank3]: warning: a\n3: of srun\n"
    assert printed(log, rank=1) == b"[default1]:b\n"
    assert printed(log, rank=3, grep="warning") == b"[rank3]: warning: a\n"


def test_a_log_without_ranks_says_so_and_one_with_others_is_simply_quiet():
    chosen = LineFilter.of(None, 3)
    assert chosen.remark() is None  # nothing was there at all
    assert not chosen.keeps("step 1/9 loss 2.0")
    assert "no line here is marked with a rank" in (chosen.remark() or "")
    assert not chosen.keeps("[rank2]: x")
    assert chosen.remark() == "no line matches"
    assert chosen.keeps("[rank3]: x")
    assert chosen.remark() is None
    chosen = LineFilter.of("Error", None)
    assert not chosen.keeps("step 1/9 loss 2.0")
    assert chosen.remark() == "no line matches"


@pytest.mark.parametrize("grep", ["(", "a{9999}", r"(?=x)", r"(a)\1"])
def test_what_is_no_pattern_in_linear_time_is_a_usage_error_that_shows_it(grep):
    with pytest.raises(ConfigError) as error:
        LineFilter.of(grep, None)
    assert error.value.exit_code == Exit.USAGE
    assert error.value.message.startswith(f"--grep: {grep!r}: ")


def since(text: str) -> Any:
    fields = since_fields(text, NOW)
    return (
        fields["since_ago_s"]
        if "since_ago_s" in fields
        else datetime.fromtimestamp(fields["since"], NOW.tzinfo)
    )


@pytest.mark.parametrize(
    ("zone", "text", "meant"),
    [
        ("UTC", "10m", 600),
        ("UTC", "1h30m", 5400),
        ("UTC", "19:00", NOW - timedelta(minutes=30)),
        ("UTC", "9:05", NOW.replace(hour=9, minute=5)),
        ("UTC", "19:29:58", NOW - timedelta(seconds=2)),
        ("UTC", "23:00", NOW - timedelta(hours=20, minutes=30)),  # of yesterday: it is not yet 23:00
        ("UTC", "2026-11-28", NOW - timedelta(hours=43, minutes=30)),
        ("UTC", "2026-11-29T19:00", NOW - timedelta(minutes=30)),
        ("UTC", "2026-11-29 19:00:30", NOW - timedelta(seconds=29 * 60 + 30)),
        ("UTC", "2026-11-29T20:00+01:00", NOW - timedelta(minutes=30)),
        ("Asia/Tokyo", "2026-11-29T19:00Z", NOW - timedelta(minutes=30)),
        ("Asia/Tokyo", "2026-11-30T04:00", NOW - timedelta(minutes=30)),
        ("Asia/Tokyo", "04:00", NOW - timedelta(minutes=30)),
    ],
)
def test_a_time_is_meant_as_a_person_writes_it(zone, text, meant, monkeypatch):
    import time

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert since(text) == meant
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "yesterday", "10", "25:00", "2026-13-01", "-5m", "\x1b[2J"])
def test_what_is_no_time_is_a_usage_error_that_shows_it(text):
    with pytest.raises(ConfigError, match=r"--since: .* is neither how long ago nor a time") as error:
        since_fields(text, NOW)
    assert "\x1b" not in error.value.message


def test_a_time_to_come_is_refused():
    with pytest.raises(ConfigError, match="is not yet"):
        since_fields("2026-11-29T19:31Z", NOW)


def test_how_the_beginning_was_found_is_said_only_where_it_matters():
    assert since_remark("dates", follows=False) is None
    assert since_remark("start", follows=False) is None
    assert "begins at its start" in (since_remark("none", follows=True) or "")
    assert "nothing was written" in (since_remark("quiet", follows=False) or "")
    assert since_remark("quiet", follows=True) is None


@pytest.mark.parametrize(
    ("text", "tail"),
    [("0", Tail()), ("200", Tail(lines=200)), ("64KiB", Tail(size=65536)), ("2 MiB", Tail(size=2 << 20))],
)
def test_a_tail_is_lines_or_a_size(text, tail):
    assert Tail.of(text) == tail


@pytest.mark.parametrize("text", ["-1", "", "64KB", "1.5", "9" * 5000])
def test_a_tail_that_is_neither_is_told(text):
    with pytest.raises(ConfigError, match="neither a number of lines nor a size"):
        Tail.of(text)
