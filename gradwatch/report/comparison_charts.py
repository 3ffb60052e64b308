"""The charts of many runs over each other: one section per setting, one colour per policy, a thin line per seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.clips import as_one, clips_itself
from gradwatch.analysis.final_values import final, finite_norms, nonfinite_rows
from gradwatch.analysis.groups import NO_POLICY, by_setting, higher_is_better, policies, titled
from gradwatch.formatting import percent, quantity_text
from gradwatch.history import Floats, History
from gradwatch.report.downsample import Heatmap, bucket_mean
from gradwatch.report.heatmaps import heatmap_grid
from gradwatch.report.model import clip_rate
from gradwatch.report.plotly_figures import (
    NO_POLICY_COLOR,
    PALETTE,
    Chart,
    decades,
    faded,
    figure,
    line,
    marks,
    near,
)
from gradwatch.sanitize import printable
from gradwatch.table import STEP_COLUMNS, stack

if TYPE_CHECKING:
    import pandas as pd

POINTS_PER_CHART = 24_000
MOST = 12  # policies that are drawn
DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class Section:
    """The runs of one setting: `members` are the runs of each policy that is drawn, `note` says which these are."""

    title: str
    members: dict[str, list[History]]
    charts: tuple[Chart, ...]
    note: str = ""


def colors(histories: Sequence[History], table: pd.DataFrame) -> dict[str, str]:
    """A colour for each policy, the same in every chart of a report; grey for none. Of many policies those that the
    `table` of the comparison has first have the clearest.
    """
    known = dict.fromkeys(policies(histories))
    known = known if len(known) <= MOST else dict.fromkeys(table["policy"])
    drawn = [policy for policy in known if policy != NO_POLICY]
    return {NO_POLICY: NO_POLICY_COLOR} | {policy: _shade(i) for i, policy in enumerate(drawn)}


def _shade(i: int) -> str:
    return PALETTE[i] if i < len(PALETTE) else f"hsl({round(i * 137.5) % 360}, 55%, 42%)"  # the golden angle


def sections(
    histories: Sequence[History], metrics: Sequence[str], heatmaps: Sequence[Heatmap | None], table: pd.DataFrame
) -> list[Section]:
    """One section for each combination of the settings that differ, with a chart for each metric and norm.

    Of many policies those are drawn that the `table` of the comparison has first, and none.
    """
    drawn = {id(history): one for history, one in zip(histories, heatmaps, strict=True)}
    runs_of, shades, found = by_setting(histories), colors(histories, table), []
    beside = [as_one(history) for history in histories] if len(runs_of) > 1 else []
    for title, setting, members in titled(runs_of):
        best, note = _best(members, dict(setting), table)
        maps = heatmap_grid(best, drawn)
        found.append(Section(title, best, (*_charts(best, metrics, shades, beside), *([maps] if maps else [])), note))
    return found


def _best(
    members: dict[str, list[History]], setting: dict[str, str], table: pd.DataFrame
) -> tuple[dict[str, list[History]], str]:
    """The policies of a setting to be drawn, and a sentence where these are not all."""
    if len(members) <= MOST:
        return members, ""
    here = table[(table[[*setting]] == list(setting.values())).all(axis=1)]
    kept = [*here["policy"][:MOST]]
    if NO_POLICY in members and NO_POLICY not in kept:
        kept[-1] = NO_POLICY
    said = f"Drawn are {MOST} of {len(members)} policies: those that the table has first"
    return {policy: members[policy] for policy in kept}, f"{said}, and none." if kept[-1] == NO_POLICY else f"{said}."


def _charts(
    runs_of: dict[str, list[History]], metrics: Sequence[str], shades: dict[str, str], beside: list[History]
) -> list[Chart]:
    members = {policy: [as_one(history) for history in runs] for policy, runs in runs_of.items()}
    charts = [
        _overlay(members, name, _metric_title(members, name), name, shades, beside)
        for name in metrics
        if _any(members, name)
    ]
    if _any(members, "grad_norm"):
        title = _extreme_title(members, "Total gradient norm before the clip", "median ", _median_norm)
        charts.append(_overlay(members, "grad_norm", title, "total gradient norm (L2)", shades, beside, log=True))
    clipped = {
        policy: members[policy]
        for policy, runs in runs_of.items()
        if any(history.run.clip or clips_itself(history) for history in runs)
    }
    if _any(clipped, "clip_rate"):
        charts.append(_rates(clipped, shades))
    return charts


def _overlay(
    members: dict[str, list[History]],
    name: str,
    title: str,
    axis: str,
    shades: dict[str, str],
    beside: list[History],
    log: bool = False,
) -> Chart:
    """The runs of a section over each other. Its scale is that of the runs `beside` each other, if there are any: the
    charts of several sections are compared by eye. What came apart in another section does not stretch it.
    """
    runs = [history for group in members.values() for history in group]
    limit = int(np.clip(POINTS_PER_CHART // len(runs), 60, 1200))
    values = np.concatenate([history.total(name) for history in beside or runs])
    span = decades(values) if log or (values[np.isfinite(values)] > 0).all() else 0.0
    log = log or span > 1.7
    bands, thin_lines, bold_lines, crosses = [], [], [], []
    lanes = _lanes(runs) if name in STEP_COLUMNS else [""]  # what was logged is one series, whoever stepped
    for i, (policy, group) in enumerate(members.items()):
        style: dict[str, Any] = {"legendgroup": printable(policy), "hovertemplate": "step %{x}: %{y:.4g}"}
        for lane, dash, part in _split(group, lanes):
            for history in part:
                y = history.total(name)
                y = np.where(y > 0, y, np.nan) if log else y
                drawn = line(history.step, y, f"{policy} · {history.run.name}{lane}", shades[policy], limit, width=1,
                             line=dash, **style)  # fmt: skip
                thin_lines.append({**drawn, "opacity": 0.35 if len(part) > 1 else 0.9})
            bands += _band(part, name, log, shades[policy], policy)
            mean = _mean_line(part, name, log)
            if mean:
                bold_lines.append(
                    line(*mean, f"{policy} · mean of {len(part)}{lane}", shades[policy], width=2.2, line=dash, **style)
                )
        bad = np.unique(np.concatenate([history.step[nonfinite_rows(history)] for history in group]))
        if name == "grad_norm" and len(bad):
            crosses.append(marks(bad, policy, shades[policy], 0.98 - 0.04 * i, legendgroup=printable(policy)))
    note = f"Bold: the {'geometric ' if log else ''}mean over the seeds; thin: each run." if bold_lines else ""
    note += " Shaded: from the lowest to the highest seed." if bands else ""
    note += " Crosses: steps in which a run was non-finite." if crosses else ""
    if max(len(history) for history in runs) > limit:
        note += f" Long runs are drawn with the lowest and highest of each stretch ({limit} points a run)."
    note += _lanes_note(lanes)
    drawn = figure(
        [*bands, *thin_lines, *bold_lines, *crosses], axis, span if log else 0, legend=False, hovermode="closest"
    )
    if beside and (span or not log):
        drawn["layout"]["yaxis"]["range"] = _range(values, np.concatenate([run.total(name) for run in runs]), log)
    return Chart(title, drawn, 300, note.strip())


def _range(values: Floats, own: Floats, log: bool) -> list[float]:
    """The lowest and the highest finite value of all or, on a `log` axis (in powers of ten), of those that are not far
    out (`near`) and of a section's `own`; and a little room.
    """
    values, own = (np.log10(v[np.isfinite(v) & (v > 0)]) if log else v[np.isfinite(v)] for v in (values, own))
    ends = np.concatenate([near(values), own]) if log else values
    room = 0.05 * float(np.ptp(ends) or abs(ends.max()) or 1)
    return [float(ends.min()) - room, float(ends.max()) + room]


def _band(group: list[History], name: str, log: bool, color: str, policy: str) -> list[dict[str, Any]]:
    """The lowest and the highest value over the runs of one policy, in windows of steps, with the room between filled.

    Runs may end early; nothing where there are fewer than two, or their steps differ.
    """
    longest = max(group, key=len)
    if len(group) < 2 or any(not np.array_equal(run.step, longest.step[: len(run)]) for run in group):
        return []
    values = np.full((len(group), len(longest)), np.nan)
    for row, run in zip(values, group, strict=True):
        row[: len(run)] = run.total(name)
    values[~np.isfinite(values) | (log & (values <= 0))] = np.nan
    logged = np.flatnonzero(np.isfinite(values).any(axis=0))
    if len(logged) < 2:
        return []
    starts = np.arange(0, len(logged), -(-len(logged) // 200))
    low = np.fmin.reduceat(np.fmin.reduce(values[:, logged]), starts)
    high = np.fmax.reduceat(np.fmax.reduce(values[:, logged]), starts)
    middle = longest.step[logged[(starts + np.append(starts[1:], len(logged)) - 1) // 2]]
    style: dict[str, Any] = {"width": 0, "mode": "lines", "legendgroup": printable(policy), "hoverinfo": "skip"}
    lower = line(middle, low, f"{policy} · lowest", color, **style)
    upper = line(middle, high, f"{policy} · highest", color, fill="tonexty", fillcolor=faded(color), **style)
    return [lower, upper]


def _mean_line(group: list[History], name: str, log: bool) -> tuple[NDArray[np.int64], Floats] | None:
    """The mean over the runs of one policy, in windows of steps; it ends where the first of them has no value."""
    length = min(len(history) for history in group)
    steps = group[0].step[:length]
    if len(group) < 2 or any(not np.array_equal(history.step[:length], steps) for history in group):
        return None
    values = np.stack([history.total(name)[:length] for history in group])
    logged = np.flatnonzero(np.isfinite(values).any(axis=0))
    if len(logged) < 2:
        return None
    means = []
    for run in values[:, logged]:
        middle, mean = bucket_mean(run, 200)
        means.append(np.log(np.where(mean > 0, mean, np.nan)) if log else mean)
    joint = np.mean(means, axis=0)
    if not np.isfinite(joint).any():
        return None
    return np.asarray(steps[logged[middle]]), np.asarray(np.exp(joint) if log else joint)


def _rates(members: dict[str, list[History]], shades: dict[str, str]) -> Chart:
    traces = []
    lanes = _lanes([history for group in members.values() for history in group])
    for policy, group in members.items():
        for lane, dash, part in _split(group, lanes):
            for history in part:
                rows, share = bucket_mean(history.total("clip_rate"), 40)
                trace = line(history.step[rows], 100 * share, f"{policy} · {history.run.name}{lane}", shades[policy],
                             width=1.4, line=dash, legendgroup=printable(policy),
                             hovertemplate="step %{x}: %{y:.3g} %")  # fmt: skip
                traces.append({**trace, "opacity": 0.55 if len(part) > 1 else 0.9})
    drawn = figure(traces, "clipped steps (%)", legend=False, hovermode="closest")
    drawn["layout"]["yaxis"]["range"] = [-2, 102]
    title = _extreme_title(members, "Clip rate", "", _mean_rate, percent)
    return Chart(title, drawn, 300, "Each point is the mean of one fortieth of the run." + _lanes_note(lanes))


def _lanes(runs: list[History]) -> list[str]:
    """The parts or optimizers that step on their own in any of the runs; one nameless lane where there are none."""
    found = [list(history.lane_rows()) for history in runs]
    return list(dict.fromkeys(lane for names in found if len(names) > 1 for lane in names)) or [""]


def _split(group: list[History], lanes: list[str]) -> list[tuple[str, dict[str, str], list[History]]]:
    """For each lane the end of its label, its line's style, and the totals of the runs that have it."""
    if lanes == [""]:
        return [("", {}, group)]
    totals = [replace(history, by_layer=stack([])) for history in group]  # the layers are not copied
    rows = [(history, history.lane_rows()) for history in totals]
    split: list[tuple[str, dict[str, str], list[History]]] = [("", {}, [run for run, at in rows if len(at) < 2])]
    for i, lane in enumerate(lanes):
        part = [history.take(at[lane]) for history, at in rows if len(at) > 1 and lane in at]
        split.append((f" · {lane}", {"dash": DASHES[i % len(DASHES)]}, part))
    return [entry for entry in split if entry[2]]


