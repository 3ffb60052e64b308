"""Raises at step 50, out of a function, while handling another error."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step(i):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    if i == 50:
        try:
            {}["missing"]
        except KeyError:
            loss.backward()  # a second time: torch refuses


for i in range(100):
    step(i)
