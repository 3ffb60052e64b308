"""The chart beside a finding: by its rule a curve or a heatmap, with the steps that are meant marked.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gradwatch.analysis.clips import as_one
from gradwatch.analysis.rules import Finding
from gradwatch.analysis.rules.facts import limits_of, rates
from gradwatch.analysis.rules.losses import training_losses
from gradwatch.analysis.rules.sampled_losses import sampled
from gradwatch.formatting import percent, quantity_text
from gradwatch.history import Floats, History
from gradwatch.report.activations import as_layers
from gradwatch.report.downsample import heatmap
from gradwatch.report.plotly_figures import (
    AFTER,
    BAD,
    BEFORE,
    PALETTE,
    Chart,
    Figure,
    annotate,
    decades,
    figure,
    heatmap_figure,
    line,
    marks,
    with_limits,
)
from gradwatch.report.run_charts import depth_chart, drawn_layers

HEIGHT = 270
MOST_LAYERS = 8  # lines in one chart
MOST_ROWS = 20  # rows of a heatmap
MARK = "rgba(214,34,70,.10)"
Draw = Callable[[History, Finding], "Chart | None"]


def finding_chart(history: History, finding: Finding) -> Chart | None:
    """The chart for `finding`, or the total norm where the one for its rule was not recorded; None without norms."""
    lane = history.lanes().get(finding.optimizer, history)
    return CHARTS.get(finding.rule, loss_curve)(lane, finding) or norm_curve(lane, finding)


def norm_curve(history: History, finding: Finding) -> Chart | None:
    """The total gradient norm over the steps before any clip, with the threshold in force."""
    norms = as_one(history).total("grad_norm")
    drawn = _curve(history, finding, norms, "total gradient norm (L2)", log=True)
    limits = limits_of(history)
    if drawn and limits is not None:
        drawn = Chart(drawn.title, with_limits(drawn.figure, history.step, limits), HEIGHT)
    return drawn


def loss_curve(history: History, finding: Finding) -> Chart | None:
    """The training loss: the one that the evidence names, else the first."""
    name = str(finding.evidence.get("metric", ""))
    names = [name] if name in history.logged else training_losses(history)
    if not names:
        return None
    values = history.total(names[0])
    log = bool((values[np.isfinite(values)] > 0).all()) and decades(values) > 1.7
    return _curve(history, finding, values, names[0], log)


def beside_training(history: History, finding: Finding) -> Chart | None:
    """What the evidence names, measured on other data now and then, and the first training loss beside it."""
    names = [str(finding.evidence.get("metric", "")), *training_losses(history)[:1]]
    if names[0] not in history.logged:
        return loss_curve(history, finding)
    traces, shown = [], []
    for name, color in zip(names, (AFTER, BEFORE), strict=False):
        values = history.total(name)
        there = np.isfinite(values)
        traces.append(line(history.step[there], values[there], name, color))
        shown.append(values[there])
    every = np.concatenate(shown)
    drawn = figure(traces, "loss", max(decades(every), 0.01) if (every > 0).all() else 0)
    title = " beside ".join(names)
    return Chart(title[0].upper() + title[1:], _marked(drawn, history, finding), HEIGHT)


def coef_curve(history: History, finding: Finding) -> Chart | None:
    """The clip coefficient, of all that clipped."""
    return _curve(history, finding, as_one(history).total("clip_coef"), "clip coefficient (1 = untouched)")


def scale_curve(history: History, finding: Finding) -> Chart | None:
    """The loss scale, where it was recorded."""
    return _curve(history, finding, history.total("loss_scale"), "loss scale", log=True)


def rate_curve(history: History, finding: Finding) -> Chart | None:
    """The learning rate, of several groups the highest."""
    return _curve(history, finding, np.fmax.reduce(rates(history), axis=1), "learning rate")


def layer_curves(quantity: str, label: str, of: str = "layers", log: bool = True) -> Draw:
    """A chart of `quantity` in the layers of the finding, beside the median of all; without `log` with what is 0."""

    def draw(history: History, finding: Finding) -> Chart | None:
        values = history.layer(quantity)
        values = np.where(values > 0, values, np.nan) if log else values
        meant = [i for i, name in enumerate(history.layers) if name in finding.layers][:MOST_LAYERS]
        rows = np.flatnonzero(np.isfinite(values).any(axis=1))
        if not len(rows):
            return None
        seen = values[rows][:, np.isfinite(values[rows]).any(axis=0)]
        traces = [line(history.layer_step[rows], _median(seen), f"median of all {of}", BEFORE)]
        traces += [
            line(history.layer_step, values[:, i], history.layers[i], PALETTE[k % len(PALETTE)])
            for k, i in enumerate(meant)
        ]
        shown = np.concatenate([_median(seen), *(values[:, i] for i in meant)])
        drawn = figure(traces, label, max(decades(shown), 0.01) if log else 0)
        return Chart(label[0].upper() + label[1:], _marked(drawn, history, finding), HEIGHT)

    return draw


def layer_heatmap(quantity: str, label: str, onset: bool = False) -> Draw:
    """A chart of `quantity` in the layers of the finding and their neighbours, around the steps that are meant.

    With `onset` only around the first of them.
    """

    def draw(history: History, finding: Finding) -> Chart | None:
        part = _around(history, finding, finding.first_step if onset else finding.last_step)
        data = heatmap(part, quantity, max_rows=MOST_ROWS, max_columns=300)
        if data is None:
            return None
        drawn, height = heatmap_figure(data, quantity, part.step)
        drawn = _marked(drawn, part, finding, fill="rgba(0,0,0,0)")
        notes = ["Red: inf or NaN; a cross: the first of a layer."] * bool(data.nonfinite.any())
        notes += ["Grey: exactly zero."] * bool(data.zero.any())
        if len(part.layers) < len(history.layers):
            notes.append(f"{len(part.layers):,} of {len(history.layers):,} layers.")
        title = f"{label}, steps {part.step[0]:,} to {part.step[-1]:,}"
        return Chart(title, drawn, int(np.clip(height, HEIGHT, 420)), " ".join(notes))

    return draw


def _around(history: History, finding: Finding, last: int) -> History:
    """The steps around the finding's first to `last`, and its layers with their neighbours (all, if none is named)."""
    span = max(last - finding.first_step, 30)
    near = history.slice(finding.first_step - span, last + span + 1)
    meant = [i for i, name in enumerate(history.layers) if name in finding.layers]
    if not meant or len(history.layers) <= MOST_ROWS:
        return near
    low = max(0, min(meant) - 3)
    high = min(len(history.layers), max(low + MOST_ROWS, min(max(meant) + 4, low + 10 * MOST_ROWS)))
    return replace(near, by_layer=near.by_layer.of_layers(range(low, high)))


