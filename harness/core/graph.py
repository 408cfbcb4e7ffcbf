"""What a bundle says of its model and graphs: parts in order, decode rules, sizes; and which graphs a run is about."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Iterable, List, Mapping, Optional, Sequence, Tuple

from backends.contract import Part, Port
from harness.core.errors import UserError

PART_ORDER = ("encoder", "first", "step")


@lru_cache(maxsize=None)
def part_order(name: str) -> Tuple[int, int]:
    """When a part runs, and the source length that it is made for: ``step-48`` comes after ``encoder`` and is for 48."""
    stem, _, size = name.partition("-")
    return PART_ORDER.index(stem), int(size or 0)


@dataclass(frozen=True)
class Graph:
    """One exported variant. ``parts`` in the order in which they run, those of a static graph for short sources first."""

    exporter: str
    layout: str
    precision: str
    opset: int
    ir: int
    parts: Tuple[Part, ...]

    @property
    def id(self) -> str:
        return f"{self.exporter}/{self.layout}/{self.precision}/op{self.opset}"

    @property
    def static(self) -> bool:
        """Whether every size is fixed, with a part for each of a few source lengths."""
        return self.layout.startswith("static")

    def part(self, name: str, source: int = 0) -> Part:
        """The part of that name; of a static graph the first that takes ``source`` ids. Raises KeyError."""
        for part in self.parts:
            order, size = part_order(part.name)
            if order == part_order(name)[0] and (not self.static or size >= source):
                return part
        raise KeyError(f"{self.id} has no {name} for a source of {source} ids")

    def output_name(self, role: str) -> str:
        """What the graph calls its output of that role; the role itself where it has none."""
        return next((port.name for part in self.parts for port in part.outputs if port.role == role), role)

    @property
    def rows(self) -> int:
        """How many rows the parts take at once; 0 where that is not fixed."""
        size = self.part("encoder").inputs[0].shape[0]
        return size if isinstance(size, int) else 0


def port(ports: Iterable[Port], role: str) -> Optional[Port]:
    """The port of that role, if there is one."""
    return next((item for item in ports if item.role == role), None)


def slots_of(part: Part) -> int:
    """How many entries the decoder's own cache of a step has room for; 0 where it grows instead."""
    size = next((item.shape[2] for item in part.inputs if item.role.startswith("self.")), 0)
    return size if isinstance(size, int) else 0


@dataclass(frozen=True)
class Decode:
    """The greedy loop's rules, in token ids. ``suppress`` lists those that may never be chosen."""

    start: int
    eos: int
    pad: int
    suppress: Tuple[int, ...]
    max_steps: int

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Decode":
        """Raises TypeError and KeyError for what does not say them."""
        return cls(**{**values, "suppress": tuple(values["suppress"])})


@dataclass(frozen=True)
class Dims:
    """Sizes of the decoder, and ``d_model`` of the encoder's output."""

    layers: int
    heads: int
    head_dim: int
    d_model: int
    vocab: int


@dataclass(frozen=True)
class CorpusRow:
    """One line of the corpus."""

    id: str
    domain: str
    licence: str
    source: str
    reference: str


@dataclass(frozen=True)
class Selection:
    """Which graphs of a bundle a run is about; what is None selects all. ``layout`` may name several, with commas."""

    opsets: range = range(1, 99)
    layout: Optional[str] = None
    exporter: Optional[str] = None
    precision: Optional[str] = None

    def of(self, graphs: Sequence[Graph], bundle: str) -> List[Graph]:
        """The selected graphs. Raises UserError, with what the bundle of that name has, when there is none."""
        selected = [graph for graph in graphs if self._takes(graph)]
        if not selected:
            raise UserError(f"{bundle} has no such graph; {_offer(graphs)} are there, not in every combination")
        return selected

    def _takes(self, graph: Graph) -> bool:
        return (
            graph.opset in self.opsets
            and (self.layout is None or graph.layout in self.layout.split(","))
            and self.exporter in (None, graph.exporter)
            and self.precision in (None, graph.precision)
        )


def _offer(graphs: Sequence[Graph]) -> str:
    opsets = sorted({graph.opset for graph in graphs})
    layouts = ", ".join(sorted({graph.layout for graph in graphs}))
    precisions = ", ".join(sorted({graph.precision for graph in graphs}))
    exporters = ", ".join(sorted({graph.exporter for graph in graphs}))
    span = f"{opsets[0]}-{opsets[-1]}" if opsets else "none"
    return f"--opset {span}, --layout {layouts}, --precision {precisions}, --exporter {exporters}"
