"""Which cell an answer is of: one naming of rows, for every program that writes them."""

from typing import Optional

from backends.contract import Probe
from harness.core.bundle import Bundle
from harness.core.cell import Cell
from harness.core.graph import Graph
from harness.core.rows import Identity


def cell_of(graph: Graph, backend: str, probe: Probe) -> Cell:
    """The cell that a graph makes with a backend, as its selector names it, and what that backend says of itself."""
    return Cell(backend, probe.version, probe.device, graph.exporter, graph.layout, probe.precision, graph.opset)


def identity_of(cell: Cell, execution: str, bundle: str) -> Identity:
    """The identity of a cell's rows. ``bundle``: its short name, empty for cells of no bundle."""
    return Identity(
        runtime=runtime_of(cell.backend), execution=execution, bundle=bundle, cell=str(cell), **cell._asdict()
    )


def identity_in(bundle: Bundle, graph: Graph, backend: str, probe: Probe) -> Identity:
    """The identity of the rows of a graph of that bundle."""
    return identity_of(cell_of(graph, backend, probe), probe.execution, bundle.short)


def absent_identity(backend: str, version: Optional[str], bundle: str) -> Identity:
    """The identity of the one row of a backend that is not here."""
    return Identity(backend=backend, runtime=runtime_of(backend), version=version or "", bundle=bundle)


def runtime_of(backend: str) -> str:
    """``ort`` of ``ort:qnn``: the same for a backend that is here and for one that is absent."""
    return backend.split(":")[0]
