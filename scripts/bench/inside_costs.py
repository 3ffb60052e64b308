"""Counts the operations that looking inside adds to a step: ATen calls that are no views, on a CPU.

python scripts/bench/inside_costs.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import gradwatch

STEPS, EVERY = 8, 4  # step 4 is sampled and measured, step 5 is not


class Count(TorchDispatchMode):
    """How many operations ran that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += not (func.is_view or "detach" in func.name())
        return func(*args, **(kwargs or {}))


def calls(parts: int = 1, **asked: Any) -> tuple[int, int]:
    """Of a step of so many micro-batches that is sampled and measured, and of one that is neither."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        watch = gradwatch.watch(model, optimizer, log=None, delivery="none", dir=Path(folder), every=EVERY,
                                verbose=False, flush_every=600.0, **asked)  # fmt: skip
        for _ in range(STEPS):
            optimizer.zero_grad()
            with Count() as seen:
                for _ in range(parts):
                    model(torch.ones(2, 8, 32)).square().mean().backward()
                optimizer.step()
            found.append(seen.calls)
        watch.close()
    return found[EVERY], found[EVERY + 1]


if __name__ == "__main__":
    for name, asked in {
        "activations": {"activations": True, "activations_every": EVERY},
        "slots": {"slots": True},
        "histogram_every": {"histogram_every": EVERY},
        "singular_values": {"singular_values": True},
        "noise_scale": {"noise_scale": True, "parts": 2},
        "split": {"split": {"*.in_proj_weight": (0, 12)}},
        "rows": {"rows": ("*in_proj_weight",)},
        "QKClip": {"renorm": "QKClip(100.0)"},
        "MaxSpectral": {"renorm": "MaxSpectral(100.0)"},
    }.items():
        plain = calls(int(asked.get("parts", 1)))
        more = [after - before for after, before in zip(calls(**asked), plain, strict=True)]
        print(json.dumps({"switch": name, "sampled": more[0], "other": more[1], "plain": plain}))
