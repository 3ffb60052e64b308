"""Parameters that no module holds."""

import torch

torch.manual_seed(0)
slope = torch.randn(3, requires_grad=True)
offset = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.Adagrad([slope, offset], lr=0.1)
for _ in range(15):
    x = torch.randn(16, 3)
    optimizer.zero_grad()
    (x @ slope + offset - x.sum(1)).square().mean().backward()
    optimizer.step()
print(slope.tolist())
