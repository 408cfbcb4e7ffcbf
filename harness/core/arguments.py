"""What command lines have in common: opsets, layouts, counts. Each raises argparse's error, which names the option."""

import argparse

from backends.contract import LAYOUTS


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


def count(text: str) -> int:
    """A number of one or more. Raises argparse's error, which names the option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)
