import dataclasses

import pytest
import torch

from tests.torch.decoding_parts import BLOCK, document, make_drafting, make_target
from trainer.batch import pack
from trainer.blocks import Anchors
from trainer.decoding.draftsession import DraftSession, in_compute_type, propose_by_drafter
from trainer.decoding.fixed import Alone, Together
from trainer.decoding.greedy import (
    Decoded,
    Proposal,
    decode_alone,
    decode_speculatively,
    lookup,
    require_same,
)
from trainer.decoding.speed import measure_speed
from trainer.errors import DecodeMismatch

pytestmark = pytest.mark.torch

PROMPT = document(9, 3).tokens.tolist()
NEW = 14


@pytest.fixture(scope="module")
def target():
    return make_target()


@pytest.fixture(scope="module")
def alone(target):
    return decode_alone(target, PROMPT, NEW)


@pytest.fixture(scope="module")
def known(target):
    return PROMPT + decode_alone(target, PROMPT, NEW + 8).tokens


def test_the_cached_decoding_is_that_of_whole_runs(target, alone):
    tokens = list(PROMPT)
    exact = target.in_float64()
    for _ in range(NEW):
        tokens.append(int(exact(torch.tensor([tokens])).logits[0, -1].argmax()))
    assert tokens[len(PROMPT) :] == alone.tokens
    assert len(set(alone.tokens)) > 1
    assert 0 < alone.smallest_gap < float("inf")


def test_a_proposer_that_knows_the_future_is_accepted_whole(target, alone, known):
    decoded = decode_speculatively(
        target, (), PROMPT, NEW, lambda tokens, _: Proposal(known[len(tokens) : len(tokens) + 3])
    )
    assert decoded.tokens == alone.tokens
    assert set(decoded.accepted) == {3}


def test_a_proposer_that_is_always_wrong_costs_nothing_but_time(target, alone, known):
    decoded = decode_speculatively(
        target, (), PROMPT, NEW, lambda tokens, _: Proposal([(known[len(tokens)] + 1) % 256, 0, 0])
    )
    assert decoded.tokens == alone.tokens
    assert decoded.accepted == [0] * (NEW - 1)


def test_a_proposer_that_is_right_twice_then_wrong_is_accepted_twice(target, alone, known):
    def half(tokens, _):
        right = known[len(tokens) : len(tokens) + 3]
        return Proposal([*right[:2], (right[2] + 1) % 256])

    decoded = decode_speculatively(target, (), PROMPT, NEW, half)
    assert decoded.tokens == alone.tokens
    assert set(decoded.accepted) == {2}


def test_a_proposer_without_an_answer_is_plain_decoding(target, alone):
    decoded = decode_speculatively(target, (), PROMPT, NEW, lambda *_: Proposal([]))
    assert decoded.tokens == alone.tokens


def test_the_drafter_changes_no_token_and_gets_the_taps_of_each_token_but_the_last_once(target, alone):
    drafting = make_drafting(target)
    by_drafter = propose_by_drafter(drafting)
    seen = []

    def propose(tokens, taps):
        seen.append((len(tokens), len(taps)))
        return by_drafter(tokens, taps)

    decoded = decode_speculatively(target, drafting.tap_layers, PROMPT, NEW, propose)
    require_same(alone, decoded, "the drafter")
    total = 0
    for tokens, taps in seen:
        total += taps
        assert total == tokens - 1


def test_a_differing_token_is_an_error_that_names_it():
    with pytest.raises(DecodeMismatch, match=r"the drafter: token 1 is 9, the target's own is 2"):
        require_same(Decoded([1, 2], [], 0.5), Decoded([1, 9], [1], 0.5), "the drafter")


@pytest.mark.parametrize(
    "draft",
    [
        pytest.param({}, id="full layers"),
        pytest.param({"sliding_layers": 1, "sliding_window": 6}, id="a window of 6"),
        pytest.param({"sliding_layers": 2, "sliding_window": 2}, id="a window within the block"),
    ],
)
def test_the_drafter_with_kept_context_drafts_what_the_masked_form_drafts(target, draft):
    drafting = make_drafting(target, **draft)
    text = document(30, 7)
    batch = pack([[text]], 30)
    taps = target.observe(batch, drafting.tap_layers, last=False).taps
    session = DraftSession(drafting)
    done = 0
    for anchor in (1, 2, 9, 17, 25):
        session.extend(taps[0, done:anchor])
        done = anchor
        logits = session.logits(int(text.tokens[anchor]))
        assert session.length == anchor
        assert logits.argmax(-1).tolist() == masked_draft(drafting, batch, taps, anchor)


