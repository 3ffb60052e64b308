"""A script with a clip of its own."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(20):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(torch.randn(16, 6)), torch.full((16, 1), 5.0)).backward()
    norm = clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    print(f"{norm.item():.5f}")