def _curve(history: History, finding: Finding, values: Floats, label: str, log: bool = False) -> Chart | None:
    finite = np.isfinite(values) & ((values > 0) | (not log))
    if not finite.any():
        return None
    traces = [line(history.step, np.where(finite, values, np.nan), label, AFTER)]
    bad = history.step[~np.isfinite(values) & (history.total("nonfinite") > 0)]
    if len(bad):
        traces.append(marks(bad, "non-finite"))
    top = int(np.nanargmax(np.where(finite, values, np.nan)))
    title = f"{label[0].upper()}{label[1:]}: highest {quantity_text(float(values[top]))} at step {history.step[top]:,}"
    drawn = figure(traces, label, max(decades(values), 0.01) if log else 0, legend=False)
    return Chart(title, _marked(drawn, history, finding), HEIGHT)


def _marked(drawn: Figure, history: History, finding: Finding, fill: str = MARK) -> Figure:
    """The figure with the finding's first to last step in a frame that is wide enough to be seen."""
    first, last = float(finding.first_step), float(finding.last_step)
    least = 0.006 * float(history.step[-1] - history.step[0] + 1)
    band: dict[str, Any] = {
        "type": "rect", "xref": "x", "yref": "paper", "x0": first - 0.5, "x1": max(last + 0.5, first - 0.5 + least),
        "y0": 0, "y1": 1, "line": {"color": BAD, "width": 1.2}, "fillcolor": fill, "layer": "above",
    }  # fmt: skip
    words = f"steps {finding.first_step:,} to {finding.last_step:,}" if last > first else f"step {finding.first_step:,}"
    late = (first - float(history.step[0])) > 0.6 * float(history.step[-1] - history.step[0])
    inside = drawn["layout"]["showlegend"]  # which stands above
    return annotate(drawn, [band], [
        {"xref": "x", "yref": "paper", "x": last if late else first, "xanchor": "right" if late else "left", "y": 1,
         "yanchor": "top" if inside else "bottom", "text": words, "showarrow": False,
         "font": {"size": 11, "color": BAD}, "bgcolor": "rgba(255,255,255,.8)"},
    ])  # fmt: skip


def _median(values: Floats) -> Floats:
    """The median over the layers of each step `[T]`, of rows that hold at least one number."""
    return np.asarray(np.nanmedian(values, axis=1))


