"""What MLflow's pages show: the experiment's saved view (charts and columns), its address, a run's description.

The saved view is an experiment tag in an undocumented format (MLflow 3.15 to 3.18); a version that does not know it
ignores it. Nothing here imports mlflow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np

from gradwatch.history import History, nanmean
from gradwatch.uri import public_uri

VIEW = "gradwatch"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
MAX_EXPERIMENT_TAG = 20_000
MAX_NOTE = 8_000
UI = "http://127.0.0.1:5000"
WORST_LAYERS = 8

# key -> (section, log scale); the order is the order on the page. Logged values come first, in "Training".
CHARTS = {
    "grad_norm/total": ("Gradients", True),
    "clipped_norm/total": ("Gradients", True),
    "clip/rate": ("Gradients", False),
    "clip/coef": ("Gradients", False),
    "clip/nonfinite_steps": ("Gradients", False),
}
LAYER_CHARTS = {"weight_norm/": "Weight norms", "grad_norm/": "Gradient norms by layer"}
OWN = ("grad_norm/", "clipped_norm/", "weight_norm/", "update_ratio/", "clip_rate/", "clip/", "lr")
COLUMNS = ("params.`gradwatch.clip`", "params.`gradwatch.renorm`", "tags.`gradwatch.verdict`", "metrics.`clip/rate`")


def view_url(tracking_uri: str, experiment_id: str, ui: str = UI) -> str:
    """The address of the experiment's saved view: on its server, or where `gradwatch ui` serves a local store."""
    base = public_uri(tracking_uri).rstrip("/") if tracking_uri.startswith("http") else ui
    return (
        f"{base}/#/experiments/{quote(experiment_id)}/runs?viewStateShareKey={VIEW}&compareRunsMode=CHART"
        "&workflowType=machine_learning"
    )


def view_tag(keys: Iterable[str], previous: str | None = None) -> str | None:
    """The experiment tag's text with charts for these metric keys.

    The charts of `previous` (other runs' keys, changes made by hand) are kept. None when there is nothing to add, or
    no room in the tag.
    """
    keys = list(keys)
    old = json.loads(previous) if previous else {}
    state = json.loads(old["state"]) if old else _empty_state()
    shown = {chart.get("metricKey") for chart in state["compareRunCharts"]}
    charts = [chart for chart in _charts(keys) if chart["metricKey"] not in shown]
    columns = [f"metrics.`{key}`" for key in keys if not key.startswith(OWN)]
    new_columns = [c for c in columns if c not in state["selectedColumns"]]
    if old and not charts and not new_columns:
        return None
    for name in dict.fromkeys(str(chart["metricSectionId"]) for chart in charts):
        if name not in {section["uuid"] for section in state["compareRunSections"]}:
            state["compareRunSections"].append(_section(name))
    state["compareRunSections"].sort(key=lambda section: _place(section["uuid"]))
    state["compareRunCharts"] += charts
    state["selectedColumns"] += new_columns
    text = json.dumps(
        {
            "name": VIEW,
            "createdAt": old.get("createdAt", int(time.time() * 1000)),
            "state": json.dumps(state, separators=(",", ":")),
        }
    )
    return text if len(text) <= MAX_EXPERIMENT_TAG else None


def _charts(keys: Sequence[str]) -> list[dict[str, Any]]:
    charts = [_chart(key, "Training", False) for key in keys if not key.startswith(OWN)]
    charts += [_chart(key, section, log) for key, (section, log) in CHARTS.items() if key in keys]
    for prefix, section in LAYER_CHARTS.items():
        charts += [_chart(key, section, True) for key in keys if key.startswith(prefix) and key not in CHARTS]
    return charts


def _place(section: str) -> int:
    names = ["Training", "Gradients", *LAYER_CHARTS.values()]
    return names.index(section) if section in names else len(names)


def _section(name: str) -> dict[str, Any]:
    return {"uuid": name, "name": name, "display": True, "isReordered": True, "isGenerated": False}


def _chart(key: str, section: str, log: bool) -> dict[str, Any]:
    return {
        "type": "LINE",
        "uuid": f"gradwatch-{key}",
        "metricSectionId": section,
        "metricKey": key,
        "selectedMetricKeys": [key],
        "scaleType": "log" if log else "linear",
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "lineSmoothness": 0,
        "runsCountToCompare": 20,
        "deleted": False,
        "isGenerated": False,
        "selectedXAxisMetricKey": "",
        "range": {},
    }


def _empty_state() -> dict[str, Any]:
    return {
        "selectedColumns": list(COLUMNS),
        "compareRunSections": [],
        "compareRunCharts": [],
        "runsHidden": [],
        "runsHiddenMode": "FIRST_20_RUNS",
        "runsPinned": [],
        "columnOrder": [],
        "groupBy": None,
        "searchFilter": "",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "hideEmptyCharts": True,
        "useGroupedValuesInCharts": True,
        "autoRefreshEnabled": True,
        "globalLineChartConfig": {},
    }


# ------------------------------------------------------------------------------------------------------- description


def description(history: History, run_id: str, verdict: str, facts: Mapping[str, str]) -> str:
    """A run's description: Markdown of at most 8,000 characters. `facts` are lines such as {"Clip": "none"}."""
    table = ["| layer | clip rate | median norm | p99 norm | non-finite steps |", "|---|---|---|---|---|"]
    norms = np.where(np.isfinite(history.layer("grad_norm")), history.layer("grad_norm"), np.nan)
    for i in worst_layers(history)[:WORST_LAYERS]:
        seen = norms[~np.isnan(norms[:, i]), i]
        median, p99 = np.percentile(seen, [50, 99]) if len(seen) else (np.nan, np.nan)
        table.append(
            f"| {_cell(history.layers[i])} | {_percent(history.clip_rate[i])} | {median:.4g} | {p99:.4g} | "
            f"{history.nonfinite[i]} |"
        )
    facts = {"Verdict": verdict, **facts, "Clip rate": _percent(float(nanmean(history.total("clip_rate"))))}
    lines = [
        "### gradwatch",
        "",
        *(f"- **{name}**: {_cell(text)}" for name, text in facts.items()),
        "",
        f"![overview](get-artifact?path=gradwatch%2Foverview.png&run_uuid={run_id})",
        "",
        *table,
        "",
        "The full report is `gradwatch/report.html` among the artifacts.",
    ]
    text = "\n".join(lines)
    return text if len(text) < MAX_NOTE else text[: MAX_NOTE - 20].rpartition("\n")[0] + "\n…"


def worst_layers(history: History) -> list[int]:
    """The numbers of all layers, the most troubled first: non-finite steps, then clip rate, then median norm."""
    norms = history.layer("grad_norm")
    seen = [column[np.isfinite(column)] for column in norms.T]
    median = np.array([np.median(values) if len(values) else -1.0 for values in seen])
    rate = np.nan_to_num(history.clip_rate, nan=-1.0).round(6)
    return [int(i) for i in np.lexsort((-median, -rate, -history.nonfinite))]


def _percent(rate: float) -> str:
    return "–" if np.isnan(rate) else f"{100 * rate:.1f} %"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
