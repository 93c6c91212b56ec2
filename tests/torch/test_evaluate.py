import dataclasses

import pytest
import torch

from tests.torch.decoding_parts import BLOCK, document, make_drafting, make_target, packed
from trainer.batch import pack
from trainer.blocks import spread_anchors
from trainer.config import EvalConfig
from trainer.decoding.draftsession import plain_draft
from trainer.decoding.greedy import decode_alone
from trainer.errors import DataInvalid, DecodeMismatch
from trainer.evaluation import acceptance
from trainer.evaluation.acceptance import (
    Acceptance,
    by_draft_sessions,
    by_drafter,
    by_lookup,
    teacher_forced,
    verify_in_sessions,
    verify_masked,
)
from trainer.evaluation.continuations import Decoding
from trainer.evaluation.figures import evaluate, evaluate_finished, read_finished, teacher_forced_drafter
from trainer.export import export

pytestmark = pytest.mark.torch


class HeldOut:
    """Two packed batches and two prompts."""

    def batches(self, rows):
        return [packed(), packed()][: -(-rows // 2)]

    def prompts(self, count, tokens):
        return [document(tokens, seed).tokens.tolist() for seed in range(5, 5 + count)]


class Beats:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture(scope="module")
def target():
    return make_target()


@pytest.fixture(scope="module", params=[{}, {"sliding_layers": 1, "sliding_window": 5}], ids=str)
def drafting(request, target):
    return make_drafting(target, **request.param)


@pytest.fixture(scope="module")
def seen(target, drafting):
    """A packed batch, its taps, its anchors and the cache behind the taps."""
    batch = packed()
    observation, cache = target.read(batch, drafting.tap_layers, last=True)
    return batch, observation.taps, spread_anchors(batch, 7, BLOCK), cache


def test_both_ways_of_verifying_give_the_target_s_own_greedy_tokens(target, drafting, seen):
    batch, taps, anchors, cache = seen
    proposed = by_drafter(drafting)(batch, taps, anchors)
    masked = verify_masked(target, batch, cache, anchors, proposed)
    in_sessions = verify_in_sessions(target, batch, anchors, proposed)
    assert anchors.keep.sum() > 8
    assert torch.equal(masked[anchors.keep], in_sessions[anchors.keep])
    for row, slot in anchors.keep.nonzero().tolist():
        start, index = int(anchors.starts[row, slot]), int(anchors.index[row, slot])
        text = batch.tokens[row, start : index + 1].tolist()
        for offset in range(BLOCK - 1):
            told = decode_alone(target, text + proposed[row, slot, :offset].tolist(), 1).tokens
            assert told == [masked[row, slot, offset]]


def test_many_small_masked_calls_verify_as_one_does(target, drafting, seen, monkeypatch):
    batch, taps, anchors, cache = seen
    proposed = by_drafter(drafting)(batch, taps, anchors)
    once = verify_masked(target, batch, cache, anchors, proposed)
    monkeypatch.setattr(acceptance, "SCORE_LIMIT_BYTES", 1)
    assert torch.equal(verify_masked(target, batch, cache, anchors, proposed), once)


def test_long_documents_are_put_into_the_cache_in_parts(target, drafting, seen, monkeypatch):
    batch, taps, anchors, _ = seen
    proposed = by_drafter(drafting)(batch, taps, anchors)
    once = verify_in_sessions(target, batch, anchors, proposed)
    monkeypatch.setattr(acceptance, "CHUNK_TOKENS", 3)
    assert torch.equal(verify_in_sessions(target, batch, anchors, proposed), once)


def test_the_drafter_with_kept_context_proposes_what_the_masked_call_proposes(drafting, seen):
    batch, taps, anchors, _ = seen
    whole = by_drafter(drafting)(batch, taps, anchors)
    by_block = by_draft_sessions(drafting)(batch, taps, anchors)
    assert torch.equal(whole[anchors.keep], by_block[anchors.keep])


def test_a_proposer_that_asks_the_target_is_accepted_whole_and_one_that_lies_never(target, drafting):
    def knowing(batch, taps, anchors):
        answers = torch.zeros(*anchors.index.shape, BLOCK - 1, dtype=torch.long)
        for row, slot in anchors.keep.nonzero().tolist():
            start, index = int(anchors.starts[row, slot]), int(anchors.index[row, slot])
            text = batch.tokens[row, start : index + 1].tolist()
            answers[row, slot] = torch.tensor(decode_alone(target, text, BLOCK - 1).tokens)
        return answers

    def lying(batch, taps, anchors):
        return (knowing(batch, taps, anchors) + 1) % 256

    def right_once(batch, taps, anchors):
        answers = knowing(batch, taps, anchors)
        answers[..., 1] = (answers[..., 1] + 1) % 256
        return answers

    figures = [
        teacher_forced(drafting, target, [packed()], propose, Beats()).length
        for propose in (knowing, lying, right_once)
    ]
    assert figures == [BLOCK - 1, 0.0, 1.0]


def test_the_look_up_sees_no_other_document(target, drafting):
    text = document(12, 1)
    repeated = torch.cat((text.tokens, text.tokens))
    whole = dataclasses.replace(text, tokens=repeated, loss_mask=torch.ones(24, dtype=torch.bool))
    for batch, found in ((pack([[whole]], 24), True), (pack([[text, text]], 24), False)):
        anchors = spread_anchors(batch, 21, BLOCK)
        proposed = by_lookup(BLOCK - 1)(batch, torch.zeros(1, 24, 64), anchors)
        assert bool((proposed >= 0).any()) is found


def test_positions_are_counted_with_and_without_what_came_before():
    found = Acceptance.of(torch.tensor([0, 1, 3, 3]), 3)
    assert found.length == 1.75
    assert found.verifications == 4
    assert found.reached == (0.75, 0.5, 0.5)
    assert found.conditional == (0.75, 2 / 3, 1.0)
    assert sum(found.reached) == pytest.approx(found.length)


def test_no_anchor_at_all_is_a_length_of_zero_and_no_division():
    assert Acceptance.of(torch.zeros(0), 3) == Acceptance(0.0, 0, (0.0,) * 3, (0.0,) * 3)


def test_a_target_of_another_kind_gives_the_same_acceptance(target, drafting, monkeypatch):
    fast = teacher_forced(drafting, target, [packed()], by_drafter(drafting), Beats())
    monkeypatch.setattr(acceptance, "TargetModel", int)  # as if it were transformers' model
    assert teacher_forced(drafting, target, [packed()], by_drafter(drafting), Beats()) == fast


def test_a_target_that_costs_a_call_an_anchor_is_asked_about_evenly_spread_ones(
    target, drafting, monkeypatch
):
    monkeypatch.setattr(acceptance, "TargetModel", int)
    monkeypatch.setattr(acceptance, "MAX_SESSION_ANCHORS", 3)
    found = teacher_forced(drafting, target, [packed()], by_drafter(drafting), Beats())
    assert found.verifications == 6


def test_an_evaluation_has_every_figure_and_leaves_the_drafter_as_it_was(target):
    drafting, beats = make_drafting(target), Beats()
    with torch.no_grad():
        for parameter in drafting.draft.parameters():
            parameter.add_(0.01)
    before = {name: value.clone() for name, value in drafting.draft.state_dict().items()}
    found = evaluate(drafting, target, HeldOut(), beats)
    told = found.as_json()
    assert told["teacher_forced"].keys() == {"drafter", "untrained", "lookup"}
    assert told["teacher_forced"]["drafter"] == found.acceptance_length
    assert len(told["per_position"]) == BLOCK - 1
    assert told["decoded"]["exact"]
    assert told["decoded"]["same_tokens"] == 1.0
    assert told["decoded"].keys() >= {"drafter", "untrained", "lookup", "smallest_gap"}
    assert "identical to the target's own" in "\n".join(found.lines())
    assert beats.count >= 3
    for name, value in drafting.draft.state_dict().items():
        assert torch.equal(value, before[name])
    quick = teacher_forced_drafter(drafting, target, HeldOut().batches(2), beats)
    assert quick == found.acceptance_length


def test_a_finished_drafter_is_measured_without_a_masked_call_and_by_sampling(target, monkeypatch):
    drafting = make_drafting(target)
    whole = evaluate(drafting, target, HeldOut(), Beats())
    monkeypatch.setattr("trainer.drafting.Drafting.propose", None)
    found = evaluate_finished(drafting, target, HeldOut(), Beats(), temperature=0.8)
    assert found.teacher_forced["drafter"] == whole.teacher_forced["drafter"]
    assert found.sampled is not None
    assert 0 <= found.sampled["drafter"] <= BLOCK - 1
    assert "temperature 0.8" in found.lines()[-1]


def test_without_prompts_nothing_is_decoded(target):
    drafting = make_drafting(target)
    config = dataclasses.replace(drafting.config, eval=EvalConfig(prompts=0, windows=2))
    found = evaluate(dataclasses.replace(drafting, config=config), target, HeldOut(), Beats())
    assert found.decoded is None
    assert len(found.lines()) == 3


def test_a_changed_token_is_an_error_where_decoding_is_exact_and_a_share_where_it_is_not(target, monkeypatch):
    drafting = make_drafting(target)

    def wrong(*args, **kwargs):
        decoded = decode_alone(*args, **kwargs)
        return dataclasses.replace(decoded, tokens=[(token + 1) % 256 for token in decoded.tokens])

    monkeypatch.setattr("trainer.evaluation.continuations.decode_alone", wrong)
    with pytest.raises(DecodeMismatch):
        Decoding(drafting, target, HeldOut(), Beats()).figures()
    monkeypatch.setattr("trainer.evaluation.continuations.EXACT_LIMIT_BYTES", 0)
    told = Decoding(drafting, target, HeldOut(), Beats()).figures()
    assert not told["exact"]
    assert told["same_tokens"] == 0.0


def test_an_export_is_measured_as_the_drafter_that_was_exported(target, tmp_path):
    drafting = make_drafting(target)
    export(tmp_path / "export", plain_draft(drafting), target.shape, mask_token=256, dtype="float32")
    other = dataclasses.replace(
        drafting.config, draft=dataclasses.replace(drafting.config.draft, block_size=9)
    )
    finished = read_finished(tmp_path / "export", other, target, 256, torch.float32)
    assert finished.config.draft.block_size == BLOCK
    found = evaluate_finished(finished, target, HeldOut(), Beats())
    assert (
        found.teacher_forced["drafter"]
        == evaluate(drafting, target, HeldOut(), Beats()).teacher_forced["drafter"]
    )


@pytest.mark.parametrize(
    ("mask_token", "change", "told"),
    [(257, {}, "its mask token is 256"), (256, {"num_hidden_layers": 5}, "of width 32 and 6 layers")],
)
def test_an_export_for_another_target_is_refused(target, tmp_path, mask_token, change, told):
    drafting = make_drafting(target)
    export(tmp_path / "export", plain_draft(drafting), target.shape, mask_token=256, dtype="float32")
    other = make_target(dataclasses.replace(target.shape, **change))
    with pytest.raises(DataInvalid, match=told):
        read_finished(tmp_path / "export", drafting.config, other, mask_token, torch.float32)
