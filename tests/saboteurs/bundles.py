"""Bundles in which something is wrong before any backend runs: the graphs, the golden, the tokenizer's part, the files.

The manifest always vouches for what is there: whoever makes such a bundle by mistake records it so.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from backends import ort
from tests.saboteurs import edits
from tests.saboteurs.frame import Manifest, Saboteur, array_edit, bad, brief, changed, giving

Change = Callable[[Path, Manifest], None]
ENCODER = "torchscript-unified-fp32-op17-encoder.onnx"
STEP = "torchscript-fp32-op17-step.onnx"
FIRST = "torchscript-split-fp32-op17-first.onnx"


def _graph(file: str, edit: edits.Edit, weights: bool = False) -> Change:
    """Edit one ONNX file of the bundle; ``weights``: with its stored tensors, which then stay inside."""

    def change(folder: Path, manifest: Manifest) -> None:
        model = onnx.load(str(folder / file), load_external_data=weights)
        edit(model)
        onnx.save(model, str(folder / file))

    return change


def _all(*changes: Change) -> Change:
    def change(folder: Path, manifest: Manifest) -> None:
        for one in changes:
            one(folder, manifest)

    return change


def _external(key: str, value: Callable[[str], str]) -> Change:
    """Change one entry of the first stored tensor that lies in a file."""

    def edit(model: Any) -> None:
        tensor = next(one for one in model.graph.initializer if one.data_location == onnx.TensorProto.EXTERNAL)
        entry = next(one for one in tensor.external_data if one.key == key)
        entry.value = value(entry.value)

    return _graph(STEP, edit)


def _weight_file(folder: Path) -> Path:
    model = onnx.load(str(folder / STEP), load_external_data=False)
    tensor = next(one for one in model.graph.initializer if one.data_location == onnx.TensorProto.EXTERNAL)
    name: str = next(one.value for one in tensor.external_data if one.key == "location")
    return folder / name


def _missing(folder: Path, manifest: Manifest) -> None:
    place = _weight_file(folder)
    place.unlink()
    for graph in manifest["graphs"]:
        for part in graph["parts"].values():
            part["weights"] = [name for name in part["weights"] if name != place.name]


def _truncated(folder: Path, manifest: Manifest) -> None:
    place = _weight_file(folder)
    place.write_bytes(place.read_bytes()[:-4])


def _outside(folder: Path, manifest: Manifest) -> None:
    place = _weight_file(folder)
    (folder.parent / "outside.bin").write_bytes(place.read_bytes())
    _external("location", lambda name: "../outside.bin")(folder, manifest)


def _absolute(folder: Path, manifest: Manifest) -> None:
    _external("location", lambda name: os.fspath(folder / name))(folder, manifest)


def _entry(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Change the manifest's entries of opset 17."""

    def edit(folder: Path, manifest: Manifest) -> None:
        for graph in manifest["graphs"]:
            if graph["opset"] == 17:
                change(graph)

    return edit


def _contributed(model: Any) -> None:
    """The last addition by an operator of one runtime's own."""
    last = next(one for one in model.graph.node if "logits" in one.output)
    last.op_type, last.domain = "BiasAdd", "com.microsoft"
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))


def _input(name: str, change: Callable[[Any], Any]) -> edits.Edit:
    def edit(model: Any) -> None:
        change(next(value for value in model.graph.input if value.name == name))

    return edit


def _renamed_output(model: Any) -> None:
    """Another name for an output, in the graph alone."""
    edits.before_output("present.1.decoder.value", ("Identity", (), {}))(model)
    model.graph.node[-1].output[0] = "present.1.decoder.val"
    next(one for one in model.graph.output if one.name == "present.1.decoder.value").name = "present.1.decoder.val"


def _renamed_input(model: Any) -> None:
    for one in model.graph.node:
        one.input[:] = ["input_tokens" if name == "input_ids" else name for name in one.input]
    next(value for value in model.graph.input if value.name == "input_ids").name = "input_tokens"


def _to_int32(value: Any) -> None:
    value.type.tensor_type.elem_type = onnx.TensorProto.INT32


def _rank_1(value: Any) -> None:
    del value.type.tensor_type.shape.dim[1:]


def _no_model(folder: Path, manifest: Manifest) -> None:
    (folder / STEP).write_bytes(b"this is no graph" * 9)


def _pieces(change: Callable[[list[str]], list[str]]) -> Change:
    """Another piece table."""

    def edit(folder: Path, manifest: Manifest) -> None:
        place = folder / "pieces.json"
        place.write_text(json.dumps(change(json.loads(place.read_text("utf-8"))), ensure_ascii=False), encoding="utf-8")

    return edit


