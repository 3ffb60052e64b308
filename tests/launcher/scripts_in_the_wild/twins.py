"""Two models of one shape, as the discriminators of a CycleGAN, each with an optimizer of its own."""

import torch
from torch import nn

torch.manual_seed(0)
d_a, d_b = nn.Linear(4, 1), nn.Linear(4, 1)
optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (d_a, d_b)]
for _ in range(12):
    for model, optimizer in zip((d_a, d_b), optimizers, strict=True):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        print(loss.item())
