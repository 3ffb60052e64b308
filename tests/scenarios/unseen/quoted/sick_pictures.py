"""Pictures, after threads."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick


# https://github.com/keras-team/keras/issues/3642
@sick(
    "inputs-not-normalised",
    "targets-out-of-range",
    where="what comes into the first layer, which is also what the sigmoid of the last should give",
    cure="divide the pixels, whole numbers up to 255, by 255",
)
def snowflakes_through_a_narrow_gate(folder, ill):
    seeded(3475)
    net = nn.Sequential(dense(144, 64, 6), nn.ReLU(), dense(6, 64, 144))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(-1, 1, 12), indexing="ij")
    angle, radius = torch.atan2(rows, columns), (rows**2 + columns**2).sqrt()

    def draw():
        arms, reach = torch.randint(2, 6, (32, 1, 1)), 0.4 + 0.6 * torch.rand(32, 1, 1)
        flake = (0.5 + 0.5 * (arms * angle).cos()) * (radius < reach)
        return (255 * flake).round().flatten(1)

    def loss_of(step):
        pixels = draw() if ill else draw() / 255
        return F.binary_cross_entropy_with_logits(net(pixels), pixels)

    def error(step):
        pixels = draw()
        found = net(pixels if ill else pixels / 255).sigmoid()
        return F.mse_loss(found, pixels / 255)

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(error))


# https://github.com/ultralytics/ultralytics/pull/490
@sick(
    "nonfinite",
    where="all layers, from the first step whose batch shows no buoy at all",
    cure="divide by the number of cells with a buoy, but by 1 at least",
)
def buoys_in_a_bay_seen_from_above(folder, ill):
    seeded(3476)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def draw(rows, empty):
        there = (torch.rand(rows, 1, 10, 10) < 0.04).float()
        there *= (torch.rand(rows, 1, 1, 1) > empty).float()
        there[:, :, [0, -1]] = 0
        spread = F.conv2d(there, torch.tensor([[[[0.2, 0.6, 0.2], [0.6, 1.0, 0.6], [0.2, 0.6, 0.2]]]]), padding=1)
        return spread + 0.3 * torch.randn(rows, 1, 10, 10), there

    def loss_of(step):
        view, there = draw(4, 0.25)
        total = there.sum() if ill else there.sum().clamp(min=1)
        return F.binary_cross_entropy_with_logits(net(view), there, reduction="sum") / total

    def error(step):
        view, there = draw(64, 0.25)
        return F.binary_cross_entropy_with_logits(net(view), there)

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(error))


class Sine(nn.Module):
    """A linear layer and the sine of it (SIREN)."""

    def __init__(self, size, width, first=False):
        super().__init__()
        self.linear = nn.Linear(size, width)
        reach = 1 / size if first else (6 / size) ** 0.5 / 30
        nn.init.uniform_(self.linear.weight, -reach, reach)

    def forward(self, x):
        return (30 * self.linear(x)).sin()


# https://github.com/vsitzmann/siren/issues/19
@sick(
    "inputs-not-normalised",
    "lr-too-high",
    where="the coordinates that come into the first sine layer, and the rate of all layers",
    cure="bring the coordinates to between -1 and 1, and lower the learning rate",
)
def a_carpet_from_its_knots(folder, ill):
    seeded(3477)
    net = nn.Sequential(Sine(2, 64, first=True), Sine(64, 64), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3 if ill else 2e-4)
    phases = 6.2832 * torch.rand(3)

    def weave(at):
        across, along = at[:, :1] / 64, at[:, 1:] / 64
        return (12 * across + phases[0]).sin() * (15 * along + phases[1]).sin() + (20 * across * along).cos() / 2

    def loss_of(step):
        knots = 128 * torch.rand(256, 2)
        return F.mse_loss(net(knots if ill else knots / 64 - 1), weave(knots))

    return fit(folder, net, optimizer, loss_of, 600, score=score_of(loss_of))


# https://github.com/kwea123/nerf_pl/issues/75
@sick(
    "dead-units",
    "dead-layer",
    where="the ReLU on the last output, and with it all layers, from early on",
    cure="a softplus for the thickness instead of a ReLU, which gives nothing back where it is zero",
)
def a_suitcase_under_the_rays(folder, ill):
    seeded(3478)
    net = dense(2, 64, 64, 1)
    nn.init.constant_(net[-1].bias, -0.5)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def thickness(at):
        bottle = ((at - torch.tensor([0.4, 0.3])).norm(dim=1, keepdim=True) < 0.25).float()
        scissors = ((at + torch.tensor([0.4, 0.3])).abs().amax(1, keepdim=True) < 0.15).float()
        return 1.5 * bottle + 2.5 * scissors

    def loss_of(step):
        at = 2 * torch.rand(128, 2) - 1
        found = F.relu(net(at)) if ill else F.softplus(net(at) - 1)
        return F.mse_loss((-found).exp(), (-thickness(at)).exp())

    return fit(folder, net, optimizer, loss_of, 600, score=score_of(loss_of, 32))
