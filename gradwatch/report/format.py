"""Numbers as they are written in every report and table."""

from __future__ import annotations

import numpy as np


def percent(share: float) -> str:
    """A share as text; never 0 % or 100 % where it was not, and a dash where it is unknown."""
    if np.isnan(share):
        return "–"
    if 0 < share < 0.0005:
        return "<0.1 %"
    if 0.9995 <= share < 1:
        return ">99.9 %"
    return f"{100 * share:.0f} %" if share in (0, 1) else f"{100 * share:.1f} %"


def quantity_text(value: float) -> str:
    """A number with three significant digits; a dash where it is unknown."""
    if np.isnan(value):
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
