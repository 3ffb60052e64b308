"""What MLflow's pages show: the experiment's saved view (charts and columns), its address, a run's description.

The saved view is an experiment tag in an undocumented format (MLflow 3.15 to 3.18); a version that does not know it
ignores it. Nothing here imports mlflow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import numpy as np

from gradwatch.analysis.clips import clips_itself, incoming, loop_rate
from gradwatch.analysis.groups import by_importance, higher_is_better
from gradwatch.analysis.rules.facts import middle
from gradwatch.formatting import loop_clips, percent, quantity_text
from gradwatch.history import History
from gradwatch.sanitize import markdown, public_uri
from gradwatch.table import nanmean
from gradwatch.tracking.mlflow_names import BRIEF, OWN, SAMPLED
from gradwatch.tracking.tags import Tag

VIEW = "gradwatch"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
MAX_EXPERIMENT_TAG = 20_000
MAX_NOTE = 8_000
UI = "http://127.0.0.1:5000"
REPORT = "/artifacts/gradwatch/report.html"  # the page of a run that shows its report
TRAINING = "workflowType=machine_learning"  # without it a fresh browser shows evaluation runs, prompts and traces
WORST_LAYERS = 8

# key -> log scale: the charts of section "Gradients", in this order. What was logged comes before, in "Training".
CHARTS = {
    "grad_norm/total": True,
    "clipped_norm/total": True,
    "grad_norm/before_loop_clip": True,
    "update_norm/total": True,
    "clip/rate_smoothed": False,
    "clip/rate_so_far": False,
    "clip/coef": False,
    "loop_clip/rate_smoothed": False,
    "loop_clip/rate_so_far": False,
    "loop_clip/coef": False,
    "clip/nonfinite_steps": False,
}
# section -> open; MLflow itself adds one chart a key to the section that is named like the key's prefix.
SECTIONS = {"Training": True, "Gradients": True, "weight_norm": True, "grad_norm": False, "update_ratio": False,
            "update_norm": False, "clip_rate": False, BRIEF: False, "noise_scale": False,
            **dict.fromkeys(SAMPLED, False)}  # fmt: skip
RATES = ("clip/rate_so_far", "loop_clip/rate_so_far")  # each a column too, where it is sent
MAX_LOGGED = 20
# column of the runs table -> width in pixels; MLflow's own 100 would cut every policy's name
COLUMNS = {"params.`gradwatch.clip`": 230, "tags.`gradwatch.verdict`": 230, "metrics.`clip/rate_so_far`": 90,
           "tags.`gradwatch.worst_layer`": 180, "params.`gradwatch.renorm`": 130}  # fmt: skip
# A mean and a band for each policy and learning rate, all runs that MLflow loads (100, and more by a button).
GROUP_BY = {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": Tag.GROUP}]}
NEWEST = "attributes.start_time"
VERSION = 3  # of what is above; beside the state, where MLflow does not look


def view_url(tracking_uri: str, experiment_id: str, ui: str = UI) -> str:
    """The address of the experiment's saved view: on its server, or where `gradwatch ui` serves a local store."""
    base = public_uri(tracking_uri).rstrip("/") if tracking_uri.startswith("http") else ui
    return f"{base}/#/experiments/{quote(experiment_id)}/runs?viewStateShareKey={VIEW}&compareRunsMode=CHART&{TRAINING}"


def run_url(tracking_uri: str, experiment_id: str, run_id: str, page: str = "") -> str:
    """The address of one run, or of a `page` of it: on its server, or where `gradwatch ui` serves a local store."""
    base = public_uri(tracking_uri).rstrip("/") if tracking_uri.startswith("http") else UI
    return f"{base}/{_place(experiment_id, run_id, page)}"


def address(url: str) -> str:
    """The line that names a page; of one that only `gradwatch ui` serves, what has to run first."""
    return f"MLflow: {url}{' (a local store is shown there by: gradwatch ui)' if url.startswith(UI) else ''}"


def _place(experiment_id: str, run_id: str, page: str) -> str:
    return f"#/experiments/{quote(experiment_id, safe='')}/runs/{quote(run_id, safe='')}{page}?{TRAINING}"


