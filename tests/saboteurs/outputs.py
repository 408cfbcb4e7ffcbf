"""Backends whose outputs are wrong, missing, degenerate, unstable, or right only in the way they were tried first."""

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np

from backends import contract
from tests.mutant import Feeds, Mutant
from tests.saboteurs.frame import (
    PerProgram,
    Saboteur,
    bad,
    brief,
    changed,
    ends,
    first_fed,
    giving,
    only,
    pair,
    rare_token,
    since,
)

LOGITS = "logits"
REST = ("encoder", "kv_shape", "kv_values")
Change = Callable[[np.ndarray], np.ndarray]


def _logits(name: str, case: int, change: Change, when: Any, fails: Any, **more: Any) -> Saboteur:
    more.setdefault("passes", REST)
    return Saboteur(name, case, bad(outputs=giving(changed(change, LOGITS), when)), fails, **more)


def _outputs(name: str, case: int, apply: Callable[[int, Feeds], None], when: Any, fails: Any, **more: Any) -> Saboteur:
    return Saboteur(name, case, bad(outputs=giving(apply, when)), fails, **more)


def _row(row: int, by: float) -> Change:
    """One row of the batch, one vocabulary entry."""

    def change(array: np.ndarray) -> np.ndarray:
        if len(array) > row:
            array[row, :, 17] += by
        return array

    return change


def _last_row(array: np.ndarray) -> np.ndarray:
    array[-1, :, 17] += 1e-3
    return array


def _entry(token: int, by: float) -> Change:
    def change(array: np.ndarray) -> np.ndarray:
        array[:, :, token] += by
        return array

    return change


def _noise(scale: float, seed: int | None = 0) -> Change:
    generator = np.random.default_rng(seed)

    def change(array: np.ndarray) -> np.ndarray:
        noise = generator.normal(scale=scale, size=array.shape)
        return np.asarray(array + noise, array.dtype)

    return change


def _one_nan(array: np.ndarray) -> np.ndarray:
    array[0, 0, 500] = np.nan
    return array


def _at_the_end(array: np.ndarray) -> np.ndarray:
    """Only where a row chooses its end token, and not so far that it would choose another."""
    array[array[:, 0].argmax(axis=1) == brief().bundle.decode.eos, 0, 17] -= 1e-3
    return array


def _for_token(token: int) -> Any:
    """Wrong in the rows that are fed one token."""

    def hook(part: str, step: int, feeds: Feeds, outputs: Feeds) -> Feeds:
        if step >= 0:
            outputs[LOGITS] = outputs[LOGITS].copy()
            outputs[LOGITS][feeds["input_ids"][:, 0] == token] += 1e-3
        return outputs

    return hook


def _without(*names: str) -> Callable[[int, Feeds], None]:
    def apply(step: int, outputs: Feeds) -> None:
        for name in names:
            del outputs[name]

    return apply


def _renamed(old: str, new: str) -> Callable[[int, Feeds], None]:
    def apply(step: int, outputs: Feeds) -> None:
        given = {(new if name == old else name): array for name, array in outputs.items()}
        outputs.clear()
        outputs.update(given)

    return apply


def _exchanged(one: str, other: str) -> Callable[[int, Feeds], None]:
    def apply(step: int, outputs: Feeds) -> None:
        outputs[one], outputs[other] = outputs[other], outputs[one]

    return apply


def _extra(step: int, outputs: Feeds) -> None:
    outputs["hidden"] = np.zeros(3, np.float32)


def _as(change: Callable[[np.ndarray], Any]) -> Callable[[int, Feeds], None]:
    def apply(step: int, outputs: Feeds) -> None:
        outputs[LOGITS] = change(outputs[LOGITS])

    return apply


def _encoder_only(change: Change, *names: str) -> Any:
    return giving(changed(change, *(names or ("last_hidden_state",))), only(-1))


def _place(place: int, by: float) -> Change:
    """The encoder's output at one source position, where the source is that long."""

    def change(array: np.ndarray) -> np.ndarray:
        if array.shape[1] > place:
            array[:, place, 0] += by
        return array

    return change


