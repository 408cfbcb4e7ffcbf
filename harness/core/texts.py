"""Evidence about text: token ids as a sidecar file keeps them, and what can be asked about the texts that they spell.

Reports ask, and compute no text themselves; ``harness.run.text`` answers.
"""

import io
import zipfile
import zlib
from typing import List, NamedTuple, Protocol, Sequence

import numpy as np

from harness.core.bundle import Bundle

METHODS = ("bootstrap", "randomization")
"""Paired significance tests that `Texts.paired` knows."""


class Interval(NamedTuple):
    """A BLEU score and the ends of its 95 % interval."""

    score: float
    low: float
    high: float


class Paired(NamedTuple):
    """BLEU of hypotheses and of the golden's, and the p of a paired test of their difference. ``signature``: sacrebleu's."""

    score: float
    golden: float
    p: float
    signature: str


class Texts(Protocol):
    """Texts of one bundle's hypotheses and their scores. Texts are in the order of the bundle's rows."""

    @property
    def bundle(self) -> Bundle: ...

    @property
    def golden(self) -> List[str]:
        """The texts that PyTorch decoded."""
        ...

    def spell(self, ids: Sequence[np.ndarray], ties: Sequence[str]) -> List[str]:
        """Texts as they are scored. ``ids``: [length] token ids of each row; rows named in ``ties``, whose choice was a
        tie, have the golden's text."""
        ...

    def interval(self, hypotheses: Sequence[str]) -> Interval: ...

    def paired(self, hypotheses: Sequence[str], method: str, samples: int) -> Paired:
        """``method``: one of METHODS; the golden's texts are the baseline."""
        ...


def token_ids(content: bytes, rows: int) -> List[np.ndarray]:
    """Token ids of each hypothesis, from the content of a ``.tokens.npz`` sidecar: ``tokens`` has those of all rows,
    ``token_starts`` [rows + 1] where each begins. Raises ValueError for damage and for another number of rows."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as saved:
            tokens, starts = saved["tokens"], saved["token_starts"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(str(error)) from error
    ids = np.split(tokens, starts[1:-1])
    if len(ids) != rows:
        raise ValueError(f"{len(ids)} hypotheses, the bundle has {rows} rows")
    return ids
