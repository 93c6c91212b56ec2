import pytest
import torch

from tests.torch.parts import random_tokens, small_drafting, small_target
from trainer.decode import (
    Decoded,
    decode_alone,
    decode_speculatively,
    in_float64,
    lookup,
    propose_by_drafter,
    require_same,
)
from trainer.errors import DecodeMismatch

pytestmark = pytest.mark.torch

PROMPT = random_tokens(1, 9)[0].tolist()
NEW = 14


@pytest.fixture(scope="module")
def target64():
    return in_float64(small_target())


@pytest.fixture(scope="module")
def alone(target64):
    return decode_alone(target64, PROMPT, NEW)


def test_the_cached_decoding_is_that_of_whole_runs(target64, alone):
    tokens = list(PROMPT)
    for _ in range(NEW):
        tokens.append(int(target64(torch.tensor([tokens])).logits[0, -1].argmax()))
    assert tokens[len(PROMPT) :] == alone.tokens
    assert len(set(alone.tokens)) > 1
    assert 0 < alone.smallest_gap < float("inf")


def test_a_proposer_that_knows_the_future_is_accepted_whole(target64, alone):
    future = decode_alone(target64, PROMPT, NEW + 8)
    known = PROMPT + future.tokens
    decoded = decode_speculatively(
        target64, (), PROMPT, NEW, lambda tokens, _: known[len(tokens) : len(tokens) + 3]
    )
    assert decoded.tokens == alone.tokens
    assert set(decoded.accepted) == {3}


def test_a_proposer_that_is_always_wrong_costs_nothing_but_time(target64, alone):
    known = PROMPT + decode_alone(target64, PROMPT, NEW + 8).tokens

    def wrong(tokens, _):
        return [(known[len(tokens)] + 1) % 256, 0, 0]

    decoded = decode_speculatively(target64, (), PROMPT, NEW, wrong)
    assert decoded.tokens == alone.tokens
    assert decoded.accepted == [0] * (NEW - 1)


def test_a_proposer_that_is_right_twice_then_wrong_is_accepted_twice(target64, alone):
    known = PROMPT + decode_alone(target64, PROMPT, NEW + 8).tokens

    def half(tokens, _):
        right = known[len(tokens) : len(tokens) + 3]
        return [*right[:2], (right[2] + 1) % 256]

    decoded = decode_speculatively(target64, (), PROMPT, NEW, half)
    assert decoded.tokens == alone.tokens
    assert set(decoded.accepted) == {2}


def test_a_proposer_without_an_answer_is_plain_decoding(target64, alone):
    decoded = decode_speculatively(target64, (), PROMPT, NEW, lambda *_: [])
    assert decoded.tokens == alone.tokens


def test_the_drafter_changes_no_token_and_gets_the_taps_of_all_tokens_but_the_last(target64, alone):
    drafting = small_drafting()
    by_drafter = propose_by_drafter(drafting)
    seen = []

    def propose(tokens, taps):
        seen.append((len(tokens), len(taps)))
        return by_drafter(tokens, taps)

    decoded = decode_speculatively(target64, drafting.tap_layers, PROMPT, NEW, propose)
    require_same(alone, decoded, "the drafter")
    assert all(taps == tokens - 1 for tokens, taps in seen)


def test_a_differing_token_is_an_error_that_names_it():
    with pytest.raises(DecodeMismatch, match=r"the drafter: token 1 is 9, the target's own is 2"):
        require_same(Decoded([1, 2], [], 0.5), Decoded([1, 9], [1], 0.5), "the drafter")


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
