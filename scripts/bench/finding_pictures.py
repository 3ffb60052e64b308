"""Makes the pictures of docs/findings from trainings of tests/scenarios: the disease, and its healthy twin beside it.

python scripts/bench/finding_pictures.py [RULE ...]
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from PIL import Image
from torch import nn

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "findings" / "images"
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "scenarios")]

import diseases as d  # noqa: E402
import step_diseases as s  # noqa: E402

from gradwatch.analysis.rules import Finding, diagnose  # noqa: E402
from gradwatch.history import History  # noqa: E402

Train = Callable[[Path], History]
SGD, ADAM = torch.optim.SGD, torch.optim.Adam
TRAININGS: dict[str, tuple[tuple[str, Train], tuple[str, Train]]] = {
    "nonfinite": (("sqrt(x)", d.square_root), ("sqrt(x + 1e-12)", partial(d.square_root, safe=True))),
    "exploding": (
        ("RNN without a clip", partial(d.adding_rnn, gain=1.5)),
        ("ClipByGlobalNorm(1.0)", partial(d.adding_rnn, gain=1.5, clip="ClipByGlobalNorm(1.0)")),
    ),
    "vanishing": (("ten sigmoid layers", d.deep_sigmoid), ("ten ReLU layers", partial(d.deep_sigmoid, act=nn.ReLU))),
    "dead-layer": (
        ("one wrong batch, 1000 times too large", partial(d.dying_relu, lr=0.2, shock=1000.0)),
        ("no such batch", partial(d.dying_relu, lr=0.2)),
    ),
    "no-gradient": (("a head that is not used", d.two_heads), ("both heads used", partial(d.two_heads, both=True))),
    "imbalance": (
        ("inputs from 0 to 255", d.unscaled_inputs),
        ("inputs from 0 to 1", partial(d.unscaled_inputs, scale=1.0, lr=0.1)),
    ),
    "scaled-gradients": (
        ("optimizer.step()", partial(d.forgotten_scaler, kind=SGD, lr=1e-3, clip="ClipByGlobalNorm(1.0)")),
        ("scaler.step(optimizer)", partial(d.forgotten_scaler, right=True, kind=SGD, lr=0.1)),
    ),
    "gradients-accumulate": (
        ("without zero_grad()", d.never_zeroed),
        ("with zero_grad()", partial(d.never_zeroed, zero_grad=True)),
    ),
    **{
        rule: ((sick, train), (twin, partial(train, sick=False)))
        for rule, train, sick, twin in [
            ("weights-unchanged", s.rate_zero, "a schedule of 30 steps", "a schedule of 120 steps"),
            ("update-too-large", s.huge_rate, "AdamW at 1", "AdamW at 0.003"),
            ("update-too-small", s.tiny_rate, "Adam at 3e-9", "Adam at 1e-3"),
            ("weight-growth", s.runaway, "a loss without a bound", "with weight decay"),
            ("weights-shrink", s.fading, "a weight decay of 0.5", "of 1e-4"),
            ("below-epsilon", s.large_eps, "eps=10", "eps=1e-8"),
            (
                "generator-starves",
                s.starving_generator,
                "log(1 - D(G(z))), judge trained twice",
                "-log D(G(z)), in turn",
            ),
            ("softmax-twice", partial(s.softmaxed, lr=1.0), "a softmax before cross_entropy", "logits"),
            ("no-progress", s.averaged, "the average loaded back", "the average kept"),
            ("renorm-binds", s.tight_norm, "MaxNorm(0.3)", "MaxNorm(4.0)"),
            ("lr-too-high", s.rate_too_high, "Adam at 0.3", "Adam at 0.003"),
            ("clip-inert", s.inert, "ClipByGlobalNorm(100.0)", "ClipByGlobalNorm(1.5)"),
            ("clip-is-your-learning-rate", s.throttled, "ClipByGlobalNorm(0.02)", "ClipByGlobalNorm(2.0)"),
            ("double-clip", partial(s.clipped_twice, seen=False), "own lines clip to 0.25", "the policy alone"),
            ("clip-before-unscale", s.clipped_while_scaled, "clip, then unscale_", "unscale_, then clip"),
        ]
    },
    "spike": (
        ("one odd batch, no clip", s.odd_batch),
        ("the same under ClipByGlobalNorm(1.0)", partial(s.odd_batch, clip="ClipByGlobalNorm(1.0)")),
    ),
}
SHOWN = {  # what stands above the loss, where it is not each layer's grad_norm
    **dict.fromkeys(("weights-unchanged", "update-too-large", "update-too-small", "lr-too-high"), "update_ratio"),
    "no-progress": "displacement",
    "weights-shrink": "weight_norm",
    "weight-growth": "weight_norm",
    "renorm-binds": "renorm_rate",
}
TOTALS = {"clip-inert", "clip-is-your-learning-rate", "double-clip", "clip-before-unscale"}


def draw(rule: str) -> None:
    """One picture: per-layer norms above, the loss below; the finding's steps are shaded."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 4.2), sharey="row", sharex="col", height_ratios=(2, 1))
    for column, (title, train) in enumerate(TRAININGS[rule]):
        with tempfile.TemporaryDirectory() as folder:
            history = train(Path(folder))
        found = [f for root in diagnose(history) for f in (root, *root.consequences)]
        quantity = SHOWN.get(rule, "grad_norm")
        panel(axes[0, column], axes[1, column], history, quantity, rule in TOTALS, [f for f in found if f.rule == rule])
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

    Of the joint norm also what the policy left of it, dashed.
    """
    values = history.total(quantity)[:, None] if total else history.layer(quantity)
    step = history.step if total else history.layer_step
    straight = quantity in ("weight_norm", "renorm_rate")
    shown = np.where(np.isfinite(values) & (straight | (values > 0)), values, np.nan)
    colors = mpl.colormaps["viridis"](np.linspace(0, 0.92, shown.shape[1]))
    for i, color in enumerate(colors):
        there = ~np.isnan(shown[:, i]) | (quantity == "grad_norm")
        above.plot(step[there], shown[there, i], color=color, lw=1)
    if total:
        above.plot(history.step, history.total("clipped_norm"), color="#d62246", lw=1, ls="--")
    bad = history.step[history.total("nonfinite") > 0]
    above.plot(bad, np.full(len(bad), 0.97), "x", ms=3, color="#d62246", transform=above.get_xaxis_transform())
    values = history.total("loss")
    loss.plot(history.step, values, color="#3c434d", lw=1)
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
    for name in sys.argv[1:] or TRAININGS:
        draw(name)
