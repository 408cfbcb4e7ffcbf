"""What must be refused before any backend runs: feeds that no part declares, bundles that cannot be trusted, scores that
do not compare."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.core.manifest import MANIFEST
from harness.replay.decoder import CannotGoOn, ContractError, check_feeds
from harness.run.text import Scorer
from tests.saboteurs.frame import Refusal, array_edit, brief, spoilt

Feeds = dict[str, np.ndarray]


def _fed(part: str, change: Callable[[Feeds], Any]) -> Callable[[Path], object]:
    """Feeds of the right kind after one change, checked against a part as the loop does before each run."""

    def attempt(folder: Path) -> object:
        bundle = brief().bundle
        graph = next(one for one in bundle.graphs if one.id == "torchscript/unified/fp32/op17")
        sizes = {"batch": 2, "source": 5, "past": 3}
        feeds = {
            port.name: np.ones([sizes[size] if isinstance(size, str) else size for size in port.shape], port.dtype)
            for port in graph.part(part).inputs
        }
        check_feeds(graph.part(part), feeds)
        change(feeds)
        check_feeds(graph.part(part), feeds)
        return feeds

    return attempt


def _cast(name: str, dtype: Any) -> Callable[[Feeds], None]:
    def change(feeds: Feeds) -> None:
        feeds[name] = feeds[name].astype(dtype)

    return change


def _opened(change: Callable[[Path, dict[str, Any]], Any]) -> Callable[[Path], object]:
    """A bundle whose manifest was changed by hand."""

    def attempt(folder: Path) -> object:
        place = spoilt(folder, lambda bundle, manifest: manifest.update(name="spoilt"))
        manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        change(place, manifest)
        (place / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        return Bundle(str(place))

    return attempt


def _floored(output: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], object]:
    """A bundle whose floor says nothing: with a NaN in it every bound would be NaN, and every gap inside it."""
    return lambda folder: Bundle(str(spoilt(folder, array_edit(f"floor_fp32_{output}", change))))


def _one(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(floor: np.ndarray) -> np.ndarray:
        floor.reshape(-1)[3] = value
        return floor

    return change


def _upwards(place: Path, manifest: dict[str, Any]) -> None:
    part = manifest["graphs"][0]["parts"]["step"]
    manifest["files"]["../step.onnx"] = manifest["files"].pop(part["file"])
    part["file"] = "../step.onnx"


def _lost_weight(place: Path, manifest: dict[str, Any]) -> None:
    next(place.glob("w-*.bin")).unlink()


def _cut_weight(place: Path, manifest: dict[str, Any]) -> None:
    weight = next(place.glob("w-*.bin"))
    weight.write_bytes(weight.read_bytes()[:-8])


def _fewer_hypotheses(folder: Path) -> object:
    bundle = brief().bundle
    return Scorer(bundle).check([bundle.tokens(row) for row in range(len(bundle.rows) - 1)], [], "fp32")


REFUSALS: list[Refusal] = [
    Refusal(
        "feed-of-an-unknown-name",
        20,
        _fed("step", lambda feeds: feeds.update(position_ids=np.zeros(1))),
        ContractError,
        "position_ids",
    ),
    Refusal(
        "feed-missing",
        20,
        _fed("step", lambda feeds: feeds.pop("encoder_attention_mask")),
        ContractError,
        "encoder_attention_mask",
    ),
    Refusal(
        "feed-renamed",
        20,
        _fed("encoder", lambda feeds: feeds.update(ids=feeds.pop("input_ids"))),
        ContractError,
        "ids",
    ),
    Refusal(
        "ids-int32",
        21,
        _fed("encoder", _cast("input_ids", np.int32)),
        ContractError,
        "input_ids is int32, the graph declares int64",
    ),
    Refusal("ids-float", 21, _fed("step", _cast("input_ids", np.float32)), ContractError, "input_ids is float32"),
    Refusal(
        "mask-float",
        12,
        _fed("encoder", _cast("attention_mask", np.float32)),
        ContractError,
        "attention_mask is float32",
    ),
    Refusal(
        "mask-bool",
        12,
        _fed("step", _cast("encoder_attention_mask", bool)),
        ContractError,
        "encoder_attention_mask is bool",
    ),
    Refusal(
        "two-tokens-at-once",
        21,
        _fed("step", lambda feeds: feeds.update(input_ids=np.ones((2, 2), np.int64))),
        ContractError,
        "[2, 2]",
    ),
    Refusal(
        "ids-of-rank-1",
        21,
        _fed("step", lambda feeds: feeds.update(input_ids=np.ones(2, np.int64))),
        ContractError,
        "rank 1",
    ),
    Refusal(
        "cache-given-as-fp16",
        21,
        _fed("step", _cast("past_key_values.0.decoder.key", np.float16)),
        CannotGoOn,
        "which the runtime gave, is float16",
    ),
    Refusal("floor-nan-hides-a-fault", 0, _floored("logits", _one(np.nan)), UserError, "holds what is no gap"),
    Refusal("floor-infinite", 0, _floored("logits", _one(np.inf)), UserError, "holds what is no gap"),
    Refusal("floor-negative", 0, _floored("self", np.negative), UserError, "holds what is no gap"),
    Refusal("manifest-path-upwards", 33, _opened(_upwards), UserError, "leaves the bundle"),
    Refusal("weight-lost-on-the-way", 32, _opened(_lost_weight), UserError, "is missing"),
    Refusal("weight-cut-on-the-way", 32, _opened(_cut_weight), UserError, "bytes, the manifest says"),
    Refusal("fewer-hypotheses-than-references", 49, _fewer_hypotheses, ValueError, ""),
]
