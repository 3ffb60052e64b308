"""Makes the pictures of docs/findings from trainings of tests/scenarios: the disease, and its healthy twin beside it.

python scripts/bench/finding_pictures.py [RULE ...]
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from PIL import Image

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "findings" / "images"
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "scenarios")]

from twins import TWINS  # noqa: E402

from gradwatch.analysis.rules import Finding, diagnose  # noqa: E402
from gradwatch.history import History  # noqa: E402
from gradwatch.report.activations import as_layers  # noqa: E402

SHOWN = {  # what stands above the loss, where it is not each layer's grad_norm
    **dict.fromkeys(("weights-unchanged", "update-too-large", "update-too-small", "lr-too-high"), "update_ratio"),
    **dict.fromkeys(("optimizer-state-lost", "schedule-too-short", "warmup-too-long"), "update_ratio"),
    "no-progress": "displacement",
    **dict.fromkeys(("weights-shrink", "weight-decay-too-strong"), "weight_norm"),
    "weight-growth": "weight_norm",
    "renorm-binds": "renorm_rate",
    "attention-logits-grow": "logit_max",
    "attention-collapsed": "entropy",
    "activation-outlier": "max",
    "expert-starved": "tokens",
    "stale-second-moment": "adam_rms",
}
TOTALS = {"clip-inert", "clip-is-your-learning-rate", "clip-over-muon", "double-clip", "clip-before-unscale"} | {
    "skips-often", "clip-after-step", "clip-without-gradient",
}  # fmt: skip


def draw(rule: str) -> None:
    """One picture: per-layer norms above, the loss below; the finding's steps are shaded."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 4.2), sharey="row", sharex="col", height_ratios=(2, 1))
    part = ""
    for column, (title, train) in enumerate(TWINS[rule]):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            history = train(Path(folder))
        found = [f for root in diagnose(history) for f in (root, *root.consequences)]
        found = [f for f in found if f.rule == rule]
        part = part or next((f.optimizer for f in found), "")  # of a run of several, the one that it is said of
        history = history.lanes().get(part, history)
        quantity = SHOWN.get(rule, "grad_norm")
        history = as_layers(history, quantity) if quantity in history.activations.values else history
        panel(axes[0, column], axes[1, column], history, quantity, rule in TOTALS, found)
        axes[0, column].set_title(title, fontsize=10, loc="left")
    axes[0, 0].set_ylabel("total grad_norm" if rule in TOTALS else quantity)
    axes[1, 0].set_ylabel("loss")
    figure.tight_layout()
    file = IMAGES / f"{rule}.png"
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=80)
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(48).save(file, optimize=True)
    print(f"{file.name}: {file.stat().st_size // 1000} kB")


def panel(above: Any, loss: Any, history: History, quantity: str, total: bool, findings: list[Finding]) -> None:
    """A quantity of all layers, from the first (dark) to the last (bright), or the joint norm; and the loss below.

    Of the joint norm also what the policy left of it, dashed; as the loss of other data is, where it was logged.
    """
    values = history.total(quantity)[:, None] if total else history.layer(quantity)
    step = history.step if total else history.layer_step
    straight = quantity in ("weight_norm", "renorm_rate", "tokens")
    shown = np.where(np.isfinite(values) & (straight | (values > 0)), values, np.nan)
    colors = mpl.colormaps["viridis"](np.linspace(0, 0.92, shown.shape[1]))
    for i, color in enumerate(colors):
        there = ~np.isnan(shown[:, i]) | (quantity == "grad_norm")
        above.plot(step[there], shown[there, i], color=color, lw=1)
    if total:
        above.plot(history.step, history.total("clipped_norm"), color="#d62246", lw=1, ls="--")
    bad = history.step[history.total("nonfinite") > 0]
    above.plot(bad, np.full(len(bad), 0.97), "x", ms=3, color="#d62246", transform=above.get_xaxis_transform())
    values = history.total(next((name for name in history.logged if name == f"loss/{history.optimizer[0]}"), "loss"))
    loss.plot(history.step, values, color="#3c434d", lw=1)
    if "val_loss" in history.logged:
        measured = history.total("val_loss")
        there = np.isfinite(measured)
        loss.plot(history.step[there], measured[there], color="#d62246", lw=1, ls="--", label="val_loss")
        loss.legend(fontsize=8, frameon=False)
    above.set_yscale("linear" if straight else "log")
    positive = np.nanmin(values) > 0 and loss.get_yscale() != "symlog"  # the twins share the axis
    loss.set_yscale("log" if positive else "symlog")
    for axis in (above, loss):
        axis.grid(color="#e7eaee", lw=0.6)
        axis.tick_params(labelsize=8)
        for finding in findings:
            axis.axvspan(
                finding.first_step, max(finding.last_step, finding.first_step + 1), color="#d62246", alpha=0.08
            )
    loss.set_xlabel("step", fontsize=9)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or TWINS:
        draw(name)
