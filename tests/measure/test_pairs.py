"""Whether examples are looked for among themselves, and whether all have one embedding, however a loss is written."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradwatch.measure.graph_nodes import walk
from gradwatch.measure.pairs import seen
from gradwatch.table import IN_LOSS

NET, N = nn.Linear(6, 4), 12
ONE, OTHER = torch.randn(2, N, 6).unbind()
PLACES = torch.arange(N)


def found(loss, kind="pairs_alike"):
    return {name: value.item() for name, value in seen(walk(loss.grad_fn)).items() if name == IN_LOSS + kind}


def embedded(x):
    return F.normalize(NET(x), dim=1)


TABLES = {
    "a product": lambda a, b: a @ b.T,
    "a temperature": lambda a, b: a @ b.T / 0.1,
    "a learnt scale": lambda a, b: (a @ b.T) * nn.Parameter(torch.tensor(2.0)).exp(),
    "einsum": lambda a, b: torch.einsum("nd,md->nm", a, b),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_views_that_are_one_are_told_from_two(table):
    assert found(F.cross_entropy(table(embedded(ONE), embedded(ONE)), PLACES)) == {f"{IN_LOSS}pairs_alike": 1.0}
    assert found(F.cross_entropy(table(embedded(ONE), embedded(OTHER)), PLACES)) == {f"{IN_LOSS}pairs_alike": 0.0}


def test_of_some_that_are_one_the_share_is_told():
    mixed = torch.cat([ONE[:3], OTHER[3:]])
    assert found(F.cross_entropy(embedded(ONE) @ embedded(mixed).T, PLACES)) == {
        f"{IN_LOSS}pairs_alike": pytest.approx(0.25)
    }


@pytest.mark.parametrize(("second", "share"), [(OTHER, 0.0), (ONE, 1.0)])
@pytest.mark.parametrize("in_place", [False, True])
def test_both_views_of_a_batch_may_stand_in_one_tensor(second, share, in_place):
    """SimCLR: the place of each is that of its other view."""
    both = embedded(torch.cat([ONE, second]))
    table = both @ both.T
    eye = torch.eye(2 * N, dtype=torch.bool)
    table = table.fill_diagonal_(-1e9) if in_place else table.masked_fill(eye, -1e9)
    assert found(F.cross_entropy(table, (torch.arange(2 * N) + N) % (2 * N))) == {f"{IN_LOSS}pairs_alike": share}


def test_targets_that_the_loss_ignores_are_no_pairs():
    ignored = torch.where(PLACES < 3, -100, PLACES)
    loss = F.cross_entropy(embedded(ONE) @ embedded(ONE).T, ignored)
    assert found(loss) == {f"{IN_LOSS}pairs_alike": pytest.approx(0.75)}


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.cross_entropy(NET(ONE), PLACES % 4),
        lambda: F.cross_entropy(embedded(ONE) @ torch.randn(4, 9), PLACES % 9),
        lambda: (embedded(ONE) @ embedded(ONE).T).mean() + 1,
        lambda: F.cross_entropy(embedded(ONE[:4]) @ embedded(ONE[:4]).T, PLACES[:4]),
    ],
)
def test_of_others_nothing_is_told(loss):
    assert found(loss()) == {}


def outputs(spread):
    """The embeddings of examples that differ by so much."""
    return NET(torch.ones(N, 6) + spread * ONE), NET(torch.ones(N, 6) + spread * OTHER)


LENGTHS = {
    "normalize": lambda a, b: (F.normalize(a, dim=1) @ F.normalize(b, dim=1).T).logsumexp(1).mean(),
    "cosine_similarity": lambda a, b: -F.cosine_similarity(a, b.detach()).mean(),
    "divided by norm()": lambda a, b: (a / a.norm(dim=1, keepdim=True) * b.detach()).sum(),
    "of the last axis": lambda a, b: -(F.normalize(a, dim=-1) * b.detach()).sum(-1).mean(),
}
HINGES = {
    "triplet": lambda a, b: F.triplet_margin_loss(a, b, b.roll(1, 0)),
    "relu": lambda a, b: ((a - b).square().sum(1) - (a - b.roll(1, 0)).square().sum(1) + 1).relu().mean(),
    "clamp": lambda a, b: (1 - (a - b).norm(dim=1)).clamp(min=0).mean(),
    "hardest": lambda a, b: (a @ b.T).diagonal().sub(torch.cdist(a, b).amin(1)).add(9).relu().mean(),
}


@pytest.mark.parametrize("loss", LENGTHS.values(), ids=LENGTHS)
def test_embeddings_that_point_one_way_are_told_from_those_that_do_not(loss):
    kind = "embeddings_alike"
    assert found(loss(*outputs(0.01)), kind)[IN_LOSS + kind] > 0.99
    assert found(loss(*outputs(30)), kind)[IN_LOSS + kind] < 0.8
    one = F.normalize(outputs(30)[0], dim=1).detach()
    assert found(loss(*outputs(30)), kind)[IN_LOSS + kind] == pytest.approx(float(one.mean(0).square().sum()), rel=1e-4)


@pytest.mark.parametrize("loss", HINGES.values(), ids=HINGES)
def test_margins_that_all_lack_the_same_are_told_from_others(loss):
    kind = "margins_alike"
    assert found(loss(*outputs(0.001)), kind)[IN_LOSS + kind] > 0.999
    assert not found(loss(*outputs(5)), kind)[IN_LOSS + kind] > 0.99  # NaN where none lacks anything


def test_the_length_of_a_gradient_is_no_embedding():
    x = ONE.clone().requires_grad_()
    (slope,) = torch.autograd.grad(NET(x).sum(), x, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).square().mean()
    assert found(penalty, "embeddings_alike") == {}


@pytest.mark.parametrize(
    "loss",
    [
        lambda a, b: F.margin_ranking_loss(a[:, 0], b[:, 0], torch.ones(N), margin=1.0),
        lambda a, b: (1 - a[:, 0]).relu().mean(),
        lambda a, b: F.mse_loss(a[:, 0].relu(), torch.ones(N)),
        lambda a, b: (a - b).norm(dim=1).clamp(min=1e-6).mean(),
        lambda a, b: (1 - (a - b).norm(dim=1)).clamp(min=torch.zeros(())).mean(),  # may lie on a device
        lambda a, b: (1 - (a - b).norm(dim=1)).clamp(0, 2).mean(),
    ],
)
def test_of_hinges_of_scores_nothing_is_told(loss):
    assert found(loss(*outputs(0.001)), "margins_alike") == {}


def test_of_few_examples_nothing_is_told():
    a, b = (each[:4] for each in outputs(1))
    assert seen(walk(LENGTHS["normalize"](a, b).grad_fn)) == seen(walk(HINGES["triplet"](a, b).grad_fn)) == {}
