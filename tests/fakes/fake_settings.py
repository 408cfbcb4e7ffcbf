"""Settings of the fakes, which a test changes."""

VERSION = "8.5.3"
"""Of TensorRT; it is read when the fake is imported."""
PRECISIONS = {"tf32", "fp16"}
"""Precisions of TensorRT's platform besides float32; a Xavier has no TF32."""
REFUSES_EMPTY = False
"""Whether TensorRT refuses profiles with an empty cache."""
NO_IMPORTER: set[str] = set()
"""Operators that TensorRT's parser does not know."""
ASCENDS = 1
"""Ascend devices that pyACL finds."""
CODES: dict[str, int] = {}
"""Calls of pyACL that fail, with what they return. ``rt.memcpy 2`` is one to the host."""
