"""One bare log: what it shows, how sure that is, and what would be done."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cli import app
from orchestrator.errors import Exit
from orchestrator.replay.alone import KINDS
from orchestrator.replay.judge import exit_record, judge_chunks, judge_log
from orchestrator.types.decision import ActKind
from orchestrator.types.failure import FailureClass, RunState

STEPS = b"".join(b"step %d | loss 2.%d | lr 1e-4\n" % (n, 900 - n) for n in range(1, 30))
OOM = b"""Traceback (most recent call last):
  File "/srv/train.py", line 81, in step
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 158.00 MiB. GPU 0 is full.
"""
FX = b"RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function.\n"


def judge(log: bytes, exit_status: int | None = None, width: int | None = None) -> dict[str, Any]:
    found = judge_log(log, exit_status=exit_status, width=width).to_json()
    assert json.loads(json.dumps(found)) == found
    return found


def test_a_crash_names_its_line_and_where_it_stands():
    found = judge(STEPS + OOM, 1)
    assert (found["state"], found["class"], found["role"]) == ("dead", "oom_cuda", "root")
    assert found["evidence"]["line"].startswith("torch.OutOfMemoryError: CUDA out of memory.")
    assert found["evidence"]["offset"] == (STEPS + OOM).index(b"torch.OutOfMemoryError")
    assert found["decision"]["kind"] == "relaunch_with_changes"
    assert found["decision"]["changes"][0]["env"] == "PYTORCH_CUDA_ALLOC_CONF"
    assert found["decision"]["reason"]


@pytest.mark.parametrize("width", [60, 80, 100, 132])
def test_a_sentence_split_by_the_pane_is_read_whole_and_found_where_it_begins(width):
    long = b"    " + b"x" * 200 + b"\n" + FX
    pane = b"\n".join(
        row[i : i + width] for row in long.split(b"\n") for i in range(0, max(len(row), 1), width)
    )
    found = judge(pane, 1, width)
    assert found["class"] == "fx_trace_race"
    assert found["evidence"]["line"] == FX.decode().strip()
    assert found["evidence"]["offset"] == pane.index(b"RuntimeError")


def test_a_pane_that_goes_on_is_healthy_and_nothing_is_done():
    found = judge(STEPS)
    assert (found["state"], found["class"], found["decision"]["kind"]) == ("healthy", "healthy", "none")


def test_lines_that_say_nothing_are_no_death_and_no_certainty():
    found = judge(b"loading the tokenizer\n")
    assert (found["state"], found["decision"]["kind"]) == ("healthy", "none")
    assert found["confidence"] <= 0.3


@pytest.mark.parametrize("log", [b"", b"\n\n", b"\x00\xff\xfe" * 4000, b"\x1b[2J\r\r\r"])
def test_nothing_and_noise_are_answered_calmly(log):
    found = judge(log)
    assert found["decision"]["kind"] == "none"
    assert found["state"] != "dead"
    assert "died" not in found["title"]


def test_an_exit_of_0_is_done_and_an_exit_by_a_signal_is_told_by_name():
    assert judge(STEPS, 0)["class"] == "completed"
    assert judge(STEPS, 0)["state"] == "finished"
    killed = judge(STEPS, 137)
    assert killed["state"] == "dead"
    assert "SIGKILL" in killed["summary"]


def test_a_warning_of_a_finished_run_is_a_prediction():
    found = judge(STEPS + b"W1129 torch._dynamo hit config.recompile_limit (8)\n" + STEPS, 0)
    assert (found["state"], found["class"], found["role"]) == ("finished", "recompile_limit", "prediction")
    assert found["decision"]["kind"] == "none"


@pytest.mark.parametrize(
    ("status", "code", "signal"),
    [(0, 0, None), (1, 1, None), (137, None, 9), (139, None, 11), (255, 255, None), (-9, None, 9)],
)
def test_an_exit_status_is_read_as_the_shell_means_it(status, code, signal):
    record = exit_record(status)
    assert (record.code, record.signal) == (code, signal)


def test_every_act_has_a_word_and_giving_up_is_none_of_one_log():
    assert set(KINDS) == set(ActKind)
    assert "give_up" not in KINDS.values()


@settings(deadline=None)
@given(st.binary(max_size=400), st.none() | st.integers(-64, 300), st.none() | st.integers(20, 100))
def test_any_bytes_get_an_answer(log, status, width):
    found = judge(log, status, width)
    assert found["state"] in {state.value for state in RunState}
    assert found["class"] in {failure.value for failure in FailureClass}
    assert found["decision"]["kind"] in set(KINDS.values())
    assert 0 <= found["confidence"] <= 1


@settings(deadline=None)
@given(st.integers(1, 70))
def test_chunks_do_not_matter(size):
    data = STEPS + OOM
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    assert judge_chunks(chunks, exit_status=1, width=40) == judge_log(data, exit_status=1, width=40)


def test_the_command_prints_one_object(tmp_path, capsys):
    file = tmp_path / "pane.txt"
    file.write_bytes(STEPS + OOM)
    assert app.run(["replay", "--log", str(file), "--exit-status", "1", "--json"]) == Exit.OK
    body = json.loads(capsys.readouterr().out)
    assert body["class"] == "oom_cuda"
    assert set(body) >= {"state", "class", "role", "confidence", "evidence", "also", "decision"}
    assert app.run(["replay", "--log", str(file), "--exit-status", "1"]) == Exit.OK
    assert "env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in capsys.readouterr().out


def test_standard_input_is_a_log_too(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OOM)))
    assert app.run(["replay", "--log", "-", "--exit-status", "1", "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["class"] == "oom_cuda"


def test_what_is_no_log_is_said_plainly(tmp_path, capsys):
    assert app.run(["replay", "--log", str(tmp_path / "none.txt")]) == Exit.NOT_FOUND
    assert "no such file" in capsys.readouterr().err
    assert app.run(["replay", "--log", str(tmp_path), "--json"]) == Exit.USAGE
    assert "a folder" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert app.run(["replay"]) == Exit.USAGE
    assert "give recorded paths, or --log with one file" in capsys.readouterr().err


def test_lines_that_lack_the_beginning_are_not_relaunched_on_and_the_whole_log_is():
    nothing = b"loading shards\nall done here\n"
    cut = judge(nothing, 1, width=80)
    assert (cut["class"], cut["decision"]["kind"]) == ("unknown", "call_a_person")
    assert "read more of the log" in cut["decision"]["reason"]
    assert judge(nothing, 1)["decision"]["kind"] == "relaunch"


def test_a_log_seen_from_its_beginning_is_surer_than_a_pane_of_it():
    assert judge(STEPS + OOM, 1)["confidence"] > judge(STEPS + OOM, 1, width=200)["confidence"]
    inner = OOM.split(b"\n", 1)[1]
    assert judge(inner, 1)["confidence"] <= 0.7


def test_a_token_in_the_line_that_proves_it_is_masked():
    token = "hf_" + "AbCdEfGhIj" * 3
    found = judge(f"ValueError: cannot use {token}\n".encode(), 1)
    assert token not in json.dumps(found)
    assert found["evidence"]["line"].startswith("ValueError: cannot use hf_")


def test_an_exception_that_no_rule_knows_calls_a_person_even_after_steps():
    log = STEPS + b'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: seven\n'
    assert (judge(log, 1)["class"], judge(log, 1)["decision"]["kind"]) == (
        "python_exception",
        "call_a_person",
    )


def test_a_loss_that_is_lost_in_a_living_pane_calls_and_is_no_relaunch():
    log = STEPS + b"".join(b"step %d | loss nan | lr 1e-4\n" % n for n in range(30, 40))
    found = judge(log)
    assert (found["class"], found["decision"]["kind"]) == ("nan_loss", "call_a_person")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("root@192.0.2.10: Permission denied (publickey,password).", "call_a_person"),
        ("Host key verification failed.", "call_a_person"),
        ("Configuration file 'nodes/pve/lxc/101.conf' does not exist", "call_a_person"),
        ("CT is locked (backup)", "wait"),
        ("client_loop: send disconnect: Broken pipe", "wait"),
        ("no server running on /tmp/tmux-0/default", "wait"),
    ],
)
def test_a_way_that_is_shut_calls_and_one_that_may_open_waits_and_neither_is_a_death(line, kind):
    found = judge(line.encode() + b"\n", 255, 80)
    assert (found["state"], found["decision"]["kind"]) == ("blind", kind)


@pytest.mark.parametrize(("frame", "kind"), [("dispatch_trace", "call_a_person"), ("step", None)])
def test_a_trace_in_the_very_thread_of_the_call_is_no_race_and_not_relaunched(frame: str, kind: str | None):
    frames = f'Traceback (most recent call last):\n  File "/run/x.py", line 4, in {frame}\n    f()\n'
    error = (
        "RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function.\n"
    )
    found = judge(STEPS + (frames + error).encode(), 1)
    assert found["class"] == "fx_trace_race"
    assert (found["decision"]["kind"] == "call_a_person") is (kind is not None)
