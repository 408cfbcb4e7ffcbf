"""The JSON Schema of a row, derived from its dataclass: ``python -m reports.schema`` rewrites ``row.schema.json``."""

import dataclasses
import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from harness.core import rows, verdict

PATH = Path(__file__).with_name("row.schema.json")

NON_FINITE = ["inf", "-inf", "nan"]
CHOICES = {
    "status": list(verdict.STATUSES),
    "stage": list(verdict.STAGES),
    "check": [*verdict.OTHER_CHECKS, *verdict.CHECKS],
    "execution": list(rows.EXECUTIONS),
}
OPTIONAL = {"execution"}
"""Fields that rows of earlier releases of this schema lack."""

SAYS = {
    "check": "the question; probe: is the backend here; operator: ONNX's node tests; export: does a graph come to be",
    "status": "the answer",
    "stage": "how far it came",
    "kind": "what sort of refusal or death, or what the failure's pattern looks like",
    "tensor": "the worst tensor, or the one nearest its bound when the check passes",
    "metric": "what value and bound measure",
    "floor": "PyTorch's own gap to float64",
    "compared": "elements compared",
    "step": "first wrong step, from 0",
    "sentence": "id of the corpus row where that was",
    "knob": "the setting that clears the failure",
    "command": "runs this check of this cell again",
    "attempt": "from 1",
    "seconds": "since the cell began",
    "series": "sidecar .npz, from the results folder on",
    "execution": "what did the work; a simulator says nothing of the device, and a test's fake is no evidence",
    "detail": "what else belongs to the answer; each check has its own properties, listed in allOf",
    "bundle": "name@first twelve digits of the hash",
    "precision": "the one that the device computes in",
    "cell": "backend@version/device/exporter/layout/precision/opN",
    "time": "UTC, ISO 8601",
}


def build() -> dict[str, Any]:
    """The schema as a JSON object."""
    hints = get_type_hints(rows.Row)
    fields = {item.name: _field(item.name, hints[item.name]) for item in dataclasses.fields(rows.Row)}
    fields["schema"] = {"const": rows.SCHEMA}
    conditions = [_detail(check, shape) for check, shape in details().items()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Row",
        "description": "The answer to one check of one cell: one line of a results file.",
        "type": "object",
        "properties": fields,
        "required": [name for name in fields if name not in OPTIONAL],
        "additionalProperties": False,
        **({"allOf": conditions} if conditions else {}),
        "$defs": {
            "number": {
                "description": "JSON has no infinity and no NaN: they are strings.",
                "anyOf": [{"type": "number"}, {"enum": NON_FINITE}],
            }
        },
    }


def details() -> dict[str, type]:
    """The TypedDict of ``detail`` for each check that has one."""
    name = "harness.core.details"
    return dict(importlib.import_module(name).DETAILS) if importlib.util.find_spec(name) else {}


def _detail(check: str, shape: type) -> dict[str, Any]:
    """What ``detail`` holds in the rows of one check."""
    return {
        "if": {"properties": {"check": {"const": check}}},
        "then": {"properties": {"detail": _type(shape)}},
    }


def _field(name: str, hint: Any) -> dict[str, Any]:
    field = {"enum": CHOICES[name]} if name in CHOICES else _type(hint)
    return {"description": SAYS[name], **field} if name in SAYS else field


def _type(hint: Any) -> dict[str, Any]:
    """The JSON Schema of a type. A TypedDict may have more keys than it names: none of its keys is taken away by a later
    release, and further ones may come."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type(part) for part in arguments]}
    if is_typeddict(hint):
        properties = {name: _type(part) for name, part in get_type_hints(hint).items()}
        required = sorted(hint.__required_keys__)
        return {"type": "object", "properties": properties, **({"required": required} if required else {})}
    if origin is list and _type(arguments[0]):
        return {"type": "array", "items": _type(arguments[0])}
    if origin is tuple and arguments[-1] is ...:
        return {"type": "array", "items": _type(arguments[0])}
    if origin is tuple:
        return {"type": "array", "prefixItems": [_type(part) for part in arguments]}
    if origin is dict and _type(arguments[1]):
        return {"type": "object", "additionalProperties": _type(arguments[1])}
    if hint is float:
        return {"$ref": "#/$defs/number"}
    return {"type": JSON_TYPES[origin or hint]}


JSON_TYPES = {str: "string", int: "integer", bool: "boolean", dict: "object", list: "array", type(None): "null"}


def text() -> str:
    """What ``row.schema.json`` holds."""
    return json.dumps(build(), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    PATH.write_text(text(), encoding="utf-8")
    print(PATH)
    return 0


if __name__ == "__main__":
    sys.exit(main())
