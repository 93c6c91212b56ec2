"""Dimensions of models that are too large to be here."""

from trainer.target.api import TargetShape

QWEN3_8B = TargetShape(
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    max_position_embeddings=40960,
)
