"""Trains when everything else is over, in a program that has no stderr any more."""

import atexit
import sys

import torch


def train():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.6f}")


atexit.register(train)
sys.stderr = None
