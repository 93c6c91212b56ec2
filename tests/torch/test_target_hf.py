import dataclasses
import json
from typing import Any

import pytest
import torch
import transformers

from tests.torch.reading import NoReading
from trainer.batch import Document, pack
from trainer.config import Config, DraftConfig, TargetConfig
from trainer.decoding.draftsession import propose_by_drafter
from trainer.decoding.greedy import (
    Proposal,
    decode_alone,
    decode_speculatively,
    propose_by_lookup,
    require_same,
)
from trainer.drafting import Drafting, begin_draft
from trainer.errors import ConfigInvalid, DataInvalid
from trainer.model import draft_shape
from trainer.target.hf import HfTarget
from trainer.target.load import (
    load_target,
    load_vocabulary,
    mask_token,
    read_shape,
    target_sha256,
)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),
]  # transformers warns of its own doings

TAPS = (1, 3)
DIMS = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
HEADLESS = {key: value for key, value in DIMS.items() if key != "head_dim"}
CONFIGS = {
    "Qwen3": transformers.Qwen3Config(**DIMS),
    "Llama, tied": transformers.LlamaConfig(**DIMS, tie_word_embeddings=True),
    "GPT-2, learned positions": transformers.GPT2Config(
        vocab_size=100, n_embd=32, n_layer=4, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=1
    ),
    "Gemma 3, sliding and a scaled embedding": transformers.Gemma3TextConfig(
        **DIMS, sliding_window=6, layer_types=["sliding_attention", "full_attention"] * 2
    ),
    "Qwen3.5, linear attention": transformers.Qwen3_5TextConfig(**DIMS, **LINEAR),
}


def model_of(config):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def document(length: int, seed: int) -> Document:
    tokens = torch.randint(0, 100, (length,), generator=torch.Generator().manual_seed(seed))
    return Document(tokens, torch.ones(length, dtype=torch.bool))


@pytest.fixture(scope="module", params=CONFIGS)
def target(request):
    return HfTarget(model_of(CONFIGS[request.param]), request.param)


@pytest.mark.parametrize("last", [False, True])
def test_observing_reads_no_value_for_which_a_gpu_would_be_waited_for(target, last):
    batch = pack([[document(5, 1), document(5, 2), document(9, 3)], [document(12, 4)]], 24)
    with NoReading():
        target.observe(batch, TAPS, last=last)


@torch.no_grad()
def test_a_document_behind_another_is_seen_as_if_alone_and_padding_is_zero(target):
    first, second = document(13, 1), document(9, 2)
    seen = target.observe(pack([[first, second], [second]], 24), TAPS, last=True)
    output = target._model(input_ids=second.tokens[None], output_hidden_states=True)
    taps = torch.cat((output.hidden_states[2][0], _after_last(target, second)), dim=-1)
    for row, start in ((0, 13), (1, 0)):
        part = slice(start, start + 9)
        torch.testing.assert_close(seen.taps[row, part], taps, rtol=1e-4, atol=1e-4)
        logits = seen.last[row, part] @ target.head.T
        torch.testing.assert_close(logits, output.logits[0], rtol=1e-4, atol=1e-4)
    assert not seen.taps[0, 22:].any()
    assert not seen.taps[1, 9:].any()
    assert not seen.last[1, 9:].any()


def _after_last(target, item):
    """After the last layer: transformers lists only what follows its norm."""
    kept = []
    handle = target._layers[3].register_forward_hook(
        lambda _module, _inputs, output: kept.append(output[0] if isinstance(output, tuple) else output)
    )
    target._model(input_ids=item.tokens[None])
    handle.remove()
    return kept[0][0]


def test_a_run_without_the_last_ends_at_the_highest_tap_and_leaves_no_hook(target):
    batch = pack([[document(13, 1)]], 13)
    before = [len(layer._forward_hooks) for layer in target._layers]  # transformers keeps some of its own
    ran = []
    handle = target._layers[2].register_forward_hook(lambda *_: ran.append(2))
    low = target.observe(batch, (0, 1), last=False)
    handle.remove()
    assert ran == []
    torch.testing.assert_close(low.taps[..., 32:], target.observe(batch, TAPS, last=True).taps[..., :32])
    assert [len(layer._forward_hooks) for layer in target._layers] == before


