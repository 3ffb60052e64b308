"""After public threads: sines for activations, coordinates, numbers of sixteen bits."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick


class Sine(nn.Module):
    def __init__(self, ins, outs, omega=30.0, first=False, bound=None):
        super().__init__()
        self.omega = omega
        self.linear = nn.Linear(ins, outs)
        bound = bound or (1 / ins if first else math.sqrt(6 / ins) / omega)
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return (self.omega * self.linear(x)).sin()


def siren(ins, width, outs, omega=30.0, bound=None):
    return nn.Sequential(Sine(ins, width, omega, True, bound), Sine(width, width, omega), nn.Linear(width, outs))


# https://github.com/lucidrains/siren-pytorch/issues/1
@sick("bad-initialisation", where="the first layer's weights: many times too small for its sines, from the start",
      cure="the first layer's weights from -1 / inputs to 1 / inputs, not like those of the later layers")  # fmt: skip
def ripples_under_a_jetty(folder, ill):
    seeded(3577)
    net = siren(2, 64, 1, bound=math.sqrt(6 / 2) / 30 if ill else None)
    ways, phases = 14 * torch.randn(2, 4), 6.2832 * torch.rand(4)

    def loss_of(step):
        place = 2 * torch.rand(192, 2) - 1
        height = (place @ ways + phases).sin().mean(1, keepdim=True)
        return F.mse_loss(net(place), height)

    optimizer = torch.optim.Adam(net.parameters(), 3e-4)
    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))


# https://github.com/vsitzmann/siren/issues/19
@sick("inputs-not-normalised", where="the first layer: its inputs run to 63, from the first step on",
      cure="scale the coordinates to -1 to 1 before the sines")  # fmt: skip
def a_relief_map_of_a_valley(folder, ill):
    seeded(3578)
    net = siren(2, 64, 1)
    ways, phases = 4 * torch.randn(2, 6), 6.2832 * torch.rand(6)
    rows, columns = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    pixels = torch.stack([rows.flatten(), columns.flatten()], 1)
    relief = ((pixels / 31.5 - 1) @ ways + phases).sin().mean(1, keepdim=True)
    order = torch.randperm(len(pixels))
    surveyed, left_out = order[:2000], order[2000:]

    def height(at):
        return net(pixels[at] if ill else pixels[at] / 31.5 - 1)

    def loss_of(step):
        at = surveyed[torch.randint(len(surveyed), (256,))]
        return F.mse_loss(height(at), relief[at])

    def score():
        with torch.no_grad():
            return float(F.mse_loss(height(left_out), relief[left_out]))

    optimizer = torch.optim.Adam(net.parameters(), 3e-4)
    return fit(folder, net, optimizer, loss_of, 600, score=score)


# https://github.com/tianweiy/CausVid/issues/19
@sick("weights-unchanged", "update-below-precision",
      where="most weights of all layers: a step is less than half of what bfloat16 can tell apart",
      cure="keep the weights in float32 and let autocast compute in bfloat16")  # fmt: skip
def the_sag_of_a_rope_bridge(folder, ill):
    seeded(3579)
    net = dense(5, 64, 64, 64, 1, act=nn.SiLU)
    way = 0.5 * torch.randn(5, 3)
    if ill:
        net = net.to(torch.bfloat16)
    dtype = next(net.parameters()).dtype

    def loss_of(step):
        load = torch.randn(64, 5)
        sag = (load @ way).sin().sum(1, keepdim=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=not ill):
            found = net(load.to(dtype))
        return F.mse_loss(found.float(), sag)

    optimizer = torch.optim.AdamW(net.parameters(), 1e-4, weight_decay=0)
    return fit(folder, net, optimizer, loss_of, 1200, score=score_of(loss_of))
