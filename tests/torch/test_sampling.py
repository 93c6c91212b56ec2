"""Speculative sampling must not be told from plain sampling, by the first token or by two together."""

from typing import Any

import pytest
import torch

from tests.torch.decoding_parts import document, make_drafting, make_target
from trainer.decoding import sampling
from trainer.decoding.draftsession import DraftSession, sample_by_drafter
from trainer.decoding.greedy import Proposal
from trainer.decoding.sampling import accept, probabilities, sample_speculatively

pytestmark = pytest.mark.torch

VOCABULARY, DRAWS, TEMPERATURE = 4, 4_000, 0.7
LIMIT = 55.0  # of chi-square with 15 degrees of freedom: passed by chance once in 600,000


class Markov:
    """A language model whose next token depends on the newest one alone: cheap enough for 20,000 draws."""

    def __init__(self) -> None:
        self.logits = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 1.5
        self.device = torch.device("cpu")

    def session(self, tap_layers, *, exact=False):
        return MarkovSession(self.logits)


class MarkovSession:
    def __init__(self, logits) -> None:
        self._logits, self.length = logits, 0

    def run(self, tokens):
        self.length += len(tokens)
        return self._logits[list(tokens)], torch.zeros(len(tokens), 0)

    def truncate(self, length):
        self.length = length


def drafter(generator):
    """Draws three tokens, each from a distribution of its own that is not the target's."""
    drafted = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(2)).double().softmax(-1)

    def propose(tokens, taps):
        return Proposal(torch.multinomial(drafted, 1, generator=generator)[:, 0].tolist(), drafted)

    return propose


def chi_square(counts, expected) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def drawn_by_speculation(model, draws=DRAWS) -> torch.Tensor:
    """How often each pair came as second and third token: both are of verified blocks."""
    generator = torch.Generator().manual_seed(3)
    propose = drafter(generator)
    counts = torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.float64)
    for _ in range(draws):
        decoded = sample_speculatively(
            model, (), [0], 3, propose, temperature=TEMPERATURE, generator=generator
        )
        counts[decoded.tokens[1], decoded.tokens[2]] += 1
    return counts


def exact_pairs(model, draws=DRAWS) -> torch.Tensor:
    step = (model.logits.double() / TEMPERATURE).softmax(-1)
    second = step[0] @ step
    pairs: torch.Tensor = draws * second[:, None] * step
    return pairs


@pytest.mark.slow
def test_speculation_draws_pairs_as_the_target_does():
    model: Any = Markov()
    counts, expected = drawn_by_speculation(model), exact_pairs(model)
    assert expected.min() > 5  # as the statistic needs
    assert chi_square(counts, expected) < LIMIT
    assert chi_square(counts.sum(1), expected.sum(1)) < 30  # 3 degrees of freedom


def keeps_all_that_is_likely_enough(drafted, q, p, generator):
    """Wrong: a token that was not kept is replaced by one of the target's distribution, not of the rest."""
    for index, token in enumerate(drafted):
        if torch.rand((), dtype=torch.float64, generator=generator) * q[index, token] >= p[index, token]:
            return index, int(torch.multinomial(p[index], 1, generator=generator))
    return len(drafted), int(torch.multinomial(p[-1], 1, generator=generator))


def ignores_the_drafter_s_distribution(drafted, q, p, generator):
    """Wrong: a token is kept by the target's probability of it, whatever it was drawn from."""
    for index, token in enumerate(drafted):
        if torch.rand((), dtype=torch.float64, generator=generator) >= p[index, token]:
            residual = (p[index] - q[index]).clamp(min=0)
            return index, int(torch.multinomial(residual, 1, generator=generator))
    return len(drafted), int(torch.multinomial(p[-1], 1, generator=generator))


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [keeps_all_that_is_likely_enough, ignores_the_drafter_s_distribution])
def test_the_check_sees_a_wrong_rule(monkeypatch, wrong):
    model: Any = Markov()
    monkeypatch.setattr(sampling, "accept", wrong)
    assert chi_square(drawn_by_speculation(model, 4000), exact_pairs(model, 4000)) > 2 * LIMIT


def test_chosen_tokens_are_kept_as_often_as_the_target_would_draw_them():
    p = torch.tensor([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    counts = torch.zeros(3, dtype=torch.float64)
    for _ in range(DRAWS):
        kept, following = accept([1], None, p, generator)
        counts[1 if kept else following] += 1
    assert chi_square(counts, DRAWS * p[0]) < 30  # 2 degrees of freedom


def test_what_the_target_never_says_is_never_kept_and_the_same_distribution_always_is():
    p = torch.tensor([[0.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        assert accept([0], torch.tensor([[0.5, 0.5]], dtype=torch.float64), p, generator) == (0, 1)
        assert accept([1], p, p, generator)[0] == 1


@pytest.mark.slow
def test_the_drafter_s_tokens_come_from_the_distributions_that_it_tells():
    target = make_target()
    drafting = make_drafting(target)
    taps = torch.randn(9, 64, generator=torch.Generator().manual_seed(1))
    session = DraftSession(drafting)
    session.extend(taps)
    propose = sample_by_drafter(drafting, 0.5, torch.Generator().manual_seed(6))
    proposal = propose([*range(10)], taps)
    assert proposal.probabilities is not None
    torch.testing.assert_close(proposal.probabilities, probabilities(session.logits(9), 0.5))
    drawn = [propose([*range(10)], taps[:0]).tokens[0] for _ in range(400)]
    likeliest = int(proposal.probabilities[0].argmax())
    share = drawn.count(likeliest) / len(drawn)
    assert share == pytest.approx(float(proposal.probabilities[0, likeliest]), abs=0.1)


def test_sampling_with_the_real_parts_gives_as_many_tokens_as_asked_for():
    target = make_target()
    drafting, generator = make_drafting(target), torch.Generator().manual_seed(7)
    decoded = sample_speculatively(
        target,
        drafting.tap_layers,
        document(9, 3).tokens.tolist(),
        12,
        sample_by_drafter(drafting, 1.0, generator),
        temperature=1.0,
        generator=generator,
    )
    assert len(decoded.tokens) == 12
    assert all(0 <= count < 4 for count in decoded.accepted)
