"""Somebody presses Ctrl-C after 30 steps."""

import os
import signal

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(1000):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    if i == 29:
        print("30 steps", flush=True)
        os.kill(os.getpid(), signal.SIGINT)
