"""Trains in a process that it spawns; another one, forked, only computes."""

import torch
import torch.multiprocessing as mp
from torch import nn


def train(seed, results):
    torch.manual_seed(seed)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    results.put(model.weight.sum().item())


def compute(results):
    results.put(1.0)


if __name__ == "__main__":
    for method, target, args in (("fork", compute, ()), ("spawn", train, (3,))):
        context = mp.get_context(method)
        results = context.Queue()
        process = context.Process(target=target, args=(*args, results))
        process.start()
        print(results.get())
        process.join()
        print(process.exitcode)
