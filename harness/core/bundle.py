"""The bundle on disk: one flat directory with everything a box needs, opened with numpy alone.

``manifest.json`` names every other file with its size and SHA-256; the bundle's hash is that of the manifest. Arrays
are plain ``.npy`` files, memory-mapped. Per-step arrays of the traced rows are in *trace order*: batch after batch,
step after step, and within a step the rows still decoding, longest first. So step k of a batch is one contiguous slice
on the golden's side, and the first n rows on the runtime's side: nothing is copied to compare.

| array | shape, dtype | content |
|---|---|---|
| ``source_ids`` | [sum of source lengths] int64 | encoder input, row after row; ``source_starts`` [rows + 1] |
| ``tokens`` | [all steps] int64 | golden greedy output with its end token; ``token_starts`` [rows + 1] |
| ``margins`` | [all steps] float64 | golden top-1 minus top-2 logit, of the tokens that may be chosen |
| ``top_ids``, ``top_logits`` | [all steps, k] int32, float64 | the k largest golden logits, nothing suppressed |
| ``trace_logits`` | [traced steps, vocabulary] float64 | trace order |
| ``trace_self`` | [layers, 2, traced steps, heads, head_dim] float64 | K (0) and V (1) written at each step |
| ``trace_encoder`` | [traced source tokens, d_model] float64 | padding left out, rows in batch order |
| ``trace_cross`` | [layers, 2, traced source tokens, heads, head_dim] float64 | cross-attention K and V |

``floor_PRECISION_logits``, ``_self``, ``_encoder``, ``_cross`` have the shape of their ``trace_*`` array less the axes
over which the largest gap between PyTorch in that precision and float64 was taken.
"""

import hashlib
import json
import mmap
import os
import re
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from backends.contract import Part, Port
from harness.core.errors import UserError

SCHEMA = 2
"""2 has static graphs; what is read of a bundle of 1 is the same."""
MANIFEST = "manifest.json"
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\Z")
PART_ORDER = ("encoder", "first", "step")
SMALL = 64 << 20
"""Bytes of mapped arrays that a box can spare: mapping them again and again would cost more than holding them."""
KV_NAME = re.compile(r"(?:past_key_values|present)\.(\d+)\.(decoder|encoder)\.(key|value)\Z")


class KV(NamedTuple):
    """What a cache port holds: decoder layer, own or cross attention, 0 for K and 1 for V."""

    layer: int
    cross: bool
    side: int


@lru_cache(maxsize=None)
def kv_of(name: str) -> Optional[KV]:
    """The cache tensor that a port name stands for, None for any other port. Names are Optimum's."""
    found = KV_NAME.match(name)
    return KV(int(found[1]), found[2] == "encoder", int(found[3] == "value")) if found else None


class Trace:
    """Trace order of one batch: rows are sorted by falling ``steps``; ``start`` is the batch's first index in it."""

    def __init__(self, steps: Sequence[int], start: int) -> None:
        self.steps = tuple(steps)
        self.start = start
        self._active = [sum(length > step for length in self.steps) for step in range(max(self.steps) + 1)]
        self._starts = start + np.concatenate([[0], np.cumsum(self._active[:-1])]).astype(np.int64)

    def active(self, step: int) -> int:
        """How many rows are still decoding at this step: they are the first ones."""
        return self._active[min(step, len(self._active) - 1)]

    def starts(self) -> np.ndarray:
        """[steps of the longest row + 1] int64: where each step begins."""
        return self._starts


class Batch(NamedTuple):
    """Rows that are replayed together. Padding stands on the right.

    ``ids``, ``mask``: [batch, source] int64. ``tokens``: [batch, longest row's steps] int64, golden output, then pad.
    ``trace`` and ``source_start`` (first index in ``trace_encoder``) are set on the traced batches only.
    """

    rows: Tuple[int, ...]
    steps: Tuple[int, ...]
    ids: np.ndarray
    mask: np.ndarray
    tokens: np.ndarray
    trace: Optional[Trace] = None
    source_start: int = 0


