"""What reading a graph takes grows with its operations, and no faster: calls are counted, no clock is asked."""

import sys
from functools import partial

import pytest
import torch
from torch import nn

from gradwatch.measure import graph_nodes
from gradwatch.measure.loss_graph import LossGraph


def calls_in(action):
    """How many functions of Python were called."""
    count = 0

    def profile(frame, event, arg):
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


def read(layer, loss):
    graph = LossGraph(loss, {id(p): name for name, p in layer.named_parameters()})
    graph.described()
    graph.targets()
    graph.values([name for name, _ in layer.named_parameters()])


def rows(layer, size):
    return torch.stack([row * row.sigmoid() for row in layer(torch.randn(size, 8))]).mean()


def parts(layer, size):
    return torch.stack([part.view(2, 4) * 0.5 for part in layer(torch.randn(size, 8)).split(1)]).mean()


def chain(layer, size):
    x = layer(torch.randn(16, 8))
    for _ in range(size):
        x = (x * 0.5).exp() * 0.5
    return x.mean()


def views(layer, size):
    x = layer(torch.randn(16, 8))
    for _ in range(size):
        x = x.view(8, 16).view(16, 8)
    return x.mean()


@pytest.mark.parametrize("loss_of", [rows, parts, chain, views])
def test_calls_grow_with_the_operations(loss_of):
    layer = nn.Linear(8, 8)
    few, many = (calls_in(partial(read, layer, loss_of(layer, size))) for size in (200, 400))
    assert many < 2.3 * few


def test_of_an_operation_with_many_outputs_the_shape_is_asked_once(monkeypatch):
    """As torch tells of all of them each time."""
    asked, shape_of = [], graph_nodes._shape_of

    def counted(node):
        asked.append(graph_nodes.name_of(node))
        return shape_of(node)

    monkeypatch.setattr(graph_nodes, "_shape_of", counted)
    layer = nn.Linear(8, 8)
    read(layer, rows(layer, 100))
    assert asked.count("Unbind") <= 1
