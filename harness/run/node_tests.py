"""ONNX's own node tests (``onnx.backend.test``), as this harness uses them: prepared once, kept on disk.

**A test of an opset.** ONNX writes each node test for one opset, mostly the newest that changed the operator. What an
operator does at opset N is asked with every test that, stamped with opset N and the lowest IR version that N allows,
1. is a valid model: ONNX's checker and its type inference accept it, so the operator exists there, with those attributes,
   inputs and dtypes;
2. means the same: no attribute has another default at N than at the test's own opset. Softmax-13 took the axis 1 of
   Softmax-11, which flattened the input first, for -1: no checker sees that, the reference evaluator knows only the
   newer meaning, and a right runtime would be called wrong. What no schema says is listed in ``BEFORE``;
3. has right answers: the reference evaluator gives the expected outputs.
Else it is no test of opset N. GatherElements (since 11) thus has its three tests from opset 11 on, though all were written
for 13, and SoftmaxCrossEntropyLoss (since 12) its 34 from opset 12 on: both changed at 13 in the dtypes they take, only.
The tests named ``_expanded`` hold other operators than the one they are named for, and are left out.

The cache, ``$XDG_CACHE_HOME/seq2seq-conformance`` (``~/.cache`` without it), can be deleted at any time. Reading it needs
no more of onnx than its protobuf classes.
"""

import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.files import write_whole
from harness.judge.equal import difference
from harness.run import preflight

FORMAT = 1
OLDEST = 9
ABOUT, INDEX = "collection.json", "tests.json"
NO_ARRAY = "sequence"
INTEGERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
NATIVE = INTEGERS | {"bool", "object", "float16", "float32", "float64", "complex64", "complex128"}
"""Element types that numpy has, and that the backend contract carries."""
BEFORE = {
    r"test_mod_float.*_fmod_0.*": (28, "up to Mod-27 floats need fmod=1, which its text alone says"),
    r"test_training_dropout(_default)?(_mask)?": (99, "the expected mask is that of numpy's random numbers"),
}
"""Names of tests -> the opset before which they are not used, and why: neither checker nor evaluator knows."""


@dataclass(frozen=True)
class NodeTest:
    """One test. ``opsets``: those that it is a test of; ``dtypes``: of its inputs and outputs, in numpy's words;
    ``lacks``: those of them that no numpy array has, so that the backend contract cannot carry the test."""

    name: str
    operator: str
    opsets: tuple[int, ...]
    dtypes: tuple[str, ...]
    lacks: tuple[str, ...]


class Collection:
    """The prepared tests of some operators. ``name`` says which collection it is; rows carry it."""

    def __init__(self, folder: Path, operators: Iterable[str]) -> None:
        """Raises OSError for what is not a prepared collection."""
        self.folder = folder
        try:
            about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
            self.name: str = about["name"]
            self.operators: list[str] = about["operators"]
            self._irs = {int(opset): ir for opset, ir in about["irs"].items()}
            self._tests = {name: _read(folder / name) for name in operators if name in self.operators}
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(
                f"{folder}: damaged ({error}); delete this folder: it is prepared again when needed"
            ) from error
        self.opsets = range(min(self._irs), max(self._irs) + 1)

    def tests(self, operator: str, opset: int) -> list[NodeTest]:
        """The tests of an operator at an opset; none where it does not exist, or where ONNX has no test of it."""
        return [test for test in self._tests.get(operator, []) if opset in test.opsets]

    def stamped(self, test: NodeTest, opset: int, folder: str) -> dict[str, str]:
        """What a worker needs to run the test at that opset; its model is written into ``folder``."""
        stem = str(self.folder / test.operator / test.name)
        model = preflight.read(f"{stem}.onnx")
        _stamp(model, opset, self._irs[opset])
        path = os.path.join(folder, f"{test.name}-op{opset}.onnx")
        Path(path).write_bytes(model.SerializeToString())
        return {"name": test.name, "model": path, "data": f"{stem}.npz"}


def _read(folder: Path) -> list[NodeTest]:
    entries = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return [
        NodeTest(entry["name"], folder.name, *(tuple(entry[key]) for key in ("opsets", "dtypes", "lacks")))
        for entry in entries
    ]


