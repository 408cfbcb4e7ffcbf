"""The cache of engines: what an engine depends on, and that a damaged or foreign engine is not used."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends import contract, engines, staged
from tests import compilers, helpers
from tests.saboteurs import frame

pytestmark = pytest.mark.usefixtures("engine_cache")


@pytest.fixture
def part(tmp_path: Path) -> contract.Part:
    return _part(tmp_path / "model")


def _part(folder: Path, graph: bytes = b"graph with weights.bin", weights: bytes = b"weights") -> contract.Part:
    folder.mkdir()
    (folder / "step.onnx").write_bytes(graph)
    (folder / "weights.bin").write_bytes(weights)
    (folder / "notes.txt").write_text("of no graph", encoding="utf-8")
    (folder / "graph").mkdir()
    return contract.Part("step", str(folder / "step.onnx"), (), ())


def _built(part: contract.Part, make: Callable[[], staged.Staged] = compilers.Builds, **options: Any) -> Path:
    """The folder of the engine that this part comes to."""
    backend = make()
    backend.probe()
    with pytest.raises(staged.Reached):
        backend.compile(part, options)
    return Path(backend.stages[-1]["artifact"]).parent


def test_two_models_of_one_name_share_nothing(tmp_path: Path) -> None:
    one, same = _part(tmp_path / "one"), _part(tmp_path / "same")
    graph, weights = _part(tmp_path / "graph", b"another weights.bin"), _part(tmp_path / "weights", weights=b"others")
    assert _built(one) == _built(same), "the content counts, not the path"
    assert len({_built(one), _built(graph), _built(weights)}) == 3
    assert (_built(graph) / "engine").read_bytes() == compilers.MARK + b"another weights.bin"


class _OtherVersion(compilers.Builds):
    version = "1.1-fake"


class _OtherDevice(compilers.Builds):
    device = "fake2"


class _OtherToolkit(compilers.Builds):
    toolkit = "9"


@pytest.mark.parametrize(
    "make, options",
    [
        (_OtherVersion, {}),
        (_OtherDevice, {}),
        (_OtherToolkit, {}),
        (lambda: compilers.Builds("fp16"), {}),
        (compilers.Builds, {"level": 0}),
    ],
)
def test_what_an_engine_depends_on_is_in_its_key(part: contract.Part, make: Any, options: dict[str, Any]) -> None:
    assert _built(part, make, **options) != _built(part)
    assert _built(part, make, **options) == _built(part, make, **options)
    assert _built(replace(part, name="encoder")) != _built(part)
    fixed = replace(part, inputs=(contract.Port("x", "float32", (1,)),))
    assert _built(fixed) != _built(replace(part, inputs=(contract.Port("x", "float32", ("batch",)),)))
    assert _built(part, threads=2) == _built(part), "the engine does not depend on the number of threads"


def _cut(folder: Path) -> None:
    (folder / "engine").write_bytes((folder / "engine").read_bytes()[:-1])


def _tampered(folder: Path) -> None:
    content = bytearray((folder / "engine").read_bytes())
    content[-1] ^= 1
    (folder / "engine").write_bytes(content)


def _stale(folder: Path) -> None:
    note = json.loads((folder / "built.json").read_text(encoding="utf-8"))
    note["from"]["version"] = "0.9-fake"
    (folder / "built.json").write_text(json.dumps(note), encoding="utf-8")


def _swapped(folder: Path) -> None:
    other = _built(_part(folder.parent.parent / "other", b"another graph"))
    for name in ("engine", "built.json"):
        os.replace(other / name, folder / name)


@pytest.mark.parametrize(
    "spoil, expected",
    [
        (_cut, "is truncated or was changed: 36 bytes, 37 were built"),
        (_tampered, "was changed after it was built"),
        (_stale, "was built from something else: its version differs"),
        (_swapped, "was built from something else: its model"),
        (lambda folder: (folder / "built.json").unlink(), "is damaged, or was not written by this program"),
        (
            lambda folder: (folder / "built.json").write_text("[]", encoding="utf-8"),
            "is damaged, or was not written by this program",
        ),
        (
            lambda folder: (folder / "built.json").write_text("{", encoding="utf-8"),
            "is damaged, or was not written by this program",
        ),
        (lambda folder: (folder / "engine").unlink(), "is damaged, or was not written by this program"),
    ],
)
def test_an_engine_that_is_something_else_is_an_error_that_says_so(
    part: contract.Part, spoil: Any, expected: str
) -> None:
    folder = _built(part)
    spoil(folder)
    backend = compilers.Runs()
    backend.probe()
    backend.__class__ = compilers.Builds  # its key is that of the one which built
    with pytest.raises(contract.StageError) as caught:
        backend.compile(part, {})
    assert not backend.did, "it is neither used nor silently built again"
    assert (caught.value.stage, caught.value.kind) == ("load", "other")
    assert expected in caught.value.message
    assert str(folder) in caught.value.message
    assert "delete the folder to build it again" in caught.value.message


def test_a_tampered_engine_is_an_error_in_the_rows(engine_cache: Path) -> None:
    helpers.judge(compilers.Runs(), of=frame.brief(), checks=("placement",))
    for folder in engine_cache.iterdir():
        _tampered(folder)
    rows = helpers.judge(compilers.Runs(), of=frame.brief(), checks=("encoder", "placement"))
    assert {(row.status, row.stage, row.compared) for row in rows.values()} == {("ERROR", "load", 0)}
    assert "its SHA-256 differs" in rows["encoder"].message


def test_a_kept_engine_that_no_longer_loads_says_where_it_lies(part: contract.Part, engine_cache: Path) -> None:
    class Refuses(compilers.Runs):
        def load(self, *_: Any) -> contract.Program:
            raise contract.StageError("load", "other", "wrong magic number")

    messages = []
    for _ in range(2):
        backend = Refuses()
        backend.probe()
        with pytest.raises(contract.StageError, match="wrong magic number") as caught:
            backend.compile(part, {})
        messages.append(caught.value.message)
    assert messages[0] == "wrong magic number", "the cache is not blamed for what this run built"
    assert f"delete {next(engine_cache.iterdir())} to build it again" in messages[1]


def test_an_engine_is_kept_whole_or_not_at_all(
    part: contract.Part, engine_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    backend = compilers.Runs()
    backend.probe()
    with pytest.raises(contract.StageError, match=r"No space left on device\); name another folder in CONFORM_ENGINES"):
        backend.compile(part, {})
    assert not list(engine_cache.iterdir())


def test_where_two_processes_build_the_first_engine_serves(part: contract.Part) -> None:
    class Slow(compilers.Builds):
        def build(self, *arguments: Any) -> bytes:
            if not getattr(self, "second", False):  # the other process is through before this one
                other = Slow()
                other.second = True
                other.probe()
                with pytest.raises(staged.Reached):
                    other.compile(part, {})
                self.first = Path(other.stages[-1]["artifact"])
                self.first_stamp = self.first.stat().st_mtime_ns
            return super().build(*arguments)

    backend = Slow()
    backend.probe()
    with pytest.raises(staged.Reached):
        backend.compile(part, {})
    assert Path(backend.stages[-1]["artifact"]) == backend.first
    assert backend.first.stat().st_mtime_ns == backend.first_stamp
    assert [folder.name for folder in backend.first.parent.parent.iterdir()] == [backend.first.parent.name]


def test_an_engine_that_lives_in_its_compiler_is_not_kept(part: contract.Part, engine_cache: Path) -> None:
    class InMemory(compilers.Builds):
        cached = False

    for _ in range(2):
        backend = InMemory()
        backend.probe()
        with pytest.raises(staged.Reached):
            backend.compile(part, {})
        assert backend.did == [("parse", "step"), ("build", "step")]
    assert not engine_cache.exists()


@pytest.mark.parametrize(
    "set_to, folder",
    [
        ({"CONFORM_ENGINES": "/e", "XDG_CACHE_HOME": "/x"}, "/e"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/seq2seq-conformance/engines"),
        ({"HOME": "/h"}, "/h/.cache/seq2seq-conformance/engines"),
    ],
)
def test_where_engines_are_kept(set_to: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFORM_ENGINES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in set_to.items():
        monkeypatch.setenv(name, value)
    assert engines.folder() == folder
