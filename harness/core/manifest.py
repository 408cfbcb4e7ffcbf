"""``manifest.json``: what a bundle says of itself, checked as far as that needs no other file.

Schema 3 gives each port its role; schemas 1 and 2 name ports as Optimum does, and roles are read off the names. Schema 2
brought static graphs. Whatever else is read is alike in the three.
"""

import hashlib
import json
import os
import re
from typing import Any, Dict, Mapping, NamedTuple, NoReturn, Sequence, Tuple

from backends.contract import Part, Port
from harness.core import roles
from harness.core.errors import UserError
from harness.core.graph import CorpusRow, Decode, Dims, Graph, part_order

SCHEMA = 3
MANIFEST = "manifest.json"
FORMAT = "seq2seq-conformance-bundle"
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\Z")
AGAIN = "copy the bundle again, or record it anew with `conform record`"


class Manifest(NamedTuple):
    """A manifest that was understood. ``raw``: the JSON object; ``hash``: SHA-256 of the file, which is the bundle's."""

    path: str
    raw: Dict[str, Any]
    hash: str
    name: str
    files: Dict[str, Dict[str, Any]]
    decode: Decode
    dims: Dims
    language: str
    rows: Tuple[CorpusRow, ...]
    precisions: Tuple[str, ...]
    graphs: Tuple[Graph, ...]

    def refuse(self, what: str, remedy: str = AGAIN) -> NoReturn:
        """Raises UserError about this bundle."""
        refuse(self.path, what, remedy)

    def place(self, name: str) -> str:
        """The path of a file of the bundle. Raises UserError for a name that leaves it or is not listed."""
        return _place(self.path, self.files, name)


def refuse(path: str, what: str, remedy: str = AGAIN) -> NoReturn:
    """Raises UserError about the bundle at ``path``."""
    raise UserError(f"bundle {path}: {what}; {remedy}")


def read(path: str) -> Manifest:
    """The manifest of the bundle at ``path``. Raises UserError for a damaged, foreign, newer or unsafe one."""
    raw, digest = _load(path)
    try:
        files = raw["files"]
        for name in files:
            _place(path, files, name)
        return Manifest(
            path,
            raw,
            digest,
            raw["name"],
            files,
            Decode.of(raw["decode"]),
            Dims(**raw["dims"]),
            raw["target_language"],
            tuple(CorpusRow(**row) for row in raw["rows"]),
            tuple(raw["floors"]),
            tuple(_graph(path, files, entry) for entry in raw["graphs"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        refuse(path, f"{MANIFEST} does not say what schema {SCHEMA} asks for ({error!r})")


def _load(path: str) -> Tuple[Dict[str, Any], str]:
    try:
        with open(os.path.join(path, MANIFEST), "rb") as stream:
            content = stream.read()
    except OSError as error:
        refuse(path, f"no readable {MANIFEST} ({error.strerror})", "give a folder made by `conform record`")
    try:
        raw = json.loads(content.decode("utf-8"))
    except ValueError as error:
        refuse(path, f"{MANIFEST} is damaged ({error})")
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        refuse(path, f"{MANIFEST} is not a bundle's", "give a folder made by `conform record`")
    if raw.get("schema") not in range(1, SCHEMA + 1):
        schemas = f"schema {raw.get('schema')!r}, this checkout reads schemas 1 to {SCHEMA}"
        refuse(path, schemas, "update the checkout or record the bundle anew")
    return raw, hashlib.sha256(content).hexdigest()


def _place(path: str, files: Mapping[str, Any], name: str) -> str:
    if not PLAIN_NAME.match(name):
        refuse(path, f"the name {name!r} leaves the bundle or is not a plain file name", "do not trust this bundle")
    if name not in files:
        refuse(path, f"{name} is used but not listed under files")
    return os.path.join(path, name)


def _graph(path: str, files: Mapping[str, Any], entry: Mapping[str, Any]) -> Graph:
    parts = tuple(
        Part(
            name,
            _place(path, files, entry["parts"][name]["file"]),
            _ports(name, entry["parts"][name]["inputs"]),
            _ports(name, entry["parts"][name]["outputs"]),
        )
        for name in sorted(entry["parts"], key=part_order)
    )
    return Graph(entry["exporter"], entry["layout"], entry["precision"], entry["opset"], entry["ir"], parts)


def _ports(part: str, entries: Sequence[Any]) -> Tuple[Port, ...]:
    """Ports from [name, dtype, shape, role]. Raises ValueError for a role that is unknown or given twice."""
    ports = []
    for name, dtype, shape, *rest in entries:
        role = rest[0] if rest else roles.optimum_role(part, name)
        if not roles.is_known(role):
            raise ValueError(f"{part} port {name} has the unknown role {role!r}")
        ports.append(Port(name, dtype, tuple(shape), role))
    if len({item.role for item in ports}) < len(ports):
        raise ValueError(f"two ports of {part} have one role")
    return tuple(ports)
