"""Trains, and goes on in a process that it forks, with the optimizer that it has."""

import os

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)


def train(steps):
    for _ in range(steps):
        before = model.weight.detach().clone()
        optimizer.zero_grad()
        model(100 * torch.randn(8, 4)).sum().backward()
        optimizer.step()
        print(f"{(model.weight - before).norm().item():.3g}", flush=True)


train(3)
pid = os.fork()
if pid == 0:
    train(4)
    os._exit(0)
os.waitpid(pid, 0)
