"""Bundles that are damaged, foreign, newer or malicious: whoever opens one answers with one line and changes nothing."""

import io
import json
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.core.graph import Graph
from tests import helpers
from tests.conftest import Draft

GRAPH = "torchscript/unified/fp32/op17"
STEP = "torchscript-fp32-op17-step.onnx"


class Bad(NamedTuple):
    """One way to spoil a bundle; ``says`` are words of the one line that must come."""

    spoil: Callable[[Draft], object]
    says: tuple[str, ...]


def _cut(name: str, keep: int) -> Callable[[Draft], None]:
    def spoil(draft: Draft) -> None:
        draft.put(name, (draft.path / name).read_bytes()[:keep])

    return spoil


def _flip(draft: Draft) -> None:
    content = bytearray((draft.path / "trace_logits.npy").read_bytes())
    content[-100] ^= 1
    draft.put("trace_logits.npy", bytes(content))


def _link(draft: Draft) -> None:
    tokens = draft.path / "tokens.npy"
    elsewhere = draft.path.parent / "elsewhere.npy"
    shutil.copy(tokens, elsewhere)
    tokens.unlink()
    tokens.symlink_to(elsewhere)


def _pipe(draft: Draft) -> None:
    (draft.path / "tokens.npy").unlink()
    os.mkfifo(draft.path / "tokens.npy")


def _named(name: str) -> Callable[[Draft], None]:
    """A graph whose step is a file of that name; the manifest lists it as any other."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][name] = manifest["files"][STEP]
        for graph in manifest["graphs"]:
            graph["parts"].get("step", {})["file"] = name

    return lambda draft: draft.manifest(change)


def _set(**values: Any) -> Callable[[Draft], None]:
    return lambda draft: draft.manifest(lambda manifest: manifest.update(values))


def _drop(*names: str) -> Callable[[Draft], None]:
    def change(manifest: dict[str, Any]) -> None:
        for name in names[:-1]:
            manifest = manifest[name]
        del manifest[names[-1]]

    return lambda draft: draft.manifest(change)


def _batch(rows: list[int]) -> Callable[[Draft], None]:
    return lambda draft: draft.manifest(lambda manifest: manifest["batches"]["forced"].append(rows))


def _role(part: str, side: str, index: int, role: object) -> Callable[[Draft], None]:
    """Another role for one port of every graph's part of that name."""

    def change(manifest: dict[str, Any]) -> None:
        for graph in manifest["graphs"]:
            if part in graph["parts"]:
                graph["parts"][part][side][index][3] = role

    return lambda draft: draft.manifest(change)


def _sealed(name: str, content: bytes) -> Callable[[Draft], None]:
    """Other content, and a manifest that vouches for it."""

    def spoil(draft: Draft) -> None:
        draft.put(name, content)
        draft.reseal()

    return spoil


