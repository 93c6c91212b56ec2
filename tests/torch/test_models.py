import dataclasses
from typing import cast

import pytest
import torch
from torch import nn

from tests.torch.decoding_parts import ANCHORS, BLOCK, WINDOW, document, make_drafting, make_target
from trainer.batch import Batch, pack, single
from trainer.blocks import Anchors, spread_anchors
from trainer.config import DraftConfig, TargetConfig
from trainer.drafting import Drafting, begin_draft
from trainer.errors import ConfigInvalid, DataInvalid
from trainer.model import draft_shape, target_layer_ids
from trainer.settings import load
from trainer.target.load import load_target, mask_token

pytestmark = pytest.mark.torch


def tokens(seed: int = 3) -> torch.Tensor:
    return torch.randint(0, 256, (2, WINDOW), generator=torch.Generator().manual_seed(seed))


def test_a_folder_that_is_no_target_is_told_with_its_name(tmp_path):
    with pytest.raises(DataInvalid, match=str(tmp_path)):
        load_target(TargetConfig(path=str(tmp_path), mask_token=3), "cpu", torch.float32)


@pytest.mark.parametrize(
    ("depth", "count", "ids"), [(36, 5, (1, 9, 17, 25, 33)), (64, 5, (1, 16, 31, 46, 61)), (8, 1, (4,))]
)
def test_layer_ids_are_the_published_ones(depth, count, ids):
    assert target_layer_ids(depth, count) == ids


@pytest.mark.parametrize("ids", [(6,), (1, 1)])
def test_layer_ids_that_the_target_does_not_have_are_refused(ids):
    with pytest.raises(ConfigInvalid, match=r"target\.layer_ids: .*0 to 5"):
        draft_shape(make_target().shape, DraftConfig(), TargetConfig(layer_ids=ids))


def hidden_of(drafting: Drafting, batch: Batch, taps: torch.Tensor) -> tuple[Anchors, torch.Tensor]:
    anchors = spread_anchors(batch, ANCHORS, BLOCK)
    seen: list[torch.Tensor] = []
    norm = cast("nn.Module", drafting.draft.norm)
    hook = norm.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    drafting.propose(batch, taps, anchors)
    hook.remove()
    return anchors, seen[0].unflatten(1, (ANCHORS, BLOCK))


@pytest.fixture(scope="module")
def drafting():
    return make_drafting(make_target())


@pytest.fixture(scope="module")
def taps(drafting):
    return drafting.vocabulary.observe(single(tokens()), drafting.tap_layers, last=False).taps


def test_a_block_sees_nothing_of_the_context_from_its_anchor_on(drafting, taps):
    anchors, before = hidden_of(drafting, single(tokens()), taps)
    changed = taps.clone()
    changed[:, int(anchors.index[0, 2]) :] += 1.0
    _, after = hidden_of(drafting, single(tokens()), changed)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_a_block_sees_the_last_context_token_before_its_anchor(drafting, taps):
    anchors, before = hidden_of(drafting, single(tokens()), taps)
    changed = taps.clone()
    changed[:, int(anchors.index[0, 2]) - 1] += 1.0
    _, after = hidden_of(drafting, single(tokens()), changed)
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.allclose(before[:, 2], after[:, 2])


def test_a_block_sees_its_own_anchor_and_no_other_block(drafting, taps):
    anchors, before = hidden_of(drafting, single(tokens()), taps)
    changed = tokens()
    at = int(anchors.index[0, 2])
    changed[:, at] = (changed[:, at] + 1) % 256
    _, after = hidden_of(drafting, single(changed), taps)
    same = [0, 1, 3, 4]
    assert torch.equal(before[:, same], after[:, same])
    assert not torch.allclose(before[:, 2, 1:], after[:, 2, 1:])


def test_a_drafter_begun_from_the_target_has_its_layers():
    target = make_target()
    config = load("tiny", ["draft.num_target_layers=2"])
    shape = draft_shape(target.shape, config.draft, config.target)
    draft = begin_draft(config, shape, target, torch.device("cpu"))
    for name, value in target.layers[1].state_dict().items():
        assert torch.equal(draft.layers[1].state_dict()[name], value)
    assert mask_token(config.target) < target.shape.vocab_size


def mean_loss(drafting: Drafting, batch: Batch, index: int = 0) -> torch.Tensor:
    assert drafting.config.loss.labels in ("data", "target")
    observation = drafting.vocabulary.observe(  # type: ignore[attr-defined]
        batch, drafting.tap_layers, last=drafting.wants_last
    )
    terms = drafting.loss(batch, observation, index)
    mean: torch.Tensor = terms.total / terms.weight
    return mean


@pytest.mark.parametrize(
    ("labels", "objective", "sliding"),
    [
        ("data", "decay", 1),
        *(
            pytest.param(labels, objective, 0, marks=pytest.mark.slow)
            for labels in ("data", "target")
            for objective in ("decay", "dpace")
        ),
    ],
)
def test_training_lowers_the_loss_on_the_same_rows(labels, objective, sliding):
    made = make_drafting(make_target(), sliding_layers=sliding, sliding_window=6)
    loss = dataclasses.replace(made.config.loss, labels=labels, objective=objective)
    drafting = dataclasses.replace(made, config=dataclasses.replace(made.config, loss=loss))
    batch = single(tokens())
    optimizer = torch.optim.AdamW(drafting.draft.parameters(), lr=1e-2)
    first = mean_loss(drafting, batch).detach()
    for _ in range(30):
        optimizer.zero_grad()
        mean_loss(drafting, batch).backward()
        optimizer.step()
    assert mean_loss(drafting, batch) < 0.7 * first
    assert all(p.grad is None for p in cast("nn.Module", drafting.vocabulary).parameters())


def test_packed_documents_give_the_loss_that_each_gives_alone():
    drafting = make_drafting(make_target())
    first, second = document(23, 1), document(17, 2)
    together = spread_anchors(pack([[first, second]], WINDOW), ANCHORS, BLOCK)
    rows = pack([[first], [second]], WINDOW)
    packed_row = pack([[first, second]], WINDOW)
    in_second = together.starts > 0

    def hidden(batch: Batch, anchors: Anchors) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        norm = cast("nn.Module", drafting.draft.norm)
        hook = norm.register_forward_hook(lambda _m, _i, output: seen.append(output))
        taps = drafting.vocabulary.observe(batch, drafting.tap_layers, last=False).taps  # type: ignore[attr-defined]
        drafting.propose(batch, taps, anchors)
        hook.remove()
        blocks: torch.Tensor = seen[0].unflatten(1, (anchors.index.shape[1], BLOCK))
        return blocks

    moved = Anchors(
        index=(together.index - 23 * in_second).expand(2, -1),
        keep=torch.cat((together.keep & ~in_second, together.keep & in_second)),
        starts=torch.zeros_like(together.starts).expand(2, -1),
        ends=(together.ends - 23 * in_second).expand(2, -1),
        positions=together.positions.expand(2, -1),
    )
    one, alone = hidden(packed_row, together)[0], hidden(rows, moved)
    assert in_second.any()
    assert (~in_second).any()
    for slot in range(ANCHORS):
        torch.testing.assert_close(one[slot], alone[int(in_second[0, slot]), slot], atol=1e-5, rtol=1e-5)
