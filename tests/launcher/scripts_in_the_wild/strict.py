"""Makes errors of warnings, and has two optimizers of one model that do not step together."""

import warnings

import torch
from torch import nn

warnings.simplefilter("error")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in model]
for _ in range(5):
    for optimizer in optimizers:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
print(loss.item())
