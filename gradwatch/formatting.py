"""Numbers as gradwatch writes them, each kind in one way, in reports, findings and MLflow's description."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def percent(share: float) -> str:
    """A share as text; never 0 % or 100 % where it was not, and a dash where it is unknown."""
    if math.isnan(share):
        return "–"
    if 0 < share < 0.0005:
        return "<0.1 %"
    if 0.9995 <= share < 1:
        return ">99.9 %"
    return f"{100 * share:.0f} %" if share in (0, 1) else f"{100 * share:.1f} %"


def listed(names: Sequence[str], most: int = 5) -> str:
    """`a, b, c`; of more than `most` how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def counted(count: int, what: str) -> str:
    """`1 step`, `2,000 steps`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def quantity_text(value: float) -> str:
    """What was measured, with three significant digits; a dash where it is unknown."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def plus_minus(mean: float, spread: float) -> str:
    """`mean ± spread` with as many decimals as the spread deserves; no ± where there is none."""
    if math.isnan(spread):
        return quantity_text(mean)
    if spread == 0:
        return f"{quantity_text(mean)} ± 0"
    if not 1e-4 <= abs(mean) < 1e5 or spread > 1e5:
        return f"{mean:.2e} ± {spread:.1e}"
    decimals = min(4, max(0, 1 - math.floor(math.log10(spread))))
    decimals = max(decimals, 2 - math.floor(math.log10(abs(mean))) if abs(mean) < 10 else 1)
    return f"{mean:.{min(decimals, 5)}f} ± {spread:.{min(decimals, 5)}f}"


def rounded(value: float, digits: int = 3) -> float:
    """`value` with that many significant digits: what `setting_text` writes, as a number."""
    return float(f"{value:.{digits}g}")


def setting_text(value: float) -> str:
    """What is advised, as code that is short and reads back as `rounded(value)`: a threshold, a learning rate."""
    value = rounded(value)
    return repr(value) if abs(value) < 1e6 else f"{value:g}"


_CALLS = {"user_max_norm": "clip_grad_norm_(max_norm={})", "user_clip_value": "clip_grad_value_(clip_value={})"}


def loop_clips(per_step: Mapping[str, Any], last: bool = False) -> str:
    """The loop's own clips in `per_step`, as code: `clip_grad_norm_(max_norm=1.0)`; empty where there is none. With
    `last` as they were in the end, where a bound changed.
    """
    calls = []
    for column, call in _CALLS.items():
        values = np.asarray(per_step.get(column, ()), np.float64).ravel()
        values = values[np.isfinite(values)]  # a max_norm of inf only measures
        if len(values):
            values = values[-1:] if last else values
            low, high = float(values.min()), float(values.max())
            calls.append(call.format(low if low == high else f"{low} to {high}"))
    return ", ".join(calls)
