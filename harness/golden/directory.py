"""A local Hugging Face directory: its files, and one line for whatever is wrong with a file."""

import json
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from backends.contract import first_line
from harness.core.errors import UserError
from harness.core.files import sha256

COPY = "copy it again from its source"
COMPLETE = "complete the directory from its source"
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


class Directory:
    """The directory of one model. Raises UserError where there is none."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).resolve()
        self.name = self.path.name
        if not self.path.is_dir():
            raise UserError(f"model {path}: no such directory; give a local Hugging Face MarianMT directory")

    def error(self, what: str, remedy: str) -> UserError:
        """The error that says what is wrong with this directory."""
        return UserError(f"model {self.path}: {what}; {remedy}")

    def file(self, name: str) -> Path:
        """The path of a file that is there. Raises UserError."""
        if not (self.path / name).is_file():
            raise self.error(f"{name} is missing", COMPLETE)
        return self.path / name

    def json(self, name: str, optional: bool = False) -> dict[str, Any]:
        """The object in a JSON file; an empty one in the absence of an ``optional`` file. Raises UserError."""
        if optional and not (self.path / name).is_file():
            return {}
        try:
            content = json.loads(self.file(name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise self.error(f"{name} cannot be read ({error})", COPY) from error
        if not isinstance(content, dict):
            raise self.error(f"{name} holds no JSON object", COPY)
        return content

    def weights(self) -> tuple[list[str], set[str]]:
        """Names of the weight files, an index first, and of the tensors in them. Raises UserError."""
        name = next((name for name in WEIGHT_FILES if (self.path / name).is_file()), None)
        if name is None:
            raise self.error(f"no weights ({' or '.join(WEIGHT_FILES)})", COMPLETE)
        if not name.endswith(".index.json"):
            return [name], self._tensors(name)
        shards = self.json(name).get("weight_map")
        if not isinstance(shards, dict):
            raise self.error(f"{name} has no weight_map", COPY)
        files = sorted(set(map(str, shards.values())))
        for file in files:
            self.file(file)
        return [name, *files], set(shards)

    def _tensors(self, name: str) -> set[str]:
        try:
            if name.endswith(".safetensors"):
                with safe_open(self.path / name, framework="pt") as stream:
                    return set(stream.keys())
            return set(torch.load(self.path / name, map_location="meta", weights_only=True))
        except pickle.UnpicklingError as error:
            raise self.error(
                f"{name} is not read: it holds more than tensors, and unpickling that runs code",
                "save the model as model.safetensors",
            ) from error
        except (OSError, SafetensorError, RuntimeError, EOFError, ValueError, TypeError, KeyError) as error:
            raise self.error(f"{name} cannot be read ({first_line(error)})", COPY) from error

    def hashes(self, names: Iterable[str]) -> dict[str, str]:
        """SHA-256 of those of the files that are there, by name."""
        return {name: sha256(self.path / name) for name in names if (self.path / name).is_file()}
