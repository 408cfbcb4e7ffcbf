"""Marian's parts as modules that can be traced.

The encoder runs through Hugging Face's own forward; the decoder's layers are called one by one, so that self-attention over
the cache has no mask, as in the step graphs that Optimum writes (a mask of zeros would change nothing in the numbers and
hide runtime faults in the fused pattern).
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MarianMTModel
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache

LOWEST = -1e4
"""What a static graph adds to the score of a masked position: exp() of it is 0, and fp16 holds it; -1e9 would overflow."""


def cache_word(forward: Callable[..., Any]) -> str:
    """Name of the cache's parameter: transformers 5 renamed it."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def empty_cache() -> EncoderDecoderCache:
    return EncoderDecoderCache(DynamicCache(), DynamicCache())


class Encoder(nn.Module):  # type: ignore[misc]  # torch is not followed
    """(input_ids, attention_mask) [batch, source] int64 -> last_hidden_state; with ``cross``, K and V of each layer."""

    def __init__(self, model: MarianMTModel, cross: bool, lowest: float | None = None) -> None:
        super().__init__()
        self.encoder = model.model.encoder
        self.lowest = lowest
        self.cross = nn.ModuleList(layer.encoder_attn for layer in model.model.decoder.layers) if cross else None

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        mask = _additive(mask, self.encoder.dtype, self.lowest)
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        outputs = [hidden]
        for attention in self.cross or ():
            for project in (attention.k_proj, attention.v_proj):
                heads = project(hidden).view(*hidden.shape[:-1], -1, attention.head_dim)
                outputs.append(heads.transpose(1, 2))
        return tuple(outputs)


class _Decoder(nn.Module):  # type: ignore[misc]  # torch is not followed
    """What all decoder parts share: one token [batch, 1] int64 through the layers, to the raw logits."""

    lowest: float | None = None

    def __init__(self, model: MarianMTModel) -> None:
        super().__init__()
        self.decoder = model.model.decoder
        self.lm_head = model.lm_head
        self.register_buffer("final_logits_bias", model.final_logits_bias)

    def decode(
        self,
        ids: Tensor,
        mask: Tensor,
        hidden: Tensor,
        cache: EncoderDecoderCache,
        past: int = 0,
        position: Tensor | None = None,
        written: Tensor | None = None,
    ) -> Tensor:
        """``past``, or ``position`` [1] int64: the token's position. ``written``: additive mask of the slots to be seen."""
        decoder = self.decoder
        state = decoder.embed_tokens(ids) * decoder.embed_scale
        state = state + decoder.embed_positions(ids.shape, past, position_ids=position)
        mask = _additive(mask, state.dtype, self.lowest)
        for layer in decoder.layers:
            known = {cache_word(layer.forward): cache, "encoder_attention_mask": mask, "use_cache": True}
            state = layer(state, written, hidden, **known)
        logits: Tensor = self.lm_head(state) + self.final_logits_bias
        return logits


class First(_Decoder):
    """The first step of the split layout: it has no cache yet and makes both K/V from the encoder's output."""

    def forward(self, ids: Tensor, hidden: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        cache = empty_cache()
        logits = self.decode(ids, mask, hidden, cache)
        return (logits, *_tensors(cache, cross=True))


class Step(_Decoder):
    """One step over a cache of any length, in the order decoder key, value, encoder key, value of each layer."""

    def forward(self, ids: Tensor, mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        cache = empty_cache()
        for layer in range(len(self.decoder.layers)):
            own_key, own_value, cross_key, cross_value = past[4 * layer : 4 * layer + 4]
            cache.self_attention_cache.layers.append(_filled(own_key, own_value))
            cache.cross_attention_cache.layers.append(_filled(cross_key, cross_value))
            cache.is_updated[layer] = True
        # With the cross K/V in the cache the hidden states are not read; attention only asks whether there are any.
        logits = self.decode(ids, mask, past[2], cache, past[0].shape[2])
        return (logits, *_tensors(cache, cross=False))


class StaticStep(_Decoder):
    """One step over buffers of fixed size, in the order of Step; ``position`` [1] int64 is the slot that it writes."""

    lowest = LOWEST

    def __init__(self, model: MarianMTModel, scatter: bool) -> None:
        super().__init__(model)
        self.scatter = scatter

    def forward(self, ids: Tensor, position: Tensor, mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        slots = torch.arange(past[0].shape[2])
        write = _scattering(position) if self.scatter else _blending((slots == position)[:, None])
        cache = empty_cache()
        for layer in range(len(self.decoder.layers)):
            own_key, own_value, cross_key, cross_value = past[4 * layer : 4 * layer + 4]
            cache.self_attention_cache.layers.append(_Slots(own_key, own_value, write))
            cache.cross_attention_cache.layers.append(_filled(cross_key, cross_value))
            cache.is_updated[layer] = True
        written = torch.where(slots <= position, torch.zeros((), dtype=past[0].dtype), LOWEST)[None, None, None]
        logits = self.decode(ids, mask, past[2], cache, position=position, written=written)
        return (logits, *_tensors(cache, cross=False))


class _Slots(DynamicLayer):  # type: ignore[misc]  # torch is not followed
    """A cache that keeps its length: ``write(buffer, new)`` gives the buffer with the new entry in its slot."""

    def __init__(self, key: Tensor, value: Tensor, write: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.lazy_initialization(key, value)
        self.keys, self.values, self.write = key, value, write

    def update(self, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = self.write(self.keys, key), self.write(self.values, value)
        return self.keys, self.values


def _blending(here: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda buffer, new: torch.where(here, new, buffer)


def _scattering(position: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda buffer, new: buffer.scatter(2, position[None, None, :, None].expand(new.shape), new)


def _additive(mask: Tensor, dtype: torch.dtype, lowest: float | None = None) -> Tensor:
    """Eager mask [batch, 1, 1, source]: 0 where ``mask`` is 1, else ``lowest``, or Hugging Face's lowest of the dtype."""
    lowest = torch.finfo(dtype).min if lowest is None else lowest
    return torch.where(mask[:, None, None, :] > 0, torch.zeros((), dtype=dtype), lowest)


def _filled(key: Tensor, value: Tensor) -> DynamicLayer:
    # update() would do, at the price of a Concat with an empty constant in the graph.
    layer = DynamicLayer()
    layer.lazy_initialization(key, value)
    layer.keys, layer.values = key, value
    return layer


def _tensors(cache: EncoderDecoderCache, cross: bool) -> list[Tensor]:
    result: list[Tensor] = []
    for own, other in zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True):
        result += [own.keys, own.values] + ([other.keys, other.values] if cross else [])
    return result
