"""Mixed precision with a loss scaler whose first steps overflow, so that it drops them."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=10)
for step in range(25):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(3, (16,))) * 20
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(step, scaler.get_scale())
