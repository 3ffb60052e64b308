"""What is learnt of the training data goes at the cost of what is known of others.

Legend: T recorded steps, N measurements of other data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.final_values import final
from gradwatch.analysis.rules.facts import middle
from gradwatch.analysis.rules.finding import Finding, either
from gradwatch.analysis.rules.held_out import held_out
from gradwatch.analysis.rules.held_out_losses import lost_at_once
from gradwatch.analysis.rules.loss_graph import number_of_classes
from gradwatch.analysis.rules.losses import has_rivals, scaled_losses
from gradwatch.analysis.rules.sampled_losses import logs_rewards
from gradwatch.analysis.rules.series import late_median, noise_of_one
from gradwatch.history import Floats, History
from gradwatch.storage.logged_names import is_loss


@dataclass(frozen=True)
class Turn:
    """Where what is measured on other data was best, in `row`, and what it came to: as it was logged."""

    metric: str
    row: int
    best: float
    ended: float
    is_first: bool  # whether it was never measured before


def overfitting(history: History, least: int = 6, lost: float = 0.2, fell: float = 0.5) -> list[Finding]:
    """A loss of other data rises from its lowest on, while that of the training data falls on.

    Of a loss that is measured on other data `least` times or more (`_turn`), `val_loss` and the like, or all of them
    where none is called so: it ended higher than its lowest by the share `lost` of that. Each training loss fell
    meanwhile to less than `fell` of what it was there. A warning; a note where another metric of known direction, an
    accuracy, say, is as good in the end as it was there. Where the lowest is the first that was measured, the two sets
    of data may also be unlike. Not judged: what is lost from one measurement to the next and for good (`lost_at_once`),
    parts that train against each other, and what an agent learns of its own data.
    Source: Prechelt (1998), Early Stopping - But When?, section 2 (the generalization loss); Guo et al. (2017),
    arXiv:1706.04599, section 3 (a loss that overfits where the error does not: probabilities too near 0 and 1).
    """
    measured = [*held_out(history, least)]
    losses = [(name, rows, values) for name, _, rows, values in measured if is_loss(name)]
    whole = [one for one in losses if len(_WORDS.findall(one[0])) <= 2]  # `val_loss` beside its terms
    judged = whole or losses
    turns = [turn for one in judged if (turn := _turn(*one, lost))]
    if not turns or len(turns) < len(judged) or has_rivals(history) or logs_rewards(history) or lost_at_once(history):
        return []
    turn = max(turns, key=lambda t: t.ended / t.best)
    trained = [
        (name, _about(values, turn.row), final(history, name)) for name, values in scaled_losses(history).items()
    ]
    if not trained or not all(ended < fell * then for _, then, ended in trained):
        return []
    kept = [
        (name, final(history, name))
        for name, _, rows, values in measured
        if not is_loss(name)
        and late_median(values) <= middle(values[_nearest(rows, turn.row, 3)]) + noise_of_one(values)
    ]
    name, then, ended = trained[0]
    step = int(history.step[turn.row])
    causes = _UNLIKE if turn.is_first else ()
    why = either(causes) if causes else "What is learnt from there on holds of the training data alone."
    cure = _REGULARISE.format(metric=turn.metric, step=step)
    if kept:
        causes = ()
        of_classes = (number_of_classes(history) or 1) > 1 or "acc" in kept[0][0].lower()
        why = f"{kept[0][0]}, at {kept[0][1]:.3g}, is as good as it was there: {_SURE if of_classes else _FEW_ANSWERS}"
        cure = _CALIBRATE if of_classes else f"If {kept[0][0]} is what counts, nothing has to be done. If not: {cure}"
    return [
        Finding(
            "overfitting",
            "note" if kept else "warning",
            (),
            step,
            int(history.step[-1]),
            {"metric": turn.metric, "best": turn.best, "ended": turn.ended, "trained_to": ended},
            f"{turn.metric} was lowest {'when first measured, ' * turn.is_first}at step {step}, {turn.best:.3g}, and "
            f"rises since, to {turn.ended:.3g}, while {name} fell from {then:.3g} to {ended:.3g}. {why}",
            cure,
            alternatives=causes,
        )
    ]


_REGULARISE = (
    "Keep the weights from where {metric} is lowest (about step {step}): save them there, and stop when it has come no "
    "lower for a while. To bring it lower: more data, or augmentation that leaves the targets true; weight decay or "
    "dropout; a smaller model, or one that was trained before."
)
_UNLIKE = (
    "what is learnt from there on holds of the training data alone",
    "the other data are prepared in another way, or asked for something else",
)
_SURE = "the answers stay right, and their probabilities come too near to 0 and 1."
_FEW_ANSWERS = "what the loss weighs most, a few answers far off, say, is worse, and most answers are not."
_CALIBRATE = (
    "If only the answers count, nothing has to be done. If the probabilities do: stop earlier, smooth the labels "
    "(label_smoothing=0.1), or divide the logits by a temperature that is fitted on the other data."
)
_WORDS = re.compile(r"[^\W_]+")


def _turn(name: str, rows: NDArray[np.intp], values: Floats, lost: float, part: float = 0.05) -> Turn | None:
    """Where a loss of other data, `[N]`, is lowest, if it rises since; else None.

    By medians of three a quarter of the values, or three, come after its lowest. The rise is the share `lost` of that,
    the share `part` of all that was won, and three times the noise of a value; the last quarter lies above half of it.
    """
    if not (values > 0).all():
        return None
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(np.r_[values[0], values, values[-1]], 3), axis=1)
    best, late = int(smooth.argmin()), max(3, len(values) // 4)
    low = float(smooth[best])
    rise = late_median(values) - low
    if best > len(values) - 1 - late:
        return None
    enough = rise > max(lost * low, part * (values[0] - low), 3 * noise_of_one(values))
    stays = (values[-late:] > low + rise / 2).all()
    if not (enough and stays):
        return None
    lowest = int(values.argmin())
    return Turn(name, int(rows[lowest]), float(values[lowest]), float(values[-1]), lowest == 0)


def _nearest(rows: NDArray[np.intp], row: int, few: int) -> NDArray[np.intp]:
    """The places of the `few` of these rows that are nearest to `row`."""
    return np.argsort(np.abs(rows - row), kind="stable")[:few]


def _about(values: Floats, row: int) -> float:
    """Where a training loss `[T]` was about a row: the median of a twentieth of what was logged."""
    known = np.flatnonzero(np.isfinite(values))
    return float(np.median(values[known[_nearest(known, row, max(5, len(known) // 20))]]))
