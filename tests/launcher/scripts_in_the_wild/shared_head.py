"""An actor on the head of a network, a critic on all of it, both stepping in turn and at times on one backward; with
an argument clipped by hand, each to that norm. Prints how far each step moved its weights.
"""

import sys

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
critic = torch.optim.SGD(net.parameters(), lr=1.0)
actor = torch.optim.SGD(net[1].parameters(), lr=1.0)


def backward():
    net.zero_grad()
    net(100 * torch.randn(16, 4)).square().mean().backward()


def step(optimizer):
    held = optimizer.param_groups[0]["params"]
    before = [p.detach().clone() for p in held]
    if len(sys.argv) > 1:
        nn.utils.clip_grad_norm_(held, float(sys.argv[1]))
    optimizer.step()
    print(f"{torch.stack([(p - b).norm() for p, b in zip(held, before, strict=True)]).norm().item():.4g}")


for i in range(9):
    backward()
    step(critic)
    if i % 3:  # every third time both step on the same gradients
        backward()
    step(actor)