def _refuse(first: int) -> Any:
    def hook(part: str, step: int, feeds: Feeds, outputs: Feeds) -> Feeds:
        if step >= first:
            raise contract.StageError("run", "other", "the decoder gave up")
        return outputs

    return hook


def _nothing(step: int, outputs: Feeds) -> None:
    outputs.clear()


def _of_another_row(array: np.ndarray) -> np.ndarray:
    return np.roll(array, 1, axis=0)


def _copier() -> Any:
    """Says the source back, token by token: fluent, and no translation."""
    source: dict[str, np.ndarray] = {}

    def hook(part: str, step: int, feeds: Feeds, outputs: Feeds) -> Feeds:
        if step < 0:
            source["ids"] = feeds["input_ids"]
            return outputs
        logits = np.zeros_like(outputs[LOGITS])
        place = min(step, source["ids"].shape[1] - 1)
        logits[np.arange(len(logits)), 0, source["ids"][:, place] % brief().bundle.decode.pad] = 20
        outputs[LOGITS] = logits
        return outputs

    return bad(outputs=hook)()


def _end_at_once(array: np.ndarray) -> np.ndarray:
    array[:, :, brief().bundle.decode.eos] = 99
    return array


def _racing() -> dict[str, Any]:
    """Right the first time, with another error each time after: nothing that one replay of fresh programs would show."""
    seen: list[int] = []
    noise = _noise(1e-3, None)

    def outputs(part: str, step: int, feeds: Feeds, given: Feeds) -> Feeds:
        if step == 0:
            seen.append(len(feeds["input_ids"]))
        if step >= 0 and len(seen) > len(brief().batches):
            given[LOGITS] = noise(given[LOGITS])
        return given

    return {"outputs": outputs}


def _leaking() -> dict[str, Any]:
    """Something of the sentence before stays: the second batch on one program is a little off."""
    batches: list[bytes] = []

    def outputs(part: str, step: int, feeds: Feeds, given: Feeds) -> Feeds:
        if step < 0:
            return given
        mask = feeds.get("encoder_attention_mask", np.zeros(0)).tobytes()
        if mask not in batches:
            batches.append(mask)
        if batches[0] != mask or len(batches) > 1:
            given[LOGITS] = given[LOGITS] + np.linspace(0, 1e-3, given[LOGITS].shape[-1], dtype=np.float32)
        return given

    return {"outputs": outputs}


def _by_shape() -> dict[str, Any]:
    """Keeps the encoder's result by the shape of its input, so another batch of that shape gets the wrong one."""
    kept: dict[tuple[int, ...], Feeds] = {}

    def outputs(part: str, step: int, feeds: Feeds, given: Feeds) -> Feeds:
        return kept.setdefault(feeds["input_ids"].shape, given) if step < 0 else given

    return {"outputs": outputs}


def _first_length() -> dict[str, Any]:
    """A kernel made for the first cache length of a program, and wrong for long ones when that was short."""
    first: list[int] = []

    def outputs(part: str, step: int, feeds: Feeds, given: Feeds) -> Feeds:
        if part == "step":
            first.append(step)
            if first[0] < 4 and step >= 7:
                given[LOGITS] = given[LOGITS] * np.float32(1.01)
        return given

    return {"outputs": outputs}


def _when_alone(part: str, step: int, feeds: Feeds, outputs: Feeds) -> Feeds:
    if step >= 0 and len(feeds["input_ids"]) == 1:
        outputs[LOGITS] = outputs[LOGITS] + np.linspace(0, 1e-3, outputs[LOGITS].shape[-1], dtype=np.float32)
    return outputs


def _when_padded(part: str, step: int, feeds: Feeds, outputs: Feeds) -> Feeds:
    if step < 0 and not feeds["attention_mask"][:, -1].any():
        outputs["last_hidden_state"] = outputs["last_hidden_state"] * np.float32(1.001)
        for name in [name for name in outputs if ".encoder." in name]:
            outputs[name] = outputs[name] * np.float32(1.001)
    return outputs


def _in_large_batches(part: str, step: int, feeds: Feeds, outputs: Feeds) -> Feeds:
    """Wrong only in batches larger than the traced ones: the forced replay cannot see it."""
    if step >= 3 and len(feeds["input_ids"]) > 8:
        outputs[LOGITS] = np.roll(outputs[LOGITS], 1, axis=0)
    return outputs


