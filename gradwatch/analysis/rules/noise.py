"""Trainings in which noise decides the steps: by the gradients of parts of a batch, or by the losses."""

from __future__ import annotations

import re

import numpy as np

from gradwatch.analysis.clips import incoming, late_calls
from gradwatch.analysis.noise_scale import estimates, noise_scale
from gradwatch.analysis.rules.facts import middle, optimizer_kind
from gradwatch.analysis.rules.finding import Finding, whole_run
from gradwatch.analysis.rules.losses import scaled_losses
from gradwatch.analysis.rules.progress import Progress, learnt_before, loss_progress, unmoved, went
from gradwatch.analysis.rules.sampled_losses import sampled
from gradwatch.analysis.rules.tries import LOWER, OWN_PAST, clip_with
from gradwatch.formatting import setting_text
from gradwatch.history import History


def noise_dominated(
    history: History,
    times: float = 10.0,
    min_steps: int = 50,
    noise: float = 0.5,
    min_losses: int = 200,
    running: int = 1000,
    share: float = 0.3,
    added: float = 3.0,
) -> list[Finding]:
    """A batch is mostly noise: by the losses of a run that gets nowhere, or by the gradients.

    Or each batch has a loss of its own, and the optimizer takes each for the whole of the data (`_of_whole_batches`):
    its standard deviation is above `share` of where the loss ended.
    Or the loop adds to the gradients what is longer than its clip has left of them (`_behind_the_clip`): what comes to
    the optimizer is `added` times the clip's max_norm, and less than a fifth of what was won was won since the first
    quarter of the run.

    By the losses, a warning: nothing that was logged gets better, as in `no_progress` (from `min_losses` steps on, of a
    run under way from `running`), and the standard deviation of one training loss, by the differences of neighbours,
    is above the share `noise` of where it began and ended: learning could not be seen. Of few targets, n, it must be
    above 1.5 sqrt(2 / n), by half more than that of n squared errors of a normal distribution. So is that of the
    gradient norm, where it is known. Not said of a loss that was learnt within the first steps, or before them
    (`learnt_before`).
    By the gradients, a note, as late in a training it is usual: the noise scale (`analysis.noise_scale`, of ranks or of
    micro-batches) is `times` the batch, over the later half of at least `min_steps` steps in which it is known.
    Source: McCandlish et al. 2018, appendix A.1; the standard error of a median.
    """
    return (
        _by_losses(history, noise, min_losses, running)
        or _of_whole_batches(history, share, min_steps)
        or _behind_the_clip(history, added, min_steps)
        or _by_gradients(history, times, min_steps)
    )


def _by_losses(history: History, noise: float, min_steps: int, running: int) -> list[Finding]:
    losses = unmoved(history, min_steps, running)
    if any(_learnt(p) or learnt_before(history, p) for p in losses):
        return []  # it was learnt within the first steps, or before them
    targets = sampled(history, "targets")[1]
    natural = 1.5 * float(np.sqrt(2 / np.median(targets))) if len(targets) else 0.0
    if not losses or not all(p.noise > max(noise, natural) * max(abs(p.began), abs(p.ended)) for p in losses):
        return []
    norm = incoming(history)
    norm = norm[np.isfinite(norm)]
    if len(norm) >= min_steps and went("grad_norm", norm, 1).noise <= noise * middle(norm):
        return []  # what one example can weigh is bounded, as by Huber's loss: only the loss tells of it
    return _from_batch_to_batch(
        history,
        losses[0],
        "nothing that was logged got better by more than that: a few examples decide each step.",
        "Bound what one example can weigh (a weight, a target, a division by what may be near 0), or each layer's "
        f'gradients by their own past, clip="{OWN_PAST}"; take larger batches, or lower the learning rate.',
        tries=(clip_with(OWN_PAST), LOWER),
    )


def _learnt(loss: Progress) -> bool:
    """Whether nearly all of a loss is gone, by far more than its noise: beside the rest any noise is large."""
    return loss.won > max(6 * loss.noise, 0.8 * abs(loss.first))


