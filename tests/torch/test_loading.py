import dataclasses
import json

import pytest

from trainer.config import Config, DataConfig, DraftConfig, TargetConfig
from trainer.errors import ConfigInvalid, DataInvalid
from trainer.loading import check_target

pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

TABLE = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "eos_token_id": 2,
}


@pytest.fixture
def foreign(tmp_path):
    """A target that the trainer did not make; its config.json is all that is read here."""
    (tmp_path / "config.json").write_text(json.dumps(TABLE))
    target = TargetConfig(path=str(tmp_path), mask_token=3)
    return Config(target=target, data=DataConfig(source="chat", path="chats.jsonl"))


def test_a_target_that_goes_with_data_and_drafter_gives_its_mask_token(foreign):
    assert check_target(foreign) == 3
    assert check_target(Config(draft=DraftConfig(init="target"))) == 256


def test_layers_of_a_foreign_target_are_not_copied(foreign):
    with pytest.raises(ConfigInvalid, match=r"draft\.init: target, but .* allowed: random"):
        check_target(dataclasses.replace(foreign, draft=DraftConfig(init="target")))


def test_bytes_are_no_tokens_of_a_foreign_target_but_do_for_random_weights(foreign):
    stdlib = dataclasses.replace(foreign, data=DataConfig())
    with pytest.raises(ConfigInvalid, match=r"data\.source: stdlib is bytes, .* allowed: chat, text"):
        check_target(stdlib)
    random = dataclasses.replace(stdlib.target, weights="random")
    assert check_target(dataclasses.replace(stdlib, target=random)) == 3


def test_a_damaged_generation_config_is_named(foreign, tmp_path):
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(DataInvalid, match=r"target .*: generation_config\.json cannot be read: .*; give the"):
        check_target(foreign)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3]}')
    with pytest.raises(ConfigInvalid, match="3 is eos_token_id"):
        check_target(foreign)
