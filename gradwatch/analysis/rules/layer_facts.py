"""What rules ask of a run's layers: which are matrices and tables, how large they are, and what was measured of them.

Legend: R rows of the layers' table, M of them in which a quantity was measured, L layers.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from gradwatch.analysis.rules.facts import middle
from gradwatch.analysis.rules.loss_graph import neighbours, number_of_classes, paths
from gradwatch.analysis.rules.once import once
from gradwatch.history import Bools, Floats, History, Layer


@once
def columns(history: History) -> dict[str, int]:
    """The column of each layer in a table `[R, L]`, by name: a search for each of 10,000 takes minutes."""
    return {name: i for i, name in enumerate(history.layers)}


@once
def shapes_of(history: History) -> dict[str, tuple[int, ...]]:
    """The shape of each layer that the manifest knows, by name."""
    return {layer.name: layer.shape for layer in history.run.layers}


@once
def matrices(history: History) -> Bools:
    """Which layers are weights of two or more dimensions, `[L]`: biases and gains begin at 0 or 1 and tell little."""
    return np.array([len(shapes_of(history).get(name, (1, 1))) >= 2 for name in history.layers], bool)


@once
def numel(history: History) -> Floats:
    """The elements of each layer, `[L]`; 1 where the manifest does not know it."""
    return np.array([max(1, math.prod(shapes_of(history).get(name, ()))) for name in history.layers], np.float64)


# What torch's weight_norm, spectral_norm and prune make of `weight`, by either of their two ways.
_REPARAMETRISED = re.compile(r"(parametrizations\.weight\.original[01]?|weight_(orig|v|g))$")


def beside_bias(weight: str) -> str:
    """The name of the bias beside a weight: `rnn.bias_ih_l0` for `rnn.weight_ih_l0`; others keep their own."""
    head, dot, own = _REPARAMETRISED.sub("weight", weight).rpartition(".")
    return f"{head}{dot}{own.replace('weight', 'bias')}"


@once
def bias_columns(history: History) -> dict[int, int]:
    """The column of the bias beside each weight that has one, by that of the weight."""
    found = {i: columns(history).get(beside_bias(name), i) for i, name in enumerate(history.layers)}
    return {weight: bias for weight, bias in found.items() if bias != weight}


def last_matrix(history: History) -> Layer | None:
    """The last weight of two dimensions: its rows are the classes, where the run is a classification."""
    return next((layer for layer in reversed(history.run.layers) if len(layer.shape) == 2), None)


@once
def embeddings(history: History) -> Bools:
    """Which layers are the tables of embeddings, `[L]`: their rows begin at unit variance, whatever their size."""
    kinds = history.run.modules
    return np.array(["Embedding" in kinds.get(name.rpartition(".")[0], "") for name in history.layers], bool)


def initial_gains(history: History) -> Floats:
    """By what each matrix multiplied a signal when first measured, `[L]`: rms x sqrt(fan in); NaN for other layers.

    torch's layers begin at 0.58, He's initialisation at 1.41. A row of an embedding is looked up, not summed: its gain
    is its root mean square, and known where that is above 1. Those that were not measured are NaN too.
    Source: He et al., arXiv:1502.01852, equation 7.
    """
    _, norm = measured(history, "weight_norm")
    fans = np.array([max(1, math.prod(shapes_of(history).get(name, ())[1:])) for name in history.layers], np.float64)
    which, tables = matrices(history), embeddings(history)
    if not len(norm):
        return np.full(len(which), np.nan)
    rms = root_mean_square(history, norm[0])
    return np.where(which & (~tables | (rms > 1)), rms * np.where(tables, 1, np.sqrt(fans)), np.nan)


def chance_loss(history: History) -> float:
    """The cross-entropy of equal probabilities for all classes, log C; NaN where C is below 3.

    C is that of the graph of the loss; where this does not show it, the rows of the last matrix.
    """
    last, classes = last_matrix(history), number_of_classes(history)
    classes = classes or (last.shape[0] if last is not None else 1)
    return math.log(classes) if classes > 2 else math.nan


def ends_in(history: History, *kinds: str) -> bool:
    """Whether the last of the model's modules is of one of these classes, and behind its last weights.

    Modules stand as they were made: a normalisation made just before it says that both are inside of a block, as the
    dropouts of torch's TransformerEncoderLayer are. Where the graph of the loss is known it tells what is behind them.
    """
    own = list(history.run.modules.values())
    if not own or own[-1] not in kinds:
        return False
    before = next((kind for kind in reversed(own) if kind != own[-1]), "")
    behind = {above for path, _ in paths(history) for above, _ in [*neighbours(path)][-1:]}
    return "Norm" not in before and (not behind or bool(behind & _OPERATIONS.get(own[-1], behind)))


# What the modules of `ends_in` are in a graph; a dropout is a product with 0 and 1 / (1 - p) on a CPU.
_OPERATIONS = {
    "ReLU": {"Relu"},
    "Sigmoid": {"Sigmoid"},
    "Tanh": {"Tanh"},
    "Softmax": {"Softmax", "SafeSoftmax"},
    "Softmax2d": {"Softmax", "SafeSoftmax"},
    "Dropout": {"Mul", "NativeDropout"},
}


def root_mean_square(history: History, norm: Floats) -> Floats:
    """Norms of layers, `[L]` or `[R, L]`, an element of them."""
    return np.asarray(norm / np.sqrt(numel(history)))


def began_at_zero(history: History) -> Bools:
    """Which weight matrices were 0 when first measured, `[L]`: products of them pass no gradient on."""
    _, norm = measured(history, "weight_norm")
    return matrices(history) & (norm[0] == 0) if len(norm) else np.zeros(len(history.layers), bool)


@once
def present(history: History) -> Bools:
    """Whether a layer had a gradient in a step, `[R, L]`. A NaN norm does not say: so has a gradient that is NaN."""
    return ~np.isnan(history.layer("nonfinite")) | ~np.isnan(history.layer("grad_norm"))


@once
def measured(history: History, quantity: str) -> tuple[np.ndarray[Any, np.dtype[np.intp]], Floats]:
    """The rows of the layers in which a quantity of every few steps was measured, and its values there, `[M, L]`.

    Only layers that a gradient had reached by then count: of others (frozen ones) it is NaN.
    """
    values = history.layer(quantity)
    rows = np.flatnonzero(~np.isnan(values).all(axis=1))
    had = present(history)
    first = np.where(had.any(axis=0), had.argmax(axis=0), len(had)) if len(had) else np.zeros(had.shape[1])
    values = values if len(rows) == len(values) else values[rows]  # as a rule nothing is left out, and nothing copied
    early = rows[:, None] < first
    values = np.where(early, np.nan, values) if early.any() else values
    known = ~np.isnan(values).all(axis=1)
    return (rows, values) if known.all() else (rows[known], values[known])


def largest_ratio(history: History, last: int | None = None) -> float:
    """The largest update ratio of a weight's median over the run, or up to a row `last`; 0 where none was measured."""
    at, ratio = measured(history, "update_ratio")
    ratio = ratio[slice(None) if last is None else history.layer_rows[at] <= last][:, matrices(history)]
    known = ratio[:, ~np.isnan(ratio).all(axis=0)]
    return float(np.nanmedian(known, axis=0).max()) if known.size else 0.0


@once
def directness(history: History) -> tuple[float, Floats]:
    """The steps from one measurement to the next, and how far each layer gets in them as a share of the way, `[L]`.

    1 on a straight line, the root of 1 / steps on a random walk, 0 for weights that are put back; NaN if not measured.
    """
    ratio, away = history.layer("update_ratio"), history.per_layer.get("displacement")
    at = np.flatnonzero(np.isfinite(ratio).any(axis=1))
    if len(at) < 2:
        return 1.0, np.full(len(history.layers), np.nan)
    every = float(np.median(np.diff(history.layer_rows[at])))
    if away is None:
        return every, np.full(len(history.layers), np.nan)
    ways = (away[at, i] / (ratio[at, i].astype(np.float64) * every) for i in range(len(history.layers)))
    return every, np.array([middle(way) for way in ways])


def pick(history: History, which: Bools) -> tuple[str, ...]:
    """The names of the layers in a mask `[L]`."""
    return tuple(name for name, hit in zip(history.layers, which, strict=True) if hit)
