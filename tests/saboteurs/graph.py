"""Backends that compute another graph than the one they were given: what a wrong exporter, optimizer or kernel does."""

from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from backends.contract import Knob
from tests.mutant import Feeds
from tests.saboteurs import edits
from tests.saboteurs.edits import DECODER, FLOAT, FLOAT16, INT32, INT64, ROUND_TRIP, both, edited, stored
from tests.saboteurs.frame import Saboteur, bad, batch, brief, feeding, first_fed, pair, rare_token, since

LN = "/layers.{}/{}/LayerNormalization"
OPTIMIZER = {"optimizer=off": Knob({"optimizer": "off"}, "optimizer"), "threads=1": Knob({"threads": 1})}


def _square_norm(model: Any) -> None:
    """Add to the logits the difference of one layer normalisation spelled in two ways, which is zero by the
    specification. One way is decomposed with keepdims=0, over a square tensor where that means something else than
    keepdims=1, and ONNX Runtime's fusion takes the one for the other."""
    width = brief().bundle.dims.d_model
    graph = model.graph
    make = helper.make_node
    hidden = LN.format(brief().bundle.dims.layers - 1, "final_layer_norm")
    values = {
        "square": np.random.default_rng(0).normal(size=(width, width)),
        "two": np.array(2.0),
        "eps": np.array(1e-5),
        "gamma": np.ones(width),
        "beta": np.zeros(width),
        "share": np.array(1 / width),
        "small": np.array(1e-3),
    }
    for name, value in values.items():
        graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), f"sq_{name}"))
    for name, value in (("zero", np.array(0)), ("last", np.array([-1]))):
        graph.initializer.append(numpy_helper.from_array(value.astype(np.int64), f"sq_{name}"))
    nodes = [
        make("Gather", [hidden, "sq_zero"], ["sq_row"], axis=0),
        make("Mul", ["sq_row", "sq_square"], ["sq_x"]),
        make("ReduceMean", ["sq_x"], ["sq_mean"], axes=[-1], keepdims=0),
        make("ReduceSum", ["sq_x", "sq_last"], ["sq_sum"], keepdims=0),
        make("Mul", ["sq_sum", "sq_share"], ["sq_mean_plain"]),
    ]
    for word, mean in (("", "sq_mean"), ("_plain", "sq_mean_plain")):
        square, spread = f"sq_p{word}", f"sq_v{word}"
        nodes += [
            make("Sub", ["sq_x", mean], [f"sq_d{word}"]),
            make("Pow", [f"sq_d{word}", "sq_two"], [square]),
            *(
                [
                    make("ReduceSum", [square, "sq_last"], ["sq_vs"], keepdims=0),
                    make("Mul", ["sq_vs", "sq_share"], [spread]),
                ]
                if word
                else [make("ReduceMean", [square], [spread], axes=[-1], keepdims=0)]
            ),
            make("Add", [spread, "sq_eps"], [f"sq_ve{word}"]),
            make("Sqrt", [f"sq_ve{word}"], [f"sq_s{word}"]),
            make("Div", [f"sq_d{word}", f"sq_s{word}"], [f"sq_n{word}"]),
            make("Mul", [f"sq_n{word}", "sq_gamma"], [f"sq_g{word}"]),
            make("Add", [f"sq_g{word}", "sq_beta"], [f"sq_y{word}"]),
        ]
    nodes += [
        make("Sub", ["sq_y", "sq_y_plain"], ["sq_gap"]),
        make("ReduceMax", ["sq_gap"], ["sq_most"], keepdims=0),
        make("Mul", ["sq_most", "sq_small"], ["sq_delta"]),
    ]
    last = next(one for one in graph.node if "logits" in one.output)
    last.output[0] = "sq_logits"
    graph.node.extend([*nodes, make("Add", ["sq_logits", "sq_delta"], ["logits"])])


