"""What rules ask of a run: its optimizers, its learning rates, its clip, and what is usual for it.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from gradwatch.analysis.clips import of_all_layers
from gradwatch.analysis.optimizers import groups
from gradwatch.analysis.rules.loss_graph import number_of_classes
from gradwatch.analysis.rules.once import once
from gradwatch.history import Bools, Floats, History, Layer
from gradwatch.policies import (
    AGC,
    ClipByAverageNorm,
    ClipByGlobalNorm,
    ClipByNorm,
    ClipByValue,
    Policy,
    SkipNonfinite,
    SkipNorm,
    SkipSpike,
)
from gradwatch.policies.grammar import members
from gradwatch.policies.threshold import Ramp

ADAPTIVE = re.compile(r"^ada|adam|rmsprop|rprop|lion|lamb|lars|muon|sophia|shampoo|soap|prodigy|came", re.IGNORECASE)
_OWN_LENGTH = re.compile(r"^rprop|adadelta|prodigy|dadapt", re.IGNORECASE)
TOGETHER = 8_192  # medians of `trailing` that are taken at once: 8 MB of windows
LEAST_STEPS = 32  # from so many on `trailing` knows what is usual: the least that a verdict can rest on
USUAL_RATIO = {True: 0.008, False: 0.04}  # measured update ratios: Adam at 1e-3, SGD at 0.5
GUARD = "{guard}"  # in a cure: a clip that leaves healthy steps alone (`guard.with_guard` fills it in)
FIXED = (ClipByGlobalNorm, ClipByNorm, ClipByAverageNorm, ClipByValue, AGC)  # thresholds that someone chose


# -------------------------------------------------------------------------------------------------------- optimizers


def own_optimizers(history: History) -> list[dict[str, Any]]:
    """What the manifest says of the optimizers whose steps these are; of all where it cannot tell."""
    names = {part for name in dict.fromkeys(history.optimizer) for part in str(name).split("+")}
    return [o for o in history.run.optimizers if o.get("name") in names] or list(history.run.optimizers)


def is_adaptive(history: History) -> bool:
    """Whether the step's size does not depend on the scale of the gradients (Adam and its kin, for all optimizers)."""
    own = own_optimizers(history)
    return bool(own) and all(ADAPTIVE.search(str(o.get("class", ""))) for o in own)


def steps_by_rate(history: History) -> bool:
    """Whether the rate sets the length of a step: under those of Adam's kin that do not find it themselves."""
    return is_adaptive(history) and not _OWN_LENGTH.search(optimizer_kind(history))


def optimizer_kind(history: History) -> str:
    """The optimizers' classes as words: `Adam`, `Adam and SGD`; `the optimizer` where none is recorded."""
    return " and ".join(dict.fromkeys(str(o["class"]) for o in own_optimizers(history) if o.get("class"))) or (
        "the optimizer"
    )


def rates(history: History) -> Floats:
    """The learning rates of all param groups, `[T, G]`; NaN where none was recorded."""
    names = [n for n in history.per_step if n == "lr" or n.startswith("lr/")]
    return np.stack([history.total(n) for n in names], axis=1) if names else np.full((len(history), 1), np.nan)


def settings(history: History) -> list[dict[str, Any]]:
    """The settings of each param group of these optimizers."""
    return [group for optimizer in own_optimizers(history) for group in groups(optimizer).values()]


def initial_sum(history: History) -> float:
    """What Adagrad's sum of squares began with (`initial_accumulator_value`); 0 for others."""
    begun = [group.get("initial_accumulator_value") for group in settings(history)]
    return max((float(value) for value in begun if isinstance(value, int | float)), default=0.0)


def set_rate(history: History, group: int = 0) -> float:
    """The learning rate that was set for this param group; NaN where none was recorded.

    The highest in force: a schedule warms up to what was set, or decays from it, and advice that was relative to one of
    its values on the way could not be followed.
    """
    every = rates(history)
    found = every[:, group][np.isfinite(every[:, group])] if group < every.shape[1] else every[:0, 0]
    return float(found.max()) if len(found) else float("nan")


def to_usual(history: History, ratio: float) -> float:
    """By what the rate is multiplied for steps of this update ratio to become usual ones, to a digit."""
    return float(f"{USUAL_RATIO[is_adaptive(history)] / ratio:.0e}")


# -------------------------------------------------------------------------------------------------------------- clip


