"""The charts of one run: medians by depth, the norm before and after the clip, what the clip did, loss and accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwatch.analysis.clips import as_one, clips_itself
from gradwatch.analysis.final_values import final, nonfinite_rows, told
from gradwatch.analysis.noise_scale import estimates, noise_scale, trailing
from gradwatch.analysis.rules.facts import column_medians, limits_of
from gradwatch.formatting import counted, percent, quantity_text
from gradwatch.history import Floats, History
from gradwatch.report.downsample import bucket_mean
from gradwatch.report.model import changed
from gradwatch.report.plotly_figures import (
    AFTER,
    BAD,
    BEFORE,
    PALETTE,
    POINTS,
    ZERO,
    Chart,
    decades,
    figure,
    line,
    marks,
    pack,
    short,
    text,
    with_limits,
)
from gradwatch.table import nanmean

QUANTITIES = {"grad_norm": "gradient norm", "update_ratio": "update ratio", "trust_ratio": "trust ratio"}
MOST_LABELS = 16


def depth_charts(history: History) -> list[Chart]:
    """One chart of each part, or optimizer that steps alone, for each quantity that two or more of its layers have."""
    lanes, quantities = history.lanes().items(), QUANTITIES.items()
    every = (depth_chart(lane, *quantity, name) for quantity in quantities for name, lane in lanes)
    return [chart for chart in every if chart]


def depth_chart(history: History, quantity: str, label: str, part: str = "") -> Chart | None:
    """The medians of `quantity` along the layers, of a `part`; None where it was recorded in fewer than two."""
    values = history.layer(quantity)
    shown = _weights(history)
    still = np.flatnonzero((values[:, shown] == 0).sum(axis=0) > (values[:, shown] > 0).sum(axis=0))
    values = np.where(np.isfinite(values) & (values > 0), values, np.nan)
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
    if len(still):
        said = {"name": "exactly 0 in most steps", "hovertemplate": "exactly 0 in most steps<extra></extra>"}
        traces.append(marks(still, color=ZERO, height=0.03, **said))
    drawn = figure(traces, label, max(decades(every), 0.01), hovermode="closest")
    ticks = list(range(0, len(names), -(-len(names) // MOST_LABELS)))
    labels = [text(short(names[i], 22)) for i in ticks]
    drawn["layout"]["xaxis"] |= {"title": {"text": ""}, "tickvals": ticks, "ticktext": labels, "tickangle": -35,
                                 "tickfont": {"size": 10}, "automargin": True}  # fmt: skip
    note = "Medians, of what is above 0, over the first tenth, the whole and the last tenth of the measured steps."
    if len(shown) < len(history.layers):
        note += " Tensors of one dimension (biases, gains) are left out."
    return Chart(_title(label, column_medians(values[:, shown]), names, part), drawn, 330, note)


def drawn_layers(history: History) -> list[str]:
    """The names of the layers in a depth profile, in the order of its places."""
    return [history.layers[i] for i in _weights(history)]


def _weights(history: History) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The layers to draw: tensors of two or more dimensions; all, where there are fewer than two of these."""
    shapes = {layer.name: layer.shape for layer in history.run.layers}
    weights = np.flatnonzero([len(shapes.get(name, ())) > 1 for name in history.layers])
    return weights if len(weights) > 1 else np.arange(len(history.layers))


def _title(label: str, median: Floats, names: list[str], part: str) -> str:
    first, last = float(median[0]), float(median[-1])
    if not (first > 0 and last > 0) or names[0] == names[-1]:
        return f"Depth profile of the {label}{f' of {part}' if part else ''}"
    times = max(first, last) / min(first, last)
    if times < 1.1:
        return f"Depth profile: the {label} of {names[0]} and {names[-1]} is about the same"
    larger, smaller = (names[-1], names[0]) if last > first else (names[0], names[-1])
    return f"Depth profile: the {label} of {larger} is {quantity_text(times)} times that of {smaller}"


