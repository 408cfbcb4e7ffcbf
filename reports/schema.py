"""The JSON Schema of a row, derived from its dataclass: ``python -m reports.schema`` rewrites ``row.schema.json``."""

import dataclasses
import json
import sys
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from harness.core import rows, verdict

PLACE = Path(__file__).with_name("row.schema.json")

NON_FINITE = ["inf", "-inf", "nan"]
CHOICES = {
    "status": list(verdict.STATUSES),
    "stage": list(verdict.STAGES),
    "check": [*verdict.OTHER_CHECKS, *verdict.CHECKS],
}

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
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Row",
        "description": "The answer to one check of one cell: one line of a results file.",
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
        "$defs": {
            "number": {
                "description": "JSON has no infinity and no NaN: they are strings.",
                "anyOf": [{"type": "number"}, {"enum": NON_FINITE}],
            }
        },
    }


def _field(name: str, hint: Any) -> dict[str, Any]:
    made = {"enum": CHOICES[name]} if name in CHOICES else _type(hint)
    return {"description": SAYS[name], **made} if name in SAYS else made


def _type(hint: Any) -> dict[str, Any]:
    if get_origin(hint) in (Union, types.UnionType):
        return {"anyOf": [_type(part) for part in get_args(hint)]}
    if hint is float:
        return {"$ref": "#/$defs/number"}
    words = {str: "string", int: "integer", bool: "boolean", dict: "object", list: "array", type(None): "null"}
    return {"type": words[get_origin(hint) or hint]}


def text() -> str:
    """What ``row.schema.json`` holds."""
    return json.dumps(build(), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    PLACE.write_text(text(), encoding="utf-8")
    print(PLACE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