@lru_cache(maxsize=None)
def part_place(name: str) -> Tuple[int, int]:
    """When a part runs, and the source length that it is made for: ``step-48`` comes after ``encoder`` and is for 48."""
    stem, _, size = name.partition("-")
    return PART_ORDER.index(stem), int(size or 0)


@dataclass(frozen=True)
class Graph:
    """One exported variant. ``parts`` in the order in which they run, those of a static graph for short sources first."""

    exporter: str
    layout: str
    precision: str
    opset: int
    ir: int
    parts: Tuple[Part, ...]

    @property
    def id(self) -> str:
        return f"{self.exporter}/{self.layout}/{self.precision}/op{self.opset}"

    @property
    def static(self) -> bool:
        """Whether every size is fixed, and a part there for each of a few source lengths."""
        return self.layout.startswith("static")

    def part(self, name: str, source: int = 0) -> Part:
        """The part of that name; of a static graph the first that takes ``source`` ids. Raises KeyError."""
        found = (part for part in self.parts if part_place(part.name)[0] == part_place(name)[0])
        for part in found:
            if not self.static or part_place(part.name)[1] >= source:
                return part
        raise KeyError(f"{self.id} has no {name} for a source of {source} ids")


@dataclass(frozen=True)
class Decode:
    """The greedy loop's rules: ``suppress`` lists ids that may never be chosen."""

    start: int
    eos: int
    pad: int
    suppress: Tuple[int, ...]
    max_steps: int


@dataclass(frozen=True)
class Dims:
    layers: int
    heads: int
    head_dim: int
    d_model: int
    vocab: int


@dataclass(frozen=True)
class CorpusRow:
    """One line of the corpus."""

    id: str
    domain: str
    licence: str
    source: str
    reference: str


