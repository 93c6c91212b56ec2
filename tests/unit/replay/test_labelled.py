"""Labelled logs: what was right, what was taken for what, and what would be relaunched against its label."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import app
from orchestrator.errors import ConfigError, Exit, NotFound
from orchestrator.replay.judge import judge_log, shipped_playbook
from orchestrator.replay.labels import Label, read_labels
from orchestrator.replay.score import Answer, score

OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
STEP = b"step 12 | loss 2.41 | lr 1e-4\n"
FX = b"RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function.\n"


def label(failure: str, **fields: Any) -> Label:
    return Label.model_validate({"id": "1", "file": "1.txt", "class": failure, **fields})


def answer(log: bytes, failure: str, **fields: Any) -> Answer:
    made = label(failure, **fields)
    return Answer(label=made, found=judge_log(log, exit_status=made.exit_status, width=made.width))


def counts(*answers: Answer) -> dict[str, Any]:
    return score(answers, shipped_playbook())


def test_right_answers_count_by_class_and_wrong_ones_are_told_with_what_was_said():
    found = counts(
        answer(OOM, "oom_cuda", exit_status=1),
        answer(OOM, "oom_host", exit_status=1),
        answer(STEP, "healthy"),
        answer(FX, "fx_trace_race", exit_status=1, ambiguous=True),
    )
    assert (found["cases"], found["right"]) == (4, 3)
    assert (found["unambiguous"], found["unambiguous_right"]) == (3, 2)
    assert found["classes"]["oom_cuda"] == {"cases": 1, "precision": 0.5, "recall": 1.0}
    assert found["classes"]["oom_host"] == {"cases": 1, "precision": None, "recall": 0.0}
    assert found["confusion"] == [{"label": "oom_host", "said": "oom_cuda", "count": 1}]
    assert [case["label"] for case in found["wrong"]] == ["oom_host"]
    assert (found["well"], found["well_and_silent"]) == (1, 1)


def test_an_answer_that_the_label_accepts_is_right_and_costs_no_class_its_precision():
    found = counts(answer(OOM, "oom_fragmentation", also=["oom_cuda"], exit_status=1))
    assert found["right"] == 1
    assert found["classes"] == {"oom_fragmentation": {"cases": 1, "precision": 1.0, "recall": 1.0}}


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("[rank0]: torch.OutOfMemoryError: CUDA out of \nmemory.", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. And so on.", True),
        ("torch.OutOfMemoryError: HIP out of memory.", False),
        (OOM.decode().strip() + " x" * 200, False),
    ],
)
def test_the_line_is_found_whatever_blanks_and_marks_it_has(line, is_found):
    assert answer(OOM, "oom_cuda", exit_status=1, root_cause_line=line).has_evidence is is_found


def test_a_line_that_is_not_to_be_seen_is_not_asked_for():
    found = counts(answer(OOM, "oom_cuda", exit_status=1, root_cause_line="(cut off)"))
    assert found["with_evidence_line"] == 0


def test_a_relaunch_against_the_label_is_told_and_one_that_an_accepted_class_gets_is_not():
    wrong = answer(STEP + b"Killed\n", "auth_error", exit_status=137)
    fine = answer(STEP + b"Killed\n", "auth_error", also=["oom_host"], exit_status=137)
    asked = answer(OOM, "oom_cuda", exit_status=1)
    assert [case["label"] for case in counts(wrong, fine, asked)["relaunched_though_call"]] == ["auth_error"]


def test_a_well_run_that_was_alarmed_about_is_told():
    found = counts(answer(OOM, "healthy", exit_status=1), answer(STEP, "completed"))
    assert [case["said"] for case in found["alarmed"]] == ["oom_cuda"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id": "1", "file": "a.txt", "class": "oom"}', ":2: class: "),
        ('{"id": "1", "class": "oom_cuda"}', ":2: file: Field required"),
        ("not json", ":2: no JSON object"),
        ('{"id": "1", "file": "a", "class": "healthy", "width": 3}', ":2: width: "),
    ],
)
def test_a_wrong_label_is_told_with_its_line_and_value(tmp_path, line, says):
    file = tmp_path / "index.jsonl"
    file.write_text('{"id": "0", "file": "a.txt", "class": "healthy", "torch": null}\n' + line + "\n")
    with pytest.raises(ConfigError) as caught:
        read_labels(file)
    assert says in caught.value.message


def test_no_labels_are_an_error_that_says_which_file(tmp_path):
    with pytest.raises(NotFound, match=r"index\.jsonl: no such file"):
        read_labels(tmp_path / "index.jsonl")
    (tmp_path / "index.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="no label in it"):
        read_labels(tmp_path / "index.jsonl")


def test_the_command_counts_a_folder_and_judges_files(tmp_path, capsys):
    (tmp_path / "a.txt").write_bytes(OOM)
    (tmp_path / "b.txt").write_bytes(STEP)
    rows = [
        {"id": "a", "file": "a.txt", "class": "oom_host", "exit_status": 1, "root_cause_line": "HIP"},
        {"id": "b", "file": "b.txt", "class": "healthy", "width": 80},
    ]
    (tmp_path / "index.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert app.run(["replay", str(tmp_path), str(tmp_path / "b.txt"), "--json"]) == Exit.OK
    folder, file = json.loads(capsys.readouterr().out)["replays"]
    assert (folder["score"]["right"], len(folder["answers"])) == (1, 2)
    assert file["class"] == "healthy"
    assert app.run(["replay", str(tmp_path)]) == Exit.OK
    shown = capsys.readouterr().out
    assert "1 of 2 right (50.0%)" in shown
    assert "oom_host taken for oom_cuda: 1" in shown
    assert "evidence line not found: a.txt" in shown


def test_labels_may_lie_elsewhere_and_are_told_by_name_where_they_do_not(tmp_path, capsys):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.txt").write_bytes(OOM)
    labels = tmp_path / "mine.jsonl"
    labels.write_text('{"id": "a", "file": "a.txt", "class": "oom_cuda", "exit_status": 1}\n')
    words = ["replay", str(tmp_path / "logs"), "--labels"]
    assert app.run([*words, str(labels), "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["replays"][0]["score"]["right"] == 1
    assert app.run([*words, str(tmp_path / "none.jsonl")]) == Exit.NOT_FOUND
    assert "none.jsonl: no such file" in capsys.readouterr().err


def test_what_cannot_be_replayed_is_said_plainly(tmp_path, capsys):
    assert app.run(["replay", str(tmp_path)]) == Exit.NOT_FOUND
    assert app.run(["replay", str(tmp_path), "--log", "x"]) == Exit.USAGE
    assert app.run(["replay", str(tmp_path), "--width", "80"]) == Exit.USAGE
    assert "--width 80 belongs to --log" in capsys.readouterr().err
    (tmp_path / "a.txt").write_bytes(OOM)
    labels = tmp_path / "index.jsonl"
    labels.write_text(json.dumps({"id": "a", "file": "a\0b", "class": "healthy"}) + "\n")
    assert app.run(["replay", str(tmp_path / "a.txt"), "--labels", str(labels)]) == Exit.USAGE
    assert "belongs to a folder of logs" in capsys.readouterr().err
    assert app.run(["replay", str(tmp_path)]) == Exit.USAGE
    assert "cannot be read: embedded null byte" in capsys.readouterr().err


def test_no_answer_shows_a_secret(tmp_path, capsys):
    token = "hf_" + "AbCdEfGhIj" * 3
    log = (
        STEP
        + b"Traceback (most recent call last):\n  File 'a.py', line 1, in f\n"
        + f"KeyError: '{token}'\n".encode()
    )
    (tmp_path / "a.txt").write_bytes(log)
    (tmp_path / "index.jsonl").write_text(
        '{"id": "a", "file": "a.txt", "class": "oom_cuda", "exit_status": 1}\n'
    )
    rec = tmp_path / "rec" / "attempts" / "1"
    rec.mkdir(parents=True)
    (rec / "log").write_bytes(log)
    (rec / "exit.json").write_text(
        '{"schema": 1, "code": 1, "signal": null, "at": "2026-11-29T12:01:00Z", "duration_s": 9}'
    )
    info = '{"schema": 1, "attempt": 1, "started_at": "2026-11-29T12:00:00Z"}'
    (rec / "attempt.json").write_text(info)
    (rec.parents[1] / "recording.json").write_text('{"schema": 1, "run": "b"}')
    for path in (tmp_path, tmp_path / "a.txt", tmp_path / "rec"):
        for flags in ([], ["--json"]):
            assert app.run(["replay", str(path), *flags]) == Exit.OK
            shown = capsys.readouterr().out
            assert "KeyError: 'hf_***" in shown, (path, flags)
            assert token not in shown


CORPUS = os.environ.get("DFLASHCTL_CORPUS")


@pytest.mark.skipif(not CORPUS, reason="DFLASHCTL_CORPUS names no folder of labelled logs")
def test_the_corpus_is_answered_without_a_relaunch_against_a_label():
    folder = Path(CORPUS or "")
    answers = [
        Answer(
            label=each,
            found=judge_log(
                (folder / each.file).read_bytes(), exit_status=each.exit_status, width=each.width
            ),
        )
        for each in read_labels(folder / "index.jsonl")
    ]
    found = counts(*answers)
    assert found["unambiguous_right"] == found["unambiguous"], found["wrong"]
    assert found["well_and_silent"] == found["well"], found["alarmed"]
    assert found["evidence_found"] >= 0.95 * found["with_evidence_line"], found["evidence_missed"]
    assert not found["relaunched_though_call"]