def _of_whole_batches(history: History, share: float, min_steps: int) -> list[Finding]:
    """Rprop goes by the signs of gradients and L-BFGS by their differences: between small batches both are noise.

    Source: Riedmiller & Braun 1993; Liu & Nocedal 1989: of the gradient of all data.
    """
    kind = optimizer_kind(history)
    losses = loss_progress(history) if _WHOLE.fullmatch(kind) and len(history) >= min_steps else []
    if not losses or any(_learnt(p) for p in losses) or not all(p.noise > share * abs(p.ended) for p in losses):
        return []
    return _from_batch_to_batch(
        history,
        losses[0],
        f"{kind} takes the gradient of each for that of all the data.",
        f"Give {kind} all of the data in each step, or use Adam or SGD.",
    )


def _from_batch_to_batch(
    history: History, loss: Progress, why: str, cure: str, tries: tuple[str, ...] = ()
) -> list[Finding]:
    """The finding of a loss whose noise is large beside its level."""
    times = loss.noise / abs(loss.ended) if loss.ended else float("inf")
    return [
        whole_run(
            history,
            "noise-dominated",
            (),
            {"noise_of_a_batch": times, "metric": loss.metric, "began": loss.began, "ended": loss.ended},
            f"From batch to batch {loss.metric} differs by {times:.2g} times its own level, and {why}",
            cure,
            tries=tries,
        )
    ]


_WHOLE = re.compile("L?BFGS|Rprop")


def _behind_the_clip(history: History, times: float, min_steps: int, often: float = 0.9) -> list[Finding]:
    """In the share `often` of the steps, or more, after a clip of all gradients of the one backward pass of a step.

    Source: Abadi et al., arXiv:1607.00133, algorithm 1: the noise of differential privacy is divided by the batch, as
    the sum of the gradients is.
    """
    norm, limit, share = (history.total(name) for name in ("grad_norm", "user_max_norm", "user_clip_share"))
    asked = np.isfinite(limit) & (share == 1) & ~late_calls(history)
    passes = sampled(history, "passes")[1]
    if asked.sum() < max(min_steps, often * len(history)) or not len(passes) or passes.max() > 1:
        return []
    longer = float(np.median(norm[asked] / limit[asked]))
    if not (norm[asked] > times * limit[asked]).mean() > often:
        return []
    losses = [values[np.isfinite(values)] for values in scaled_losses(history).values()]
    late = [(went("loss", values[len(values) // 4 :], 1), values[0]) for values in losses if len(values) >= min_steps]
    if not late or any(p.gain > 0.2 * (first - p.ended) for p, first in late):
        return []
    return [
        whole_run(
            history,
            "noise-dominated",
            (),
            {"times_the_clip": longer, "user_max_norm": float(np.median(limit[asked]))},
            f"The loop clips its gradients to {setting_text(float(np.median(limit[asked])))}, and those that come to "
            f"the optimizer are {longer:.2g} times as long: what is added behind the clip decides each step, and since "
            "the first quarter of the run little gets better.",
            "Look at what is added there. Noise for privacy is divided by the number of rows of the batch, as the "
            "gradient of a mean is; or take larger batches.",
        )
    ]


def _by_gradients(history: History, times: float, min_steps: int) -> list[Finding]:
    signal, noise = estimates(history)
    known = np.flatnonzero(np.isfinite(signal))
    if len(known) < min_steps:
        return []
    late = known[len(known) // 2 :]
    scale = noise_scale(signal[late], noise[late])
    if not scale >= times:
        return []
    return [
        Finding(
            rule="noise-dominated",
            severity="note",
            layers=(),
            first_step=int(history.step[late[0]]),
            last_step=int(history.step[-1]),
            evidence={"noise_scale_in_batches": scale, "steps": len(late)},
            cause="Between batches the gradient differs by more than it has in common: a batch "
            f"{setting_text(scale)} times as large would still be worth its cost."
            if np.isfinite(scale)
            else "Between batches the gradient differs so much that nothing in common can be seen.",
            cure="If the loss has stopped falling: batches four times as large, four backward() for each step(), or a "
            "third of the learning rate.",
        )
    ]