@pytest.mark.parametrize("exact", [False, True])
def test_a_session_that_goes_back_and_forth_gives_what_one_run_gives(target, exact):
    tokens = document(20, 5).tokens.tolist()
    logits, taps = target.session(TAPS, exact=exact).run(tokens)
    session = target.session(TAPS, exact=exact)
    close: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(session.run(tokens[:7])[0], logits[:7], **close)
    session.run([*tokens[7:12], 1, 2, 3])
    session.truncate(12)
    torch.testing.assert_close(session.run(tokens[12:13])[0], logits[12:13], **close)
    session.run(tokens[13:20])
    session.truncate(14)
    assert session.length == 14
    torch.testing.assert_close(session.run(tokens[14:17])[1], taps[14:17], **close)
    session.truncate(3)  # further back than anything that was kept
    rest, rest_taps = session.run(tokens[3:])
    torch.testing.assert_close(rest, logits[3:], **close)
    torch.testing.assert_close(rest_taps, taps[3:], **close)


def test_capped_logits_are_refused_with_the_reason():
    config = transformers.Gemma2Config(**DIMS, sliding_window=6)
    with pytest.raises(ConfigInvalid, match="final_logit_softcapping"):
        HfTarget(model_of(config), "capped")


def test_a_head_with_a_bias_is_refused_with_the_reason():
    config = transformers.PhiConfig(**HEADLESS)
    with pytest.raises(ConfigInvalid, match="bias"):
        HfTarget(model_of(config), "biased")


def test_logits_that_are_scaled_after_the_head_are_refused():
    config = transformers.CohereConfig(**HEADLESS, logit_scale=0.25)
    with pytest.raises(ConfigInvalid, match="its logits are not its head's matrix times"):
        HfTarget(model_of(config), "scaled")


@pytest.fixture(scope="module", params=CONFIGS)
def saved(request, tmp_path_factory):
    """A model's directory in several files, and the model."""
    directory = tmp_path_factory.mktemp("model")
    model = model_of(CONFIGS[request.param])
    model.save_pretrained(directory, max_shard_size="20KB")
    return TargetConfig(path=str(directory)), HfTarget(model, request.param)


def test_a_directory_loads_as_the_model_that_was_saved(saved):
    config, model = saved
    loaded = load_target(config, "cpu", torch.float32)
    batch = pack([[document(13, 1)]], 13)
    seen, expected = (one.observe(batch, TAPS, last=True) for one in (loaded, model))
    assert torch.equal(seen.taps, expected.taps)
    assert seen.last is not None
    assert expected.last is not None
    assert torch.equal(seen.last, expected.last)
    assert loaded.shape == read_shape(config)


def test_the_vocabulary_alone_is_that_of_the_whole_model(saved):
    config, model = saved
    vocabulary = load_vocabulary(config, "cpu", torch.float32)
    torch.testing.assert_close(vocabulary.embedding, model.embedding)
    assert torch.equal(vocabulary.head, model.head)


def test_reading_the_vocabulary_reads_no_other_tensor(saved, monkeypatch):
    config, model = saved
    monkeypatch.setattr("trainer.target.load._read_model", None)
    torch.testing.assert_close(load_vocabulary(config, "cpu", torch.float32).head, model.head)


