import dataclasses
import math
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.shapes import QWEN3_8B
from trainer.config import Config, DataConfig, DraftConfig, LossConfig
from trainer.errors import ConfigInvalid
from trainer.plan import Forecast, Rank, forecast, require_fit, shards, useful_flops
from trainer.plan.dims import dims_of, draft_parameters, draft_tensors, target_parameters
from trainer.settings import load
from trainer.target.api import TargetShape

SMALL = TargetShape(
    vocab_size=10,
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    max_position_embeddings=64,
)
LAYER = 2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 12 + 2 * 8 + 2 * 4  # q and o, k and v, MLP, norms
PARAMETERS = 16 * 8 + 2 * 8 + LAYER  # the fusion of two taps, two norms, one layer


def small(**tables: dict[str, Any]) -> Config:
    """R=1, T=32, A=2, S=4, Q=8, K=40, L=1, N=2, M=1, H=4, D=8, F=12, E=16, V=10; chunks of one block."""
    config = Config(
        data=DataConfig(batch_rows=1, context_tokens=32, anchors=2),
        draft=DraftConfig(num_layers=1, block_size=4, num_target_layers=2),
        loss=LossConfig(chunk_tokens=4),
    )
    return change(config, **tables)


def change(config: Config, **tables: dict[str, Any]) -> Config:
    changed = {name: dataclasses.replace(getattr(config, name), **keys) for name, keys in tables.items()}
    return dataclasses.replace(config, **changed)


def sizes(rank: Rank) -> dict[str, int]:
    return {item.name.removesuffix(" (each layer)"): item.bytes for item in rank.items}


def test_the_drafter_of_qwen3_8b_has_the_published_tensors():
    tensors = draft_tensors(dims_of(load("seed-8gpu", []), QWEN3_8B))
    assert len(tensors) == 58
    assert round(sum(math.prod(size) for size in tensors.values()) / 1e6, 1) == 1048.6
    assert tensors["fc.weight"] == (4096, 20480)


def test_the_dense_target_of_that_shape_has_its_published_number_of_parameters():
    assert target_parameters(QWEN3_8B) == 8_190_735_360


def test_what_a_drafter_holds_from_step_to_step_by_hand():
    found = sizes(forecast(small(), SMALL).worst)
    assert found["parameters"] == 4 * PARAMETERS
    assert found["AdamW's moments"] == 8 * PARAMETERS
    assert found["taps"] == 32 * 16 * 2
    assert found["target's weights"] == 2 * (2 * 10 * 8 + 3 * LAYER + 8)
    assert found["GPU context and workspaces"] == 1 << 30
    assert "gradients not reduced yet" not in found


def test_one_drafter_holds_gradients_only_as_they_come_and_several_or_accumulation_all_the_time():
    alone = forecast(small(), SMALL).worst
    assert alone.moment == "attention's backward"
    assert sizes(alone)["gradients"] == (4 + 2) * (LAYER - 2 * 8 - 2 * 4)
    for config, drafters in ((small(), 2), (small(optim={"micro_batches": 2}), 1)):
        assert sizes(forecast(config, SMALL, drafters).worst)["gradients"] == 4 * PARAMETERS
    # A context of a few tokens saves little, and at its end the backward has every layer's gradient.
    deep = small(draft={"num_layers": 9}, data={"anchors": 1}, parallel={"placement": "cached"})
    assert forecast(deep, SMALL).worst.moment == "backward's end"


def test_what_a_layer_saves_by_hand():
    found = sizes(forecast(small(), SMALL).worst)
    queries, keys = 8, 40
    assert found["x"] == found["x, normed"] == 2 * queries * 8
    assert found["q, projected"] == found["q, normed and rotated"] == 2 * queries * 2 * 4
    assert found["k, projected"] == found["v"] == 2 * keys * 1 * 4
    assert "gate" not in found  # gone when its attention's gradients are made
    assert found["logsumexp"] == 4 * queries * 2
    assert found["cast weights"] == 2 * (PARAMETERS - 2 * 8 - 2 * 8 - 2 * 4)  # all but norms
    assert "dense scores" not in found
    wide = sizes(forecast(small(draft={"intermediate_size": 48}), SMALL).worst)
    assert wide["gate"] == wide["up"] == wide["silu(gate) * up"] == 2 * queries * 48
    assert wide["x, attended"] == wide["x, attended and normed"] == 2 * queries * 8


