"""FAKE of TensorRT's Python API, for tests: it computes with ONNX Runtime and enforces the documented rules.

``fake_settings.VERSION`` chooses the API: 8.4 has bindings with numbers, 8.5 to 9 both, 10 and later tensors with names;
11 has no EXPLICIT_BATCH and no FP16. Before 10 an int64 input is INT32. Sources: NVIDIA's Python API reference of those
versions.
"""

from tensorrt.building import Builder, OnnxParser
from tensorrt.common import (
    BuilderFlag,
    DataType,
    ErrorCode,
    ILogger,
    LayerInformationFormat,
    MemoryPoolType,
    NetworkDefinitionCreationFlag,
    ProfilingVerbosity,
    __version__,
)
from tensorrt.running import Runtime

__fake__ = True
__all__ = [
    "Builder",
    "BuilderFlag",
    "DataType",
    "ErrorCode",
    "ILogger",
    "LayerInformationFormat",
    "MemoryPoolType",
    "NetworkDefinitionCreationFlag",
    "OnnxParser",
    "ProfilingVerbosity",
    "Runtime",
    "__version__",
]
