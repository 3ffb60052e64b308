"""The pieces of a Plotly figure as plain dicts: axes, lines, marks and heatmaps, in the report's colours.

Arrays are packed as base64 typed arrays, which Plotly reads as they are: small, and no float is turned into text.
"""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.formatting import counted
from gradwatch.history import Floats
from gradwatch.report.downsample import Heatmap, thin
from gradwatch.sanitize import printable

Figure = dict[str, Any]

BEFORE, AFTER, BAD, ZERO, ABSENT = "#9db2c8", "#1f5fa8", "#d62246", "#8a9099", "#eef0f3"
INK, GRID = "#3c434d", "#e7eaee"
NO_POLICY_COLOR = "#4b5260"
PALETTE = ("#2f6fd0", "#e08a1e", "#2f9e6e", "#b64fc8", "#d9534f", "#18a0b5", "#8c6d46", "#7a72e0", "#e377a8", "#8aa52b")
POINTS = 1200
LETTER = 9  # pixels that one takes in the words beside a colour bar, with its margins
_COLORS = ("#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725")
VIRIDIS = [[i / (len(_COLORS) - 1), color] for i, color in enumerate(_COLORS)]  # as a colour scale


@dataclass(frozen=True)
class Chart:
    """A figure with a title that says what is seen; `note` says what the eye cannot (down-sampling, missing parts)."""

    title: str
    figure: Figure
    height: int = 280
    note: str = ""
    tab: str = ""
    wide: bool = False  # it wants the whole width of the page


def text(name: str) -> str:
    """A name as Plotly text, which understands some tags and mathematics: escaped, so that it shows as it is."""
    return html.escape(printable(name), quote=False).replace("$", "&#36;")


def short(name: str, length: int = 30) -> str:
    """A long name with its middle left out; of a layer's, what stands ahead of the block's number."""
    words = name.split(".")
    block = next((i for i, word in enumerate(words) if word.isdigit()), 0)
    for left in range(block + 1):
        name = ".".join(words) if not left else f"…{'.'.join(words[left:])}"
        if len(name) <= length:
            return name
    return f"{name[: length // 2 - 2]}…{name[-(length // 2 + 1) :]}"


def faded(color: str) -> str:
    """A colour (`#rrggbb` or `hsl(...)`) that lets what lies below it through."""
    if color.startswith("#"):
        return f"rgba({', '.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))}, 0.14)"
    return color.replace("hsl(", "hsla(").replace(")", ", 0.14)")


def pack(values: NDArray[Any]) -> dict[str, str]:
    """An array as Plotly reads it: float32 or int32, base64; its shape too when it has two axes."""
    kind = "i4" if values.dtype.kind in "iu" and (not values.size or abs(values).max() < 2**31) else "f4"
    packed = {"dtype": kind, "bdata": base64.b64encode(np.ascontiguousarray(values, f"<{kind}").tobytes()).decode()}
    return packed | ({"shape": f"{values.shape[0]},{values.shape[1]}"} if values.ndim == 2 else {})


def unpacked(data: Any) -> Any:
    """A figure, or a part of one, with arrays in place of what `pack` made of them."""
    if isinstance(data, dict) and "bdata" in data:
        values = np.frombuffer(base64.b64decode(data["bdata"]), f"<{data['dtype']}")
        return values.reshape([int(n) for n in data["shape"].split(",")]) if "shape" in data else values
    if isinstance(data, dict):
        return {key: unpacked(value) for key, value in data.items()}
    return [unpacked(value) for value in data] if isinstance(data, list) else data


def line(x: NDArray[Any], y: NDArray[Any], name: str, color: str, limit: int = POINTS, **style: Any) -> dict[str, Any]:
    """A line through the finite values; thinned to their lowest and highest where there are more than `limit`."""
    rows = thin(y, limit)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(rows) <= 30 else "lines",
        "x": pack(x[rows]),
        "y": pack(y[rows]),
        "name": text(short(name, 80)),
        "line": {"color": color, "width": style.pop("width", 1.4), **style.pop("line", {})},
        "marker": {"size": 5, "color": color},
        **style,
    }


