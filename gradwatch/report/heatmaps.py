"""Heatmaps of layers x steps: those of one run, and of one run of each policy side by side on one colour scale.

Legend: R drawn rows (layers), C drawn columns (steps).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gradwatch.analysis.final_values import seed_text
from gradwatch.analysis.groups import natural
from gradwatch.analysis.rules.facts import column_medians
from gradwatch.formatting import percent, quantity_text
from gradwatch.history import History
from gradwatch.report.downsample import Heatmap, heatmap
from gradwatch.report.model import RunSummary
from gradwatch.report.plotly_figures import (
    ABSENT,
    BAD,
    VIRIDIS,
    Chart,
    cells_text,
    color_range,
    figure,
    heatmap_figure,
    off_scale,
    pack,
    short,
    text,
)
from gradwatch.sanitize import printable

HEATMAPS = {"grad_norm": "Gradient norm", "weight_norm": "Weight norm", "update_ratio": "Update ratio"}
ASKED = {  # where they were asked for
    "sigma_max": "Largest singular value",
    "stable_rank": "Stable rank",
    "row_share": "The largest row's share of the norm",
}
SHARES = ("row_share",)
MIDDLE = {"grad_norm": "median_grad_norm"}  # what of a LayerSummary it is, where that is called otherwise
LABELS = 16
GAP_X, GAP_Y = 0.03, 52  # between two maps: a share of the width, pixels


def heatmap_charts(history: History, run: RunSummary) -> tuple[list[Chart], list[str]]:
    """Layers x steps of each recorded quantity, and a sentence for each that this run does not hold."""
    charts, missing = [], []
    for quantity, title in {**HEATMAPS, **{q: ASKED[q] for q in ASKED if q in history.per_layer}}.items():
        shown = history
        if quantity in ASKED:  # of some layers only
            shown = replace(history, by_layer=history.by_layer.with_values(quantity))
        share = quantity in SHARES
        data = heatmap(shown, quantity)
        if data is None:
            missing.append(f"{title} is not shown: this run did not record it.")
            continue
        drawn, height = heatmap_figure(data, quantity, history.step, share=share)
        few = len(shown.layers) < len(history.layers)
        notes = [
            f"{len(shown.layers)} of {len(history.layers)} layers, in model order." if few else "Layers in model order."
        ]
        if run.lanes:
            notes.append("Each layer over the steps of its own part or optimizer.")
        notes += cells_text(data, "highest", "recorded steps, so no spike is lost", "layers")
        if quantity in ASKED:
            middle = [*zip(column_medians(shown.layer(quantity)).tolist(), shown.layers, strict=True)]
        else:
            middle = [(getattr(layer, MIDDLE.get(quantity, quantity)), layer.name) for layer in run.layers]
        charts.append(
            Chart(
                _heatmap_title(middle, title, share),
                drawn,
                height,
                " ".join(notes) + ("" if share else off_scale(data)),
                title,
            )
        )
    return charts, missing


def _heatmap_title(middle: list[tuple[float, str]], title: str, share: bool) -> str:
    """What the map shows, and the layers whose value in the middle is the largest and the smallest."""
    known = [pair for pair in middle if pair[0] > 0]
    if not known:
        return f"{title} per layer"
    show = percent if share else quantity_text
    (low, smallest), (high, largest) = min(known), max(known)
    if len(known) == 1:
        return f"{title}: {show(high)} in {largest}"
    return f"{title}: largest in {largest} ({show(high)}), smallest in {smallest} ({show(low)})"


def heatmap_grid(members: dict[str, list[History]], found: Mapping[int, Heatmap | None]) -> Chart | None:
    """The gradient norm over layers and steps of one run of each policy; None where fewer than two recorded it.

    `found` are the maps of the runs, by `id()`.
    """
    chosen = {
        policy: min(runs, key=lambda history: natural(seed_text(history.run))) for policy, runs in members.items()
    }
    shown = {policy: data for policy, history in chosen.items() if (data := found[id(history)]) is not None}
    if len(shown) < 2:
        return None
    values = np.concatenate([data.value[data.value > 0].ravel() for data in shown.values()])
    low, high = color_range(np.log10(values))
    wide = 2 if len(shown) <= 4 else 3
    tall = -(-len(shown) // wide)
    one = int(np.clip(30 + 15 * max(len(data.rows) for data in shown.values()), 110, 300))
    drawn_height = tall * one + (tall - 1) * GAP_Y  # of which an axis' domain is a share
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"coloraxis": _scale(low, max(high, low + 0.1))}
    notes = []
    for i, (policy, data) in enumerate(shown.items()):
        traces += _traces(data, policy, i + 1)
        axes, note = _place(data, policy, i, wide, one / drawn_height, GAP_Y / drawn_height)
        layout |= axes
        notes.append(note)
    made = figure(traces, "", legend=False, hovermode="closest", plot_bgcolor=ABSENT, annotations=notes)
    margin = {"l": 130, "r": 14, "t": 26, "b": 42}
    made["layout"] |= {**layout, "margin": margin}
    height = drawn_height + margin["t"] + margin["b"]
    seeds = {seed_text(chosen[policy].run) for policy in shown}
    said = f"The runs with seed {seeds.pop()}" if len(seeds) == 1 and seeds != {""} else "One run of each policy"
    said += ", on one colour scale; red: inf or NaN. Each cell is the highest of the steps and layers it stands for."
    return Chart("Gradient norm of each layer before the clip, policy by policy", made, height, said, wide=True)


def _traces(data: Heatmap, policy: str, number: int) -> list[dict[str, Any]]:
    """The map, and its non-finite cells over it; axes are numbered from 1, and Plotly calls the first `x`."""
    end = "" if number == 1 else str(number)
    common = {"type": "heatmap", "x": pack(data.step), "y": [text(name) for name in data.rows], "xaxis": f"x{end}",
              "yaxis": f"y{end}", "hoverongaps": False, "legendgroup": printable(policy)}  # fmt: skip
    head = f"{text(short(policy, 80))}<br>%{{y}}<br>step %{{x}}: "
    said = f"{head}10^%{{z:.2f}}<extra></extra>"
    traces: list[dict[str, Any]] = [{**common, "z": pack(data.logs), "coloraxis": "coloraxis", "hovertemplate": said}]
    if data.nonfinite.any():
        cells = pack(np.where(data.nonfinite, 1.0, np.nan))
        traces.append({**common, "z": cells, "zmin": 0, "zmax": 1, "showscale": False,
                       "colorscale": [[0, BAD], [1, BAD]],
                       "hovertemplate": f"{head}non-finite<extra></extra>"})  # fmt: skip
    return traces


def _place(
    data: Heatmap, policy: str, i: int, wide: int, tall: float, gap: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The axes of the map at place `i`, and its heading; `tall` and `gap` are shares of the height."""
    end = "" if i == 0 else str(i + 1)
    row, column = divmod(i, wide)
    width = (1 - (wide - 1) * GAP_X) / wide
    left, top = column * (width + GAP_X), 1 - row * (tall + gap)
    shown = [text(name) for name in data.rows[:: -(-len(data.rows) // LABELS)]]
    labels = [text(short(name, 20)) for name in data.rows[:: -(-len(data.rows) // LABELS)]]
    y = {"type": "category", "autorange": "reversed", "domain": [max(0.0, top - tall), top], "showgrid": False,
         "anchor": f"x{end}", "tickvals": shown, "ticktext": labels, "tickfont": {"size": 10},
         "showticklabels": column == 0}  # fmt: skip
    x = {"domain": [left, left + width], "anchor": f"y{end}", "showgrid": False, "zeroline": False, "nticks": 5}
    note = {"text": text(short(policy, 44)), "xref": "paper", "yref": "paper", "x": left, "y": top, "xanchor": "left",
            "yanchor": "bottom", "showarrow": False, "font": {"size": 11.5}}  # fmt: skip
    return {f"xaxis{end}": x, f"yaxis{end}": y}, note


def _scale(low: float, high: float) -> dict[str, Any]:
    title = {"text": "log10 grad_norm", "side": "right"}
    return {"cmin": low, "cmax": high, "colorscale": VIRIDIS,
            "colorbar": {"thickness": 12, "outlinewidth": 0, "title": title}}  # fmt: skip
