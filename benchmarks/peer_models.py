"""The peers' drafters and losses, made of their own modules: `PEERS`, a maker for each.

On a CPU, where flex has no backward, they take their own dense attention; TorchSpec has none, and computes
there without its mask.
"""

from __future__ import annotations

import importlib
import math
import sys
from typing import TYPE_CHECKING, Any, cast

import torch
import transformers
from torch import Tensor, nn

from benchmarks.peer_steps import Peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.step_given import Given

CHUNK_BLOCKS = 128
"""Blocks of a row whose logits SpecForge makes at once, its default; shared out where there are more rows."""


def _specforge(given: Given, variant: str) -> Peer:
    family: Any = importlib.import_module("specforge.algorithms.common.dflash_family_model")
    if variant == "mask":
        family.create_block_mask = torch.compile(family.create_block_mask)
    with given.device:
        draft = importlib.import_module("specforge.modeling.draft.dflash").DFlashDraftModel(_qwen3(given))
    model = family.OnlineDFlashModel(
        _begin(draft, given),
        _head(given),
        _embedding(given),
        given.mask_token,
        block_size=given.config.draft.block_size,
        attention_backend=draft.config._attn_implementation,  # noqa: SLF001 - how transformers has it
        num_anchors=given.config.data.anchors,
        loss_decay_gamma=given.config.loss.gamma,
        objective_chunk_blocks=max(1, CHUNK_BLOCKS // given.config.data.batch_rows),
    )
    batch, mask = given.batch, given.batch.loss_mask.float()
    return _peer(given, model, draft, lambda: model(batch.tokens, given.taps, mask)[0])


def _torchspec(given: Given, variant: str) -> Peer:  # noqa: ARG001 - it has none
    models = importlib.import_module("torchspec.models.draft.dflash")
    dims, config = given.dims, given.config
    sizes = _sizes(given) | {"target_hidden_size": dims.hidden_size, "rope_theta": dims.rope_theta}
    with given.device:
        draft = models.DFlashDraftModel(
            models.DFlashConfig(
                **sizes,
                num_target_layers=len(given.shape.target_layer_ids),
                target_num_hidden_layers=dims.num_hidden_layers,
                target_layer_ids=list(given.shape.target_layer_ids),
                mask_token_id=given.mask_token,
            )
        )
    draft.embed_tokens = _embedding(given)
    names = {"context_proj": "fc", "context_norm": "hidden_norm", "final_norm": "norm"}
    model = importlib.import_module("torchspec.models.dflash").DFlashModel(
        _begin(draft, given, names),
        block_size=config.draft.block_size,
        num_anchors=config.data.anchors,
        loss_decay_gamma=config.loss.gamma,
    )
    batch, mask = given.batch, given.batch.loss_mask.float()

    def loss() -> Tensor:
        taps = list(given.taps.split(dims.hidden_size, dim=-1))
        return cast("Tensor", model(batch.tokens, taps, mask, given.head)[0])

    return _peer(given, model, draft, loss)


def _automodel(given: Given, variant: str) -> Peer:
    dflash = "nemo_automodel.components.speculative.dflash"
    with given.device:
        draft = importlib.import_module(f"{dflash}.draft_qwen3").Qwen3DFlashDraftModel(_qwen3(given))
        model = importlib.import_module(f"{dflash}.core").DFlashTrainerModule(
            _begin(draft, given),
            _head(given),
            _embedding(given),
            given.mask_token,
            block_size=given.config.draft.block_size,
            attention_backend=draft.config._attn_implementation,  # noqa: SLF001 - how transformers has it
            num_anchors=given.config.data.anchors,
            loss_decay_gamma=given.config.loss.gamma,
        )
    if variant == "compile":  # as its recipes do with `compile: {enabled: true}`
        draft.compile(dynamic=False)
    batch, mask = given.batch, given.batch.loss_mask.float()
    documents: dict[str, Tensor] = {}
    if given.packed:
        lengths = [list(row) for row in batch.lengths]
        lengths[0][-1] += batch.tokens.shape[1] - sum(lengths[0])  # padding is the last document's, as there
        index = torch.arange(batch.tokens.shape[1], device=given.device)
        documents = {
            "position_ids": batch.positions,
            "seq_lens": torch.tensor(lengths, device=given.device),
            "doc_remaining": (batch.ends - 1 - index).clamp(min=0) * batch.loss_mask,
        }
    return _peer(given, model, draft, lambda: model(batch.tokens, given.taps, mask, **documents).loss)


def _speculators(given: Given, variant: str) -> Peer:  # noqa: ARG001 - it has none
    """Its labels are the target's likeliest tokens: hidden states are given whose likeliest is the text's."""
    parts = importlib.import_module("speculators.config")
    # what its root package would offer its own modules, had it been run
    sys.modules["speculators"].__dict__["SpeculatorModelConfig"] = parts.SpeculatorModelConfig
    core = importlib.import_module("speculators.models.dflash.core")
    wanted = importlib.import_module("speculators.models.dflash").DFlashSpeculatorConfig
    wanted.model_rebuild(_types_namespace={"torch": torch})  # newer transformers name torch.dtype as text
    config, size = given.config, given.config.draft.block_size
    on_gpu = given.device.type == "cuda"
    proposal = importlib.import_module("speculators.proposals.greedy").GreedyTokenProposalConfig
    with given.device:
        draft = core.DFlashDraftModel(
            wanted(
                transformer_layer_config=_qwen3(given, "simple_flex_attention" if on_gpu else "eager"),
                draft_vocab_size=given.dims.vocab_size,
                block_size=size,
                aux_hidden_state_layer_ids=list(given.shape.target_layer_ids),
                mask_token_id=given.mask_token,
                speculators_config=parts.SpeculatorsConfig(
                    algorithm="dflash",
                    proposal_methods=[proposal(speculative_tokens=size - 1)],
                    default_proposal_method="greedy",
                    verifier=parts.VerifierConfig(name_or_path=None, architectures=["Qwen3ForCausalLM"]),
                ),
            )
        )
    draft.embed_tokens, draft.lm_head, draft.verifier_lm_head = _embedding(given), _head(given), _head(given)
    nn.init.ones_(draft.verifier_norm.weight)
    batch, mask = given.batch, given.batch.loss_mask.float()
    index = (batch.positions == 0).cumsum(dim=1) - 1
    inputs = {
        "hidden_states": given.taps,
        "input_ids": batch.tokens,
        "loss_mask": mask,
        "verifier_last_hidden_states": nn.functional.embedding(batch.tokens.roll(-1, dims=1), given.head),
        "document_ids": torch.where(batch.loss_mask, index, -1),
        "position_ids": batch.positions,
        "max_anchors": config.data.anchors,
        "gamma": config.loss.gamma,
        "loss_config": importlib.import_module("speculators.losses").resolve_loss_config(
            "ce", "fused" if on_gpu else "eager"
        ),
    }
    _begin(draft, given)
    anchors = (given.anchors.index[0], given.anchors.keep[0])
    made = _peer(given, draft, draft, lambda: draft(**inputs)[1])
    decay = sum(math.exp(-offset / config.loss.gamma) for offset in range(size - 1))
    return Peer(
        draft, made.loss, (core, "select_anchors", lambda *_: anchors), made.optimizer, (size - 1) / decay
    )


def _peer(given: Given, model: nn.Module, draft: nn.Module, loss: Callable[[], Tensor]) -> Peer:
    trained = [parameter for parameter in draft.parameters() if parameter.requires_grad]
    optim = given.config.optim
    optimizer = torch.optim.AdamW(
        trained,
        lr=optim.lr,
        betas=(0.9, optim.beta2),
        weight_decay=optim.weight_decay,
        fused=given.device.type == "cuda",
    )
    anchors = (given.anchors.index, given.anchors.keep)
    return Peer(draft, loss, (model, "_sample_anchor_positions", lambda *_, **__: anchors), optimizer)


@torch.no_grad()
def _begin(draft: nn.Module, given: Given, names: dict[str, str] | None = None) -> nn.Module:
    """Our first weights in a peer's drafter; `names` are its modules' against ours. Tables stay float32."""
    ours = given.draft().state_dict()
    for name, parameter in draft.named_parameters():
        parameter.data = parameter.data.to(given.dtype)
        if parameter.requires_grad:
            module, _, rest = name.partition(".")
            parameter.copy_(ours.pop(f"{(names or {}).get(module, module)}.{rest}"))
    assert not ours, f"no place for {sorted(ours)}"
    return draft.train()


def _sizes(given: Given) -> dict[str, int]:
    dims, config = given.dims, given.config
    return {
        "vocab_size": dims.vocab_size,
        "hidden_size": dims.hidden_size,
        "intermediate_size": dims.intermediate_size,
        "num_hidden_layers": config.draft.num_layers,
        "num_attention_heads": dims.num_attention_heads,
        "num_key_value_heads": dims.num_key_value_heads,
        "head_dim": dims.head_dim,
        "max_position_embeddings": config.data.context_tokens + config.data.anchors * config.draft.block_size,
    }


def _qwen3(given: Given, attention: str = "") -> Any:  # noqa: ANN401 - a class of transformers
    config = transformers.Qwen3Config(
        **_sizes(given),
        rms_norm_eps=given.dims.rms_norm_eps,
        rope_theta=given.dims.rope_theta,
        attention_bias=False,
        attention_dropout=0.0,
        layer_types=["full_attention"] * given.config.draft.num_layers,
    )
    flex = given.device.type == "cuda"
    config._attn_implementation = attention or ("flex_attention" if flex else "sdpa")  # noqa: SLF001
    config.num_target_layers = given.dims.num_hidden_layers
    config.block_size = given.config.draft.block_size
    layer_ids = list(given.shape.target_layer_ids)
    config.dflash_config = {"mask_token_id": given.mask_token, "target_layer_ids": layer_ids}
    return config


def _embedding(given: Given) -> nn.Embedding:
    table: nn.Embedding = nn.Embedding.from_pretrained(given.embedding, freeze=True)
    return table


def _head(given: Given) -> nn.Linear:
    head = nn.Linear(given.dims.hidden_size, given.dims.vocab_size, bias=False, device="meta")
    head.weight = nn.Parameter(given.head, requires_grad=False)
    return head


PEERS = {
    "specforge": _specforge,
    "torchspec": _torchspec,
    "automodel": _automodel,
    "speculators": _speculators,
}
