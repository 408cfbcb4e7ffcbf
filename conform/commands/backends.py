"""``conform backends``: each backend on this box, how deep it goes, and what it lacks to go deeper."""

import argparse
import os
import textwrap

from harness.core import selectors
from harness.core.errors import UserError
from harness.run import envs
from harness.run.launch import EMBEDDED
from harness.run.process import Limits
from harness.run.worker import Presence, Worker

HELP = "say for each backend whether it is here, version, device, how deep it goes, what it lacks"
EXAMPLE = "conform backends"

DEPTHS = {"parse": "parsed", "build": "built", "load": "built", "run": "ran"}
"""A backend's deepest stage, as a cell shows it."""
WIDTH = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend-python", help="interpreter that has the runtimes (default: this one)")


def run(options: argparse.Namespace) -> int:
    python = options.backend_python
    if python and not (os.path.isfile(python) and os.access(python, os.X_OK)):
        raise UserError(f"--backend-python {python}: no such interpreter; give the path of a python")
    print(page(python))
    return 0


def page(python: str | None) -> str:
    """A table of every backend, then what keeps each from running, with the line that helps. ``python``: the interpreter to
    look in; without one this one, and the newest of its own environments for what is not in this one."""
    from tabulate import tabulate

    table, notes = [], []
    for name in selectors.names():
        answer = _ask(name, python)
        if answer.absent and python is None:
            here = [entry for entry in envs.registry() if entry.backend == name and entry.made]
            if here:
                name = here[-1].name
                answer = _ask(name, str(here[-1].interpreter))
        head = f"{name} is absent" if answer.absent else f"{name} cannot be used"
        if answer.probe:
            depth = "simulated" if answer.probe.execution == "simulator" else DEPTHS[answer.depth]
            table.append(
                [name, "present", answer.probe.version, f"{answer.probe.device} {answer.probe.precision}", depth]
            )
            head = f"{name} is {depth}, and goes no deeper"
        else:
            table.append([name, answer.failure.status if answer.failure else "absent", "-", "-", "-"])
        why = answer.absent or answer.missing
        if why:
            notes += _wrapped(f"{head}: {why['reason']}", "  ") + _wrapped(f"    {why['remedy']}", "    ")
        elif answer.failure:
            notes += _wrapped(f"{head}: {answer.failure.message}", "  ")
    heads = ["backend", "here", "version", "device", "depth"]
    return "\n".join([tabulate(table, headers=heads, disable_numparse=True), *notes])


def _ask(name: str, python: str | None) -> Presence:
    worker = Worker(str(EMBEDDED), selectors.parse(name), Limits(), python)
    try:
        return worker.probe()
    finally:
        worker.stop()


def _wrapped(text: str, margin: str) -> list[str]:
    # A command is of use only in one piece, where a line can hold it.
    return textwrap.wrap(text, WIDTH, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False)
