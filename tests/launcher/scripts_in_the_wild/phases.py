"""Fine-tuning in phases: the head, then all of the network, then all with another optimizer; the old optimizers are
kept. In the last phase the first one is taken up again.
"""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
kept = []
for params in (net[2].parameters(), net.parameters(), net.parameters(), None):
    optimizer = kept[0] if params is None else torch.optim.SGD(params, lr=0.01)
    kept.append(optimizer)
    for _ in range(4):
        net.zero_grad()
        net(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
print(sum(p.sum().item() for p in net.parameters()))
