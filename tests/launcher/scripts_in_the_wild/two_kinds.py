"""One model, two optimizers that step together."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
matrices = torch.optim.SGD([p for p in model.parameters() if p.ndim == 2], lr=0.1)
vectors = torch.optim.Adam([p for p in model.parameters() if p.ndim == 1], lr=0.01)
for _ in range(15):
    loss = nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(3, (16,)))
    matrices.zero_grad()
    vectors.zero_grad()
    loss.backward()
    matrices.step()
    vectors.step()
print(loss.item())
