"""Runtimes that build, on fakes: what each stage leaves in the rows, the cache of engines, and what falls short of a run."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends import contract, staged
from conform import here
from harness.core import verdict
from harness.replay import node
from harness.run.process import Found
from tests import compilers, helpers
from tests.saboteurs import frame

ONE = ("--opset=17", "--layout=unified")
NOTHING_RAN = dict.fromkeys(
    ("encoder", "logits", "kv_shape", "kv_values", "tokens", "placement", "invariance", "cost"), 0
)


@pytest.fixture(autouse=True)
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONFORM_ENGINES", str(tmp_path / "engines"))
    return tmp_path / "engines"


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


def test_a_cell_says_what_each_stage_took(engines: Path) -> None:
    backend = compilers.Runs()
    rows = helpers.judge(backend, of=frame.brief())
    assert {row.status for row in rows.values()} == {"PASS"}
    told = [row for row in rows.values() if "stages" in row.detail]
    assert len(told) == 1, "once a cell is enough"
    stages = told[0].detail["stages"]
    parts = [(one.get("part", ""), one["stage"]) for one in stages]
    assert parts == [(part, stage) for part in ("encoder", "step") for stage in ("parse", "build", "load")] + [
        ("", "run")
    ]
    assert all(one["seconds"] >= 0 for one in stages)
    build = stages[1]
    assert build["log"] == [f"layer {number}" for number in range(20 - staged.LAST, 20)]
    assert Path(build["artifact"]).stat().st_size == build["bytes"]
    assert Path(build["artifact"]).is_relative_to(engines)
    assert rows["cost"].detail["load_seconds"] > 0


def test_a_second_run_takes_the_engines_of_the_first() -> None:
    first = helpers.judge(compilers.Runs(), of=frame.brief(), checks=("placement",))
    again = compilers.Runs()
    rows = helpers.judge(again, of=frame.brief(), checks=("placement",))
    assert again.did == [("load", "encoder"), ("load", "step")]
    assert rows["placement"].status == "PASS"
    stages = rows["placement"].detail["stages"]
    assert [(one["stage"], one.get("cached", False)) for one in stages] == [("build", True), ("load", False)] * 2
    built = [one for one in first["placement"].detail["stages"] if one["stage"] == "build"]
    for name in ("build_seconds", "bytes", "artifact"):
        assert [one[name] for one in stages if one["stage"] == "build"] == [one[name] for one in built]


def test_an_interpreter_loads_and_does_nothing_else() -> None:
    from backends import ort

    rows = helpers.judge(ort.Backend(), of=frame.brief(), checks=("kv_shape",))
    stages = [(one.get("part", ""), one["stage"]) for one in rows["kv_shape"].detail["stages"]]
    assert stages == [("encoder", "load"), ("step", "load"), ("", "run")]


@pytest.mark.parametrize(
    "make, status, effective", [(compilers.Runs, "PASS", "fp32"), (compilers.Lowers, "FAIL", "fp16")]
)
def test_the_placement_row_says_what_was_requested_and_what_it_was(make: Any, status: str, effective: str) -> None:
    row = helpers.judge(make(), of=frame.brief(), checks=("placement",))["placement"]
    assert row.status == status
    assert row.detail["precision"] == {"requested": "fp32", "effective": [effective]}


def test_a_precision_that_the_adapter_lacks_is_refused_with_those_it_has() -> None:
    backend = compilers.Runs()
    backend.capabilities = replace(backend.capabilities, dtypes=frozenset({"float16", "int64"}))
    row = helpers.judge(backend, of=frame.brief(), checks=("logits",))["logits"]
    assert (row.status, row.kind, backend.did) == ("UNSUPPORTED", "dtype", [])
    assert row.message.endswith(" is float32; the adapter takes float16, int64")


def test_two_models_of_one_name_share_nothing(tmp_path: Path) -> None:
    one, same = _part(tmp_path / "one"), _part(tmp_path / "same")
    graph, weights = _part(tmp_path / "graph", b"another weights.bin"), _part(tmp_path / "weights", weights=b"others")
    assert _built(one) == _built(same), "the content decides, and not the place"
    assert len({_built(one), _built(graph), _built(weights)}) == 3
    assert (_built(graph) / "engine").read_bytes() == compilers.MARK + b"another weights.bin"


class _OtherVersion(compilers.Builds):
    version = "1.1-fake"


class _OtherDevice(compilers.Builds):
    device = "fake2"


class _OtherToolkit(compilers.Builds):
    toolkit = "9"


@pytest.mark.parametrize("make, options", [
    (_OtherVersion, {}), (_OtherDevice, {}), (_OtherToolkit, {}), (lambda: compilers.Builds("fp16"), {}),
    (compilers.Builds, {"level": 0}),
])  # fmt: skip
def test_what_an_engine_depends_on_is_in_its_key(part: contract.Part, make: Any, options: dict[str, Any]) -> None:
    assert _built(part, make, **options) != _built(part)
    assert _built(part, make, **options) == _built(part, make, **options)
    assert _built(replace(part, name="encoder")) != _built(part)
    fixed = replace(part, inputs=(contract.Port("x", "float32", (1,)),))
    assert _built(fixed) != _built(replace(part, inputs=(contract.Port("x", "float32", ("batch",)),)))
    assert _built(part, threads=2) == _built(part), "how many threads run it is nothing to its engine"


def _cut(place: Path) -> None:
    (place / "engine").write_bytes((place / "engine").read_bytes()[:-1])


def _tampered(place: Path) -> None:
    content = bytearray((place / "engine").read_bytes())
    content[-1] ^= 1
    (place / "engine").write_bytes(content)


def _stale(place: Path) -> None:
    note = json.loads((place / "built.json").read_text(encoding="utf-8"))
    note["from"]["version"] = "0.9-fake"
    (place / "built.json").write_text(json.dumps(note), encoding="utf-8")


def _swapped(place: Path) -> None:
    other = _built(_part(place.parent.parent / "other", b"another graph"))
    for name in ("engine", "built.json"):
        os.replace(other / name, place / name)


@pytest.mark.parametrize("spoil, says", [
    (_cut, "is not whole: 36 bytes, 37 were built"), (_tampered, "was changed after it was built"),
    (_stale, "is stale or of something else: it was built from another version"),
    (_swapped, "built from another model"),
    (lambda place: (place / "built.json").unlink(), "is foreign or damaged"),
    (lambda place: (place / "built.json").write_text("[]", encoding="utf-8"), "is foreign or damaged"),
    (lambda place: (place / "built.json").write_text("{", encoding="utf-8"), "is foreign or damaged"),
    (lambda place: (place / "engine").unlink(), "is foreign or damaged"),
])  # fmt: skip
def test_an_engine_that_is_something_else_is_an_error_that_says_so(part: contract.Part, spoil: Any, says: str) -> None:
    place = _built(part)
    spoil(place)
    backend = compilers.Runs()
    backend.probe()
    backend.__class__ = compilers.Builds  # its key is that of the one which built
    with pytest.raises(contract.StageError) as caught:
        backend.compile(part, {})
    assert not backend.did, "it is neither used nor built anew in silence"
    assert (caught.value.stage, caught.value.kind) == ("load", "other")
    assert says in caught.value.message
    assert str(place) in caught.value.message
    assert "delete that folder to build it again" in caught.value.message


def test_a_tampered_engine_is_an_error_in_the_rows(engines: Path) -> None:
    helpers.judge(compilers.Runs(), of=frame.brief(), checks=("placement",))
    for place in engines.iterdir():
        _tampered(place)
    rows = helpers.judge(compilers.Runs(), of=frame.brief(), checks=("encoder", "placement"))
    assert {(row.status, row.stage, row.compared) for row in rows.values()} == {("ERROR", "load", 0)}
    assert "its SHA-256 is another" in rows["encoder"].message


def test_a_kept_engine_that_no_longer_loads_says_where_it_lies(part: contract.Part, engines: Path) -> None:
    class Refuses(compilers.Runs):
        def load(self, *_: Any) -> contract.Program:
            raise contract.StageError("load", "other", "wrong magic number")

    said = []
    for _ in range(2):
        backend = Refuses()
        backend.probe()
        with pytest.raises(contract.StageError, match="wrong magic number") as caught:
            backend.compile(part, {})
        said.append(caught.value.message)
    assert said[0] == "wrong magic number", "what was built a moment ago is not to blame on the cache"
    assert f"delete {next(engines.iterdir())} to build it again" in said[1]


def test_an_engine_is_kept_whole_or_not_at_all(
    part: contract.Part, engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    backend = compilers.Runs()
    backend.probe()
    with pytest.raises(
        contract.StageError, match=r"No space left on device\); give another folder with CONFORM_ENGINES"
    ):
        backend.compile(part, {})
    assert not list(engines.iterdir())


def test_where_two_processes_build_the_first_engine_serves(part: contract.Part) -> None:
    class Slow(compilers.Builds):
        def build(self, *given: Any) -> bytes:
            if not getattr(self, "second", False):  # the other process is through before this one
                other = Slow()
                other.second = True
                other.probe()
                with pytest.raises(staged.Reached):
                    other.compile(part, {})
                self.first = Path(other.stages[-1]["artifact"])
                self.first_stamp = self.first.stat().st_mtime_ns
            return super().build(*given)

    backend = Slow()
    backend.probe()
    with pytest.raises(staged.Reached):
        backend.compile(part, {})
    assert Path(backend.stages[-1]["artifact"]) == backend.first
    assert backend.first.stat().st_mtime_ns == backend.first_stamp
    assert [place.name for place in backend.first.parent.parent.iterdir()] == [backend.first.parent.name]


def test_an_engine_that_lives_in_its_compiler_is_not_kept(part: contract.Part, engines: Path) -> None:
    class InMemory(compilers.Builds):
        cached = False

    for _ in range(2):
        backend = InMemory()
        backend.probe()
        with pytest.raises(staged.Reached):
            backend.compile(part, {})
        assert backend.did == [("parse", "step"), ("build", "step")]
    assert not engines.exists()


@pytest.mark.parametrize("set_to, place", [
    ({"CONFORM_ENGINES": "/e", "XDG_CACHE_HOME": "/x"}, "/e"), ({"XDG_CACHE_HOME": "/x"}, "/x/seq2seq-conformance/engines"),
    ({"HOME": "/h"}, "/h/.cache/seq2seq-conformance/engines"),
])  # fmt: skip
def test_where_engines_are_kept(set_to: dict[str, str], place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFORM_ENGINES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in set_to.items():
        monkeypatch.setenv(name, value)
    assert staged.folder() == place


@pytest.mark.parametrize(
    "make, stage, kind", [(compilers.Builds, "build", "built"), (compilers.Parses, "parse", "parsed")]
)
def test_built_is_not_ran(make: Any, stage: str, kind: str) -> None:
    rows = helpers.judge(make(), of=frame.brief())
    assert {check: row.compared for check, row in rows.items()} == NOTHING_RAN
    assert {(row.status, row.stage, row.kind) for row in rows.values()} == {("ABSENT", stage, kind)}
    assert rows["logits"].message.startswith(f"{kind} in ")
    assert rows["logits"].message.endswith("not run: no fake board is plugged in; plug one in")
    assert ("MiB" in rows["logits"].message) == (kind == "built")


def test_a_refused_part_is_a_refusal_whatever_was_built_before_it() -> None:
    rows = helpers.judge(compilers.RefusesStep(), of=frame.brief(), checks=("logits", "tokens"))
    assert {(row.status, row.stage, row.kind) for row in rows.values()} == {("UNSUPPORTED", "build", "operator")}
    stages = rows["logits"].detail["stages"]
    assert [(one["part"], one["stage"]) for one in stages if one.get("failed")] == [("step", "build")]


def test_a_node_test_that_was_built_is_not_run(tmp_path: Path) -> None:
    import numpy as np

    np.savez(tmp_path / "data.npz", **{"in:x": np.ones(2, np.float32), "out:y": np.ones(2, np.float32)})
    (tmp_path / "model.onnx").write_bytes(b"graph")
    backend = compilers.Builds()
    test = {"name": "test_one", "model": str(tmp_path / "model.onnx"), "data": str(tmp_path / "data.npz")}
    row = node.run_test(backend, backend.probe(), test)
    assert (row.status, row.kind, row.compared) == ("ABSENT", "built", 0)


WISHES = {
    "built alone": (["tests.compilers:Builds"], [], 4),
    "built alone, allowed": (["tests.compilers:Builds"], ["--allow-absent"], 1),
    "built beside ort": (["tests.compilers:Builds", "ort"], [], 4),
    "built beside ort, allowed": (["tests.compilers:Builds", "ort"], ["--allow-absent"], 0),
    "parsed": (["tests.compilers:Parses"], [], 4),
    "refused is not built": (["tests.compilers:RefusesStep"], ["--allow-absent"], 1),
}


@pytest.mark.parametrize("name", WISHES)
def test_a_run_that_only_built_exits_like_one_of_an_absent_backend(tmp_path: Path, name: str, valid: Any) -> None:
    backends, more, code = WISHES[name]
    done = helpers.conformance(tmp_path, f"--backend={','.join(backends)}", *ONE, "-k", "kv_shape or artifact", *more)
    assert done.returncode == code, done.stdout
    valid(helpers.rows_in(tmp_path))
    lines = [line for line in done.stdout.splitlines() if "and not run:" in line]
    if name == "refused is not built":
        assert "tests.compilers:RefusesStep was asked for and compared nothing" in done.stdout
        assert not lines
    else:
        (line,) = lines
        kind = "parsed" if "Parses" in backends[0] else "built"
        assert line == f"{backends[0]} was {kind} and not run: no fake board is plugged in; plug one in"
        assert "compared nothing" not in done.stdout


def test_without_pytest_it_ends_like_an_absent_backend_too(tmp_path: Path) -> None:
    wish = ("--backend", "tests.compilers:Builds", *ONE, "--results", str(tmp_path))
    done = helpers.run("harness.replay", str(helpers.EMBEDDED), *wish)
    assert done.returncode == 2
    assert done.stderr == (
        "error: tests.compilers:Builds goes no further than build: no fake board is plugged in; plug one in\n"
    )
    assert {(row["status"], row["kind"]) for row in helpers.rows_in(tmp_path)} == {("ABSENT", "built")}


def test_processes_that_share_a_run_agree_that_it_only_built(tmp_path: Path) -> None:
    wish = ("--backend=tests.compilers:Builds,ort", "--opset=17", "-k", "kv_shape", "--allow-absent", "-n", "2")
    done = helpers.conformance(tmp_path, *wish)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("was built and not run") == 1


def test_a_compiler_that_dies_while_it_builds_is_a_crash(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path, "--backend=tests.compilers:DiesInBuild", *ONE, "-k", "kv_shape")
    assert done.returncode == 1
    assert {row["status"] for row in helpers.rows_in(tmp_path)} == {"CRASH"}


def test_explain_shows_the_stages_once(tmp_path: Path) -> None:
    cell = "tests.compilers:Builds@1.0-fake/fake/torchscript/unified/fp32/op17"
    done = helpers.run("conform.cli", "explain", cell)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "🔨 logits" in done.stdout
    assert done.stdout.count("not run: no fake board") == 1
    for word in ("encoder  parse ", "encoder  build ", "step     build ", "layer 19", str(tmp_path / "engines")):
        assert word in done.stdout


@pytest.mark.parametrize("found, line, note", [
    (Found(probe=contract.Probe("1.0", "npu", "fp16"), depth="build", missing={"reason": "no npu", "remedy": "plug"}),
     "toy        present  1.0        npu fp16  built", "toy is built, and goes no deeper: no npu\n    plug"),
    (Found(probe=contract.Probe("1.0", "simulator-npu", "fp16", "simulator")),
     "toy        present  1.0        simulator-npu fp16  simulated", ""),
    (Found(probe=contract.Probe("1.0", "npu", "fp16")), "toy        present  1.0        npu fp16  ran", ""),
    (Found(absent={"reason": "it is not here", "remedy": "pip install toy"}),
     "toy        absent   -          -         -", "toy is absent: it is not here\n    pip install toy"),
])  # fmt: skip
def test_backends_say_how_deep_they_go(monkeypatch: pytest.MonkeyPatch, found: Found, line: str, note: str) -> None:
    monkeypatch.setattr(here.select, "names", lambda: ["toy"])
    monkeypatch.setattr(here, "_ask", lambda name, python: found)
    _, _, shown, *notes = here.page(None).splitlines()
    assert shown.split() == line.split()
    assert "\n".join(notes) == note


def test_words_of_what_was_not_run_on_a_device() -> None:
    assert verdict.called("ABSENT", "built") == "BUILT"
    assert verdict.called("ABSENT", "parsed") == "ABSENT"
    assert verdict.called("PASS", simulated=True) == "SIMULATED"
    assert verdict.called("PASS", partial=True, simulated=True) == "PARTIAL"
    assert verdict.called("FAIL", simulated=True) == "FAIL"
