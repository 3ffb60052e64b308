"""Why each layer passes on less than it is given: by what a network is made of, and by its activations, if recorded.

Legend: M modules.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.activation_facts import at_the_ends, in_forward_order
from gradwatch.analysis.rules.finding import Evidence, Why, either
from gradwatch.analysis.rules.layer_facts import initial_gains, matrices, measured, shapes_of
from gradwatch.formatting import percent, quantity_text
from gradwatch.history import Floats, History

RECURRENT = {"LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"}  # whose units nobody sees from outside
SIGMOIDS = {"Sigmoid", "Hardsigmoid"}  # of slopes of at most 1/4, 1/6
SATURATING = RECURRENT | SIGMOIDS | {"Tanh", "Softsign", "Hardtanh", "LogSigmoid"}
SATURATE, WEIGHTS = "the units saturate", "the initial weights do not suit this depth"
SLOPE = "a sigmoid passes on a quarter of the gradient at most, also where it is steepest, and the initial weights do "
SLOPE += "not make up for it"


def why_vanishing(history: History) -> Why:
    """The causes that the record leaves open, with what the activations show of them."""
    causes, shown = _causes(history), ""
    evidence: Evidence = {}
    share, (names, rms) = at_the_ends(history), forward_rms(history)
    if np.isfinite(share):
        evidence["saturated"] = share
        shown += f" In the median non-linearity {percent(share)} of the elements are saturated."
    if len(names) > 1:
        evidence |= {"first_rms": float(rms[0]), "last_rms": float(rms[-1])}
        shown += f" Along the forward pass the root mean square of the activations {_way(rms)}: from "
        shown += f"{quantity_text(rms[0])} in `{names[0]}` to {quantity_text(rms[-1])} in `{names[-1]}`."
    alternatives = causes if len(causes) > 1 else ()
    cause = either(causes) if alternatives else f"{causes[0][0].upper()}{causes[0][1:]}."
    return Why(cause + shown, "", evidence, alternatives=alternatives)


def forward_rms(history: History) -> tuple[tuple[str, ...], Floats]:
    """The innermost modules in the order of the forward pass, but for the last, and their RMS at first, `[M]`.

    Of the first sampled step, so that it is what the initial weights make of the inputs. Without those of 0.
    """
    table = in_forward_order(history.activations.with_values("rms"))
    if not table.layers:
        return (), np.zeros(0)
    rms = table.values["rms"][0].astype(np.float64)
    inside = {name.rpartition(".")[0] for name in table.layers}
    seen = [i for i, name in enumerate(table.layers) if name not in inside][:-1]
    seen = [i for i in seen if 0 < rms[i] < np.inf]
    return tuple(table.layers[i] for i in seen), rms[seen]


def remedies(history: History, small: float = 0.3, large: float = 2.0) -> list[str]:
    """What keeps the gradient's size along the depth, the most likely first, without what the network has already.

    Initial weights come first where three of ten layers or more multiply a signal by less than `small` or more than
    `large` (torch's by 0.58, He's by 1.41). Of others, residual connections and normalisation helped and He's
    initialisation did not (docs/findings/cures.md). What a recurrent layer hands back has come through all of its
    time steps.
    """
    kinds, gains = set(history.run.modules.values()), initial_gains(history)
    known = gains[np.isfinite(gains)]
    odd = bool(len(known)) and float(((known < small) | (known > large)).mean()) > 0.3
    found = ["torch's own initialisation, or He's: what draws the weights now is far from both"] if odd else []
    if kinds & RECURRENT:
        found.append("the state of where each row ends (pack_padded_sequence), not the one after its padding")
    if kinds & {"RNN", "RNNCell"}:
        found.append("an LSTM or a GRU")
    if {SATURATE, SLOPE} & {*_causes(history)} and (not kinds or kinds & SATURATING - RECURRENT):
        found.append("ReLU-like units")
    found.append("residual connections with the norm inside, x = x + block(norm(x))")
    if not any("Norm" in kind for kind in kinds):
        found.append("normalisation behind each layer where shapes differ")
    return found if odd or _is_he(history) else [*found, "He's initialisation"]


def _causes(history: History, few: float = 0.1, most: float = 0.5) -> tuple[str, ...]:
    """What may make each layer pass on less than it is given, by what the network is made of.

    Where activations were recorded, the share of saturated units decides: above `most` it is they, below `few` not.
    """
    kinds = set(history.run.modules.values())
    units = (SATURATE,) if not kinds or kinds & SATURATING else ()
    weights = () if units and _is_he(history) else (WEIGHTS,)
    share = np.nan if kinds & RECURRENT else at_the_ends(history)
    if share > most:
        return (SATURATE,)
    if share < few:
        return (SLOPE,) if kinds & SIGMOIDS else (WEIGHTS,)
    return units + weights


def _way(rms: Floats) -> str:
    moved = np.log10(rms[-1] / rms[0])
    return "falls too" if moved < -1 else "grows" if moved > 1 else "is about level"


def _is_he(history: History) -> bool:
    """Whether the matrices began with the root mean square of He et al. 2015, sqrt(2 / fan_in), by their median."""
    shapes = shapes_of(history)
    at, norm = measured(history, "weight_norm")
    if not len(at) or at[0] > 0:
        return False
    sizes = [(norm[0, i], shapes.get(history.layers[i], ())) for i in np.flatnonzero(matrices(history))]
    ratios = [first / np.sqrt(2 * shape[0]) for first, shape in sizes if len(shape) > 1]  # sqrt(numel * 2 / fan_in)
    return bool(ratios) and bool(0.8 < np.nanmedian(ratios) < 1.25)
