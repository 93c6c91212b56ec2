"""A few schedules of the chaos suite; `python -m tests.integration.chaos` plays hundreds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.chaos.play import play_all
from tests.integration.chaos.schedule import DEATHS, FAULTS, draw
from tests.lab.fixtures import require_lab

if TYPE_CHECKING:
    from tests.integration.chaos.play import Result

SEEDS = (1, 3, 11)  # quick ones: cuts, kills, a full disk, two watches, three kinds of death


def test_a_seed_draws_the_same_schedule_and_all_seeds_every_kind():
    drawn = [draw(seed) for seed in range(300)]
    assert drawn == [draw(seed) for seed in range(300)]
    assert {fault.kind for schedule in drawn for fault in schedule.faults} == {*FAULTS, "user_stop"}
    assert {death.how for schedule in drawn for death in schedule.deaths} == set(DEATHS)


@pytest.mark.integration
def test_whatever_breaks_there_is_one_trainer_one_story_and_an_end():
    require_lab()
    results: list[Result] = []
    play_all([draw(seed) for seed in SEEDS], len(SEEDS), results.append)
    assert {result.seed: result.problems for result in results} == {seed: () for seed in SEEDS}
    assert sum(result.attempts for result in results) > len(SEEDS), "somebody died and was brought back"
