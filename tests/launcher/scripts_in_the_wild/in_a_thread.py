"""Trains in a thread of its own, as a program with a window does."""

import threading

import torch


def train():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.6f}")


thread = threading.Thread(target=train)
thread.start()
thread.join()
