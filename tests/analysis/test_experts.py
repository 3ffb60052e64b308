"""Experts that no token is sent to, as their gradients show it where no router was looked at."""

from dataclasses import replace

import numpy as np
import pytest
from make_run import changed, make_history

from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.experts import expert_starved
from gradwatch.history import Layer

STEPS = 120


def mixture(silent, parent="experts", rows=3, fed=0):
    """Three parts of one make beside a matrix of so many rows; the `silent` ones get no gradient after `fed` steps."""
    shapes = {"gate.weight": (rows, 8)}
    for i in range(3):
        shapes |= {f"{parent}.{i}.up.weight": (16, 8), f"{parent}.{i}.up.bias": (16,)}
    shapes["last.weight"] = (5, 16)
    loss = 2.3 - 0.001 * np.arange(STEPS)
    history = make_history(STEPS, layers=tuple(shapes), clip=None, logged=())
    norm = history.layer("grad_norm").copy()
    none = [any(f".{i}." in f".{name}" for i in silent) for name in shapes]
    norm[fed:, none] = 0
    layers = tuple(Layer(name, shape) for name, shape in shapes.items())
    size = np.minimum(history.layer("weight_norm"), 0.5)  # biases of a usual size
    columns = {**history.per_layer, "grad_norm": norm, "weight_norm": size}
    made = changed(history, columns, {**history.per_step, "loss": loss})
    return replace(made, run=replace(made.run, layers=layers))


@pytest.mark.parametrize(("silent", "words"), [((1,), "in any step"), ((0, 2), "in any step")])
def test_experts_without_gradient_are_found_above_their_dead_layers(silent, words):
    (root,) = diagnose(mixture(silent))
    assert (root.rule, root.evidence) == ("expert-starved", {"experts": len(silent), "of": 3})
    assert words in root.cause
    assert [below.rule for below in root.consequences] == ["dead-layer"]


def test_it_is_dated_from_their_last_gradient():
    (finding,) = expert_starved(mixture((1,), fed=20))
    assert finding.first_step == 20
    assert "from step 20 on" in finding.cause


@pytest.mark.parametrize(
    "history",
    [
        mixture(()),
        mixture((0, 1, 2)),  # then it is no choice between them
        mixture((1,), rows=4),  # no router stands beside them
        mixture((0, 1), parent="blocks"),  # of what stands in a row, the last is dead and keeps it from the first ones
    ],
)
def test_parts_that_are_no_experts_are_none_that_starve(history):
    assert expert_starved(history) == []
