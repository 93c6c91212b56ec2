from typing import Any

import pytest
import torch

from tests.torch.decoding_parts import document, make_target
from tests.torch.reading import NoReading
from trainer.batch import Document, pack
from trainer.target.own import TargetModel

pytestmark = pytest.mark.torch

TAPS = (3, 1)


@pytest.fixture(scope="module")
def target():
    return make_target()


def alone(target: TargetModel, item: Document) -> tuple[torch.Tensor, torch.Tensor]:
    seen = target.observe(pack([[item]], len(item.tokens)), TAPS, last=True)
    assert seen.last is not None
    return seen.taps[0], seen.last[0]


def test_documents_of_a_row_are_seen_as_each_by_itself(target):
    first, second, third = document(13, 1), document(9, 2), document(20, 3)
    seen = target.observe(pack([[first, second], [third]], 24), TAPS, last=True)
    for row, start, item in ((0, 0, first), (0, 13, second), (1, 0, third)):
        part = slice(start, start + len(item.tokens))
        taps, last = alone(target, item)
        torch.testing.assert_close(seen.taps[row, part], taps, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(seen.last[row, part], last, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("last", [False, True])
def test_observing_reads_no_value_for_which_a_gpu_would_be_waited_for(target, last):
    batch = pack([[document(5, 1), document(5, 2), document(9, 3)], [document(12, 4)]], 24)
    with NoReading():
        target.observe(batch, TAPS, last=last)


def test_padding_is_zero_and_changes_nothing(target):
    item = document(13, 1)
    seen = target.observe(pack([[item], []], 24), TAPS, last=True)
    torch.testing.assert_close(seen.taps[0, :13], alone(target, item)[0], rtol=1e-4, atol=1e-4)
    assert not seen.taps[0, 13:].any()
    assert not seen.last[0, 13:].any()
    assert not seen.taps[1].any()


def test_a_document_after_another_is_not_what_it_would_be_without_isolation(target):
    first, second = document(13, 1), document(9, 2)
    joined = Document(torch.cat((first.tokens, second.tokens)), torch.ones(22, dtype=torch.bool))
    seen = target.observe(pack([[first, second]], 22), TAPS, last=False)
    assert not torch.allclose(seen.taps[0, 13:], alone(target, joined)[0][13:])


def test_taps_are_in_the_order_asked_for_and_are_the_whole_run_s(target):
    item = document(11, 4)
    output = target(item.tokens[None], tap_layers=(1, 3))
    seen = target.observe(pack([[item]], 11), TAPS, last=True)
    assert torch.equal(seen.taps[0, :, 32:], output.taps[0, :, :32])
    assert torch.equal(seen.taps[0, :, :32], output.taps[0, :, 32:])
    torch.testing.assert_close(seen.last @ target.head.T, output.logits)


def test_without_the_last_the_layers_above_the_highest_tap_do_not_run(target):
    ran = []
    handles = [
        layer.register_forward_hook(lambda *_, index=index: ran.append(index))
        for index, layer in enumerate(target.layers)
    ]
    item = document(11, 4)
    seen = target.observe(pack([[item]], 11), TAPS, last=False)
    for handle in handles:
        handle.remove()
    assert ran == [0, 1, 2, 3]
    assert seen.last is None


@pytest.mark.parametrize("exact", [False, True])
def test_a_session_that_goes_back_and_forth_gives_what_one_run_gives(target, exact):
    tokens = document(20, 5).tokens.tolist()
    whole_logits, whole_taps = target.session(TAPS, exact=exact).run(tokens)
    session = target.session(TAPS, exact=exact)
    first, _ = session.run(tokens[:7])
    session.run([*tokens[7:12], 1, 2, 3])
    session.truncate(12)
    one, one_taps = session.run(tokens[12:13])
    assert session.length == 13
    session.truncate(9)
    rest, rest_taps = session.run(tokens[9:])
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11} if exact else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(first, whole_logits[:7], **close)
    torch.testing.assert_close(one, whole_logits[12:13], **close)
    torch.testing.assert_close(one_taps, whole_taps[12:13], **close)
    torch.testing.assert_close(rest, whole_logits[9:], **close)
    torch.testing.assert_close(rest_taps, whole_taps[9:], **close)
    assert whole_logits.dtype == (torch.float64 if exact else torch.float32)


def test_the_float64_copy_is_no_part_of_the_model(target):
    target.session(TAPS, exact=True)
    assert len(target.state_dict()) == 2 + 11 * 6