def collection(operators: Iterable[str], note: Callable[[str], object] = lambda line: None) -> Collection:
    """The installed onnx's tests of these operators, from the cache; those that it lacks are prepared, and ``note`` gets a
    line about it. A name without tests is left out; ``Collection.operators`` lists those that have some.

    Raises OSError when the cache cannot be written or read.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seq2seq-conformance"
    version = metadata.version("onnx")
    folder = root / f"node-tests-{FORMAT}-onnx-{version}"
    wanted = set(operators)
    known = set(Collection(folder, ()).operators) if (folder / ABOUT).is_file() else wanted
    missing = {operator for operator in wanted & known if not (folder / operator).is_dir()}
    if missing or not (folder / ABOUT).is_file():
        note(f"preparing ONNX's node tests of {len(missing)} operators, once; they are kept in {folder}")
        _prepare(folder, f"onnx {version}, format {FORMAT}", missing)
    return Collection(folder, wanted)


def _prepare(folder: Path, name: str, operators: Container[str]) -> None:
    """Write the tests of some operators, a folder each, and what the collection as a whole has."""
    import onnx
    from onnx.backend.test.loader import load_node_model_tests

    irs = {
        opset: onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
        for opset in range(OLDEST, onnx.defs.onnx_opset_version() + 1)
    }
    cases: dict[str, list[Any]] = {}
    with warnings.catch_warnings():  # of numpy, about the infinities that tests are made of
        warnings.simplefilter("ignore")
        for case in load_node_model_tests():
            node = case.model.graph.node[0]
            if not node.domain and not re.search(r"_expanded(_ver\d+)?$", case.name):
                cases.setdefault(node.op_type, []).append(case)
        folder.mkdir(parents=True, exist_ok=True)
        for operator in cases:
            if operator in operators:
                _keep(folder / operator, cases[operator], irs)
    write_whole(folder / ABOUT, json.dumps({"name": name, "irs": irs, "operators": sorted(cases)}))


def _keep(path: Path, cases: list[Any], irs: dict[int, int]) -> None:
    """Write one operator's tests; the folder gets its name when it is complete."""
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=path.parent))
    try:
        tests = []
        for case in cases:
            test = _test(case, irs)
            if test.opsets:
                tests.append(test)
            if test.opsets and not test.lacks:
                _write(draft, case)
        (draft / INDEX).write_text(json.dumps([asdict(test) for test in tests]), encoding="utf-8")
        draft.rename(path)
    except OSError:
        if not path.is_dir():  # else another process was faster
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _stamp(model: Any, opset: int, ir: int) -> None:
    (entry,) = model.opset_import
    entry.version, model.ir_version = opset, ir


def _test(case: Any, irs: dict[int, int]) -> NodeTest:
    ((inputs, outputs),) = case.data_sets
    dtypes = tuple(dict.fromkeys(_dtype(value) for value in (*inputs, *outputs)))
    lacks = tuple(dtype for dtype in dtypes if dtype not in NATIVE)
    return NodeTest(case.name, case.model.graph.node[0].op_type, tuple(_opsets(case, irs)), dtypes, lacks)


def _opsets(case: Any, irs: dict[int, int]) -> Iterator[int]:
    """The opsets that a case is a test of."""
    import onnx

    (own,) = (entry.version for entry in case.model.opset_import)
    written = [_schema(node, own) for node in nodes(case.model.graph)]
    first = next((opset for pattern, (opset, _) in BEFORE.items() if re.fullmatch(pattern, case.name)), OLDEST)
    right: dict[tuple[int, ...], bool] = {}
    for opset, ir in irs.items():
        schemas = [_schema(node, opset) for node in nodes(case.model.graph)]
        if opset < first or None in schemas:
            continue
        # Where every operator is the same as at another opset, so is the answer.
        versions = tuple(schema.since_version for schema in schemas)
        if versions not in right:
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            _stamp(model, opset, ir)
            right[versions] = all(map(_means_the_same, written, schemas)) and _holds(model, case)
        if right[versions]:
            yield opset


def _schema(node: Any, opset: int) -> Any:
    import onnx

    try:
        return onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return None


def nodes(graph: Any) -> Iterator[Any]:
    """Every node, those of the graphs inside too."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from nodes(inner)


def _means_the_same(first: Any, second: Any) -> bool:
    """Whether two schemas of an operator agree in the defaults of the attributes that both have."""
    common = set(first.attributes) & set(second.attributes)
    return all(first.attributes[name].default_value == second.attributes[name].default_value for name in common)


def _holds(model: Any, case: Any) -> bool:
    """Whether a model is valid, and the reference evaluator gives what the case expects."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    ((inputs, outputs),) = case.data_sets
    names = [value.name for value in model.graph.input]
    try:
        onnx.checker.check_model(model, full_check=True)
        given = ReferenceEvaluator(model).run(None, dict(zip(names, map(_plain, inputs), strict=True)))
    except Exception:  # noqa: BLE001 - whatever it raises, there is no answer
        return False
    return _same(given, [_plain(value) for value in outputs])


def _same(given: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return isinstance(given, list) and len(given) == len(expected) and all(map(_same, given, expected))
    if expected is None or given is None:
        return given is expected
    given = np.asarray(given)
    if expected.dtype.name in NATIVE:
        return not difference("", given, expected)
    # numpy cannot subtract what it does not have; the bits can be compared.
    alike = given.dtype == expected.dtype and given.shape == expected.shape
    return bool(alike and given.tobytes() == expected.tobytes())


def _plain(value: Any) -> Any:
    """Arrays, with ONNX's own dtypes where numpy has none, lists of them, or None."""
    import onnx

    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if value is None else np.asarray(value)


def _dtype(value: Any) -> str:
    plain = _plain(value)
    return str(plain.dtype.name) if isinstance(plain, np.ndarray) else NO_ARRAY


def _write(folder: Path, case: Any) -> None:
    ((inputs, outputs),) = case.data_sets
    sides = (("in", case.model.graph.input, inputs), ("out", case.model.graph.output, outputs))
    arrays = {
        f"{side}:{port.name}": _plain(value)
        for side, ports, values in sides
        for port, value in zip(ports, values, strict=True)
    }
    texts = {key: array.astype(str) for key, array in arrays.items() if array.dtype == object}
    np.savez(folder / f"{case.name}.npz", **{**arrays, **texts})
    (folder / f"{case.name}.onnx").write_bytes(case.model.SerializeToString())
