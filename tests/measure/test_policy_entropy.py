"""The sign that an entropy has in a loss, however both are written."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

from gradwatch.measure.policy_entropy import seen
from gradwatch.table import IN_LOSS

NET, X = nn.Linear(4, 3), torch.randn(8, 4)


def by_logarithms():
    log_p = NET(X).log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1).mean()


def by_probabilities():
    p = NET(X).softmax(-1)
    return -(p * p.log()).sum(-1).mean()


ENTROPIES = {
    "logarithms": by_logarithms,
    "probabilities": by_probabilities,
    "of logits": lambda: Categorical(logits=NET(X)).entropy().mean(),
    "of probabilities": lambda: Categorical(probs=NET(X).softmax(-1)).entropy().mean(),
}
LOSSES = {
    "a bonus": lambda rest, entropy: rest - 0.01 * entropy,
    "a negative weight": lambda rest, entropy: rest + entropy * -0.01,
    "in brackets": lambda rest, entropy: -(0.01 * entropy - rest) / 2,
    "a mean of each": lambda rest, entropy: torch.stack([rest, 1 - entropy]).mean(),
}


@pytest.mark.parametrize("entropy", ENTROPIES.values(), ids=ENTROPIES)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_bonus_is_told_from_a_penalty(entropy, loss):
    rest = NET(X).square().mean()
    size = {f"{IN_LOSS}choice_entropy": pytest.approx(by_logarithms().item() / math.log(3))}
    assert seen(loss(rest, entropy()).grad_fn) == {f"{IN_LOSS}entropy_rewarded": 1.0, **size}
    assert seen(loss(rest, -entropy()).grad_fn) == {f"{IN_LOSS}entropy_rewarded": 0.0, **size}


def test_a_choice_that_is_ruled_out_has_no_part_in_the_entropy():
    logits = NET(X).masked_fill(torch.tensor([False, False, True]), -torch.inf)
    loss = -Categorical(logits=logits).entropy().mean()
    expected = Categorical(logits=logits[:, :2]).entropy().mean().item() / math.log(3)
    assert seen(loss.grad_fn)[f"{IN_LOSS}choice_entropy"].item() == pytest.approx(expected)


def test_of_a_loss_without_an_entropy_nothing_is_told():
    assert seen(F.cross_entropy(NET(X), torch.arange(8) % 3).grad_fn) == {}
    assert seen(NET(X).exp().mean().grad_fn) == {}


def test_an_entropy_that_is_averaged_with_a_mask_is_told_apart_too():
    rest, mask = NET(X).square().mean(), (torch.arange(8) < 5).float()
    log_p = NET(X).log_softmax(-1)
    entropy = (-(log_p.exp() * log_p).sum(-1) * mask).sum() / mask.sum()
    assert seen((rest - 0.01 * entropy).grad_fn)[f"{IN_LOSS}entropy_rewarded"] == 1.0
    assert seen((rest + 0.01 * entropy).grad_fn)[f"{IN_LOSS}entropy_rewarded"] == 0.0
    both_ways = (log_p.exp() * log_p).sum(-1) * (mask - 0.5)
    assert math.isnan(seen((rest + both_ways.mean()).grad_fn)[f"{IN_LOSS}entropy_rewarded"])


@pytest.mark.parametrize("weight", [0, 0.0, -0.0])
def test_an_entropy_that_is_multiplied_by_nothing_is_neither(weight):
    assert seen((NET(X).square().mean() - weight * by_logarithms()).grad_fn) == {}
