"""What fixes the precision of each of ONNX Runtime's execution providers. No adapter: `providers` uses it."""

import json
from types import MappingProxyType
from typing import Dict, Mapping, NamedTuple

from backends import contract


class Pin(NamedTuple):
    """A provider's device as a cell id names it, its precision, the options that fix that, and knobs of its own."""

    device: str
    precision: str
    options: Mapping[str, str]
    knobs: Mapping[str, contract.Knob] = MappingProxyType({})


def _openvino(device: str, **properties: str) -> Dict[str, str]:
    return {
        "device_type": device,
        "load_config": json.dumps({device: {"INFERENCE_PRECISION_HINT": "f32", **properties}}),
    }


OPENVINO_KNOBS = {
    f"{name}={value}": contract.Knob({"provider": _openvino("CPU", **{name: value})})
    for name, value in (("CPU_RUNTIME_CACHE_CAPACITY", "0"), ("SNIPPETS_MODE", "DISABLE"))
}
# A provider that is not listed here runs and is UNVERIFIED, because it chooses its precision itself.
PINS = {
    "cann": Pin("cann", "fp32", {"precision_mode": "must_keep_origin_dtype"}),
    "cuda": Pin("cuda", "fp32", {}),
    "openvino": Pin("openvino-cpu", "fp32", _openvino("CPU"), OPENVINO_KNOBS),
    "openvino_gpu": Pin("openvino-gpu", "fp32", _openvino("GPU")),
    "qnn": Pin("qnn-htp", "fp16", {"backend_type": "htp", "enable_htp_fp16_precision": "1"}),
    "tensorrt": Pin("tensorrt", "fp32", {}),
}
PACKAGES = {"cuda": "onnxruntime-gpu", "tensorrt": "onnxruntime-gpu"}
