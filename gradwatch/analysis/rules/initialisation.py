"""Weights that began far from the size that carries a signal through the layers.

Legend: L layers.
"""

from __future__ import annotations

import math

import numpy as np

from gradwatch.analysis.rules.dead_layers import dead_layer
from gradwatch.analysis.rules.depth import imbalance, profile, vanishing
from gradwatch.analysis.rules.facts import (
    chance_loss,
    embeddings,
    initial_gains,
    last_matrix,
    matrices,
    measured,
    pick,
    root_mean_square,
)
from gradwatch.analysis.rules.finding import Finding, either
from gradwatch.analysis.rules.gradients import exploding
from gradwatch.analysis.rules.inputs import FAR, first_odds, learns_from_chance, too_large_inside
from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.loss_graph import is_mean_cross_entropy, number_of_classes, paths
from gradwatch.analysis.rules.losses import scaled_losses
from gradwatch.analysis.rules.progress import progress, reaches_its_goal, succeeds
from gradwatch.analysis.rules.sampled_losses import sampled
from gradwatch.analysis.rules.step_length import first_ratio
from gradwatch.analysis.rules.vanishing_causes import remedies
from gradwatch.history import History

_NORMS = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm")


def bad_initialisation(
    history: History, large: float = 3.5, small: float = 0.05, most: float = 0.75, least: int = 3
) -> list[Finding]:
    """Most matrices multiply what passes through them by far too much, or by far too little, from the start. A warning.

    The gain of a matrix is the root mean square of its weights times the root of its fan in: 0.58 as torch makes its
    layers, 1.41 by He's initialisation. Alarm: the share `most` of `least` or more matrices began above `large` or
    below `small` (twice that where no normalisation stands between them); where one does or fewer are known, a large
    gain only counts where the training does not succeed, or its loss began at twice log C or more (C the rows of the
    last matrix). A small one does not count where a loss fell by nine tenths: tables of features begin next to 0 on
    purpose. Not said where what follows from it is found: an explosion, gradients that vanish, layers that are dead or
    (of large ones) apart. But large ones are said where layers were dead from the start: their units stand at their
    ends. Nor are large ones where the first step already changed the weights by a third: their first norm is that after
    it. Or the gains of its normalisations began next to 0 (`_shut_norms`), or a table that is the last layer too began
    as large as one that is only read (`_tied_table`), or the first outputs are far apart and a matrix is why
    (`_far_outputs`), or they never came near equal odds (`_sure_of_what_is_wrong`), or the gradient grows evenly on its
    way back to the first layer (`_grows_on_its_way`), or what passes through the layers grows on its way to the last
    (`_grows_forward`).
    Source: He et al., arXiv:1502.01852; of healthy trainings of the tests the median gain is 0.2 to 2.1.
    """
    return (
        _of_matrices(history, large, small, most, least)
        or _shut_norms(history, most, least)
        or _tied_table(history)
        or _far_outputs(history, large)
        or _sure_of_what_is_wrong(history)
        or _grows_on_its_way(history)
        or _grows_forward(history)
    )


def _of_matrices(
    history: History, large: float, small: float, most: float, least: int, well: float = 0.9
) -> list[Finding]:
    """Most matrices began above `large`, or below `small`."""
    gain = initial_gains(history)
    known = np.isfinite(gain)
    if known.sum() < 2:
        return []
    kinds = history.run.modules.values()
    plain = known.sum() >= least and not any(norm in kind for norm in _NORMS for kind in kinds)
    too_large, too_small = gain > large, gain < (2 * small if plain else small)
    moved = first_ratio(history) > 1 / 3
    if (
        not moved
        and too_large.sum() >= most * known.sum()
        and (plain or _far_off(history, chance_loss(history)) or not succeeds(history))
    ):
        which, way = too_large, "many times"
    elif too_small.sum() >= most * known.sum() and known.sum() >= least and not succeeds(history, well):
        which, way = too_small, "a small part of"
    else:
        return []
    harms = (f for f in dead_layer(history) if f.severity != "note")
    dead = any(f.evidence["since"] != "the start" or which is too_small for f in harms)
    shrinks = any("left_of_the_gradient" not in f.evidence for f in vanishing(history))
    if dead or shrinks or exploding(history) or (which is too_large and imbalance(history)):
        return []
    typical = float(np.median(gain[which]))
    return [
        _finding(
            history,
            pick(history, which),
            {"gain": typical, "usual": "0.5 to 1.5"},
            f"These weights began at {way} their usual size: each layer multiplies what passes through it by about "
            f"{typical:.2g}, where 0.5 to 1.5 is usual.",
            "Begin with torch's own initialisation, or with He's: nn.init.kaiming_normal_(weight). A lower or higher "
            "learning rate does not make up for it.",
        )
    ]


