"""Arrays that belong to a row, in a file beside the rows file."""

import os
from typing import Mapping

import numpy as np


def save_arrays(stem: str, kind: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Write a sidecar file ``<stem>.<kind>.npz``. Returns its path from the results folder on, as rows name it."""
    path = f"{stem}.{kind}.npz"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # numpy types keywords as its own flags
    return "/".join(path.split(os.sep)[-2:])
