"""A cell's name, alike in test ids, expectations and commands: ``ort@1.32.0/cpu/torchscript/unified/fp32/op14``."""

import argparse
import re
from itertools import groupby
from typing import Iterable, NamedTuple

from backends.contract import LAYOUTS

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
        found = FORM.match(text)
        if not found:
            raise ValueError(f"{text!r} is not a cell; its form is ort@1.32.0/cpu/torchscript/unified/fp32/op14")
        fields = found.groupdict()
        return cls(**{**fields, "opset": int(fields["opset"])})  # type: ignore[arg-type]


def span(text: str) -> range:
    """Opsets of a command line: ``14`` or ``12-17``. Raises argparse's error, which names the option."""
    low, dash, high = text.partition("-")
    try:
        opsets = range(int(low), int(high if dash else low) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an opset or a range such as 12-17") from None
    if not opsets:
        raise argparse.ArgumentTypeError(f"{text!r} is an empty range; write the lower opset first")
    return opsets


def layouts(text: str) -> str:
    """Layouts of a command line, with commas. Raises argparse's error, which names the option."""
    for name in text.split(","):
        if name not in LAYOUTS:
            raise argparse.ArgumentTypeError(f"{name!r} is not a layout; there are {', '.join(LAYOUTS)}")
    return text


def spans(opsets: Iterable[int]) -> str:
    """``9,12-17``."""
    parts = []
    for _, run in groupby(enumerate(sorted(set(opsets))), key=lambda item: item[1] - item[0]):
        found = [opset for _, opset in run]
        parts.append(f"{found[0]}-{found[-1]}" if len(found) > 1 else str(found[0]))
    return ",".join(parts)


def count(text: str) -> int:
    """A number of one or more. Raises argparse's error, which names the option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)
