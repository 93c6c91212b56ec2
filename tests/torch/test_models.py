import pytest
import torch

from tests.torch.parts import ANCHORS, BLOCK, SMALL, WINDOW, random_tokens, small_drafting, small_target
from trainer.blocks import spread_anchors
from trainer.corpus import read_corpus, stdlib_directory
from trainer.data import Windows
from trainer.drafting import Drafting, begin_draft
from trainer.errors import DataInvalid
from trainer.settings import load
from trainer.target import EMBEDDED, MASK_TOKEN, load_target

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def embedded():
    return load_target("embedded")


def test_the_embedded_target_is_small_enough_to_ship(embedded):
    assert (EMBEDDED / "model.safetensors").stat().st_size <= 12_000_000
    assert 4e6 < sum(p.numel() for p in embedded.parameters()) < 6e6


def test_the_embedded_target_knows_python_it_was_not_trained_on(embedded):
    corpus = read_corpus(stdlib_directory("auto"))
    windows = Windows(corpus.held_out, 256, 0).spread(8)
    logits = embedded(windows[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    assert loss < 1.0  # nats a byte; a uniform guess is 5.5


def test_the_embedded_target_is_a_qwen3_to_transformers_too(embedded):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Qwen3ForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32).eval()
    tokens = random_tokens(2, 30)
    with torch.no_grad():
        output = theirs(tokens, output_hidden_states=True)
    ours = embedded(tokens, tap_layers=(1, 3))
    torch.testing.assert_close(ours.logits, output.logits, atol=2e-3, rtol=1e-3)
    taps = torch.cat((output.hidden_states[2], output.hidden_states[4]), dim=-1)
    torch.testing.assert_close(ours.taps, taps, atol=2e-3, rtol=1e-3)


def test_the_cache_gives_what_a_run_from_the_start_gives():
    target, tokens = small_target(), random_tokens(1, 12)
    whole = target(tokens, tap_layers=(0, 2))
    first = target(tokens[:, :7])
    positions = torch.arange(7, 12)
    mask = torch.arange(12) <= positions[:, None]
    rest = target(
        tokens[:, 7:],
        positions_BT=positions[None],
        mask_B1TK=mask[None, None],
        past=first.cache,
        tap_layers=(0, 2),
    )
    torch.testing.assert_close(rest.logits, whole.logits[:, 7:])
    torch.testing.assert_close(rest.taps, whole.taps[:, 7:])
    torch.testing.assert_close(target.taps(tokens, (0, 2)), whole.taps)


def test_a_folder_that_is_no_target_is_told_with_its_name(tmp_path):
    with pytest.raises(DataInvalid, match=str(tmp_path)):
        load_target(str(tmp_path))


def hidden_of(
    drafting: Drafting, tokens: torch.Tensor, taps: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    anchors, _ = spread_anchors(len(tokens), WINDOW, ANCHORS, BLOCK)
    seen: list[torch.Tensor] = []
    drafting.draft.norm.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    drafting.propose(tokens, taps, anchors)
    return anchors, seen[0].unflatten(1, (ANCHORS, BLOCK))


def test_a_block_sees_nothing_of_the_context_from_its_anchor_on():
    tokens = random_tokens()
    taps = small_drafting().target.taps(tokens, (1, 3))
    anchors, before = hidden_of(small_drafting(), tokens, taps)
    changed = taps.clone()
    changed[:, int(anchors[0, 2]) :] += 1.0
    _, after = hidden_of(small_drafting(), tokens, changed)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_a_block_sees_the_last_context_token_before_its_anchor():
    tokens = random_tokens()
    taps = small_drafting().target.taps(tokens, (1, 3))
    anchors, before = hidden_of(small_drafting(), tokens, taps)
    changed = taps.clone()
    changed[:, int(anchors[0, 2]) - 1] += 1.0
    _, after = hidden_of(small_drafting(), tokens, changed)
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.allclose(before[:, 2], after[:, 2])


def test_a_block_sees_its_own_anchor_and_no_other_block():
    tokens = random_tokens()
    taps = small_drafting().target.taps(tokens, (1, 3))
    anchors, before = hidden_of(small_drafting(), tokens, taps)
    changed = tokens.clone()
    changed[:, int(anchors[0, 2])] = (changed[:, int(anchors[0, 2])] + 1) % 256
    _, after = hidden_of(small_drafting(), changed, taps)
    same = [0, 1, 3, 4]
    assert torch.equal(before[:, same], after[:, same])
    assert not torch.allclose(before[:, 2, 1:], after[:, 2, 1:])


def test_a_drafter_begun_from_the_target_has_its_layers_and_the_mask_token_is_in_its_vocabulary():
    target = small_target()
    config = load("tiny", ["draft.num_target_layers=2"])
    draft = begin_draft(config, target)
    for name, value in target.layers[1].state_dict().items():
        assert torch.equal(draft.layers[1].state_dict()[name], value)
    assert SMALL.vocab_size > MASK_TOKEN


def test_training_lowers_the_loss_on_the_same_windows():
    drafting, tokens = small_drafting(), random_tokens()
    optimizer = torch.optim.AdamW(drafting.draft.parameters(), lr=1e-2)
    first = drafting.step_loss(tokens, 0)
    for _ in range(30):
        optimizer.zero_grad()
        drafting.step_loss(tokens, 0).backward()
        optimizer.step()
    assert drafting.step_loss(tokens, 0) < 0.6 * first
    assert all(p.grad is None for p in drafting.target.parameters())
