"""Lines, tails, argvs, and the command string for a login shell."""

import base64
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.connection.pool import backoff
from orchestrator.connection.quoting import command_line
from orchestrator.connection.shell import Lines, Tail, check_argv, summary
from orchestrator.errors import GuestError
from orchestrator.wire import MAX_LINE_BYTES


@given(st.lists(st.binary(max_size=20)))
def test_lines_come_out_as_they_went_in_however_they_were_cut(parts: list[bytes]):
    lines, got = Lines(), []
    for part in parts:
        lines.feed(part)
        while (line := lines.pop()) is not None:
            assert line.endswith(b"\n")
            assert line.count(b"\n") == 1
            got.append(line)
    assert b"".join(got) + lines.rest() == b"".join(parts)


def test_an_endless_line_is_refused_and_the_longest_allowed_is_not():
    lines = Lines()
    lines.feed(b"x" * MAX_LINE_BYTES)
    assert lines.pop() is None
    lines.feed(b"\n")
    assert lines.pop() is not None
    lines.feed(b"x" * (MAX_LINE_BYTES + 1))
    with pytest.raises(GuestError, match="a line of more than"):
        lines.pop()


def test_a_tail_keeps_the_end():
    tail = Tail()
    for number in range(5000):
        tail.feed(f"line {number}\n".encode())
    assert len(tail.data) == Tail.LIMIT_BYTES
    assert tail.text().endswith("line 4999\n")


@pytest.mark.parametrize("argv", [[], [""], ["a", "b\0c"]])
def test_what_no_system_can_run_is_refused(argv: list[str]):
    with pytest.raises(ValueError, match="argv"):
        check_argv(argv)


def test_an_argv_in_a_message_is_one_printable_line():
    assert summary(["a", "\x1b[31m\n", "\udcff"]) == "a \\x1b[31m\\n \\udcff"
    assert len(summary(["x" * 500])) == 100


def test_plain_words_travel_plainly():
    argv = [
        "pct",
        "exec",
        "200",
        "--",
        "env",
        "LC_ALL=C.UTF-8",
        "python3",
        "/var/lib/d/guest/ab.pyz",
        "hello",
    ]
    assert command_line(argv) == " ".join(argv)


@pytest.mark.parametrize(
    "word", ["", "a b", "$x", "~", "=ls", "%1", "a'b", 'a"b', "a\nb", "*", "a!b", "a\\b", "\u00e9", "@x"]
)
def test_a_word_that_some_shell_sees_something_in_travels_packed(word: str):
    line = command_line(["echo", word])
    assert "'" in line
    packed = re.fullmatch(r"""sh -c 'eval "\$\(echo ([A-Za-z0-9+/=]+) \| base64 -d\)"'""", line)
    assert packed is not None
    assert shlex.split(base64.b64decode(packed[1]).decode()) == ["exec", "echo", word]


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), min_size=1, max_size=4))
def test_nothing_but_harmless_characters_reaches_the_login_shell(argv: list[str]):
    line = command_line(["prog", *argv])
    assert re.fullmatch(r"[A-Za-z0-9_./:,+@%= '\"$()|-]*", line)
    assert "\n" not in line
    if "'" not in line:
        assert line.split(" ") == ["prog", *argv]


def test_the_wait_doubles_up_to_its_limit_with_some_jitter():
    waits = [backoff(failures) for failures in range(1, 40)]
    assert 0.8 <= waits[0] <= 1.2
    assert 3.2 <= waits[2] <= 4.8
    assert all(24 <= wait <= 36 for wait in waits[6:])
    assert len(set(waits)) > 30