class Trap:
    """Unpickled, it leaves a file named by TRAP."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch $TRAP",)


def _pickled(name: str) -> Callable[[Draft], None]:
    def spoil(draft: Draft) -> None:
        (draft.path / f"{name}.npy").unlink()
        np.save(draft.path / f"{name}.npy", np.array([Trap()] * 50, object), allow_pickle=True)
        draft.reseal()

    return spoil


BAD = {
    "no manifest": Bad(lambda draft: (draft.path / "manifest.json").unlink(), ("no readable manifest.json",)),
    "damaged manifest": Bad(_cut("manifest.json", 1000), ("manifest.json is damaged",)),
    "binary manifest": Bad(lambda draft: draft.put("manifest.json", b"\xff\xfe\x00"), ("manifest.json is damaged",)),
    "foreign manifest": Bad(lambda draft: draft.put("manifest.json", b'{"name": "x"}'), ("is not a bundle's",)),
    "list for a manifest": Bad(lambda draft: draft.put("manifest.json", b"[1]"), ("is not a bundle's",)),
    "newer schema": Bad(_set(schema=4), ("schema 4", "reads schemas 1 to 3", "update the checkout")),
    "schema of another type": Bad(_set(schema="1"), ("schema '1'",)),
    "unknown role": Bad(_role("step", "inputs", 0, "token"), ("step port input_ids", "unknown role 'token'")),
    "role of a layer without a number": Bad(_role("step", "outputs", 1, "self.key"), ("unknown role 'self.key'",)),
    "role that is a number": Bad(_role("step", "inputs", 0, 5), ("manifest.json does not say",)),
    "role twice": Bad(_role("step", "inputs", 0, "source.mask"), ("step", "two ports", "one role")),
    "missing file": Bad(lambda draft: (draft.path / "tokens.npy").unlink(), ("tokens.npy is missing",)),
    "truncated file": Bad(_cut("trace_self.npy", 5000), ("trace_self.npy has 5000 bytes",)),
    "empty file": Bad(_cut(STEP, 0), (f"{STEP} has 0 bytes",)),
    "changed byte": Bad(_flip, ("trace_logits.npy does not hash",)),
    "link for a file": Bad(_link, ("tokens.npy is a link", "cp -L")),
    "pipe for a file": Bad(_pipe, ("tokens.npy is missing",)),
    "path upwards": Bad(_named("../step.onnx"), ("'../step.onnx' leaves the bundle",)),
    "absolute path": Bad(_named("/etc/passwd"), ("'/etc/passwd' leaves the bundle",)),
    "path into a folder": Bad(_named("folder/step.onnx"), ("'folder/step.onnx' leaves the bundle",)),
    "hidden file": Bad(_named(".step.onnx"), ("'.step.onnx' leaves the bundle",)),
    "unlisted file": Bad(_drop("files", STEP), (f"{STEP} is used but not listed",)),
    "no size": Bad(_drop("files", STEP, "size"), ("manifest.json",)),
    "no graphs": Bad(_drop("graphs"), ("manifest.json does not say", "graphs")),
    "no batches": Bad(_drop("batches"), ("batches",)),
    "unlisted floor": Bad(_drop("files", "floor_fp32_logits.npy"), ("floor_fp32_logits.npy",)),
    "batch of a row that is not there": Bad(_batch([99_999]), ("batches",)),
    "batch of no row": Bad(_batch([]), ("batches",)),
    "fewer rows than arrays": Bad(lambda draft: draft.manifest(lambda manifest: manifest["rows"].pop()), ("rows",)),
    "rows that are a number": Bad(_set(rows=3), ("manifest.json",)),
    "pickled source ids": Bad(_pickled("source_ids"), ("source_ids.npy cannot be read",)),
    "pickled trace": Bad(_pickled("trace_logits"), ("trace_logits.npy cannot be read",)),
    "array that is none": Bad(_sealed("tokens.npy", b"x" * 500), ("tokens.npy cannot be read",)),
    "pieces that are none": Bad(_sealed("pieces.json", b"{"), ("pieces.json",)),
    "too few pieces": Bad(_sealed("pieces.json", b'["a"]'), ("pieces.json",)),
}


class Case(NamedTuple):
    """A spoiled bundle with what was in its folder, and how each command ended."""

    draft: Draft
    before: dict[str, tuple[int, int]]
    pytest: "subprocess.CompletedProcess[str]"
    replay: "subprocess.CompletedProcess[str]"
    results: Path


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, pristine: Path) -> dict[str, Case]:
    """Every bad bundle, opened by pytest and by the replay without pytest, two at a time."""
    base = tmp_path_factory.mktemp("bad")

    def opened(number: int, bad: Bad) -> Case:
        folder = base / str(number)
        folder.mkdir()
        draft, results = Draft(folder / "draft.bundle", pristine), folder / "results"
        bad.spoil(draft)
        before = listing(draft.path)
        trap = {"TRAP": str(folder / "sprung")}
        asked = helpers.conformance(
            results, f"--bundle={draft.path}", "--opset=17", "--layout=unified", "-k", "kv_shape or text", **trap
        )
        replayed = helpers.run(
            "harness.replay",
            str(draft.path),
            "--opset",
            "17",
            "--layout",
            "unified",
            "--results",
            str(results),
            **trap,
        )
        return Case(draft, before, asked, replayed, results)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(BAD, pool.map(opened, range(len(BAD)), BAD.values()), strict=True))


@pytest.mark.parametrize("name", BAD)
def test_pytest_says_one_line_and_exits_4(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    output = case.pytest.stdout + case.pytest.stderr
    assert case.pytest.returncode == 4, output
    assert "Traceback" not in output
    (line,) = [line for line in output.splitlines() if line.startswith("ERROR: ")]
    assert str(case.draft.path) in line
    assert "; " in line, "it says what to do"
    for words in BAD[name].says:
        assert words in line


@pytest.mark.parametrize("name", BAD)
def test_replay_says_one_line_and_exits_2(cases: dict[str, Case], name: str) -> None:
    done = cases[name].replay
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    for words in BAD[name].says:
        assert words in line


@pytest.mark.parametrize("name", BAD)
def test_nothing_is_written_or_run(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    assert listing(case.draft.path) == case.before
    assert not list(case.results.glob("*.jsonl"))
    assert not (case.draft.path.parent / "sprung").exists(), "a pickle was opened"


def test_conform_names_the_bundle_too(draft: Draft, tmp_path: Path, ort_run: Any) -> None:
    """Rows that have no text yet need the bundle: a damaged one is bad input there as well."""
    lines = [row for row in helpers.rows_in(ort_run[1]) if row["check"] == "tokens"]
    (tmp_path / "some.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    _flip(draft)
    done = helpers.run("conform.cli", "matrix", str(tmp_path / "some.jsonl"), "--bundle", str(draft.path))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: bundle {draft.path}: trace_logits.npy does not hash")


def test_the_undamaged_copy_is_good(draft: Draft) -> None:
    bundle = Bundle(str(draft.path))
    assert bundle.verify() == sum(path.stat().st_size for path in draft.path.iterdir() if path.name != "manifest.json")
    assert bundle.hash == Bundle(str(helpers.EMBEDDED), verify=False).hash
    assert len(bundle.batches("free")) > 1


def test_large_arrays_stay_on_disk() -> None:
    bundle = Bundle(str(helpers.EMBEDDED), verify=False)
    for name in ("trace_logits", "trace_self", "trace_cross", "trace_encoder", "tokens", "top_logits"):
        owner: Any = bundle.array(name)
        assert not owner.flags.writeable
        while isinstance(owner, np.ndarray):
            owner = owner.base
        assert isinstance(owner, mmap.mmap), name


SMALL_TRAP = b"".join(
    [
        b"\x93NUMPY\x01\x00\x36\x00",
        b"{'descr':'|O','fortran_order':False,'shape':(1,)}".ljust(53) + b"\n",
        b"cposix\nsystem\n(S'touch $TRAP'\ntR.",
    ]
)
"""An array of one object in so few bytes that it is read, not mapped."""


def _sprung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[], object]) -> bool:
    """Whether a pickle was opened; the read itself must be refused."""
    monkeypatch.setenv("TRAP", str(tmp_path / "sprung"))
    with pytest.raises(UserError, match="cannot be read"):
        read()
    return (tmp_path / "sprung").exists()


def test_pickles_are_refused_by_the_array_itself(draft: Draft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pickled("top_logits")(draft)
    assert not _sprung(tmp_path, monkeypatch, lambda: Bundle(str(draft.path), verify=False).array("top_logits"))


def test_a_pickle_of_few_bytes_is_refused(draft: Draft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft.put("top_logits.npy", SMALL_TRAP)
    draft.reseal()
    assert len(SMALL_TRAP) <= 128
    assert not _sprung(tmp_path, monkeypatch, lambda: Bundle(str(draft.path), verify=False).array("top_logits"))
    np.load(io.BytesIO(SMALL_TRAP), allow_pickle=True)
    assert (tmp_path / "sprung").exists(), "the trap does not work, so the test above proves nothing"


def test_a_pickled_witness_is_refused(draft: Draft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in draft.path.glob("witness-*.npz"):
        content = io.BytesIO()
        np.savez(content, logits=np.array([Trap()], object))
        draft.put(path.name, content.getvalue())
    draft.reseal()
    assert not _sprung(tmp_path, monkeypatch, lambda: Bundle(str(draft.path), verify=False).witness(GRAPH))


@pytest.mark.parametrize("schema", [1, 2])
def test_earlier_schemas_give_the_same_roles(draft: Draft, schema: int) -> None:
    """They say no roles: those are read off Optimum's names."""

    def older(manifest: dict[str, Any]) -> None:
        manifest["schema"] = schema
        for part in (part for graph in manifest["graphs"] for part in graph["parts"].values()):
            for side in ("inputs", "outputs"):
                part[side] = [[name, dtype, shape] for name, dtype, shape, _ in part[side]]

    draft.manifest(older)
    assert Bundle(str(draft.path)).graphs == _moved(Bundle(str(helpers.EMBEDDED), verify=False).graphs, draft.path)


def _moved(graphs: tuple[Graph, ...], folder: Path) -> tuple[Graph, ...]:
    """The same graphs in another folder."""

    def moved(graph: Graph) -> Graph:
        parts = tuple(replace(part, path=str(folder / Path(part.path).name)) for part in graph.parts)
        return replace(graph, parts=parts)

    return tuple(map(moved, graphs))


def test_an_earlier_schema_with_a_name_that_is_not_optimums_is_refused(draft: Draft) -> None:
    def renamed(manifest: dict[str, Any]) -> None:
        manifest["schema"] = 2
        manifest["graphs"][0]["parts"]["step"]["inputs"][0] = ["tok", "int64", ["batch", 1]]

    draft.manifest(renamed)
    with pytest.raises(UserError, match="step port tok has the unknown role ''"):
        Bundle(str(draft.path))