def _lanes_note(lanes: list[str]) -> str:
    styles = [f"{lane} {DASHES[i % len(DASHES)]}" for i, lane in enumerate(lanes) if lane]
    return f" Lines: {', '.join(styles)}." if styles else ""


def _any(members: dict[str, list[History]], name: str) -> bool:
    return any(np.isfinite(history.total(name)).any() for group in members.values() for history in group)


def _metric_title(members: dict[str, list[History]], name: str) -> str:
    high = higher_is_better(name, [history for group in members.values() for history in group])
    means = {policy: np.mean([final(history, name) for history in group]) for policy, group in members.items()}
    known = {policy: float(mean) for policy, mean in means.items() if np.isfinite(mean)}
    if len(known) < 2 or high is None:
        return name
    if len({quantity_text(value) for value in known.values()}) == 1:
        return f"{name}: all policies end at {quantity_text(next(iter(known.values())))}"
    best = quantity_text(max(known.values()) if high else min(known.values()))
    names, verb = _all_at(known, best, quantity_text)
    return f"{name}: {names} {verb} {'highest' if high else 'lowest'}, {best}"


def _all_at(known: dict[str, float], shown: str, show: Callable[[float], str]) -> tuple[str, str]:
    """The policies whose value reads as `shown`, and the verb that fits their number: a tie has no single winner."""
    names = [policy for policy, value in known.items() if show(value) == shown]
    if len(names) > 3:
        return f"{len(names)} policies", "end"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])), "ends" if len(names) == 1 else "end"


def _extreme_title(
    members: dict[str, list[History]],
    what: str,
    of: str,
    measure: Callable[[list[History]], float],
    show: Callable[[float], str] = quantity_text,
) -> str:
    known = {policy: measure(group) for policy, group in members.items()}
    known = {policy: value for policy, value in known.items() if np.isfinite(value)}
    if len(known) < 2:
        return what + "".join(f": {of}{show(value)} with {policy}" for policy, value in known.items())
    top = show(max(known.values()))
    return f"{what}: highest {of}with {_all_at(known, top, show)[0]}, {top}"


def _median_norm(group: list[History]) -> float:
    norms = np.concatenate([finite_norms(history) for history in group])
    return float(np.median(norms)) if len(norms) else float("nan")


def _mean_rate(group: list[History]) -> float:
    return float(np.mean([clip_rate(history) for history in group]))