def pad_rows(rows: Sequence[np.ndarray], pad: int) -> Tuple[np.ndarray, np.ndarray]:
    """Right-padded ids and their mask, both [rows, longest] int64."""
    longest = max(len(row) for row in rows)
    ids = np.full((len(rows), longest), pad, np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return ids, mask


def file_hash(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


class Bundle:
    """An opened bundle. Raises UserError for a damaged, foreign, newer or unsafe one; see the module's table."""

    def __init__(self, path: str, verify: bool = True) -> None:
        self.path = os.path.abspath(path)
        manifest = self._read_manifest()
        try:
            self._fill(manifest)
            if verify:
                self.verify()
        except UserError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._error(f"manifest.json does not say what schema {SCHEMA} asks for ({error!r})") from error

    def _error(
        self, what: str, remedy: str = "copy the bundle again, or record it anew with `conform record`"
    ) -> UserError:
        return UserError(f"bundle {self.path}: {what}; {remedy}")

    def _read_manifest(self) -> Dict[str, Any]:
        place = os.path.join(self.path, MANIFEST)
        try:
            with open(place, "rb") as stream:
                raw = stream.read()
        except OSError as error:
            raise self._error(
                f"no readable {MANIFEST} ({error.strerror})", "give a folder made by `conform record`"
            ) from error
        self.hash = hashlib.sha256(raw).hexdigest()
        try:
            manifest = json.loads(raw.decode("utf-8"))
        except ValueError as error:
            raise self._error(f"{MANIFEST} is damaged ({error})") from error
        if not isinstance(manifest, dict) or manifest.get("format") != "seq2seq-conformance-bundle":
            raise self._error(f"{MANIFEST} is not a bundle's", "give a folder made by `conform record`")
        if manifest.get("schema") not in range(1, SCHEMA + 1):
            raise self._error(
                f"schema {manifest.get('schema')!r}, this checkout reads schemas 1 to {SCHEMA}",
                "update the checkout or record the bundle anew",
            )
        return manifest

    def _fill(self, manifest: Mapping[str, Any]) -> None:
        self.manifest = manifest
        self.name: str = manifest["name"]
        self.files: Dict[str, Dict[str, Any]] = manifest["files"]
        for name in self.files:
            self._plain(name)
        self.decode = Decode(**{**manifest["decode"], "suppress": tuple(manifest["decode"]["suppress"])})
        self.dims = Dims(**manifest["dims"])
        self.language: str = manifest["target_language"]
        self.rows = tuple(CorpusRow(**row) for row in manifest["rows"])
        self.precisions: Tuple[str, ...] = tuple(manifest["floors"])
        self.graphs = tuple(self._graph(entry) for entry in manifest["graphs"])
        self._arrays: Dict[str, np.ndarray] = {}
        self._maps: List[mmap.mmap] = []
        self._pieces: Optional[List[str]] = None

    def _plain(self, name: str) -> str:
        if not PLAIN_NAME.match(name):
            raise self._error(
                f"the name {name!r} leaves the bundle or is not a plain file name", "do not trust this bundle"
            )
        if name not in self.files:
            raise self._error(f"{name} is used but not listed under files")
        return os.path.join(self.path, name)

    def _graph(self, entry: Mapping[str, Any]) -> Graph:
        def ports(rows: Sequence[Any]) -> Tuple[Port, ...]:
            return tuple(Port(name, dtype, tuple(shape)) for name, dtype, shape in rows)

        parts = tuple(
            Part(
                name,
                self._plain(entry["parts"][name]["file"]),
                ports(entry["parts"][name]["inputs"]),
                ports(entry["parts"][name]["outputs"]),
            )
            for name in sorted(entry["parts"], key=part_place)
        )
        return Graph(entry["exporter"], entry["layout"], entry["precision"], entry["opset"], entry["ir"], parts)

    @property
    def short(self) -> str:
        """Name and first twelve digits of the hash: how rows name this bundle."""
        return f"{self.name}@{self.hash[:12]}"

    def verify(self) -> int:
        """Check size, kind and hash of every file. Returns the bytes read; raises UserError at the first wrong."""
        # Imported here, because a worker trusts its host and starts sooner without.
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing releases the interpreter's lock
            total = sum(pool.map(self.verify_file, self.files, self.files.values()))
        self._check_content()
        return total

    def _check_content(self) -> None:
        """Manifest and arrays must fit together: a wrong bundle must not look like a wrong runtime."""
        count = len(self.rows)
        steps = self.array("tokens").shape[0]
        sizes = {
            "source_starts": count + 1,
            "token_starts": count + 1,
            "margins": steps,
            "top_ids": steps,
            "top_logits": steps,
        }
        for name, size in sizes.items():
            if len(self.array(name)) != size:
                raise self._error(f"{name} has {len(self.array(name))} entries, {size} are asked for by the rows")
        for output in ("logits", "self", "encoder", "cross"):
            self.array(f"trace_{output}")
            for precision in self.precisions:
                floor = self.floor(precision, output)
                if not (np.isfinite(floor).all() and (floor >= 0).all()):
                    raise self._error(f"floor_{precision}_{output} holds what is no gap: not finite, or below zero")
        for kind in ("forced", "free"):
            for rows in self.manifest["batches"][kind]:
                if not rows or not all(isinstance(row, int) and 0 <= row < count for row in rows):
                    raise self._error(f"batches: {kind} names rows {rows!r}, the bundle has rows 0 to {count - 1}")
        self.array("source_ids")
        if len(self.pieces) != self.dims.vocab:
            raise self._error(f"pieces.json has {len(self.pieces)} pieces, the vocabulary {self.dims.vocab}")

    def verify_file(self, name: str, entry: Optional[Mapping[str, Any]] = None) -> int:
        entry = entry or self.files[name]
        place = self._plain(name)
        if os.path.islink(place):
            raise self._error(f"{name} is a link, not a plain file", "copy the bundle with its files (cp -L, rsync -L)")
        if not os.path.isfile(place):
            raise self._error(f"{name} is missing")
        size = os.path.getsize(place)
        if size != entry["size"]:
            raise self._error(f"{name} has {size} bytes, the manifest says {entry['size']}")
        if file_hash(place) != entry["sha256"]:
            raise self._error(f"{name} does not hash to what the manifest says")
        return size

    def array(self, name: str) -> np.ndarray:
        """The array of that name, memory-mapped read-only; see the table above."""
        if name not in self._arrays:
            place = self._plain(name + ".npy")
            try:
                # mmap cannot map an empty array, so those are read.
                mapped = np.load(place, mmap_mode="r" if os.path.getsize(place) > 128 else None, allow_pickle=False)
                if isinstance(mapped, np.memmap):
                    self._maps.append(mapped._mmap)  # type: ignore[attr-defined]
                # Still mapped; numpy's memmap class would cost at every slice.
                self._arrays[name] = mapped.view(np.ndarray)
            except (OSError, ValueError) as error:
                raise self._error(f"{name}.npy cannot be read ({error})") from error
        return self._arrays[name]

    def release(self) -> None:
        """Give the pages of the mapped arrays back to the system; the next look maps them again."""
        if sum(map(len, self._maps)) < SMALL:
            return
        for mapped in self._maps:
            if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
                mapped.madvise(mmap.MADV_DONTNEED)

    def floor(self, precision: str, output: str) -> np.ndarray:
        """PyTorch's own noise in that precision for ``logits``, ``self``, ``encoder`` or ``cross``."""
        return self.array(f"floor_{precision}_{output}")

    def weights(self, graph: Graph) -> List[str]:
        """Names of the files with the external weights that a graph's parts share."""
        files = {os.path.basename(part.path) for part in graph.parts}
        parts = (part for item in self.manifest["graphs"] for part in item["parts"].values() if part["file"] in files)
        return sorted({name for part in parts for name in part.get("weights", [])})

    def weight_bytes(self, graph: Graph) -> int:
        """Bytes of those files."""
        return sum(self.files[name]["size"] for name in self.weights(graph))

    @property
    def pieces(self) -> List[str]:
        """Piece of every target id, index = id."""
        if self._pieces is None:
            try:
                with open(self._plain("pieces.json"), encoding="utf-8") as stream:
                    self._pieces = json.load(stream)
            except (OSError, ValueError) as error:
                raise self._error(f"pieces.json cannot be read ({error})") from error
        return self._pieces

    def witness(self, graph: str) -> Dict[str, np.ndarray]:
        """What the reference evaluator gave for the graph of that id: ``logits``, ``self``, ``encoder``, ``cross``, float32.

        Shapes and order are those of ``trace_*``. Empty when the bundle has no witness of the graph.
        """
        name = self.manifest.get("witness", {}).get(graph)
        if name is None:
            return {}
        place = self._plain(name)
        result = {}
        try:
            with np.load(place, allow_pickle=False) as packed:
                for output in packed.files:
                    golden = self.array("trace_" + output).astype("<f4")
                    # Four planes of bytes; together the folded difference of the bit patterns, which wraps around.
                    folded = np.ascontiguousarray(packed[output].T).view("<u4").reshape(golden.shape)
                    bits = golden.view("<u4") + ((folded >> 1) ^ (np.zeros_like(folded) - (folded & 1)))
                    result[output] = bits.view("<f4")
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise self._error(f"{name} cannot be read ({error})") from error
        return result

    def source(self, row: int) -> np.ndarray:
        starts = self.array("source_starts")
        return self.array("source_ids")[starts[row] : starts[row + 1]]

    def tokens(self, row: int) -> np.ndarray:
        """Golden greedy output of a corpus row, [steps] int64, its end token included."""
        return self.array("tokens")[self.token_slice(row)]

    def token_slice(self, row: int) -> slice:
        """Where a row's steps stand in the per-step arrays of all rows."""
        starts = self.array("token_starts")
        return slice(int(starts[row]), int(starts[row + 1]))

    def batches(self, kind: str) -> List[Batch]:
        """The ``forced`` (traced) or ``free`` batches."""
        result = []
        step_start = source_start = 0
        for rows in self.manifest["batches"][kind]:
            ids, mask = pad_rows([self.source(row) for row in rows], self.decode.pad)
            tokens, _ = pad_rows([self.tokens(row) for row in rows], self.decode.pad)
            steps = tuple(len(self.tokens(row)) for row in rows)
            if kind == "forced":
                batch = Batch(tuple(rows), steps, ids, mask, tokens, Trace(steps, step_start), source_start)
                step_start, source_start = step_start + sum(steps), source_start + int(mask.sum())
            else:
                batch = Batch(tuple(rows), steps, ids, mask, tokens)
            result.append(batch)
        return result