def marks(x: NDArray[Any], name: str, color: str = BAD, height: float = 0.97, **style: Any) -> dict[str, Any]:
    """Crosses at a `height` of a chart, by default along its upper edge, for what has no value that can be drawn."""
    rows = np.unique(np.linspace(0, len(x) - 1, min(len(x), 100)).astype(int))
    return {
        "type": "scatter",
        "mode": "markers",
        "x": pack(x[rows]),
        "y": pack(np.full(len(rows), height)),
        "yaxis": "y2",
        "name": text(short(name, 80)),
        "marker": {"symbol": "x", "size": 7, "color": color},
        "hovertemplate": "step %{x}: non-finite<extra></extra>",
        **style,
    }


def figure(traces: list[dict[str, Any]], y: str, decades: float = 0, legend: bool = True, **layout: Any) -> Figure:
    """Traces over steps; `y` is the vertical axis' title with its unit, logarithmic over `decades` unless that is 0."""
    axis = {"gridcolor": GRID, "zeroline": False, "linecolor": "#c9ced6", "ticks": "outside", "ticklen": 4,
            "tickcolor": "#c9ced6", "automargin": True}  # fmt: skip
    upper = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    return {
        "data": traces,
        "layout": {
            "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif",
                     "size": 12, "color": INK},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 56, "r": 14, "t": 30 if legend else 10, "b": 42},
            "xaxis": {**axis, "title": {"text": "step", "standoff": 6}, "showgrid": False},
            "yaxis": {**axis, "title": {"text": text(short(y, 60)), "standoff": 8}, **_scale(decades)},
            **({"yaxis2": upper} if any(trace.get("yaxis") == "y2" for trace in traces) else {}),
            "showlegend": legend,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 11.5}},
            "hovermode": "x unified",
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#9aa4b2", "activecolor": "#5a6472"},
            "hoverlabel": {"bgcolor": "white", "bordercolor": "#c9ced6", "font": {"size": 12}},
            **layout,
        },
    }  # fmt: skip