def test_the_moment_with_the_most_is_the_one_told():
    # One block's logits are 3 x 10 float32; the backward of a layer is more, of its wider part the most.
    assert forecast(small(), SMALL).worst.moment == "attention's backward"
    assert forecast(small(draft={"intermediate_size": 48}), SMALL).worst.moment == "MLP's backward"
    wide = dataclasses.replace(SMALL, vocab_size=1000)
    rank = forecast(small(), wide).worst
    assert rank.moment == "loss"
    assert sizes(rank)["loss chunk, logits and their softmax"] == 3 * 1000 * 4
    on_cpu = sizes(forecast(small(compute={"device": "cpu"}), wide).worst)
    assert on_cpu["loss chunk, logits and their softmax"] == 2 * 3 * 1000 * 4
    deep = dataclasses.replace(SMALL, intermediate_size=500)
    assert forecast(small(draft={"intermediate_size": 4}), deep).worst.moment == "target's forward"


def test_distillation_holds_the_target_s_logits_and_hidden_states_too():
    wide = dataclasses.replace(SMALL, vocab_size=1000)
    found = sizes(forecast(small(loss={"labels": "target"}), wide).worst)
    assert found["loss chunk, logits and their softmax"] == 3 * 3 * 1000 * 4
    assert found["target's last hidden states"] == 32 * 8 * 2
    assert found["teacher's head inputs"] == 8 * 8 * 2


def test_the_cpu_computes_in_float32_with_dense_scores_and_has_no_context():
    found = sizes(forecast(small(compute={"device": "cpu"}), SMALL).worst)
    assert found["dense scores"] == 4 * 2 * 8 * 40
    assert found["x"] == 4 * 8 * 8
    assert found["GPU context and workspaces"] == 0
    assert "cast weights" not in found


