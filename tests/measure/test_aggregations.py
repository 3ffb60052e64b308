"""Rows that are added up by a fixed graph are seen, each of them once; a first layer of a square batch is none."""

import pytest
import torch
from torch import nn

from gradwatch.measure.aggregations import aggregations
from gradwatch.measure.loss_graph import LossGraph

N = 12
NEAR = torch.rand(N, N)
INDEX = torch.arange(N)


@pytest.mark.parametrize(
    ("aggregate", "seen"),
    [
        (lambda h: NEAR @ h, 1),
        (lambda h: torch.sparse.mm(NEAR.to_sparse(), h), 1),
        (lambda h: NEAR.to_sparse_csr() @ h, 1),
        (lambda h: NEAR @ (NEAR @ h).relu(), 2),
        (lambda h: torch.bmm(NEAR.expand(2, N, N), torch.stack([h, h])), 1),
        (lambda h: torch.zeros_like(h).index_add(0, INDEX, h), 1),
        (lambda h: torch.zeros_like(h).scatter_add(0, INDEX[:, None].expand_as(h), h), 1),
        (lambda h: h, 0),
        (lambda h: NEAR[:, :4] @ h[:4], 0),  # not a square: a pooling
        (lambda h: (h @ h.T) @ h, 0),  # it is made, as attention is
    ],
)
def test_rows_that_are_added_up(aggregate, seen):
    layer = nn.Linear(N, N, bias=False)  # as wide as its batch: its first factor is square, too
    loss = aggregate(layer(torch.rand(N, N))).sum()
    graph = LossGraph(loss, {id(layer.weight): "layer"})
    assert len([*aggregations(graph._nodes)]) == seen
    assert [row["layer"] for row in graph.described() if row["what"] == "aggregation"] == ["layer"] * (seen > 0)
