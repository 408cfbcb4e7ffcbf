"""The bundle on disk: one flat directory with everything a box needs, opened with numpy alone.

``manifest.json`` names every other file with its size and SHA-256; the bundle's hash is that of the manifest. Arrays
are plain ``.npy`` files, memory-mapped. Per-step arrays of the traced rows are in *trace order*: batch after batch,
step after step, and within a step the rows still decoding, longest first. So step k of a batch is one contiguous slice
on the golden's side, and the first n rows on the runtime's side: nothing is copied to compare.

| array | shape, dtype | content |
|---|---|---|
| ``source_ids`` | [sum of source lengths] int64 | encoder input, row after row; ``source_starts`` [rows + 1] |
| ``tokens`` | [all steps] int64 | golden greedy output with its end token; ``token_starts`` [rows + 1] |
| ``top_ids``, ``top_logits`` | [all steps, k] int32, float64 | the k largest golden logits, nothing suppressed |
| ``trace_logits`` | [traced steps, vocabulary] float64 | trace order |
| ``trace_self`` | [layers, 2, traced steps, heads, head_dim] float64 | K (0) and V (1) written at each step |
| ``trace_encoder`` | [traced source tokens, d_model] float64 | padding left out, rows in batch order |
| ``trace_cross`` | [layers, 2, traced source tokens, heads, head_dim] float64 | cross-attention K and V |

``floor_PRECISION_logits``, ``_self``, ``_encoder``, ``_cross`` have the shape of their ``trace_*`` array less the axes
over which the largest gap between PyTorch in that precision and float64 was taken.
"""

import json
import mmap
import os
import zipfile
from typing import Any, Dict, List, Mapping, Optional

import numpy as np

from harness.core import manifest
from harness.core.batch import Batch, Trace, pad_rows
from harness.core.files import sha256
from harness.core.graph import Graph

SMALL = 64 << 20
"""Bytes of mapped arrays that a box can spare: mapping them again and again would cost more than holding them."""


