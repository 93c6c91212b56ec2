import dataclasses
import json
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.shapes import QWEN3_8B as QWEN3_8B_TARGET
from tests.torch.decoding_parts import BLOCK, MASK, document, make_drafting, make_target
from trainer.decoding.draftsession import DraftSession, plain_draft
from trainer.errors import DataInvalid
from trainer.export import ExportError, draft_config, export, require_published
from trainer.exported import load_export, published_tensors
from trainer.model import DraftModel, DraftShape

pytestmark = pytest.mark.torch

QWEN3_8B = DraftShape(
    hidden_size=4096,
    intermediate_size=12288,
    num_layers=5,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    block_size=16,
    target_layer_ids=(1, 9, 17, 25, 33),
    num_target_layers=36,
)
SLIDING = dataclasses.replace(QWEN3_8B, sliding_layers=4, sliding_window=2048)


@pytest.fixture(scope="module")
def target():
    return make_target()


@pytest.fixture(params=[{}, {"sliding_layers": 1, "sliding_window": 6}], ids=["full", "sliding"])
def drafting(request, target):
    return make_drafting(target, **request.param)


@pytest.fixture
def folder(tmp_path, target):
    """A good export, for a test to spoil."""
    drafting = make_drafting(target)
    export(tmp_path / "export", plain_draft(drafting), target.shape, mask_token=MASK, dtype="float32")
    return tmp_path / "export"


def test_a_drafter_of_qwen3_8b_has_the_58_published_tensors():
    tensors = published_tensors(QWEN3_8B)
    assert len(tensors) == 58
    counts = [torch.Size(size).numel() for size in tensors.values()]
    assert sum(counts) == pytest.approx(1048.6e6, rel=1e-4)


def test_the_model_has_the_published_names_and_shapes():
    with torch.device("meta"):
        draft = DraftModel(QWEN3_8B)
    require_published(draft.state_dict(), QWEN3_8B)


def test_another_tensor_or_a_missing_one_is_an_error_that_names_it():
    with torch.device("meta"):
        state = DraftModel(QWEN3_8B).state_dict()
    require_published(state, QWEN3_8B)
    state["layers.0.extra.weight"] = torch.empty(1, device="meta")
    with pytest.raises(ExportError, match=r"layers\.0\.extra\.weight"):
        require_published(state, QWEN3_8B)
    del state["layers.0.extra.weight"], state["norm.weight"]
    with pytest.raises(ExportError, match=r"norm\.weight"):
        require_published(state, QWEN3_8B)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("shape", [QWEN3_8B, SLIDING], ids=["full", "sliding"])
def test_transformers_reads_the_configuration_with_the_same_rope_and_layers(tmp_path, shape):
    told = draft_config(shape, QWEN3_8B_TARGET, mask_token=151669, dtype="bfloat16")
    (tmp_path / "config.json").write_text(json.dumps(told))
    config = transformers.Qwen3Config.from_pretrained(tmp_path)
    assert config.rope_parameters["rope_theta"] == shape.rope_theta
    assert config.layer_types == list(shape.layer_types)
    assert config.sliding_window == shape.sliding_window
    assert config.dflash_config == {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]}
    assert (config.block_size, config.num_target_layers) == (16, 36)
    assert told["rope_theta"] == shape.rope_theta


def test_the_configuration_is_specforge_s_for_the_same_drafters():
    full = draft_config(QWEN3_8B, QWEN3_8B_TARGET, mask_token=151669, dtype="bfloat16")
    sliding = draft_config(SLIDING, QWEN3_8B_TARGET, mask_token=151669, dtype="bfloat16")
    assert (full["use_sliding_window"], full["sliding_window"]) == (False, None)
    assert (sliding["use_sliding_window"], sliding["sliding_window"]) == (True, 2048)
    assert sliding["layer_types"] == ["sliding_attention"] * 4 + ["full_attention"]
    assert full["max_window_layers"] == 5
    assert not full["tie_word_embeddings"]
    assert "auto_map" not in full


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_exported_drafter_is_read_back_as_it_was(tmp_path, target, drafting, dtype):
    export(tmp_path / "export", plain_draft(drafting), target.shape, mask_token=MASK, dtype=dtype)
    draft, mask = load_export(tmp_path / "export")
    assert (draft.shape, mask) == (drafting.shape, MASK)
    assert {parameter.dtype for parameter in draft.parameters()} == {torch.float32}
    for name, value in drafting.draft.state_dict().items():
        stored = value if dtype == "float32" else value.bfloat16().float()
        assert torch.equal(draft.state_dict()[name], stored)
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_an_exported_drafter_drafts_as_before(tmp_path, target, drafting):
    export(tmp_path / "export", plain_draft(drafting), target.shape, mask_token=MASK, dtype="float32")
    draft, _ = load_export(tmp_path / "export")
    taps = torch.randn(9, 64, generator=torch.Generator().manual_seed(1))
    found = []
    for one in (drafting, dataclasses.replace(drafting, draft=draft)):
        session = DraftSession(one)
        session.extend(taps)
        found.append(session.logits(int(document(1, 2).tokens[0])))
    assert torch.equal(found[0], found[1])
    assert found[0].shape == (BLOCK - 1, 260)


