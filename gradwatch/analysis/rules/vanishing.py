"""The gradient vanishes along the depth: from the last layer to the first, or what comes in on its way forward.

Legend: L layers.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.final_values import lost_since
from gradwatch.analysis.rules.depth import line, log10, profile
from gradwatch.analysis.rules.facts import is_adaptive, middle, optimizer_kind, typical
from gradwatch.analysis.rules.fading import fades, lost_in_time
from gradwatch.analysis.rules.finding import Evidence, Finding, Severity, whole_run
from gradwatch.analysis.rules.inputs import inputs_of
from gradwatch.analysis.rules.layer_facts import beside_bias, matrices, numel, pick
from gradwatch.analysis.rules.loss_graph import given_data
from gradwatch.analysis.rules.losses import scaled_losses
from gradwatch.analysis.rules.once import once
from gradwatch.analysis.rules.progress import can_be_judged, succeeds
from gradwatch.analysis.rules.sampled_losses import inside
from gradwatch.analysis.rules.vanishing_causes import forward_rms, remedies, why_vanishing
from gradwatch.formatting import quantity_text
from gradwatch.history import Bools, History


@once
def vanishing(
    history: History, decades: float = 4.0, fit: float = 0.9, min_steps: int = 20, still: float = 2.0
) -> list[Finding]:
    """The gradient shrinks from the last layer to the first, evenly, by `decades` powers of ten.

    Measured on the weight matrices, per element, as a straight line through the logarithms in model order, which must
    fit with a correlation of `fit`; biases and gains are left out, and so are exact zeros. It must hold for half of
    the run, and for `min_steps` steps. A trained network's line is level (within one decade on the healthy runs).

    What matters is whether the first layers learn: a note where the update ratios span less than `still` decades,
    because the optimizer rescales each layer (Adam), and the training is not known to get nowhere.

    Where activations were recorded they tell the causes apart (`why_vanishing`), and what vanishes on its way forward
    is found too, which leaves the gradients of all layers alike, and next to nothing (`_faded`). Or the first layers
    lose their gradient as the training goes on (`fading.fades`), or a recurrence its inputs (`lost_in_time`); or they
    have next to none at first, and the loss waits for them (`_late`). Where the last layer is given the same for all
    examples from the first sample to the last, a decade less is enough.
    Source: SageMaker Debugger's VanishingGradient asks for an absolute mean; the ratio is that of methods S2 (x 0.24 a
    layer for sigmoids).
    """
    which = matrices(history)
    if len(history) < min_steps:
        return []
    whole, alike = profile(history, which), inside(history, "end_alike")
    same = alike is not None and alike.least > 0.999
    if whole.decades < decades - same or whole.fit < fit or _of_two_nets(history, which, whole.decades):
        found = _cut_off(history, which, 10.0**-decades, min_steps) or _faded(history, decades, fit)
        return found or lost_in_time(history) or fades(history) or _late(history, which, decades)
    ends = [name in whole.layers[:1] + whole.layers[-1:] for name in history.layers]
    outer = history.layer("grad_norm")[:, ends]
    logs = log10(outer)
    rows = np.flatnonzero((logs[:, 1] - logs[:, 0] >= decades / 2) | (outer[:, 0] == 0))  # 0: its square underflowed
    if history.stands_for[rows].sum() < max(min_steps, len(history) / 2):
        return []
    updates, why = profile(history, which, quantity="update_ratio"), why_vanishing(history)
    rescaled = updates.fit > 0 and updates.decades < still
    stuck = can_be_judged(history, 100, 500) and bool(scaled_losses(history)) and not succeeds(history)
    severity: Severity = "note" if rescaled and not stuck else "warning"
    factor = 10 ** (whole.decades / (len(whole.layers) - 1))
    shrunk = whole.layers[: max(1, int(np.ceil(len(whole.layers) * (1 - still / whole.decades))))]
    cure = _in_order(history)
    if rescaled and is_adaptive(history):
        cure = f"{optimizer_kind(history)} rescales each layer, so that all learn, while its epsilon is small. {cure}"
    else:
        cure += " A clip can only make gradients smaller, and is no cure."
    return [
        Finding(
            rule="vanishing",
            severity=severity,
            layers=shrunk,
            first_step=int(history.layer_step[rows[0]]),
            last_step=int(history.layer_step[rows[-1]]),
            evidence={
                "decades": whole.decades,
                "shrinks_per_layer_by": float(factor),
                "update_ratio_decades": updates.decades if updates.fit > 0 else "not measured",
                **why.evidence,
            },
            cause=f"Each layer passes on only 1/{factor:.1f} of the gradient that it is given, so that "
            f"{'the first layers get next to none' if rescaled else 'the first layers hardly learn'}. {why.cause}",
            cure=cure,
            alternatives=why.alternatives,
        )
    ]


def _of_two_nets(history: History, which: Bools, decades: float) -> bool:
    """Whether most of the line lies where an inner layer is given data, as the graph shows: no gradient goes from it to
    the layers before it.
    """
    places, data = np.flatnonzero(which), given_data(history)
    net = np.zeros(len(which), int)  # of each layer, its number
    net[[i for i in places[1:] if history.layers[i] in data]] = 1
    net = net.cumsum()
    within = (profile(history, which & (net == each), least=2).decades for each in range(net[-1] + 1))
    return bool(net[-1]) and sum(within) < decades / 2


def _in_order(history: History) -> str:
    """What helps, as a sentence."""
    found = remedies(history)
    return f"Use {found[0]}. If that is not enough: {'; '.join(found[1:])}." if found[1:] else f"Use {found[0]}."


def _cut_off(history: History, which: Bools, share: float, min_steps: int) -> list[Finding]:
    """The gradient of most matrices is below a share of the last one's by the median step, though in no even line.

    Not said where the training succeeds. In healthy trainings of the tests it is a thousandth of it at least.
    """
    if not can_be_judged(history, max(min_steps, 50), 500) or succeeds(history, 0.6):
        return []
    norm, over = history.layer("grad_norm"), np.sqrt(numel(history))
    level = typical(norm, over)[which]
    known, total = np.isfinite(level), incoming(history)
    if not known.any():
        return []
    tenth = max(5, len(total) // 10)
    if lost_since(history) is not None or middle(total[-tenth:]) > 100 * middle(total[:tenth]):
        return []  # it came apart, and some layers more than others
    last = level[known][-1]
    small = known & (level < share * last)
    if small.sum() <= known.sum() / 2:
        return []
    names = np.array(pick(history, which))
    why = why_vanishing(history)
    at = np.flatnonzero(which)[small]
    row = int(np.argmax((norm[:, at] / over[at] < share * last).sum(axis=1) > small.sum() / 2))
    weakest, lastly = float(level[small].max() / last), str(names[known][-1])
    cause = f"By the element, the gradients of these layers are below {weakest:.1e} of those of {lastly}: what lies "
    cause += "between passes next to none on. "
    return [
        Finding(
            "vanishing",
            "warning",
            tuple(map(str, names[small])),
            int(history.layer_step[row]),
            int(history.step[-1]),
            {"share_of_the_last": weakest, "layers": int(small.sum()), "of": int(known.sum()), **why.evidence},
            cause + why.cause,
            f"{_in_order(history)} A clip can only make gradients smaller, and is no cure.",
            alternatives=why.alternatives,
        )
    ]


def _late(
    history: History,
    which: Bools,
    decades: float,
    fit: float = 0.95,
    deep: int = 8,
    first: int = 5,
    stood: float = 0.97,
) -> list[Finding]:
    """In the `first` steps the gradient shrinks so over `deep` matrices or more, and a tenth of the run later the loss
    still was the share `stood` of what it began at: the network had to come to life before it could learn.

    In healthy trainings of the tests so many layers lose two decades at most.
    """
    along = profile(history, which, history.layer_rows < first)
    if along.decades < decades or along.fit < fit or len(along.layers) < deep:
        return []
    losses = [values[np.isfinite(values)] for values in scaled_losses(history).values()]
    waits = [middle(v[len(v) // 20 : len(v) // 10]) > stood * middle(v[:first]) for v in losses if len(v) >= 100]
    if not waits or not all(waits):
        return []
    why, steps = why_vanishing(history), history.step[: max(1, len(history) // 10)]
    cause = f"In the first steps each layer passes on only 1/{10 ** (along.decades / (len(along.layers) - 1)):.1f} of "
    cause += "the gradient that it is given, and a tenth of the run later the loss is still where it began. "
    return [
        Finding(
            "vanishing",
            "warning",
            along.layers[: len(along.layers) // 2],
            int(steps[0]),
            int(steps[-1]),
            {"decades": along.decades, **why.evidence},
            cause + why.cause,
            _in_order(history),
            alternatives=why.alternatives,
        )
    ]


def _left_of_inputs(history: History, nothing: float = 1e-3, early: int = 5, least: int = 4) -> Finding | None:
    """What comes into the last of `least` matrices or more is below `nothing` by the element, by the quotient of its
    gradient and its bias's (see `inputs_not_normalised`) in the `early` steps, and in half of all; the training gets
    nowhere. Sums over places may only make the quotient larger. In healthy trainings of the tests it is 0.01 at least.
    """
    wide = matrices(history)
    which = [i for i, name in enumerate(history.layers) if wide[i] and beside_bias(name) != name]
    if len(which) < least or not can_be_judged(history, 50, 500) or succeeds(history):
        return None
    given = inputs_of(history, which[-1])
    if given is None:
        return None
    last, norm, inputs = given
    size = norm / np.sqrt(inputs)
    if not max(middle(size[:early]), middle(size)) < nothing:
        return None
    why = why_vanishing(history)
    cause = f"What comes into `{last}` is of the order of {middle(size[:early]):.1g}: what is given to the first layer "
    cause += "is lost on its way forward, and as little of the gradient comes back. "
    evidence: Evidence = {"last_input_rms": middle(size[:early]), **why.evidence}
    layers = tuple(history.layers[i] for i in which[:-1])
    return whole_run(history, "vanishing", layers, evidence, cause + why.cause, _in_order(history), why.alternatives)


def _faded(history: History, decades: float, fit: float) -> list[Finding]:
    """The activations of the first sampled step fall evenly by `decades` along the forward pass; or, where none were
    recorded, next to nothing comes into the last layer (`_left_of_inputs`).

    Not said where the training succeeds, as the outputs may be learnt by the last layers alone.
    """
    names, rms = forward_rms(history)
    if not len(rms) and (left := _left_of_inputs(history)):
        return [left]
    along = line(np.log10(rms), names)
    if along.decades > -decades or along.fit < fit or not can_be_judged(history, 50, 500) or succeeds(history):
        return []
    cause = "What comes in is lost on its way: the root mean square of the activations falls from "
    cause += f"{quantity_text(rms[0])} in `{names[0]}` to {quantity_text(rms[-1])} in `{names[-1]}` in the first step, "
    cause += "and as little of the gradient comes back. The initial weights are too small for this depth."
    return [
        whole_run(
            history,
            "vanishing",
            tuple(name for name, size in zip(names, rms, strict=True) if size < rms[0] / 100),
            {"activation_decades": -along.decades, "first_rms": float(rms[0]), "last_rms": float(rms[-1])},
            cause,
            f"{_in_order(history)} A higher learning rate does not make up for it.",
        )
    ]