def _shut_norms(history: History, most: float, least: int, small: float = 0.1) -> list[Finding]:
    """The gains of most of torch's own normalisations began below `small`, and not at 0 as in a residual branch.

    Those that began at 0 were changed in the first step by all of their size.
    """
    kinds, vectors = history.run.modules, ~matrices(history)
    own = [kinds.get(name.removesuffix(".weight"), "").startswith(_NORMS) for name in history.layers]
    _, norm = measured(history, "weight_norm")
    _, ratio = measured(history, "update_ratio")
    known = vectors & np.array(own, bool)
    if known.sum() < least or not len(norm) or not len(ratio):
        return []
    gain = root_mean_square(history, norm[0].astype(np.float64))
    shut = known & (gain < small) & (ratio[0] < 0.5)
    if shut.sum() < most * known.sum():
        return []
    typical = float(np.median(gain[shut]))
    return [
        _finding(
            history,
            pick(history, shut),
            {"gain": typical, "usual": "1"},
            f"The gains of these normalisations began at about {typical:.2g}, where 1 is usual: each takes most of the "
            "signal away, and of the gradient that comes back through it.",
            "Begin gains at 1, as torch does: nn.init.ones_(norm.weight). What draws the other weights around 0 must "
            "leave them out.",
        )
    ]


def _tied_table(history: History, unit: float = 0.9, well: float = 0.9) -> list[Finding]:
    """An embedding began at unit size, nothing else gives out its rows, and the loss began far above their logarithm.

    So it is the last layer too, whose outputs are as large as the root of its width. Nothing else: the last module with
    weights is no Linear of its own, and no other matrix has as many rows. Not said where the loss fell by the share
    `well`, nor of a model of nothing but tables (`_of_tables`).
    Source: Press & Wolf, arXiv:1608.05859 (tied tables); GPT-2's begins at a standard deviation of 0.02.
    """
    shapes, kinds = {layer.name: layer.shape for layer in history.run.layers}, history.run.modules
    owners = {name.rpartition(".")[0] for name in history.layers}
    last = next((name for name in reversed(kinds) if name in owners or kinds[name] == "Linear"), "")
    _, norm = measured(history, "weight_norm")
    if not len(norm) or (last in owners and kinds.get(last) == "Linear") or first_ratio(history) > 1 / 3:
        return []
    if succeeds(history, well) or _of_tables(history):
        return []
    rms = root_mean_square(history, norm[0].astype(np.float64))
    tables = [i for i in np.flatnonzero(embeddings(history) & (rms > unit)) if history.layers[i] in shapes]
    for i in tables:
        name = history.layers[i]
        rows = shapes[name][0]
        others = any(shape[:1] == (rows,) for other, shape in shapes.items() if other != name and len(shape) > 1)
        if rows > 2 and not others and _far_off(history, math.log(rows)):
            cause = f"{name} began at unit size, and the loss far above the {math.log(rows):.3g} that equal "
            cause += f"probabilities for its {rows} rows give. {either(_TIED)}"
            cure = f"Begin a table that is the last layer too at a standard deviation of 0.02: nn.init.normal_({name}, "
            cure += "std=0.02). If it is not, look at the size of the first outputs."
            return [_finding(history, (name,), {"root_mean_square": float(rms[i])}, cause, cure, _TIED)]
    return []