class Bundle:
    """An opened bundle. Raises UserError for a damaged, foreign, newer or unsafe one; see the module's table.

    ``verify``: check the hash of every file as well; a worker trusts its host, which has done so.
    """

    def __init__(self, path: str, verify: bool = True) -> None:
        self.path = os.path.abspath(path)
        self._about = about = manifest.read(self.path)
        self.manifest, self.hash, self.name = about.raw, about.hash, about.name
        self.files, self.decode, self.dims, self.language = about.files, about.decode, about.dims, about.language
        self.rows, self.precisions, self.graphs = about.rows, about.precisions, about.graphs
        self._arrays: Dict[str, np.ndarray] = {}
        self._maps: List[mmap.mmap] = []
        self._pieces: Dict[str, List[str]] = {}
        if verify:
            self.verify()

    @property
    def short(self) -> str:
        """Name and first twelve digits of the hash: how rows name this bundle."""
        return f"{self.name}@{self.hash[:12]}"

    def verify(self) -> int:
        """Check size, kind and hash of every file. Returns the bytes read; raises UserError at the first wrong."""
        # Imported here, because a worker trusts its host and starts sooner without.
        from concurrent.futures import ThreadPoolExecutor

        try:
            with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing releases the interpreter's lock
                total = sum(pool.map(self.verify_file, self.files, self.files.values()))
            self._check_content()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._about.refuse(f"manifest.json does not say what schema {manifest.SCHEMA} asks for ({error!r})")
        return total

    def _check_content(self) -> None:
        """Manifest and arrays must fit together: a wrong bundle must not look like a wrong runtime."""
        count, steps = len(self.rows), self.array("tokens").shape[0]
        sizes = {"source_starts": count + 1, "token_starts": count + 1, "top_ids": steps, "top_logits": steps}
        for name, size in sizes.items():
            if len(self.array(name)) != size:
                self._about.refuse(f"{name} has {len(self.array(name))} entries, {size} are asked for by the rows")
        for output in ("logits", "self", "encoder", "cross"):
            self.array(f"trace_{output}")
            for precision in self.precisions:
                floor = self.floor(precision, output)
                if not (np.isfinite(floor).all() and (floor >= 0).all()):
                    self._about.refuse(f"floor_{precision}_{output} holds what is no gap: not finite, or below zero")
        for kind in ("forced", "free"):
            for rows in self.manifest["batches"][kind]:
                if not rows or not all(isinstance(row, int) and 0 <= row < count for row in rows):
                    self._about.refuse(f"batches: {kind} names rows {rows!r}, the bundle has rows 0 to {count - 1}")
        self.array("source_ids")
        if not self.source_pieces:
            self._about.refuse("source_pieces.json has no pieces")
        if len(self.pieces) != self.dims.vocab:
            self._about.refuse(f"pieces.json has {len(self.pieces)} pieces, the vocabulary {self.dims.vocab}")

    def verify_file(self, name: str, entry: Optional[Mapping[str, Any]] = None) -> int:
        """Check one file. Returns its size in bytes; raises UserError."""
        entry = entry or self.files[name]
        path = self._about.place(name)
        if os.path.islink(path):
            remedy = "copy the bundle with its files (cp -L, rsync -L)"
            self._about.refuse(f"{name} is a link, not a plain file", remedy)
        if not os.path.isfile(path):
            self._about.refuse(f"{name} is missing")
        size = os.path.getsize(path)
        if size != entry["size"]:
            self._about.refuse(f"{name} has {size} bytes, the manifest says {entry['size']}")
        if sha256(path) != entry["sha256"]:
            self._about.refuse(f"{name} does not hash to what the manifest says")
        return size

    def array(self, name: str) -> np.ndarray:
        """The array of that name, memory-mapped read-only; see the table above."""
        if name not in self._arrays:
            path = self._about.place(name + ".npy")
            try:
                # mmap cannot map an empty array, so those are read.
                mapped = np.load(path, mmap_mode="r" if os.path.getsize(path) > 128 else None, allow_pickle=False)
                if isinstance(mapped, np.memmap):
                    self._maps.append(mapped._mmap)  # type: ignore[attr-defined]
                # Still mapped; numpy's memmap class would cost at every slice.
                self._arrays[name] = mapped.view(np.ndarray)
            except (OSError, ValueError) as error:
                self._about.refuse(f"{name}.npy cannot be read ({error})")
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
        return self._read_pieces("pieces.json")

    @property
    def source_pieces(self) -> List[str]:
        """Piece of every source id; those of the target where the model has one vocabulary."""
        return self._read_pieces("source_pieces.json" if "source_pieces.json" in self.files else "pieces.json")

    def _read_pieces(self, name: str) -> List[str]:
        if name not in self._pieces:
            try:
                with open(self._about.place(name), encoding="utf-8") as stream:
                    self._pieces[name] = json.load(stream)
            except (OSError, ValueError) as error:
                self._about.refuse(f"{name} cannot be read ({error})")
            if not isinstance(self._pieces[name], list):
                self._about.refuse(f"{name} is no list of pieces")
        return self._pieces[name]

    def witness(self, graph: str) -> Dict[str, np.ndarray]:
        """What the reference evaluator gave for the graph of that id: ``logits``, ``self``, ``encoder``, ``cross``, float32.

        Shapes and order are those of ``trace_*``. Empty when the bundle has no witness of the graph.
        """
        name = self.manifest.get("witness", {}).get(graph)
        if name is None:
            return {}
        result = {}
        try:
            with np.load(self._about.place(name), allow_pickle=False) as packed:
                for output in packed.files:
                    golden = self.array("trace_" + output).astype("<f4")
                    # Four planes of bytes; together the folded difference of the bit patterns, which wraps around.
                    folded = np.ascontiguousarray(packed[output].T).view("<u4").reshape(golden.shape)
                    bits = golden.view("<u4") + ((folded >> 1) ^ (np.zeros_like(folded) - (folded & 1)))
                    result[output] = bits.view("<f4")
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            self._about.refuse(f"{name} cannot be read ({error})")
        return result

    def source(self, row: int) -> np.ndarray:
        """Source ids of a corpus row, [source] int64."""
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
            batch = Batch(tuple(rows), tuple(len(self.tokens(row)) for row in rows), ids, mask, tokens)
            if kind == "forced":
                batch = batch._replace(trace=Trace(batch.steps, step_start), source_start=source_start)
                step_start, source_start = step_start + sum(batch.steps), source_start + int(mask.sum())
            result.append(batch)
        return result
