"""Gradients of the wrong size: a loss scale is left in them, or they are never zeroed.

Legend: T recorded steps, L layers, R ranks.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.rules.clipping import clip_before_unscale
from gradwatch.analysis.rules.facts import is_adaptive, middle, optimizer_kind, settings, typical
from gradwatch.analysis.rules.finding import Finding, Severity, either, whole_run
from gradwatch.analysis.rules.gradients import exploding
from gradwatch.analysis.rules.layer_facts import directness, matrices
from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.losses import has_rivals, training_losses
from gradwatch.analysis.rules.progress import loss_progress, succeeds
from gradwatch.analysis.rules.sampled_losses import in_most_looks, sampled
from gradwatch.analysis.rules.weight_growth import weights_shrink
from gradwatch.formatting import loop_clips, percent
from gradwatch.history import Floats, History


def scaled_gradients(
    history: History, excess: float = 1000.0, min_steps: int = 20, beyond: float = 10.0, least_factor: float = 256.0
) -> list[Finding]:
    """The gradients are far larger than the fall of the loss that they brought about: a loss scale is left in them.

    A step dw lowers the loss by at most |g| |dw| (to first order). Along the way to half of the fall the sum of
    |g| |dw| is about 1 to 50 times that half, because steps do not all point downhill; when it is `excess` times it
    (by the median step, so that a few wild ones do not count),
    the gradients are not those of the loss that was logged. Both sides are measured: |dw| is update_ratio times
    weight_norm. And a scale multiplies the gradients of all layers: three quarters of them are `beyond` what a mean
    loss gives to its outputs (`_of_all_layers`). A function that is steep multiplies those of its first layers.
    Needs a training loss that falls clearly, and `min_steps` steps; of parts that train
    against each other nothing is said, nor of a training that came apart or is thrown about, nor where the loop clips
    before it unscales: then the large norms are explained. Nor of weights that fade away: their steps are those of a
    decay; nor of a loss that is ever below 0, as a policy gradient's is, whose fall says nothing.
    Or it is told: the loss as a whole was multiplied by a power of two, of `least_factor` at least, in each step that
    was looked at, nobody wrote to the gradients between backward and the step, and no scaler steps.
    A warning; a note where nothing depends on the scale (an optimizer of Adam's kind, and no clip), or a loss fell by
    nine tenths although it was told.
    Source: the descent lemma; forgotten unscaling is wandb#4369, DeepSpeed#8588; the two with a scale that the tests
    have are 2,000 and 4,000 times beyond, networks that are steep or thrown about below 0.4.
    """
    if told := _told(history, least_factor):
        return [told]
    names = training_losses(history)
    if len(history) < min_steps or has_rivals(history) or not names:
        return []
    loss = history.total(names[0])
    rows = np.flatnonzero(np.isfinite(loss))
    path = _path(history)
    if len(rows) < min_steps or path is None or loss[rows].min() < 0:
        return []
    width = max(5, len(rows) // 20)
    smooth = np.convolve(loss[rows], np.ones(width) / width, "valid")
    noise = float(np.median(np.abs(np.diff(loss[rows]))))
    half = float(smooth[0] - smooth.min()) / 2
    if half <= noise or half <= 0:
        return []
    if any(rule(history) for rule in (clip_before_unscale, exploding, weights_shrink, lr_too_high)):
        return []
    end = rows[int(np.argmax(smooth <= smooth[0] - half)) + width - 1]
    ratio = middle(path[: end + 1]) * float(end + 1) / half
    if not excess <= ratio < np.inf or _of_all_layers(history, loss) < beyond:
        return []
    causes = (
        f"a loss scale (of the order of 2**{round(np.log2(ratio / 10))}) was not taken out before the step",
        "another loss was logged, such as a mean beside a sum",
    )
    return [
        whole_run(
            history,
            "scaled-gradients",
            (),
            {
                "times_too_large_for_the_loss": ratio,
                "usual": "1 to 50",
                "median_grad_norm": middle(incoming(history)),
                "fall_of_the_loss": half,
            },
            f"The gradients are not those of the logged loss, but many times larger. {either(causes)}",
            "Log the loss that backward() is called on: if it is as large, that was all. Else divide the scale "
            "out: scaler.step(optimizer) does, optimizer.step() does not. Until then thresholds of clips are wrong by "
            "the same factor.",
            causes,
            severity=_severity(history),
        )
    ]


def _severity(history: History) -> Severity:
    return "warning" if history.run.clip or loop_clips(history.per_step) or not is_adaptive(history) else "note"


def _told(history: History, least: float) -> Finding | None:
    """The scale as the loss has it."""
    _, factor = sampled(history, "factor")
    is_scale = (factor >= least) & (np.log2(factor) % 1 == 0)
    if not len(factor) or not is_scale.all() or np.isfinite(history.total("loss_scale")).any():
        return None
    scale = f"{factor[-1]:,.0f}"
    return whole_run(
        history,
        "scaled-gradients",
        (),
        {"factor": float(factor[-1]), "median_grad_norm": middle(incoming(history))},
        f"The loss is multiplied by {scale} before backward(), and nothing divides the gradients by it: they are "
        f"{scale} times those of the loss when the optimizer steps.",
        "Divide the gradients by it before any clip, and before the step: scaler.unscale_(optimizer) does, and "
        "scaler.step(optimizer) in the place of optimizer.step(). Until then thresholds of clips are wrong by the same "
        "factor.",
        severity="note" if succeeds(history, 0.9) else _severity(history),  # whoever means it trains well by it
    )


def _of_all_layers(history: History, loss: Floats) -> float:
    """The gradient norm that three quarters of the layers exceed, over that of a squared error in its outputs.

    The latter is at most twice the root of the loss `[T]`, which the bias of the last layer gets; a cross-entropy gives
    no more than the root of 2.
    """
    found = typical(history.layer("grad_norm"), np.ones(len(history.layers)))
    found = found[np.isfinite(found)]
    return float(np.quantile(found, 0.25) / (2 * np.sqrt(middle(np.abs(loss))))) if len(found) else 0.0


def _path(history: History) -> Floats | None:
    """|g| |dw| of every step, `[T]`; |dw| is known every few steps and drawn through between them.

    Steps that take each other back count as far as they lead: by the weights' net displacement, where it is known.
    """
    moved = history.total("update_norm")
    rows = np.flatnonzero(np.isfinite(moved) & (moved > 0))
    if not len(rows):
        return None
    direct = middle(directness(history)[1])
    with np.errstate(over="ignore", invalid="ignore"):
        moved = moved * (min(1.0, direct) if direct > 0 else 1.0)
        return np.asarray(incoming(history) * np.interp(np.arange(len(history)), rows, moved[rows]))


def gradients_accumulate(
    history: History,
    times: float = 10.0,
    against: float = 40.0,
    straight: float = 0.98,
    jump: float = 2.0,
    even: float = 0.03,
    well: float = 0.9,
) -> list[Finding]:
    """From the first step on the norm grows as a sum does: gradients are added up, because nothing zeroes them.

    After t steps a sum of t gradients that point the same way is t times as large. Alarm: the norm reaches `times` its
    first value after about that many steps (0.6 to 2 times as many), the third is well above the first, until then its
    correlation with the number of steps is `straight`, and no step adds more than `jump` times the first norm (an
    explosion adds more each time).
    Gradients that soon point elsewhere add up to less: the norm may take up to four times as many steps where the
    first four of it rise as a sum does and it was near half of that height half way.
    Sums that bend sooner show by how little a single batch changes them (`_is_even`), or by steps that go on as the one
    before did while the loss is thrown about (`_swings`).
    Of parts that train against each other it must reach `against` times: the gradient that a critic hands on grows as
    the critic learns. Not said where a loss fell by the share `well`: sums of gradients lead past where they point.
    Always where gradients of the step before were there unchanged when backward was called (`_never_cleared`), or those
    of another model's loss (`_of_another`).
    Where it is known how often the loop writes to a gradient between two steps (`grad_writes`), that counts for more:
    never where the gradients are new in each step; always where backward alone writes, and the norm rises as of a sum.
    Source: torch adds to .grad until it is zeroed; the growth is that of a sum.
    """
    if kept := _never_cleared(history) or _of_another(history):
        return kept
    norm = incoming(history)
    bad = np.flatnonzero(~(np.isfinite(norm) & (norm > 0)))
    norm = norm[: bad[0]] if len(bad) else norm
    writes, rivals = middle(_of_backward(history)), has_rivals(history)
    times = against if rivals else times
    is_sum = writes == 1 and len(norm) > 5 and float(np.median(norm[2:20])) > 1.4 * norm[0]
    if writes == 0 or (not is_sum and (len(norm) < times or succeeds(history, well))):
        return []
    first = float(np.median(norm[:3])) / 2  # the middle of the first three of a sum: 1, 2, 3
    end = None if is_sum else _of_a_sum(norm, times, first, straight, jump, rivals)
    if end is None and not (is_sum or _is_even(history, norm, even) or (not rivals and _swings(history, norm))):
        return []
    end = min(len(norm), 60) - 1 if end is None else end
    steps = np.arange(end + 1)
    fit = float(np.corrcoef(steps, norm[: end + 1])[0, 1])
    peak = int(norm.argmax())
    return [
        whole_run(
            history,
            "gradients-accumulate",
            (),
            {
                "grows_per_step_by": float(np.polyfit(steps, norm[: end + 1], 1)[0]),
                "straightness": fit,
                "first_grad_norm": float(norm[0]),
                "largest": float(norm[peak]),
            },
            "Each step's gradient is the sum of all before it: nothing sets it to zero between the steps."
            + (" The loop writes to it once between two steps: in backward." if is_sum else ""),
            "Call optimizer.zero_grad() once in each step, before backward (with gradient accumulation: after "
            "each optimizer.step()).",
            severity="error",
        )
    ]


def _never_cleared(history: History, least: int = 2) -> list[Finding]:
    """In the steps that were looked at, `least` or more, backward added to what the step before had left."""
    at, share = sampled(history, "never_cleared")
    at, share, (looked, _) = at[share > 0], share[share > 0], sampled(history, "passes")
    if len(at) < least:
        return []
    part, norm = float(np.median(share)), incoming(history)
    whose = "the gradients" if part == 1 else f"the gradients of {percent(part)} of the layers"
    always = np.isin(looked[1:], at).all()  # before the first step there is nothing to clear
    often = "" if always else f"Of {len(looked)} steps that were looked at {len(at)} had gradients left. "
    return [
        Finding(
            rule="gradients-accumulate",
            severity="error",
            layers=(),
            first_step=int(history.step[0] if always else at[0]),
            last_step=int(history.step[-1]),
            evidence={
                "share_of_layers": part, "steps_looked_at": len(looked), "first_grad_norm": float(norm[0]),
                "last_grad_norm": float(norm[-1]),
            },
            cause=f"{often}Nothing sets {whose} to zero: when backward was called they were as the step before had "
            "left them, and were added to.",
            cure="Call zero_grad() of the optimizer that holds them once in each step, before backward (with gradient "
            "accumulation: after each step). Of several models each one's: a loss that goes through another leaves "
            "gradients there, too.",
        )
    ]  # fmt: skip


def _of_another(history: History) -> list[Finding]:
    """A loss that came through another model, which had stepped since (`in_most_looks`)."""
    losses, (looked, _) = in_most_looks(history, "of_another"), sampled(history, "passes")
    if not len(losses):
        return []
    return [
        whole_run(
            history,
            "gradients-accumulate",
            (),
            {"losses_of_others": float(np.median(losses)), "steps_looked_at": len(looked)},
            "Each step is taken with gradients that the loss of another model left here, beside its own: it "
            "came through these weights, its optimizer stepped, and nothing cleared what it left.",
            "Call zero_grad() of this model's optimizer right before the backward() of its own loss; and give the "
            "other's loss what this one makes without its graph: D(fake.detach()).",
            severity="error",
        )
    ]


def _of_backward(history: History) -> Floats:
    """How often the loop wrote to a gradient before each step, where that is known, without its own clip: `[S]`."""
    clips = np.isfinite(history.total("user_max_norm")) + 2.0 * np.isfinite(history.total("user_clip_value"))
    writes = history.total("grad_writes")
    writes = np.where(writes > 0, writes - clips, writes)
    return np.asarray(writes[np.isfinite(writes) & ~np.isfinite(history.total("evaluations"))])


def _of_a_sum(norm: Floats, times: float, first: float, straight: float, jump: float, rivals: bool) -> int | None:
    """The row in which a norm `[T]` reached `times` its first value as a sum does; None for one that did not."""
    above = np.flatnonzero(norm >= times * first)
    if not len(above) or not 0.6 * times <= above[0] + 1 <= 4 * times:
        return None
    end = int(above[0])
    rise = np.diff(norm[: end + 1])
    fit = float(np.corrcoef(np.arange(end + 1), norm[: end + 1])[0, 1])
    rose = len(norm) > 2 and norm[2] > 1.4 * norm[0]  # 3 of a sum in one direction, 1.7 of one in any
    counts = rose and end + 1 <= 2 * times and fit >= straight
    bends = not rivals and (norm[1:4] > [1.4 * norm[0], 1.8 * norm[0], 2 * norm[0]]).all()
    bends = bends and norm[end // 2] > 0.36 * norm[end]  # 0.5 on a line, 0.32 where it is multiplied
    return end if (counts or bends) and not np.abs(rise).max() > jump * max(first, norm[0]) else None


def _is_even(history: History, norm: Floats, even: float, times: float = 7.0, after: int = 10, least: int = 60) -> bool:
    """Whether a norm `[T]` is `times` what it was at first, and changes less from step to step than the loss does.

    From the row `after` on to half of the run it changes by less than the share `even` by its median: a batch adds
    little to the sum of all before it, while each batch has a loss of its own. A sum grows no faster than its steps, or
    little faster where what is added grows too as the net learns, or its rival: that counts where it changes far less
    than the loss.
    """
    late = norm[after : max(least, len(norm) // 2)]
    names = training_losses(history)
    if len(late) < least - after or not names or not np.median(late) >= times * np.median(norm[:3]):
        return False
    loss = history.total(names[0])[: after + len(late)]
    loss = loss[np.isfinite(loss)]
    level = abs(float(np.median(loss))) if len(loss) > least // 2 else 0.0
    noise = float(np.median(np.abs(np.diff(loss)))) / level if level else 0.0  # that of GRPO is exactly 0
    change = float(np.median(np.abs(np.diff(np.log(late)))))
    pace = late[-1] / late[0] * after / (after + len(late))
    if change < min(even, noise / 4):
        return bool(pace < 3)
    multiplied = np.diff(norm[:least]).max() > 5 * norm[:3].max()  # it adds ever more
    return bool(not has_rivals(history) and not multiplied and pace < 1.5 and change < min(even, noise / 1.2))


def _swings(history: History, norm: Floats, straight: float = 0.6, least: int = 5) -> bool:
    """Whether steps lead the same way over `least` of them or more, though the loss did not clearly get better.

    Asked of SGD without momentum, where nothing else carries a step on, if the first three values of the norm `[T]`
    rise as those of a sum do, and later ones stay above the first. Steps that are too long take each other back:
    `straight` is the share of the way that is kept, between a random walk's 0.3 in ten steps and 1. A sum of gradients
    is a momentum of 1: it swings.
    """
    carried = any(float(group.get("momentum") or 0) > 0.5 for group in settings(history))
    losses = loss_progress(history)
    every, direct = directness(history)
    if optimizer_kind(history) != "SGD" or carried or not losses or any(p.is_real() for p in losses) or every < least:
        return False
    rises = len(norm) >= least and norm[1] > 1.25 * norm[0] and norm[2] > 1.4 * norm[0]
    return rises and middle(norm[len(norm) // 2 :]) >= norm[0] and middle(direct[matrices(history)]) > straight
