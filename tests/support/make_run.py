"""Synthetic runs for tests of the read side: no torch, no training."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from gradwatch.history import History, Layer, Run
from gradwatch.storage.folder import create_folder, now_iso
from gradwatch.storage.lazy_block import LazyBlock
from gradwatch.storage.shared_folder import create_part, create_shared, read_facts
from gradwatch.storage.writer import RunWriter

LAYERS = (
    "embed.weight",
    "blocks.0.attn.weight",
    "blocks.0.mlp.weight",
    "blocks.1.attn.weight",
    "blocks.1.mlp.weight",
    "head.weight",
    "head.bias",
)


def make_history(
    steps=200,
    layers=LAYERS,
    seed=0,
    clip="ClipByGlobalNorm(1.0)",
    max_norm=1.0,
    nan_at=None,
    every=10,
    logged=("loss", "val_accuracy"),
    **run,
):
    """A History as the train side would hand it over: lognormal norms, a global clip, NaN in one layer at `nan_at`."""
    rng = np.random.default_rng(seed)
    t, n = steps, len(layers)
    norms = (rng.lognormal(-1.5, 0.6, (t, n)) * np.linspace(0.5, 1.5, n)).astype(np.float32)
    if nan_at is not None:
        norms[nan_at, 2] = np.nan
    finite = np.isfinite(norms)
    total = np.sqrt((norms.astype(np.float64) ** 2).sum(axis=1))
    coef = np.minimum(max_norm / (total + 1e-6), 1.0) if clip else np.ones(t)
    coef32 = np.repeat(coef[:, None], n, axis=1).astype(np.float32)
    slow = np.where(np.arange(t)[:, None] % every == 0, 1.0, np.nan).astype(np.float32)
    per_layer = {
        "grad_norm": norms,
        "clip_coef": coef32,
        "clip_rate": (coef32 != 1).astype(np.float32),
        "nonfinite": (~finite).astype(np.float32),
        "weight_norm": slow * np.linspace(1, 5, n, dtype=np.float32) * (1 + np.arange(t)[:, None] / t),
        "update_ratio": slow * norms * 1e-3,
    }
    step = np.arange(t, dtype=np.int64)
    per_step = {
        "time": 1.7e9 + step * 0.05,
        "grad_norm": total,
        "clipped_norm": total * coef,
        "clip_coef": coef,
        "clip_rate": (coef != 1).astype(float),
        "skipped": np.zeros(t),
        "nonfinite": (~finite).sum(axis=1).astype(float),
        "lr": np.full(t, 0.1),
    }
    curves = {
        "loss": 2.3 * np.exp(-step / 80) + 0.05 * rng.random(t),
        "val_accuracy": np.where(step % 25 == 24, 1 - np.exp(-step / 60), np.nan),
    }
    per_layer = {q: v.astype(np.float32) for q, v in per_layer.items()}
    per_step.update({name: curves.get(name, rng.random(t)) for name in logged})
    info = Run(
        **{
            "name": "mlp",
            "created": now_iso(),
            "layers": tuple(Layer(name, (4, 4)) for name in layers),
            "optimizers": ({"name": "SGD", "class": "SGD", "settings": {"lr": 0.1, "momentum": 0.0}},),
            "clip": clip,
            "every": every,
            "total_steps": steps,
            "window": max(1, -(-steps // 300)),
            "params": {"seed": str(seed)},
            **run,
        }
    )
    return History.of(
        info, tuple(layers), step, np.zeros(t, np.int64), np.array(["SGD"] * t, dtype=object), per_layer, per_step
    )


def changed(history, per_layer=None, per_step=None, layers=None, **keys):
    """The history with other values; `step`, `attempt` and `optimizer` are those of both tables."""
    keys = {name: np.asarray(values, object if name == "optimizer" else np.int64) for name, values in keys.items()}
    by_layer = replace(history.by_layer, values=per_layer or history.per_layer, layers=layers or history.layers, **keys)
    return replace(
        history, by_layer=by_layer, by_step=replace(history.by_step, values=per_step or history.per_step, **keys)
    )


def as_block(history):
    """The steps of a history as a Watch hands them to a writer."""
    return LazyBlock(history.step, history.layers, history.sampled, True, lambda: history)


def make_run(parent: Path, close="FINISHED", blocks=4, **options):
    """Write `make_history(**options)` as a run folder, in several parts; returns the folder."""
    history = make_history(**options)
    folder = create_folder(Path(parent), history.run.name)
    (folder / "model.txt").write_text("Net(\n  (embed): Embedding(4, 4)\n)\n")
    writer = RunWriter(folder, history.run, flush_seconds=0.01)
    size = max(1, len(history) // blocks)
    for start in range(0, len(history), size):
        writer.append(as_block(history.slice(start, start + size)))
    if close:
        writer.close(close)
    return folder


def write_shared(parent, name="gan", **parts):
    """A run of several parts out of synthetic histories: `part=history`; returns its folder."""
    shared = create_shared(parent, name)
    for part, history in parts.items():
        optimizers = tuple({**optimizer, "name": part} for optimizer in history.run.optimizers)
        run = replace(history.run, name=f"{name}/{part}", part=part, optimizers=optimizers)
        writer = RunWriter(create_part(shared, read_facts(shared), part), run, flush_seconds=0.01)
        layers = tuple(f"{part}.{layer}" for layer in history.layers)
        run = replace(run, layers=tuple(replace(a, name=b) for a, b in zip(run.layers, layers, strict=True)))
        writer.update(layers=run.layers)
        writer.append(as_block(changed(replace(history, run=run), layers=layers, optimizer=[part] * len(history))))
        writer.close(history.run.status if history.run.status != "RUNNING" else "FINISHED")
    return shared


def same(a, b):
    assert a.layers == b.layers
    for x, y in ((a.step, b.step), (a.attempt, b.attempt)):
        np.testing.assert_array_equal(x, y)
    for left, right in ((a.per_layer, b.per_layer), (a.per_step, b.per_step)):
        assert left.keys() == right.keys()
        for name in left:
            np.testing.assert_array_equal(left[name], right[name])


def write_parts(folder, history, count):
    """`count` parts, one flush each."""
    writer = RunWriter(folder, history.run, flush_seconds=1000)
    bounds = np.linspace(0, len(history), count + 1).astype(int)
    for start, stop in pairwise(bounds):
        writer.pending.append(as_block(history.slice(start, stop)))
        writer._flush()
    writer.close()
