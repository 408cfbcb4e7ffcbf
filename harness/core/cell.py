"""A cell's name, alike in test ids, expectations and commands: ``ort@1.32.0/cpu/torchscript/unified/fp32/op14``."""

import re
from itertools import groupby
from typing import Iterable, NamedTuple

SIMULATOR = "simulator-"
"""What the device of a simulated cell begins with."""
FORM = re.compile(
    r"(?P<backend>[^@/]+)@(?P<version>[^/]+)/(?P<device>[^/]+)/(?P<exporter>[^/]+)/(?P<layout>[^/]+)"
    r"/(?P<precision>[^/]+)/op(?P<opset>\d+)\Z"
)


class Cell(NamedTuple):
    """Graph × backend × runtime version × device × effective precision: one entry of the matrix."""

    backend: str
    version: str
    device: str
    exporter: str
    layout: str
    precision: str
    opset: int

    def __str__(self) -> str:
        return (
            f"{self.backend}@{self.version}/{self.device}/{self.exporter}/{self.layout}/{self.precision}/op{self.opset}"
        )

    @classmethod
    def parse(cls, text: str) -> "Cell":
        """Raises ValueError with the form that was expected."""
        match = FORM.match(text)
        if not match:
            raise ValueError(f"{text!r} is not a cell; its form is ort@1.32.0/cpu/torchscript/unified/fp32/op14")
        fields = match.groupdict()
        return cls(**{**fields, "opset": int(fields["opset"])})  # type: ignore[arg-type]


def spans(opsets: Iterable[int]) -> str:
    """``9,12-17``."""
    parts = []
    for _, run in groupby(enumerate(sorted(set(opsets))), key=lambda item: item[1] - item[0]):
        opsets_of_run = [opset for _, opset in run]
        parts.append(f"{opsets_of_run[0]}-{opsets_of_run[-1]}" if len(opsets_of_run) > 1 else str(opsets_of_run[0]))
    return ",".join(parts)
