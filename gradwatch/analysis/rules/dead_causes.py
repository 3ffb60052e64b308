"""Why no gradient moves some layers.

Legend: L layers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from gradwatch.analysis.rules.facts import USUAL_RATIO, is_adaptive, to_usual
from gradwatch.analysis.rules.far_beginning import begins_far
from gradwatch.analysis.rules.finding import Evidence, Why, either
from gradwatch.analysis.rules.layer_facts import (
    began_at_zero,
    beside_bias,
    bias_columns,
    ends_in,
    matrices,
    measured,
    pick,
    root_mean_square,
)
from gradwatch.analysis.rules.loss_graph import given_data, graph_rows, shape_in
from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.analysis.rules.sampled_losses import sampled
from gradwatch.analysis.rules.step_length import first_ratio
from gradwatch.analysis.rules.tries import new_rate, rate_times, warm_up
from gradwatch.history import Bools, History


def why_dead(history: History, dead: Bools, start: bool, idle: bool, apart: bool) -> Why:
    """The cause of these layers `[L]`, of which none lived from the `start`; or the biases beside them do, so that they
    are `idle`; or they are a part of the model, `apart` from what is trained.
    """
    if idle and all(map(_OF_A_STATE.search, pick(history, dead))):
        return FORGETS
    if start and (chosen := of_one(history, pick(history, dead))):
        return Why(f"No gradient has ever reached these weights: {chosen}.", CHOOSE, {})
    if idle and _are_fed(history, dead):
        return _WITHOUT_SLOPE
    if idle:
        return _UNREAD if given_data(history) == {*pick(history, dead)} else IDLE
    if apart:
        return _APART
    wide = dead & matrices(history)
    if wide.any() and began_at_zero(history)[wide].all():
        return BEGAN_AT_ZERO
    if start and (far := _far_biases(history, dead)):
        return far
    if start:
        return _never_reached(history, dead)
    if ends_in(history, "ReLU") and dead[matrices(history)].all():
        return Why(
            "Their gradient became exactly zero and stayed so. The model ends in a ReLU: where no output is above 0, "
            "none of them passes anything back.",
            "Take the ReLU out from behind the last layer of weights; softplus in its place where outputs must be "
            "positive. A lower learning rate only gets there later.",
            {"last_module": "ReLU"},
        )
    return _thrown(history)


def _far_biases(history: History, dead: Bools, far: float = 1.0) -> Why | None:
    """The cause where biases among these layers `[L]` began at a root mean square above `far`, which torch draws none
    at, beside weights of a usual size: a ReLU whose bias is far below 0 lets nothing through.
    """
    _, norm = measured(history, "weight_norm")
    beside = np.isin(np.arange(len(dead)), [*bias_columns(history).values()]) & dead
    if not len(norm) or not beside.any():
        return None
    size = np.where(beside, root_mean_square(history, norm[0]), 0.0)
    if not size.max() > far:
        return None
    here = pick(history, size > far)
    return Why(
        f"No gradient has ever reached these weights: biases began far from 0, those of `{here[0].rpartition('.')[0]}` "
        f"by {size.max():.3g}, so that nothing comes through the activation behind them.",
        "Begin biases at 0, or as torch draws them. That of a rare class (the log of its odds) belongs to the last "
        "layer alone; an activation that leaks (LeakyReLU, GELU) comes back.",
        {"bias": float(size.max())},
    )


def is_of_the_beginning(why: Why) -> bool:
    """Whether these layers are dead by what they began with."""
    return why is BEGAN_AT_ZERO or "bias" in why.evidence


def of_one(history: History, layers: Sequence[str]) -> str:
    """A softmax above one of these layers that has one to choose from, as the graph of the loss shows it, in words."""
    for row in graph_rows(history, "softmax"):
        shape, dim = shape_in(row["shape"]), row["dim"]
        if shape[dim] == 1 and row["layer"] in layers:
            return f"a softmax over dim {dim} of {list(shape)} has one to choose from, and is 1 whatever that is"
    return ""


CHOOSE = (
    "Take the softmax over the dimension along which one is to be chosen; for one answer of two kinds, yes or no, take "
    "a sigmoid (binary_cross_entropy_with_logits) in its place."
)


def _thrown(history: History) -> Why:
    """Steps that threw units to where they are dead, and what came before them."""
    first, kind = first_ratio(history), is_adaptive(history)
    times = min(to_usual(history, first), 0.1) if first > USUAL_RATIO[kind] else 0.1
    cause = "Their gradient became exactly zero and stayed so: a step threw their units, or those after them, to where "
    cause += "they are dead or saturated."
    if has_rivals(history):
        return Why(
            cause,
            "If a rival judges what they give out, look at its outputs first: where a sigmoid and a clamp hold all of "
            "them at an end, it won, and nothing comes back from it. Lower the rival's learning rate to a tenth and "
            "take its loss of logits (binary_cross_entropy_with_logits); a lower rate for both leaves it ahead.",
            {},
        )
    cure = f"Lower the learning rate to {new_rate(history, times)} or warm it up; an activation "
    cure += "that leaks (LeakyReLU, GELU) can come back."
    cause, cure = begins_far(history, cause, cure) or (cause, cure)
    numbers: Evidence = {} if np.isnan(first) else {"first_update_ratio": first}
    return Why(cause, cure, numbers, (rate_times(times), warm_up(history)))


def _never_reached(history: History, dead: Bools) -> Why:
    """What may keep all gradients from these layers `[L]`, and between which two layers it stands where they end."""
    last = int(np.flatnonzero(dead)[-1])
    here, after = history.layers[last].rpartition(".")[0], ""
    if dead[: last + 1].all() and last + 1 < len(dead):
        after = history.layers[last + 1].rpartition(".")[0]
    if after and history.layers[last + 1] == beside_bias(history.layers[last]):
        return Why(
            f"No gradient has ever reached these weights, and one reaches the bias of `{here}`: all that comes into it "
            "is 0, from the start.",
            f"Look at what is given to `{here}`: weights that all begin at 0 make nothing else, and a ReLU whose bias "
            "begins far below 0 lets nothing through. Begin with torch's own weights and biases of 0; an activation "
            "that leaks (LeakyReLU, GELU) comes back.",
            {},
        )
    between = f"between `{here}` and `{after}`" if after else "between them and the loss"
    causes = (f"what stands {between} has no slope (round, sign, argmax, a comparison, a clamp)", *_NEVER_REACHED)
    return Why(
        f"No gradient has ever reached these weights. {either(causes)}",
        f"Look at forward() {between}. What is rounded or compared there passes exactly 0 back: pass the gradient "
        "straight through, y = x + (y - x).detach(). If nothing is, look at the outputs of these layers: if all are 0, "
        "or all at an end, at the initialisation and the biases, or use an activation that leaks (LeakyReLU, GELU). "
        "Freeze the layers if they are meant to rest.",
        {},
        alternatives=causes,
    )


_NO_TERM = (
    "its term of the loss has no slope (a ratio of it to itself, a clamp at its end, a factor of 0, argmax, a "
    "log-probability of what it drew itself)",
    "what it gives out is not used",
)
_APART = Why(
    "No gradient has ever reached this part of the model, its last layers too, which units that are dead leave alive. "
    f"{either(_NO_TERM)}",
    "Look at the term of the loss that it is to lower, and follow .grad_fn from there to what the part gives out. What "
    "is compared with itself is kept without a graph: the old log-probabilities of a policy's ratio are those of the "
    "roll-out. An action of rsample() keeps its graph, and its mean takes it along: take sample() where a "
    "log-probability is weighed by a return. What is rounded or chosen passes exactly 0 back: pass the gradient "
    "straight through, y = x + (y - x).detach(). Freeze the part if it is meant to rest.",
    {},
    alternatives=_NO_TERM,
)
_OF_A_STATE = re.compile(r"(^|\.)weight_hh")  # of a recurrence
BEGAN_AT_ZERO = Why(
    "No gradient has ever reached these weights: they all began at 0, and zeros pass none on.",
    "Begin with other weights than 0 (He's initialisation).",
    {},
)

FORGETS = Why(
    "Gradients reach the biases beside these weights, and none the weights: the state that they are given is 0 in "
    "every call. What was read before is forgotten each time.",
    "Hand the state on: out, state = rnn(x, state), and keep it from one call to the next (detached after each step of "
    "the optimizer); or give the recurrence whole sequences, and not one element of them at a time.",
    {},
)
_NEVER_REACHED = ("their units were dead or saturated from the start", "nothing depends on them")


IDLE = Why(
    "Gradients reach the biases beside these weights, and none the weights: all that comes into them is 0.",
    "If it is meant to be so (an input that is not used yet), nothing. Else look at what is given to these layers.",
    {},
)


_WITHOUT_SLOPE = Why(
    "Gradients reach the biases beside these weights, and none the weights, though what comes in there is not 0: what "
    "is made of the weights before they are used has no slope (sign, round, a cast, a comparison), or keeps no graph.",
    "Pass the gradient straight through: w + (sign(w) - w).detach() in the place of sign(w).",
    {},
)


def _are_fed(history: History, dead: Bools) -> bool:
    """Whether data come to a bias that stands beside one of these weights `[L]`, and not to that."""
    biases = {beside_bias(name) for name in pick(history, dead)} - {*pick(history, dead)}
    _, rms, layer = sampled(history, "input_rms", "layer_of/input_rms")
    return any(size > 0 and history.layers[int(i)] in biases for size, i in zip(rms, layer, strict=True))


_UNREAD = Why(
    "Gradients reach the biases beside these weights alone: the data, all of which comes to them, is 0 there.",
    "Look at what is made of the data: a division of whole numbers (//), a cast, a mask, a buffer not filled yet.",
    {},
)