@pytest.mark.parametrize("name", ["Qwen3", "Llama, tied"])
def test_random_weights_are_the_same_on_a_rank_that_holds_the_vocabulary_alone(tmp_path, name):
    CONFIGS[name].save_pretrained(tmp_path)
    config = TargetConfig(path=str(tmp_path), weights="random")
    target = load_target(config, "cpu", torch.float32)
    vocabulary = load_vocabulary(config, "cpu", torch.float32)
    assert torch.equal(vocabulary.embedding, target.embedding)
    assert torch.equal(vocabulary.head, target.head)
    assert 0.015 < target.head.std() < 0.025
    other = load_target(config, "cpu", torch.float32)
    assert torch.equal(other.head, target.head)
    assert not torch.equal(target.embedding, target.head) or name == "Llama, tied"


@pytest.mark.parametrize(("name", "layers", "width"), [("qwen3-8b", 36, 4096), ("qwen3.6-27b", 64, 5120)])
def test_the_shipped_shapes_are_known_to_transformers(name, layers, width):
    shape = read_shape(TargetConfig(path=name, weights="random"))
    assert (shape.num_hidden_layers, shape.hidden_size) == (layers, width)
    assert shape.rope_theta in (1e6, 1e7)


def test_a_shape_cannot_be_loaded_and_says_so():
    with pytest.raises(ConfigInvalid, match=r"target\.weights=random"):
        load_target(TargetConfig(path="qwen3-8b"), "cpu", torch.float32)


@pytest.mark.parametrize(
    ("token", "told"),
    [(-1, "is not said"), (100, "100 is not in the vocabulary, of 100 rows"), (1, "1 is eos_token_id"),
     (0, "0 is pad_token_id")],
)  # fmt: skip
def test_a_mask_token_that_stands_for_something_else_is_refused(tmp_path, token, told):
    CONFIGS["Qwen3"].save_pretrained(tmp_path)
    config = TargetConfig(path=str(tmp_path), mask_token=token)
    with pytest.raises(ConfigInvalid, match=rf"target\.mask_token: .*{told}"):
        mask_token(config)
    assert mask_token(dataclasses.replace(config, mask_token=99)) == 99


def test_the_embedded_target_names_its_own_mask_token():
    assert mask_token(TargetConfig()) == 256
    assert mask_token(TargetConfig(mask_token=257)) == 257


@pytest.mark.parametrize("content", [None, "{", "[]", json.dumps({"model_type": "no-such-model"})])
def test_a_directory_that_is_no_model_is_one_line_with_its_name(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    config = TargetConfig(path=str(tmp_path))
    for call in (load_target, load_vocabulary):
        with pytest.raises(DataInvalid, match=str(tmp_path)) as error:
            call(config, "cpu", torch.float32)
        assert "\n" not in str(error.value)


def test_the_fingerprint_changes_with_a_weight_and_with_the_configuration(saved, tmp_path):
    config, _ = saved
    before = target_sha256(config)
    assert target_sha256(config) == before
    assert target_sha256(dataclasses.replace(config, weights="random")) != before
    assert target_sha256(TargetConfig()) != before


def test_speculation_on_any_architecture_gives_its_own_greedy_tokens(target):
    config = dataclasses.replace(
        Config(seed=1), draft=DraftConfig(num_layers=1, block_size=4, num_target_layers=2)
    )
    config = dataclasses.replace(config, target=TargetConfig(layer_ids=(1, 2)))
    shape = draft_shape(target.shape, config.draft, config.target)
    draft = begin_draft(config, shape, None, torch.device("cpu"))
    drafting = Drafting(config, shape, draft, target, 99, torch.float32)
    prompt = document(9, 3).tokens.tolist()
    alone = decode_alone(target, prompt, 16)
    for propose in (propose_by_drafter(drafting), propose_by_lookup(1, 3)):
        together = decode_speculatively(target, (1, 2), prompt, 16, propose)
        require_same(alone, together, "the drafter")
    future = [*prompt, *decode_alone(target, prompt, 20).tokens]

    def half_right(tokens, _):
        right = future[len(tokens) : len(tokens) + 3]
        return Proposal([*right[:2], (right[2] + 1) % 100])

    together = decode_speculatively(target, (), prompt, 16, half_right)
    assert together.tokens == alone.tokens
    assert set(together.accepted) == {2}
