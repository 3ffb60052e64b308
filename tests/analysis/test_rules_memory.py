"""What the rules need beside a History: they look at a table of layers a few columns at a time, and copy none."""

import tracemalloc

import numpy as np
import pytest

from gradwatch.analysis.rules import RULES
from gradwatch.history import History, Layer, Run

STEPS, LAYERS = 2_000, 500
BYTES_A_CELL = 20  # a table is 4; as a float64 it is 8, and each intermediate of it 8 more


def wide_history(kind, rng):
    """Healthy noise under a loss that falls: every rule looks at all of it, and few have a word to say."""
    shape, step = (STEPS, LAYERS), np.arange(STEPS)
    norm = np.exp(rng.normal(0, 0.4, shape)).astype(np.float32)
    layers = {
        "grad_norm": norm,
        "clip_coef": np.ones(shape, np.float32),
        "clip_rate": np.zeros(shape, np.float32),
        "nonfinite": np.zeros(shape, np.float32),
        "weight_norm": np.exp(rng.normal(1, 0.01, shape)).astype(np.float32),
        "update_ratio": 1e-3 * norm,
    }
    total = np.sqrt((norm.astype(float) ** 2).sum(axis=1))
    steps = {"grad_norm": total, "clipped_norm": total, "clip_coef": np.ones(STEPS), "clip_rate": np.zeros(STEPS)}
    steps |= {"skipped": np.zeros(STEPS), "nonfinite": np.zeros(STEPS), "lr": np.full(STEPS, 1e-3)}
    steps |= {"loss": 2 * np.exp(-step / 600) + 0.05 * rng.random(STEPS)}
    names = tuple(f"blocks.{i}.weight" for i in range(LAYERS))
    made = ({"name": kind, "class": kind, "settings": {"lr": 1e-3}},)
    run = Run("wide", "2026-01-01", layers=tuple(Layer(name, (64, 64)) for name in names), optimizers=made)
    who = np.full(STEPS, kind, dtype=object)
    return History.of(run, names, step, np.zeros(STEPS, np.int64), who, layers, steps)


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_no_rule_copies_the_tables_to_float64(kind):
    history, peaks = wide_history(kind, np.random.default_rng(0)), {}
    tracemalloc.start()
    try:
        for rule in RULES:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            with np.errstate(all="ignore"):
                rule(history)
            peaks[rule.__name__] = (tracemalloc.get_traced_memory()[1] - before) / (STEPS * LAYERS)
    finally:
        tracemalloc.stop()
    assert {name: round(peak, 1) for name, peak in peaks.items() if peak > BYTES_A_CELL} == {}
