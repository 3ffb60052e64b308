"""The size of what the model is given, by the gradients of its first layer.

Legend: R rows of the layers' table.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.facts import (
    beside_bias,
    chance_loss,
    embeddings,
    initial_gains,
    matrices,
    root_mean_square,
)
from gradwatch.analysis.rules.finding import Finding, either
from gradwatch.analysis.rules.losses import scaled_losses
from gradwatch.analysis.rules.progress import reaches_its_goal, succeeds
from gradwatch.analysis.rules.vanishing_causes import SATURATING
from gradwatch.history import Floats, History


def inputs_not_normalised(
    history: History, large: float = 20.0, small: float = 0.05, beyond: float = 1e4, least: int = 5
) -> list[Finding]:
    """What comes into the first layer is far larger, or far smaller, than 1. A warning.

    A layer's gradient is the sum of d x' over the rows of a batch, its bias's the sum of d (d: the gradient of its
    output, x: its input). The quotient of their norms is about the norm of an x, and over the root of the fan in about
    the root mean square of its elements. Alarm: by the median step the latter is above `large`, or the former below
    `small`. Above `beyond` the bias's gradient is nothing but rounding, as before a batch norm. Asked of the first
    matrix, if it is no embedding and has a bias, in `least` steps at least. A note where the training succeeds and its
    loss began where that of equal probabilities does, or where another metric got better by half. Of units with two
    ends that what comes in holds at these from the start, no gradient tells its size: see `_at_their_ends`.
    Source: LeCun et al. 1998, Efficient BackProp, section 4.3 (inputs of zero mean and unit variance).
    """
    found = _first_inputs(history)
    if found is None:
        return []
    layer, norm, elements = found
    ended = _at_their_ends(history, layer)
    if ended:
        return ended
    norm = norm[np.isfinite(norm) & (norm > 0)]
    if len(norm) < least:
        return []
    size = float(np.median(norm))
    rms = size / float(np.sqrt(elements))
    first = float(np.median(norm[:least]))  # what another net gives to this one may grow: then that is what is wrong
    if not ((large < min(rms, first / float(np.sqrt(elements))) and rms < beyond) or max(size, first) < small):
        return []
    began = [float(values[np.isfinite(values)][0]) for values in scaled_losses(history).values()]
    usual = bool(began) and all(value < 3 * chance_loss(history) for value in began)
    harmless = reaches_its_goal(history, 0.5) or (usual and succeeds(history))
    what = "far above" if rms > large else "far below"
    return [
        Finding(
            "inputs-not-normalised",
            "note" if harmless else "warning",
            (layer,),
            int(history.step[0]),
            int(history.step[-1]),
            {"input_rms": rms, "usual": "about 1"},
            f"The numbers that come into {layer} are of the order of {rms:.1g}, {what} 1: the gradients of its weights "
            "are as much larger or smaller than those of its bias. Steps that suit it do not suit the other layers.",
            "Normalise the inputs: subtract the mean and divide by the standard deviation of the training data (images "
            "of bytes: divide by 255).",
        )
    ]


def _at_their_ends(history: History, layer: str, usual: float = 2.0) -> list[Finding]:
    """The first layer and its bias never had a gradient but 0, while the next one had, and its units have two ends.

    What lies behind units at their ends still learns: where the next matrix has none either, nothing comes back to
    both. Its weights began no larger than `usual` (as a gain, see `initial_gains`), and its bias with an element no
    larger: they do not hold tanh or a sigmoid where it is flat, so what comes in does.
    """
    norm, names, kinds = history.layer("grad_norm"), list(history.layers), history.run.modules
    own = [names.index(layer), names.index(beside_bias(layer))]
    module = layer.rpartition(".")[0]
    after = list(kinds)[list(kinds).index(module) :][:2] if module in kinds else []
    two_ended = any(kinds[name] in SATURATING for name in after)
    first = root_mean_square(history, history.layer("weight_norm")[0])[own[1]]
    small = initial_gains(history)[own[0]] < usual and first < usual
    cell = {layer, layer.replace("weight_ih", "weight_hh")}  # of a recurrent one
    behind = [i for i in np.flatnonzero(matrices(history)) if names[i] not in cell][:1]
    if not (two_ended and small and (norm[:, own] == 0).all() and (norm[:, behind] > 0).any()):
        return []
    return [
        Finding(
            "inputs-not-normalised",
            "warning",
            (layer,),
            int(history.step[0]),
            int(history.step[-1]),
            {"gain": float(initial_gains(history)[own[0]]), "grad_norm": 0.0},
            f"No gradient ever came to {layer} or its bias, though their size is usual: its units stand at their ends "
            f"for every example. {either(_OF_ENDS)}",
            "Look at the size of what is given to the model, and normalise it: subtract the mean and divide by the "
            "standard deviation of the training data.",
            alternatives=_OF_ENDS,
        )
    ]


_OF_ENDS = ("what comes in is far larger than 1", "its output is multiplied by 0 further on")


def _first_inputs(history: History) -> tuple[str, Floats, int] | None:
    """The first matrix, the norm of what came into it in each row `[R]`, and the elements of that; None if unknown."""
    wide, names = np.flatnonzero(matrices(history)), list(history.layers)
    if not len(wide) or embeddings(history)[wide[0]]:
        return None
    name = names[wide[0]]
    bias = beside_bias(name)
    shape = next((layer.shape for layer in history.run.layers if layer.name == name), ())
    if bias == name or bias not in names or len(shape) < 2:
        return None
    norm = history.layer("grad_norm").astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        quotient = norm[:, wide[0]] / norm[:, names.index(bias)]
    return name, np.asarray(quotient), int(np.prod(shape[1:]))
