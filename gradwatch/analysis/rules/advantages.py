"""What the log-probabilities of choices are multiplied by, and values that are learnt from values, in sampled steps."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from gradwatch.analysis.rules.facts import own_optimizers
from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.layer_facts import pick, present
from gradwatch.analysis.rules.loss_graph import NUMBERS, Operation, paths
from gradwatch.analysis.rules.progress import reaches_its_goal, succeeds
from gradwatch.analysis.rules.sampled_losses import follow, logs_rewards, sampled
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
    causes = () if logs_rewards(history) else _RETURNS_OR_WEIGHTS
    return [
        whole_run(
            history,
            "returns-not-normalised",
            "",
            {"advantage_mean": float(np.median(mean)), "advantage_std": around},
            f"The log-probabilities of what was chosen are multiplied by {np.median(mean):.3g} on average, with a "
            f"deviation of {around:.3g}: whatever came of it, each choice is made "
            f"{'more' if np.median(mean) > 0 else 'less'} likely, by a gradient as large as they are."
            f"{f' {either(causes)}' if causes else ''}",
            f"{_OF_WEIGHTS if causes else ''}{_BASELINE}",
            causes,
        )
    ]


_RETURNS_OR_WEIGHTS = (
    "they are returns, without a baseline",
    "they are weights of the examples, which are not 1 on average",
)
_BASELINE = (
    "Take a baseline away (the mean of the batch, or a learnt value) and divide by the deviation: (returns - "
    "returns.mean()) / (returns.std() + 1e-8). Where something is paid at every move, returns shrink towards the end "
    "of an episode: take the mean over the episodes at each move then, or the learnt value."
)
_OF_WEIGHTS = "Weights are divided by their mean, and nothing is taken off them: weights below 0 unlearn. Of returns: "


def values_overestimated(
    history: History, follows: float = 0.95, times: float = 5.0, alone: float = 20.0, least: int = 12
) -> list[Finding]:
    """Values that are learnt from the model's own grow with them on and on, and nothing gets better. A warning.

    Alarm: the mean targets of a loss of differences go together with what the model says (`follow`) by `follows`, are
    further from 0 in each quarter of the run than in the one before, and come to `times` what they were at first, or
    deviated by, while a reward that is logged gets no better. Where none is, they come to `alone` times that, and
    faster from quarter to quarter: what is to be learnt is come to ever more slowly. Not where the training succeeds.
    Source: van Hasselt et al., arXiv:1509.06461, section 3 (the maximum of what is estimated is too high, and grows by
    its own estimates); Pardo et al., arXiv:1712.00378, section 3 (where an episode ends there is nothing to come).
    """
    step, asked, spread, _ = sampled(history, "target_mean", "target_std", "predicted_mean")
    if len(step) < least or follow(history) < follows or reaches_its_goal(history) or succeeds(history):
        return []
    first = max(float(np.median(np.abs(asked[:3]))), float(np.median(spread[:3])))
    size = np.interp(np.linspace(step[0], step[-1], 5), step, np.abs(asked))
    grows, faster = (np.diff(size) > 0).all(), (np.diff(size, 2)[1:] > 0).all()
    if not grows or not (size[-1] > times * first if logs_rewards(history) else faster and size[-1] > alone * first):
        return []
    return [
        whole_run(
            history,
            "values-overestimated",
            "",
            {"target_first": float(asked[0]), "target_last": float(asked[-1]), "follow": follow(history)},
            f"What is asked for grows with what the model says, from {asked[0]:.3g} to {asked[-1]:.3g}, and nothing "
            f"that was logged gets better. {either(_OVERESTIMATES)}",
            "Leave the value of the next state out where the episode is done: reward + gamma * (1 - done) * value. If "
            "it is, take that value from a copy of the network that is made anew every hundred steps or so (a target "
            "network; where there is one, more rarely than now), let another network choose the action than the one "
            "that says its value (Double DQN), and lower the learning rate to a third.",
            _OVERESTIMATES,
        )
    ]


_OVERESTIMATES = (
    "the value of what comes after the end of an episode is counted, too",
    "each step chases the errors of the one before: the maximum of estimates, a target network that follows at once, a "
    "rate that is too high",
)


def target_network_stale(
    history: History, known: float = 0.95, still: float = 0.4, least: int = 12, min_steps: int = 200
) -> list[Finding]:
    """The values of chosen actions are learnt to the last digit, and what they are to be never moved. A warning.

    Alarm: a loss of differences is taken of one number out of several of each row, as `q.gather(1, action)` gives it;
    in the last quarter of the samples the model explains the share `known` of what is asked for, whose mean there, and
    in the last three, is away from that of the first quarter by less than the share `still` of its deviation, and by
    less than itself; what is logged is of episodes, by its name; and no metric got better. A value that is learnt from
    the next state's grows with that, as it was next to 0 at first.
    Source: Mnih et al. (2015), Nature 518, algorithm 1 (every C steps the target network is made equal to the other).
    """
    _, asked, spread, explained = sampled(history, "target_mean", "target_std", "explained")
    layer = next((layer for path, layer in paths(history) if _is_chosen(path)), None)
    acts = any(map(_OF_EPISODES.search, history.logged))
    if layer is None or not acts or len(asked) < least or len(history) < min_steps or reaches_its_goal(history):
        return []
    quarter = max(3, len(asked) // 4)
    ends = [float(np.median(asked[-last:]) - np.median(asked[:quarter])) for last in (quarter, 3)]
    moved = max(map(abs, ends))
    learnt, deviation = float(np.median(explained[-quarter:])), float(np.median(spread))
    if not (learnt >= known and moved < min(still * deviation, abs(float(np.median(asked[:quarter]))))):
        return []
    return [
        whole_run(
            history,
            "target-network-stale",
            layer,
            {"target_first": float(asked[0]), "target_last": float(asked[-1]), "explained": learnt},
            f"What the values of the chosen actions are to be was {asked[0]:.3g} on average at first and is "
            f"{asked[-1]:.3g} in the end, although the model has learnt it wholly. {either(_STALE)}",
            f"Copy the weights into the target network, target.load_state_dict(net.state_dict()), 20 times in a run or "
            f"more, as every {max(1, len(history) // 20)} steps here, or let it follow in each step, "
            "p_target.lerp_(p, 0.01); print a weight of it twice. If it follows: look whether a reward is ever seen.",
            _STALE,
        )
    ]


def _is_chosen(path: Sequence[Operation]) -> bool:
    """Whether a loss of differences is right above a choice of one number out of several of each row."""
    if not path or path[0].name not in NUMBERS:
        return False
    below = list(takewhile(lambda op: op.name in _OF_ONE, path[1:]))
    rest = path[1 + len(below) :]
    chosen = [op for op in below if op.name in ("Gather", "Index")]
    if not chosen or not rest or not rest[0].shape:
        return False
    return rest[0].shape[-1] > 1 and math.prod(chosen[-1].shape) * rest[0].shape[-1] == math.prod(rest[0].shape)


_OF_ONE = {"Gather", "Index", "Select", "Squeeze", "Unsqueeze", "View", "ReshapeAlias", "UnsafeView", "ToCopy"}
_OF_EPISODES = re.compile(
    r"(?<![a-z])(q|q_?values?|td_?errors?|rewards?|returns?|episodes?|epsilon)(?![a-z])", re.IGNORECASE
)
_STALE = (
    "the network that they are made with is never updated (or so slowly that it got nowhere in this run), so that they "
    "tell what one action more brings and no more",
    "no reward was ever seen, or nothing is to come after it (gamma is 0)",
)


def target_not_detached(history: History) -> list[Finding]:
    """The target of a value is made of a value of the same weights, and the gradient goes through both. A warning.

    Alarm: both operands of a loss of differences, or of a difference, lead to one layer, and one of them is a constant
    that is added to a constant share, as a reward is to the discounted value of the next state. Where the values of
    both states are one output, of which each takes a part, the graph shows a single way down to it.
    Source: Sutton & Barto (2018), Reinforcement Learning, section 9.3 (semi-gradient methods) and 11.5 (what the full
    gradient learns instead: values that change little, not true ones); Mnih et al. (2015), Nature 518.
    """
    sides: dict[tuple[Operation, ...], list[tuple[bool, str]]] = {}
    for path, layer in paths(history):
        at = next((i for i, op in enumerate(path) if _takes_two(op)), None)
        if at is not None:
            below = [(op.name, op.operands) for op in path[at + 1 :]]
            made = below[:2] == [("Add", 1), ("Mul", 1)]
            sides.setdefault(tuple(path[: at + 1]), []).append((made, layer))
    both = [
        layer for ways in sides.values() for made, layer in ways if made and (len(ways) == 1 or (False, layer) in ways)
    ]
    if not both:
        return []
    return [
        whole_run(
            history,
            "target-not-detached",
            both[0],
            {},
            "What a value is to be is a constant and a share of a value that the same weights give (a reward, and what "
            "the next state is worth), and the gradient goes through both: the next value is moved towards this one as "
            "this is towards it. Such values change little from state to state, and are not those of the returns.",
            "Make the target under torch.no_grad(), or detach() it; better by a copy of the network that follows "
            "slowly (a target network). If the full gradient of the residual is meant, nothing is wrong.",
        )
    ]


def _takes_two(op: Operation) -> bool:
    """Whether it is a loss of differences, or a difference of rows, both operands of which ask for a gradient."""
    return op.operands == 2 and (op.name in NUMBERS or (op.name == "Sub" and max(op.shape, default=1) > 1))


def policy_loss_trains_critic(history: History) -> list[Finding]:
    """The loss of a policy pulls at the critic, whose values it weighs its choices by, or climbs. A warning.

    Alarm: the graph of a loss shows a product, element by element, of what leads to the log-probabilities of choices
    and of a difference that leads to a single output of another layer, with no exponential, power or squashing function
    on the way to it. Or a layer of one output is fitted to targets by a mean squared error, and a mean of what it gives
    out is climbed as well, as a policy does whose actions it judges. Only where both are trained by the same step: an
    optimizer of the critic's own may clear its gradients first.
    Source: Mnih et al. (2016), arXiv:1602.01783, algorithm S3 (the policy's gradient is that of the log-probability
    alone, times a number); Lillicrap et al. (2015), arXiv:1509.02971, algorithm 1 (the policy climbs a critic that it
    does not change).
    """
    trained = {*pick(history, np.asarray(present(history).any(axis=0)))}
    ways = [(path, layer) for path, layer in paths(history) if layer in trained]
    if critic := _weighs_by(ways):
        cause = f"What the log-probabilities of choices are multiplied by asks `{critic}` for a gradient, too: the "
        cause += "loss of the policy moves the value by how likely the choice was, and away from the return."
        cure = "Detach the advantage in the loss of the policy: -(log_prob * (returns - value.detach())).mean()"
    elif len(own_optimizers(history)) == 1 and (critic := _climbs(ways, trained)):
        cause = f"`{critic}` is fitted to targets, and the mean of what it gives out is climbed by the same optimizer: "
        cause += "the loss of the policy raises the values, whatever the targets say."
        cure = "Give the critic an optimizer of its own, and clear its gradients before its backward; or freeze it "
        cure += "(requires_grad_(False)) while the policy climbs it"
    else:
        return []
    cure += ". The critic learns from its own loss alone."
    return [whole_run(history, "policy-loss-trains-critic", critic, {"critic": critic}, cause, cure)]


Ways = Sequence[tuple[Sequence[Operation], str]]


def _weighs_by(ways: Ways) -> str:
    """The layer whose values log-probabilities of choices are multiplied by; empty where it is none."""
    for choice, policy in ways:
        for value, critic in ways:
            at = _behind_a_product(choice, value)
            if critic != policy and at and _chooses(choice[at:]) and _is_a_difference_of_values(value[at:]):
                return critic
    return ""


def _climbs(ways: Ways, trained: set[str]) -> str:
    """The layer of one part whose values are fitted to targets and climbed, beside other parts that are trained."""
    fitted = {layer for path, layer in ways if path[0].name == "MseLoss" and _gives_values(path[1:])}
    both = fitted & {layer for path, layer in ways if _is_a_mean_of_values(path)}
    parts = {name.partition(".")[0] for name in trained}
    return next((critic for critic in sorted(both) if parts - {critic.partition(".")[0]}), "")


_BENDS = {"Exp", "Pow", "Sigmoid", "Tanh", "Softmax", "SafeSoftmax", "LogSoftmax", "Log", "Softplus", "Gather"}


def _behind_a_product(one: Sequence[Operation], other: Sequence[Operation]) -> int:
    """The place behind the last product of two, for each of several rows, that both ways begin with; 0 without any."""
    alike = [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]
    products = (op.name == "Mul" and op.operands == 2 and max(op.shape, default=1) > 1 for op in alike)
    return max((place + 1 for place, is_product in enumerate(products) if is_product), default=0)


def _chooses(path: Sequence[Operation]) -> bool:
    """Whether a way leads to the log-probability of what was chosen: of a class, or of a number under a Gaussian."""
    names = [op.name for op in path]
    of_numbers = any(names[i : i + 4] == ["Div", "Neg", "Pow", "Sub"] for i in range(len(names)))
    return of_numbers or not {*names}.isdisjoint({"Gather", "NllLoss"})


def _is_a_difference_of_values(path: Sequence[Operation]) -> bool:
    """Whether a way leads through a difference to a layer of one output, and nothing that bends."""
    return any(op.name == "Sub" for op in path) and _gives_values(path)


def _is_a_mean_of_values(path: Sequence[Operation]) -> bool:
    """Whether a way leads from a loss, turned round, through a mean to a layer of one output, and nothing between."""
    names = [op.name for op in path if op.name not in ("Squeeze", "View", "Select", "Add")]
    return names[:-1] in (["Neg", "Mean"], ["Mean", "Neg"]) and _gives_values(path)


def _gives_values(path: Sequence[Operation]) -> bool:
    """Whether a way leads to a layer of one output, and nothing on it bends."""
    bends = any(op.name in _BENDS for op in path)
    return bool(path) and not bends and path[-1].name in ("Addmm", "Mm") and path[-1].shape[-1:] == (1,)
