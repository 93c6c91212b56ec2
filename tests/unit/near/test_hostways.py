"""What is run on a host to follow its kernel log, and how its output is read, once, through every cut."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.observe.hostways import Dmesg, Journal, Verdict, judge
from orchestrator.types.seen import HostLine
from tests.builders import NOW

TEXT = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."


def entry(number: int, message: object = TEXT) -> bytes:
    at = int(NOW.timestamp() * 1e6) + number
    body = {"__CURSOR": f"s=1;i={number:x}", "__REALTIME_TIMESTAMP": str(at), "MESSAGE": message}
    return json.dumps(body).encode() + b"\n"


def dmesg(seconds: float, text: str = TEXT, zone: str = "+00:00") -> bytes:
    at = NOW + timedelta(seconds=seconds)
    return f"{at:%Y-%m-%dT%H:%M:%S},{at.microsecond:06d}{zone} {text}\n".encode()


def test_the_journal_is_asked_from_a_time_first_and_from_a_cursor_after_a_cut():
    way = Journal(is_filtered=True)
    first = way.argv(NOW)
    assert first[:5] == ("journalctl", "-k", "-f", "-o", "json")
    assert f"--since=@{NOW.timestamp():.6f}" in first
    assert "--grep" in first
    assert way.read(entry(7)) == HostLine(TEXT, NOW + timedelta(microseconds=7))
    second = way.argv(NOW)
    assert "--after-cursor=s=1;i=7" in second
    assert not any(word.startswith("--since") for word in second), "journalctl takes one of them only"


def test_a_line_that_comes_twice_is_read_once():
    way = Journal(is_filtered=True)
    assert way.read(entry(1)) is not None
    assert way.read(entry(1)) is None
    assert way.read(entry(2)) is not None


def test_a_journal_without_a_filter_of_its_own_is_filtered_here():
    way = Journal(is_filtered=False)
    assert "--grep" not in way.argv(NOW)
    assert way.read(entry(1, "vmbr0: port 2(veth200i0) entered disabled state")) is None
    assert "--after-cursor=s=1;i=1" in way.argv(NOW), "it was read all the same"


@pytest.mark.parametrize("message", [list(TEXT.encode()), [*TEXT.encode(), 0xFF]])
def test_a_message_that_is_no_plain_text_comes_as_bytes(message):
    line = Journal(is_filtered=True).read(entry(1, message))
    assert line is not None
    assert line.text.startswith(TEXT)


@pytest.mark.parametrize(
    "line", [b"-- No entries --\n", b"{}\n", b"\xff\n", b'{"__CURSOR": 1}\n', b"[]\n", b"7\n"]
)
def test_what_is_no_entry_is_passed_over(line):
    assert Journal(is_filtered=True).read(line) is None


@given(st.lists(st.integers(0, 400), max_size=60))
def test_whatever_comes_again_no_line_of_the_journal_is_lost_or_doubled(numbers):
    way = Journal(is_filtered=True)
    read = [line.at for number in numbers if (line := way.read(entry(number))) is not None]
    assert read == [NOW + timedelta(microseconds=n) for n in dict.fromkeys(numbers)]


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(data):
    for way in (Journal(is_filtered=True), Dmesg()):
        way.argv(NOW)
        way.read(data + b"\n")


def test_the_buffer_that_dmesg_prints_again_after_a_cut_is_not_read_again():
    """Its times move by what the clock was corrected meanwhile."""
    way = Dmesg()
    way.argv(NOW)
    assert [way.read(dmesg(s)) is not None for s in (1.0, 9.0)] == [True, True]
    way.argv(NOW)
    assert [way.read(dmesg(s)) is not None for s in (1.3, 9.3)] == [False, False] or way.read(
        dmesg(9.3)
    ) is None
    assert way.read(dmesg(60.0)) is not None, "the same words, later, are news"


def test_lines_from_before_the_attempt_are_not_wanted_of_dmesg():
    way = Dmesg()
    way.argv(NOW)
    assert way.read(dmesg(-1.0)) is None
    assert way.read(dmesg(1.0, "usb 1-1: new device")) is None


def test_dmesg_tells_the_hosts_own_zone():
    way = Dmesg()
    way.argv(NOW)
    line = way.read(dmesg(7200.0, zone="+02:00"))
    assert line is not None
    assert line.at == NOW


@pytest.mark.parametrize(
    ("stderr", "verdict"),
    [
        ("No journal files were opened due to insufficient permissions.\n", Verdict.DENIED),
        ("Hint: You are currently not seeing messages from other users and the system.\n", Verdict.DENIED),
        ("dmesg: read kernel buffer failed: Operation not permitted\n", Verdict.DENIED),
        ("sudo: a password is required\n", Verdict.DENIED),
        ("Sorry, user dev is not allowed to execute '/usr/bin/journalctl' as root on pve.\n", Verdict.DENIED),
        ("No journal files were found.\n", Verdict.MISSING),
        ("env: 'journalctl': No such file or directory\n", Verdict.MISSING),
        ("Compiled without pattern matching support\n", Verdict.OLD),
        ("journalctl: unrecognized option '--grep'\n", Verdict.OLD),
        ("sudo: unable to resolve host pve1: Name or service not known\n", None),
        ("", None),
    ],
)
def test_what_the_tools_say_when_they_cannot(stderr, verdict):
    assert judge(stderr) is verdict
