"""LBFGS, whose step calls the loss several times."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
inputs = torch.randn(32, 3)
targets = inputs.prod(dim=1, keepdim=True)
lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)


def closure():
    lbfgs.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    return loss


for _ in range(8):
    print(float(lbfgs.step(closure)))
