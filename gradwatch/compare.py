"""Many runs in one pandas table: one row per policy and setting, means and spreads over the seeds.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwatch.errors import RunError
from gradwatch.history import Floats, History, Run

if TYPE_CHECKING:
    import pandas as pd

NO_POLICY = "none"
_SEED = re.compile(r"(^|[^a-z])(seeds?|random_?state)(/[\w-]+)?$", re.IGNORECASE)
_ACCURACY, _LOSS = re.compile("acc", re.IGNORECASE), re.compile("loss", re.IGNORECASE)
_HELD_OUT = re.compile("val|test|eval|dev|hold", re.IGNORECASE)


def policy_text(run: Run) -> str:
    """The clip and the constraint in force, as code: `ClipByGlobalNorm(1.0) + MaxNorm(3.0)`, or `none`."""
    return " + ".join(text for text in (run.clip, run.renorm) if text) or NO_POLICY


def metric_names(histories: Iterable[History], metric: str | None = None) -> list[str]:
    """The logged scalars that a comparison is about: accuracies, then losses, held-out ones first; or just `metric`.

    Raises:
        RunError: none of the runs logged `metric`.

    """
    names = list(dict.fromkeys(name for history in histories for name in history.logged))
    if metric is not None:
        if metric not in names:
            raise RunError(f"no run logged {metric!r}; logged: {', '.join(names) or 'nothing'}")
        return [metric]
    wanted = [name for name in names if _ACCURACY.search(name) or _LOSS.search(name)]
    return sorted(wanted, key=lambda name: (not _ACCURACY.search(name), not _HELD_OUT.search(name)))


def settings(histories: Sequence[History]) -> list[dict[str, str]]:
    """For each run, the settings besides the policy in which the runs differ (never the seed)."""
    every = [_all_settings(history.run) for history in histories]
    keys = dict.fromkeys(key for values in every for key in values)
    differing = [key for key in keys if len({values.get(key) for values in every}) > 1]
    return [{key: values.get(key, "") for key in differing} for values in every]


def runs_table(histories: Sequence[History], metric: str | None = None) -> pd.DataFrame:
    """One row per run: policy, differing settings, seed, last finite value of each metric, clip rate, norms.

    Raises:
        RunError: none of the runs logged `metric`.

    """
    import pandas as pd

    metrics = metric_names(histories, metric)
    rows = []
    for history, values in zip(histories, settings(histories), strict=True):
        norms = _finite_norms(history)
        rows.append(
            {
                "run": history.run.name,
                "policy": policy_text(history.run),
                **values,
                "seed": _seed(history.run),
                "steps": len(history.every_step),
                **{name: final(history, name) for name in metrics},
                "clip_rate": _mean(history.every_step.total("clip_rate")),
                "median_grad_norm": _quantile(norms, 0.5),
                "p99_grad_norm": _quantile(norms, 0.99),
                "nonfinite_steps": nonfinite_steps(history),
                "diverged": diverged(history),
            }
        )
    return pd.DataFrame(rows)


def compare(histories: Sequence[History], metric: str | None = None) -> pd.DataFrame:
    """One row per policy and setting, the best of a setting first.

    `<metric>` is the mean over the runs of the last finite value, `<metric>_std` its sample standard deviation (NaN for
    one run). `median_grad_norm` and `p99_grad_norm` are of the total norm before the clip, over all finite steps of the
    group; `clip_rate` is the mean of the runs' rates; `nonfinite_steps` and `diverged` are sums.

    Raises:
        RunError: none of the runs logged `metric`.

    """
    import pandas as pd

    metrics = metric_names(histories, metric)
    rows: list[dict[str, Any]] = []
    for (policy, key), members in groups(histories).items():
        norms = np.concatenate([_finite_norms(history) for history in members])
        row: dict[str, Any] = {"policy": policy, **dict(key), "runs": len(members)}
        for name in metrics:
            values = np.array([final(history, name) for history in members])
            row[name], row[f"{name}_std"] = _mean(values), _spread(values)
        row["clip_rate"] = _mean(np.array([_mean(history.every_step.total("clip_rate")) for history in members]))
        row["median_grad_norm"], row["p99_grad_norm"] = _quantile(norms, 0.5), _quantile(norms, 0.99)
        row["nonfinite_steps"] = sum(nonfinite_steps(history) for history in members)
        row["diverged"] = sum(diverged(history) for history in members)
        rows.append(row)
    rows.sort(key=lambda row: _rank(row, metrics))
    return pd.DataFrame(rows)


Group = tuple[str, tuple[tuple[str, str], ...]]


def groups(histories: Sequence[History]) -> dict[Group, list[History]]:
    """The runs by policy and differing settings, in the order of first appearance."""
    found: dict[Group, list[History]] = {}
    for history, values in zip(histories, settings(histories), strict=True):
        found.setdefault((policy_text(history.run), tuple(values.items())), []).append(history)
    return found


def final(history: History, name: str) -> float:
    """The last finite value of a logged scalar; NaN when there is none."""
    values = history.every_step.total(name)
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else float("nan")


def nonfinite_steps(history: History) -> int:
    """Number of steps in which any layer's gradient norm, or the total, was inf or NaN."""
    return int(nonfinite_rows(history.every_step).sum())


