import json

import pytest
import torch
import transformers

from tests.torch.decoding_parts import document
from trainer.config import TargetConfig
from trainer.corpus import read_corpus, stdlib_directory
from trainer.errors import DataInvalid
from trainer.target.load import load_target, load_vocabulary, read_shape
from trainer.target.own import TargetModel
from trainer.target.own_files import EMBEDDED, EMBEDDED_SHAPE, config_json, load_own

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def embedded():
    return load_own(EMBEDDED, "cpu", torch.float32)


def test_the_embedded_target_is_small_enough_to_ship(embedded):
    assert (EMBEDDED / "model.safetensors").stat().st_size <= 12_000_000
    assert 4e6 < sum(p.numel() for p in embedded.parameters()) < 6e6
    assert embedded.shape == EMBEDDED_SHAPE


def test_its_configuration_is_the_one_that_training_writes():
    assert json.loads((EMBEDDED / "config.json").read_text()) == config_json(EMBEDDED_SHAPE)


def test_the_embedded_target_knows_python_it_was_not_trained_on(embedded):
    corpus = read_corpus(stdlib_directory("auto"))
    text = b"".join(source.text for source in corpus.held_out[:4])[:2048]
    windows = torch.tensor(list(text)).unflatten(0, (8, 256))
    logits = embedded(windows[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    assert loss < 1.2  # nats a byte; a uniform guess is 5.5


@pytest.mark.filterwarnings("default")
def test_the_embedded_target_is_a_qwen3_to_transformers_too(embedded):
    theirs = transformers.Qwen3ForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32).eval()
    tokens = document(30, 1).tokens[None]
    with torch.no_grad():
        output = theirs(tokens, output_hidden_states=True)
    ours = embedded(tokens, tap_layers=(1, 3))
    torch.testing.assert_close(ours.logits, output.logits, atol=2e-3, rtol=1e-3)
    taps = torch.cat((output.hidden_states[2], output.hidden_states[4]), dim=-1)
    torch.testing.assert_close(ours.taps, taps, atol=2e-3, rtol=1e-3)


def test_the_configured_default_is_the_embedded_target_and_its_vocabulary(embedded):
    target = load_target(TargetConfig(), "cpu", torch.float32)
    assert isinstance(target, TargetModel)
    assert not any(parameter.requires_grad for parameter in target.parameters())
    vocabulary = load_vocabulary(TargetConfig(), "cpu", torch.float32)
    assert torch.equal(vocabulary.head, embedded.head)
    assert read_shape(TargetConfig()) == EMBEDDED_SHAPE


def test_random_weights_have_the_shape_and_are_the_same_each_time(embedded):
    config = TargetConfig(weights="random")
    one, other = (load_vocabulary(config, "cpu", torch.float32) for _ in range(2))
    assert torch.equal(one.embedding, other.embedding)
    assert one.embedding.shape == embedded.embedding.shape
    assert not torch.equal(one.embedding, embedded.embedding)


def test_a_folder_with_our_configuration_and_no_weights_is_told_with_its_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_json(EMBEDDED_SHAPE)))
    with pytest.raises(DataInvalid, match=str(tmp_path)) as error:
        load_target(TargetConfig(path=str(tmp_path)), "cpu", torch.float32)
    assert "\n" not in str(error.value)
