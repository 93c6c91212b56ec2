import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainer.config import LossConfig
from trainer.loss import LossTerms, accepted_lengths, chunked_loss, decay_weights, dpace_weights

pytestmark = pytest.mark.torch

ROWS, SLOTS, BLOCK, WIDTH, VOCAB = 2, 5, 4, 6, 101
OBJECTIVES = ["decay", "dpace"]
LABELS = ["data", "target"]


class Case:
    """Random float64 inputs with holes: every third position is masked, and the last slot is empty."""

    def __init__(self, labels: str = "data", dtype: torch.dtype = torch.float64) -> None:
        random = torch.Generator().manual_seed(5)
        shape = (ROWS, SLOTS * BLOCK)
        self.hidden = torch.randn(*shape, WIDTH, generator=random, dtype=torch.float64).to(dtype)
        self.head = torch.randn(VOCAB, WIDTH, generator=random, dtype=torch.float64).to(dtype)
        ids = torch.randint(0, VOCAB, shape, generator=random)
        teacher = torch.randn(*shape, WIDTH, generator=random, dtype=torch.float64).to(dtype)
        self.ids = ids if labels == "data" else None
        self.teacher = teacher if labels == "target" else None
        self.weights = (torch.arange(shape[1]) % 3 != 1).float().repeat(ROWS, 1)
        self.weights[:, -BLOCK:] = 0

    def terms(self, config: LossConfig) -> LossTerms:
        self.hidden.requires_grad_()
        return chunked_loss(self.hidden, self.head, self.ids, self.teacher, self.weights, config, BLOCK)

    def run(self, config: LossConfig) -> tuple[LossTerms, torch.Tensor]:
        terms = self.terms(config)
        (gradient,) = torch.autograd.grad(terms.total, self.hidden)
        return terms, gradient


def plain_weights(case: Case, log_q: torch.Tensor, labels: torch.Tensor, config: LossConfig) -> torch.Tensor:
    """The weights a position at a time, in Python."""
    weights = torch.zeros(ROWS, SLOTS * BLOCK, dtype=torch.float64)
    for row in range(ROWS):
        for slot in range(SLOTS):
            places = [slot * BLOCK + k for k in range(1, BLOCK)]
            places = [place for place in places if case.weights[row, place]]
            chances = [math.exp(log_q[row, place, labels[row, place]]) for place in places]
            alpha = config.dpace_alpha
            smooth = [(1 - alpha) * chance + alpha for chance in chances]
            for index, place in enumerate(places):
                reached = [math.prod(smooth[: last + 1]) for last in range(index, len(places))]
                decayed = math.exp(-(place % BLOCK - 1) / config.gamma)
                weights[row, place] = sum(reached) if config.objective == "dpace" else decayed
    return weights


def plain_loss(case: Case, config: LossConfig) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Full logits, no chunks, autograd's own gradient."""
    hidden = case.hidden.detach().double().requires_grad_()
    head = case.head.double()
    log_q = torch.log_softmax(hidden @ head.T, dim=-1)
    if case.teacher is None:
        assert case.ids is not None
        labels = case.ids
        losses = -log_q.gather(-1, labels[..., None])[..., 0]
    else:
        log_p = torch.log_softmax(case.teacher.double() @ head.T, dim=-1)
        labels = log_p.argmax(dim=-1)
        losses = (log_p.exp() * (log_p - log_q)).sum(dim=-1)
    weights = plain_weights(case, log_q.detach(), labels, config)
    counted = weights > 0
    total = (losses * weights).sum()
    (gradient,) = torch.autograd.grad(total, hidden)
    sums = {
        "total": total.detach(),
        "weight": weights.sum(),
        "correct": ((log_q.argmax(dim=-1) == labels) & counted).sum().double(),
        "counted": counted.sum().double(),
    }
    return sums, gradient


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("chunk_tokens", [1, 9, 12, 1 << 20])
def test_the_chunked_loss_and_its_gradient_are_those_of_full_logits(labels, objective, chunk_tokens):
    config = LossConfig(objective=objective, labels=labels, chunk_tokens=chunk_tokens, dpace_alpha=0.3)
    case = Case(labels)
    terms, gradient = case.run(config)
    expected, expected_gradient = plain_loss(case, config)
    assert {name: getattr(terms, name).dtype for name in expected} == dict.fromkeys(expected, torch.float64)
    for name, value in expected.items():
        torch.testing.assert_close(getattr(terms, name).detach(), value, rtol=1e-10, atol=0.0, msg=name)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-13)
    assert expected_gradient.abs().sum() > 1
    assert 0 < expected["counted"] < ROWS * (SLOTS - 1) * (BLOCK - 1)


