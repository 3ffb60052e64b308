"""One PNG that shows a run at a glance: the layers' gradient norms, and the total before and after the clip.

It stands in the run's description in MLflow, where the page cannot: Markdown there shows images and runs no script.
MLflow brings matplotlib with it, so only this file imports it, as it draws.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwatch.analysis.clips import as_one
from gradwatch.analysis.final_values import nonfinite_rows
from gradwatch.analysis.rules.facts import limits_of
from gradwatch.errors import RunError
from gradwatch.history import History
from gradwatch.report.downsample import Heatmap, heatmap, thin
from gradwatch.report.model import changed
from gradwatch.report.plotly_figures import ABSENT, AFTER, BAD, BEFORE, PALETTE, ZERO, color_range, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LABELS = 24


def write_overview(history: History, path: Path) -> None:
    """Draw `history` to a PNG of 1100 x 620 pixels.

    Raises:
        RunError: the file cannot be written, or matplotlib is not installed.

    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        missing = "the overview is drawn by matplotlib, which is not installed: pip install 'gradwatch[mlflow]'"
        raise RunError(missing) from None

    figure = Figure(figsize=(10, 5.64), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)  # an own canvas: no pyplot, no global state, safe on any thread
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 2))
    figure.subplots_adjust(left=0.23, right=0.93, top=0.93, bottom=0.09, hspace=0.36)
    data = heatmap(history, "grad_norm", max_rows=150, max_columns=400)
    if data:
        _draw_heatmap(upper, data)
    _title(upper, f"log10 gradient norm: {len(history.layers):,} layers x {len(history):,} steps")
    _draw_total(lower, history)
    _title(lower, changed(history))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a layer's name may use letters the font lacks
        try:
            figure.savefig(path, format="png")
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}; give a path you can write to") from error


def _draw_heatmap(axes: Axes, data: Heatmap) -> None:
    from matplotlib.colors import ListedColormap

    extent = (data.step[0] - 0.5, data.step[-1] + data.steps_per_column - 0.5, len(data.rows) - 0.5, -0.5)
    axes.set_facecolor(ABSENT)
    low, high = color_range(data.logs[np.isfinite(data.logs)])
    image = axes.imshow(data.logs, extent=extent, aspect="auto", interpolation="nearest", vmin=low, vmax=high)
    marks = np.where(data.nonfinite, 1.0, np.where(data.zero, 0.0, np.nan))
    axes.imshow(marks, extent=extent, aspect="auto", interpolation="nearest", vmin=0, vmax=1,
                cmap=ListedColormap([ZERO, BAD]))  # fmt: skip
    axes.figure.colorbar(image, cax=axes.inset_axes((1.012, 0, 0.012, 1))).ax.tick_params(labelsize=7)
    ticks = range(0, len(data.rows), -(-len(data.rows) // MAX_LABELS))
    labels = [short(data.rows[i], 34) for i in ticks]
    axes.set_yticks(ticks, labels, fontsize=7.5, parse_math=False)
    axes.tick_params(axis="x", labelsize=8)


def _draw_total(axes: Axes, history: History) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    lanes, limits = history.lane_rows(), limits_of(history)
    history = as_one(history)
    for name, color, label in (("grad_norm", BEFORE, "before the clip"), ("clipped_norm", AFTER, "after the clip")):
        for i, (lane, at) in enumerate(lanes.items()):
            values, step = history.total(name)[at], history.step[at]
            rows = thin(np.where(values > 0, values, np.nan), 1500)
            style: dict[str, Any] = {"color": color, "label": label, "marker": "o" if len(rows) < 30 else ""}
            if len(lanes) > 1:  # a colour for each, pale before the clip
                style |= {"color": PALETTE[i % len(PALETTE)], "label": f"{lane}: {label}"}
            pale = len(lanes) > 1 and name == "grad_norm"
            axes.plot(step[rows], values[rows], linewidth=0.9, markersize=3, alpha=0.4 if pale else 1, **style)
    if limits is not None:
        ends = dict.fromkeys(f"{limit:g}" for limit in limits[[0, -1]])
        axes.plot(history.step, limits, color="#444", linewidth=0.8, linestyle=(0, (4, 3)),
                  label=f"threshold {' to '.join(ends)}")  # fmt: skip
    bad = history.step[nonfinite_rows(history)]
    if len(bad):
        axes.plot(bad, np.full(len(bad), 0.96), "x", color=BAD, markersize=4, label="non-finite",
                  transform=axes.get_xaxis_transform())  # fmt: skip
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("step", fontsize=8, loc="left")
    axes.set_ylabel("total norm", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.set_xlim(history.step[0] - 0.5, history.step[-1] + 0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7.5, frameon=False, ncols=4, loc="upper right", bbox_to_anchor=(1.01, -0.11), borderpad=0)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=10, loc="left", parse_math=False)
