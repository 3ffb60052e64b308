"""Makes an optimizer for each part the first time that it is used, as Pyro does: of one model, and of its twin."""

import torch
from torch import nn

torch.manual_seed(0)
model, twin = (nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1)) for _ in range(2))
optimizers = {}
for _ in range(10):
    for key, part in (("first", model[0]), ("second", model[1]), ("twin", twin)):
        whole = twin if key == "twin" else model
        whole.zero_grad()
        loss = whole(torch.randn(8, 4)).square().mean()
        loss.backward()
        if key not in optimizers:
            optimizers[key] = torch.optim.SGD(part.parameters(), lr=0.01)
        optimizers[key].step()
        print(loss.item())
