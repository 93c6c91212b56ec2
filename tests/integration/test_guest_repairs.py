"""What a start repairs first, over the real guest: checkpoints set aside, steps left out."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration import guest_driver as driver

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not driver.HAS_TMUX, reason="no tmux")]

DATA = "5" * 64


@pytest.fixture
def guest(tmp_path):
    yield from driver.lend(tmp_path)


def crashed(guest, *steps: int, data: str | None = DATA) -> None:
    """A run whose attempt 1 died with those complete checkpoints."""
    guest.start("--steps", 9, "--crash-at", 1, "--crash-attempts", 1, "--checkpoint-every", 0)
    guest.exit()
    for step in steps:
        path = guest.dir() / "checkpoints" / f"step-{step}"
        path.mkdir(parents=True)
        if data is not None:
            (path / "state.json").write_text(json.dumps({"schema": 1, "step": step, "data": data}))
        (path / "COMPLETE").touch()


def again(guest, attempt: int = 2, **request: Any):
    return guest.start("--steps", 60, "--checkpoint-every", 0, attempt=attempt, env=None, **request)


def checkpoints(guest) -> list[str]:
    return driver.names(guest.dir() / "checkpoints")


def skips(guest) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (guest.dir() / "skips.jsonl").read_text().splitlines()]


def test_the_newest_checkpoint_is_set_aside_and_the_attempt_goes_on_from_the_one_before(guest):
    crashed(guest, 20, 40)
    started = again(guest, set_aside_step=40)
    assert started["set_aside"].endswith("/checkpoints/rejected-step-40")
    guest.exit(2)
    assert "from step 20" in (guest.dir("r", 2) / "log").read_text()
    assert checkpoints(guest) == ["rejected-step-40", "step-20"]
    assert (guest.dir() / "checkpoints/rejected-step-40/COMPLETE").exists(), "it is kept whole"


def test_the_only_checkpoint_stays_and_no_attempt_begins(guest):
    crashed(guest, 20)
    refused = again(guest, set_aside_step=20)
    assert refused["code"] == "no_checkpoint"
    assert "step-20 is the only complete checkpoint" in refused["message"]
    assert checkpoints(guest) == ["step-20"]
    assert driver.names(guest.dir() / "attempts") == ["1"]
    assert again(guest)["type"] == "started", "the lock was let go"


def test_a_checkpoint_that_is_not_the_newest_is_left_alone(guest):
    crashed(guest, 20, 40, 60)
    assert again(guest, set_aside_step=40)["set_aside"] is None
    assert checkpoints(guest) == ["step-20", "step-40", "step-60"]


def test_half_a_checkpoint_is_none_to_go_back_to(guest):
    crashed(guest, 20, 40)
    (guest.dir() / "checkpoints/step-20/COMPLETE").unlink()
    assert again(guest, set_aside_step=40)["code"] == "no_checkpoint"


def test_an_older_rejected_one_of_the_same_step_is_kept(guest):
    crashed(guest, 20, 40)
    (guest.dir() / "checkpoints/rejected-step-40").mkdir()
    assert again(guest, set_aside_step=40)["set_aside"].endswith("rejected-step-40.2")


def test_of_many_that_go_back_at_once_one_alone_does(guest):
    crashed(guest, 20, 40, 60)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: again(guest, set_aside_step=60), range(4)))
    assert [answer["type"] for answer in answers].count("started") == 1
    assert checkpoints(guest) == ["rejected-step-60", "step-20", "step-40"]


def test_a_step_is_left_out_on_the_data_of_the_newest_checkpoint_and_once(guest):
    crashed(guest, 20, 40)
    (guest.dir() / "skips.jsonl").write_text('{"schema": 1, "step": 7, "data": "other"}\n{"torn')
    assert again(guest, skip_steps=[43])["skipped_steps"] == [43]
    guest.exit(2)
    guest.start("--steps", 1, "--checkpoint-every", 0, attempt=3, env=None, skip_steps=[43, 44])
    lines = (guest.dir() / "skips.jsonl").read_text().splitlines()
    assert lines[:2] == ['{"schema": 1, "step": 7, "data": "other"}', '{"torn']
    assert [(row["step"], row["data"], row["reason"]) for row in map(json.loads, lines[2:])] == [
        (43, DATA, "playbook"),
        (44, DATA, "playbook"),
    ]


@pytest.mark.parametrize("data", [None, "no checkpoint"])
def test_a_step_of_unknown_data_is_not_left_out(guest, data):
    crashed(guest, *([20] if data is None else []), data=None)
    refused = again(guest, skip_steps=[43])
    assert refused["code"] == "no_checkpoint"
    assert not (guest.dir() / "skips.jsonl").exists()
    assert driver.names(guest.dir() / "attempts") == ["1"]


@pytest.mark.parametrize(
    "request_", [{"set_aside_step": "40"}, {"set_aside_step": -1}, {"skip_steps": [1.5]}, {"skip_steps": 4}]
)
def test_what_is_no_step_is_refused(guest, request_):
    crashed(guest, 20, 40)
    assert again(guest, **request_)["code"] == "bad_request"
    assert checkpoints(guest) == ["step-20", "step-40"]


def test_the_trainer_reads_what_the_guest_wrote(guest, tmp_path):
    """Both halves of the file: the guest writes lines, the trainer's reader has the steps."""
    crashed(guest, 40)
    again(guest, skip_steps=[43])
    code = (
        "import sys; from pathlib import Path; from trainer.skips import Skips; "
        "s = Skips(Path(sys.argv[1]), sys.argv[2], leader=True); print(43 in s, 44 in s, len(s))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(guest.dir() / "skips.jsonl"), DATA],
        capture_output=True, text=True, check=True, cwd=driver.ROOT,
    )  # fmt: skip
    assert done.stdout == "True False 1\n"
