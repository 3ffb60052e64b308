"""Diseases of the weights themselves: they grow without end, shrink to nothing, or a constraint holds all of them.

Legend: L layers, M steps in which weights were measured.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradwatch.analysis.rules.facts import own_optimizers, set_rate, settings
from gradwatch.analysis.rules.finding import Evidence, Finding, Severity, Why, either
from gradwatch.analysis.rules.layer_facts import initial_gains, matrices, measured, pick, root_mean_square, shapes_of
from gradwatch.analysis.rules.once import once
from gradwatch.analysis.rules.owners import written_before
from gradwatch.analysis.rules.progress import succeeds
from gradwatch.analysis.rules.small_updates import far_targets
from gradwatch.analysis.rules.step_length import lengthened
from gradwatch.analysis.rules.tries import LOWER, renorm_with
from gradwatch.analysis.rules.weight_decay import decay_of_groups, decouples, is_decay, taken_by_decay
from gradwatch.formatting import percent, setting_text
from gradwatch.history import Bools, Floats, History
from gradwatch.policies import MaxNorm, MaxSpectral, QKClip, Renorm
from gradwatch.policies.grammar import members


def weight_growth(history: History, factor: float = 10.0, min_measured: int = 8, beyond: float = 1e4) -> list[Finding]:
    """Weights that run away: `factor` times their first norm, and growing no slower than at first. A warning; a note
    where the training demonstrably succeeds, no setting explains it, and they grew to less than `beyond` times.

    Of layers with two or more dimensions that did not begin near 0 (a root mean square of 1e-3) nor ended below a gain
    of 1 (`initial_gains`), and of the gains of normalisations (vectors that began at 1). No slower: the second half of
    the measured steps added at least as much as the first (healthy weights grow like a logarithm or a root). Not said
    of steps that lead straight to targets that are far (`far_targets`).
    Source: Kimi K2's QK-Clip and OLMo 2 on growing weights and logits; healthy ones of the tests grow up to 6-fold.
    """
    at, norm = measured(history, "weight_norm")
    rows = history.layer_rows[at]
    if len(rows) < min_measured or far_targets(history):
        return []
    begin, half, end = norm[[0, len(rows) // 2, -1]].astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        which = (matrices(history) & ~_near_zero(history, begin)) | _gains(history, begin)
        which &= (end > factor * begin) & (end - half >= half - begin)
        which &= ~(initial_gains(history) * end / begin < 1)  # they only came to their usual size
    if not which.any():
        return []
    with np.errstate(invalid="ignore", divide="ignore"):
        grown = (norm[:, which] > np.sqrt(begin[which] * end[which])).any(axis=1)  # half of it, in decades
    decays = any(is_decay(group.get("weight_decay")) for group in settings(history))
    largest = float(np.nanmax(end[which] / begin[which]))
    longer = lengthened(history)
    causes = _OF_GROWTH if not longer.cause else ()
    bound = _bound(history, begin, which & matrices(history), factor)
    ways = [f"{'raise the' if decays else 'use'} weight decay", "normalise the layers before them"]
    ways += [f'bound them with renorm="{bound}"'] if bound else []
    return [
        Finding(
            "weight-growth",
            "note" if succeeds(history) and not longer.cause and largest < beyond else "warning",
            pick(history, which),
            int(history.step[rows[grown.argmax()]]),
            int(history.step[rows[-1]]),
            {"growth": largest, "first_norm": float(begin[which].max()), "last_norm": float(end[which].max())},
            f"These weights grow to {largest:.3g} times their first norm, more in the second half of the run than in "
            "the first. " + (either(_OF_GROWTH) if causes else f"The steps are too large.{longer.cause}"),
            longer.around(
                "Lower the learning rate tenfold: if they then stay, the steps were too large. If they grow on, "
                f"{', '.join(ways[:-1])} or {ways[-1]}."
            ),
            tries=longer.left_of((LOWER, renorm_with(bound)) if bound else (LOWER,)),
            alternatives=causes,
        )
    ]


def _bound(history: History, begin: Floats, which: Bools, factor: float) -> str:
    """A constraint at the norm of these matrices' units where their growth stood out, as code; empty for none."""
    if not which.any():
        return ""
    cap = float(np.nanmedian(begin[which])) * factor**0.5
    return f"Renorm(2, 0, {setting_text(cap / max(1.0, float(np.sqrt(_rows_of(history, which)))))})"


