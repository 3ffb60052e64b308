"""A critic trains all of a network; an actor on its head is built after the first steps, and both step in turn.

Prints how far each step moved its weights.
"""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
critic = torch.optim.SGD(net.parameters(), lr=0.1)


def step(optimizer):
    net.zero_grad()
    net(torch.randn(16, 4)).square().mean().backward()
    held = optimizer.param_groups[0]["params"]
    before = [p.detach().clone() for p in held]
    optimizer.step()
    print(f"{torch.stack([(p - b).norm() for p, b in zip(held, before, strict=True)]).norm().item():.4g}")


for _ in range(3):
    step(critic)
actor = torch.optim.SGD(net[1].parameters(), lr=0.1)
for _ in range(4):
    step(actor)
    step(critic)
