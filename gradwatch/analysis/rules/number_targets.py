"""What is wrong with the numbers that a loss asks for, in steps that were sampled."""

from __future__ import annotations

import math

import numpy as np

from gradwatch.analysis.rules.facts import optimizer_kind
from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.loss_graph import graph_rows, reached_range, shape_in
from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.analysis.rules.progress import came_down, loss_progress, succeeds
from gradwatch.analysis.rules.sampled_losses import LEAST_SAMPLES, is_explained, sampled
from gradwatch.analysis.rules.series import late_median
from gradwatch.formatting import percent
from gradwatch.history import History


def targets_out_of_range(history: History, beyond: float = 0.05, by_noise: float = 0.25) -> list[Finding]:
    """The last operation cannot give what is asked for: a sigmoid, a tanh, a softmax or a ReLU, and targets outside of
    its range. A warning.

    Alarm: the graph of the loss shows that operation right below a loss of differences, and more than a twentieth of
    the targets lie further outside, by the medians over the samples, than `beyond` of the distance that nine tenths of
    the targets span (than `by_noise` of it where the outputs explain half of them: noise, whose mean is within); or
    they add up to less than half or more than twice what a softmax does. Or that share of the targets of a binary
    cross-entropy lie outside of 0 and 1. Or, of a loss whose targets are not known, all that is given out came to the
    ends of its range while most of the loss was left (`_at_its_ends`).
    Source: the ranges of these functions; Goodfellow et al. (2016), Deep Learning, section 6.2.2.
    """
    outside = sampled(history, "target_outside")[1]
    if len(outside) > 2 and np.median(outside) > beyond:
        return [_no_probabilities(history, float(np.median(outside)))]
    shown = reached_range(history)
    _, low, high = sampled(history, "target_low", "target_high")
    if shown is None or len(low) < 3:
        return _at_its_ends(history)
    operation, layer, least, most = shown
    lowest, highest = float(np.median(low)), float(np.median(high))
    in_all = _in_all(history, layer) if operation == "softmax" else 1.0
    room = (by_noise if is_explained(history, least=3) else beyond) * (highest - lowest)
    is_within = lowest >= least - room and highest <= most + room
    if is_within and 0.5 < in_all < 2:
        return []
    reach = f"between {least:g} and {most:g}" if math.isfinite(most) else f"{least:g} or more"
    asked = f"nine tenths of the targets lie between {lowest:.4g} and {highest:.4g}"
    asked = f"all together add up to 1, and the targets to {in_all:.3g}" if is_within else asked
    return [
        whole_run(
            history,
            "targets-out-of-range",
            layer,
            {"operation": operation, "target_low": lowest, "target_high": highest},
            f"The last operation of the model, a {operation}, gives numbers {reach}; {asked}. They cannot be met.",
            f"Leave the {operation} out: for a loss of differences the last layer is linear. Or bring the targets into "
            "its range.",
        )
    ]


def _at_its_ends(history: History, all_of: float = 0.99, left: float = 0.5) -> list[Finding]:
    """Outputs that came to the ends of what a sigmoid or a tanh gives, and have the share `left` of the loss left.

    Of `all_of` them at the end, by the median, and of less than half at first. In the healthy trainings of the tests
    whose loss keeps a quarter .45 are there at most.
    """
    flat = sampled(history, "end_saturated")[1]
    losses = loss_progress(history)
    if len(flat) < LEAST_SAMPLES or len(sampled(history, "targets")[0]) or has_rivals(history) or not losses:
        return []
    there, kept = late_median(flat), losses[0].ended / losses[0].first
    if there < all_of or flat[0] > 0.5 or came_down(history, left):
        return []
    causes = ("what is asked for lies beyond these ends", "the steps are too long, and threw it there")
    return [
        whole_run(
            history,
            "targets-out-of-range",
            "",
            {"at_the_ends": there, "left": kept},
            f"{percent(there)} of what the model gives out came to the ends of what its last operation, a "
            f"sigmoid or a tanh, can give, and {percent(kept)} of the loss is left. {either(causes)}",
            "Leave that operation out, or bring the targets into its range; if they are in it, lower the learning "
            "rate.",
            causes,
        )
    ]


