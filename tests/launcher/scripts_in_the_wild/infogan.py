"""InfoGAN: the third optimizer holds what the other two hold, and all three step in turn."""

import itertools

import torch
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
of_generator = torch.optim.Adam(generator.parameters(), lr=0.01)
of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
of_both = torch.optim.Adam(itertools.chain(generator.parameters(), critic.parameters()), lr=0.01)
for _ in range(8):
    z, real = torch.randn(16, 4), torch.randn(16, 2)
    of_generator.zero_grad()
    critic(generator(z))[:, 0].square().mean().backward()
    of_generator.step()
    of_critic.zero_grad()
    (critic(real)[:, 0] - critic(generator(z).detach())[:, 0]).square().mean().backward()
    of_critic.step()
    of_both.zero_grad()
    (critic(generator(z))[:, 1:] - z[:, :2]).square().mean().backward()
    of_both.step()
print(sum(p.sum().item() for m in (generator, critic) for p in m.parameters()))
