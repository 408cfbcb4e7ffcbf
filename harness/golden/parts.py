"""The parts of each layout as they go into an exporter: a module, example inputs, and the ports that its file must declare.

Port names are Optimum's; each port says its role.
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import MarianMTModel

from backends.contract import LAYOUTS, Dim, Port
from harness.core import roles
from harness.golden.modules import LOWEST, Encoder, First, StaticStep, Step

BATCH, SOURCE, PAST = 2, 5, 3
"""Sizes of the example inputs. They differ from each other, from 0 and from 1, or a size that was baked in goes unseen."""
DYNAMIC = ("split", "unified")
STATIC = tuple(layout for layout in LAYOUTS if layout not in DYNAMIC)
CACHE_NAMES = {False: "decoder", True: "encoder"}
"""What Optimum calls the decoder's own cache, and the cross-attention cache."""


class Sizes(NamedTuple):
    """The fixed sizes of a static encoder and step: rows, source ids, slots of the decoder's own cache."""

    batch: int
    source: int
    slots: int


@dataclass(frozen=True)
class Traceable:
    """One part before its export. ``inputs`` and ``outputs`` are in the module's order.

    ``stem``: the layout that its file is named after, empty for a file that several share. ``avoids``: what the names of
    operators that it must not have begin with; a part that avoids any must not hold a constant that overflows fp16.
    """

    name: str
    module: nn.Module
    examples: tuple[Tensor, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    stem: str = ""
    avoids: tuple[str, ...] = ()

    @property
    def ports(self) -> dict[str, Port]:
        """Inputs and outputs by name."""
        return {port.name: port for port in (*self.inputs, *self.outputs)}

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """What the dynamo exporter starts from, at any opset. torch refuses what is less dynamic than ``inputs`` says."""
        names = {dim for port in self.inputs for dim in port.shape if isinstance(dim, str)}
        dims = {name: torch.export.Dim(name) for name in sorted(names)}
        axes = [{axis: dims[dim] for axis, dim in enumerate(port.shape) if dim in dims} for port in self.inputs]
        # By the names of forward(), one of which takes the whole cache.
        shapes = inspect.signature(self.module.forward).bind(*axes).arguments
        return torch.export.export(self.module, self.examples, dynamic_shapes=shapes)


def parts(model: MarianMTModel, layout: str, buckets: Sequence[Sizes] = ()) -> list[Traceable]:
    """The parts of a layout, in the order in which they run; of a static one an encoder and a step for each bucket."""
    if layout not in DYNAMIC:
        return [part for sizes in buckets for part in _static_parts(model, layout, sizes)]
    ports = _Ports(model, "batch", "source")
    examples = _Examples(model, Sizes(BATCH, SOURCE, PAST))
    step = Traceable(
        "step",
        Step(model).eval(),
        (examples.token, examples.mask, *examples.caches),
        (ports.tokens, ports.mask("encoder_attention_mask"), *ports.caches("past_key_values", "past")),
        (ports.logits, *ports.caches("present", "total", cross=False)),
    )
    if layout == "unified":
        return [_encoder(model, ports, examples, layout), step]
    first = Traceable(
        "first",
        First(model).eval(),
        (examples.token, examples.hidden, examples.mask),
        (ports.tokens, ports.hidden("encoder_hidden_states"), ports.mask("encoder_attention_mask")),
        (ports.logits, *ports.caches("present", 1)),
        layout,
    )
    return [_encoder(model, ports, examples, layout), first, step]


def _encoder(model: MarianMTModel, ports: "_Ports", examples: "_Examples", layout: str) -> Traceable:
    split = layout == "split"
    return Traceable(
        "encoder",
        Encoder(model, not split, None if layout in DYNAMIC else LOWEST).eval(),
        (examples.ids, examples.mask),
        (ports.source_ids, ports.mask("attention_mask")),
        (ports.hidden("last_hidden_state"), *(() if split else ports.caches("present", own=False))),
        layout if layout in DYNAMIC else "static",  # both static layouts have one encoder
    )


def _static_parts(model: MarianMTModel, layout: str, sizes: Sizes) -> list[Traceable]:
    scatter = layout == "static-scatter"
    avoids = ("Shape",) if scatter else ("Shape", "Scatter")
    ports, examples = _Ports(model, sizes.batch, sizes.source), _Examples(model, sizes)
    encoder = _encoder(model, ports, examples, layout)
    step = Traceable(
        f"step-{sizes.source}",
        StaticStep(model, scatter).eval(),
        (examples.token, torch.tensor([PAST]), examples.mask, *examples.caches),
        (
            ports.tokens,
            Port("position", "int64", (1,), roles.POSITION),
            ports.mask("encoder_attention_mask"),
            *ports.caches("past_key_values", sizes.slots),
        ),
        (ports.logits, *ports.caches("present", sizes.slots, cross=False)),
        layout,
        avoids,
    )
    return [replace(encoder, name=f"encoder-{sizes.source}", avoids=avoids), step]


class _Ports:
    """The ports of a model's parts. ``batch``, ``source``: a fixed size or the name of a dynamic one."""

    def __init__(self, model: MarianMTModel, batch: Dim, source: Dim) -> None:
        self.config, self.batch, self.source = model.config, batch, source
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.source_ids = Port("input_ids", "int64", (batch, source), roles.SOURCE_IDS)
        self.tokens = Port("input_ids", "int64", (batch, 1), roles.TOKENS)
        self.logits = Port("logits", self.dtype, (batch, 1, model.final_logits_bias.shape[-1]), roles.LOGITS)

    def mask(self, name: str) -> Port:
        return Port(name, "int64", (self.batch, self.source), roles.SOURCE_MASK)

    def hidden(self, name: str) -> Port:
        return Port(name, self.dtype, (self.batch, self.source, self.config.d_model), roles.HIDDEN)

    def caches(self, stem: str, entries: Dim = 0, own: bool = True, cross: bool = True) -> Iterator[Port]:
        """Cache ports, layer after layer; ``own`` holds ``entries``, ``cross`` the source."""
        heads = self.config.decoder_attention_heads
        dim = self.config.d_model // heads
        kinds = [(False, entries)] * own + [(True, self.source)] * cross
        for layer in range(self.config.decoder_layers):
            for is_cross, length in kinds:
                for side, word in enumerate(roles.SIDES):
                    name = f"{stem}.{layer}.{CACHE_NAMES[is_cross]}.{word}"
                    role = roles.cache_role(layer, is_cross, side)
                    yield Port(name, self.dtype, (self.batch, heads, length, dim), role)


class _Examples:
    """Inputs of the sizes that the exporter is to see. Floating-point ones have the model's dtype."""

    def __init__(self, model: MarianMTModel, sizes: Sizes) -> None:
        config = model.config
        rows, length, entries = sizes
        self.model = model
        order = torch.arange(rows * length).reshape(rows, length)
        self.ids = order % config.vocab_size
        self.token = order[:, :1] % model.final_logits_bias.shape[-1]
        self.mask = torch.ones_like(self.ids)
        self.mask[-1, -2:] = 0
        self.hidden = self._ramp(rows, length, config.d_model)
        heads = config.decoder_attention_heads
        dim = config.d_model // heads
        # A tensor of its own for every port: torch.export takes one that is given twice for one and the same input.
        self.caches = [
            self._ramp(rows, heads, size, dim)
            for _ in range(config.decoder_layers)
            for size in (entries, entries, length, length)
        ]

    def _ramp(self, *shape: int) -> Tensor:
        count = torch.Size(shape).numel()
        return torch.linspace(-1, 1, count, dtype=self.model.dtype).reshape(shape)
