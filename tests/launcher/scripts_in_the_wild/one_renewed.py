"""A model with two optimizers that step together; half way one of them is made anew, and the other one goes on."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
matrices, vectors = ([p for p in model.parameters() if p.ndim == n] for n in (2, 1))
slow = torch.optim.SGD(vectors, lr=0.1)
for _ in range(2):
    fast = torch.optim.SGD(matrices, lr=0.1)
    for _ in range(6):
        model.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(3, (16,))).backward()
        fast.step()
        slow.step()
print(sum(p.sum().item() for p in model.parameters()))
