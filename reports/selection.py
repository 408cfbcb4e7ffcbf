"""Which rows a command line means: ``DIR``, a rows file, or one night of a folder as ``DIR@NIGHT``."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from harness.core.errors import UserError
from harness.core.files import write_whole
from reports.store import Store, note

LAST_GOOD = "last-good"
"""File in a results folder that names the last night that passed its gate; `conform gate --good` writes it."""


class Selection(NamedTuple):
    """Rows that a command line names. ``night`` is None for the newest row of every cell; ``text`` names them in words."""

    store: Store
    night: str | None
    text: str

    @property
    def folder(self) -> Path:
        """The folder that sidecar paths start from."""
        path = self.store.paths[0]
        return path if path.is_dir() else path.parent

    @property
    def nights(self) -> list[str] | None:
        return None if self.night is None else [self.night]

    @property
    def last(self) -> str:
        return self.night or self.store.nights[-1]


def select(*texts: str, detail: bool = True, say: Callable[[str], None] = note) -> list[Selection]:
    """What each text of a command line names; a folder that is named twice is read once. ``detail`` and ``say``: see
    `Store`. Raises UserError."""
    stores: dict[Path, Store] = {}
    selections = []
    for text in texts:
        path, word = _parsed(text)
        key = path.resolve()
        if key not in stores:
            stores[key] = Store([path], detail=detail, say=say)
        night = word and _night(path, stores[key], word)
        selections.append(Selection(stores[key], night, f"{path}@{night}" if night else str(path)))
    return selections


def mark_good(folder: Path, night: str) -> Path:
    """Name a night of a results folder as its last good one. Returns the file."""
    path = folder / LAST_GOOD
    write_whole(path, night + "\n")
    return path


def _parsed(text: str) -> tuple[Path, str | None]:
    """``DIR`` or ``DIR@NIGHT`` as folder and word: a day, ``newest``, or ``last-good``. Raises UserError."""
    folder, at, night = text.rpartition("@")
    if not at or Path(text).exists():
        if not Path(text).exists():
            raise UserError(f"{text}: no such folder or file; give results, or one night of them as DIR@2026-11-30")
        return Path(text), None
    if not Path(folder).exists():
        raise UserError(f"{folder}: no such folder or file; give results, or one night of them as DIR@2026-11-30")
    if not night:  # an empty variable of a script must not widen the question to every night
        raise UserError(f"{text}: names no night after @; give DIR@2026-11-30, DIR@newest, or DIR for every night")
    return Path(folder), night


def _night(folder: Path, store: Store, word: str) -> str:
    """The night that a word after ``@`` means. Raises UserError."""
    if word == "newest":
        return store.nights[-1]
    if word == LAST_GOOD:
        try:
            word = (folder / LAST_GOOD).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UserError(
                f"{folder}@{LAST_GOOD}: no night has passed a gate yet; "
                f"conform gate {folder}@newest --policy nightly --good"
            ) from error
        except UnicodeDecodeError as error:
            raise UserError(
                f"{folder / LAST_GOOD}: names no night ({error}); write a day such as 2026-11-30"
            ) from error
    if word not in store.nights:
        raise UserError(f"{folder}@{word}: no rows of that night; {store.span()}")
    return word
