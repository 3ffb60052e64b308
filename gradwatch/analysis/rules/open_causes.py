"""What stands between inputs and loss where nothing gets better and no step is at fault: by what the record shows.

Legend: L layers.
"""

from __future__ import annotations

import math

import numpy as np

from gradwatch.analysis.rules.facts import set_rate
from gradwatch.analysis.rules.finding import Why, either
from gradwatch.analysis.rules.layer_facts import matrices, measured, root_mean_square, shapes_of
from gradwatch.analysis.rules.loss_graph import given_data
from gradwatch.analysis.rules.progress import Progress
from gradwatch.analysis.rules.sampled_losses import inside
from gradwatch.analysis.rules.tries import new_rate, rate_times
from gradwatch.formatting import quantity_text
from gradwatch.history import History

_OUT_OF_REACH = (
    "the learning rate is far too low for these gradients",
    "they come from a small part of the loss, and the rest of it has no slope (a cut, a round, an argmax, a detach)",
)


def reach(history: History) -> float:
    """The most by which the steps of the whole run could have lowered a loss, to first order; NaN if not measured.

    The sum over layers and steps of gradient norm x length of the step: what they win if each goes straight downhill.
    Source: Cauchy and Schwarz on the first term of Taylor's series.
    """
    at, lengths = measured(history, "update_norm")
    if not len(at):
        return float("nan")
    won = np.nansum(lengths.astype(np.float64) * history.layer("clipped_norm")[at], axis=1)
    return float(won.mean() * len(history))


def out_of_reach(history: History, loss: Progress, share: float = 0.02, part: float = 0.1) -> Why | None:
    """Steps that all together could not have lowered a loss by more than a `share` of its first value: what to do.

    The rate is raised by the power of ten that brings that next to the `part` of it.
    """
    won = reach(history)
    if not 0 < won < share * abs(loss.first):
        return None
    times = 10.0 ** max(1, round(math.log10(part * abs(loss.first) / won)))
    return Why(
        f"All steps of the run together could lower it by no more than {quantity_text(won)} of {loss.first:.4g}, even "
        f"if each led straight downhill (gradient times step, summed). {either(_OUT_OF_REACH)}",
        f"Raise the learning rate to {new_rate(history, times)}; if that throws the loss up, to a tenth of it. If it "
        "stays where it is, take the gradient of each term of the loss by itself: one that has none is cut off, or "
        "flat.",
        {"reach": won, "lr": set_rate(history)},
        (rate_times(times), rate_times(times / 10)),
        _OUT_OF_REACH,
    )


_LEFT = (
    "nothing in the batches leads to their targets",
    "the loss does not reward it (its sign, its reduction, what is detached)",
)


def left_open(history: History) -> Why:
    """What tells the causes apart that remain, the cheapest first: the inputs, whose gradient is whose, one batch."""
    shown = _between(history)
    if shown:
        return shown
    kinds = history.run.modules.values()
    mixes = any("BatchNorm" in kind for kind in kinds)
    recurs = any(kind.startswith(("RNN", "LSTM", "GRU")) for kind in kinds)
    state = ", and a state forgets what is many steps back (begin a forget gate's bias at 1 to 3)" if recurs else ""
    data = given_data(history)
    given = [name for name in history.layers if name in data]
    cut = "".join(
        f" (4) `{name}` is given numbers that ask for no gradient. If the model makes them, they were detached on "
        "their way: sample() for rsample(), detach(), an argmax."
        for name in given[1:2]
    )
    return Why(
        f"The steps lead away from where they began, and win nothing. {either(_LEFT)}",
        "Look, the cheapest first. (1) Print the mean and the deviation of each column or channel of the inputs "
        "where they enter the model: far from 0 and 1, bring them there. (2) Backward from the output of one row, "
        "out[0].sum().backward(), with inputs that require a gradient: if other rows get one, rows are mixed (a "
        "reshape without its transpose, batch_first, a softmax over the batch)"
        + (" by more than BatchNorm, which does so itself: with fewer than 8 rows take LayerNorm" if mixes else "")
        + ". (3) Train on one batch again and again. If its loss falls, look at how inputs and targets are put "
        "together, and at dropout and augmentation; if not, at the loss, its sign, and what lies between it and the "
        f"weights: rounds of averages or many layers without residual connections make all outputs alike{state}.{cut}",
        {},
        alternatives=_LEFT,
    )


def _between(history: History) -> Why | None:
    """A layer that hands on nothing, or never did: a norm over one feature, biases that hold gates or units shut; or
    that something does so, as the last layer shows.
    """
    kinds, shapes = history.run.modules, shapes_of(history)
    for name, shape in shapes.items():
        module = name.rpartition(".")[0]
        if kinds.get(module) in ("LayerNorm", "RMSNorm") and int(np.prod(shape)) == 1:
            return Why(
                f"`{module}` is a {kinds[module]} over one feature: less its own mean that is 0, whatever came before.",
                f"Take `{module}` away, or let it norm the features before they become one.",
                {"norm_over_one": module},
            )
    return _shut(history) or _alike(history)


def _shut(history: History, far: float = 3.0) -> Why | None:
    """Biases that began further than `far` from 0 by the element: torch's begin within 1 / sqrt(fan in)."""
    _, norm = measured(history, "weight_norm")
    if not len(norm):
        return None
    rms = root_mean_square(history, norm[0].astype(np.float64))
    biases = np.array(["bias" in name.rpartition(".")[2] for name in history.layers], bool) & ~matrices(history)
    which = np.flatnonzero(biases & (rms > far))
    if not len(which):
        return None
    name = history.layers[int(which[0])]
    return Why(
        f"The elements of {name} began at {rms[which[0]]:.2g} (root mean square), where torch's begin within 1: units "
        "or gates that it holds shut pass nothing on, whatever is learnt behind them.",
        f"Begin {name} at 0; the forget gate of an LSTM at 1, so that it keeps what it has.",
        {"bias": name, "bias_rms": float(rms[which[0]])},
    )


def _alike(history: History, same: float = 0.999, always: float = 0.99) -> Why | None:
    """The last layer is given the same for every example, but for a share of 1 - `same`, from the first sample on.

    Of that share of its square is its mean (`inside`). Of trainings of the tests that learn it is .996 at most, and of
    one 1: its inputs are angles between vectors of one length.
    """
    seen = inside(history, "end_alike")
    if seen is None or min(seen.first, seen.last) < same or seen.least < always:
        return None
    return Why(
        f"What `{seen.layer}` is given is the same for every example, but for {1 - seen.last:.1g} of it: what tells "
        "them apart is lost before that.",
        "Follow two unlike examples through the model and print how far apart they are behind each module: where that "
        "falls to nothing is the cause. Often it is a sigmoid, a softmax or a ReLU that is flat for all, rounds of "
        "averages, weights that begin far too small, or a state that has faded.",
        {"alike": seen.last, "layer": seen.layer},
    )
