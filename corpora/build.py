"""Write corpus.tsv: the held-out rows of the grammar, then edge.tsv, then ui.tsv.

    python -m corpora.build

The files are tab-separated with one header line, UTF-8 and LF, without any quoting: spaces and quotation
marks in a field are part of the text.
"""

import sys
from pathlib import Path

from corpora.grammar import DEFAULT_SEED, held_out, held_out_kinds

DIRECTORY = Path(__file__).parent
COLUMNS = ("id", "domain", "licence", "source", "reference")


def read_tsv(path: Path) -> list[dict[str, str]]:
    """The rows of a tab-separated file, by column name."""
    header, *lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    columns = header.split("\t")
    return [dict(zip(columns, line.split("\t"), strict=True)) for line in lines]


def grammar_rows(seed: int = DEFAULT_SEED) -> list[dict[str, str]]:
    """The held-out rows of the grammar. The id names the kind, such as `inspection-two-clauses-007`."""
    rows = []
    numbers: dict[str, int] = {}
    for pair, kind in zip(held_out(seed), held_out_kinds(seed), strict=True):
        numbers[kind] = numbers.get(kind, 0) + 1
        rows.append(
            {
                "id": f"inspection-{kind.replace(' ', '-')}-{numbers[kind]:03d}",
                "domain": "inspection",
                "licence": "CC0-1.0",
                "source": pair.en,
                "reference": pair.zh,
            }
        )
    return rows


def corpus_rows() -> list[dict[str, str]]:
    """All rows of the corpus, in order."""
    edge = [{"domain": "edge", "licence": "CC0-1.0"} | row for row in read_tsv(DIRECTORY / "edge.tsv")]
    ui = [{"domain": "ui"} | row for row in read_tsv(DIRECTORY / "ui.tsv")]
    return [*grammar_rows(), *edge, *ui]


def corpus_text() -> str:
    """The text of corpus.tsv. Raises ValueError if an id repeats or a field holds a line break or nothing."""
    rows = corpus_rows()
    if len({row["id"] for row in rows}) != len(rows):
        raise ValueError("an id appears twice")
    lines = ["\t".join(COLUMNS)]
    for row in rows:
        fields = [row[column] for column in COLUMNS]
        if any(not field.strip() or len(field.splitlines()) != 1 or "\t" in field for field in fields):
            raise ValueError(f"{row['id']}: a field is empty or holds a tab or a line break")
        lines.append("\t".join(fields))
    return "\n".join(lines) + "\n"


def main() -> int:
    """Rewrite corpus.tsv beside this file."""
    text = corpus_text()
    (DIRECTORY / "corpus.tsv").write_bytes(text.encode("utf-8"))
    print(f"corpus.tsv: {text.count(chr(10)) - 1} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
