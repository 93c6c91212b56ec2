"""Jobs of several ranks whose hosts are a step ahead make what they make step by step, bad steps and all."""

import json
import subprocess
import sys

import pytest

from tests.torch.jobs import ATTEMPT_S, ROOT, Shape, end, environment, figures, log, read, trainer

pytestmark = pytest.mark.torch
BAD_STEPS = (2, 5, 6)  # the last goes back to the checkpoint of step 3
MORE = ("guard.max_skips=1", "log_every=2", "checkpoint.wait=true")
SHAPES = {
    "a target and a drafter": Shape(targets=1, drafters=1, micro_batches=2, more=MORE),
    "two shards": Shape(targets=0, drafters=2, micro_batches=2, more=(*MORE, "parallel.shard=full")),
    "two replicas": Shape(targets=1, drafters=2, micro_batches=4, more=(*MORE, "parallel.shard=replicate")),
}


def run(folder, shape, *, ahead):
    """What it came to, and every word of what was left out."""
    folder.mkdir()
    poison = " ".join(str((step - 1) * shape.micro_batches) for step in BAD_STEPS)
    words = ["tests.torch.runahead" if word == "trainer" else word for word in trainer(folder, shape)]
    with (folder / "log").open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=environment(AHEAD=str(int(ahead)), POISON=poison),
            stdout=file,
            stderr=file,
        )
    try:
        assert process.wait(ATTEMPT_S) == 0, log(folder)
    finally:
        end(process)
    beat = read(folder / "attempts/1/heartbeat.json")
    skips = [json.loads(line) for line in (folder / "skips.jsonl").read_text().splitlines()]
    return figures(folder), skips, {key: beat[key] for key in ("step", "loss", "skipped_steps", "rollbacks")}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_a_job_with_bad_steps_is_the_same(tmp_path, name):
    shape = SHAPES[name]
    waits, ahead = (run(tmp_path / str(each), shape, ahead=each) for each in (False, True))
    assert ahead == waits
    assert [line["step"] for line in ahead[1]] == [2, 5, 6]
    assert ahead[2]["rollbacks"] == 1
    # Step 3 was queued behind step 2, and then once more: by the leader, whose words have no mark.
    fetch = f"fetch {2 * shape.micro_batches}"
    logs = [(tmp_path / str(each) / "log").read_text().splitlines() for each in (False, True)]
    assert [lines.count(fetch) for lines in logs] == [1, 2]
