"""An optimizer whose step is given a loss and no closure: it steps as far as that is high, as Polyak's do."""

import torch
from torch import nn


class ByLoss(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, loss):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * loss.clamp(max=1.0) * p.grad)


torch.manual_seed(0)
x = torch.randn(64, 6)
y = x.sum(1, keepdim=True).sin()
model = nn.Linear(6, 1)
optimizer = ByLoss(model.parameters(), lr=0.05)
for _ in range(6):
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step(loss)
print(float(loss))
