import pytest

from benchmarks.placement_parts import GPU, TINY, union, write_inputs, write_store
from trainer import settings
from trainer.data.dataset import open_data

pytestmark = pytest.mark.torch


def test_what_overlaps_is_busy_once():
    assert union([(5, 6), (0, 2), (1, 3), (1, 2)]) == 4
    assert union([]) == 0


@pytest.mark.parametrize("shape", [GPU, TINY])
def test_the_deepest_tap_is_the_depth_and_no_two_are_one(shape, tmp_path):
    for depth in shape.depths():
        taps = settings.load("fast", shape.settings(tmp_path, depth)).target.layer_ids
        assert len(set(taps)) == 5
        assert (min(taps) >= 0, max(taps)) == (True, depth - 1)


def test_the_trainer_takes_the_tokens_for_its_own(tmp_path):
    write_inputs(tmp_path, TINY)
    write_store(tmp_path, TINY, tmp_path / "run")
    config = settings.load("fast", [*TINY.settings(tmp_path, 8), "compute.device=cpu"])
    told: list[str] = []
    data = open_data(
        config, TINY.vocab, tmp_path / "run" / "data", lead=True, beat=lambda: None, tell=told.append
    )
    assert told[0].startswith("tokens of an earlier run")
    batch = data.train.micro_batch(0)
    assert batch.tokens.shape == (TINY.rows, TINY.context)
    assert max(len(row) for row in batch.lengths) > 1, "packed"
