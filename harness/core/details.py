"""The shape of a row's ``detail``, check by check. The JSON schema of rows is generated from it; fields may be missing.

``seconds`` are wall time; gaps and bounds are in units of the tensor.
"""

from typing import Any, Dict, List, Optional, TypedDict, Union


class EvidenceDetail(TypedDict, total=False):
    """Who is to blame, and why: see harness.judge.blame.Evidence."""

    golden: bool
    witness: bool
    numbers: bool
    knob: Optional[str]
    knob_culprit: str


class ExpectedDetail(TypedDict, total=False):
    """Of an expected failure: the status that was seen, and the reason and link of the expectation."""

    seen: str
    reason: str
    link: str


class AttemptDetail(TypedDict, total=False):
    """One attempt of a flaky answer."""

    status: str
    message: str


class StageDetail(TypedDict, total=False):
    """What one stage of one part went through; ``bytes`` and ``artifact`` of an engine, ``log``: its last lines."""

    part: str
    stage: str
    seconds: float
    artifact: str
    bytes: int
    build_seconds: float
    cached: bool
    failed: bool
    log: List[str]


class RestampedDetail(TypedDict, total=False):
    """What the graph gave under an older IR version."""

    ir: int
    status: str
    message: str


class AnyDetail(TypedDict, total=False):
    """What the detail of any row may have."""

    said: str
    """The last words of a worker, or all that a runtime said of a refusal."""
    because: str
    """The check that decided that this one was not run."""
    expected: ExpectedDetail
    attempts: List[AttemptDetail]
    stages: List[StageDetail]
    restamped: RestampedDetail


class BlamedDetail(AnyDetail, total=False):
    """Of a check whose culprit is looked for. ``knobs``: what came of each that was turned."""

    forced: List[str]
    evidence: EvidenceDetail
    knobs: Union[Dict[str, str], List[str]]  # earlier releases listed the names alone


class TensorDetail(TypedDict, total=False):
    """One tensor against its floor: largest gap, medians of gap over floor (of all entries, and of parts), their bounds."""

    tail: Optional[float]
    tail_bound: float
    floor: float
    bulk: Optional[float]
    bulk_bound: float
    bulk_part: Optional[float]
    bulk_part_bound: float
    entries: int
    note: str


class SecondsDetail(TypedDict, total=False):
    """Seconds in the runtime, and in the comparison."""

    replay: float
    compare: float


FreeDetail = TypedDict("FreeDetail", {"largest gap": float, "compared": int}, total=False)
"""What the free replays have seen of the logits."""


class TraceDetail(BlamedDetail, total=False):
    """Of the forced replay: ``tensors`` by name, ``misses``: the first things that are wrong."""

    tensors: Dict[str, TensorDetail]
    misses: List[str]
    seconds: SecondsDetail
    unit: str
    free: FreeDetail


class TokensDetail(BlamedDetail, total=False):
    """``rows``: how many of each word; ``notable``: sentence, word, step, message; ``ties``: sentences."""

    rows: Dict[str, int]
    tie_bound: float
    notable: List[List[Any]]
    ties: List[str]
    wrong_choices: Dict[str, int]


class TextDetail(AnyDetail, total=False):
    """Scores, and the golden's, by metric, with sacrebleu's signatures; sentences whose text differs."""

    scores: Dict[str, float]
    golden: Dict[str, float]
    signatures: Dict[str, str]
    changed: int
    sentences: List[str]


class WayDetail(TypedDict, total=False):
    """One way of the invariance check."""

    gap: float
    bound: float
    bitwise: bool


class InvarianceDetail(BlamedDetail, total=False):
    """``ways`` by name."""

    ways: Dict[str, WayDetail]


class CostDetail(AnyDetail, total=False):
    """Sizes in bytes, times in seconds."""

    batch: int
    file_bytes: int
    load_seconds: float
    encoder_seconds: float
    step_p50_seconds: float
    step_p95_seconds: float
    tokens_per_second: float
    peak_memory_bytes: int
    repeat_memory_bytes: List[int]
    threads: int
    cpu: List[str]
    unit: str


class ArtifactDetail(AnyDetail, total=False):
    """What is wrong with the files."""

    problems: List[str]


class OperatorDetail(AnyDetail, total=False):
    """Node tests of an operator at an opset; ``others``: what those said that did not pass."""

    tests: int
    passed: int
    others: Dict[str, str]
    collection: str


class ExportDetail(AnyDetail, total=False):
    """Largest gap over largest floor of each output."""

    ratios: Dict[str, float]


DETAILS: Dict[str, Any] = {
    "artifact": ArtifactDetail,
    **dict.fromkeys(("encoder", "logits", "kv_shape", "kv_values"), TraceDetail),
    "tokens": TokensDetail,
    "text": TextDetail,
    "placement": AnyDetail,
    "invariance": InvarianceDetail,
    "cost": CostDetail,
    "probe": AnyDetail,
    "operator": OperatorDetail,
    "export": ExportDetail,
}
"""The shape of each check's detail; placement's has the runtime's evidence by part beside it."""
