import shutil
from pathlib import Path

import pytest
import torch

from tests.torch.parts import random_tokens, small_drafting
from trainer.checkpoint import MARKER, complete_steps, resume, save_checkpoint
from trainer.config import OptimConfig
from trainer.errors import CheckpointCorrupt, ConfigInvalid
from trainer.model import DraftModel
from trainer.optim import learning_rate, make_optimizer

pytestmark = pytest.mark.torch


def trained(steps: int) -> tuple[DraftModel, torch.optim.Optimizer]:
    """A drafter and its optimizer after some steps."""
    drafting = small_drafting()
    optimizer = make_optimizer(drafting.draft, OptimConfig())
    for step in range(steps):
        optimizer.zero_grad()
        drafting.step_loss(random_tokens(), step).backward()
        optimizer.step()
    return drafting.draft, optimizer


def save(directory: Path, step: int, keep: int = 3) -> tuple[DraftModel, torch.optim.Optimizer]:
    draft, optimizer = trained(step)
    save_checkpoint(directory, step=step, loss=1.5, draft=draft, optimizer=optimizer, corpus="c", keep=keep)
    return draft, optimizer


def resumed_step(directory: Path) -> int | None:
    resumed = resume(directory, *trained(0))
    return None if resumed is None else resumed.step


def test_what_is_resumed_is_what_was_saved(tmp_path):
    draft, optimizer = save(tmp_path, 2)
    torch.manual_seed(123)
    fresh, fresh_optimizer = trained(0)
    resumed = resume(tmp_path, fresh, fresh_optimizer)
    assert resumed is not None
    assert (resumed.step, resumed.corpus, resumed.loss) == (2, "c", 1.5)
    for name, value in draft.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value)
    saved, loaded = optimizer.state_dict()["state"], fresh_optimizer.state_dict()["state"]
    assert all(torch.equal(saved[i][key], loaded[i][key]) for i in saved for key in saved[i])


def test_a_run_without_checkpoints_begins_at_the_beginning(tmp_path):
    assert resume(tmp_path, *trained(0)) is None


def test_only_the_newest_are_kept_by_number_and_not_by_name(tmp_path):
    for step in (1, 2, 9, 10):
        draft, optimizer = trained(0)
        save_checkpoint(tmp_path, step=step, loss=None, draft=draft, optimizer=optimizer, corpus="c", keep=2)
    assert complete_steps(tmp_path) == [9, 10]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-9"]


def test_a_checkpoint_without_its_marker_does_not_exist(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "step-2" / MARKER).unlink()
    assert resumed_step(tmp_path) == 1


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("file", ["model.safetensors", "state.pt"])
@pytest.mark.parametrize("harm", [flip_a_byte, empty, Path.unlink])
def test_a_corrupt_newest_gives_way_to_the_one_before_with_a_warning(tmp_path, capsys, file, harm):
    save(tmp_path, 1)
    save(tmp_path, 2)
    harm(tmp_path / "step-2" / file)
    assert resumed_step(tmp_path) == 1
    assert "checkpoint step-2:" in capsys.readouterr().err


def test_when_none_can_be_read_the_run_ends_rather_than_begins_anew(tmp_path):
    save(tmp_path, 1)
    flip_a_byte(tmp_path / "step-1" / "state.pt")
    with pytest.raises(CheckpointCorrupt, match="none of the 1 complete checkpoints"):
        resume(tmp_path, *trained(0))


def test_a_corrupt_one_is_replaced_when_its_step_is_reached_again(tmp_path):
    save(tmp_path, 1)
    flip_a_byte(tmp_path / "step-1" / "state.pt")
    save(tmp_path, 1)
    assert resumed_step(tmp_path) == 1


def test_a_save_that_fails_leaves_the_older_ones_as_they_are(tmp_path):
    save(tmp_path, 1)
    (tmp_path / ".step-2.tmp").write_text("in the way")
    with pytest.raises(OSError, match="exists"):
        save(tmp_path, 2)
    assert complete_steps(tmp_path) == [1]


def test_leftovers_of_a_save_that_was_killed_are_overwritten(tmp_path):
    save(tmp_path, 1)
    shutil.copytree(tmp_path / "step-1", tmp_path / ".step-2.tmp")
    save(tmp_path, 2)
    assert complete_steps(tmp_path) == [1, 2]


def test_a_checkpoint_of_another_drafter_is_refused_with_the_difference(tmp_path):
    draft, optimizer = trained(0)
    draft.shape = type(draft.shape)(
        **{f: getattr(draft.shape, f) for f in draft.shape.__slots__ if f != "block_size"}, block_size=16
    )
    save_checkpoint(tmp_path, step=1, loss=None, draft=draft, optimizer=optimizer, corpus="c", keep=1)
    with pytest.raises(ConfigInvalid, match="block_size: it has 16, the configuration wants 4"):
        resume(tmp_path, *trained(0))


def rates(schedule: str) -> list[float]:
    config = OptimConfig(lr=1.0, min_lr_ratio=0.1, schedule=schedule, warmup_ratio=0.1)
    return [learning_rate(step, 100, config) for step in range(100)]


def test_the_rate_rises_then_falls_to_its_floor_by_cosine():
    cosine = rates("cosine")
    assert cosine[0] == 0.1
    assert max(cosine) == cosine[10] == 1.0
    assert cosine[10:] == sorted(cosine[10:], reverse=True)
    assert 0.1 < cosine[-1] < 0.11


def test_the_rate_is_stable_until_the_last_fifth_with_wsd():
    wsd = rates("wsd")
    assert wsd[9:81] == [1.0] * 72
    assert wsd[81:] == sorted(wsd[81:], reverse=True)
    assert wsd[-1] == pytest.approx(0.145)