@pytest.mark.parametrize("labels", LABELS)
def test_only_the_total_has_a_gradient_and_it_is_multiplied_by_what_comes_back(labels):
    case = Case(labels)
    terms, gradient = case.run(LossConfig(labels=labels))
    assert terms.total.requires_grad
    assert not any(term.requires_grad for term in (terms.weight, terms.correct, terms.counted))
    again = case.terms(LossConfig(labels=labels)).total
    (scaled,) = torch.autograd.grad(again / 7, case.hidden)
    torch.testing.assert_close(scaled, gradient / 7, rtol=1e-12, atol=0.0)


def test_without_gradients_the_same_sums_come_out_and_no_gradient_is_made():
    case = Case()
    terms = case.terms(LossConfig())
    with torch.no_grad(), Largest() as largest:
        quiet = case.terms(LossConfig())
    assert not quiet.total.requires_grad
    assert (quiet.total, quiet.weight, quiet.correct) == (terms.total, terms.weight, terms.correct)
    assert case.hidden.shape not in largest.shapes


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_what_does_not_count_may_hold_anything_and_gets_no_gradient(labels, objective, poison):
    config = LossConfig(objective=objective, labels=labels, chunk_tokens=8)
    clean, clean_gradient = Case(labels).run(config)
    case = Case(labels)
    ignored = case.weights == 0
    ignored[:, ::BLOCK] = True
    case.hidden[ignored] = poison
    if case.teacher is not None:
        case.teacher[ignored] = poison
    terms, gradient = case.run(config)
    assert (terms.total, terms.weight, terms.correct) == (clean.total, clean.weight, clean.correct)
    assert torch.equal(gradient, clean_gradient)
    assert not gradient[ignored].any()
    assert gradient[~ignored].any(dim=-1).all()


@pytest.mark.parametrize("labels", LABELS)
def test_a_bad_number_that_counts_is_not_hidden(labels):
    case = Case(labels)
    case.hidden[0, 2] = math.nan
    terms, gradient = case.run(LossConfig(labels=labels))
    assert terms.total.isnan()
    assert gradient[0, 2].isnan().all()


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_where_nothing_counts_everything_is_zero(labels, objective):
    case = Case(labels)
    case.weights.zero_()
    terms, gradient = case.run(LossConfig(objective=objective, labels=labels))
    assert not any((terms.total, terms.weight, terms.correct, terms.counted))
    assert not gradient.any()


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_logits_far_apart_stay_finite(labels, objective):
    case = Case(labels, torch.float32)
    case.hidden *= 1e4
    if case.teacher is not None:
        case.teacher *= 1e4
    terms, gradient = case.run(LossConfig(objective=objective, labels=labels))
    assert terms.total.isfinite()
    assert terms.total > 1e3
    assert gradient.isfinite().all()


