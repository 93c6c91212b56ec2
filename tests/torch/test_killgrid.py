"""A job of several ranks that is killed in every phase ends as if nobody had touched it."""

import pytest

from tests.torch.jobs import STEPS, Shape, figures, finish, log
from tests.torch.killgrid import chain, draw_ranks, judge

pytestmark = pytest.mark.torch
SEED = 3
SHAPE = Shape(targets=2, drafters=1)
RISKY = {"train": 1, "checkpoint": 0}
"""Where most is to lose, and what each rank does there: a target feeds the drafter, the drafter writes what a
resume needs."""


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(RISKY, id="where most is to lose"),
        pytest.param(draw_ranks(SHAPE, SEED), id="every phase", marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_once_in_each_phase_is_bit_for_bit_the_undisturbed_one(tmp_path, ranks):
    assert finish(tmp_path / "undisturbed", SHAPE) == 0, log(tmp_path / "undisturbed")
    expected = figures(tmp_path / "undisturbed")
    kills = chain(tmp_path / "chain", SHAPE, ranks, SEED)
    assert judge(tmp_path / "chain", kills, expected) == []
    assert {kill.phase for kill in kills if kill.hit} == ranks.keys()
    assert {kill.rank for kill in kills} == set(ranks.values())
    assert sorted(expected.losses) == list(range(1, STEPS + 1))