_OF_GROWTH = ("the loss can be lowered without end by larger weights", "the steps are too large")


@once
def weights_shrink(
    history: History,
    share: float = 0.1,
    min_measured: int = 5,
    half: float = 0.5,
    pull: float = 0.005,
    well: float = 0.95,
) -> list[Finding]:
    """Weights that fade away: most matrices ended below `share` of their first norm. A warning; a note where a decay
    does it and a loss fell by the share `well`.

    Or below `half` of it, where a decay takes the share `pull` of them or more in each step: then it begins with the
    first one. Or most of the matrices and gains of one param group with such a decay did (`_of_a_group`).
    Of those that did not begin near 0; the first norm is measured after a step, whose length is taken back.
    Weight decay takes lr x weight_decay of the weights in each step.
    Source: Loshchilov & Hutter, arXiv:1711.05101: what decay takes in a step; 0.01 to 0.1 is usual for AdamW, 1e-4 for
    SGD: with their rates less than 1e-3 of the weights in a step.
    """
    at, norm = measured(history, "weight_norm")
    if len(at) < min_measured:
        return []
    begin, end = norm[[0, -1]].astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = history.layer("update_ratio")
        known = np.isfinite(ratio[at]).any(axis=0)
        first = np.where(known, ratio[at[0]].astype(np.float64), 0.0)  # NaN of weights that were 0
        left = end / begin * (1 + first)  # before the first step, at most
        wide = matrices(history) & ~_near_zero(history, begin)
        decays = taken_by_decay(history) > pull
        which = wide & (left < (half if decays else share))
    if which.sum() <= wide.sum() / 2:
        which = _of_a_group(history, wide | _gains(history, begin), left < share, pull)
    if not which.any():
        return []
    decay = max(decay_of_groups(history), default=0.0)
    row = 0 if decays else int((norm[:, which] < 0.9 * begin[which]).any(axis=1).argmax())
    least = float(np.nanmin(left[which]))
    why = _shrinking(history, decay)
    why = why._replace(cause=f"These weights fade away: {percent(least)} of their first norm is left. {why.cause}")
    evidence: Evidence = {"left": least, "weight_decay": decay, "lr": set_rate(history)}
    severity: Severity = "note" if decays and succeeds(history, well) else "warning"
    since = int(history.layer_step[at[row]])
    return [why.finding(history, "weights-shrink", pick(history, which), evidence, severity, since)]


def _shrinking(history: History, decay: float) -> Why:
    """What makes the weights smaller."""
    if decay:
        said = f"The weight decay of {decay:g} is stronger than what the loss asks of them."
        return Why(said, f"Lower weight_decay a hundredfold, to {decay / 100:g}.", {})
    writes = len(written_before(history))
    if writes > 2:
        return Why(
            f"The loop itself writes to the weights between {writes} pairs of steps.",
            "Look at what it writes there: an average whose shares do not add up to 1, a decay of its own, a mask.",
            {"writes": writes},
        )
    said = f"What makes them smaller is stronger than what the loss asks of them. {either(_OF_SHRINKING)}"
    return Why(said, _OF_A_PENALTY, {}, alternatives=_OF_SHRINKING)


