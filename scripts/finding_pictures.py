"""Makes the pictures of docs/findings from trainings of tests/scenarios: the disease, and its healthy twin beside it.

python scripts/finding_pictures.py [RULE ...]
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

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "findings" / "images"
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "scenarios")]

import diseases as d  # noqa: E402

from gradwatch.history import History  # noqa: E402
from gradwatch.rules import Finding, diagnose  # noqa: E402

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
}


def draw(rule: str) -> None:
    """One picture: per-layer norms above, the loss below; the finding's steps are shaded."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 4.2), sharey="row", sharex="col", height_ratios=(2, 1))
    for column, (title, train) in enumerate(TRAININGS[rule]):
        with tempfile.TemporaryDirectory() as folder:
            history = train(Path(folder))
        found = [f for root in diagnose(history) for f in (root, *root.consequences)]
        panel(axes[0, column], axes[1, column], history, [f for f in found if f.rule == rule])
        axes[0, column].set_title(title, fontsize=10, loc="left")
    axes[0, 0].set_ylabel("grad_norm")
    axes[1, 0].set_ylabel("loss")
    figure.tight_layout()
    file = IMAGES / f"{rule}.png"
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=80)
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(48).save(file, optimize=True)
    print(f"{file.name}: {file.stat().st_size // 1000} kB")


def panel(norms: Any, loss: Any, history: History, findings: list[Finding]) -> None:
    """The norms of all layers, from the first (dark) to the last (bright), and the loss, over the steps."""
    shown = np.where(history.layer("grad_norm") > 0, history.layer("grad_norm"), np.nan)
    shown = np.where(np.isfinite(shown), shown, np.nan)
    colors = mpl.colormaps["viridis"](np.linspace(0, 0.92, len(history.layers)))
    for i, color in enumerate(colors):
        norms.plot(history.step, shown[:, i], color=color, lw=1)
    bad = history.step[history.total("nonfinite") > 0]
    norms.plot(bad, np.full(len(bad), 0.97), "x", ms=3, color="#d62246", transform=norms.get_xaxis_transform())
    loss.plot(history.step, history.total("loss"), color="#3c434d", lw=1)
    for axis in (norms, loss):
        axis.set_yscale("log")
        axis.grid(color="#e7eaee", lw=0.6)
        axis.tick_params(labelsize=8)
        for finding in findings:
            axis.axvspan(finding.first_step, finding.last_step, color="#d62246", alpha=0.08, lw=0)
    loss.set_xlabel("step", fontsize=9)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or TRAININGS:
        draw(name)
