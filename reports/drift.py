"""Drift: checks that pass, and not as they did on earlier nights.

The figure is value over bound, the share of its bound that a check uses. Its spread from night to night is measured: the
median absolute step between consecutive nights over 0.954, the standard deviation of a steady process (a chart of
individuals with median moving range, which a slow trend hardly widens), the cell's own or the typical one of that check on
its runtime, whichever is wider. A check has drifted when it is outside all that its earlier nights showed, and further from
their median than noise would take any of the checks judged, with 95 % confidence.
"""

from statistics import NormalDist

import numpy as np
import pandas as pd

from reports.pieces import KEY
from reports.series import History

LEAST = 8
"""Nights without which a spread says nothing."""
CONFIDENCE = 0.95
RESOLUTION = 1e-6
"""Relative: what a share kept as float32 cannot tell apart."""


def judged(rows: pd.DataFrame, past: History) -> tuple[pd.DataFrame, list[str]]:
    """Those of the rows that have drifted, the largest growth first, with the column ``shift``, which says it in words; and
    lines about what was judged by what. ``rows``: checks that pass, with the columns KEY, ``value`` and ``bound``."""
    keys = past.keys.astype(str).assign(series=range(len(past.keys)))
    rows = rows[(rows["value"] > 0) & (rows["bound"] > 0)].merge(keys, on=list(KEY))
    rows["used"] = rows["value"] / rows["bound"]
    shares = past.used[rows["series"]].astype(float)
    nights = (shares > 0).sum(axis=1)
    young = int((nights < LEAST).sum())
    rows, shares, nights = (values[nights >= LEAST] for values in (rows, shares, nights))
    rows = rows.reset_index(drop=True)
    facts = [f"drift needs {LEAST} earlier nights: {young} of {young + len(rows)} figures have fewer"] if young else []
    if not len(rows):
        return rows, facts
    logs = np.log2(np.where(shares > 0, shares, np.nan))
    middle, low, high = (f(logs, axis=1) for f in (np.nanmedian, np.nanmin, np.nanmax))
    rows["spread"] = _spread(logs)
    rows["runtime"] = rows["cell"].str.split("/").str[:2].str.join("/")
    spread = np.maximum(rows["spread"], rows.groupby(["box", "runtime", "check"])["spread"].transform("median"))
    times = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 / len(rows))
    now = np.log2(rows["used"].to_numpy())
    # The median of n nights has an error of its own: pi / 2n of one night's variance.
    limit = np.maximum(times * spread * np.sqrt(1 + np.pi / 2 / nights), RESOLUTION)
    facts.append(
        f"night-to-night spread of value/bound: median {_percent(float(spread.median()))}, largest "
        f"{_percent(float(spread.max()))}; drift is {times:.1f} times the figure's own, over {len(rows)} figures"
    )
    moved = now - middle
    outside = (now > high + RESOLUTION) | (now < low - RESOLUTION)
    rows["shift"] = [
        f"{'↑' if step > 0 else '↓'} {2**was:.3g} → {used:.3g} of the bound (spread {_percent(noise)})"
        for step, was, used, noise in zip(moved, middle, rows["used"], spread, strict=True)
    ]
    rows["moved"] = moved
    return rows[outside & (np.abs(moved) > limit)].sort_values("moved", ascending=False, kind="stable"), facts


def _spread(logs: np.ndarray) -> np.ndarray:
    """[series] standard deviation from night to night. ``logs``: [series, nights], NaN on a night without a figure."""
    filled = pd.DataFrame(logs).T.ffill().T.to_numpy()  # the step over a silent night is one step
    steps = np.where(np.isnan(logs[:, 1:]) | np.isnan(filled[:, :-1]), np.nan, np.abs(np.diff(filled, axis=1)))
    return np.nanmedian(steps, axis=1) / 0.954


def _percent(log: float) -> str:
    return f"{(2**log - 1) * 100:.2g} %"
