"""Whether examples are looked for among themselves, however the products are written."""

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


def found(loss):
    return {name.removeprefix(IN_LOSS): value.item() for name, value in seen(walk(loss.grad_fn)).items()}


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
    assert found(F.cross_entropy(table(embedded(ONE), embedded(ONE)), PLACES)) == {"pairs_alike": 1.0}
    assert found(F.cross_entropy(table(embedded(ONE), embedded(OTHER)), PLACES)) == {"pairs_alike": 0.0}


def test_of_some_that_are_one_the_share_is_told():
    mixed = torch.cat([ONE[:3], OTHER[3:]])
    assert found(F.cross_entropy(embedded(ONE) @ embedded(mixed).T, PLACES)) == {"pairs_alike": pytest.approx(0.25)}


def test_both_views_of_a_batch_in_one_tensor_are_no_pairs_of_their_own():
    """SimCLR: the place of each is that of its other view."""
    both = embedded(torch.cat([ONE, OTHER]))
    table = (both @ both.T).masked_fill(torch.eye(2 * N, dtype=torch.bool), -1e9)
    assert found(F.cross_entropy(table, (torch.arange(2 * N) + N) % (2 * N))) == {"pairs_alike": 0.0}


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
