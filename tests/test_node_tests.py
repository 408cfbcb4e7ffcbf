"""ONNX's node tests as they are prepared: which test is one of which opset, the cache, and how answers are compared."""

from pathlib import Path

import numpy as np
import pytest

from harness.judge.equal import difference
from harness.run import node_tests, preflight
from tests import helpers

GATHER, LOSS = "GatherElements", "SoftmaxCrossEntropyLoss"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of its own for this file, with some operators prepared."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        node_tests.collection([GATHER, LOSS, "Softmax", "Range", "Mod"])
    return folder


@pytest.fixture(autouse=True)
def cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def opsets_of(operator: str) -> list[int]:
    tests = node_tests.collection([operator])
    return [opset for opset in tests.opsets if tests.tests(operator, opset)]


def test_an_operator_has_tests_where_it_exists() -> None:
    """What the article's table says of opset 12 is answered here: both operators exist there."""
    tests = node_tests.collection([GATHER, LOSS])
    newest = tests.opsets[-1]
    assert opsets_of(GATHER) == list(range(11, newest + 1))
    assert opsets_of(LOSS) == list(range(12, newest + 1))
    assert {len(tests.tests(GATHER, opset)) for opset in range(11, newest + 1)} == {3}
    assert {len(tests.tests(LOSS, opset)) for opset in range(12, newest + 1)} == {34}


def test_a_test_of_another_meaning_is_left_out() -> None:
    """Softmax-11 flattened its input: the tests of Softmax-13 pass the checker there, and right runtimes fail them."""
    assert opsets_of("Softmax")[0] == 13
    mod = node_tests.collection(["Mod"])
    assert "test_mod_float32_mixed_sign_fmod_0" in {test.name for test in mod.tests("Mod", 28)}
    assert not [test for test in mod.tests("Mod", 27) if "_fmod_0" in test.name]


def test_a_dtype_is_tested_where_the_operator_takes_it() -> None:
    tests = node_tests.collection(["Range"])
    counts = {opset: len(tests.tests("Range", opset)) for opset in tests.opsets}
    assert counts[10] == 0
    assert counts[11] == 2
    newest = tests.tests("Range", tests.opsets[-1])
    assert {dtype for test in newest for dtype in test.lacks} == {"bfloat16"}


def test_a_stamped_model_is_of_that_opset_and_the_lowest_ir(tmp_path: Path) -> None:
    tests = node_tests.collection([GATHER])
    for opset, ir in ((11, 6), (12, 7), (15, 8), (23, 11)):
        asked = tests.stamped(tests.tests(GATHER, opset)[0], opset, str(tmp_path))
        model = preflight.read(asked["model"])
        assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", opset)]
        assert model.ir_version == ir


def test_a_second_reading_imports_no_onnx(cache: Path) -> None:
    program = (
        "import sys, harness.run.operators; from harness.run import node_tests;"
        "print(len(node_tests.collection(['GatherElements', 'NoSuch']).tests('GatherElements', 12)), 'onnx' in sys.modules)"
    )
    done = helpers.run("timeit", "-n1", "-r1", program)
    assert done.stdout.splitlines()[0] == "3 False", done.stdout + done.stderr
    kept = [file for file in cache.rglob("*") if file.is_file()]
    assert {file.suffix for file in kept} == {".json", ".onnx", ".npz"}
    for file in kept:
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as saved:
                assert all(saved[name].dtype != object for name in saved.files)


def test_an_operator_is_added_to_the_cache(cache: Path) -> None:
    notes: list[str] = []
    assert not list(cache.rglob("NonZero"))
    assert node_tests.collection(["NonZero", GATHER], notes.append).tests("NonZero", 13)
    assert node_tests.collection(["NonZero", GATHER], notes.append).tests(GATHER, 13)
    (line,) = notes
    assert line.startswith("preparing ONNX's node tests of 1 operators, once")
    assert not list(cache.rglob(".draft*"))


NAN, INF = float("nan"), float("inf")
PAIRS = [
    (1.0009, 1.0, ""),
    (1.0011, 1.0, "y[] is 1.0011"),
    (9e-8, 0.0, ""),
    (2e-7, 0.0, "y[] is 2e-07"),
    (NAN, NAN, ""),
    (NAN, 1.0, "y[] is nan"),
    (1.0, NAN, "expected nan"),
    (INF, INF, ""),
    (-INF, INF, "y[] is -inf"),
    (1e30, INF, "expected inf"),
]


@pytest.mark.parametrize("value, expected, words", PAIRS)
def test_floats_compare_as_onnx_compares_them(value: float, expected: float, words: str) -> None:
    message = difference("y", np.array(value, np.float64), np.array(expected, np.float64))
    assert bool(message) == bool(words)
    assert words in message


@pytest.mark.parametrize(
    "value, expected, words",
    [
        (np.array([1, 2]), np.array([1, 3]), "y[1] is 2, expected 3; 1 of 2 differ"),
        (np.array([10**9]), np.array([10**9 + 1]), "y[0] is"),
        (np.array([True]), np.array([False]), "y[0] is True"),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), "y[1] is b, expected c"),
        (np.zeros(2, np.int32), np.zeros(2, np.int64), "y is int32, expected int64"),
        (np.zeros((1, 2)), np.zeros(2), "y has rank 2"),
        (np.zeros(1), np.zeros(2), "y has shape [1], expected [2]"),
        (np.array(["a"], object), np.array(["a"], object), ""),
        (np.zeros((0, 3)), np.zeros((0, 3)), ""),
    ],
)
def test_all_else_compares_exactly(value: np.ndarray, expected: np.ndarray, words: str) -> None:
    message = difference("y", value, expected)
    assert bool(message) == bool(words)
    assert words in message
