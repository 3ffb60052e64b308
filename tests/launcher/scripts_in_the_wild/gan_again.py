"""A GAN that makes new optimizers half way, as one does that grows."""

import torch
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
for _ in range(2):
    slow = torch.optim.SGD(generator.parameters(), lr=0.01)
    fast = torch.optim.SGD(critic.parameters(), lr=0.02)
    for _ in range(6):
        fast.zero_grad()
        (critic(torch.randn(8, 4)).mean() - critic(generator(torch.randn(8, 2)).detach()).mean()).square().backward()
        fast.step()
        slow.zero_grad()
        critic(generator(torch.randn(8, 2))).square().mean().backward()
        slow.step()
print(sum(p.sum().item() for m in (generator, critic) for p in m.parameters()))