def norm_chart(history: History) -> Chart:
    """The total norm before and after all clips, the threshold, and the steps that have no finite norm."""
    limits, clips = limits_of(history), bool(history.run.clip) or clips_itself(history)
    history = as_one(history)
    before, after = history.total("grad_norm"), history.total("clipped_norm")
    first = ("before the clip", BEFORE) if clips else ("gradient norm", AFTER)
    traces = lane_lines(history, np.where(before > 0, before, np.nan), *first)
    if clips:
        traces += lane_lines(history, np.where(after > 0, after, np.nan), "after the clip", AFTER, width=1.2)
    bad = history.step[nonfinite_rows(history)]
    if len(bad):
        traces.append(marks(bad, f"non-finite ({counted(len(bad), 'step')})"))
    drawn = figure(traces, "total gradient norm (L2)", max(decades(before), 0.01))
    if limits is not None:
        drawn = with_limits(drawn, history.step, limits)
    finite = np.isfinite(before)
    title = "Total gradient norm: no step had a finite one"
    if finite.any():
        top = int(np.nanargmax(np.where(finite, before, np.nan)))
        several = len(history.lane_rows()) > 1
        which = "" if finite.all() else " of finite steps"
        median = "" if several else f"median{which} {quantity_text(float(np.median(before[finite])))}, "
        where = f" of {history.optimizer[top]}" if several else ""
        highest = f"highest {quantity_text(before[top])} at step {history.step[top]:,}{where}"
        title = f"Total gradient norm: {median}{highest}"
    return Chart(title, drawn, 320, _thinned(len(history)))


def update_charts(history: History) -> list[Chart]:
    """How far each measured step moved all weights together; none where that was not measured."""
    moved = history.total("update_norm")
    moved = np.where(moved > 0, moved, np.nan)
    rows = np.flatnonzero(np.isfinite(moved))
    if not len(rows):
        return []
    top, measured = rows[int(np.argmax(moved[rows]))], history.take(rows)
    drawn = figure(lane_lines(measured, moved[rows], "update norm", AFTER), "total update norm (L2)",
                   max(decades(moved), 0.01), legend=len(measured.lane_rows()) > 1)  # fmt: skip
    several = len(measured.lane_rows()) > 1
    median = "" if several else f"median {quantity_text(float(np.median(moved[rows])))}, "
    where = f" of {history.optimizer[top]}" if several else ""
    title = f"Total update norm: {median}highest {quantity_text(moved[top])} at step {history.step[top]:,}{where}"
    said = "‖Δw‖ of the steps that measured it: of each layer update ratio times weight norm, an estimate"
    if "update_norm" in history.per_layer:
        said = "‖Δw‖, of each layer from a sample of at most 4,096 elements"
    return [Chart(title, drawn, 260, f"{said}. {_thinned(len(rows))}".strip())]