def view_tag(keys: Iterable[str], previous: str | None = None, rises: Mapping[str, bool] | None = None) -> str | None:
    """The experiment tag's text with charts for these metric keys; `rises`: what is known of some beside their names.

    The charts of `previous` (other runs' keys, changes made by hand) are kept; a view of an older version is brought
    up to date where nobody changed it. None when there is nothing to add, or no room in the tag.
    """
    keys = list(keys)
    old = json.loads(previous) if previous else {}
    state = json.loads(old["state"]) if old else _empty_state()
    outdated = old.get("version") != VERSION
    if outdated:
        _update(state)
    best = _best_first([*_shown(state), *keys], rises or {})
    resorted = best is not None and _sorted_by_us(state, rises or {}) and best[0] != state["orderByKey"]
    logged = sorted((key for key in keys if not key.startswith(OWN)), key=_is_rate)[:MAX_LOGGED]
    shown = {chart.get("metricKey") for chart in state["compareRunCharts"]}
    charts = [_chart(key, "Training", "loss" in key.lower()) for key in logged if key not in shown]
    for name, log in CHARTS.items():
        own = sorted(key for key in keys if key == name or key.startswith(f"{name}/"))  # of each part: `clip/rate/G`
        charts += [_chart(key, "Gradients", log) for key in own if key not in shown]
    columns = [f"metrics.`{key}`" for key in logged if not _is_rate(key)]
    columns += [f"metrics.`{key}`" for key in sorted(keys) if key.startswith(RATES)]
    columns += [f"params.`gradwatch.clip/{key[10:]}`" for key in sorted(keys) if key.startswith("clip/rate/")]
    new_columns = [column for column in columns if column not in state["selectedColumns"]]
    if not (outdated or resorted or charts or new_columns):
        return None
    if best and resorted:
        state["orderByKey"], state["orderByAsc"] = best
    state["compareRunCharts"] += charts
    state["selectedColumns"] += new_columns
    state["columnOrder"] = [*state.get("columnOrder", ()), *new_columns]
    text = json.dumps({"name": VIEW, "version": VERSION, "createdAt": old.get("createdAt", int(time.time() * 1000)),
                       "state": json.dumps(state, separators=(",", ":"))})  # fmt: skip
    return text if len(text) <= MAX_EXPERIMENT_TAG else None


def _update(state: dict[str, Any]) -> None:
    """What an older version set, and nobody changed, as it is set today."""
    new = _empty_state()
    for name, was in (("groupBy", None), ("runsHiddenMode", "FIRST_20_RUNS")):
        if state.get(name) == was:
            state[name] = new[name]
    columns = [column for column in COLUMNS if column not in state["selectedColumns"]]
    state["selectedColumns"] += columns
    state["columnOrder"] = [*state.get("columnOrder", ()), *columns]
    state["columnWidths"] = {**COLUMNS, **state.get("columnWidths", {})}
    sections = {section["name"] for section in state["compareRunSections"]}
    state["compareRunSections"] += [one for one in new["compareRunSections"] if one["name"] not in sections]


def _shown(state: dict[str, Any]) -> list[str]:
    return [str(chart.get("metricKey")) for chart in state["compareRunCharts"]]


def _best_first(keys: Iterable[str], rises: Mapping[str, bool]) -> tuple[str, bool] | None:
    """The column of the metric that settles a comparison, and whether low is best; None where it is not known."""
    logged = [key for key in dict.fromkeys(keys) if not key.startswith(OWN)]
    ordered = by_importance({key: rises.get(key, higher_is_better(key)) for key in logged})
    return (f"metrics.`{ordered[0]}`", not rises.get(ordered[0], higher_is_better(ordered[0]))) if ordered else None


def _sorted_by_us(state: dict[str, Any], rises: Mapping[str, bool]) -> bool:
    own = _best_first(_shown(state), rises)
    return state["orderByKey"] in (NEWEST, own and own[0])


def _is_rate(key: str) -> bool:
    return key == "lr" or key.startswith("lr/")


