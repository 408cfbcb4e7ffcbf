"""Plots of one cell's sidecar as SVG text for a page: colours are the page's CSS variables, the words are text.

matplotlib draws them: maintained, with log axes and vector output, and its SVG is the same for the same numbers. All
functions take plain arrays, one entry a compared output; ``at`` is [n, 2] of corpus row and step.
"""

import io
import re
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

LEVELS = (0.25, 1.0, 10.0, 1000.0)
"""Edges of the heat map's levels, in bounds. A bound is four times PyTorch's own largest gap."""
LEVEL_NAMES = ("within PyTorch's noise", "inside the bound", "up to 10 bounds", "up to 1000 bounds", "beyond")
MOST_ROWS = 40
WIDTH, BOTTOM = 4.5, 0.45
"""Inches: of a figure, and of the numbers below its axes."""

# Colours that stand for the page's variables while matplotlib draws.
_VARIABLES = {
    "#010101": "var(--ink)",
    "#010102": "var(--muted)",
    "#010103": "var(--line)",
    **{f"#02020{number}": f"var(--plot-{number})" for number in range(6)},
    **{f"#03030{number}": f"var(--heat-{number})" for number in range(5)},
}
_INK, _MUTED, _LINE = list(_VARIABLES)[:3]
_PLOT = [name for name in _VARIABLES if name.startswith("#02")]
_HEAT = [name for name in _VARIABLES if name.startswith("#03")]
_STYLE = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), _INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), _MUTED),
    "grid.color": _LINE,
    "svg.fonttype": "none",
    "svg.hashsalt": "seq2seq-conformance",
    "text.parse_math": False,
    "font.size": 9.5,
    "font.family": ["sans-serif"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "path.simplify": True,
}


def gaps(at: np.ndarray, gap: np.ndarray, floor: np.ndarray, bound: float, first: int | None) -> str:
    """The largest gap of any sentence at each step, beside PyTorch's own and the bound. ``first``: first wrong step."""
    with matplotlib.rc_context(_STYLE):
        axes = _axes(1.6, entries=4)
        steps = np.arange(int(at[:, 1].max()) + 1)
        theirs, own = _worst(at, gap, len(steps)), _worst(at, floor, len(steps))
        least = _least(theirs, own)
        _line(axes, steps, own, least, color=_PLOT[1], linestyle=(0, (4, 1.5)), label="PyTorch's own (floor)")
        _line(axes, steps, theirs, least, color=_PLOT[0], linewidth=1.8, label="this backend")
        axes.axhline(bound, color=_INK, linewidth=1.1, linestyle=(0, (1, 1.2)), label=f"bound {bound:.3g}")
        _mark(axes, first)
        axes.set(xlabel="decode step", ylabel="largest gap to float64")
        return _svg(_logarithmic(axes))