def _of_a_group(history: History, apt: Bools, shrunk: Bools, pull: float) -> Bools:
    """Which layers shrank of a param group whose decay takes the share `pull` of them in a step, `[L]`.

    None where less than two of its `apt` ones did, or no more than half.
    """
    found = np.zeros(len(apt), bool)
    if not decouples(history):
        return found
    layers = [group.get("layers") or () for o in own_optimizers(history) for group in o.get("groups") or ()]
    for i, (decay, names) in enumerate(zip(decay_of_groups(history), layers, strict=False)):
        rates = set_rate(history, i), set_rate(history)  # one column where all groups have one rate
        held = apt & np.isin(history.layers, names)
        strong = decay * next((rate for rate in rates if np.isfinite(rate)), 0.0) > pull
        if strong and max(2, held.sum() / 2) <= (held & shrunk).sum():
            found |= held & shrunk
    return found


_OF_A_PENALTY = (
    "Look in the loss for a term of the weights themselves, a sum of their squares or sizes: take its mean in the "
    "place of its sum, or a hundredth of its factor. If there is none, look for what writes the weights after "
    "optimizer.step()."
)
_OF_SHRINKING = ("it is a penalty in the loss", "something changes them after the step")


def _rows_of(history: History, which: Bools) -> float:
    """The median number of units (rows) of these layers."""
    shapes = shapes_of(history)
    return float(np.median([(shapes.get(name) or (1,))[0] for name in pick(history, which)]))


def renorm_binds(history: History, often: float = 0.5, min_measured: int = 5) -> list[Finding]:
    """A constraint that scales most units back in most steps: it sets the weights' size, not a bound on it.

    A layer's mean `renorm_rate` over the second half of the measured steps is above `often`: a note, and in most of
    the constrained layers a warning. Not of bounds on singular values and logits, which are meant to be met.
    Source: Srivastava et al. 2014 (typical bounds of 3 to 4, which few units reach).
    """
    at, rate = measured(history, "renorm_rate")
    rows, bounds = history.layer_rows[at], members(history.run.renorm)
    if len(rows) < min_measured or (bounds and all(isinstance(p, MaxSpectral | QKClip) for p in bounds)):
        return []
    late = rate[len(rows) // 2 :]
    seen = ~np.isnan(late).all(axis=0)
    mean = np.where(seen, np.nan_to_num(late).sum(axis=0) / np.maximum((~np.isnan(late)).sum(axis=0), 1), 0)
    which = mean > often
    if not which.any():
        return []
    severe = bool(which.sum() > seen.sum() / 2)
    first = rows[int((np.nan_to_num(rate[:, which]) > often).any(axis=1).argmax())]
    return [
        Finding(
            "renorm-binds",
            "warning" if severe else "note",
            pick(history, which),
            int(history.step[first]),
            int(history.step[rows[-1]]),
            {"renorm_rate": float(mean[which].max()), "layers": int(which.sum()), "of": int(seen.sum())},
            f"{history.run.renorm} scales back {percent(float(mean[which].max()))} of the units after a step: the "
            "weights are held at the bound, and the step along them is undone.",
            f'A bound is meant for the few largest units: renorm="{_raised(history)}", or none.',
            tries=(renorm_with(_raised(history)), renorm_with("none")),
        )
    ]


def _raised(history: History) -> str:
    """The run's constraint with twice the bound."""
    for policy in members(history.run.renorm):
        if isinstance(policy, MaxNorm):
            return f"MaxNorm({setting_text(2 * policy.max_value)})"
        if isinstance(policy, Renorm):
            return repr(replace(policy, maxnorm=float(setting_text(2 * policy.maxnorm))))
    return "MaxNorm(4.0)"


def _near_zero(history: History, first: Floats) -> Bools:
    """Which layers began near 0 by their first norms, `[L]`: of these a factor tells nothing."""
    return ~(root_mean_square(history, first) > 1e-3)


def _gains(history: History, first: Floats) -> Bools:
    """Which layers are vectors that began at 1 or next to it, by their first norms, `[L]`."""
    return np.asarray(~matrices(history) & (np.abs(root_mean_square(history, first) - 1) < 0.1))
