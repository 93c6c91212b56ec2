"""Steps in the words of many trainers: what they follow is survived, and lost numbers among them count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.classify import LogScanner
from orchestrator.types.failure import FailureClass

if TYPE_CHECKING:
    from orchestrator.types.snapshot import LogReading

# {n} counts on, {x} is the loss.
FORMATS = {
    "keras": "{n}/100 [===>..........................] - ETA: 0s - loss: {x}",
    "lightning": "Epoch 0:  10%|#         | {n}/1000 [00:10<01:30,  9.8it/s, v_num=0, train_loss={x}]",
    "megatron": " iteration       {n}/    5000 | consumed samples: 256 | lm loss: {x} | grad norm: 0.3 |",
    "torchtune": "1|{n}|Loss: {x}:   2%|#         | {n}/1000 [00:12<09:00,  1.8it/s]",
    "transformers": "{{'loss': {x}, 'grad_norm': 0.3, 'learning_rate': 1e-05, 'epoch': 0.{n}}}",
    "quoted": "{{'loss': '{x}', 'grad_norm': '0.3', 'learning_rate': '1e-05', 'epoch': '0.{n}'}}",
    "torch_examples": "Train Epoch: 1 [{n}00/60000 (1%)]\tLoss: {x}",
    "nanogpt": "iter {n}: loss {x}, time 12.1ms, mfu 30.1%",
    "json": '{{"step": {n}, "loss": {x}, "lr": 1e-4}}',
    "json_global": '{{"loss": {x}, "global_step": {n}}}',
    "brackets": "[{n}/5000] loss: {x}",
    "mmengine": "11/29 12:00:00 - mmengine - INFO - Epoch(train)  [1][{n}/100]  lr: 1.0e-03  loss: {x}",
    "mmcv": "2018-11-06 10:41:17,402 - INFO - Epoch [5][{n}/7330]\tlr: 0.02, eta: 18:02:11, loss: {x}",
    "fairseq": "| INFO | train_inner | epoch 003:   {n} / 21194 loss={x}, num_updates={n}, lr=2.9e-05",
    "verl": "step:{n} - actor/loss:{x} - critic/score:0.5",
    "loguru": "2026-11-29 12:00:00.123 | INFO     | train:main:12 - step {n} loss {x}",
    "logging": "INFO:train:step {n}: loss={x}",
    "iteration": "Iteration {n} Loss {x}",
    "imagenet": "Epoch: [0][{n}/1736]\t Loss {x} MAE 0.6568",
    "epochs": "Epoch {n}/300 train_loss {x} val_loss 0.4",
    "padded_epochs": "Epoch: 0{n}, Loss: {x}, Train: 0.3643, Val: 0.2660",
    "batches": "epoch 3 batch {n} train_loss={x}",
    "bar": "Steps:   0%|#        | {n}/19700 [01:12<9:34:50,  1.75s/it, loss={x}, vram=21.3]",
    "own": "step {n}/380 loss {x} lr 5.9e-04 grad 0.71 12.3 ktok/s 0.31 s/step",
}
ERROR = (
    'Traceback (most recent call last):\n  File "/run/train.py", line 88, in step\n    out()\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)
EACH = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def steps(form: str, first: int, last: int, loss: str = "2.31") -> str:
    return "".join(form.format(n=n, x=loss) + "\n" for n in range(first, last))


def read(text: str) -> LogReading:
    scanner = LogScanner()
    scanner.feed(text.encode(), 0)
    return scanner.reading()


def still_open(text: str) -> list[FailureClass]:
    return [match.failure for match in read(text).matches if not match.handled]


@EACH
def test_an_error_that_newer_steps_follow_is_survived(form: str):
    assert still_open(steps(form, 11, 15) + ERROR + steps(form, 15, 19)) == []


@EACH
def test_an_error_after_the_last_step_is_open(form: str):
    assert still_open(steps(form, 11, 15) + ERROR) == [FailureClass.OOM_CUDA]


@EACH
def test_the_same_step_drawn_again_survives_nothing(form: str):
    assert still_open(steps(form, 11, 15) + ERROR + steps(form, 14, 15)) == [FailureClass.OOM_CUDA]


@EACH
def test_losses_that_are_no_numbers_are_found_and_go_away_with_finite_ones(form: str):
    lost = steps(form, 11, 15) + steps(form, 15, 19, "nan")
    assert still_open(lost) == [FailureClass.NAN_LOSS]
    assert still_open(lost + steps(form, 19, 24)) == []


@pytest.mark.parametrize(
    "line",
    [
        "Loading checkpoint shards: 100%|##########| 4/4 [00:09<00:00,  2.31s/it]",
        "Epoch 3 begins, 12 batches of loss weights are loaded next",
        "[1/3] compiling the loss kernel",
        "val: 12/100 images done",
    ],
)
def test_what_is_no_training_step_survives_nothing(line: str):
    assert still_open(steps(FORMATS["own"], 300, 320) + ERROR + line + "\n") == [FailureClass.OOM_CUDA]


def gradients(first: int, values: list[str]) -> str:
    return "".join(
        f"step {n} | loss 2.31 | grad_norm {value} | lr 1e-4\n" for n, value in enumerate(values, first)
    )


def test_gradients_that_stay_no_numbers_are_lost_numbers():
    text = gradients(10, ["0.7"] * 3 + ["nan"] * 8)
    assert still_open(text) == [FailureClass.NAN_LOSS]
    assert read(text).matches[0].evidence.offset == text.index("step 13")
    assert still_open(text + gradients(21, ["0.7"])) == []


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_loss_scaler_at_work_is_no_lost_number(value: str):
    assert still_open(gradients(10, ["0.7", value, value, "0.7", value, value])) == []


def test_lost_gradients_are_found_whatever_pieces_the_log_comes_in():
    raw = gradients(10, ["0.7"] * 3 + ["nan"] * 8).encode()
    scanner = LogScanner()
    for at in range(0, len(raw), 13):
        scanner.feed(raw[at : at + 13], at)
    whole = LogScanner()
    whole.feed(raw, 0)
    assert scanner.reading() == whole.reading()


def test_losses_that_go_on_in_one_epoch_are_progress():
    form = "{{'loss': {x}, 'grad_norm': 0.3, 'learning_rate': 1e-05, 'epoch': 0.08}}"
    before, after = steps(form, 1, 4), steps(form, 1, 2, "2.30") + steps(form, 1, 2, "2.29")
    assert still_open(before + ERROR + after) == []


def test_a_bar_that_is_drawn_again_is_no_progress():
    form = "{{'loss': {x}, 'grad_norm': 0.3, 'learning_rate': 1e-05, 'epoch': 0.08}}"
    assert still_open(steps(form, 1, 4) + ERROR + steps(form, 1, 4)) == [FailureClass.OOM_CUDA]


RESTARTED = (
    "E0310 02:11:41.717000 901 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1)\n"
    "I0310 02:11:41.731000 901 agent/server/api.py:879] [default] Worker group FAILED. 3/3 attempts left; "
    "will restart worker group\n"
)


def ranked(rank: int, text: str) -> str:
    return "".join(f"[default{rank}]:{line}\n" for line in text.splitlines())


def test_what_a_launcher_began_anew_is_survived_by_any_ranks_steps():
    crash = ranked(0, steps(FORMATS["own"], 40, 50)) + ranked(2, ERROR)
    again = ranked(0, steps(FORMATS["own"], 41, 44))
    assert FailureClass.OOM_CUDA in still_open(crash + again)
    assert FailureClass.OOM_CUDA not in still_open(crash + RESTARTED + again)


def test_a_restart_without_a_step_after_it_survived_nothing():
    crash = ranked(0, steps(FORMATS["own"], 40, 50)) + ranked(2, ERROR)
    assert FailureClass.OOM_CUDA in still_open(crash + RESTARTED)
