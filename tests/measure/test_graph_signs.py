"""Whether a loss pushes the scores of a layer one way, however its terms are written."""

import pytest
import torch
from torch import nn

from gradwatch.measure.graph_nodes import walk
from gradwatch.measure.graph_signs import of_itself, seen
from gradwatch.measure.loss_graph import LossGraph
from gradwatch.table import IN_LOSS, LAYER_IN_LOSS

CRITIC = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
NAMES = {id(p): name for name, p in CRITIC.named_parameters()}
PLACES = {name: place for place, name in enumerate(NAMES.values())}
REAL, MADE = torch.randn(2, 8, 3).unbind()


def found(loss):
    return seen(loss.grad_fn, LossGraph(loss, NAMES)._own, PLACES)


ONE_WAY = {
    "a bracket too late": lambda a, b: -torch.mean(a + torch.mean(b)),
    "two minuses": lambda a, b: -a.mean() - b.mean(),
    "a sum of both": lambda a, b: a.mean() + b.mean(),
    "beside a penalty": lambda a, b: -(a.mean() + b.mean()) / 2 + 10 * (CRITIC[0].weight.norm() - 1) ** 2,
    "in one list": lambda a, b: torch.stack([a.mean(), b.squeeze(1).mean()]).sum(),
}
BOTH_WAYS = {
    "a difference": lambda a, b: b.mean() - a.mean(),
    "a minus before": lambda a, b: -a.mean() + b.mean(),
    "a factor of -1": lambda a, b: a.mean() * -1 + b.mean(),
    "of each pair": lambda a, b: (b - a).mean(),
}
NEITHER = {
    "one term": lambda a, b: -b.mean(),
    "behind a sigmoid": lambda a, b: a.sigmoid().mean() + b.sigmoid().mean(),
    "squares": lambda a, b: (a - 1).square().mean() + (b + 1).square().mean(),
    "hinges": lambda a, b: (1 - a).relu().mean() + (1 + b).relu().mean(),
}


@pytest.mark.parametrize("loss", ONE_WAY.values(), ids=ONE_WAY)
def test_one_way(loss):
    assert found(loss(CRITIC(REAL), CRITIC(MADE))) == {
        f"{IN_LOSS}scored_one_way": 1,
        f"{LAYER_IN_LOSS}scored_one_way": 2,
    }


@pytest.mark.parametrize("loss", BOTH_WAYS.values(), ids=BOTH_WAYS)
def test_both_ways(loss):
    assert found(loss(CRITIC(REAL), CRITIC(MADE)))[f"{IN_LOSS}scored_one_way"] == 0


@pytest.mark.parametrize("loss", NEITHER.values(), ids=NEITHER)
def test_neither(loss):
    assert found(loss(CRITIC(REAL), CRITIC(MADE))) == {}


def test_several_numbers_of_each_example_are_no_score():
    net = nn.Linear(3, 2)
    assert seen((net(REAL).mean() + net(MADE).mean()).grad_fn, lambda node: "weight", {"weight": 0}) == {}


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (lambda x: (x - x).exp().mean(), True),
        (lambda x: (x / x).mean() + x.mean(), True),
        (lambda x: torch.sub(x, x, alpha=0.5).mean(), False),
        (lambda x: (x - x.detach()).exp().mean(), False),
        (lambda x: (x - x.mean()).square().mean(), False),
        (lambda x: (x[1:] - x[:-1]).square().mean(), False),
        (lambda x: (x * x).mean(), False),
        (lambda x: x.mean() - 1.0, False),
        (lambda x: (x / 2).mean(), False),
        (lambda x: (x[:, None] - x[None]).square().mean(), False),
        (lambda x: (x.unbind(1)[0] - x.unbind(1)[1]).mean(), False),
        (lambda x: torch.sub(*x.chunk(2)).mean(), False),
    ],
)
def test_a_thing_that_is_taken_off_itself_or_divided_by_itself(of, told):
    loss = of(nn.Linear(3, 2)(REAL))
    assert of_itself(walk(loss.grad_fn)) == ({f"{IN_LOSS}of_itself": 1.0} if told else {})
