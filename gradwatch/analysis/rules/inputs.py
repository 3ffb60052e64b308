"""The size of what the model is given, by the gradients of its first layer.

Legend: R rows of the layers' table.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gradwatch.analysis.rules.activation_facts import TWO_ENDED
from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.layer_facts import (
    beside_bias,
    bias_columns,
    columns,
    embeddings,
    initial_gains,
    matrices,
    root_mean_square,
    shapes_of,
)
from gradwatch.analysis.rules.loss_graph import given_data
from gradwatch.analysis.rules.losses import first_values
from gradwatch.analysis.rules.progress import reaches_its_goal, succeeds
from gradwatch.analysis.rules.sampled_losses import given, in_the_beginning, inside
from gradwatch.analysis.rules.standstill import equal_odds
from gradwatch.analysis.rules.vanishing_causes import SATURATING
from gradwatch.history import Floats, History


def inputs_not_normalised(
    history: History, large: float = 20.0, small: float = 0.05, beyond: float = 1e4, least: int = 5
) -> list[Finding]:
    """What comes into the first layer is far larger, or far smaller, than 1. A warning.

    A layer's gradient is the sum of d x' over the rows of a batch, its bias's the sum of d (d: the gradient of its
    output, x: its input). The quotient of their norms is about the norm of an x, and over the root of the fan in about
    the root mean square of its elements. Alarm: by the median step the latter is above `large`, or the former below
    `small`. Above `beyond`, where there is a norm, the bias's gradient is nothing but rounding, as before a batch norm.
    Asked of the first matrix, if it is no embedding (but see `_beside_tables`) and has a bias, in `least` steps at
    least; of a recurrent one only whether it is large, as its gradient may come from time steps without any input. A
    note where the training succeeds and its loss began where that of equal probabilities does, or where another metric
    got better by half, unless what comes in holds three in four elements of a sigmoid or tanh at their ends throughout,
    or the first cross-entropy was `FAR` times that of equal odds. Of units with two ends that what comes in holds at
    these from the start, no gradient tells its size: see `_at_their_ends`. Of a later matrix it is said where what
    comes in is `large` times what came into those before it (`too_large_inside`). Where the graphs of the losses show
    which layers are given data, it is said of those alone. Where the batches that were looked at (`given`) are of a
    usual size it is not said, and where they are above `large` it is, whatever gradients do.
    Source: LeCun et al. 1998, Efficient BackProp, section 4.3 (inputs of zero mean and unit variance).
    """
    measured = given(history)
    if measured and measured[1] > large:
        layer, rms = measured
    else:
        found = _by_gradients(history, large, small, beyond, least)
        if isinstance(found, Finding) or found is None:
            return [found] if found else []
        layer, rms = found
    what = "far above" if rms > large else "far below"
    ends = inside(history, "saturated")  # what learns by the few units between is slowed down all the same
    held = rms > large and ends is not None and ends.least > 0.75
    held |= rms > large and first_odds(history) > FAR
    fine = not held and (reaches_its_goal(history, 0.5) or learns_from_chance(history))
    return [
        whole_run(
            history,
            "inputs-not-normalised",
            (layer,),
            {"input_rms": rms, "usual": "about 1"},
            f"The numbers that come into {layer} are of the order of {rms:.1g}, {what} 1: the gradients of its weights "
            "are as much larger or smaller than those of its bias. Steps that suit it do not suit the other layers.",
            "Normalise the inputs: subtract the mean and divide by the standard deviation of the training data (images "
            "of bytes: divide by 255).",
            severity="note" if fine else "warning",
        )
    ]


LARGE_GAIN = 3.5  # of a matrix as it began (`bad_initialisation`)
FAR = 4.0  # in healthy trainings of the tests 2.8 at most, but of a net that was taught another task before: 4.2


def first_odds(history: History) -> float:
    """How many times that of equal odds the first cross-entropy of logits was; NaN where not known.

    Source: Karpathy 2019, A Recipe for Training Neural Networks ("verify loss @ init").
    """
    (entropy,) = in_the_beginning(history, "cross_entropy")
    return entropy / equal_odds(history)


def _by_gradients(
    history: History, large: float, small: float, beyond: float, least: int
) -> tuple[str, float] | Finding | None:
    """The layer that is given what is far too large or too small, and the size of that, by the gradients it gets."""
    found = _later_inputs(history, large, beyond) or _first_inputs(history, large)
    measured = given(history)
    data = given_data(history) | ({measured[0]} if measured else set())
    if found is None or (data and found[0] not in data):
        return None  # what it is given is made inside
    layer, norm, elements = found
    if measured and layer in (measured[0], *(data if len(data) == 1 else ())) and small < measured[1] < large:
        return None  # its gradients are large or small for another reason
    ended = _at_their_ends(history, layer)
    if ended:
        return ended
    norm = norm[np.isfinite(norm) & (norm > 0)]
    if len(norm) < least:
        return None
    size = float(np.median(norm))
    rms = size / float(np.sqrt(elements))
    first = float(np.median(norm[:least]))  # what another net gives to this one may grow: then that is what is wrong
    too_small = max(size, first) < small and "weight_ih" not in layer  # gradients of later steps may meet no input
    rounding = rms > beyond and any("Norm" in kind for kind in history.run.modules.values())
    if not ((large < min(rms, first / float(np.sqrt(elements))) and not rounding) or too_small):
        return None
    return layer, rms


def _at_their_ends(history: History, layer: str, usual: float = 2.0) -> Finding | None:
    """The first layer and its bias never had a gradient but 0, while the next one had, and its units have two ends.

    What lies behind units at their ends still learns: where the next matrix has none either, nothing comes back to
    both. Its weights began no larger than `usual` (as a gain, see `initial_gains`), and its bias with an element no
    larger: they do not hold tanh or a sigmoid where it is flat, so what comes in does.
    """
    norm, kinds = history.layer("grad_norm"), history.run.modules
    own = [columns(history)[layer], columns(history)[beside_bias(layer)]]
    module = layer.rpartition(".")[0]
    after = list(kinds)[list(kinds).index(module) :][:2] if module in kinds else []
    two_ended = any(kinds[name] in SATURATING for name in after)
    first = root_mean_square(history, history.layer("weight_norm")[0])[own[1]]
    small = initial_gains(history)[own[0]] < usual and first < usual
    cell = {layer, layer.replace("weight_ih", "weight_hh")}  # of a recurrent one
    behind = [i for i in np.flatnonzero(matrices(history)) if history.layers[i] not in cell][:1]
    if not (two_ended and small and (norm[:, own] == 0).all() and (norm[:, behind] > 0).any()):
        return None
    return whole_run(
        history,
        "inputs-not-normalised",
        (layer,),
        {"gain": float(initial_gains(history)[own[0]]), "grad_norm": 0.0},
        f"No gradient ever came to {layer} or its bias, though their size is usual: its units stand at their ends "
        f"for every example. {either(_OF_ENDS)}",
        "Look at the size of what is given to the model, and normalise it: subtract the mean and divide by the "
        "standard deviation of the training data.",
        _OF_ENDS,
    )


_OF_ENDS = ("what comes in is far larger than 1", "its output is multiplied by 0 further on")


def _first_inputs(history: History, large: float) -> tuple[str, Floats, int] | None:
    """The first matrix, the norm of what came into it in each row `[R]`, and the elements of that; None if unknown."""
    wide, tables = np.flatnonzero(matrices(history)), embeddings(history)
    return inputs_of(history, int(wide[0])) if len(wide) and not tables[wide[0]] else _beside_tables(history, large)


def _beside_tables(history: History, large: float) -> tuple[str, Floats, int] | None:
    """As `_first_inputs`, of the first matrix behind embeddings, which is given something else beside what is looked up
    there, as numbers that a table has for each row: what comes in is `large` times `large` as large as the tables'.
    """
    tables = embeddings(history)
    others = np.flatnonzero(matrices(history) & ~tables)
    found = inputs_of(history, int(others[0])) if len(others) and tables[: others[0]].any() else None
    if found is None:
        return None
    _, norm, elements = found
    looked_up = float(np.nanmax([1.0, *initial_gains(history)[tables]]))
    return found if (norm[:1] / np.sqrt(elements) > large**2 * looked_up).any() else None


def _later_inputs(history: History, large: float, beyond: float) -> tuple[str, Floats, int] | None:
    """As `_first_inputs`, of a later matrix that is given far larger numbers than those before it, none of which began
    with a gain that makes them so.
    """
    inside = too_large_inside(history, large, beyond)
    if inside is None or inside.grown or (initial_gains(history)[: inside.layer] > LARGE_GAIN).any():
        return None
    return inputs_of(history, inside.layer)


def inputs_of(history: History, layer: int) -> tuple[str, Floats, int] | None:
    """The name of a matrix, the norm of what came into it in each row `[R]`, and its elements; None if unknown."""
    name, bias = history.layers[layer], bias_columns(history).get(layer)
    shape = shapes_of(history).get(name, ())
    if bias is None or len(shape) < 2:
        return None
    own, beside = history.layer("grad_norm")[:, [layer, bias]].T.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        quotient = own / beside
    return name, np.asarray(quotient), int(np.prod(shape[1:]))


def _is_bounded(history: History, layer: int) -> bool:
    """Whether the module that was made just before a layer's own gives out numbers of 1 at most."""
    kinds, owner = history.run.modules, history.layers[layer].rpartition(".")[0]
    at = list(kinds).index(owner) if owner in kinds else 0
    return at > 0 and list(kinds.values())[at - 1] in TWO_ENDED