def _shifted(pieces: list[str]) -> list[str]:
    """As SentencePiece counts: three special pieces first, so every id is off by a few."""
    return pieces[3:-1] + pieces[:3] + pieces[-1:]


def _two_exchanged(pieces: list[str]) -> list[str]:
    """The two pieces that the golden uses most."""
    bundle = brief().bundle
    ids, counts = np.unique(bundle.array("tokens"), return_counts=True)
    used = [int(token) for token in ids[np.argsort(-counts)] if token not in (bundle.decode.eos, bundle.decode.pad)]
    pieces[used[0]], pieces[used[1]] = pieces[used[1]], pieces[used[0]]
    return pieces


def _sentencepiece_ids(ids: np.ndarray) -> np.ndarray:
    """Source ids as the SentencePiece model numbers them instead of vocab.json; special ids stay."""
    rules = brief().bundle.decode
    special = (ids == rules.eos) | (ids == rules.pad) | (ids == 1)
    return np.where(special, ids, (ids - 2 + 3) % (rules.pad - 2) + 2)


def _traced_place(step: int) -> tuple[int, int]:
    """Index in ``tokens`` and in trace order of the longest traced row's step."""
    bundle, batch = brief().bundle, brief().batches[0]
    assert batch.trace is not None
    return bundle.token_slice(batch.rows[0]).start + step, int(batch.trace.starts()[step])


def _golden_token(rank: int) -> Callable[[np.ndarray], np.ndarray]:
    """At step 7 of a traced row, the golden's choice of that rank; 9 stands for a token outside its best ones."""

    def change(tokens: np.ndarray) -> np.ndarray:
        at, _ = _traced_place(7)
        best = [int(token) for token in brief().bundle.array("top_ids")[at]]
        tokens[at] = best[rank] if rank < len(best) else next(token for token in range(5, 99) if token not in best)
        return tokens

    return change


def _golden_logit(by: float) -> Callable[[np.ndarray], np.ndarray]:
    """The best logit of step 7 in one traced row."""

    def change(logits: np.ndarray) -> np.ndarray:
        at, place = _traced_place(7)
        logits[place, int(brief().bundle.array("top_ids")[at][0])] += by
        return logits

    return change


