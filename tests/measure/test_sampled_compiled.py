"""A compiled model under everything that is recorded inside the layers: one graph, the same bits, the same numbers."""

import numpy as np
import pytest
import torch
from torch import nn

import gradwatch
from gradwatch.open_run import open_history
from gradwatch.table import Table

SWITCHES = {
    "histograms": {"histogram_every": 2},
    "singular values": {"singular_values": True},
    "noise scale": {"noise_scale": True},
    "slices": {"split": {"2.weight": 0}},
    "rows": {"rows": ("0.*",)},
}


def trained(folder, compiled, switches):
    """The weights of a loop with two micro-batches a step, the graphs that were compiled, and what was recorded."""
    torch.compiler.reset()
    torch.manual_seed(0)
    graphs, model = [], nn.Sequential(nn.Embedding(11, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    handle = None
    if switches is not None:
        handle = gradwatch.watch(model, optimizer, dir=folder, every=2, log=None, delivery="none", **switches)
    run = torch.compile(model, backend=lambda graph, _: graphs.append(graph) or graph) if compiled else model
    for _ in range(9):
        for _ in range(2):
            nn.functional.cross_entropy(run(torch.randint(11, (6,))), torch.randint(3, (6,))).div(2).backward()
        optimizer.step()
        optimizer.zero_grad()
    if handle is not None:
        handle.close()
    return [p.detach() for p in model.parameters()], graphs, handle and open_history(handle.dir)


def recorded(history):
    """Every column of every table but the clock's."""
    tables = {name: table for name, table in vars(history).items() if isinstance(table, Table)}
    return {
        f"{name}: {column}": values
        for name, table in tables.items()
        for column, values in table.values.items()
        if column != "time"
    }


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_a_compiled_model_is_recorded_as_it_is_uncompiled(switches, tmp_path):
    weights, _, plain = trained(tmp_path / "plain", False, switches)
    bare, alone, _ = trained(tmp_path, True, None)
    same, graphs, history = trained(tmp_path / "compiled", True, switches)
    assert len(graphs) == len(alone) == 1  # no break
    for a, b, c in zip(weights, bare, same, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, c)
    wanted = recorded(plain)
    assert recorded(history).keys() == wanted.keys()
    for name, values in recorded(history).items():
        np.testing.assert_array_equal(values, wanted[name], err_msg=name)
