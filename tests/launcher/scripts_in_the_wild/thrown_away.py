"""Models that are built, trained and thrown away one after the other, of one shape and of many."""

import gc
import weakref

import torch
from torch import nn


def train(width):
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return weakref.ref(model), weakref.ref(model[0].weight), weakref.ref(optimizer)


kept = nn.Linear(4, 1)  # trained now and then, and never thrown away
optimizer = torch.optim.SGD(kept.parameters(), lr=0.01)
for widths in ([8] * 5, range(9, 14)):
    trained = []
    for width in widths:
        kept(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        trained.append(train(width))
    gc.collect()
    print("freed but for the last:", all(ref() is None for refs in trained[:-1] for ref in refs))
