"""Weights that began far from the size that carries a signal through the layers.

Legend: L layers.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.dead_layers import dead_layer
from gradwatch.analysis.rules.depth import imbalance, profile
from gradwatch.analysis.rules.finding import Finding, either
from gradwatch.analysis.rules.first_outputs import (
    far_off,
    far_outputs,
    initial_finding,
    long_way_back,
    sure_of_what_is_wrong,
    tied_table,
)
from gradwatch.analysis.rules.gradients import exploding
from gradwatch.analysis.rules.inputs import LARGE_GAIN, learns_from_chance, too_large_inside
from gradwatch.analysis.rules.layer_facts import chance_loss, initial_gains, matrices, measured, pick, root_mean_square
from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.progress import reaches_its_goal, succeeds
from gradwatch.analysis.rules.step_length import first_ratio
from gradwatch.analysis.rules.vanishing import vanishing
from gradwatch.analysis.rules.vanishing_causes import remedies
from gradwatch.history import History

_NORMS = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm")


def bad_initialisation(
    history: History, large: float = LARGE_GAIN, small: float = 0.05, most: float = 0.75, least: int = 3
) -> list[Finding]:
    """Most matrices multiply what passes through them by far too much, or by far too little, from the start. A warning.

    The gain of a matrix is the root mean square of its weights times the root of its fan in: 0.58 as torch makes its
    layers, 1.41 by He's initialisation. Alarm: the share `most` of `least` or more matrices began above `large` or
    below `small` (twice that where no normalisation stands between them); where one does or fewer are known, a large
    gain only counts where the training does not succeed, or its loss began at twice log C or more (C the rows of the
    last matrix). A small one does not count where a loss fell by nine tenths: tables of features begin next to 0 on
    purpose. Not said where what follows from it is found: an explosion, gradients that vanish, layers that are dead (of
    these two not of gains below half of `small`) or (of large ones) apart. But large ones are said where layers were
    dead from the start: their units stand at their ends. Nor are large ones where the first step already changed the
    weights by a third: their first norm is that after it. Or all elements of most matrices began at one number
    (`_all_alike`), or the gains of its normalisations began next to 0 (`_shut_norms`), or a table that is the last
    layer too began as large as one that is only read (`tied_table`), or the first outputs are far apart and a matrix is
    why (`far_outputs`) or far from what is asked for most of the run (`long_way_back`), or they never came near equal
    odds (`sure_of_what_is_wrong`), or the gradient grows evenly on its way back to the first layer
    (`_grows_on_its_way`), or what passes through the layers grows on its way to the last (`_grows_forward`).
    Source: He et al., arXiv:1502.01852; of healthy trainings of the tests the median gain is 0.2 to 2.1.
    """
    return (
        _all_alike(history)
        or _of_matrices(history, large, small, most, least)
        or _shut_norms(history, most, least)
        or tied_table(history)
        or far_outputs(history, large)
        or long_way_back(history)
        or sure_of_what_is_wrong(history)
        or _grows_on_its_way(history)
        or _grows_forward(history)
    )


def _all_alike(history: History) -> list[Finding]:
    """All elements of most matrices, two at least, were one number other than 0 before the first step.

    Of all of them whatever comes of it; where there are others, not of a training that succeeds by half: masks, gates
    and scales begin so. Of one it is not said, as units whose outputs are weighed differently come apart.
    Nor where gains of a norm over several dimensions may be what is alike.
    Source: Goodfellow et al., Deep Learning, section 8.4 (initial weights break the symmetry between units).
    """
    count = history.total("constant_weights")[:1].sum()
    names = tuple(layer.name for layer in history.run.layers if sum(size > 1 for size in layer.shape) > 1)
    if not count > 1 or 2 * count < len(names) or (count < len(names) and succeeds(history, 0.5)):
        return []
    if any("Norm" in history.run.modules.get(name.rpartition(".")[0], "") for name in names):
        return []
    return [
        initial_finding(
            history,
            names if count >= len(names) else (),
            {"constant_matrices": float(count), "matrices": float(len(names))},
            f"Before the first step all elements of {int(count)} of the {len(names)} weight matrices were one number: "
            "the units of such a layer are given the same gradient, and stay copies of one another.",
            "Begin with random weights, as torch's own layers do, or nn.init.kaiming_normal_(weight): look for what "
            "sets weights by constant_, ones_, full or fill_. Only biases and gains may begin at one number.",
        )
    ]


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
        and (plain or far_off(history, chance_loss(history)) or not succeeds(history))
    ):
        which, way = too_large, "many times"
    elif too_small.sum() >= most * known.sum() and known.sum() >= least and not succeeds(history, well):
        which, way = too_small, "a small part of"
    else:
        return []
    harms = (f for f in dead_layer(history) if f.severity != "note")
    dead = any(f.evidence["since"] != "the start" or which is too_small for f in harms)
    shrinks = any("left_of_the_gradient" not in f.evidence for f in vanishing(history))
    typical = float(np.median(gain[which]))
    tiny = which is too_small and typical < small / 2  # then no gradient comes through them either
    if ((dead or shrinks) and not tiny) or exploding(history) or (which is too_large and imbalance(history)):
        return []
    return [
        initial_finding(
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
        initial_finding(
            history,
            pick(history, shut),
            {"gain": typical, "usual": "1"},
            f"The gains of these normalisations began at about {typical:.2g}, where 1 is usual: each takes most of the "
            "signal away, and of the gradient that comes back through it.",
            "Begin gains at 1, as torch does: nn.init.ones_(norm.weight). What draws the other weights around 0 must "
            "leave them out.",
        )
    ]


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
        initial_finding(
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
        initial_finding(
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
