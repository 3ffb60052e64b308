"""How gradients are spread over powers of two: layers x exponents, and what float16 would lose over the steps.

Legend: R sampled steps, L layers, B bins.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.facts import column_medians
from gradwatch.formatting import percent
from gradwatch.history import History
from gradwatch.report.activations import as_layers
from gradwatch.report.downsample import Heatmap, heatmap
from gradwatch.report.plotly_figures import BAD, Chart, annotate, heatmap_figure
from gradwatch.table import Table, nanmean

BIN = "2^"  # how the columns of bins begin; the lower exponent follows
FORMATS = {-126: "bf16", -14: "fp16, fp8 E5M2", -6: "fp8 E4M3"}  # by the exponent of their smallest normal number


def histogram_charts(history: History) -> list[Chart]:
    """The spread of each layer's |g| late in the run, and what float16 would lose of it; none without histograms."""
    table = history.histograms
    exponents = [int(name.removeprefix(BIN)) for name in table.values if name.startswith(BIN)]
    if not len(table) or not exponents:
        return []
    return [_spread(table, exponents), *_lost(history)]


def _spread(table: Table, exponents: list[int]) -> Chart:
    late = slice(-max(1, len(table) // 10), None)
    shares = np.stack([nanmean(table.values[f"{BIN}{e}"][late]) for e in exponents], axis=1)  # [L, B]
    none = np.zeros(shares.shape, bool)
    data = Heatmap(table.layers, np.array(exponents), shares, none, none, 1, 1)
    drawn, height = heatmap_figure(data, "share of the elements")
    drawn["layout"]["xaxis"]["title"]["text"] = "log2 |g|, of bins of two powers of two"
    for trace in drawn["data"]:
        trace["hovertemplate"] = "%{y}<br>2^%{x} and above: 10^%{z:.2f} of the elements<extra></extra>"
    edges = {e - 1: name for e, name in FORMATS.items() if e in exponents}  # a bin is drawn around its number
    rules = [{"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1,
              "line": {"color": BAD, "width": 1.5, "dash": "dash"}} for x in edges]  # fmt: skip
    notes = [{"x": x, "xanchor": "right", "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False,
              "text": f"← {name}", "font": {"size": 11}} for x, name in edges.items()]  # fmt: skip
    lost = column_medians(table.values["below_fp16"][late])
    said = ""
    if np.isfinite(lost).any():
        worst = int(np.nanargmax(lost))
        said = f", below float16's normal numbers at most {percent(float(lost[worst]))} ({table.layers[worst]})"
    note = (
        "The last tenth of the sampled steps, before any clip: of the elements that are not zero, of at most 4,096 of "
        "a layer. What lies left of a dashed line is below the normal numbers of the format that it names: held with "
        "fewer digits, or lost. A loss scale of 2^k moves all by k to the right."
    )
    return Chart(f"Gradients: log2 |g|{said}", annotate(drawn, rules, notes), height, note, "log2 |g|")


def _lost(history: History) -> list[Chart]:
    """Layers x steps of the share that float16 would hold as subnormal numbers, or as zero; none where that is none."""
    shown = as_layers(history, "below_fp16", "histograms")
    data = heatmap(shown, "below_fp16")
    if data is None or not (data.value > 0).any():
        return []
    drawn, height = heatmap_figure(data, "below fp16", share=True)
    note = "Of the elements that are not zero: 2^-14 is the smallest normal number of float16 and of float8 E5M2."
    return [Chart("Gradients: the share below the normal numbers of float16", drawn, height, note, "below fp16")]
