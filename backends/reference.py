"""The witness: ``onnx.reference.ReferenceEvaluator``, the ONNX specification in numpy, without an optimizer.

It is slow. What it computes decides whether a difference is the export's or a runtime's. Source:
onnx.ai/onnx/api/reference.html.
"""

from typing import Any, Dict

import numpy as np

from backends import contract

REFUSALS = [
    ("No registered implementation", "operator"),
    ("not implemented", "operator"),
    ("opset", "opset"),
    ("shape", "shape"),
]


class Backend(contract.Backend):
    """numpy on the CPU; float32 stays float32."""

    capabilities = contract.Capabilities(
        dtypes=frozenset({"float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool"})
    )

    def probe(self) -> contract.Probe:
        try:
            import onnx
            import onnx.reference
        except ImportError as error:
            raise contract.not_imported("onnx>=1.13", error) from error
        return contract.Probe(onnx.__version__, "cpu", "fp32")

    def compile(self, part: contract.Part, options: Dict[str, Any]) -> contract.Program:
        from onnx.reference import ReferenceEvaluator

        try:
            return _Program(ReferenceEvaluator(part.path))
        except Exception as error:
            raise contract.StageError("load", contract.first_kind(str(error), REFUSALS), str(error)) from error


class _Program(contract.Program):
    def __init__(self, evaluator: Any) -> None:
        self.evaluator = evaluator

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        try:
            return dict(zip(self.evaluator.output_names, self.evaluator.run(None, feeds)))
        except Exception as error:
            raise contract.StageError("run", contract.first_kind(str(error), REFUSALS), str(error)) from error

    def placement(self) -> contract.Placement:
        return contract.Placement("cpu", "fp32", "numpy on the host")