class Switchable(Mutant):
    """A fault that an option of the adapter turns off: what blame finds out by trying the knobs."""

    def __init__(self, knob: str, option: str, right: Any, hook: Any) -> None:
        super().__init__()
        self.option, self.right, self.hook = option, right, hook
        culprit = "optimizer" if option == "optimizer" else "runtime"
        knobs = {"unrelated=1": contract.Knob({"unrelated": 1}), knob: contract.Knob({option: right}, culprit)}
        self.capabilities = contract.Capabilities(dtypes=self.capabilities.dtypes, knobs=knobs)

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        wrong = options.get(self.option) != self.right
        known = {name: value for name, value in options.items() if name in ("threads", "optimizer")}
        return Mutant(outputs=self.hook if wrong else None).compile(part, known)


class Elsewhere(Mutant):
    """Says that another device or precision did the work, or says nothing."""

    def __init__(self, found: contract.Placement | None, probed: contract.Probe | None = None) -> None:
        super().__init__()
        self.found, self.probed = found, probed

    def probe(self) -> contract.Probe:
        return self.probed or super().probe()

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        program = super().compile(part, options)
        program.placement = lambda: self.found  # type: ignore[method-assign]
        return program


class Refusing(Mutant):
    """Refuses to load with one kind of reason."""

    def __init__(self, stage: str, kind: str, message: str) -> None:
        super().__init__()
        self.reason = (stage, kind, message)

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        raise contract.StageError(*self.reason)


class Hoarder(Mutant):
    """Keeps 2 MB a run for good, straight from the system: what the test process freed earlier must not hide it."""

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        kept: list[mmap.mmap] = []

        def outputs(part: str, step: int, feeds: Feeds, given: Feeds) -> Feeds:
            kept.append(mmap.mmap(-1, 1 << 21))
            kept[-1].write(bytes(1 << 21))
            return given

        return Mutant(outputs=outputs).compile(part, options)


def _first_rare(golden: Any) -> int:
    return first_fed(golden, [rare_token()])


OFF = changed(_entry(17, 1e-2), LOGITS)

