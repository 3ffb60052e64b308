"""Two folds with a new model each; in the first, a second optimizer takes over the same model."""

import torch
from torch import nn


def fit(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


def fold(seed):
    torch.manual_seed(seed)
    model = nn.Linear(4, 1)
    fit(model, torch.optim.Adam(model.parameters(), lr=0.01), 10)
    if seed == 0:
        fit(model, torch.optim.SGD(model.parameters(), lr=0.01), 5)
    print(model.weight.sum().item())


for seed in range(2):
    fold(seed)
