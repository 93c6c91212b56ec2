"""One sequence under decoding on a transformers model, and the hooks that read its layers.

Shapes: M tokens run now, D model dim, E = taps * D, V vocabulary.
"""

from __future__ import annotations

import copy
import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ATTENTION_TYPES = {"full_attention", "sliding_attention"}


class EnoughError(Exception):
    """Raised by a hook to end a run above which nothing was asked for."""


@contextmanager
def tapped(layers: nn.ModuleList, tap_layers: Sequence[int], *, stop: bool = False) -> Iterator[Taps]:
    """Keep what the tapped layers give; with `stop`, a run ends at the highest of them by `EnoughError`."""
    taps = Taps(layers, tap_layers, stop=stop)
    taps.begin()
    try:
        yield taps
    finally:
        taps.end()


class Taps:
    """Hooks on the tapped layers."""

    def __init__(self, layers: nn.ModuleList, tap_layers: Sequence[int], *, stop: bool) -> None:
        self._layers = layers
        self._tap_layers = tuple(tap_layers)
        self._stop = stop
        self._seen: dict[int, Tensor] = {}
        self._handles: list[Any] = []

    def begin(self) -> None:
        """Put the hooks on."""
        for layer in set(self._tap_layers):
            self._handles.append(self._layers[layer].register_forward_hook(self._hook(layer)))

    def end(self) -> None:
        """Take them off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, layer: int) -> Any:  # noqa: ANN401 - a forward hook
        last = self._stop and layer == max(self._tap_layers)

        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:  # noqa: ANN401 - any layer's output
            self._seen[layer] = output[0] if isinstance(output, tuple) else output
            if last:
                raise EnoughError

        return hook

    def take(self) -> Tensor:
        """The taps [B, M, E] of the newest run, side by side."""
        return torch.cat([self._seen[layer] for layer in self._tap_layers], dim=-1)


class HfSession:
    """One sequence on a transformers model; an `api.Session`.

    A cache of keys and values is cut at any length. One that cannot be (linear attention keeps a running
    state) is put back to a copy from before the newest run, or to the beginning, and what is to be kept after
    that is run again with the next tokens.
    """

    def __init__(
        self,
        model: Any,  # noqa: ANN401 - a transformers model
        decoder: Any,  # noqa: ANN401 - its part below the head
        layers: nn.ModuleList,
        tap_layers: Sequence[int],
    ) -> None:
        self._head: Tensor = model.get_output_embeddings().weight
        self._decoder = decoder
        self._layers = layers
        self._tap_layers = tuple(tap_layers)
        self._config = model.config
        types = getattr(model.config.get_text_config(), "layer_types", None) or ()
        self._can_cut = set(types) <= ATTENTION_TYPES
        self._tokens: list[int] = []
        self._cached = 0  # tokens in the cache, the first ones
        # Its name before and after transformers 5.24.
        names = inspect.signature(decoder.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._cache = self._new_cache()
        self._kept: tuple[int, Any] = (0, None)  # an earlier length and its cache

    @property
    def length(self) -> int:
        """Tokens of the sequence, whether cached or to be run again."""
        return len(self._tokens)

    @torch.no_grad()
    def run(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Append tokens; logits [M, V] for the token after each, and taps [M, E]."""
        if not self._can_cut:
            self._kept = (self._cached, copy.deepcopy(self._cache))
        again = self._tokens[self._cached :]
        run = torch.tensor([[*again, *tokens]], device=self._head.device)
        positions = torch.arange(self._cached, self._cached + run.shape[1], device=run.device)[None]
        with tapped(self._layers, self._tap_layers) as taps:
            cache = {self._cache_name: self._cache}
            output = self._decoder(input_ids=run, position_ids=positions, use_cache=True, **cache)
            hidden_MD = output.last_hidden_state[0, len(again) :]
            taps_ME = taps.take()[0, len(again) :] if self._tap_layers else hidden_MD[:, :0]
        self._tokens += [int(token) for token in tokens]
        self._cached = len(self._tokens)
        return F.linear(hidden_MD, self._head), taps_ME

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        del self._tokens[length:]
        if length >= self._cached:
            return
        if self._can_cut:
            for layer in self._cache.layers:
                layer.keys, layer.values = layer.keys[..., :length, :], layer.values[..., :length, :]
            self._cached = length
        elif self._kept[1] is not None and self._kept[0] <= length:
            self._cached, self._cache = self._kept
            self._kept = (0, None)
        else:
            self._cached, self._cache = 0, self._new_cache()

    def _new_cache(self) -> Any:  # noqa: ANN401 - a transformers cache
        from transformers import DynamicCache  # only a target of this kind needs it

        # Without the config, sliding layers keep all keys too; their mask still hides the old ones.
        return DynamicCache() if self._can_cut else DynamicCache(config=self._config)