def test_a_drafter_that_is_the_target_has_no_divergence_and_no_gradient():
    case = Case("target")
    case.teacher = case.hidden.detach().clone()
    terms, gradient = case.run(LossConfig(labels="target"))
    assert terms.total == 0
    assert not gradient.any()
    assert terms.correct == terms.counted > 0


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_bfloat16_agrees_with_float64_within_its_rounding(labels, objective):
    config = LossConfig(objective=objective, labels=labels, chunk_tokens=8)
    case = Case(labels, torch.bfloat16)
    terms, gradient = case.run(config)
    expected, expected_gradient = plain_loss(case, config)
    assert (terms.total.dtype, gradient.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(terms.total.detach().double(), expected["total"], rtol=1e-2, atol=0.0)
    off = (gradient.double() - expected_gradient).norm() / expected_gradient.norm()
    assert off < 1e-2


def test_the_scale_of_a_bfloat16_gradient_is_not_rounded_to_bfloat16():
    case = Case("data", torch.bfloat16)
    scale = 1.0 + 2**-9 + 2**-10  # between two bfloat16 numbers, 1 and 1 + 2**-7, and nearer to 1
    case.hidden.requires_grad_()
    (plain,) = torch.autograd.grad(case.terms(LossConfig()).total, case.hidden)
    (scaled,) = torch.autograd.grad(case.terms(LossConfig()).total * scale, case.hidden)
    assert torch.equal(scaled, (plain.float() * scale).bfloat16())
    assert not torch.equal(scaled, plain)


class Largest(TorchDispatchMode):
    """Shapes of all that is allocated while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[torch.Size] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if is_tensor(leaf)}
        for leaf in tree_leaves(out):
            if is_tensor(leaf) and leaf.untyped_storage().data_ptr() not in given:
                self.shapes.add(leaf.shape)
        return out

    @property
    def numel(self) -> int:
        return max(shape.numel() for shape in self.shapes)


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_tensor_is_larger_than_the_logits_of_one_chunk(labels, objective):
    case = Case(labels)
    config = LossConfig(objective=objective, labels=labels, chunk_tokens=2 * BLOCK)
    with Largest() as largest:
        case.run(config)
    assert largest.numel == 2 * (BLOCK - 1) * VOCAB  # the anchors' rows are not made at all
    config = LossConfig(objective=objective, labels=labels, chunk_tokens=1 << 20)
    with Largest() as largest:
        case.run(config)
    assert largest.numel == ROWS * SLOTS * (BLOCK - 1) * VOCAB


def test_a_chunk_is_rounded_up_to_whole_blocks():
    case = Case()
    for tokens, blocks in [(1, 1), (BLOCK, 1), (BLOCK + 1, 2)]:
        with Largest() as largest:
            case.run(LossConfig(chunk_tokens=tokens))
        assert largest.numel == blocks * (BLOCK - 1) * VOCAB


@pytest.mark.parametrize(("ids", "teacher"), [(True, True), (False, False)])
def test_labels_and_teacher_exclude_each_other(ids, teacher):
    case, other = Case("data"), Case("target")
    case.ids = case.ids if ids else None
    case.teacher = other.teacher if teacher else None
    with pytest.raises(ValueError, match="either labels or a teacher"):
        case.terms(LossConfig())


def test_weights_decay_from_one_and_the_anchor_has_none():
    expected = torch.tensor([0.0, 1.0, 0.7788008, 0.6065307])
    torch.testing.assert_close(decay_weights(4, 4.0), expected)


def test_dpace_weights_of_a_worked_example():
    confidences, counted = torch.tensor([[0.5, 0.9, 0.0]]), torch.tensor([[True, False, True]])
    # s = 0.75 and 0.5; the hole multiplies by 1 and is not in the sum: 0.75 + 0.375, 0, 0.375
    torch.testing.assert_close(dpace_weights(confidences, counted, 0.5), torch.tensor([[1.125, 0.0, 0.375]]))


def test_acceptance_ends_at_the_first_difference():
    drafted = torch.tensor([[1, 2, 3], [9, 2, 3], [1, 9, 3]])
    assert accepted_lengths(drafted, torch.tensor([1, 2, 3])).tolist() == [3, 0, 1]