def depth_profile(history: History, finding: Finding) -> Chart | None:
    """The gradient norm along the layers in the steps of the finding, with its layers in a frame."""
    chart = depth_chart(history.slice(finding.first_step, finding.last_step + 1), "grad_norm", "gradient norm")
    if chart is None:
        return None
    places = [i for i, name in enumerate(drawn_layers(history)) if name in finding.layers]
    band = {"type": "rect", "xref": "x", "yref": "paper", "x0": min(places, default=0) - 0.3,
            "x1": max(places, default=0) + 0.3, "y0": 0, "y1": 1, "line": {"color": BAD, "width": 1.2},
            "fillcolor": MARK}  # fmt: skip
    return Chart(chart.title, annotate(chart.figure, [band] * bool(places), []), chart.height, chart.note)


_NORMS = layer_heatmap("grad_norm", "Gradient norm per layer")


def module_curves(
    quantity: str, label: str, of: str = "modules", log: bool = True, losses: tuple[str, ...] = ()
) -> Draw:
    """A chart of `quantity` in the modules (or heads) of the finding, beside the median of all.

    Where no module was looked at, of what the losses show of these kinds instead (`in_losses`).
    """

    def draw(history: History, finding: Finding) -> Chart | None:
        own = layer_curves(quantity, label, of, log)(as_layers(history, quantity), finding)
        return own or in_losses(*losses)(history, finding)

    return draw


def in_losses(*kinds: str) -> Draw:
    """What the losses that were looked at show of the first of these `kinds` that is flat at last, or of the last."""

    def draw(history: History, finding: Finding) -> Chart | None:
        for kind in kinds:
            steps, share = sampled(history, kind)
            if len(steps) and (kind == kinds[-1] or share[-1] > 0.5):
                label = f"share that is {kind.removeprefix('end_')}"
                drawn = figure([line(steps, share, label, AFTER)], label, 0, legend=False)
                first, last = percent(share[0]), percent(share[-1])
                title = f"{label.capitalize()}, of the worst: {first} at first, {last} in the end"
                return Chart(title, _marked(drawn, history, finding), HEIGHT)
        return None

    return draw


_UPDATES = layer_curves("update_ratio", "update ratio")
_WEIGHTS = layer_curves("weight_norm", "weight norm")

CHARTS: dict[str, Draw] = {
    "dead-units": module_curves("dead", "share of dead units", log=False, losses=("dead",)),
    "saturated": module_curves(
        "saturated", "share of saturated elements", log=False, losses=("saturated", "end_saturated")
    ),
    "stale-second-moment": layer_curves("adam_rms", "gradient over Adam's estimate of it"),
    "activation-outlier": module_curves("max", "largest |a|"),
    "attention-logits-grow": module_curves("logit_max", "largest attention logit", "heads"),
    "attention-collapsed": module_curves(
        "entropy", "share of the largest entropy", "heads", log=False, losses=("certain",)
    ),
    "expert-starved": module_curves("tokens", "share of the tokens", "experts", log=False),
    "nonfinite": layer_heatmap("grad_norm", "Gradient norm per layer", onset=True),
    "vanishing": depth_profile,
    "dead-layer": _NORMS,
    "no-gradient": _NORMS,
    "not-in-optimizer": _NORMS,
    "weights-unchanged": _UPDATES,
    "update-too-large": _UPDATES,
    "update-too-small": _UPDATES,
    "clip-is-your-learning-rate": coef_curve,
    "clip-over-muon": coef_curve,
    "scaled-gradients": scale_curve,
    "weight-growth": _WEIGHTS,
    "weights-shrink": _WEIGHTS,
    "weight-decay-too-strong": _WEIGHTS,
    "renorm-binds": layer_curves("renorm_rate", "share of units scaled back", log=False),
    "imbalance": layer_curves("grad_norm", "gradient norm"),
    **dict.fromkeys(("exploding", "spike", "noise-dominated", "gradients-accumulate", "below-epsilon"), norm_curve),
    **dict.fromkeys(("clip-inert", "clip-after-step", "clip-without-gradient", "clip-before-unscale"), norm_curve),
    **dict.fromkeys(("double-clip", "policy-never-acts", "skips-often"), norm_curve),
    **dict.fromkeys(("bad-initialisation", "inputs-not-normalised", "left-in-eval", "norm-statistics"), norm_curve),
    "overfitting": beside_training,
    "schedule-too-short": rate_curve,
    "warmup-too-long": rate_curve,
}
"""Which chart shows which disease. The training loss shows every other."""