def nonfinite_rows(history: History) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which steps had an inf or NaN gradient, `[T]`."""
    layers = (history.layer("nonfinite") > 0).any(axis=1)
    return np.asarray(layers | (history.total("nonfinite") > 0) | np.isinf(history.total("grad_norm")))


def diverged(history: History) -> bool:
    """Whether the run ended in non-finite numbers: a part's last gradient, or the last loss that was logged."""
    history = history.every_step
    losses = [history.total(name) for name in history.logged if _LOSS.search(name)]
    ended = [values[~np.isnan(values)][-1:] for values in losses]
    bad = nonfinite_rows(history)
    last = [rows[-1] for rows in history.lane_rows().values()]
    return bool(bad[last].any() or any(np.isinf(values).any() for values in ended))


def is_seed(key: str) -> bool:
    """Whether a param is the seed of a run: `seed`, `data_seed`, `random_state`, or that of a part: `seed/G`."""
    return _SEED.search(key) is not None


def natural(text: str) -> tuple[float, str]:
    """A sort key that puts numbers in numeric order, before words."""
    try:
        return float(text), ""
    except ValueError:
        return float("inf"), text


def _rank(row: dict[str, Any], metrics: Sequence[str]) -> tuple[Any, ...]:
    """By setting, then by the metrics in turn: high accuracy first, or low loss; unknown last."""
    keys = list(row)
    setting = [natural(row[key]) for key in keys[1 : keys.index("runs")]]
    values = [-row[name] if _ACCURACY.search(name) else row[name] for name in metrics]
    return (setting, row["diverged"] == row["runs"], [(np.isnan(value), np.nan_to_num(value)) for value in values])


def _all_settings(run: Run) -> dict[str, str]:
    """Params, optimizer class and settings, and which model it was, as text; without the seed."""
    several = len(run.optimizers) > 1
    found = {"model": f"{len(run.layers)} layers, {sum(layer.numel for layer in run.layers):,} parameters"}
    for optimizer in run.optimizers:
        prefix = f"{optimizer.get('name', '')}." if several else ""
        found[f"{prefix}optimizer"] = str(optimizer.get("class", ""))
        found.update({f"{prefix}{key}": str(value) for key, value in optimizer.get("settings", {}).items()})
    for key, value in run.params.items():
        name = key if found.get(key, str(value)) == str(value) else f"param {key}"
        found[name] = str(value)
    taken = {key for key in found if key in _COLUMNS}
    return {f"{key} (setting)" if key in taken else key: v for key, v in found.items() if not is_seed(key)}


_COLUMNS = {"run", "policy", "runs", "seed", "steps", "clip_rate", "median_grad_norm", "p99_grad_norm",
            "nonfinite_steps", "diverged"}  # fmt: skip


def _seed(run: Run) -> str:
    return ", ".join(str(value) for key, value in run.params.items() if is_seed(key))


def _finite_norms(history: History) -> Floats:
    norms = history.every_step.total("grad_norm")
    return norms[np.isfinite(norms)]


def _mean(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def _spread(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.std(ddof=1)) if len(finite) > 1 else float("nan")


def _quantile(values: Floats, q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else float("nan")