SABOTEURS: list[Saboteur] = [
    # the set of outputs
    _outputs("logits-missing", 23, _without(LOGITS), since(0), {"kv_shape": 0, "logits": 0}, says="logits is missing"),
    _outputs(
        "logits-missing-from-7", 23, _without(LOGITS), since(7), {"kv_shape": 7, "logits": 7}, says="logits is missing"
    ),
    *pair(
        _outputs(
            "one-cache-output-missing",
            23,
            _without("present.1.decoder.value"),
            since(0),
            {"kv_shape": 0, "kv_values": 0},
            says="present.1.decoder.value is missing",
        )
    ),
    _outputs(
        "one-cache-output-missing-from-20",
        23,
        _without("present.0.decoder.key"),
        since(20),
        {"kv_shape": 20, "kv_values": 20},
        passes=("encoder",),
        says="present.0.decoder.key is missing",
    ),
    _outputs(
        "cross-cache-output-missing",
        23,
        _without("present.1.encoder.key"),
        only(-1),
        {"kv_shape": None, "encoder": None},
        says="present.1.encoder.key is missing",
    ),
    _outputs(
        "encoder-output-missing",
        23,
        _without("last_hidden_state"),
        only(-1),
        {"kv_shape": None, "encoder": None},
        says="last_hidden_state",
    ),
    *pair(
        _outputs(
            "extra-output",
            23,
            _extra,
            since(0),
            {"kv_shape": 0},
            passes=("encoder", LOGITS, "kv_values", "tokens"),
            says="hidden is not declared",
        )
    ),
    _outputs(
        "extra-output-from-40",
        23,
        _extra,
        since(40),
        {"kv_shape": 40},
        passes=(LOGITS, "kv_values"),
        says="hidden is not declared",
    ),
    _outputs(
        "renamed-at-the-same-index",
        23,
        _renamed("present.1.decoder.value", "present.1.decoder.val"),
        since(0),
        {"kv_shape": 0},
        passes=("encoder",),
        says="present.1.decoder.val",
    ),
    _outputs(
        "two-names-exchanged",
        4,
        _exchanged("present.0.decoder.key", "present.1.decoder.key"),
        since(0),
        {"kv_values": 0, LOGITS: 1},
        passes=("encoder", "kv_shape"),
        says="present.0.decoder.key",
    ),
    _outputs(
        "key-and-value-names-exchanged-from-7",
        4,
        _exchanged("present.1.decoder.key", "present.1.decoder.value"),
        since(7),
        {"kv_values": 7, LOGITS: 8},
        passes=("encoder", "kv_shape"),
        says="present.1.decoder.key",
    ),
    _outputs(
        "nothing-after-5-steps",
        22,
        _nothing,
        since(5),
        {"kv_shape": 5, LOGITS: 5, "kv_values": 5, "tokens": None},
        passes=("encoder",),
    ),
    Saboteur(
        "refuses-after-5-steps",
        22,
        bad(outputs=_refuse(5)),
        {LOGITS: 5, "kv_values": 5, "tokens": None},
        passes=("encoder",),
        says="refused at step 5",
    ),
    Saboteur(
        "refuses-after-40-steps", 22, bad(outputs=_refuse(40)), {LOGITS: 40, "kv_values": 40}, passes=("encoder",)
    ),
    _outputs(
        "no-steps", 22, _as(lambda array: array[:, :0]), since(0), {LOGITS: 0, "kv_shape": 0}, passes=("encoder",)
    ),
    _outputs(
        "two-steps-at-once",
        22,
        _as(lambda array: np.repeat(array, 2, axis=1)),
        since(0),
        {"kv_shape": 0},
        passes=("encoder",),
    ),
    # dtype and rank
    _outputs(
        "logits-fp64",
        23,
        _as(lambda array: array.astype(np.float64)),
        since(0),
        {"kv_shape": 0},
        passes=("encoder",),
        says="logits is float64",
    ),
    _outputs(
        "logits-fp16",
        23,
        _as(lambda array: array.astype(np.float16)),
        since(0),
        {"kv_shape": 0, LOGITS: 0},
        says="logits is float16",
    ),
    _outputs("logits-rank-2", 23, _as(lambda array: array[:, 0]), since(0), {"kv_shape": 0, LOGITS: 0}, says="rank 2"),
    _outputs(
        "logits-rank-0",
        23,
        _as(lambda array: np.float32(0).reshape(())),
        since(0),
        {"kv_shape": 0, LOGITS: 0},
        says="rank 0",
    ),
    _outputs(
        "logits-one-short",
        23,
        _as(lambda array: array[:, :, :-1]),
        since(0),
        {"kv_shape": 0, LOGITS: 0},
        passes=("encoder",),
        says="1, 1023]",
    ),
    _outputs("logits-of-fewer-rows", 23, _as(lambda array: array[:-1]), since(7), {"kv_shape": 7}, passes=("encoder",)),
    _outputs(
        "logits-of-fewer-rows-from-0",
        23,
        _as(lambda array: array[:-1]),
        since(0),
        {"kv_shape": 0, LOGITS: 0},
        passes=("encoder",),
    ),
    # degenerate
    _logits("zeros", 36, np.zeros_like, since(0), {LOGITS: 0, "tokens": 0}, says="every value is zero"),
    _logits("zeros-from-40", 36, np.zeros_like, since(40), {LOGITS: 40}, says="every value is zero"),
    *pair(_logits("nan-from-3", 36, lambda array: array * np.nan, since(3), {LOGITS: 3, "tokens": 3}, says="NaN")),
    _logits("one-nan-at-40", 36, _one_nan, only(40), {LOGITS: 40}, says="1 of 1024 values are NaN"),
    _logits(
        "constant",
        36,
        lambda array: np.full_like(array, 1.5),
        since(0),
        {LOGITS: 0, "tokens": None},
        says="every value is 1.5",
    ),
    _logits("infinite-at-7", 36, lambda array: np.copysign(np.inf, array), only(7), {LOGITS: 7}),
    Saboteur(
        "encoder-zeros", 36, bad(outputs=_encoder_only(np.zeros_like)), {"encoder": 0}, says="every value is zero"
    ),
    Saboteur(
        "encoder-constant",
        36,
        bad(outputs=_encoder_only(np.ones_like)),
        {"encoder": 0},
        layout="split",
        says="every value is 1",
    ),
    # far and near
    _logits("noise-1e-1", 0, _noise(1e-1), since(0), {LOGITS: 0}),
    _logits("noise-1e-3", 0, _noise(1e-3), since(0), {LOGITS: 0}, passes=REST),
    _logits("noise-1e-5", 0, _noise(1e-5), since(0), {LOGITS: None}, passes=("tokens", *REST)),
    _logits("scaled-1e-3", 0, lambda array: array * np.float32(1.001), since(0), {LOGITS: 0}),
    _logits(
        "scaled-1e-5", 0, lambda array: array * np.float32(1.00001), since(0), {LOGITS: None}, passes=("tokens", *REST)
    ),
    _logits("rounded-to-fp16", 41, lambda array: array.astype(np.float16).astype(np.float32), since(0), {LOGITS: 0}),
    _logits("one-entry-1e-3", 0, _entry(900, 1e-3), since(0), {LOGITS: 0}, says="the same at every step"),
    _logits("one-entry-5e-5", 0, _entry(900, 5e-5), since(0), {LOGITS: None}, passes=("tokens", *REST)),
    # in one place only
    *[
        _logits(f"row-{row}-at-{step}", 0, _row(row, 1e-3), only(step), {LOGITS: step})
        for row, step in ((2, 0), (2, 7), (1, 20), (0, 40))
    ],
    _logits("row-0-at-the-very-end", 0, _row(0, 1e-3), since(80), {LOGITS: 80}),
    _logits("last-row-of-the-batch", 0, _last_row, only(1), {LOGITS: 1}),
    _logits("last-step-only", 0, _at_the_end, since(0), {LOGITS: ends}, passes=("tokens", *REST)),
    Saboteur("rare-token-only", 0, lambda: bad(outputs=_for_token(rare_token()))(), {LOGITS: _first_rare}, passes=REST),
    Saboteur(
        "encoder-at-position-3",
        0,
        bad(outputs=_encoder_only(_place(3, 1e-3))),
        {"encoder": 3},
        layout="split",
        says="last_hidden_state at source position 3",
    ),
    Saboteur(
        "encoder-at-position-100",
        0,
        bad(outputs=_encoder_only(_place(100, 1e-3))),
        {"encoder": 100, LOGITS: None},
        layout="split",
    ),
    Saboteur(
        "cross-value-of-layer-1",
        0,
        bad(outputs=_encoder_only(lambda array: array * np.float32(1.001), "present.1.encoder.value")),
        {"encoder": 0, LOGITS: 0},
        passes=("kv_values",),
        says="present.1.encoder.value",
    ),
    # fluent and wrong
    _logits(
        "fluent-but-unrelated",
        39,
        _of_another_row,
        since(0),
        {"text": None, LOGITS: 0, "tokens": None},
        passes=("encoder",),
        says="BLEU",
    ),
    Saboteur(
        "copies-the-source", 39, _copier, {"text": None, LOGITS: 0, "tokens": None}, says="copied from the source"
    ),
    _logits(
        "empty", 39, _end_at_once, since(0), {"text": None, LOGITS: 0, "tokens": 0}, passes=("encoder",), says="empty"
    ),
    # unstable
    Saboteur(
        "another-noise-each-time",
        45,
        lambda: bad(outputs=giving(changed(_noise(1e-3, None), LOGITS)))(),
        {"invariance": 0, LOGITS: 0},
        says="not deterministic",
    ),
    Saboteur(
        "races-after-the-first-time", 45, lambda: PerProgram(_racing), {"invariance": None, LOGITS: None}, passes=REST
    ),
    Saboteur(
        "state-leak",
        45,
        lambda: PerProgram(_leaking),
        {"invariance": 0, LOGITS: 0},
        says="state kept between sentences",
    ),
    Saboteur(
        "encoder-kept-by-shape",
        45,
        lambda: PerProgram(_by_shape),
        {"invariance": 0},
        passes=(LOGITS, *REST),
        says="another order",
    ),
    Saboteur("wrong-when-alone", 45, bad(outputs=_when_alone), {"invariance": 0, LOGITS: 0}, passes=REST, says="alone"),
    Saboteur(
        "wrong-when-padded",
        12,
        bad(outputs=_when_padded),
        {"invariance": 0},
        passes=(LOGITS, *REST),
        says="more padding",
    ),
    *pair(
        Saboteur(
            "kernel-of-the-first-length",
            42,
            lambda: PerProgram(_first_length),
            {"invariance": 7, LOGITS: 7},
            passes=REST,
            says="a long cache first",
        )
    ),
    Saboteur("wrong-in-large-batches", 0, bad(outputs=_in_large_batches), {"tokens": 3, LOGITS: 3}, passes=REST),
    # knobs
    Saboteur(
        "cleared-by-a-cache-knob",
        42,
        lambda: Switchable("cache=0", "cache", 0, giving(OFF, since(7))),
        {LOGITS: 7},
        passes=REST,
        knob="cache=0",
    ),
    Saboteur(
        "cleared-by-the-optimizer-knob",
        37,
        lambda: Switchable("optimizer=off", "optimizer", "off", giving(OFF, since(1))),
        {LOGITS: 1},
        passes=REST,
        blame="optimizer",
        knob="optimizer=off",
    ),
    Saboteur(
        "cleared-by-one-thread",
        0,
        lambda: Switchable("threads=1", "spinning", 1, giving(OFF, since(20))),
        {LOGITS: 20},
        passes=REST,
        knob="threads=1",
    ),
    # placement and refusals
    Saboteur(
        "placement-unproven",
        40,
        lambda: Elsewhere(None),
        {"placement": None},
        status="UNVERIFIED",
        blame="",
        passes=(LOGITS,),
    ),
    Saboteur(
        "fell-back-to-the-cpu",
        40,
        lambda: Elsewhere(contract.Placement("cpu", "fp32", "session providers"), contract.Probe("1", "npu", "fp32")),
        {"placement": None},
        blame="",
        says="ran on cpu",
    ),
    Saboteur(
        "computed-in-fp16",
        40,
        lambda: Elsewhere(contract.Placement("cpu", "fp16", "hint")),
        {"placement": None},
        blame="",
        says="fp16",
    ),
    Saboteur(
        "bf16-without-the-hardware",
        41,
        lambda: Refusing("build", "dtype", "bf16 is not supported by this CPU"),
        {LOGITS: None, "encoder": None},
        status="UNSUPPORTED",
        kind="dtype",
        blame="",
        says="bf16",
    ),
    Saboteur(
        "refused-without-a-kind",
        47,
        lambda: Refusing("load", "other", "out of licence"),
        {LOGITS: None},
        status="ERROR",
        blame="",
        says="out of licence",
    ),
    Saboteur(
        "takes-no-empty-cache",
        19,
        bad(capabilities={"zero_length_dims": False}),
        {LOGITS: None},
        status="UNSUPPORTED",
        kind="shape",
        blame="",
        says="length 0",
    ),
    Saboteur(
        "takes-no-dynamic-dimension",
        19,
        bad(capabilities={"dynamic_dims": False}),
        {LOGITS: None},
        status="UNSUPPORTED",
        kind="shape",
        blame="",
        says="dynamic",
    ),
    Saboteur(
        "takes-only-older-opsets",
        28,
        bad(capabilities={"opsets": tuple(range(9, 17))}),
        {LOGITS: None},
        status="UNSUPPORTED",
        kind="opset",
        blame="",
        says="opset 17",
    ),
    Saboteur(
        "takes-only-int32",
        21,
        bad(capabilities={"dtypes": frozenset({"float32", "int32"})}),
        {LOGITS: None},
        status="UNSUPPORTED",
        kind="dtype",
        blame="",
        says="int64",
    ),
    # memory
    Saboteur("keeps-memory", 46, Hoarder, {"cost": None}, blame="", says="leak"),
]