def clips(history: History) -> list[Policy | str]:
    """The run's policies that change gradients (those that only skip are left out); by name the unknown ones."""
    return [p for p in members(history.run.clip) if not isinstance(p, SkipNonfinite | SkipNorm | SkipSpike)]


# ------------------------------------------------------------------------------------------------------------ layers


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
    """Whether the last of the model's modules is of one of these classes.

    Modules stand as they were made: a normalisation made just before it says that both are inside of a block, as the
    dropouts of torch's TransformerEncoderLayer are.
    """
    own = list(history.run.modules.values())
    before = next((kind for kind in reversed(own) if kind != own[-1]), "")
    return bool(own) and own[-1] in kinds and "Norm" not in before


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


# ------------------------------------------------------------------------------------------------------------- usual


def steps_taken(history: History) -> int:
    """The steps that were taken, not dropped; of several optimizers (or parts) that step apart, the fewest."""
    taken = ~(history.total("skipped") > 0)
    return min((int(taken[rows].sum()) for rows in history.lane_rows().values()), default=0)


def typical(norm: Floats, over: Floats) -> Floats:
    """The median of the norms above 0 of each layer, `[R, L]`, over a number of its own, `[L]`; NaN without any."""
    return np.array([middle(c[c > 0].astype(np.float64) / root) for c, root in zip(norm.T, over, strict=True)])


def middle(values: Floats) -> float:
    """The median of the finite values; NaN where there are none."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def trailing(values: Floats, window: int = 128, least: int = LEAST_STEPS, block: int = 8) -> tuple[Floats, Floats]:
    """For each value the median of the `window` finite ones before it, and their robust standard deviation.

    NaN until there are `least` of them. Taken once in `block` steps: a median hardly moves in so few. Robust: 1.4826
    times the median distance from the median, so that what stands out does not hide itself.
    """
    finite = np.flatnonzero(np.isfinite(values))
    known = values[finite]
    ends = np.searchsorted(finite, np.arange(0, len(values), block))  # how many finite values lie before each block
    centre, spread = np.full(len(ends), np.nan), np.full(len(ends), np.nan)
    full = np.flatnonzero(ends >= window)
    for at in np.array_split(full, -(-len(full) // TOGETHER)) if len(full) else ():
        past = np.lib.stride_tricks.sliding_window_view(known, window)[ends[at] - window]
        centre[at] = np.median(past, axis=1)
        spread[at] = np.median(np.abs(past - centre[at, None]), axis=1)
    for i in np.flatnonzero((least <= ends) & (ends < window)):
        centre[i] = np.median(known[: ends[i]])
        spread[i] = np.median(np.abs(known[: ends[i]] - centre[i]))
    return np.repeat(centre, block)[: len(values)], 1.4826 * np.repeat(spread, block)[: len(values)]


def smooth(values: Floats, width: int = 9) -> Floats:
    """The median of each value and the `width` - 1 before it, over finite values: one odd step leaves no trace."""
    if len(values) < width:
        return np.asarray(values, np.float64)
    padded = np.concatenate([np.full(width - 1, values[0]), values])
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1))


def threshold(text: str | None) -> float | None:
    """The limit that the policy `text` puts on the total L2 norm, if it is one that can be drawn as a line.

    Only ClipByGlobalNorm limits that norm, alone or in a chain.
    """
    global_norms = (p for p in members(text, of_all_layers=True) if isinstance(p, ClipByGlobalNorm))
    limits = (p.max_norm for p in global_norms if p.norm_type == 2)
    return next((limit for limit in limits if 0 < limit < float("inf")), None)


def limits_of(history: History) -> Floats | None:
    """The limit on the total norm in each step, `[T]`: the policy's, else that of the loop's own clip; None where there
    is none to be drawn.

    A ramp moves with the steps that were taken; those before the first row count as such.
    """
    limit = threshold(history.run.clip)
    if not len(history):
        return None
    if isinstance(limit, Ramp):
        taken = np.isfinite(history.total("grad_norm")) & ~(history.total("nonfinite") > 0)
        taken &= ~(history.total("skipped") > 0)
        return np.asarray(limit.at(history.step[:1].sum() + np.cumsum(taken) - taken))
    limits = np.unique(history.total("user_max_norm"))
    limits = limits[np.isfinite(limits) & (limits > 0)]
    own = float(limits[0]) if len(limits) == 1 and of_all_layers(history).all() else None
    limit = limit or own
    return np.full(len(history), limit) if limit else None
