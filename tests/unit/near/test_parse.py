"""What a container sends is believed as far as it is what the contract says; the rest is unknown or Blind."""

import pytest

from orchestrator.observe.parse import exit_record, gpus, heartbeat, last_words, reading
from orchestrator.types.seen import Blind, Present

BEAT = {"phase": "train", "step": 7, "at": "2026-11-29T12:00:00.000000Z"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"step_s": "fast"},
        {"checkpoint_step": "7"},
        {"step": float("inf")},
        {"at": "0001-01-01T00:00:00+23:59"},
    ],
)
def test_a_heartbeat_of_other_things_than_numbers_and_times_is_blind(wrong):
    assert isinstance(reading({**BEAT, **wrong}, heartbeat, "heartbeat.json"), Blind)


def test_a_number_that_is_not_finite_is_unknown_and_a_loss_may_be_none():
    sent = {**BEAT, "step_s": float("inf"), "tokens_per_s": float("nan"), "loss": float("inf")}
    found = reading(sent, heartbeat, "heartbeat.json")
    assert isinstance(found, Present)
    assert (found.value.step_s, found.value.tokens_per_s, found.value.loss) == (None, None, float("inf"))


def test_last_words_exit_and_gpus_are_checked_too():
    words = {"exception": "ValueError", "message": "x", "step": "7"}
    assert isinstance(reading(words, last_words, "error.json"), Blind)
    end = {"code": "1", "signal": None, "at": BEAT["at"], "duration_s": 3}
    assert isinstance(reading(end, exit_record, "exit.json"), Blind)
    assert isinstance(gpus({"source": "nvml", "gpus": [{"index": 0, "power_w": "70"}]}), Blind)
    assert isinstance(gpus({"source": "nvml", "gpus": [{"index": 0, "power_w": 70}]}), Present)
