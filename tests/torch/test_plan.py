import pytest

from trainer.config import Config, DraftConfig, TargetConfig
from trainer.model import DraftModel, draft_shape
from trainer.plan.dims import dims_of, draft_tensors
from trainer.target.api import TargetShape

pytestmark = pytest.mark.torch

SHAPE = TargetShape(
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=9,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    max_position_embeddings=64,
)


@pytest.mark.parametrize(
    ("draft", "source"),
    [
        (DraftConfig(num_layers=2, num_target_layers=3), TargetConfig()),
        (DraftConfig(num_layers=3, intermediate_size=20, sliding_layers=2), TargetConfig(layer_ids=(1, 2))),
    ],
)
def test_the_plan_counts_the_tensors_that_the_drafter_has(draft, source):
    model = DraftModel(draft_shape(SHAPE, draft, source))
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert draft_tensors(dims_of(Config(draft=draft, target=source), SHAPE)) == expected
