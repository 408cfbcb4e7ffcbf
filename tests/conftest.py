"""Fixtures of several files: one real run, a validator of rows, bundles to damage."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from reports import schema
from tests import helpers


@pytest.fixture(scope="session")
def ort_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """``pytest --backend=ort --opset=17``: the finished process and its results folder."""
    results = tmp_path_factory.mktemp("ort") / "results"
    return helpers.conformance(results, "--backend=ort", "--opset=17"), results


@pytest.fixture(scope="session")
def valid() -> Callable[[Iterable[dict[str, Any]]], None]:
    """Fails unless every row (a JSON object) is one of the committed schema."""
    checker = jsonschema.Draft202012Validator(json.loads(schema.PATH.read_text(encoding="utf-8")))

    def check(rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            problems = [f"{error.json_path}: {error.message}" for error in checker.iter_errors(row)]
            assert not problems, (row["check"], problems)

    return check


@pytest.fixture
def engine_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty cache of built engines."""
    monkeypatch.setenv("CONFORM_ENGINES", str(tmp_path / "engines"))
    return tmp_path / "engines"


class Draft:
    """A copy of the embedded bundle, to be damaged; only what is changed is really copied."""

    def __init__(self, path: Path, base: Path) -> None:
        self.path = path
        shutil.copytree(base, path, copy_function=os.link)

    def put(self, name: str, content: bytes) -> None:
        """Give a file another content; the one it was linked to stays."""
        (self.path / name).unlink(missing_ok=True)
        (self.path / name).write_bytes(content)

    def manifest(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the manifest and nothing else."""
        manifest = json.loads((self.path / "manifest.json").read_text(encoding="utf-8"))
        change(manifest)
        self.put("manifest.json", json.dumps(manifest).encode())

    def reseal(self) -> None:
        """Make sizes and hashes of the manifest those of the files, as somebody would who means harm."""
        from harness.golden.folder import write_manifest

        manifest = json.loads((self.path / "manifest.json").read_text(encoding="utf-8"))
        (self.path / "manifest.json").unlink()
        write_manifest(self.path, manifest)


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the embedded bundle that is safe to link to."""
    path = tmp_path_factory.mktemp("pristine") / "pristine.bundle"
    shutil.copytree(helpers.EMBEDDED, path)
    return path


@pytest.fixture
def draft(tmp_path: Path, pristine: Path) -> Draft:
    return Draft(tmp_path / "draft.bundle", pristine)
