"""What every tracker shows as a run's settings: the policy, the optimizers, and what the user said of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradwatch._version import __version__
from gradwatch.analysis.optimizers import differing, group_texts, settings
from gradwatch.history import Run
from gradwatch.policies.intervention import Intervention
from gradwatch.sanitize import MAX_PARAM
from gradwatch.tracking.mlflow_names import safe_name

MAX_GROUPS = 16  # param groups of an optimizer that have params of their own


def run_params(run: Run) -> dict[str, str]:
    """What MLflow shows as the run's settings."""
    own = {
        "gradwatch.clip": str(run.clip),
        "gradwatch.renorm": str(run.renorm),
        **{f"gradwatch.{k}": str(v) for k, v in Intervention(None, None, run.lr_scale, run.warmup).arguments.items()},
        "gradwatch.every": str(run.every),
        "gradwatch.layers": str(len(run.layers)),
        "gradwatch.parameters": str(sum(layer.numel for layer in run.layers)),
    }
    for i, optimizer in enumerate(run.optimizers):
        key = "optimizer" if len(run.optimizers) == 1 else f"optimizer.{i}"
        own[key] = str(optimizer.get("class", optimizer.get("name")))
        own.update({f"{key}.{name}": text for name, text in settings(optimizer).items()})
        own.update(_group_params(key, optimizer))
    everybodys = {"gradwatch.version": __version__, **run.params}
    out = {(f"{k}/{run.part}" if run.part else k): v for k, v in own.items()} | everybodys
    return {safe_name(k): str(v)[:MAX_PARAM] for k, v in out.items()}


def _group_params(key: str, optimizer: Mapping[str, Any]) -> dict[str, str]:
    """What the param groups are, if there are several: `optimizer.groups`, `optimizer.group.0.weight_decay`."""
    lines = group_texts(optimizer)
    if not lines:
        return {}
    found = {f"{key}.groups": "; ".join(lines)}
    each = differing(optimizer)
    if len(each) <= MAX_GROUPS:
        found.update({f"{key}.group.{name}.{k}": text for name, own in each.items() for k, text in own.items()})
    return found
