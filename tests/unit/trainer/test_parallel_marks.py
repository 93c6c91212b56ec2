"""Lines of several ranks in one log, and what may be the echo of another rank's death."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import DataInvalid
from trainer.parallel.death import Failure, Process, is_communication, silent_failure, write_error
from trainer.parallel.marks import MAX_LINE, Marker


@given(st.lists(st.binary(max_size=30)))
def test_however_it_is_cut_each_line_is_marked_once_and_nothing_is_lost(parts):
    marker = Marker(3)
    got = b"".join(marker.feed(part) for part in parts) + marker.feed(b"", last=True)
    whole = b"".join(parts)
    expected = whole.split(b"\n") if whole else []
    if expected and not expected[-1]:
        expected.pop()
    assert got == b"".join(
        (b"" if line.startswith(b"[rank3]:") else b"[rank3]: ") + line + b"\n" for line in expected
    )


def test_the_leaders_lines_are_left_as_they_are():
    assert Marker(0).feed(b"step 1\n[rank0]: x\n") == b"step 1\n[rank0]: x\n"


def test_torchs_own_mark_is_not_repeated():
    assert Marker(3).feed(b"[rank3]: Traceback\n x\n") == b"[rank3]: Traceback\n[rank3]:  x\n"


def test_a_line_without_an_end_is_held_but_not_for_ever():
    marker = Marker(1)
    assert marker.feed(b"half") == b""
    assert marker.feed(b"x" * MAX_LINE).startswith(b"[rank1]: halfx")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:33117"),
        RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited"),
        ConnectionResetError("Connection reset by peer"),
    ],
)
def test_a_broken_connection_may_be_an_echo(error):
    assert is_communication(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("gloo"),
        RuntimeError("CUDA out of memory"),
        DataInvalid("no socket"),
        OSError(28, "No space"),
    ],
)
def test_any_other_error_is_a_ranks_own(error):
    assert not is_communication(error)


def test_a_silent_death_is_written_once_in_the_form_of_last_words(tmp_path):
    path = tmp_path / "error.json"
    first = silent_failure(3, "target", "process 7: killed by SIGKILL")
    assert write_error(path, first, {"phase": "train", "step": 12})
    assert not write_error(path, silent_failure(1, "drafter", "later"), {})
    value = json.loads(path.read_text())
    assert list(value) == [
        *("schema", "exception", "message", "traceback", "rank", "phase", "step", "kind", "at"),
    ]
    assert (value["rank"], value["phase"], value["step"]) == (3, "train", 12)
    assert [path.name for path in tmp_path.iterdir()] == ["error.json"]


def test_a_failure_survives_the_store():
    failure = silent_failure(3, "target", "killed")
    assert Failure.load(failure.dump()) == failure


def test_this_process_is_not_gone_and_one_that_began_at_another_time_is():
    own = Process.own()
    assert not own.is_gone()
    assert Process(own.space, own.pid, "1").is_gone()
