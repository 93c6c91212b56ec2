"""Each drafter's own work is measured without its waiting, so a slow one is known among those that wait."""

import json

import pytest

from tests.torch.parts import run_trainer

pytestmark = pytest.mark.torch


def rows(run):
    lines = (run / "attempts/1/metrics.jsonl").read_text().splitlines()
    return [value for value in map(json.loads, lines) if value["kind"] == "train"]


def test_the_rank_that_is_slow_is_slow_in_every_line_and_the_one_that_waits_is_not(tmp_path):
    done = run_trainer(
        tmp_path, "--set", "parallel.processes=2", "--set", "total_steps=8", "--set", "log_every=1",
        "--inject", "slow@3:1!",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = {row["step"]: row["rank_s"] for row in rows(tmp_path)}
    assert told[1] is None, "of the first step there is none before it"
    assert all(len(told[step]) == 2 for step in range(2, 9))
    # The injected second comes with step 3, and a line tells of the step before it.
    for step in range(4, 9):
        first, second = told[step]
        assert second > 1.0, told
        assert first < second / 1.3, told
    assert all(row["step_s"] > 1.0 for row in rows(tmp_path) if row["step"] >= 4), "everybody waits for it"
    waited = [row["data_wait_s"] for row in rows(tmp_path)]
    assert 0 < waited[0] < rows(tmp_path)[0]["step_s"]
    assert max(waited[3:]) < 1.0, "what is read while a rank is slow is not waited for"


@pytest.mark.slow
def test_one_alone_tells_no_rank_times(tmp_path):
    done = run_trainer(tmp_path, "--set", "total_steps=3")
    assert done.returncode == 0, done.stderr
    assert {row["rank_s"] for row in rows(tmp_path)} == {None}