def _saturated(model: Any) -> None:
    """The first feed-forward product of layer 0 in 8 bits, its sums of two products held in 16 bits, as u8×s8 units
    without VNNI do: 255 × 127 × 2 does not fit."""
    graph = model.graph
    name = "/layers.0/fc1/MatMul"
    tensor = next(one for one in graph.initializer if one.name == "layers.0.fc1.weight_transposed")
    weights = numpy_helper.to_array(tensor)
    scale = float(np.abs(weights).max() / 127)
    inner, outer = weights.shape
    step = np.float32(8 / 255)
    values = {
        "pairs": np.round(weights / scale).reshape(inner // 2, 2, outer),
        "step": step,
        "zero": np.float32(128.0),
        "low": np.float32(0.0),
        "high": np.float32(255.0),
        "least": np.float32(-32768.0),
        "most": np.float32(32767.0),
        "back": np.float32(scale * step),
        "offset": 128 * np.round(weights / scale).sum(axis=0),
    }
    for key, value in values.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), f"sat_{key}"))
    for key, shape in (("shape", [0, 0, inner // 2, 2]), ("axis", [2])):
        graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), f"sat_{key}"))
    make = helper.make_node
    old = edits.node(model, name)
    place = list(graph.node).index(old)
    taken, given = old.input[0], old.output[0]
    graph.node.remove(old)
    chain = [
        make("Div", [taken, "sat_step"], ["sat_a"]),
        make("Round", ["sat_a"], ["sat_b"]),
        make("Add", ["sat_b", "sat_zero"], ["sat_c"]),
        make("Clip", ["sat_c", "sat_low", "sat_high"], ["sat_u8"]),
        make("Reshape", ["sat_u8", "sat_shape"], ["sat_paired"]),
        make("Einsum", ["sat_paired", "sat_pairs"], ["sat_sums"], equation="btkp,kpn->btkn"),
        make("Clip", ["sat_sums", "sat_least", "sat_most"], ["sat_held"]),
        make("ReduceSum", ["sat_held", "sat_axis"], ["sat_total"], keepdims=0),
        make("Sub", ["sat_total", "sat_offset"], ["sat_centred"]),
        make("Mul", ["sat_centred", "sat_back"], [given]),
    ]
    for number, one in enumerate(chain):
        graph.node.insert(place + number, one)


def _legacy(model: Any) -> None:
    """A whole graph that is valid in opset 6, and in no later one."""
    value = helper.make_tensor_value_info
    node = helper.make_node("Add", ["x", "y"], ["z"], broadcast=1)
    graph = helper.make_graph(
        [node], "legacy", [value("x", FLOAT, [2]), value("y", FLOAT, [2])], [value("z", FLOAT, [2])]
    )
    model.CopyFrom(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=4))


def _frozen(position: int) -> edits.Edit:
    return both(
        stored("frozen", np.array(position, np.int64)),
        edits.replaced("/Gather", "Identity", "frozen"),
    )


def _position(*ops: edits.Op, **constants: int) -> edits.Edit:
    return both(
        *(stored(f"position_{name}", np.array(value, np.int64)) for name, value in constants.items()),
        edits.after("/Gather", *ops),
    )


def _sliding(layer: int, size: int) -> edits.Edit:
    """One layer's own attention sees only the newest ``size`` entries; the cache itself stays right."""
    name = f"/layers.{layer}/self_attn"
    cut: edits.Op = ("Slice", ("window_start", "window_end", "window_axis"), {})
    return both(
        stored("window_start", np.array([-size], np.int64)),
        stored("window_end", np.array([2**31], np.int64)),
        stored("window_axis", np.array([2], np.int64)),
        edits.after(f"present.{layer}.decoder.key", cut, readers=(f"{name}/Transpose_3",)),
        edits.after(f"present.{layer}.decoder.value", cut, readers=(f"{name}/MatMul_1",)),
    )


def _heads_swapped(tensor: str, reader: str, heads: int) -> edits.Edit:
    order = np.arange(heads)
    order[:2] = order[1::-1]
    return both(
        stored("head_order", order.astype(np.int64)),
        edits.after(tensor, ("Gather", ("head_order",), {"axis": 1}), readers=(reader,)),
    )


def _scaled_row(token: int, factor: float) -> Any:
    def change(array: np.ndarray) -> np.ndarray:
        array[token] *= factor
        return array

    return change


def _nudged(index: tuple[int, ...], by: float) -> Any:
    def change(array: np.ndarray) -> np.ndarray:
        array[index] += by
        return array

    return change


def _no_entry(column: int) -> Any:
    def change(array: np.ndarray) -> np.ndarray:
        array[..., column] = 0
        return array

    return change


def _mask_row(step: int, feeds: Feeds) -> None:
    mask = feeds["encoder_attention_mask"].copy()
    mask[min(1, len(mask) - 1)] = 0
    feeds["encoder_attention_mask"] = mask


def _graph(name: str, case: int, edit: edits.Edit, fails: Any, *parts: str, **more: Any) -> Saboteur:
    return Saboteur(name, case, bad(graph=edited(edit, *parts)), fails, **more)


