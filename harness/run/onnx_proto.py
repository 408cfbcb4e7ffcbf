"""ONNX's own protobuf classes without the rest of the package, whose import costs more than a whole cell.

Preflight reads what a file says; it needs no checker: `conform record` has run that, and the hashes say that nothing
has changed since.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load() -> ModuleType:
    """The module with ``ModelProto`` and ``TensorProto``."""
    name = "onnx.onnx_ml_pb2"  # a process that has onnx anyway must not register its messages twice
    if name in sys.modules:
        return sys.modules[name]
    package = importlib.util.find_spec("onnx")  # finds, does not import
    if package is None or package.origin is None:
        raise ImportError("onnx is not installed; pip install onnx")
    path = Path(package.origin).parent / "onnx_ml_pb2.py"
    spec = importlib.util.spec_from_file_location("_onnx_ml_pb2", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
