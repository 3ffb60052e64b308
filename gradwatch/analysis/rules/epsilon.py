"""Gradients that disappear in the eps of an optimizer.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradwatch.analysis.rules.facts import typical
from gradwatch.analysis.rules.finding import Finding
from gradwatch.analysis.rules.layer_facts import numel, pick
from gradwatch.analysis.rules.losses import learnt
from gradwatch.analysis.rules.owners import of_muon, owners
from gradwatch.analysis.rules.progress import comes_to_rest, hardly_moves, loss_progress, progress, succeeds
from gradwatch.analysis.rules.sampled_losses import explains_less
from gradwatch.history import Floats, History

_DIVIDED = ("Adam", "RMSprop", "Muon")  # in a class's name: it divides by the size of the gradients + eps


def below_epsilon(
    history: History,
    most: float = 0.5,
    min_steps: int = 50,
    usual: float = 1e-7,
    nothing: float = 1e-6,
    well: float = 0.6,
) -> list[Finding]:
    """What reaches the optimizer is smaller than what its denominator begins with, in most of the weights.

    Adam and its kin divide by sqrt(v) + eps, Muon by the norm of the whole matrix + eps. Where the gradient's root mean
    square (clipped_norm / sqrt(numel); for Muon its norm) is below that, the step is shorter than the learning rate
    says and no longer of one size. Alarm: it was so over the second half of the run, by the median step, in layers that
    hold the share `most` of the elements. Steps in which nothing was left to learn do not count, nor layers whose
    gradients are `nothing` beside the largest: no eps mends what is rounding. Not said of an eps of
    `usual` size or below where a loss of a usual size does not move: `update-too-small` says what is small then. A note
    where a loss fell by the share `well`: an eps of 1e-3 may be meant (Reddi et al. 2021, arXiv:2003.00295); unless
    less than a tenth of what is asked for is explained.
    Source: Wortsman et al., arXiv:2309.14322, section 3.4 (eps against the gradient's RMS).
    """
    floor = _floors(history)
    if len(history) < min_steps or not np.isfinite(floor).any():
        return []
    norm, over = history.layer("clipped_norm"), np.where(of_muon(history), 1.0, np.sqrt(numel(history)))
    late = (history.layer_rows >= len(history) // 2) & ~learnt(history)[history.layer_rows]
    if late.sum() < min_steps / 2:
        return []
    size = typical(norm[late], over)
    with np.errstate(invalid="ignore"):
        hit = (size < floor) & (size > nothing * np.nanmax(size, initial=0.0))
    elements = numel(history)
    known = np.isfinite(size) & np.isfinite(floor)
    if not hit.any() or elements[hit].sum() <= most * elements[known].sum():
        return []
    added, seen = float(np.median(floor[hit])), float(np.median(size[hit]))
    unlearnt = explains_less(history, 0.1)
    if added <= usual and ((_is_of_usual_size(history) and hardly_moves(history)) or comes_to_rest(history)):
        return []  # nobody raised eps: the gradients are what is small (`updates.weak_gradients`), or all is learnt
    return [
        Finding(
            "below-epsilon",
            "note" if succeeds(history, well) and not unlearnt else "warning",
            () if hit[known].all() else pick(history, hit),
            int(history.layer_step[int((norm[:, hit] / over[hit] < floor[hit]).all(axis=1).argmax())]),
            int(history.step[-1]),
            {"gradient_rms": seen, "eps": added, "layers": int(hit.sum()), "of": int(known.sum())},
            f"In most of the weights the gradients ({seen:.1e}) are below the optimizer's eps ({added:.1e}), which "
            "stands beside them where it divides by their size: the steps are at most "
            f"{seen / (seen + added):.2g} times as long as lr says.",
            _cure(history, seen),
        )
    ]


def _cure(history: History, seen: float, tiny: float = 1e-4) -> str:
    """What brings gradients of the size `seen` above eps: another eps, or a loss that does not begin below `tiny`."""
    eps = f"{10 ** np.floor(np.log10(seen) - 2):.0e}"
    losses = [p.first for p in progress(history) if p.is_loss]
    if not losses or not max(losses) < tiny:
        return f"Lower eps to about {eps}, or scale the loss up."
    return (
        f"The loss begins at {max(losses):.2g}, so its targets are far below unit size, or a factor is: subtract the "
        "targets' mean and divide by their standard deviation, or take the factor out. Such weights begin far above "
        f"such targets, which a lower eps does not mend. If the targets are of unit size: lower eps to "
        f"about {eps}."
    )


def _is_of_usual_size(history: History, least: float = 1e-2) -> bool:
    """Whether the losses began above `least`: a loss that is scaled down is small itself, and so are its gradients."""
    losses = loss_progress(history)
    return bool(losses) and all(p.first > least for p in losses)


def _floors(history: History) -> Floats:
    """What the denominator of each layer begins with, `[L]`; NaN where there is none or it is not known."""
    return np.array([_floor(kind, own) for kind, own in owners(history)])


def _floor(kind: str, settings: Mapping[str, Any]) -> float:
    eps = settings.get("eps")
    if isinstance(eps, int | float) and eps > 0 and any(name in kind for name in _DIVIDED):
        return float(eps)
    return float("nan")
