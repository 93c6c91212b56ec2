"""A job of several ranks that is killed in every phase ends as if nobody had touched it."""

import pytest

from tests.torch.jobs import STEPS, Shape, figures, finish, log
from tests.torch.killgrid import PHASES, chain, draw_ranks, judge

pytestmark = pytest.mark.torch
SEED = 3


def test_a_run_killed_once_in_every_phase_is_bit_for_bit_the_undisturbed_one(tmp_path):
    shape = Shape(targets=2, drafters=1)
    assert finish(tmp_path / "undisturbed", shape) == 0, log(tmp_path / "undisturbed")
    expected = figures(tmp_path / "undisturbed")
    kills = chain(tmp_path / "chain", shape, draw_ranks(shape, SEED), SEED)
    assert judge(tmp_path / "chain", kills, expected) == []
    assert {kill.phase for kill in kills if kill.hit} == set(PHASES)
    assert {kill.rank for kill in kills} == {0, 1, 2}
    assert sorted(expected.losses) == list(range(1, STEPS + 1))
