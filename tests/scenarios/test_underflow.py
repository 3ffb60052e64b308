"""Gradients whose square is below what float32 holds are recorded as 0, and are called none for that."""

import torch
from torch import nn
from trainings import fit, serious

from gradwatch.analysis.rules import diagnose


def test_gradients_that_vanish_below_float32_vanish_and_are_not_dead(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(30) for part in (nn.Linear(16, 16), nn.Sigmoid())), nn.Linear(16, 1))
    inputs = torch.randn(60, 16, 16)
    targets = inputs.sum(2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    history = fit(
        tmp_path, model, optimizer, lambda step: (model(inputs[step])[:, 0] - targets[step]).square().mean(), 60
    )
    assert (history.layer("grad_norm")[:, 0] == 0).any(), "nothing underflowed"
    assert serious(diagnose(history)) == ["vanishing"]