def drift(at: np.ndarray, tensors: Mapping[str, tuple[np.ndarray, float]], first: int | None) -> str:
    """Gaps of each layer's own cache over decode steps, in bounds. ``tensors``: label to gaps and bound, K then V."""
    with matplotlib.rc_context(_STYLE):
        axes = _axes(1.6, entries=len(tensors) + 2)
        steps = np.arange(int(at[:, 1].max()) + 1)
        worst = {label: _worst(at, gap / bound, len(steps)) for label, (gap, bound) in tensors.items()}
        least = _least(*worst.values())
        for number, (label, values) in enumerate(worst.items()):
            dashed = (0, (4, 1.5)) if number % 2 else "solid"
            _line(axes, steps, values, least, color=_PLOT[number // 2 % len(_PLOT)], linestyle=dashed, label=label)
        axes.axhline(1, color=_INK, linewidth=1.1, linestyle=(0, (1, 1.2)), label="bound")
        _mark(axes, first)
        axes.set(xlabel="decode step", ylabel="largest gap, in bounds")
        return _svg(_logarithmic(axes))


def heat(at: np.ndarray, gap: np.ndarray, bound: float, names: Mapping[int, str]) -> str:
    """Sentence × step, coloured by how many bounds the gap is; equal neighbours are one shape. ``names``: of corpus rows.

    The sentences with the largest gaps, where there are more than MOST_ROWS.
    """
    level = np.where(np.isnan(gap), -1, np.searchsorted(LEVELS, gap / bound))
    rows = list(dict.fromkeys(at[:, 0].tolist()))
    if len(rows) > MOST_ROWS:
        largest = {row: np.fmax.reduce(gap[at[:, 0] == row]) for row in rows}
        kept = set(sorted(rows, key=lambda row: np.nan_to_num(-largest[row], nan=np.inf))[:MOST_ROWS])
        rows = [row for row in rows if row in kept]
    shades = sorted(set(level[level >= 0].tolist()))
    with matplotlib.rc_context({**_STYLE, "axes.grid": False}):
        axes = _axes(0.17 * len(rows), entries=len(shades), left=1.55)
        shapes: dict[int, list[list[tuple[float, float]]]] = {shade: [] for shade in shades}
        for number, row in enumerate(rows):
            mine, low, high = at[:, 0] == row, number - 0.42, number + 0.42
            for start, stop, shade in _runs(at[mine, 1], level[mine]):
                left, right = start - 0.5, stop - 0.5
                shapes[shade].append([(left, low), (left, high), (right, high), (right, low)])
        for shade, each in shapes.items():
            drawn = PolyCollection(each, facecolor=_HEAT[shade], linewidth=0, label=LEVEL_NAMES[shade])
            axes.add_collection(drawn, autolim=False)
        axes.set(xlabel="decode step", xlim=(-0.5, at[:, 1].max() + 0.5), ylim=(len(rows) - 0.5, -0.5))
        axes.set_yticks(range(len(rows)), [_short(names.get(row, f"row {row}")) for row in rows], fontsize=7.5)
        axes.tick_params(length=0)
        return _svg(axes)


def _runs(steps: np.ndarray, level: np.ndarray) -> Iterable[tuple[int, int, int]]:
    """(first step, step after the last, level) of equal neighbours; what was not compared is left out."""
    order = np.argsort(steps, kind="stable")
    steps, level = steps[order], level[order]
    cuts = np.flatnonzero((np.diff(level) != 0) | (np.diff(steps) != 1)) + 1
    for part in np.split(np.arange(len(steps)), cuts):
        if level[part[0]] >= 0:
            yield int(steps[part[0]]), int(steps[part[-1]]) + 1, int(level[part[0]])


def _axes(height: float, entries: int, left: float = 0.62) -> Axes:
    """Axes of that height in inches, with space for a legend of so many entries, two a line, and for the numbers.

    Stated, because measuring it would double the time that a figure takes.
    """
    whole = height + 0.15 + 0.18 * -(-entries // 2) + BOTTOM
    sides = (left / WIDTH, BOTTOM / whole, (WIDTH - left - 0.1) / WIDTH, height / whole)
    return Figure(figsize=(WIDTH, whole)).add_axes(sides)


def _logarithmic(axes: Axes) -> Axes:
    """Whole decades, each with its number in plain text."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(10.0 ** np.floor(np.log10(low)), 10.0 ** np.ceil(np.log10(high)))
    axes.yaxis.set_major_locator(LogLocator(numticks=7))
    axes.yaxis.set_major_formatter(lambda value, _: f"1e{round(np.log10(value))}")
    axes.yaxis.set_minor_locator(NullLocator())
    return axes


def _worst(at: np.ndarray, values: np.ndarray, steps: int) -> np.ndarray:
    """[steps] largest value of any sentence; NaN where no sentence was compared."""
    worst = np.full(steps, np.nan)
    np.fmax.at(worst, at[:, 1], values)
    return worst


def _least(*series: np.ndarray) -> float:
    """What zero is drawn as on a log axis: just under everything else."""
    every = np.concatenate(series)
    every = every[np.isfinite(every) & (every > 0)]
    return float(every.min()) / 3 if every.size else 1e-9


def _line(axes: Axes, steps: np.ndarray, values: np.ndarray, least: float, **style: Any) -> None:
    """A line; infinite gaps are marks at its top."""
    finite = np.where(np.isinf(values), np.nan, values)
    axes.plot(steps, np.maximum(finite, least), **style)
    endless = steps[np.isinf(values)]
    if endless.size:
        top = np.nanmax(finite, initial=least) * 3
        axes.plot(endless, np.full(endless.size, top), "^", color=style["color"], markersize=5, label="not finite")


def _mark(axes: Axes, first: int | None) -> None:
    if first is not None:
        axes.axvline(first, color=_MUTED, linewidth=1, label=f"first wrong: step {first}")


def _short(name: str) -> str:
    return name if len(name) <= 26 else name[:12] + "…" + name[-13:]


def _svg(axes: Axes) -> str:
    figure = axes.get_figure(root=True)
    assert figure is not None, "_axes makes them on one"
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="upper left", ncols=2, borderaxespad=0, handlelength=2.2, columnspacing=1.2)
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_page(stream.getvalue())


def _for_page(text: str) -> str:
    """The ``<svg>`` alone, with the page's colours and font, and only those ids that something refers to."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<defs>\s*</defs>|<!--.*?-->", "", text, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", text)
    text = re.sub(r"#0[123]0[123]0\d", lambda match: _VARIABLES.get(match[0], match[0]), text)
    text = re.sub(r" font-family: [^;]*;", "", text)
    # A hundredth of a point is seen by nobody. Numbers in words are left alone.
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d{2})\d+", r"\1", tag[0]), text)
    text = re.sub(r"\s*\n\s*", "\n", text)
    return re.sub(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', text, count=1)
