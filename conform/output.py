"""Where a command's page goes."""

from pathlib import Path


def show(page: str, out: Path | None) -> None:
    """Write the page to a file, or to standard output where there is none."""
    if out:
        out.write_text(page, encoding="utf-8")
    else:
        print(page, end="" if page.endswith("\n") else "\n")
