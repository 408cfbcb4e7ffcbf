"""The commands of ``conform``, one module each, in the order in which ``conform --help`` lists them.

A module says what its command is (``HELP``, ``EXAMPLE``), what it takes (``add_arguments``) and does it (``run``). Its stem
is the command's name. What takes long to import is imported where it is used: help and bad input are answered at once.
"""

import argparse
from typing import Protocol

from conform.commands import (
    backends,
    compact,
    diff,
    envs,
    expectations,
    explain,
    exporters,
    gate,
    judge,
    matrix,
    operators,
    record,
    report,
)


class Command(Protocol):
    """What a module of this package has."""

    HELP: str
    """What the command does: a phrase without a capital and a full stop."""
    EXAMPLE: str
    """A command line that works."""
    __name__: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, options: argparse.Namespace) -> int:
        """Exit code: 0, or 1 for a negative verdict. Raises UserError and OSError for bad input."""
        ...


COMMANDS: tuple[Command, ...] = (
    record,
    exporters,
    backends,
    operators,
    matrix,
    envs,
    report,
    explain,
    judge,
    expectations,
    compact,
    diff,
    gate,
)
