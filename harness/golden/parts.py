"""Marian's parts as modules that can be traced: what each takes, what it gives, and under which names.

Port names are Optimum's. The encoder runs through Hugging Face's own forward; the decoder's layers are called one by one,
so that self-attention over the cache has no mask, as in the step graphs that Optimum writes (a mask of zeros would
change nothing in the numbers and hide runtime faults in the fused pattern).
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MarianMTModel
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache

from backends.contract import Dim

BATCH, SOURCE, PAST = 2, 5, 3
"""Sizes of the example inputs. They differ from each other, from 0 and from 1, or a size that was baked in goes unseen."""
SIDES = ("key", "value")
LAYOUTS = ("split", "unified")
Shapes = dict[str, tuple[Dim, ...]]


@dataclass(frozen=True)
class Traceable:
    """One part before its export. ``inputs`` and ``outputs`` map a port's name to its shape, in the module's order."""

    name: str
    module: nn.Module
    examples: tuple[Tensor, ...]
    inputs: Shapes
    outputs: Shapes

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """What the dynamo exporter starts from, at any opset. torch refuses what is less dynamic than ``inputs`` says."""
        dims = {dim: torch.export.Dim(dim) for shape in self.inputs.values() for dim in shape if isinstance(dim, str)}
        axes = [{axis: dims[dim] for axis, dim in enumerate(shape) if dim in dims} for shape in self.inputs.values()]
        # By the names of forward(), one of which takes the whole cache.
        shapes = inspect.signature(self.module.forward).bind(*axes).arguments
        return torch.export.export(self.module, self.examples, dynamic_shapes=shapes)


def cache_word(forward: Callable[..., Any]) -> str:
    """Name of the cache's parameter: transformers 5 renamed it."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def empty_cache() -> EncoderDecoderCache:
    return EncoderDecoderCache(DynamicCache(), DynamicCache())


class _Encoder(nn.Module):  # type: ignore[misc]  # torch is not followed
    """(input_ids, attention_mask) [batch, source] int64 -> last_hidden_state; with ``cross``, K and V of each layer."""

    def __init__(self, model: MarianMTModel, cross: bool) -> None:
        super().__init__()
        self.encoder = model.model.encoder
        self.cross = nn.ModuleList(layer.encoder_attn for layer in model.model.decoder.layers) if cross else None

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        hidden = self.encoder(input_ids=ids, attention_mask=_additive(mask, self.encoder.dtype)).last_hidden_state
        outputs = [hidden]
        for attention in self.cross or ():
            for project in (attention.k_proj, attention.v_proj):
                heads = project(hidden).view(*hidden.shape[:-1], -1, attention.head_dim)
                outputs.append(heads.transpose(1, 2))
        return tuple(outputs)


class _Decoder(nn.Module):  # type: ignore[misc]  # torch is not followed
    """What both decoder parts share: one token [batch, 1] int64 through the layers, to the raw logits."""

    def __init__(self, model: MarianMTModel) -> None:
        super().__init__()
        self.decoder = model.model.decoder
        self.lm_head = model.lm_head
        self.register_buffer("final_logits_bias", model.final_logits_bias)

    def decode(self, ids: Tensor, mask: Tensor, hidden: Tensor, cache: EncoderDecoderCache, past: int) -> Tensor:
        decoder = self.decoder
        state = decoder.embed_tokens(ids) * decoder.embed_scale + decoder.embed_positions(ids.shape, past)
        mask = _additive(mask, state.dtype)
        for layer in decoder.layers:
            known = {cache_word(layer.forward): cache, "encoder_attention_mask": mask, "use_cache": True}
            state = layer(state, None, hidden, **known)
        logits: Tensor = self.lm_head(state) + self.final_logits_bias
        return logits


class _First(_Decoder):
    """The first step of the split layout: it has no cache yet and makes both K/V from the encoder's output."""

    def forward(self, ids: Tensor, hidden: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        cache = empty_cache()
        logits = self.decode(ids, mask, hidden, cache, 0)
        return (logits, *_tensors(cache, cross=True))


class _Step(_Decoder):
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


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Hugging Face's eager mask [batch, 1, 1, source]: 0 where ``mask`` is 1, else the lowest number of the dtype."""
    return torch.where(mask[:, None, None, :] > 0, torch.zeros((), dtype=dtype), torch.finfo(dtype).min)


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


def parts(model: MarianMTModel, layout: str) -> list[Traceable]:
    """The parts of a layout (``split`` or ``unified``), in the order in which they run."""
    config = model.config
    heads = config.decoder_attention_heads
    dim = config.d_model // heads
    layers = range(config.decoder_layers)
    source: tuple[Dim, ...] = ("batch", "source")
    hidden: tuple[Dim, ...] = (*source, config.d_model)
    logits: Shapes = {"logits": ("batch", 1, model.final_logits_bias.shape[-1])}

    def kv(stem: str, wanted: dict[str, Dim]) -> Shapes:
        return {
            f"{stem}.{layer}.{kind}.{side}": ("batch", heads, length, dim)
            for layer in layers
            for kind, length in wanted.items()
            for side in SIDES
        }

    def example(length: int) -> Tensor:
        count = BATCH * heads * length * dim
        return torch.linspace(-1, 1, count, dtype=model.dtype).reshape(BATCH, heads, length, dim)

    ids = torch.arange(BATCH * SOURCE).reshape(BATCH, SOURCE) % config.vocab_size
    mask = torch.tensor([[1] * SOURCE, [1] * (SOURCE - 2) + [0] * 2])
    token = ids[:, :1]
    unified = layout == "unified"
    encoder = Traceable(
        "encoder",
        _Encoder(model, cross=unified).eval(),
        (ids, mask),
        {"input_ids": source, "attention_mask": source},
        {"last_hidden_state": hidden, **(kv("present", {"encoder": "source"}) if unified else {})},
    )
    first = Traceable(
        "first",
        _First(model).eval(),
        (
            token,
            torch.linspace(-1, 1, BATCH * SOURCE * config.d_model, dtype=model.dtype).reshape(BATCH, SOURCE, -1),
            mask,
        ),
        {"input_ids": ("batch", 1), "encoder_hidden_states": hidden, "encoder_attention_mask": source},
        {**logits, **kv("present", {"decoder": 1, "encoder": "source"})},
    )
    step = Traceable(
        "step",
        _Step(model).eval(),
        # A tensor of its own for every port: torch.export takes one that is given twice for one and the same input.
        (token, mask, *(example(length) for _ in layers for length in (PAST, PAST, SOURCE, SOURCE))),
        {
            "input_ids": ("batch", 1),
            "encoder_attention_mask": source,
            **kv("past_key_values", {"decoder": "past", "encoder": "source"}),
        },
        {**logits, **kv("present", {"decoder": "total"})},
    )
    return [encoder, step] if unified else [encoder, first, step]