def _scale(decades: float) -> dict[str, Any]:
    if not decades:
        return {}
    return {"type": "log", "tickformat": "~g", "dtick": "D2" if decades < 2.5 else max(1, decades // 6)}


def decades(values: NDArray[Any]) -> float:
    """Powers of ten that the finite positive values span, at least a little; 0 when there are none."""
    logs = np.log10(values[np.isfinite(values) & (values > 0)])
    return float(max(np.ptp(logs), 0.01)) if len(logs) else 0.0


def horizontal(figure: Figure, y: float, label: str, log: bool) -> Figure:
    """The figure with a dashed line across it at `y`."""
    rule = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y,
            "line": {"color": "#333", "width": 1, "dash": "dash"}}  # fmt: skip
    note = {"xref": "paper", "x": 1, "xanchor": "right", "y": float(np.log10(y)) if log else y, "yanchor": "bottom",
            "text": text(label), "showarrow": False, "font": {"size": 11, "color": "#333"},
            "bgcolor": "rgba(255,255,255,.8)"}  # fmt: skip
    return annotate(figure, [rule], [note])


def with_limits(figure: Figure, step: NDArray[Any], limits: NDArray[Any]) -> Figure:
    """The figure on a log scale with the threshold of each step `[T]`: a line across it, or one that moves."""
    first, last = float(limits[0]), float(limits[-1])
    if first == last:
        return horizontal(figure, last, f"threshold {last:g}", log=True)
    name = f"threshold {first:g} to {last:g}"
    moving = line(step, limits, name, "#333", width=1, line={"dash": "dash"}, mode="lines")
    return {**figure, "data": [*figure["data"], moving]}


def annotate(figure: Figure, shapes: list[dict[str, Any]], notes: list[dict[str, Any]]) -> Figure:
    """The figure with more shapes and annotations, and room above for a line of text."""
    layout = figure["layout"]
    margin = {**layout["margin"], "t": max(layout["margin"]["t"], 24)}
    return {**figure, "layout": {**layout, "margin": margin, "shapes": [*layout.get("shapes", ()), *shapes],
                                 "annotations": [*layout.get("annotations", ()), *notes]}}  # fmt: skip


def near(logs: Floats) -> Floats:
    """Those that are not far out: more than three times the middle half's width beyond it (Tukey's outer fences) and
    more than a decade.
    """
    if not len(logs):
        return logs
    first, third = np.quantile(logs, (0.25, 0.75))
    reach = max(3 * (third - first), 1.0)
    kept: Floats = logs[(logs >= first - reach) & (logs <= third + reach)]
    return kept


def color_range(logs: Floats) -> tuple[float, float]:
    """Where a map's colours begin and end, of its finite values: without 0.5 % at each end, and without what is not
    `near`. A few rows that are next to 0, as the gradients of keys' biases are, leave the colours to all others.
    """
    if not len(logs):
        return 0.0, 1.0
    low, high = np.quantile(near(logs), (0.005, 0.995))
    return float(low), float(high)


def off_scale(data: Heatmap) -> str:
    """A sentence on the rows that lie beyond a map's colours by more than a decade, all of them; empty without such."""
    logs = data.logs
    low, high = color_range(logs[np.isfinite(logs)])
    below, above = np.fmax.reduce(logs, axis=1) < low - 1, np.fmin.reduce(logs, axis=1) > high + 1
    counts = {"below": int(below.sum()), "above": int(above.sum())}
    found = [f"{counted(n, 'row')} {where}" for where, n in counts.items() if n]
    return f" The colours' scale leaves out {' and '.join(found)} it." if found else ""


def cells_text(data: Heatmap, kept: str, steps: str, layers: str) -> list[str]:
    """What of several `steps` and `layers` a cell of a map shows, a sentence each; none where it stands for one."""
    ways = ("column", data.steps_per_column, steps), ("row", data.layers_per_row, f"neighbouring {layers}")
    return [f"Each {way} is the {kept} of {n} {of}." for way, n, of in ways if n > 1]


def heatmap_figure(
    data: Heatmap, quantity: str, step: NDArray[Any] | None = None, share: bool = False, count: bool = False
) -> tuple[Figure, int]:
    """The heatmap of log10 of a quantity, or of a `share` or a `count` as it is, over all of `step` where it is given,
    and its height in pixels; layers run from top to bottom in model order.
    """
    shown = data.value if share or count else data.logs
    finite = shown[np.isfinite(shown)]
    low, high = (0.0, 1.0) if share else (0.0, float(finite.max(initial=1))) if count else color_range(finite)
    unit = quantity if share or count else f"log10 {quantity}"
    said = f"{quantity} %{{z:.1%}}" if share else f"{quantity} %{{z}}" if count else f"{quantity} 10^%{{z:.2f}}"
    names = [text(name) for name in data.rows]
    height = int(np.clip(100 + 26 * len(names), 200, 980))
    common = {"type": "heatmap", "x": pack(data.step), "y": names, "hoverongaps": False}
    beside = "<br>".join(wrap(unit, height // LETTER))
    traces = [
        {**common, "z": pack(shown), "zmin": low, "zmax": max(high, low + 0.1),
         "colorscale": VIRIDIS,
         "colorbar": {"thickness": 12, "outlinewidth": 0, "title": {"text": beside, "side": "right"}},
         "hovertemplate": f"%{{y}}<br>step %{{x}}: {said}<extra></extra>"},
    ]  # fmt: skip
    for cells, color, words in ((data.zero & (not share), ZERO, "exactly zero"), (data.nonfinite, BAD, "non-finite")):
        if cells.any():
            traces.append(
                {**common, "z": pack(np.where(cells, 1.0, np.nan)), "zmin": 0, "zmax": 1, "showscale": False,
                 "colorscale": [[0, color], [1, color]],
                 "hovertemplate": f"%{{y}}<br>step %{{x}}: {words}<extra></extra>"}
            )  # fmt: skip
    if data.nonfinite.any():
        traces.append(_crosses(data, names))
    ticks = names[:: -(-len(names) // 50)]
    labels = [text(short(name)) for name in data.rows[:: -(-len(names) // 50)]]
    drawn = figure(traces, "", legend=False, hovermode="closest", plot_bgcolor=ABSENT)
    if step is not None:
        drawn["layout"]["xaxis"]["range"] = [float(step[0]) - 0.5, float(step[-1]) + 0.5]
    drawn["layout"]["yaxis"] = {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False,
                                "tickvals": ticks, "ticktext": labels, "tickfont": {"size": 11}}  # fmt: skip
    return drawn, height


def _crosses(data: Heatmap, names: list[str]) -> dict[str, Any]:
    """A cross on the first non-finite cell of each layer: one cell of a long run is too narrow to be seen."""
    rows = np.flatnonzero(data.nonfinite.any(axis=1))
    return {
        "type": "scatter",
        "mode": "markers",
        "x": pack(data.step[data.nonfinite[rows].argmax(axis=1)]),
        "y": [names[row] for row in rows],
        "marker": {"symbol": "x", "size": 9, "color": BAD, "line": {"color": "white", "width": 1.5}},
        "hovertemplate": "%{y}<br>step %{x}: first non-finite<extra></extra>",
    }