def masked_draft(drafting, batch, taps, anchor):
    one = torch.tensor([[anchor]])
    anchors = Anchors(one, torch.tensor([[True]]), torch.tensor([[0]]), torch.tensor([[30]]), one)
    return drafting.propose(batch, taps, anchors)[0, 0].tolist()


def test_the_window_of_a_sliding_layer_is_seen_in_what_it_drafts(target):
    text = document(30, 7)
    batch = pack([[text]], 30)
    full, sliding = make_drafting(target), make_drafting(target, sliding_layers=2, sliding_window=2)
    assert torch.equal(full.draft.state_dict()["fc.weight"], sliding.draft.state_dict()["fc.weight"])
    taps = target.observe(batch, full.tap_layers, last=False).taps
    found = []
    for drafting in (full, sliding):
        session = DraftSession(drafting)
        session.extend(taps[0, :25])
        found.append(session.logits(5))
    assert found[0].shape == (BLOCK - 1, 260)
    assert not torch.allclose(found[0], found[1])


def test_a_drafter_in_the_arithmetic_s_type_is_a_copy_that_drafts_the_same(target):
    drafting = dataclasses.replace(make_drafting(target), dtype=torch.bfloat16)
    ready = in_compute_type(drafting)
    assert {p.dtype for p in ready.draft.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in drafting.draft.parameters()} == {torch.float32}
    taps = torch.randn(7, 64, generator=torch.Generator().manual_seed(1))
    one, other = DraftSession(drafting), DraftSession(ready)
    one.extend(taps)
    other.extend(taps)
    torch.testing.assert_close(one.logits(3), other.logits(3))


def test_speed_is_measured_both_ways_on_the_same_tokens(target):
    drafting = make_drafting(target)
    speed = measure_speed(drafting, target, [PROMPT, PROMPT[:5]], 6)
    assert speed.tokens == 12
    assert speed.alone_tokens_per_s > 0
    assert speed.as_json()["speed_up"] == pytest.approx(
        speed.speculative_tokens_per_s / speed.alone_tokens_per_s
    )
    assert speed.same_tokens == 1.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("abcdXYabcd", "XYa"),
        ("abcdXYabcdZabcd", "Zab"),
        ("aaaaaa", "a"),
        ("abcdefgh", ""),
        ("abc", ""),
    ],
)
def test_the_look_up_copies_what_followed_the_newest_earlier_occurrence(text, found):
    assert bytes(lookup(list(text.encode()), 4, 3)).decode() == found


@pytest.mark.parametrize("draft", [{}, {"sliding_layers": 1, "sliding_window": 6}], ids=str)
@pytest.mark.parametrize("prompt", [PROMPT[:1], PROMPT * 3], ids=len)
def test_fixed_buffers_decode_what_growing_ones_do(target, draft, prompt):
    drafting = make_drafting(target, **draft)
    grown = decode_alone(target, prompt, NEW, exact=False)
    assert Alone(target, len(prompt) + NEW).decode(prompt, NEW).tokens == grown.tokens
    speculative = decode_speculatively(
        target, drafting.tap_layers, prompt, NEW, propose_by_drafter(drafting), exact=False
    )
    together = Together(drafting, target, len(prompt) + NEW)
    for _ in range(2):  # the second sequence finds the first one's keys in the buffers
        fixed = together.decode(prompt, NEW)
        assert fixed.tokens == speculative.tokens
        assert fixed.accepted == speculative.accepted


def test_fixed_buffers_follow_a_drafter_that_is_often_right(target, monkeypatch):
    """The taps of accepted tokens, and only those, are what the next block is drafted from."""
    drafting = make_drafting(target)
    together = Together(drafting, target, len(PROMPT) + NEW)
    right = decode_alone(target, PROMPT, NEW + 3 * BLOCK, exact=False).tokens
    drawn = together._propose

    def mostly_right(last):
        block = drawn(last)
        at = int(together._length) - len(PROMPT)
        block[1 : 1 + at % BLOCK] = torch.tensor(right[at + 1 : at + BLOCK])[: at % BLOCK]
        return block

    monkeypatch.setattr(together, "_propose", mostly_right)
    fixed = together.decode(PROMPT, NEW)
    assert fixed.tokens == right[:NEW]
    assert sum(fixed.accepted) > len(fixed.accepted)