def test_an_export_replaces_an_older_one_whole(folder, target):
    (folder / "stray").write_text("old")
    export(folder, plain_draft(make_drafting(target, seed=2)), target.shape, mask_token=MASK, dtype="float32")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_a_mask_token_outside_of_the_vocabulary_is_not_exported(tmp_path, target):
    with pytest.raises(DataInvalid, match="mask_token_id is 260"):
        export(
            tmp_path / "export",
            plain_draft(make_drafting(target)),
            target.shape,
            mask_token=260,
            dtype="float32",
        )
    assert not (tmp_path / "export").exists()


def test_another_s_export_with_the_block_size_inside_and_one_form_of_rope_is_read(folder):
    config = json.loads((folder / "config.json").read_text())
    config["dflash_config"]["block_size"] = config.pop("block_size")
    del config["rope_parameters"]
    (folder / "config.json").write_text(json.dumps(config))
    assert load_export(folder)[0].shape.block_size == BLOCK
    config["rope_parameters"] = {"rope_theta": config.pop("rope_theta"), "rope_type": "default"}
    (folder / "config.json").write_text(json.dumps(config))
    assert load_export(folder)[0].shape.rope_theta == 10000.0


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"architectures": ["LlamaForCausalLM"]}, "architectures"),
    "no dflash_config": ({"dflash_config": None}, "dflash_config"),
    "a width of billions": ({"hidden_size": 10**12}, "hidden_size"),
    "a width of text": ({"hidden_size": "32"}, "hidden_size"),
    "a width that is true": ({"hidden_size": True}, "hidden_size"),
    "a million layers": ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
    "another width": ({"hidden_size": 64}, "tensors differ"),
    "another number of layers": ({"num_hidden_layers": 3, "layer_types": None}, "layer_types"),
    "two values of rope_theta": ({"rope_theta": 5.0}, "2 values of rope_theta"),
    "no rope_theta": ({"rope_theta": float("nan")}, "rope_theta"),
    "scaled positions": ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
    "mixed layers": ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    "a sliding layer without a window": (
        {"layer_types": ["sliding_attention", "full_attention"]}, "sliding_window"
    ),
    "a block of one": ({"block_size": 1}, "block_size"),
    "a mask token past the vocabulary": (
        {"dflash_config": {"mask_token_id": 10**9, "target_layer_ids": [1, 2]}}, "mask_token_id"
    ),
    "no mask token": ({"dflash_config": {"target_layer_ids": [1, 2]}}, "mask_token_id"),
    "a layer that the target lacks": (
        {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 6]}}, "target_layer_ids"
    ),
    "a layer twice": (
        {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 1]}}, "target_layer_ids"
    ),
    "a mask of its own": (
        {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 2], "causal": True}}, "causal"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_configuration_that_cannot_be_is_refused_in_one_line(folder, case):
    change, told = HOSTILE[case]
    config = {**json.loads((folder / "config.json").read_text()), **change}
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, told)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param("[]", id="a list"),
        pytest.param("{", id="cut off"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param(" " * (1 << 21), id="long"),
    ],
)
def test_a_configuration_that_is_none_is_refused_in_one_line(folder, content):
    (folder / "config.json").write_text(content)
    refused(folder, r"config\.json")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff" * 100, id="garbage"),
        pytest.param(b"\x08\0\0\0\0\0\0\0{}      ", id="no tensors"),
    ],
)
def test_damaged_tensors_are_refused_in_one_line(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    refused(folder, "safetensors|tensors differ")


def test_a_missing_or_renamed_tensor_is_refused_by_name(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors.pop("norm.weight")
    save_file(tensors, folder / "model.safetensors")
    refused(folder, r"model\.norm\.weight")


def test_a_folder_that_is_not_there_is_refused_in_one_line(tmp_path):
    refused(tmp_path / "nowhere", "nowhere")


def refused(folder, told: str) -> None:
    with pytest.raises(DataInvalid, match=told) as error:
        load_export(folder)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600