def learns_from_chance(history: History, times: float = 3.0) -> bool:
    """Whether a training succeeds whose losses began below `times` that of equal odds (log 2 of one or two rows)."""
    began = first_values(history).values()
    return bool(began) and max(began) < times * equal_odds(history) and succeeds(history)


class Inside(NamedTuple):
    """The first matrix that is given numbers far above 1, by its place in `layers`, and their root mean square there,
    in the first known matrix and in the last; whether they grew on their way, or were given to this one.
    """

    layer: int
    first: float
    size: float
    last: float
    grown: bool


def too_large_inside(history: History, large: float = 20.0, beyond: float = 1e4, apart: float = 2.0) -> Inside | None:
    """Where what comes into the layers is above `large` in the first step, though not into the first, and to the last.

    Grown: no layer is given `large` times as much as the one before it, but behind a recurrence. Above `beyond` a size
    is not known (`inputs_not_normalised`), nor where the first one is more than `apart` times what was measured there
    (`given`): the gradients of the rows cancel, as those of an energy's differences do; nor behind a module whose
    outputs are 1 at most, where the quotient is one of derivatives. In healthy trainings of the tests it is 9 at
    most.
    """
    tables = embeddings(history)
    places, sizes = [], []
    for i in np.flatnonzero(matrices(history) & ~tables):
        found = inputs_of(history, int(i))
        size = float(found[1][0] / np.sqrt(found[2])) if found and len(found[1]) else 0.0
        if 0 < size < beyond and not (size > 1.5 and _is_bounded(history, int(i))):
            places.append(int(i))
            sizes.append(size)
    above = np.flatnonzero(np.array(sizes) > large)
    if not len(above) or above[0] == 0 or not sizes[-1] > large:
        return None
    layer, measured = given(history) or ("", math.inf)
    if layer == history.layers[places[0]] and sizes[0] > apart * measured:
        return None
    at = int(above[0])
    recurs = "weight_hh" in history.layers[places[at - 1]]  # it multiplies once for each time step
    return Inside(places[at], sizes[0], sizes[at], sizes[-1], sizes[at] < large * sizes[at - 1] or recurs)
