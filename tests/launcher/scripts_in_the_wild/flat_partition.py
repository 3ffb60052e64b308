"""ZeRO in small, on one rank: the optimizer steps a flat float32 copy of the model's half precision weights, whose
gradient is put there by hand.
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).bfloat16()
master = torch.cat([p.detach().float().flatten() for p in model.parameters()] + [torch.zeros(3)])  # padded
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer.param_groups[0]["params"] = [master.requires_grad_()]
for _ in range(5):
    loss = model(torch.randn(8, 4).bfloat16()).float().square().mean()
    loss.backward()
    master.grad = torch.cat([p.grad.float().flatten() for p in model.parameters()] + [torch.zeros(3)])
    optimizer.step()
    for p, new in zip(
        model.parameters(), master.detach().split([p.numel() for p in model.parameters()] + [3]), strict=False
    ):
        p.data.copy_(new.view_as(p))
        p.grad = None
    print(loss.item())
