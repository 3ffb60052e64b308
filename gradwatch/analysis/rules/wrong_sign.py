"""Steps that lead uphill for one part of a model, downhill for the rest."""

from __future__ import annotations

import re

import numpy as np

from gradwatch.analysis.groups import higher_is_better
from gradwatch.analysis.rules.facts import settings
from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.layer_facts import matrices
from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.analysis.rules.owners import owners
from gradwatch.analysis.rules.progress import progress, succeeds
from gradwatch.analysis.rules.sampled_losses import layer_at, sampled
from gradwatch.history import History
from gradwatch.storage.logged_names import is_reward


def wrong_sign(history: History, min_steps: int = 20) -> list[Finding]:
    """Of one optimizer's groups some raise the loss that others lower (`maximize=True`), or a loss of weighed choices
    rises with their entropy (`_against_entropy`), or what they are paid falls for good (`_against_its_reward`), or the
    terms of a loss all push the scores of a layer the same way (`_scored_one_way`). A warning.

    Of groups not in parts that train against each other, nor where the training succeeds, nor of numbers that belong to
    no matrix: a multiplier of Lagrange's climbs.
    Source: torch's documentation of `maximize`.
    """
    alone = len(history) >= min_steps and not has_rivals(history)
    found = (_some_climb(history) or _against_entropy(history) or _against_its_reward(history)) if alone else []
    return found or _scored_one_way(history)


def _some_climb(history: History) -> list[Finding]:
    """Some groups of a training that does not succeed have `maximize=True`, and others have not."""
    groups = settings(history)
    climbs = [bool(group.get("maximize")) for group in groups]
    uphill = np.array([bool(group.get("maximize")) for _, group in owners(history)], bool)
    if len({*climbs}) < 2 or succeeds(history) or (uphill.any() and not (uphill & matrices(history)).any()):
        return []
    which = ", ".join(str(i) for i, climbing in enumerate(climbs) if climbing)
    return [
        whole_run(
            history,
            "wrong-sign",
            (),
            {"groups_that_climb": which, "groups": len(groups)},
            f"Param group {which} has maximize=True and the others have not: its steps raise the loss that those of "
            "the others lower.",
            "Take maximize=True out of that group, unless it is to work against the others (a multiplier, an "
            "adversary).",
        )
    ]


def _against_entropy(history: History, least: int = 3) -> list[Finding]:
    """Choices that are weighed by an advantage, and a term of the loss that rises with their entropy, in every sample.

    Source: Mnih et al., arXiv:1602.01783, section 4: the entropy is a bonus, so that choices stay open.
    """
    step, rewarded, _ = sampled(history, "entropy_rewarded", "advantage_std")
    if len(step) < least or rewarded.any():
        return []
    return [
        whole_run(
            history,
            "wrong-sign",
            (),
            {"entropy_rewarded": "no", "samples": len(step)},
            "The loss rises with the entropy of the choices: it is added where it is to be taken away. The choices are "
            "soon always the same, and nothing better is tried.",
            "Take the entropy away from the loss: loss = policy_loss + value_loss - 0.01 * entropy.",
        )
    ]


def _against_its_reward(history: History, least: int = 3, first: int = 3, sigmas: float = 8.0) -> list[Finding]:
    """Choices that are weighed by an advantage, and a reward that fell and was never above its `first` values again.

    By `sigmas` standard deviations of one value, and a fifth of where it began. Not of what is no reward by its name (a
    loss, a cost, a bonus that fades, a deviation), nor where the training succeeds.
    """
    if len(sampled(history, "advantage_std")[0]) < least or succeeds(history):
        return []
    for went in progress(history):
        rows = np.flatnonzero(np.isfinite(history.total(went.metric)))
        begun = float(np.median(history.total(went.metric)[rows[:first]]))
        fell, enough = begun - went.ended, max(sigmas * went.noise, abs(begun) / 5)
        rewards = is_reward(went.metric) and not _NO_REWARD.search(went.metric)
        rises = higher_is_better(went.metric, [history])
        if rewards and rises and fell > enough and went.best < begun + 2 * went.noise:
            return [
                Finding(
                    "wrong-sign",
                    "warning",
                    (),
                    int(history.step[rows[0]]),
                    int(history.step[-1]),
                    {"metric": went.metric, "began": begun, "ended": went.ended},
                    f"{went.metric} fell from {begun:.4g} over its first values to {went.ended:.4g}, and was never "
                    f"better again: choices that bring less are made more likely. {either(_AGAINST)}",
                    "Look at the sign of the loss: -(log_prob * advantage).mean() makes more likely what brought more "
                    "than expected. Then at that of the advantages: reward less baseline, and costs with a minus. If "
                    "both are right, lower the learning rate tenfold.",
                    alternatives=_AGAINST,
                )
            ]
    return []


_NO_REWARD = re.compile(
    r"loss|mse|mae|err|std|var|cost|penal|intrinsic|novel|curios|bonus|shap|explor|length|scale|coef", re.IGNORECASE
)
_AGAINST = (
    "the loss, or what its log-probabilities are multiplied by, has the wrong sign",
    "the first steps were so long that they threw the policy to one choice, and nothing else is tried since",
)


def _scored_one_way(history: History, least: int = 3) -> list[Finding]:
    """The terms of the loss all push the scores of a layer that it trains the same way, in every sample.

    Source: Arjovsky et al., arXiv:1701.07875, equation 2: a critic's loss is a difference.
    """
    step, one_way, places = sampled(history, "scored_one_way", "layer_of/scored_one_way")
    if len(step) < least or not one_way.all():
        return []
    layer = layer_at(history, places[-1])
    if layer not in history.layers:
        return []
    return [
        whole_run(
            history,
            "wrong-sign",
            (layer,),
            {"samples": len(step)},
            f"The scores that `{layer}` gives stand in the loss at two places or more, and with one sign at all of "
            "them: they are pushed the same way whatever is scored, without end. A critic is not asked then to tell "
            "what is real from what is made.",
            "Give the terms different signs: critic(made).mean() - critic(real).mean() for the critic, "
            "-critic(made).mean() for the maker. Mind the brackets: -(a.mean() - b.mean()) is not "
            "-(a.mean() + b.mean()).",
        )
    ]
