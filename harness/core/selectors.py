"""Selectors: ``NAME[@VERSION][:PROVIDER]`` when NAME is a file in ``backends/``, else ``module:Class``."""

import difflib
import importlib
import os
import re
import sys
from typing import List, NamedTuple, Optional

from backends.contract import Backend
from harness.core.errors import UserError

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FORM = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:@(?P<version>[\w.]+))?(?::(?P<provider>\w+))?\Z")


class Selector(NamedTuple):
    """``module`` and ``attribute`` say what to import; ``folder`` is put on the worker's path for ``module:Class``."""

    text: str
    name: str
    module: str
    attribute: str
    version: Optional[str] = None
    provider: Optional[str] = None
    folder: Optional[str] = None


def names() -> List[str]:
    """The adapters of this checkout: the stems of the files in ``backends/`` that define a class ``Backend``."""
    folder, stems = os.path.join(ROOT, "backends"), []
    for stem, ending in map(os.path.splitext, sorted(os.listdir(folder))):
        if ending == ".py" and stem != "contract":
            with open(os.path.join(folder, stem + ending), encoding="utf-8") as stream:
                stems += [stem] if "\nclass Backend(" in stream.read() else []
    return stems


def spelled(text: str) -> str:
    """``ort@1.10`` for ``ort-1.10``: an environment of tox cannot have an @ in its name."""
    return re.sub(r"\A([A-Za-z_]\w*)-(?=\d|all\Z)", r"\1@", text)


def parse(text: str) -> Selector:
    """Raises UserError, with the nearest names, for what is neither form."""
    text = spelled(text)
    match = FORM.match(text)
    if match and match["name"] in names():
        shown = match["name"] + (f":{match['provider']}" if match["provider"] else "")
        return Selector(text, shown, f"backends.{match['name']}", "Backend", match["version"], match["provider"])
    module, colon, attribute = text.partition(":")
    if colon and module and attribute.isidentifier():
        folder = _folder(module)
        if folder is None:
            raise UserError(
                f"--backend={text}: there is no backend {module!r} ({', '.join(names())}) and no module of that name "
                f"in {os.getcwd()} or on PYTHONPATH"
            )
        return Selector(text, text, module, attribute, folder=folder)
    near = difflib.get_close_matches(re.split("[@:]", text)[0], names(), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UserError(f"--backend={text}: unknown backend; {hint}known: {', '.join(names())}, or module:Class")


def _folder(module: str) -> Optional[str]:
    """The folder from which ``import module`` works; found without importing anything."""
    stem = os.path.join(*module.split("."))
    for folder in [os.getcwd(), ROOT, *sys.path]:
        if os.path.isfile(os.path.join(folder, stem + ".py")) or os.path.isdir(os.path.join(folder, stem)):
            return os.path.abspath(folder)
    return None


def load(selector: Selector) -> Backend:
    """Import and construct the adapter; whatever that raises is the caller's to report. UserError for a word after
    the colon that the adapter does not know: that is no absence.
    """
    backend_class = getattr(importlib.import_module(selector.module), selector.attribute)
    if selector.provider and backend_class.modes is not None and selector.provider not in backend_class.modes:
        has = f"its modes: {', '.join(backend_class.modes)}" if backend_class.modes else "it has none"
        raise UserError(f"--backend={selector.text}: there is no mode {selector.provider!r}; {has}")
    backend = backend_class(selector.provider)
    if not isinstance(backend, Backend):
        raise TypeError(f"{selector.text} is not a backends.contract.Backend")
    return backend