_TIED = (
    "it is the last layer too, and its rows make the outputs as large as the root of their length",
    "the outputs begin too large for another reason, or the loss is no cross-entropy over its rows",
)


def _far_outputs(history: History, large: float, wide: float = 2.0, spread: float = 100.0) -> list[Finding]:
    """The first cross-entropy was `FAR` times that of equal odds, and some matrices began above `large`; or the first
    numbers spread `spread` times as much as what is asked for, and some began above `wide`. Whatever came of it.

    In healthy trainings of the tests numbers spread 9 times as much, at most.
    """
    gain, odds = initial_gains(history), first_odds(history)
    _, said, asked = sampled(history, "predicted_std", "target_std")
    times = float(said[0] / asked[0]) if len(said) and asked[0] > 0 else 0.0
    if odds > FAR and (gain > large).any():
        which, numbers = gain > large, {"times_equal_odds": odds}
        shown = f"The first cross-entropy is {odds:.3g} times that of equal odds: the logits are far apart"
    elif times > spread and (gain > wide).any():
        which, numbers = gain > wide, {"times_the_targets": times}
        shown = f"What the model says at first spreads {times:.2g} times as much as what it is asked for"
    else:
        return []
    typical = float(np.median(gain[which]))
    return [
        _finding(
            history,
            pick(history, which),
            {"gain": typical, "usual": "0.5 to 1.5", **numbers},
            f"{shown} before anything is learnt. These weights began with a gain of about {typical:.2g}, where 0.5 to "
            "1.5 is usual.",
            "Begin with torch's own initialisation, or the last layer with weights of a deviation of 0.02 or less. The "
            "first steps go into making the outputs small else.",
        )
    ]


def _sure_of_what_is_wrong(history: History, began: float = 3.0, ended: float = 2.0) -> list[Finding]:
    """A cross-entropy began above `began` times what equal probabilities give, and ended above them.

    So it does where the graph of the loss shows its classes: a model that ends there knows less than one that says
    nothing. Of tokens it has to end above `ended` times, in a training that does not succeed: where the last matrix
    has as many rows as a table has, the loss is known for a cross-entropy over them, but in a model of nothing but
    tables (`_of_tables`).
    Source: Karpathy 2019, A Recipe for Training Neural Networks ("verify loss @ init").
    """
    shapes, last = {layer.name: layer.shape for layer in history.run.layers}, last_matrix(history)
    tables = {shapes[name][0] for name in pick(history, embeddings(history)) if shapes.get(name)}
    chance, losses = chance_loss(history), [p for p in progress(history) if p.is_loss]
    if last is None or not losses:
        return []
    known = is_mean_cross_entropy(history) and (number_of_classes(history) or 1) > 2
    tokens = last.shape[0] in tables and not succeeds(history) and not _of_tables(history)
    if not (known or tokens):
        return []
    high = all(p.first > began * chance and p.ended > (ended if tokens else 1.0) * chance for p in losses)
    high &= tokens or any(p.ended < 0.9 * p.first for p in losses)  # else its steps are why it stays there
    if not high or lr_too_high(history):
        return []
    shown = losses[0]
    cause = f"{shown.metric} began at {shown.first:.3g}, where equal probabilities give {chance:.3g}, and still is "
    cause += f"{shown.ended:.3g}: the logits are far apart, and sure of what is wrong. "
    cure = (
        "Print the logits of the first step. If some stand out, begin their rows and biases of the last layer at the "
        "mean of the others; if all are large, normalise what comes into the last layer or divide it by the root of "
        "its width, and let cosines be divided by 0.05 or more."
    )
    nearest = next((layer for _, layer in paths(history)), last.name) if known else last.name
    return [_finding(history, (nearest,), {"equal_odds": chance}, cause + either(_SURE), cure, _SURE)]