def _one(index: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array[index] = value
        return array

    return change


def _id(value: int) -> Callable[[np.ndarray], np.ndarray]:
    return _one(3, value)


NOISY = bad(
    outputs=giving(changed(lambda array: array + np.float32(0.5) * (np.arange(array.shape[-1]) % 2 == 0), "logits"))
)
BIAS = edits.weight("final_logits_bias", np.zeros_like)
FROZEN = edits.both(edits.stored("frozen", np.array(0, np.int64)), edits.replaced("/Gather", "Identity", "frozen"))


def _artifact(name: str, case: int, bundle: Change, says: str, **more: Any) -> Saboteur:
    return Saboteur(
        name, case, ort.Backend, {"artifact": None}, blame=more.pop("blame", ""), says=says, bundle=bundle, **more
    )


SABOTEURS: list[Saboteur] = [
    # a wrong export: the witness, replayed at record time, is wrong as well
    Saboteur(
        "exported-without-bias",
        2,
        bad(),
        {"logits": 0, "tokens": None},
        passes=("artifact", "encoder", "kv_values"),
        blame="export",
        says="output bias missing",
        bundle=_graph(STEP, BIAS, True),
        witnessed=True,
    ),
    Saboteur(
        "exported-without-bias-in-the-first-step",
        2,
        bad(),
        {"logits": 0},
        layout="split",
        passes=("artifact", "encoder", "kv_values"),
        blame="export",
        bundle=_graph(FIRST, BIAS, True),
        witnessed=True,
    ),
    Saboteur(
        "exported-with-eps-1e-4",
        15,
        bad(),
        {"encoder": None, "logits": None},
        passes=("artifact", "tokens"),
        blame="export",
        bundle=_graph(ENCODER, edits.epsilon(1e-4)),
        witnessed=True,
    ),
    Saboteur(
        "exported-with-eps-1e-6",
        15,
        bad(),
        {"encoder": None},
        passes=("artifact", "tokens"),
        blame="export",
        bundle=_graph(ENCODER, edits.epsilon(1e-6)),
        witnessed=True,
    ),
    Saboteur(
        "exported-with-frozen-position",
        1,
        bad(),
        {"logits": 1, "kv_values": 1},
        passes=("artifact", "encoder"),
        blame="export",
        says="position frozen",
        bundle=_graph(STEP, FROZEN),
        witnessed=True,
    ),
    Saboteur(
        "exported-with-weak-mask",
        12,
        bad(),
        {"encoder": 0},
        passes=("artifact",),
        blame="export",
        bundle=_graph(ENCODER, edits.constant("/Constant_4", -10.0)),
        witnessed=True,
    ),
    # a right export on a wrong runtime, and a wrong export that the runtime makes worse
    Saboteur(
        "runtime-fault-beside-a-right-witness",
        36,
        bad(outputs=giving(changed(np.zeros_like, "logits"))),
        {"logits": 0},
        passes=("artifact", "encoder"),
        says="every value is zero",
        bundle=lambda folder, manifest: manifest.update(name="renamed"),
    ),
    # a wrong golden
    Saboteur(
        "golden-token-is-second-best",
        0,
        bad(),
        {"logits": 8, "tokens": 7},
        passes=("artifact", "encoder"),
        blame="golden",
        bundle=array_edit("tokens", _golden_token(1)),
    ),
    Saboteur(
        "golden-token-is-nowhere-near",
        0,
        bad(),
        {"logits": 8, "tokens": 7},
        passes=("artifact", "encoder"),
        blame="golden",
        bundle=array_edit("tokens", _golden_token(9)),
    ),
    Saboteur(
        "golden-logit-off",
        0,
        bad(),
        {"logits": 7},
        passes=("artifact", "encoder", "kv_values"),
        blame="golden",
        bundle=array_edit("trace_logits", _golden_logit(1e-2)),
        witnessed=True,
    ),
    Saboteur(
        "golden-logits-nan",
        36,
        bad(),
        {"logits": 0},
        passes=("encoder", "kv_values"),
        blame="golden",
        bundle=array_edit("trace_logits", _one(0, np.nan)),
    ),
    # the tokenizer's part
    Saboteur(
        "piece-table-shifted",
        11,
        bad(),
        {"text": None},
        passes=("logits", "tokens"),
        blame="tokenizer",
        says="piece table",
        bundle=_pieces(_shifted),
    ),
    Saboteur(
        "two-pieces-exchanged",
        11,
        bad(),
        {"text": None},
        passes=("logits", "tokens"),
        blame="tokenizer",
        says="piece table",
        bundle=_pieces(_two_exchanged),
    ),
    _artifact(
        "source-ids-of-sentencepiece", 11, array_edit("source_ids", _sentencepiece_ids), "source_ids", blame="tokenizer"
    ),
    _artifact(
        "source-id-of-vocabulary-size",
        13,
        array_edit("source_ids", lambda ids: _id(brief().bundle.dims.vocab)(ids)),
        "outside the vocabulary",
    ),
    _artifact("source-id-negative", 13, array_edit("source_ids", _id(-1)), "outside the vocabulary"),
    _artifact(
        "token-of-vocabulary-size",
        13,
        array_edit("tokens", lambda ids: _id(brief().bundle.dims.vocab)(ids)),
        "outside the vocabulary",
    ),
    # the artifact
    _artifact("opset-other-than-asked", 18, _graph(STEP, edits.stamped(opset=18)), "opset 18, the manifest says 17"),
    _artifact("ir-other-than-listed", 27, _graph(STEP, edits.stamped(ir=10)), "IR version 10, the manifest says 8"),
    Saboteur(
        "ir-from-the-future-recorded",
        27,
        bad(),
        {"logits": None},
        passes=("artifact",),
        status="UNSUPPORTED",
        kind="ir",
        blame="",
        bundle=_all(
            *(_graph(file, edits.stamped(ir=99)) for file in (ENCODER, STEP)), _entry(lambda graph: graph.update(ir=99))
        ),
    ),
    _artifact("weights-missing", 32, _missing, "is not a file of this bundle"),
    _artifact("weights-truncated", 32, _truncated, "bytes"),
    _artifact("weights-outside", 33, _outside, "../outside.bin"),
    _artifact("weights-absolute", 33, _absolute, "is not a file of this bundle"),
    _artifact("weights-past-the-end", 32, _external("offset", lambda _: "4096000"), "are asked for"),
    _artifact("operator-of-one-runtime", 34, _graph(STEP, _contributed), "com.microsoft"),
    _artifact("input-renamed", 23, _graph(ENCODER, _renamed_input), "input_tokens"),
    _artifact("input-int32", 21, _graph(STEP, _input("input_ids", _to_int32)), "input_ids is int32"),
    _artifact("input-of-rank-1", 23, _graph(STEP, _input("input_ids", _rank_1)), "input_ids has rank 1"),
    _artifact("output-renamed", 23, _graph(STEP, _renamed_output), "present.1.decoder.val"),
    _artifact(
        "past-fixed-in-the-graph", 19, _graph(STEP, edits.fixed(1, ".decoder.")), "past_key_values.0.decoder.key"
    ),
    _artifact("no-graph-at-all", 32, _no_model, "not a readable ONNX file"),
]
