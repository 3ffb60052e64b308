"""A cell of a notebook that is run again, with a new model and a new optimizer each time."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gradwatch
from gradwatch.recording.open_watches import watches


@pytest.fixture
def run_cell(monkeypatch, tmp_path):
    """`run(cell)`: a Watch as a cell makes it; IPython counts the runs, and the kernel knows the cell by its id."""
    shell = SimpleNamespace(execution_count=0, metadata={})
    shell.get_parent = lambda: {"metadata": shell.metadata}
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    made = []

    def watch_in(cell, again=True):
        shell.execution_count += again
        shell.metadata = {"cellId": cell} if cell else {}
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        made.append(gradwatch.watch(model, optimizer, log=None, delivery="none", dir=tmp_path))
        return made[-1]

    yield watch_in
    for watch in made:
        watch.close()


def test_a_cell_that_runs_again_closes_what_its_last_run_left_open(run_cell, capsys):
    old = run_cell("a")
    new = run_cell("a")
    assert old not in watches
    assert new in watches
    assert f"this cell runs again; the Watch of its last run ({old.dir}) is closed" in capsys.readouterr().err


def test_two_of_one_run_and_those_of_other_cells_stay_open(run_cell):
    first, second = run_cell("a"), run_cell("a", again=False)
    other = run_cell("b")
    assert {first, second, other} <= set(watches)


def test_where_the_kernel_knows_no_cell_nothing_is_closed(run_cell):
    old, new = run_cell(None), run_cell(None)
    assert {old, new} <= set(watches)


def test_what_a_shell_raises_does_not_reach_the_training(run_cell, monkeypatch):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: 1 / 0, raising=False)
    assert run_cell("a") in watches
