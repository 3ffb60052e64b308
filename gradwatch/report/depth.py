"""The depth profile: a quantity along the layers in model order, early, in the middle of the run, and late."""

from __future__ import annotations

import numpy as np

from gradwatch.history import Floats, History
from gradwatch.report.build import quantity_text
from gradwatch.report.figures import AFTER, BAD, BEFORE, Chart, decades, figure, pack, short, text

QUANTITIES = {"grad_norm": "gradient norm", "update_ratio": "update ratio"}
MOST_LABELS = 16


def depth_charts(history: History) -> list[Chart]:
    """One chart for each quantity that was recorded in two or more layers."""
    return [chart for quantity, label in QUANTITIES.items() if (chart := depth_chart(history, quantity, label))]


def depth_chart(history: History, quantity: str, label: str) -> Chart | None:
    """The medians of `quantity` along the layers; None where it was recorded in fewer than two."""
    values = history.layer(quantity)
    values = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    shown = _weights(history)
    rows = np.flatnonzero(np.isfinite(values[:, shown]).any(axis=1))
    if np.isfinite(values[:, shown]).any(axis=0).sum() < 2:
        return None
    names = [history.layers[i] for i in shown]
    tenth = max(1, len(rows) // 10)
    parts = (("early", rows[:tenth], BEFORE), ("whole run", rows, AFTER), ("late", rows[-tenth:], BAD))
    traces, every = [], np.zeros(0)
    for name, at, color in parts:
        median = column_medians(values[np.ix_(at, shown)])
        every = np.append(every, median)
        traces.append(
            {"type": "scatter", "mode": "lines+markers", "x": list(range(len(shown))), "y": pack(median), "name": name,
             "line": {"color": color, "width": 1.6}, "marker": {"size": 5, "color": color}, "connectgaps": False,
             "customdata": [text(layer) for layer in names],
             "hovertemplate": "%{customdata}: %{y:.3g}<extra>" + name + "</extra>"}
        )  # fmt: skip
    drawn = figure(traces, label, max(decades(every), 0.01), hovermode="closest")
    ticks = list(range(0, len(names), -(-len(names) // MOST_LABELS)))
    labels = [text(short(names[i], 22)) for i in ticks]
    drawn["layout"]["xaxis"] |= {"title": {"text": ""}, "tickvals": ticks, "ticktext": labels, "tickangle": -35,
                                 "tickfont": {"size": 10}, "automargin": True}  # fmt: skip
    note = f"Medians over the first tenth, the whole run and the last tenth of the steps that recorded the {label}."
    if len(shown) < len(history.layers):
        note += " Tensors of one dimension (biases, gains) are left out."
    return Chart(_title(label, column_medians(values[:, shown]), names), drawn, 330, note)


def drawn_layers(history: History) -> list[str]:
    """The names of the layers in a depth profile, in the order of its places."""
    return [history.layers[i] for i in _weights(history)]


def _weights(history: History) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The layers to draw: tensors of two or more dimensions; all, where there are fewer than two of these."""
    shapes = {layer.name: layer.shape for layer in history.run.layers}
    weights = np.flatnonzero([len(shapes.get(name, ())) > 1 for name in history.layers])
    return weights if len(weights) > 1 else np.arange(len(history.layers))


def _title(label: str, median: Floats, names: list[str]) -> str:
    first, last = float(median[0]), float(median[-1])
    if not (first > 0 and last > 0) or names[0] == names[-1]:
        return f"Depth profile of the {label}"
    times = max(first, last) / min(first, last)
    larger, smaller = (names[-1], names[0]) if last > first else (names[0], names[-1])
    return f"Depth profile: the {label} of {larger} is {quantity_text(times)} times that of {smaller}"


def column_medians(values: Floats) -> Floats:
    """The median of the finite values of each column `[L]`; NaN for a column without any."""
    seen = np.isfinite(values).any(axis=0)
    out = np.full(values.shape[1], np.nan)
    out[seen] = np.nanmedian(values[:, seen], axis=0)
    return out