def test_drafters_that_share_out_hold_their_part_and_gather_a_layer_at_a_time():
    replicated = sizes(forecast(small(parallel={"shard": "replicate"}), SMALL, 4).worst)
    alone = sizes(forecast(small(), SMALL).worst)
    assert {**replicated, "gradients": 0} == {**alone, "gradients": 0}
    shared = sizes(forecast(small(parallel={"shard": "full", "placement": "cached"}), SMALL, 4).worst)
    assert shared["parameters"] == shared["gradients"] == 4 * -(-PARAMETERS // 4)
    assert shared["gathered layers"] == (3 * 2 + 4) * (LAYER - 2 * 8 - 2 * 4)
    assert shared["gathered fusion"] == 16 * 8 * 2
    assert "cast weights" not in shared


@pytest.mark.parametrize("shard", ["replicate", "full"])
def test_gradients_that_are_accumulated_over_several_drafters_are_held_twice(shard):
    config = small(parallel={"shard": shard}, optim={"micro_batches": 4})
    assert "gradients not reduced yet" not in sizes(forecast(config, SMALL, 4).worst)
    assert "gradients not reduced yet" not in sizes(forecast(config, SMALL, 1).worst)
    assert sizes(forecast(config, SMALL, 2).worst)["gradients not reduced yet"] == 4 * PARAMETERS


def test_auto_shares_out_where_a_replica_fills_more_than_half_of_the_memory():
    config = small()
    dims = dims_of(config, SMALL)
    replica = 16 * PARAMETERS
    assert shards(config, dims, 2, 2 * replica - 1)
    assert not shards(config, dims, 2, 2 * replica)
    assert not shards(config, dims, 2, 0)
    assert not shards(config, dims, 1, 1)
    assert not shards(small(parallel={"shard": "replicate"}), dims, 2, 1)
    assert shards(small(parallel={"shard": "full"}), dims, 2, 1 << 40)


def test_a_split_has_two_kinds_of_rank_and_its_hidden_states_are_held_more_than_once():
    found = forecast(small(parallel={"placement": "split", "targets": 1}), SMALL)
    drafter, target = found.ranks
    assert (drafter.role, target.role) == ("drafter", "target")
    assert sizes(drafter)["taps"] == 2 * 32 * 16 * 2
    assert sizes(drafter)["target's embedding and head"] == 2 * 10 * 8 * 2
    assert "target's weights" not in sizes(drafter)
    assert "parameters" not in sizes(target)
    assert {item.name: item.bytes for item in found.elsewhere}["sent for a micro-batch"] == 32 * 16 * 2
    assert found.total == max(drafter.total, target.total)


def test_disk_by_hand():
    config = small(parallel={"placement": "cached"}, checkpoint={"keep": 3}, loss={"labels": "target"})
    elsewhere = {item.name: item.bytes for item in forecast(config, SMALL).elsewhere}
    assert elsewhere["checkpoint"] == 12 * PARAMETERS
    assert elsewhere["checkpoints on disk"] == 4 * 12 * PARAMETERS
    assert elsewhere["hidden states on disk, for 1,000 tokens"] == 1000 * (16 + 8) * 2


def test_a_target_that_is_not_dense_says_its_own_number_of_parameters():
    assert sizes(forecast(small(), SMALL, target_parameters=7).worst)["target's weights"] == 14
    flops = useful_flops(small(), SMALL, target_parameters=2 * 10 * 8 + 5)
    assert flops.target == 32 * (2 * 5 + 4 * 3 * 2 * 4 * 32 // 2)


def test_a_target_runs_no_more_than_the_longest_document_at_a_time():
    whole = sizes(forecast(small(), SMALL).worst)
    config = small(parallel={"placement": "split"})
    whole, cut = (
        sizes(forecast(change(config, data={"max_document_tokens": tokens}), SMALL).ranks[1])
        for tokens in (0, 16)
    )
    assert cut["target's layer, inside"] * 2 == whole["target's layer, inside"]
    assert cut["taps"] == whole["taps"]


def seed(**tables: dict[str, Any]) -> Config:
    return change(load("seed-8gpu", []), **tables)


@pytest.mark.parametrize("placement", ["colocated", "split", "cached"])
@pytest.mark.parametrize("labels", ["data", "target"])
@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("data", "anchors"),
        ("data", "batch_rows"),
        ("data", "context_tokens"),
        ("loss", "chunk_tokens"),
        ("draft", "num_layers"),
        ("draft", "block_size"),
    ],
)
def test_more_of_anything_never_takes_less(placement, labels, table, key):
    config = seed(parallel={"placement": placement}, loss={"labels": labels})
    now = getattr(getattr(config, table), key)
    values = [now * part // 8 for part in (2, 5, 8, 9, 16)] if now > 4 else [1, 2, 3, 7]
    totals = [forecast(change(config, **{table: {key: value}}), QWEN3_8B, 3).total for value in values]
    assert totals == sorted(totals)
    assert totals[0] < totals[-1]


def refusal(found: Forecast, limit: int) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        require_fit(found, limit)
    return str(caught.value)


@pytest.mark.parametrize("spare", [0, 1])
def test_what_fits_is_allowed(spare):
    found = forecast(seed(), QWEN3_8B, 3)
    require_fit(found, found.total + spare)


@pytest.mark.parametrize(
    ("tables", "drafters", "knobs"),
    [
        ({"loss": {"chunk_tokens": 32768}}, 1, ["loss.chunk_tokens", "data.anchors"]),
        ({"loss": {"chunk_tokens": 32768}}, 3, ["parallel.shard", "loss.chunk_tokens", "data.anchors"]),
        ({"data": {"batch_rows": 4, "anchors": 512}}, 1, ["data.batch_rows", "data.anchors"]),
        ({"data": {"anchors": 4096}}, 1, ["data.anchors"]),
        ({"data": {"context_tokens": 1 << 18, "anchors": 64}}, 1, ["data.context_tokens"]),
        ({"data": {"anchors": 64, "context_tokens": 4096}}, 3, ["parallel.shard"]),
    ],
)
def test_a_refusal_first_names_what_harms_nothing_and_then_what_most_hangs_on(tables, drafters, knobs):
    config = seed(parallel={"placement": "cached"}, **tables)
    found = forecast(config, dataclasses.replace(QWEN3_8B, num_hidden_layers=1), drafters)
    told = refusal(found, found.total * 19 // 20)
    assert re.findall(r"(?:set|or) ([a-z.]+_?[a-z]*)=", told)[: len(knobs)] == knobs


@pytest.mark.parametrize("short", [1, 2, 5, 10])
@pytest.mark.parametrize("knob", ["data.anchors", "data.context_tokens", "loss.chunk_tokens"])
def test_the_value_told_fits_and_the_next_one_does_not(short, knob):
    config = seed(loss={"chunk_tokens": 16384}, parallel={"placement": "cached"})
    found = forecast(config, QWEN3_8B)
    limit = found.total - short * (1 << 28)
    (value,) = map(int, re.findall(rf"{re.escape(knob)}=(\d+) \(it is", refusal(found, limit)))
    table, key = knob.split(".")
    step = {"data.anchors": 1, "data.context_tokens": 128, "loss.chunk_tokens": 32}[knob]
    assert forecast(change(config, **{table: {key: value}}), QWEN3_8B).total <= limit
    assert forecast(change(config, **{table: {key: value + step}}), QWEN3_8B).total > limit
    assert value % step == 0


def test_a_refusal_tells_the_numbers():
    found = forecast(seed(), QWEN3_8B, 3)
    told = refusal(found, 40 << 30)
    assert f"a drafter rank takes {found.total / 2**30:.2f} GiB, over the 40.00 GiB there are" in told
    assert "AdamW's moments 7.81 GiB" in told


def test_where_no_single_setting_is_enough_it_says_so():
    assert "no single setting is enough" in refusal(forecast(seed(), QWEN3_8B, 3), 20 << 30)
    one = forecast(seed(parallel={"placement": "colocated"}), QWEN3_8B)
    assert "parallel.shard" not in refusal(one, 50 << 30)


def test_a_forecast_is_told_item_by_item_with_its_formula():
    lines = forecast(seed(), QWEN3_8B, 3).lines()
    assert lines[0].startswith("drafter rank, most in its loss: ")
    assert "      3.750 GiB  gate (each layer): 5 x R*Q*F = 5 x 1 x 32,768 x 12,288, 2 bytes each" in lines
    assert any(line.startswith("target rank") for line in lines)
    assert "disk and traffic" in lines


def test_the_seed_s_shape_takes_about_what_peers_were_measured_to_take():
    """50.0 GiB on an H200 without a target; ours keeps float32 weights and moments, 8.4 GB more."""
    config = seed(parallel={"placement": "cached"})
    assert 45 < forecast(config, QWEN3_8B).ranks[0].total / 2**30 < 60


def test_useful_work_by_hand():
    flops = useful_flops(small(), SMALL)
    matrices = 8 * (2 * 8 * 8 + 3 * 8 * 12) + 40 * 2 * 8 * 4
    assert flops.linears == 6 * matrices + 4 * 32 * 16 * 8
    assert flops.attention == 3 * 4 * 2 * 4 * 8 * (32 // 2 + 4)
    assert flops.head == 2 * 2 * (2 * 3) * 8 * 10
    assert flops.drafter == flops.linears + flops.attention + flops.head


def test_useful_work_of_shorter_documents_windows_and_distillation():
    base = useful_flops(small(), SMALL)
    short = useful_flops(small(), SMALL, document_tokens=16)
    assert short.attention == base.attention * (8 + 4) // (16 + 4)
    assert (short.linears, short.head) == (base.linears, base.head)
    window = useful_flops(small(draft={"sliding_layers": 1, "sliding_window": 8}), SMALL)
    seen = (
        sum(min(anchor, 8) for anchor in range(32)) / 32 + 0.125
    )  # the sum of whole anchors, and half a step
    assert window.attention == 3 * 4 * 2 * 4 * 8 * (seen + 2.5)
    assert useful_flops(small(loss={"labels": "target"}), SMALL).head * 2 == base.head * 3


def test_the_seed_s_forward_is_the_work_that_was_counted_for_it():
    """73 TFLOP in matrices, 54 in attention and 41 in the head, anchors' logits included."""
    flops = useful_flops(seed(data={"context_tokens": 40000}), QWEN3_8B)
    fusion = 2 * 40000 * 20480 * 4096
    assert round(((flops.linears - 2 * fusion) / 3 + fusion) / 1e12) in (73, 71)
    assert round(flops.attention / 3 / 1e12) == 54
    assert round(flops.head / 2 * 32 / 31 / 1e12) == 41


def test_planning_needs_no_torch():
    code = "import sys, trainer.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=240).returncode == 0


def test_the_number_of_parameters_is_the_sum_of_the_tensors():
    assert draft_parameters(dims_of(small(), SMALL)) == PARAMETERS
