"""The piece tables of a Marian directory: from source text to ids, and from target ids to text."""

from typing import NamedTuple

from sentencepiece import SentencePieceProcessor

from backends.contract import first_line
from harness.golden.directory import COPY, Directory

MISSING_PIECES = 0.05
"""A vocabulary may lack a few pieces of its tokenizer, which then become <unk>. More than this share is another model's."""
TRAINED_WITH = "use the vocabulary that the model was trained with"


class Vocabularies(NamedTuple):
    """Id of every piece; ``source`` and ``target`` are equal unless the tokenizer separates them."""

    source: dict[str, int]
    target: dict[str, int]

    @classmethod
    def read(cls, directory: Directory, sizes: tuple[int, int], separate: bool) -> "Vocabularies":
        """``sizes``: how many source and target ids the model has. Raises UserError for what does not fit together."""
        source = _ids(directory, "vocab.json", sizes[0])
        target_file = "target_vocab.json" if separate else "vocab.json"
        target = _ids(directory, target_file, sizes[1])
        _check_pieces(directory, "source.spm", source)
        _check_pieces(directory, "target.spm", target)
        return cls(source, target)


def pieces(vocabulary: dict[str, int]) -> list[str]:
    """The piece of every id, index = id."""
    return sorted(vocabulary, key=lambda piece: vocabulary[piece])


def _ids(directory: Directory, name: str, size: int) -> dict[str, int]:
    ids = directory.json(name)
    if not all(isinstance(value, int) for value in ids.values()):
        raise directory.error(f"{name} does not map pieces to ids", COPY)
    if len(ids) != size:
        raise directory.error(f"{name} has {len(ids)} pieces, config.json says {size}", TRAINED_WITH)
    if sorted(ids.values()) != list(range(size)):
        odd = next(iter(set(ids.values()) - set(range(size))), "an id is there twice")
        raise directory.error(f"the ids of {name} are not 0 to {size - 1} ({odd})", COPY)
    return ids


def _check_pieces(directory: Directory, name: str, vocabulary: dict[str, int]) -> None:
    processor = SentencePieceProcessor()
    try:
        processor.Load(str(directory.file(name)))
    except (OSError, RuntimeError) as error:
        raise directory.error(f"{name} is no SentencePiece model ({first_line(error)})", "copy it again") from error
    special = (processor.IsControl, processor.IsUnknown, processor.IsByte, processor.IsUnused)
    plain = [index for index in range(processor.GetPieceSize()) if not any(test(index) for test in special)]
    missing = [piece for piece in map(processor.IdToPiece, plain) if piece not in vocabulary]
    if len(missing) > MISSING_PIECES * len(plain):
        raise directory.error(
            f"{len(missing)} of {len(plain)} pieces of {name} are not in the vocabulary, {missing[0]!r} first",
            "use the tokenizer that the model was trained with",
        )