def noise_charts(history: History) -> list[Chart]:
    """The gradient noise scale over the steps that show it; none where no step does, or optimizers step apart."""
    signal, noise = estimates(history)
    rows = np.flatnonzero(np.isfinite(signal))
    if len(rows) < 2 or len(history.lane_rows()) > 1:
        return []
    width = max(10, len(rows) // 10)
    values = trailing(signal[rows], noise[rows], width)
    whole = noise_scale(signal[rows[len(rows) // 2 :]], noise[rows[len(rows) // 2 :]])
    log = max(decades(values), 0.01) if (values > 0).all() else 0  # which has no place for a 0
    drawn = figure([line(history.step[rows], values, "noise scale", AFTER)], "noise scale (batches)", log, legend=False)
    if not log:
        drawn["layout"]["yaxis"]["rangemode"] = "tozero"
    shown = quantity_text(whole) if np.isfinite(whole) else "beyond what these steps can show"
    note = (
        f"Each point is of the last {width} sampled steps: 0 where they show no noise, none where they show no signal. "
        "Below 1 a smaller batch would do."
    )
    return [Chart(f"Gradient noise scale of the second half, in batches: {shown}", drawn, 260, note)]


def lane_lines(history: History, values: Floats, name: str, color: str, **style: Any) -> list[dict[str, Any]]:
    """`values` `[T]` over the steps: one line, or one for each part or optimizer that steps on its own.

    Then a line has the colour of its lane; those in the colour `BEFORE` are pale and dotted.
    """
    lanes = history.lane_rows()
    if len(lanes) < 2:
        return [line(history.step, values, name, color, **style)]
    pale = {"opacity": 0.6, "line": {"dash": "dot"}} if color == BEFORE else {}
    return [
        line(history.step[rows], values[rows], f"{lane}: {name}", PALETTE[i % len(PALETTE)], **{**style, **pale})
        for i, (lane, rows) in enumerate(lanes.items())
    ]


def clip_charts(history: History) -> tuple[list[Chart], list[str]]:
    """The coefficient and the clip rate over the steps, of all that clipped; a sentence instead where nothing did."""
    if not history.run.clip and not clips_itself(history):
        return [], ["No clipping policy: no gradient was clipped."]
    charts: list[Chart] = []
    said, history = changed(history), as_one(history)
    coef = history.total("clip_coef")
    if np.isfinite(coef).any():
        lines = lane_lines(history, coef, "clip_coef", AFTER)
        drawn = figure(lines, "clip coefficient (1 = untouched)", legend=len(lines) > 1)
        charts.append(Chart(said, drawn, 260, _thinned(len(history))))
    rate = history.total("clip_rate")
    if np.isfinite(rate).any():
        charts.append(_rate_chart(history, rate))
    return charts, [] if charts else ["Clip coefficient and clip rate are not shown: this run did not record them."]


def _rate_chart(history: History, rate: Floats) -> Chart:
    lanes = history.lane_rows()
    one = len(lanes) < 2
    traces = []
    for i, (lane, at) in enumerate(lanes.items()):
        rows, share = bucket_mean(rate[at], 60)
        shape: dict[str, Any] = {"fill": "tozeroy", "fillcolor": "rgba(31,95,168,.12)"} if one else {}
        name, color = ("clip rate", AFTER) if one else (lane, PALETTE[i % len(PALETTE)])
        traces.append(line(history.step[at[rows]], 100 * share, name, color, line={"shape": "hvh"}, **shape))
        window = -(-len(at) // len(rows))
    drawn = figure(traces, "clipped steps (%)", legend=not one)
    drawn["layout"]["yaxis"]["range"] = [0, 102]
    note = f"Mean of windows of {window} steps." if one else "Means of at most 60 windows."
    shares = [f"{lane} {percent(float(nanmean(rate[at])))}" for lane, at in lanes.items()]
    return Chart(_rate_title(rate) if one else f"Clip rate: {', '.join(shares)}", drawn, 260, note)


def _rate_title(rate: Floats) -> str:
    tenth = max(1, len(rate) // 10)
    first, last = (np.nanmean(part) if np.isfinite(part).any() else np.nan for part in (rate[:tenth], rate[-tenth:]))
    return f"Clip rate: {percent(float(first))} in the first tenth of the run, {percent(float(last))} in the last"


def logged_charts(history: History, names: Sequence[str]) -> tuple[list[Chart], list[str]]:
    """One chart for each logged scalar, those in `names` first, and the learning rate where it moved.

    Also a sentence for each that never had a finite value.
    """
    rates = [history.total("lr")[rows] for rows in history.lane_rows().values()]
    moved = any(len(np.unique(lr[np.isfinite(lr)])) > 1 for lr in rates)
    order = dict.fromkeys([*names, *history.logged, *(["lr"] if moved else [])])
    drawn = [name for name in order if np.isfinite(history.total(name)).any()]
    missing = [f"{name} is not shown: it never had a finite value." for name in order if name not in drawn]
    several = len(rates) > 1
    return [_lr_chart(history) if several and name == "lr" else _logged_chart(history, name) for name in drawn], missing


def _lr_chart(history: History) -> Chart:
    """The learning rate of each part or optimizer that steps on its own."""
    lr = history.total("lr")
    span = decades(lr)
    drawn = figure(lane_lines(history, lr, "lr", AFTER), "lr", span if span > 1.7 else 0)
    return Chart("lr", drawn, 260, _thinned(len(history)))


def _logged_chart(history: History, name: str) -> Chart:
    """A logged scalar over the steps, on a log axis where it spans more than a factor of 50."""
    values = history.total(name)
    finite = values[np.isfinite(values)]
    span = decades(finite) if (finite > 0).all() else 0.0
    dense = len(finite) > POINTS
    traces = [line(history.step, values, "lowest and highest" if dense else name, BEFORE if dense else AFTER)]
    if dense:
        middle, mean = bucket_mean(finite, 300)
        traces.append(line(history.step[np.isfinite(values)][middle], mean, "mean", AFTER, width=2))
    bad = history.step[np.isinf(values)]
    if len(bad):
        traces.append(marks(bad, "infinite", BAD))
    title = f"{name}: {quantity_text(finite[0])} at first, {_ended(history, name, finite[-1])}"
    drawn = figure(traces, name, span if span > 1.7 else 0, legend=len(traces) > 1)
    return Chart(title, drawn, 260, _thinned(len(finite)))


def _ended(history: History, name: str, last: float) -> str:
    """What a logged scalar came to, as the head of the page has it; a learning rate is the `last` one that was set."""
    ended = last if name == "lr" else final(history, name)
    if np.isfinite(ended):
        return f"{quantity_text(ended)} at the end"
    is_last = np.isfinite(told(history, name)[-1])  # the run was lost after it
    return f"{quantity_text(last)} when it was last logged" if is_last else "inf or NaN at the end"


def _thinned(points: int) -> str:
    if points <= POINTS:
        return ""
    return f"Drawn with the lowest and the highest of every {-(-2 * points // POINTS)} points, so no spike is lost."
