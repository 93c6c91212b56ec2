"""`logs --local`: the copy on this machine, what is missing of it said, nothing connected to."""

from __future__ import annotations

import os
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from orchestrator.cli import app
from orchestrator.cli.context import SETTINGS
from orchestrator.cli.mirrored import copies_of
from orchestrator.cli.reading import last_lines
from orchestrator.errors import BlindError, Exit
from orchestrator.mirror import RunKey, layout, remove
from orchestrator.mirror.writing import AttemptWriter
from orchestrator.places import mirror_path
from orchestrator.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Logs = Callable[..., tuple[int, str, str]]

NOW = datetime.now(timezone.utc)
AWAY = {"host": {"name": "pve", "address": "127.0.0.1", "port": 1, "user": "root"}, "ct": 200}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the logs of run `b32` are kept, whose host cannot be reached."""
    path = tmp_path / "record.sqlite3"
    monkeypatch.setattr(SETTINGS, "record", path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with Record.open(path) as record:
        row = record.save_run("b32", AWAY, "pve/200", {}, NOW)
        for n in (1, 2, 3):
            record.save_attempt(row.id, n)
    key = RunKey.of(row)
    return layout.make_folder(mirror_path(path), key)


@pytest.fixture
def logs(folder: Path, capsys: pytest.CaptureFixture[str]) -> Logs:
    def run(*words: str, local: bool = True) -> tuple[int, str, str]:
        record = ["--record", str(SETTINGS.record)]
        code = app.run([*record, "logs", "b32", *(["--local"] if local else []), *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def keep(folder: Path, attempt: int, data: bytes, *, offset: int = 0, ago_s: float = 600.0) -> AttemptWriter:
    writer = AttemptWriter(folder, attempt)
    writer.add(offset, data, time.time() - ago_s)
    return writer


def test_attempts_lines_and_times_are_chosen_as_from_the_container(folder, logs):
    keep(folder, 2, b"old\n[rank1]: Boom\n[rank0]: fine\n").end(time.time())
    writer = keep(folder, 3, b"first\n", ago_s=7200)
    writer.add(6, b"\x1b[31msecond\x1b[0m\n", time.time())
    code, out, err = logs()
    assert (code, out) == (0, "first\nsecond\n")
    assert err.startswith("dflashctl: from the mirror: attempt 3, as of ")
    assert logs("--since", "10m")[1] == "second\n"
    assert logs("--grep", "f.*t")[1] == "first\n"
    assert logs("--raw")[1] == "first\n\x1b[31msecond\x1b[0m\n"
    code, out, err = logs("--previous", "--rank", "1")
    assert (code, out) == (0, "[rank1]: Boom\n")
    assert "attempt 2, as of 10 min ago; the attempt has ended" in err
    assert logs("--attempt", "2", "--tail", "0")[1].startswith("old\n")


def test_only_so_much_from_the_end(folder, logs):
    keep(folder, 3, (b"x" * 1023 + b"\n") * 100)
    assert len(logs("--tail", "2KiB")[1]) == 2048
    assert len(logs()[1]) == 64 << 10


def test_the_last_lines_are_chosen_as_the_tool_tail_does(folder, logs, monkeypatch):
    monkeypatch.setattr("orchestrator.cli.locallogs.BLOCK_BYTES", 7)
    keep(folder, 3, b"".join(b"line %d\n" % number for number in range(50)) + b"no end")
    assert logs("-n", "1")[1] == "no end\n"
    assert logs("--tail", "3")[1] == "line 48\nline 49\nno end\n"
    assert logs("-n", "3", "--grep", "48")[1] == "line 48\n"
    assert len(logs("-n", "99")[1].splitlines()) == len(logs("-n", "0")[1].splitlines()) == 51


def test_what_is_missing_is_said_where_it_is_missing(folder, logs):
    keep(folder, 3, b"first\ncut he")
    keep(folder, 3, b"re\nlast\n", offset=5000)
    _, out, err = logs("--tail", "0")
    assert out == "first\ncut he\nre\nlast\n"
    assert "bytes 12 to 5000 are missing here: no watch saw them" in err


def test_what_the_quota_took_is_told_with_its_date_and_size(folder, logs):
    keep(folder, 2, b"x" * 3_000_000)
    keep(folder, 3, b"kept\n")
    remove(folder, 2, "the quota of 2.0 GiB", NOW)
    code, out, err = logs("--attempt", "2")
    assert (code, out) == (Exit.NOT_FOUND, "")
    day = NOW.astimezone().strftime("%Y-%m-%d %H:%M")
    assert f"attempt 2: the copy was removed on {day} by the quota of 2.0 GiB (" in err


def test_an_attempt_that_is_not_kept_is_told_and_not_silently_another(folder, logs):
    assert logs()[0] == Exit.NOT_FOUND
    assert "no log of it is kept here; `dflashctl watch` keeps one" in logs()[2]
    keep(folder, 1, b"one\n")
    code, out, err = logs()
    assert (code, out) == (0, "one\n")
    assert "attempt 3 is not in the mirror; this is attempt 1" in err
    code, _, err = logs("--attempt", "3")
    assert code == Exit.NOT_FOUND
    assert "attempt 3 is not in the mirror (there are: 1)" in err
    assert logs("--previous")[0] == Exit.NOT_FOUND


def test_a_log_that_was_emptied_says_where_its_former_bytes_are(folder, logs):
    writer = keep(folder, 3, b"before\n")
    writer.begin_anew(time.time())
    writer.add(0, b"after\n", time.time())
    _, out, err = logs()
    assert out == "after\n"
    assert f"the 7 B before that: zcat {folder}/attempt-3.emptied-1.*.gz" in err


def test_a_host_that_cannot_be_reached_is_told_with_the_copy_that_there_is(folder, logs):
    code, out, err = logs(local=False)
    assert (code, out) == (Exit.UNREACHABLE, "")
    assert "--local" not in err
    keep(folder, 3, b"kept\n")
    code, out, err = logs(local=False)
    assert (code, out) == (Exit.UNREACHABLE, "")
    assert "a copy is kept here, as of 10 min ago: `dflashctl logs b32 --local` reads it" in err
    assert "connection refused" in err


def test_following_shows_what_a_watch_writes_and_says_when_none_does(folder, logs, monkeypatch):
    writer = keep(folder, 3, b"one\n")
    lock = layout.take_lock(folder)
    assert lock is not None
    steps = iter(
        [
            lambda: writer.add(4, b"two\n", time.time()),
            lambda: writer.begin_anew(time.time()),
            lambda: writer.add(0, b"anew\n", time.time()),
            lambda: os.close(lock),
            lambda: None,
        ]
    )

    def sleep(_: float) -> None:
        try:
            next(steps)()
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(SETTINGS.clock, "sleep", sleep)
    code, out, err = logs("-f")
    assert (code, out) == (Exit.INTERRUPTED, "one\ntwo\nanew\n")
    assert "the log was emptied; this is its new beginning" in err
    assert err.count("no watch writes the mirror now") == 1


def test_prune_takes_the_copies_of_all_but_the_newest_attempts_and_tells_their_size(folder, logs):
    for attempt in (1, 2, 3):
        keep(folder, attempt, b"x" * 5000).end(time.time())
    with Record.open(SETTINGS.record) as record:
        (row,) = record.runs()
        copies = copies_of(record, row, keep=1)
        assert copies.text == f"{folder} (the copy here of attempt 1, 2's log)"
        size = copies.size
        assert copies.remove() == size > 0
        assert (copies.size, copies.remove()) == (0, 0)
        assert logs("--attempt", "3")[0] == 0
        assert "removed on" in logs("--attempt", "2")[2]
        assert copies_of(record, row).remove() > 0
        assert copies_of(record, row).remove() == 0
    assert not folder.exists()


def test_the_view_shows_the_copy_and_says_so_where_the_container_cannot_be_asked(folder):
    with Record.open(SETTINGS.record) as record:
        (row,) = record.runs()
        with pytest.raises(BlindError):
            last_lines(record, row)
        keep(folder, 2, b"first\nsecond\n").end(time.time())
        lines = last_lines(record, row)
    assert lines[0].startswith("(its log cannot be read now: ")
    assert lines[1].startswith("(from the copy on this machine: attempt 2, as of 10 min ago)")
    assert lines[2:] == ["first", "second"]


def test_a_removal_where_the_host_is_gone_names_what_needs_no_host(folder, capsys):
    code = app.run(["--record", str(SETTINGS.record), "rm", "b32", "--yes"])
    assert code == Exit.UNREACHABLE
    assert "connection refused" in (err := capsys.readouterr().err)
    assert "`dflashctl rm b32 --forget` removes the entry here" in err


def test_a_stop_says_at_once_what_it_waits_for_where_there_is_no_terminal(folder, capsys):
    assert app.run(["--record", str(SETTINGS.record), "stop", "b32"]) == Exit.UNREACHABLE
    assert capsys.readouterr().err.startswith("stopping b32, up to 30s\n")