QUIET = ("kv_shape", "tokens", "text")
EPS = {"encoder": None, "logits": None}

SABOTEURS: list[Saboteur] = [
    # layer normalisation
    *pair(_graph("eps-1e-6", 15, edits.epsilon(1e-6), EPS, passes=QUIET)),
    *pair(_graph("eps-1e-12", 15, edits.epsilon(1e-12), EPS, passes=QUIET)),
    _graph("eps-2e-5", 15, edits.epsilon(2e-5), EPS, passes=QUIET),
    _graph("eps-1e-4", 15, edits.epsilon(1e-4), EPS, passes=QUIET),
    _graph("eps-1e-6-op14", 15, edits.epsilon(1e-6), EPS, passes=("kv_shape",), opset=14),
    _graph(
        "eps-1e-4-last-norm-only",
        15,
        edits.epsilon(1e-4, "/layers.1/final_layer_norm"),
        {"logits": None},
        *DECODER,
        passes=("encoder", "kv_values", *QUIET),
    ),
    _graph(
        "eps-1e-4-encoder-first-norm-only",
        15,
        edits.epsilon(1e-4, "/encoder/layers.0/self_attn_layer_norm"),
        {"encoder": None},
        "encoder",
    ),
    _graph(
        "gamma-dropped",
        15,
        edits.weight("layers.0.self_attn_layer_norm.weight", np.ones_like),
        {"logits": 0, "kv_values": 0},
        *DECODER,
        passes=("encoder", "kv_shape"),
    ),
    _graph(
        "gamma-dropped-last",
        15,
        edits.weight("layers.1.final_layer_norm.weight", np.ones_like),
        {"logits": 0},
        *DECODER,
        passes=("encoder", "kv_shape", "kv_values"),
    ),
    _graph(
        "beta-dropped-encoder",
        15,
        edits.weight("encoder.layers.1.final_layer_norm.bias", np.zeros_like),
        {"encoder": 0, "logits": 0},
        "encoder",
    ),
    # output bias
    *pair(
        _graph(
            "output-bias-lost",
            2,
            edits.weight("final_logits_bias", np.zeros_like),
            {"logits": 0, "tokens": None, "text": None},
            *DECODER,
            passes=("encoder", "kv_shape", "kv_values"),
            says="output bias missing",
        )
    ),
    _graph(
        "output-bias-of-one-token",
        2,
        edits.weight("final_logits_bias", _no_entry(7)),
        {"logits": 0},
        *DECODER,
        passes=("encoder", "kv_values"),
        says="the same at every step",
    ),
    _graph(
        "output-bias-bf16",
        2,
        edits.weight("final_logits_bias", edits.bf16),
        {"logits": 0},
        *DECODER,
        passes=("encoder", "kv_values"),
        says="the same vector at every step",
    ),
    # activation and embedding
    _graph("relu-for-swish", 0, edits.activation(edits.relu), {"encoder": 0, "logits": 0}),
    _graph(
        "relu-for-swish-last-layer",
        0,
        edits.activation(edits.relu, "/layers.1/"),
        {"logits": 0},
        *DECODER,
        passes=("encoder", "kv_shape", "kv_values"),
    ),
    _graph(
        # The start token's embedding is all zeros in Marian, so step 0 is right.
        "embedding-scale-missing",
        0,
        edits.constant("/Constant_1", 1.0),
        {"logits": 1, "kv_values": 1},
        "step",
        passes=("encoder",),
        says="embedding",
    ),
    _graph("embedding-scale-missing-encoder", 0, edits.constant("/encoder/Constant", 1.0), {"encoder": 0}, "encoder"),
    _graph(
        "embedding-scale-rounded",
        0,
        edits.constant("/Constant_1", 11.3125),
        {"logits": 1, "kv_values": 1},
        "step",
        passes=("encoder", "tokens"),
    ),
    # positions
    *pair(
        _graph(
            "position-frozen",
            1,
            _frozen(0),
            {"logits": 1, "kv_values": 1},
            "step",
            passes=("encoder", "kv_shape"),
            says="position frozen",
        )
    ),
    *pair(
        _graph(
            "position-frozen-at-traced-length",
            1,
            _frozen(3),
            {"logits": 0, "kv_values": 0},
            "step",
            passes=("encoder",),
        ),
        fails={"logits": 1, "kv_values": 1},
    ),
    *pair(
        _graph(
            "position-off-by-one",
            1,
            _position(("Add", ("position_one",), {}), one=1),
            {"logits": 0, "kv_values": 0},
            "step",
            passes=("encoder",),
        ),
        fails={"logits": 1, "kv_values": 1},
    ),
    _graph(
        "position-stops-at-40",
        1,
        _position(("Min", ("position_top",), {}), top=40),
        {"logits": 41, "kv_values": 41},
        "step",
        passes=("encoder", "kv_shape"),
    ),
    _graph(
        "position-wraps-at-64",
        1,
        _position(("Mod", ("position_size",), {}), size=64),
        {"logits": 64, "kv_values": 64},
        "step",
        passes=("encoder",),
    ),
    _graph(
        "position-past-2-31",
        26,
        _position(
            ("Mul", ("position_big",), {}),
            ("Cast", (), {"to": INT32}),
            ("Cast", (), {"to": INT64}),
            ("Div", ("position_big",), {}),
            big=2**30,
        ),
        {"logits": 2, "kv_values": 2},
        "step",
        passes=("encoder",),
    ),
    _graph(
        "positions-fp16",
        0,
        edits.weight("decoder.embed_positions.weight", edits.fp16),
        {"logits": 1, "kv_values": 1},
        *DECODER,
        passes=("encoder", "tokens"),
    ),
    _graph(
        "encoder-positions-shifted",
        0,
        edits.weight("encoder.embed_positions.weight", lambda table: np.roll(table, -1, 0)),
        {"encoder": 0},
        "encoder",
    ),
    # cache wiring
    *pair(
        _graph(
            "past-key-and-value-swapped",
            4,
            edits.rewired(
                ("/layers.0/self_attn/Concat_3", 0, "past_key_values.0.decoder.value"),
                ("/layers.0/self_attn/Concat_4", 0, "past_key_values.0.decoder.key"),
            ),
            {"kv_values": 1, "logits": 1},
            "step",
            passes=("encoder", "kv_shape"),
            says="present.0.decoder",
        )
    ),
    _graph(
        "key-and-value-projections-swapped",
        4,
        edits.rewired(
            ("/layers.1/self_attn/k_proj/MatMul", 1, "layers.1.self_attn.v_proj.weight_transposed"),
            ("/layers.1/self_attn/v_proj/MatMul", 1, "layers.1.self_attn.k_proj.weight_transposed"),
        ),
        {"kv_values": 0, "logits": 0},
        *DECODER,
        passes=("encoder",),
        says="present.1.decoder.key",
    ),
    _graph(
        "past-layers-swapped",
        4,
        edits.rewired(
            ("/layers.0/self_attn/Concat_3", 0, "past_key_values.1.decoder.key"),
            ("/layers.1/self_attn/Concat_3", 0, "past_key_values.0.decoder.key"),
            ("/layers.0/self_attn/Concat_4", 0, "past_key_values.1.decoder.value"),
            ("/layers.1/self_attn/Concat_4", 0, "past_key_values.0.decoder.value"),
        ),
        {"kv_values": 1, "logits": 1},
        "step",
        passes=("encoder", "kv_shape"),
        says="present.0.decoder",
    ),
    _graph(
        "past-heads-swapped",
        4,
        _heads_swapped("past_key_values.0.decoder.key", "/layers.0/self_attn/Concat_3", 4),
        {"kv_values": 1, "logits": 1},
        "step",
        passes=("encoder", "kv_shape"),
        says="present.0.decoder.key",
    ),
    _graph(
        "past-heads-swapped-read-only",
        4,
        _heads_swapped("present.1.decoder.value", "/layers.1/self_attn/MatMul_1", 4),
        {"logits": 0},
        "step",
        passes=("encoder", "kv_shape", "kv_values"),
    ),
    *pair(
        _graph(
            "cross-key-and-value-swapped",
            4,
            edits.rewired(
                ("/layers.0/encoder_attn/Transpose_1", 0, "past_key_values.0.encoder.value"),
                ("/layers.0/encoder_attn/MatMul_1", 1, "past_key_values.0.encoder.key"),
            ),
            {"logits": 0},
            "step",
            passes=("encoder", "kv_shape"),
        ),
        fails={"logits": 1},
    ),
    _graph(
        "cross-cache-of-the-other-layer",
        4,
        edits.rewired(("/layers.1/encoder_attn/MatMul_1", 1, "past_key_values.0.encoder.value")),
        {"logits": 0},
        "step",
        passes=("encoder", "kv_shape", "kv_values"),
    ),
    # attention
    _graph(
        "attention-scale-missing",
        0,
        edits.constant("/layers.1/self_attn/Constant_8", 1.0),
        {"logits": 1},
        "step",
        passes=("encoder", "kv_values"),
    ),
    _graph(
        "attention-scale-missing-first-layer",
        0,
        edits.constant("/layers.0/self_attn/Constant_8", 1.0),
        {"logits": 1, "kv_values": 1},
        "step",
        passes=("encoder",),
    ),
    _graph(
        "softmax-over-heads",
        0,
        edits.attribute("/layers.1/self_attn/Softmax", "axis", 1),
        {"logits": 0},
        "step",
        passes=("encoder", "kv_values"),
    ),
    _graph(
        "attention-window-32", 3, _sliding(1, 32), {"logits": 32}, "step", passes=("encoder", "kv_shape", "kv_values")
    ),
    _graph("attention-window-7", 3, _sliding(1, 7), {"logits": 7}, "step", passes=("encoder", "kv_shape", "kv_values")),
    # masks
    *pair(
        _graph(
            "encoder-mask-dropped",
            12,
            edits.rewired(
                ("/encoder/layers.0/self_attn/Add", 1, "/Constant_3"),
                ("/encoder/layers.1/self_attn/Add", 1, "/Constant_3"),
            ),
            {"encoder": 0, "logits": 0, "invariance": None},
            "encoder",
        )
    ),
    _graph(
        "cross-mask-dropped",
        12,
        edits.rewired(
            ("/layers.0/encoder_attn/Add", 1, "/Constant_6"), ("/layers.1/encoder_attn/Add", 1, "/Constant_6")
        ),
        {"invariance": 0, "logits": 0},
        "step",
        passes=("encoder", "kv_shape"),
        says="more padding in the source",
    ),
    _graph(
        "cross-mask-dropped-last-layer",
        12,
        edits.rewired(("/layers.1/encoder_attn/Add", 1, "/Constant_6")),
        {"logits": 0, "invariance": 0},
        "step",
        passes=("encoder", "kv_values"),
    ),
    _graph(
        "encoder-mask-inverted",
        12,
        edits.rewired(("/Where", 1, "/Constant_4"), ("/Where", 2, "/Constant_3")),
        {"encoder": 0},
        "encoder",
    ),
    _graph("encoder-mask-too-weak", 12, edits.constant("/Constant_4", -10.0), {"encoder": 0}, "encoder"),
    Saboteur(
        "row-fully-masked-at-step-7",
        25,
        bad(graph=edited(edits.constant("/Constant_7", -np.inf), "step"), feeds=feeding(_mask_row, since(7))),
        {"logits": 7, "tokens": None},
        passes=("encoder", "kv_shape"),
        says="fully masked",
    ),
    # numbers
    _graph(
        "one-weight-1e-2",
        0,
        edits.weight("layers.1.fc2.weight_transposed", _nudged((3, 5), 1e-2)),
        {"logits": None},
        *DECODER,
        passes=("encoder", "kv_values"),
    ),
    _graph(
        "one-weight-1e-3",
        0,
        edits.weight("layers.1.fc2.weight_transposed", _nudged((3, 5), 1e-3)),
        {"logits": None},
        *DECODER,
        passes=("encoder", "kv_values", "tokens"),
    ),
    _graph(
        "one-output-column",
        0,
        edits.weight("lm_head.weight_transposed", _nudged((5, 900), 1e-3)),
        {"logits": None},
        *DECODER,
        passes=("encoder", "kv_values", "tokens"),
    ),
    Saboteur(
        "rare-token-embedding",
        0,
        lambda: bad(
            graph=edited(edits.weight("decoder.embed_tokens.weight", _scaled_row(rare_token(), 1.01)), *DECODER)
        )(),
        {
            "logits": lambda golden: first_fed(golden, [rare_token()]),
            "kv_values": lambda golden: first_fed(golden, [rare_token()]),
        },
        passes=("encoder", "kv_shape"),
    ),
    _graph(
        "last-source-positions-only",
        0,
        edits.weight("encoder.embed_positions.weight", _scaled_row(100, 1.01)),
        {"encoder": 0},
        "encoder",
    ),
    _graph("weights-bf16", 0, edits.weight("", edits.bf16), {"encoder": 0, "logits": 0, "kv_values": 0}),
    _graph(
        "weights-bf16-last-layer",
        0,
        edits.weight("layers.1.fc", edits.bf16),
        {"logits": None},
        *DECODER,
        passes=("encoder", "kv_shape"),
    ),
    _graph(
        "weights-int8-channels",
        39,
        edits.weight("weight", edits.quantised(8, True)),
        {"encoder": 0, "logits": 0, "kv_values": 0},
    ),
    _graph("weights-int8-tensor", 39, edits.weight("weight", edits.quantised(8, False)), {"encoder": 0, "logits": 0}),
    _graph(
        "weights-int4",
        39,
        edits.weight("weight", edits.quantised(4, False)),
        {"encoder": 0, "logits": 0, "tokens": None, "text": None},
    ),
    _graph("int8-saturated-pairs", 38, _saturated, {"logits": 0}, "step", passes=("encoder", "kv_shape")),
    _graph(
        "activations-fp16",
        41,
        edits.after(LN.format(0, "final_layer_norm"), *ROUND_TRIP),
        {"logits": None},
        *DECODER,
        passes=("encoder", "kv_shape", "tokens"),
    ),
    _graph(
        "fp16-overflow",
        35,
        both(
            stored("huge", np.array(8000, np.float32)),
            edits.before_output(
                "logits",
                ("Mul", ("huge",), {}),
                ("Cast", (), {"to": FLOAT16}),
                ("Cast", (), {"to": FLOAT}),
                ("Div", ("huge",), {}),
            ),
        ),
        {"logits": 0},
        *DECODER,
        passes=("encoder", "kv_shape", "kv_values"),
        says="inf",
    ),
    # optimizer: a live fault of ONNX Runtime
    Saboteur(
        "layer-norm-keepdims-0-fused",
        37,
        bad(graph=edited(_square_norm, *DECODER), knobs=OPTIMIZER),
        {"logits": 0},
        passes=("encoder", "kv_shape", "kv_values"),
        blame="optimizer",
        knob="optimizer=off",
    ),
    # shapes baked in
    Saboteur(
        "batch-baked",
        3,
        lambda: bad(graph=edited(edits.baked((len(batch().rows),), 0), "step"))(),
        {"logits": 0},
        passes=("encoder",),
        says="refused at step 0",
    ),
    Saboteur(
        "source-length-baked",
        3,
        lambda: bad(graph=edited(edits.baked((batch().ids.shape[1],), 1), "encoder"))(),
        {"encoder": 0},
        says="refused in the encoder",
    ),
    *pair(
        _graph(
            "past-length-baked",
            3,
            both(
                stored("past_shape", np.array([0, 4, 3, 32], np.int64)),
                edits.after(
                    "past_key_values.0.decoder.key",
                    ("Reshape", ("past_shape",), {}),
                    readers=("/layers.0/self_attn/Concat_3",),
                ),
            ),
            {"logits": 0, "kv_values": 0},
            "step",
            passes=("encoder",),
            says="refused at step 0",
        ),
        fails={"logits": 1, "kv_values": 1},
        says="refused at step 1",
    ),
    *pair(
        _graph(
            "past-fixed-at-1",
            19,
            edits.fixed(1, ".decoder."),
            {"logits": 0},
            "step",
            passes=("encoder",),
            says="index: 2",
        ),
        fails={"logits": 2},
    ),
    # refused
    _graph("ir-from-the-future", 27, edits.stamped(ir=99), {"logits": None}, status="UNSUPPORTED", kind="ir", blame=""),
    _graph(
        "opset-from-the-future",
        28,
        edits.stamped(opset=99),
        {"logits": None},
        status="UNSUPPORTED",
        kind="opset",
        blame="",
    ),
    _graph("opset-6", 28, _legacy, {"logits": None}, status="UNSUPPORTED", kind="opset", blame=""),
    _graph(
        "operator-unknown",
        29,
        edits.replaced("/Greater", "Greatest", "/Unsqueeze_1", "/Constant_5"),
        {"logits": None},
        "step",
        status="UNSUPPORTED",
        kind="operator",
        blame="",
    ),
    _graph(
        "operator-of-another-domain",
        34,
        both(
            edits.replaced("/Greater", "Greater", "/Unsqueeze_1", "/Constant_5", domain="com.example"),
            edits.stamped(domain="com.example"),
        ),
        {"logits": None},
        "step",
        status="UNSUPPORTED",
        kind="operator",
        blame="",
    ),
]