_SURE = (
    "rows or biases of the last layer began unlike the others",
    "what comes into the last layer, or what its outputs are multiplied by, is far too large",
)


def _of_tables(history: History) -> bool:
    """Whether all matrices are tables: the factors of ratings, whose squared error begins far above any log C."""
    return not (matrices(history) & ~embeddings(history)).any()


def _grows_on_its_way(history: History, decades: float = 2.0, fit: float = 0.9, first: int = 5) -> list[Finding]:
    """The gradient grows from the last matrix to the first, evenly, by `decades` powers of ten in the first steps.

    Where the training came apart `exploding` says so; Adam rescales each layer, and the training goes on, though its
    first layers cannot follow such a function. In healthy trainings of the tests the line rises by at most 1.3.
    Source: Glorot & Bengio 2010, section 4.2: initial weights keep the variance of the gradient along the depth.
    """
    along = profile(history, matrices(history), history.layer_rows < first)
    if along.decades > -decades or along.fit < fit or exploding(history):
        return []
    times = 10 ** (-along.decades / (len(along.layers) - 1))
    return [
        _finding(
            history,
            along.layers,
            {"grows_per_layer_by": times},
            f"Each layer multiplies the gradient on its way back by about {times:.2g} from the start, so that small "
            "changes of the first weights change the outputs beyond all measure: the initial weights, or what "
            "multiplies their outputs, are too large for this depth.",
            f"Use {'; or '.join(remedies(history))}. A factor inside of an activation (a sine's frequency, a "
            "temperature) divides the initial weights behind it. A lower learning rate does not make up for it.",
        )
    ]


def _grows_forward(history: History) -> list[Finding]:
    """What comes into the last layer is far above 1 in the first step, and grew there from a usual size.

    Not said where the training came apart or was thrown about by it (`exploding` and `lr_too_high` say so), nor where
    another metric reaches its goal, or the loss succeeds from where that of equal odds is (`learns_from_chance`).
    Source: He et al., arXiv:1502.01852, section 2.2 (forward propagation); Zhang et al., arXiv:1901.09321 (sums of
    residual branches grow without a norm).
    """
    inside = too_large_inside(history)
    if inside is None or not inside.grown or reaches_its_goal(history) or learns_from_chance(history):
        return []
    if exploding(history) or lr_too_high(history):
        return []
    name = history.layers[inside.layer]
    return [
        _finding(
            history,
            (name,),
            {"first_input_rms": inside.first, "last_input_rms": inside.last},
            "What passes through the layers grows on its way: the numbers that come into the first are of the order "
            f"of {inside.first:.1g}, into {name} of {inside.size:.1g}, into the last of {inside.last:.1g}, in the "
            f"first step already. {either(_FORWARD)}",
            f"Use {'; or '.join(remedies(history))}; a mean in the place of a sum over neighbours or tokens. A lower "
            "learning rate does not make up for it.",
            _FORWARD,
        )
    ]


_FORWARD = (
    "branches, neighbours or tokens are added up with nothing that normalises the sum",
    "the initial weights are too large for this depth",
)


def _finding(
    history: History,
    layers: tuple[str, ...],
    evidence: dict[str, float | str],
    cause: str,
    cure: str,
    alternatives: tuple[str, ...] = (),
) -> Finding:
    for name, values in scaled_losses(history).items():
        evidence[f"first_{name}"] = float(values[np.isfinite(values)][0])
    steps = int(history.step[0]), int(history.step[-1])
    return Finding("bad-initialisation", "warning", layers, *steps, evidence, cause, cure, alternatives=alternatives)


def _far_off(history: History, chance: float, times: float = 2.0) -> bool:
    """Whether a training loss began at `times` what equal probabilities give, or above."""
    return any(float(values[np.isfinite(values)][0]) > times * chance for values in scaled_losses(history).values())
