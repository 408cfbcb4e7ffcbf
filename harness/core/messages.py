"""What native runtimes say, made fit for a row."""

import re

NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from \S+ failed:|Failed to load model with error: "
    r"|Exception from \S+:\d+:\s*|Check '.*?' failed at \S+:\d+:\s*"
    r"|ONNX Runtime only \*guarantees\* .*? versions\. |The operator schemas and or .*? compatibility\. "
    r"|\S+\.(?:cc|cpp|h|hpp):\d+ .*?\) (?=[A-Z])"  # source line and the signature that follows it
)
"""What C++ runtimes put before what they have to say: it differs from file to file and build to build."""


def one_line(text: str) -> str:
    """A message on one line: what it says, without where in the runtime's source, cut to what a table can hold."""
    return NOISE.sub("", " ".join(text.split()))[:300]