def _in_all(history: History, layer: str) -> float:
    """What the targets of an example add up to, where a softmax over all of them stands above this layer; else 1."""
    sizes = [shape_in(row["shape"])[row["dim"]] for row in graph_rows(history, "softmax") if row["layer"] == layer]
    _, mean = sampled(history, "target_mean")
    return float(sizes[0] * np.median(mean)) if sizes and len(mean) else 1.0


def _no_probabilities(history: History, share: float) -> Finding:
    return whole_run(
        history,
        "targets-out-of-range",
        "",
        {"share_outside": share},
        f"{percent(share)} of the targets of a binary cross-entropy are below 0 or above 1. It asks for probabilities: "
        "of others it has no least value, and falls for ever.",
        "Give it labels of 0 and 1: (labels + 1) / 2 of those that are -1 and 1.",
    )


def targets_not_normalised(
    history: History,
    large: float = 30.0,
    missed: float = 0.5,
    min_steps: int = 50,
    apart: float = 3.0,
    unlike: float = 100.0,
) -> list[Finding]:
    """Numbers that are asked for are so large that the outputs have not come to them. A warning.

    Alarm: mean or deviation of the targets are above `large` in size, by the medians over the samples, and at the end
    of `min_steps` steps or more the outputs' mean is away from that of the targets by the share `missed` of it, or
    their deviation is below that share of the targets'; or what they say is worse than the targets' mean would be, by
    no more than `apart` times their variance (beyond that it came apart); or the targets' mean is above a hundred, or
    ten of their deviations, and the outputs came within the share `missed` of it only after a tenth of the run. Or
    one column of the targets has `unlike` times the deviation of another, and one above `large`: then the loss is
    that column's alone.
    Source: LeCun et al. (1998), Efficient BackProp, sections 4.3 and 4.5.
    """
    step, mean, std, said, deviation = sampled(history, "target_mean", "target_std", "predicted_mean", "predicted_std")
    share = sampled(history, "explained")[1]
    if len(step) < LEAST_SAMPLES or len(history) < min_steps or has_rivals(history):
        return []
    asked, spread = float(np.median(mean)), float(np.median(std))
    late = slice(-max(3, len(step) // 4), None)
    away = abs(float(np.median(said[late] - mean[late])))
    short = float(np.median(deviation[late]))
    far = abs(asked) > large and away > missed * abs(asked)
    flat = spread > large and short < missed * spread
    astray = max(abs(asked), spread) > large and len(share) > 0 and -apart < float(np.median(share[late])) < 0
    arrived = step[np.abs(said - mean) < missed * np.abs(mean)]
    away_from_0 = abs(asked) > 100 or abs(asked) > max(large, 10 * spread)
    slow = away_from_0 and len(arrived) and arrived[0] - step[0] > len(history) / 10
    if not (astray or slow) and (not (far or flat) or succeeds(history, 0.9)):
        return _columns_apart(history, large, unlike)
    when = f", and was halfway to their mean at step {arrived[0]:.0f}" if slow else ""
    return [
        whole_run(
            history,
            "targets-not-normalised",
            "",
            {
                "target_mean": asked,
                "target_std": spread,
                "predicted_mean": float(np.median(said[late])),
                "predicted_std": short,
            },
            f"The targets are {asked:.4g} on average, with a deviation of {spread:.4g}; at the end the model gave "
            f"{np.median(said[late]):.3g}, with {short:.3g}{when}. A layer gives out numbers of about 1 at first, and "
            f"{optimizer_kind(history)} brings it there by steps that have nothing to do with the targets' size.",
            "Take the targets' mean away and divide by their deviation, both of the training data, and turn the "
            "model's answers back. Returns and rewards: divide by a running deviation.",
        )
    ]


def _columns_apart(history: History, large: float, unlike: float) -> list[Finding]:
    _, times, spread = sampled(history, "target_columns_apart", "target_std")
    if len(times) < LEAST_SAMPLES or np.median(times) < unlike or np.median(spread) < large:
        return []
    return [
        whole_run(
            history,
            "targets-not-normalised",
            "",
            {"columns_apart": float(np.median(times)), "target_std": float(np.median(spread))},
            f"Of what the model is asked for one column deviates {np.median(times):.3g} times as much as another: the "
            "loss and its gradients are those of the largest, and the others are hardly learnt.",
            "Give each column of the targets a mean of 0 and a deviation of 1, of the training data, and turn the "
            "model's answers back; or give each a loss of its own, weighed by one over its variance.",
        )
    ]
