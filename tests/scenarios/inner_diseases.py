"""Set-ups that go wrong inside the layers, where activations show it, each beside its healthy twin."""

import torch
from diseases import classify, dense
from torch import nn, optim
from torch.nn import functional as F
from trainings import blobs, fit

INSIDE = {"activations": True, "activations_every": 10}


def dead_units(folder, sick=True, shock=600.0, steps=90):
    """One wrong batch, 600 times too large, pushes most units of a ReLU layer beyond all their inputs; the others go on
    to learn (the twin: no such batch).
    """
    net, batch = dense([16, 64, 64, 4]), blobs(batch=64)

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(shock * x), (y + 1) % 4) if sick and step == 5 else F.cross_entropy(net(x), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.05), loss_of, steps, **INSIDE)


def saturated(folder, sick=True, steps=90):
    """tanh layers whose weights begin 20 times too large (the twin: as torch begins)."""
    net = dense([16, 64, 64, 4], nn.Tanh)
    with torch.no_grad():
        net[2].weight.mul_(20.0 if sick else 1.0)
    return fit(folder, net, optim.SGD(net.parameters(), 0.05), classify(net, blobs(batch=64)), steps, **INSIDE)
