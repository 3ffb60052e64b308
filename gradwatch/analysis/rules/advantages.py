"""What the log-probabilities of choices are multiplied by, in steps that were sampled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradwatch.analysis.rules.facts import pick, present
from gradwatch.analysis.rules.finding import Finding
from gradwatch.analysis.rules.loss_graph import Operation, from_graph, paths
from gradwatch.analysis.rules.progress import reaches_its_goal
from gradwatch.analysis.rules.sampled_losses import sampled
from gradwatch.history import History


def returns_not_normalised(
    history: History, large: float = 10.0, apart: float = 1.0, least: int = 4, min_steps: int = 50
) -> list[Finding]:
    """Choices are weighed by numbers that are large and mostly of one sign: returns as they are. A warning.

    Alarm: the mean of what the log-probabilities of a batch are multiplied by is above `large` in size, and `apart`
    times its deviation, by the medians over the samples. Each choice is made more likely then, whatever came of it, and
    what tells good from bad is the small rest. Not said where a metric that is meant to rise does.
    Source: Williams (1992), Machine Learning 8, on baselines; Greensmith et al. (2004), JMLR 5, on their variance.
    """
    step, mean, spread = sampled(history, "advantage_mean", "advantage_std")
    if len(step) < least or len(history) < min_steps or reaches_its_goal(history):
        return []
    usual, around = float(np.median(np.abs(mean))), float(np.median(spread))
    if not (usual > large and usual > apart * around):
        return []
    return [
        from_graph(
            history,
            "returns-not-normalised",
            "",
            {"advantage_mean": float(np.median(mean)), "advantage_std": around},
            f"The log-probabilities of what was chosen are multiplied by {np.median(mean):.3g} on average, with a "
            f"deviation of {around:.3g}: whatever came of it, each choice is made "
            f"{'more' if np.median(mean) > 0 else 'less'} likely, by a gradient as large as the returns.",
            "Take a baseline away (the mean of the batch, or a learnt value) and divide by the deviation: "
            "(returns - returns.mean()) / (returns.std() + 1e-8).",
        )
    ]


def advantage_not_detached(history: History) -> list[Finding]:
    """The loss of a policy pulls at the critic, whose value it weighs its choices by. A warning.

    Alarm: the graph of a loss shows a product, element by element, of what leads to the log-probabilities of choices
    and of a difference that leads to a single output of another layer, with no exponential, power or squashing function
    on the way to it. Only where both are trained by the same step: an optimizer of the critic's own may clear its
    gradients first.
    Source: Mnih et al. (2016), arXiv:1602.01783, algorithm S3: the policy's gradient is that of the log-probability
    alone, times a number.
    """
    trained = {*pick(history, present(history).any(axis=0))}
    ways = [(path, layer) for path, layer in paths(history) if layer in trained]
    for choice, policy in ways:
        for value, critic in ways:
            at = _where_they_part(choice, value)
            if critic != policy and at and _chooses(choice[at:]) and _is_a_difference_of_values(value[at:]):
                return [
                    from_graph(
                        history,
                        "advantage-not-detached",
                        critic,
                        {"policy": policy, "critic": critic},
                        f"The log-probabilities that `{policy}` gives are multiplied by a difference that `{critic}` "
                        "is asked for a gradient by: the loss of the policy moves the value too, by how likely the "
                        "choice was, and away from the return.",
                        "Detach the advantage in the loss of the policy: -(log_prob * (returns - "
                        "value.detach())).mean(). The critic learns from its own loss alone.",
                    )
                ]
    return []


_BENDS = {"Exp", "Pow", "Sigmoid", "Tanh", "Softmax", "SafeSoftmax", "LogSoftmax", "Log", "Softplus", "Gather"}


def _where_they_part(one: Sequence[Operation], other: Sequence[Operation]) -> int:
    """The place behind the last operation that two ways share, if it is a product of two for each of several rows."""
    shared = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    last = one[shared - 1] if shared else None
    is_product = last is not None and last.name == "Mul" and last.operands == 2 and max(last.shape, default=1) > 1
    return shared if is_product else 0


def _chooses(path: Sequence[Operation]) -> bool:
    """Whether a way leads to the log-probability of what was chosen: of a class, or of a number under a Gaussian."""
    names = [op.name for op in path]
    of_numbers = any(names[i : i + 4] == ["Div", "Neg", "Pow", "Sub"] for i in range(len(names)))
    return of_numbers or not {*names}.isdisjoint({"Gather", "NllLoss"})


def _is_a_difference_of_values(path: Sequence[Operation]) -> bool:
    """Whether a way leads through a difference to a layer of one output, and nothing that bends."""
    names = {op.name for op in path}
    return "Sub" in names and not names & _BENDS and path[-1].name in ("Addmm", "Mm") and path[-1].shape[-1:] == (1,)
