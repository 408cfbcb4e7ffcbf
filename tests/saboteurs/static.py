"""Faults of graphs with fixed sizes: a wrong place written, a mask that lets in what is not there, or hides what is."""

from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tests.mutant import Feeds
from tests.saboteurs.edits import FLOAT, FLOAT16, after, both, edited, node, stored
from tests.saboteurs.frame import PerProgram, Saboteur, Step, bad, changed, feeding, giving, only, since

OWN = ".decoder."
QUIET = ("encoder", "kv_shape")
ALL = {"kv_values": 0, "logits": 0}


def _static(name: str, fails: dict[str, Step], *, case: int = 5, **hooks: Any) -> Saboteur:
    declared = {word: hooks.pop(word) for word in ("passes", "says", "layout", "opset") if word in hooks}
    return Saboteur(f"static-{name}", case, bad(**hooks), fails, **{"layout": "static", "passes": QUIET, **declared})


def _position(change: Any, when: Any) -> Any:
    return feeding(changed(change, "position"), when)


def _elsewhere(part: str, step: int, feeds: Feeds, outputs: Feeds) -> Feeds:
    """The entry of step 7 is written two slots further on, and its own slot is left."""
    if step == 7:
        for name in [name for name in outputs if OWN in name]:
            array = outputs[name].copy()
            array[:, :, 9] = array[:, :, 7]
            array[:, :, 7] = feeds[name.replace("present", "past_key_values", 1)][:, :, 7]
            outputs[name] = array
    return outputs


def _middle(array: np.ndarray) -> np.ndarray:
    array[:, :, 10] = array[:, :, 11]
    return array


def _cleared(array: np.ndarray) -> np.ndarray:
    """Slots that wait for later steps are emptied: nothing reads them, and the runtime still wrote where it must not."""
    array[:, :, 5:] = 0
    return array


def _in_place(part: str, step: int, feeds: Feeds, outputs: Feeds) -> Feeds:
    """The cache is written where it was fed, as a runtime with bound buffers does: what it gave before changes."""
    for name in [name for name in outputs if OWN in name]:
        fed = feeds[name.replace("present", "past_key_values", 1)]
        fed[...] = outputs[name]
        outputs[name] = fed
    return outputs


def _seen_until(offset: int) -> Any:
    """A self-attention mask that ends so many slots after the newest entry."""
    shift = after("position", ("Add", ("saboteur_shift",), {}), readers=("/LessOrEqual",))
    return edited(both(stored("saboteur_shift", np.array([offset], np.int64)), shift), "step")


def _multiplied(condition: str, mask: str) -> Any:
    """A mask of -1e9 times what is hidden, in fp16: 0 times infinity is NaN where nothing is hidden."""

    def edit(model: Any) -> None:
        old = node(model, mask)
        given, place = old.output[0], list(model.graph.node).index(old)
        model.graph.node.remove(old)
        with np.errstate(over="ignore"):
            lowest = np.array(-1e9).astype(np.float16)
        model.graph.initializer.append(numpy_helper.from_array(lowest, f"{given}/lowest"))
        chain = [
            helper.make_node("Not", [condition], [f"{given}/hidden"]),
            helper.make_node("Cast", [f"{given}/hidden"], [f"{given}/half"], to=FLOAT16),
            helper.make_node("Mul", [f"{given}/half", f"{given}/lowest"], [f"{given}/mask"]),
            helper.make_node("Cast", [f"{given}/mask"], [given], to=FLOAT),
        ]
        for number, one in enumerate(chain):
            model.graph.node.insert(place + number, one)

    return edit


def _all_seen(part: str, step: int, feeds: Feeds) -> Feeds:
    if part == "encoder":
        feeds["attention_mask"] = np.ones_like(feeds["attention_mask"])
    return feeds


def _own_cache() -> dict[str, Any]:
    """Each program goes on from what it wrote itself, and never looks at the cache that it is fed."""
    written: Feeds = {}

    def feeds(part: str, step: int, fed: Feeds) -> Feeds:
        return {**fed, **{name: written[name] for name in fed if step > 0 and name in written}}

    def outputs(part: str, step: int, fed: Feeds, given: Feeds) -> Feeds:
        written.update(
            {name.replace("present", "past_key_values"): given[name].copy() for name in given if OWN in name}
        )
        return given

    return {"feeds": feeds, "outputs": outputs}


SABOTEURS: list[Saboteur] = [
    # The small bundle's two traced batches are of two lengths of source, and so of two programs.
    Saboteur(
        "static-own-cache",
        5,
        lambda: PerProgram(_own_cache),
        {"invariance": 1},
        layout="static",
        passes=("logits", "kv_values", "tokens", *QUIET),
        says="it keeps a cache of its own, or ignores the one it is fed",
    ),
    _static(
        "position-frozen",
        {"kv_values": 1, "logits": 1},
        feeds=_position(np.zeros_like, since(0)),
        says="position frozen",
    ),
    _static(
        "position-frozen-at-20", {"kv_values": 21, "logits": 21}, feeds=_position(lambda at: at.clip(max=20), since(0))
    ),
    _static(
        "position-off-by-one",
        ALL,
        feeds=_position(lambda at: at + 1, since(0)),
        says="slot 1, which waits for a later step, has changed, and slot 0 has not: the new entry is in the wrong place",
    ),
    _static(
        "position-off-by-one-scatter",
        ALL,
        layout="static-scatter",
        opset=16,
        feeds=_position(lambda at: at + 1, only(0)),
    ),
    _static(
        "written-elsewhere-at-7",
        {"kv_values": 7, "logits": 8},
        outputs=_elsewhere,
        says="slot 9, which waits for a later step, has changed, and slot 7 has not",
    ),
    _static(
        "middle-overwritten-at-20",
        {"kv_values": 20, "logits": 21},
        outputs=giving(changed(_middle, OWN), only(20)),
        says="written at step 10 has changed",
    ),
    _static(
        "later-slots-cleared-at-3",
        {"kv_values": 3},
        outputs=giving(changed(_cleared, OWN), only(3)),
        passes=("logits", "tokens", "text", "invariance", *QUIET),
        says="slot 5, which waits for a later step, has changed",
    ),
    _static(
        "cache-written-in-place",
        {"kv_values": 1},
        outputs=_in_place,
        passes=("logits", "tokens", *QUIET),
        says="given at step 0, was changed by a later run: its memory is not its own",
    ),
    _static("mask-one-too-long", {**ALL, "invariance": 0}, graph=_seen_until(1)),
    _static("mask-one-too-short", ALL, graph=_seen_until(-1)),
    _static(
        "source-padding-seen-by-the-decoder",
        {**ALL, "invariance": 0},
        case=3,
        feeds=feeding(changed(np.ones_like, "encoder_attention_mask")),
    ),
    _static(
        "source-padding-seen-by-the-encoder", {"encoder": None, **ALL}, case=3, feeds=_all_seen, passes=("kv_shape",)
    ),
    _static(
        "mask-constant-1e9-in-fp16",
        {"encoder": 0, **ALL},
        case=25,
        graph=edited(_multiplied("/Greater", "/Where"), "encoder"),
        passes=("kv_shape",),
        says="NaN",
    ),
    _static(
        "slot-mask-constant-1e9-in-fp16",
        {"logits": 0, "kv_values": 0},
        case=25,
        graph=edited(_multiplied("/LessOrEqual", "/Where"), "step"),
        says="whole rows are NaN",
    ),
]
