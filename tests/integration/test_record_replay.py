"""A real run is recorded, and the recording tells the same story again."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import Exit
from tests.integration.local import PLAYBOOK, Local, local_runs, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration
TOKEN = "hf_" + "AbCdEfGhIj" * 3
PASSWORD = "correct-horse-battery-staple"


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    with local_runs(tmp_path) as runs:
        yield runs


def test_a_run_that_crashed_and_was_brought_back_is_told_again(local):
    local.begin_standin("b32", "--steps", "30", "--crash-at", "12", "--crash-attempts", "1", "--fx-text")
    watch = local.watch("b32")
    assert watch.end() == Exit.OK
    body = local.json("record", "b32", "-o", "b32.tar.gz")
    assert body["unreached"] is None
    assert body["bytes"] < 100_000
    told = local.json("replay", "b32.tar.gz")["replays"][0]["told"]
    live = [event["detail"] for event in watch.events() if event["kind"] == "diagnosis"]
    again = [each for each in told if each["kind"] == "diagnosis"]
    dead = next(each for each in again if each["diagnosis"]["state"] == "dead")
    seen = next(detail for detail in live if detail["state"] == "dead")
    assert dead["diagnosis"]["class"] == seen["failure"] == "fx_trace_race"
    assert dead["evidence"][0]["offset"] == seen["evidence"][0]["offset"]
    assert dead["diagnosis"]["fingerprint"] == seen["fingerprint"]
    assert [each["decision"]["kind"] for each in told if each["kind"] == "decision"] == [
        "relaunch_with_changes",
        "none",
    ]
    assert again[-1]["diagnosis"]["class"] == "completed"
    assert again[-1]["attempt"] == 2


def test_what_attempts_have_in_common_is_told_as_the_watch_told_it(local):
    local.playbook.write_text(f"{PLAYBOOK}crash_loop: {{deaths: 2, within: 30m}}\n")
    local.begin_standin("b32", "--steps", "30", "--crash-at", "12", "--fx-text")
    watch = local.watch("b32")
    assert watch.end() == Exit.NEEDS_PERSON
    live = [event for event in watch.events() if event["kind"] == "pattern"]
    assert [(each["attempt"], each["detail"]["failure"]) for each in live] == [(2, "crash_loop")]
    local.json("record", "b32", "-o", "b32")
    assert json.loads((local.home / "b32" / "recording.json").read_text())["checkpoint_step"] == 10
    told = local.json("replay", "b32", "--playbook", str(local.playbook))["replays"][0]["told"]
    again = [each for each in told if each["kind"] == "pattern"]
    assert [(each["attempt"], each["pattern"]["class"]) for each in again] == [(2, "crash_loop")]
    assert again[0]["pattern"]["informs_only"] is True
    assert again[0]["text"] == live[0]["text"]
    proof = [each["text"] for each in live[0]["detail"]["evidence"]]
    assert [each["line"] for each in again[0]["evidence"]] == proof


def test_secrets_do_not_travel_and_offsets_stay(local, tmp_path):
    local.env["MY_PASSWORD"] = PASSWORD
    # A secret in a command line is refused, so the program puts the token together itself.
    token = "hf_$(printf 'AbCdEfGhIj%.0s' 1 2 3)"
    code = f"echo head; echo token {token} and $MY_PASSWORD; seq 200000; echo 'KeyError: 7' >&2; exit 3"
    local.launch(
        "--run", "r", "--playbook", str(local.playbook), "--env", "MY_PASSWORD", "--", "sh", "-c", code
    )
    wait_until(lambda: (local.state / "runs" / "r" / "attempts" / "1" / "exit.json").exists())
    folder = tmp_path / "out"
    assert "attempt" in local.run("record", "r", "-o", str(folder)).stdout
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert PASSWORD.encode() not in kept
    assert TOKEN.encode() not in kept
    log = (local.state / "runs" / "r" / "attempts" / "1" / "log").read_bytes()
    assert TOKEN.encode() in log
    rows = json.loads((folder / "attempts" / "1" / "log.json").read_text())
    data, place = (folder / "attempts" / "1" / "log").read_bytes(), 0
    assert rows["size"] == len(log)
    for row in rows["pieces"]:
        there, here = log[row["at"] : row["at"] + row["bytes"]], data[place : place + row["bytes"]]
        assert len(there) == len(here)
        assert sum(one != two for one, two in zip(there, here, strict=True)) <= len(TOKEN) + len(PASSWORD)
        place += row["bytes"]
    assert place == len(data) < len(log)
    local.run("record", "r", "-o", str(folder), code=Exit.USAGE)
    local.run("record", "r", "-o", "whole.tar.gz", "--whole")
    with tarfile.open(tmp_path / "whole.tar.gz") as archive:
        assert archive.getmember("whole/attempts/1/log").size == len(log)


@pytest.mark.slow
def test_a_run_that_is_gone_from_its_container_leaves_what_the_record_knows(local):
    local.begin_standin("b32", "--steps", "4")
    assert local.watch("b32").end() == Exit.OK
    runs = local.state / "runs"
    (runs / "b32").rename(runs / ".away")
    done = local.run("record", "b32", "-o", "b32", code=None)
    (runs / ".away").rename(runs / "b32")
    assert done.returncode == Exit.OK
    assert "this is what the record knows" in done.stderr
    told = local.json("replay", "b32")["replays"][0]
    assert told["attempts"] == 1
