"""Two models that both step after a backward of each, after one for both, and each after its own."""

import torch
from torch import nn

torch.manual_seed(0)
first, second = nn.Linear(4, 1), nn.Linear(3, 1)
optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (first, second)]
for step in range(9):
    losses = [m(torch.randn(8, m.in_features)).square().mean() for m in (first, second)]
    for o in optimizers:
        o.zero_grad()
    if step % 3 == 0:
        for loss in losses:
            loss.backward()
    elif step % 3 == 1:
        sum(losses).backward()
    for o, loss in zip(optimizers, losses, strict=True):
        if step % 3 == 2:
            loss.backward()
        o.step()
    own = (losses[0] + losses[1],) * 2 if step % 3 == 1 else losses
    print(*(float("nan") if step % 3 == 0 else loss.item() for loss in own))
