"""Set-ups that go wrong inside the layers, where activations show it, each beside its healthy twin."""

import torch
from diseases import dense
from nets import batches, classify, mlp
from torch import nn, optim
from torch.nn import functional as F
from trainings import blobs, fit

INSIDE = {"activations": True, "activations_every": 10}


def dead_units(folder, sick=True, share=0.85, width=24, steps=200):
    """The biases of most units of three ReLU layers begin so low that no input wakes them (the twin: at torch's)."""
    net = mlp(width, depth=3)
    with torch.no_grad():
        for layer in [layer for layer in net if sick and isinstance(layer, nn.Linear)][:-1]:
            layer.bias[: int(share * width)] = -20.0
    optimizer = optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return fit(folder, net, optimizer, classify(net, batches()), steps, **INSIDE)


def units_that_one_batch_killed(folder, shock=600.0, steps=90):
    """One wrong batch, 600 times too large, pushes most units of a ReLU layer beyond all their inputs; the others go on
    to learn.
    """
    net, batch = dense([16, 64, 64, 4]), blobs(batch=64)

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(shock * x), (y + 1) % 4) if step == 5 else F.cross_entropy(net(x), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.05), loss_of, steps, **INSIDE)


def saturated(folder, sick=True, times=1000.0, steps=200):
    """tanh layers whose inputs lie between 0 and 1000 (the twin: between 0 and 1)."""
    net, batch = mlp(48, depth=3, act=nn.Tanh), batches()

    def scaled(step):
        x, y = batch(step)
        return x * (times if sick else 1.0), y

    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), classify(net, scaled), steps, **INSIDE)
