"""What a known-bad backend is declared as, and the small bundle that it is held against."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from backends import contract
from harness.core.batch import Batch
from harness.core.bundle import Bundle
from harness.core.manifest import MANIFEST
from harness.golden.folder import write_manifest
from harness.golden.witness import collect, store
from harness.judge.golden import Golden
from harness.run.text import Scorer
from tests.helpers import EMBEDDED
from tests.mutant import Feeds, Mutant

OPSETS = (14, 16, 17)
"""Opsets of the graphs that the small bundle keeps: 14 spells layer normalisation out in small operators."""
FREE_ROWS, FREE_BATCH = 24, 16
ONE_THREAD = {"threads": 1}
"""A model of this size gains nothing from a second one."""

Step = int | tuple[int, ...] | Callable[[Golden], int] | None
"""The first step that must be named: that one, one of several, worked out from the golden, or any."""
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Saboteur:
    """One backend that is wrong in one thing, and what the harness must say of it.

    ``case``: number in the list of public faults, 0 for one beside it. ``fails``: check -> first step that its row must
    name. ``passes``: checks that must still pass. ``blame``: the word on every failed row that carries one.
    ``says``: must stand in the message of the first check of ``fails``. ``status``: what the failing rows are.
    ``bundle`` edits a copy of the small bundle before anything runs: (folder, manifest) -> None; ``witnessed``: the
    witness of the graph is then replayed anew, as `conform record` would have.
    """

    name: str
    case: int
    make: Callable[[], contract.Backend]
    fails: Mapping[str, Step]
    layout: str = "unified"
    passes: tuple[str, ...] = ()
    blame: str = "runtime"
    says: str = ""
    status: str = "FAIL"
    kind: str = ""
    knob: str = ""
    opset: int = 17
    bundle: Callable[[Path, Manifest], None] | None = None
    witnessed: bool = False

    @property
    def checks(self) -> tuple[str, ...]:
        return (*self.fails, *self.passes)


@dataclass(frozen=True)
class Control:
    """An honest way to run: every check must pass, on each of ``layouts``."""

    name: str
    make: Callable[[], contract.Backend]
    case: int = 0
    layouts: tuple[str, ...] = ("unified", "split")
    opset: int = 17
    whole: bool = False
    """Against the embedded bundle as it is, instead of the small one."""
    bundle: Callable[[Path, Manifest], None] | None = None
    checks: tuple[str, ...] = field(
        default=("artifact", "encoder", "logits", "kv_shape", "kv_values", "tokens", "text", "placement", "invariance")
    )


@dataclass(frozen=True)
class Refusal:
    """Input that must be refused before any backend runs: ``attempt`` raises ``error`` with words that hold ``says``."""

    name: str
    case: int
    attempt: Callable[[Path], object]
    error: type[Exception]
    says: str


def bad(
    *,
    knobs: Mapping[str, contract.Knob] | None = None,
    capabilities: Mapping[str, Any] | None = None,
    **hooks: Any,
) -> Callable[[], Mutant]:
    """A maker of mutants, on one thread unless ``options`` say otherwise. Without ``knobs`` none is tried, which saves
    three replays a failure."""
    hooks.setdefault("options", ONE_THREAD)

    def make() -> Mutant:
        mutant = Mutant(**hooks)
        mutant.capabilities = replace(mutant.capabilities, knobs=knobs or {}, **(capabilities or {}))
        return mutant

    return make


def pair(saboteur: Saboteur, **split: Any) -> list[Saboteur]:
    """The same fault on both layouts; ``split`` says what differs on the second one."""
    changes = {"layout": "split", "name": f"{saboteur.name}-split", **split}
    return [saboteur, replace(saboteur, **changes)]


class PerProgram(Mutant):
    """A mutant whose hooks are made anew for each compiled part, so that what they remember is that program's own."""

    def __init__(self, hooks: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self.hooks = hooks
        self.capabilities = replace(self.capabilities, knobs={})

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        return Mutant(**self.hooks(), options=ONE_THREAD).compile(part, options)


def feeding(change: Callable[[int, Feeds], None], when: Callable[[int], bool] = lambda step: step >= 0) -> Any:
    """A feeds hook that acts on decoder steps for which ``when`` holds; ``change`` puts new arrays into the feeds."""

    def hook(part: str, step: int, feeds: Feeds) -> Feeds:
        if when(step):
            change(step, feeds)
        return feeds

    return hook


def giving(change: Callable[[int, Feeds], None], when: Callable[[int], bool] = lambda step: step >= 0) -> Any:
    """An outputs hook that acts on decoder steps for which ``when`` holds; ``change`` puts new arrays into the outputs."""

    def hook(part: str, step: int, feeds: Feeds, outputs: Feeds) -> Feeds:
        if when(step):
            change(step, outputs)
        return outputs

    return hook


def only(*steps: int) -> Callable[[int], bool]:
    return lambda step: step in steps


def since(first: int) -> Callable[[int], bool]:
    return lambda step: step >= first


def changed(change: Callable[[np.ndarray], np.ndarray], *names: str) -> Callable[[int, Feeds], None]:
    """A change of every array whose name holds one of ``names``."""

    def apply(step: int, arrays: Feeds) -> None:
        found = [name for name in arrays if any(part in name for part in names)]
        assert found, f"nothing is called {names} at step {step}: the saboteur would do nothing"
        for name in found:
            arrays[name] = np.ascontiguousarray(change(arrays[name].copy()))

    return apply


@lru_cache(maxsize=1)
def brief() -> Golden:
    """The golden of the small bundle: the embedded one with its first and its last traced batch, a tenth of its
    rows and three opsets. Lengths stay mixed."""
    folder = Path(tempfile.mkdtemp(prefix="saboteurs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _shrink(Bundle(str(EMBEDDED), verify=False), folder)
    return Golden(Bundle(str(folder)), "fp32")


@lru_cache(maxsize=1)
def whole() -> Golden:
    return Golden(Bundle(str(EMBEDDED)), "fp32")


def batch(index: int = 0) -> Batch:
    """A traced batch of the small bundle: 0 is the long one, 1 the short one."""
    return brief().batches[index]


def spoilt(folder: Path, edit: Callable[[Path, Manifest], None], witnessed: str = "") -> Path:
    """A copy of the small bundle after ``edit``, its hashes right again; ``witnessed``: and that graph replayed anew."""
    place = folder / "bundle"
    shutil.copytree(brief().bundle.path, place)
    manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    before = _fingerprint(place, manifest)
    edit(place, manifest)
    assert _fingerprint(place, manifest) != before, "the edit changed nothing in the bundle"
    write_manifest(place, manifest)
    if witnessed:
        bundle = Bundle(str(place), verify=False)
        graph = next(one for one in bundle.graphs if one.id == witnessed)
        manifest["witness"][graph.id] = store(bundle, collect(bundle, graph))
        write_manifest(place, manifest)
    return place


def array_edit(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path, Manifest], None]:
    """An edit of one array of a bundle."""

    def edit(folder: Path, manifest: Manifest) -> None:
        place = folder / f"{name}.npy"
        array = np.load(place)
        np.save(place, change(array))

    return edit


def first_fed(golden: Golden, wanted: Iterable[int]) -> int:
    """The first step of a forced replay at which one of those tokens is fed."""
    ids = set(wanted)
    return min(
        step + 1
        for batch in golden.batches
        for row, steps in enumerate(batch.steps)
        for step in range(steps - 1)
        if int(batch.tokens[row, step]) in ids
    )


@lru_cache(maxsize=1)
def rare_token() -> int:
    """A token that the traced rows feed, but not before step 10."""
    counts: dict[int, list[int]] = {}
    for one in brief().batches:
        for row, steps in enumerate(one.steps):
            for step in range(steps - 1):
                counts.setdefault(int(one.tokens[row, step]), []).append(step)
    late = {token: steps for token, steps in counts.items() if min(steps) >= 10}
    return min(late, key=lambda token: (len(late[token]), token))


def ends(golden: Golden) -> int:
    """The first step at which a traced row ends."""
    return min(min(batch.steps) for batch in golden.batches) - 1


def _fingerprint(folder: Path, manifest: Manifest) -> object:
    # A link is compared as the link that it is.
    files = {
        place.name: str(place.readlink()) if place.is_symlink() else place.read_bytes() for place in folder.iterdir()
    }
    return json.dumps(manifest, sort_keys=True), files


def _shrink(bundle: Bundle, folder: Path) -> None:
    manifest = json.loads(json.dumps(bundle.manifest))
    chosen = sorted({0, len(bundle.batches("forced")) - 1})
    forced = [bundle.batches("forced")[index] for index in chosen]
    traced = [row for one in forced for row in one.rows]
    spread = np.linspace(0, len(bundle.rows) - 1, FREE_ROWS).astype(int).tolist()
    rows = sorted({*traced, *spread})
    new = {row: index for index, row in enumerate(rows)}
    by_length = sorted(rows, key=lambda row: (-len(bundle.tokens(row)), row))
    free = [by_length[start : start + FREE_BATCH] for start in range(0, len(rows), FREE_BATCH)]
    manifest["rows"] = [manifest["rows"][row] for row in rows]
    manifest["traced_rows"] = sorted(new[row] for row in traced)
    manifest["batches"] = {
        "forced": [[new[row] for row in one.rows] for one in forced],
        "free": [[new[row] for row in one] for one in free],
    }
    arrays = _row_arrays(bundle, rows)
    steps = [slice(one.trace.start, one.trace.start + sum(one.steps)) for one in forced if one.trace]
    places = [slice(one.source_start, one.source_start + int(one.mask.sum())) for one in forced]
    for stem in ("trace", *(f"floor_{precision}" for precision in bundle.precisions)):
        for output, slices in (("logits", steps), ("self", steps), ("encoder", places), ("cross", places)):
            arrays[f"{stem}_{output}"] = _sliced(bundle.array(f"{stem}_{output}"), output, slices)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    manifest["graphs"] = [graph for graph in manifest["graphs"] if graph["opset"] in OPSETS]
    names = {"pieces.json"}
    for graph in manifest["graphs"]:
        for part in graph["parts"].values():
            names |= {part["file"], *part["weights"]}
    for name in names:
        shutil.copy(Path(bundle.path) / name, folder / name)
    kept = [
        f"{graph['exporter']}/{graph['layout']}/{graph['precision']}/op{graph['opset']}" for graph in manifest["graphs"]
    ]
    witness = {graph: bundle.witness(graph) for graph in kept}
    manifest["witness"] = {}
    write_manifest(folder, manifest)
    small = Bundle(str(folder), verify=False)
    for graph, found in witness.items():
        cut = {
            output: _sliced(found[output], output, steps if output in ("logits", "self") else places)
            for output in ("logits", "self", "encoder", "cross")
        }
        manifest["witness"][graph] = store(small, cut)
    manifest.pop("witness_ratios", None)
    manifest["golden_text"] = Scorer(small).record()
    write_manifest(folder, manifest)


def _sliced(array: np.ndarray, output: str, slices: Sequence[slice]) -> np.ndarray:
    """Some slices of an array along its steps or places: the first axis, or the third after layers and sides."""
    axis = 2 if output in ("self", "cross") else 0
    return np.concatenate([array[(slice(None),) * axis + (one,)] for one in slices], axis=axis)


def _row_arrays(bundle: Bundle, rows: Sequence[int]) -> dict[str, np.ndarray]:
    source = [bundle.source(row) for row in rows]
    at = [bundle.token_slice(row) for row in rows]
    arrays = {
        name: np.concatenate([bundle.array(name)[one] for one in at]) for name in ("tokens", "top_ids", "top_logits")
    }
    arrays["source_ids"] = np.concatenate(source)
    arrays["source_starts"] = np.cumsum([0] + [len(one) for one in source]).astype(np.int64)
    arrays["token_starts"] = np.cumsum([0] + [one.stop - one.start for one in at]).astype(np.int64)
    return arrays
