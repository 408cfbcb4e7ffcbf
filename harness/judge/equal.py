"""Comparison of one output with the one that is expected, as ONNX's own runner of its node tests compares."""

import numpy as np

from harness.judge.compare import shape_problem

RTOL, ATOL = 1e-3, 1e-7
"""ONNX's own, ``onnx.backend.test``: the expected values come from numpy in whatever precision its author chose."""


def difference(name: str, value: np.ndarray, expected: np.ndarray) -> str:
    """How an output differs: dtype, rank, shape, then the first element outside the tolerance. Empty when it does not.

    Floats: within ``ATOL + RTOL * |expected|``, infinities equal, NaN only where NaN is expected. All else: exactly.
    """
    problem = shape_problem(name, value.dtype.name, value.shape, expected.dtype.name, expected.shape)
    if problem:
        return problem
    if expected.dtype.kind in "fc":
        wide = np.complex128 if expected.dtype.kind == "c" else np.float64
        near = np.isclose(value.astype(wide), expected.astype(wide), rtol=RTOL, atol=ATOL, equal_nan=True)
    else:
        near = np.asarray(value == expected)
    if near.all():
        return ""
    first = np.unravel_index(int(near.argmin()), near.shape)
    index = ",".join(str(int(axis)) for axis in first)
    return (
        f"{name}[{index}] is {value[first]!s}, expected {expected[first]!s}; {int((~near).sum())} of {near.size} differ"
    )
