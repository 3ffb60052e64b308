"""A flat script with argparse, no `__main__` guard."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=300)
args = parser.parse_args()

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
for step in range(args.steps):
    inputs, labels = torch.randn(16, 6), torch.randint(3, (16,))
    outputs = net(inputs)
    loss = nn.functional.cross_entropy(outputs, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    accuracy = (outputs.argmax(1) == labels).float().mean().item()
    print(f"step {step:3d} loss {loss.item():.6f} acc {accuracy:.4f}")
