"""Any causal language model that transformers loads, as a target.

Each document is a sequence of its own, from position 0: so none sees another whatever the architecture is,
sliding windows, linear attention and learned positions included.

Shapes: R rows, B documents of one length, T context tokens, D model dim, E = taps * D, V vocabulary.
"""

from __future__ import annotations

import copy
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.errors import ConfigInvalid
from trainer.target.api import Observation, TargetShape
from trainer.target.hf_session import EnoughError, HfSession, tapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainer.batch import Batch

DEFAULT_ROPE_THETA = 10000.0  # transformers' own, for models without rotary positions


def shape_of(config: Any) -> TargetShape:  # noqa: ANN401 - a transformers config of any model
    """The shape in a transformers config; of a multimodal one, its text model's."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    inner = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * text.hidden_size
    return TargetShape(
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        intermediate_size=inner,
        num_hidden_layers=text.num_hidden_layers,
        num_attention_heads=heads,
        num_key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        rms_norm_eps=float(getattr(text, "rms_norm_eps", None) or 1e-6),
        rope_theta=_rope_theta(text),
        max_position_embeddings=text.max_position_embeddings,
    )


def _rope_theta(text: Any) -> float:  # noqa: ANN401 - a transformers config of any model
    """`rope_theta` at the top (transformers 4), or in `rope_parameters` (5), there perhaps by layer type."""
    parameters = getattr(text, "rope_parameters", None) or {}
    parameters = parameters.get("full_attention", parameters)
    theta = parameters.get("rope_theta") or getattr(text, "rope_theta", None)
    return float(theta or DEFAULT_ROPE_THETA)


class HfTarget:
    """A frozen transformers model; an `api.Target`.

    Raises:
        ConfigInvalid: logits are not the head's matrix times the last hidden state, so that a drafter, which
            has that matrix alone, could not share the head.
    """

    def __init__(self, model: Any, name: str) -> None:  # noqa: ANN401 - a transformers model
        self._model = model.eval().requires_grad_(requires_grad=False)
        self._name = name
        self._decoder = model.get_decoder()
        self.shape = shape_of(model.config)
        self._layers = _decoder_layers(self._decoder, self.shape.num_hidden_layers, name)
        self.embedding = scaled_embedding(model.get_input_embeddings())
        self._exact: list[HfTarget] = []
        require_plain_head(model, name)
        self.head: Tensor = model.get_output_embeddings().weight
        self._check_arithmetic()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.device

    @torch.no_grad()
    def observe(self, batch: Batch, tap_layers: Sequence[int], *, last: bool) -> Observation:
        """Run documents by themselves, those of one length together, no further up than is asked for."""
        width = self.shape.hidden_size
        taps_RTE = self.head.new_zeros(*batch.tokens.shape, len(tap_layers) * width)
        last_RTD = self.head.new_zeros(*batch.tokens.shape, width) if last else None
        with tapped(self._layers, tap_layers, stop=not last) as taps, _one_document_a_row():
            for length, places in _by_length(batch).items():
                tokens = torch.stack([batch.tokens[row, start : start + length] for row, start in places])
                hidden = self._run(tokens)
                found = taps.take()
                for index, (row, start) in enumerate(places):
                    part = slice(start, start + length)
                    taps_RTE[row, part] = found[index]
                    if last_RTD is not None and hidden is not None:
                        last_RTD[row, part] = hidden[index]
        return Observation(taps_RTE, last_RTD)

    def _run(self, tokens_BT: Tensor) -> Tensor | None:
        try:
            hidden: Tensor = self._decoder(input_ids=tokens_BT, use_cache=False).last_hidden_state
        except EnoughError:
            return None
        return hidden

    def session(self, tap_layers: Sequence[int], *, exact: bool = False) -> HfSession:
        """Begin a sequence."""
        if not exact:
            return HfSession(self._model, self._decoder, self._layers, tap_layers)
        if not self._exact:
            self._exact.append(HfTarget(copy.deepcopy(self._model).double(), self._name))
        return self._exact[0].session(tap_layers)

    @torch.no_grad()
    def _check_arithmetic(self) -> None:
        tokens = torch.arange(4, device=self.device)[None] % self.shape.vocab_size
        logits = self._model(input_ids=tokens, use_cache=False).logits
        hidden = self._decoder(input_ids=tokens, use_cache=False).last_hidden_state
        if not _close(logits, F.linear(hidden, self.head)):
            raise ConfigInvalid(
                f"target {self._name}: its logits are not its head's matrix times its last hidden state, so "
                "a drafter cannot share the head; give another target"
            )
        embedded = self._model.get_input_embeddings()(tokens)
        if not _close(embedded, self.embedding[tokens]):
            raise ConfigInvalid(
                f"target {self._name}: its embedding does more than look a token up, so a drafter cannot "
                "share it; give another target"
            )


def _by_length(batch: Batch) -> dict[int, list[tuple[int, int]]]:
    """Row and start of each document, by length: such a run has no padding that could reach a document."""
    places: dict[int, list[tuple[int, int]]] = {}
    for row, lengths in enumerate(batch.lengths):
        start = 0
        for length in lengths:
            places.setdefault(length, []).append((row, start))
            start += length
    return places


@contextmanager
def _one_document_a_row() -> Iterator[None]:
    """Without transformers' own look at the positions for a second one, which waits for the device."""
    masking, look = sys.modules.get("transformers.masking_utils"), "find_packed_sequence_indices"
    found = getattr(masking, look, None)
    if found is None:
        yield
        return
    setattr(masking, look, lambda *_, **__: None)
    try:
        yield
    finally:
        setattr(masking, look, found)


def _close(found: Tensor, expected: Tensor) -> bool:
    found, expected = found.float(), expected.float()
    return bool((found - expected).abs().max() <= 0.02 * expected.abs().max() + 1e-6)


def scaled_embedding(module: Any) -> Tensor:  # noqa: ANN401 - an embedding of any model
    """What the module gives for each token: [V, D]. Gemma's multiplies its weights by a constant."""
    scale = getattr(module, "scalar_embed_scale", None)
    weight: Tensor = module.weight.detach()
    return weight if scale is None else weight * scale


def require_plain_head(model: Any, name: str) -> None:  # noqa: ANN401 - a transformers model
    """Refuse a head that is more than one matrix.

    Raises:
        ConfigInvalid: it has a bias, its logits are capped, or there is none.
    """
    head = model.get_output_embeddings()
    reason = ""
    if head is None:
        reason = "it has no output head"
    elif getattr(head, "bias", None) is not None:
        reason = "its output head has a bias"
    elif getattr(model.config.get_text_config(), "final_logit_softcapping", None):
        reason = "it caps its logits (final_logit_softcapping)"
    if reason:
        raise ConfigInvalid(
            f"target {name}: {reason}, and a DFlash drafter shares the head's matrix alone; give another "
            "target"
        )


def _decoder_layers(decoder: nn.Module, count: int, name: str) -> nn.ModuleList:
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise ConfigInvalid(
        f"target {name}: no list of {count} decoder layers was found in {type(decoder).__name__}; give "
        "another target"
    )
