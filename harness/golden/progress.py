"""Progress on the terminal: one bar after another, a phase each."""

from typing import Any

from tqdm import tqdm


class Bars:
    """A context manager; ``shown``: whether anything is printed."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self._bar: Any = None

    def __enter__(self) -> "Bars":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def phase(self, name: str, total: int) -> None:
        """Close the bar and open the next, of ``total`` ticks."""
        self.__exit__()
        self._bar = tqdm(total=total, desc=f"{name:<12}", disable=not self.shown, leave=True)

    def tick(self, count: int = 1) -> None:
        """Move the bar on."""
        self._bar.update(count)
