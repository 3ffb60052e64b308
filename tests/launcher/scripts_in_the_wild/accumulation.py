"""Four micro-batches a step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for micro in range(80):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 5)), torch.randint(2, (8,))) / 4
    loss.backward()
    if micro % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
print(model.weight.sum().item())