def _chart(key: str, section: str, log: bool) -> dict[str, Any]:
    return {"type": "LINE", "uuid": f"gradwatch-{key}", "metricSectionId": section, "metricKey": key,
            "selectedMetricKeys": [key], "scaleType": "log" if log else "linear", "xAxisKey": "step",
            "xAxisScaleType": "linear", "lineSmoothness": 0, "runsCountToCompare": 100, "deleted": False,
            "isGenerated": False, "selectedXAxisMetricKey": "", "range": {}}  # fmt: skip


def _empty_state() -> dict[str, Any]:
    sections = [{"uuid": name, "name": name, "display": is_open, "isReordered": True, "isGenerated": False}
                for name, is_open in SECTIONS.items()]  # fmt: skip
    return {"selectedColumns": list(COLUMNS), "compareRunSections": sections, "compareRunCharts": [],
            "isAccordionReordered": True, "runsHidden": [], "runsHiddenMode": "SHOW_ALL", "runsPinned": [],
            "columnOrder": list(COLUMNS), "columnWidths": COLUMNS, "groupBy": GROUP_BY,
            "searchFilter": "", "orderByKey": NEWEST, "orderByAsc": False, "hideEmptyCharts": True,
            "useGroupedValuesInCharts": True, "autoRefreshEnabled": True, "globalLineChartConfig": {}}  # fmt: skip


# ------------------------------------------------------------------------------------------------------- description


def description(
    history: History, experiment_id: str, run_id: str, facts: Mapping[str, str], findings: Mapping[str, str]
) -> str:
    """A run's description: Markdown of at most 8,000 characters.

    `facts` are lines such as {"Clip": "none"}, `findings` what is wrong and what to do about it.
    """
    report = _place(experiment_id, run_id, REPORT)
    run_id = quote(run_id, safe="")
    rates, bad = history.clip_rate, history.nonfinite
    of = " of finite steps" if bad.any() else ""
    table = [f"| layer | clip rate | median norm{of} | p99 norm{of} | non-finite steps |", "|---|---|---|---|---|"]
    norms = np.where(np.isfinite(history.layer("grad_norm")), history.layer("grad_norm"), np.nan)
    for i in worst_layers(history)[:WORST_LAYERS]:
        seen = norms[~np.isnan(norms[:, i]), i]
        median, p99 = np.percentile(seen, [50, 99]) if len(seen) else (np.nan, np.nan)
        table.append(
            f"| {markdown(history.layers[i])} | {percent(rates[i])} | {quantity_text(median)} | {quantity_text(p99)} "
            f"| {bad[i]} |"
        )
    facts = {**facts, "Clip rate": percent(float(nanmean(history.total("clip_rate"))))}
    if clips_itself(history):
        before, left = (quantity_text(middle(norms)) for norms in (incoming(history), history.total("grad_norm")))
        facts["Clip rate by the loop"] = f"{percent(loop_rate(history))}, by {loop_clips(history.per_step)}"
        facts["Median norm before the loop's clip"] = f"{before}, after it {left}; norms of layers are those after it"
    lines = [
        "### gradwatch",
        "",
        *(f"- **{name}**: {markdown(text)}" for name, text in facts.items()),
        "",
        *(
            f"{i}. **{markdown(name)}**: {markdown(text)} [More]({report})"
            for i, (name, text) in enumerate(findings.items(), start=1)
        ),
        *[""][: len(findings)],
        f"![overview](get-artifact?path=gradwatch%2Foverview.png&run_uuid={run_id})",
        "",
        *table,
        "",
        f"[The full report]({report})",
    ]
    return as_note(lines)


def as_note(lines: Iterable[str]) -> str:
    """The lines as the description of a run, as many as there is room for."""
    text = "\n".join(lines)
    return text if len(text) < MAX_NOTE else text[: MAX_NOTE - 20].rpartition("\n")[0] + "\n…"


def worst_layers(history: History) -> list[int]:
    """The numbers of all layers, the most troubled first: non-finite steps, then clip rate, then median norm."""
    norms = history.layer("grad_norm")
    seen = [column[np.isfinite(column)] for column in norms.T]
    median = np.array([np.median(values) if len(values) else -1.0 for values in seen])
    rate = np.nan_to_num(history.clip_rate, nan=-1.0).round(6)
    return [int(i) for i in np.lexsort((-median, -rate, -history.nonfinite))]
