"""Daily healthy trainings, second part: what is seen in an image, and where. An expert is content with each.

They only count (the group `daily`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import fit, healthy, score_of, seeded
from unseen.daily.healthy import UNet, drawn_from
from unseen.daily.healthy_data import hills_cut, letters
from unseen.sent.healthy_data import photo


@healthy(0.3)
def heights_from_shaded_slopes(folder):
    """What is lit from the north-west: how high is it? The error is blind to the height as a whole (Eigen 2014)."""
    seeded(1207)
    net = UNet(1)

    def loss_of(step):
        height = hills_cut(8, 25)
        shade = (height[..., 1:, 1:] - height[..., :-1, :-1]) * 4
        wanted = height[..., 1:, 1:] - height[..., 1:, 1:].mean((2, 3), keepdim=True)
        apart = net(shade) - 3 * wanted
        return (apart.square().mean((1, 2, 3)) - 0.85 * apart.mean((1, 2, 3)).square()).clamp(min=1e-6).sqrt().mean()

    make = optim.AdamW(net.parameters(), 4e-3, weight_decay=0.01)
    plan = optim.lr_scheduler.PolynomialLR(make, 160, power=0.9)
    return fit(folder, net, make, loss_of, 160, schedule=plan, score=score_of(loss_of))


@healthy(0.3)
def which_way_a_crop_was_turned(folder):
    """Four turns of crops of a photo, told apart without a label (Gidaris et al. 2018); the loss alone is logged."""
    seeded(1208)
    image = photo(96, 128)
    net = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 36, 4)),
    )
    at = torch.arange(24)

    def loss_of(step):
        top, left = torch.randint(72, (8, 1, 1)), torch.randint(104, (8, 1, 1))
        cut = image[:, top + at[:, None], left + at].transpose(0, 1)
        cut = (cut - 0.5) / 0.25
        turned = torch.cat([torch.rot90(cut, k, (2, 3)) for k in range(4)])
        return F.cross_entropy(net(turned), torch.arange(4).repeat_interleave(8))

    make = optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=5e-4)
    plan = optim.lr_scheduler.MultiStepLR(make, [120, 160], 0.2)
    return fit(folder, net, make, loss_of, 200, schedule=plan)


def scenes(rows):
    """Bright squares of two sizes in noise: `[rows, 1, 24, 24]`, and where, `[rows, 6, 6]`: 0, small 1, large 2."""
    kind = torch.where(torch.rand(rows, 6, 6) < 0.08, torch.randint(1, 3, (rows, 6, 6)), 0)
    move = torch.rand(rows, 6, 6, 2)
    place = torch.arange(24.0)
    near = torch.stack(torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij"), -1) * 4 + 4 * move
    apart = (place[:, None] - near[..., None, None, 0]).abs().maximum((place - near[..., None, None, 1]).abs())
    bright = (apart < (1.0 + kind)[..., None, None]) & (kind > 0)[..., None, None]
    return bright.float().amax((1, 2))[:, None] + 0.2 * torch.randn(rows, 1, 24, 24), kind, move


@healthy(0.3)
def anchors_with_hard_negatives(folder):
    """Of the empty places three for each full one count, the hardest (SSD, Liu et al. 2016), summed over the places."""
    seeded(1209)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 5, 3, padding=1)),
    )

    def loss_of(step):
        image, kind, move = scenes(16)
        said = net(image).permute(0, 2, 3, 1)
        named = F.cross_entropy(said[..., :3].flatten(0, 2), kind.flatten(), reduction="none")
        full = kind.flatten() > 0
        n = int(full.sum())
        hard = named[~full].topk(3 * n)[0].sum()
        placed = F.smooth_l1_loss(said[..., 3:][kind > 0], move[kind > 0], reduction="sum")
        return (named[full].sum() + hard + placed) / n

    make = optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=5e-4)
    rise = optim.lr_scheduler.LinearLR(make, 0.1, total_iters=20)
    plan = optim.lr_scheduler.SequentialLR(make, [rise, optim.lr_scheduler.StepLR(make, 120, 0.1)], [20])
    return fit(folder, net, make, loss_of, 200, schedule=plan)


@healthy(0.3)
def dots_counted_by_a_density(folder):
    """How many dots are there? A map of density is learnt, whose values are thousandths; the count is logged."""
    seeded(1210)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 5, padding=2), nn.ReLU()),
        *(nn.Conv2d(24, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1)),
    )
    place = torch.stack(torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij"), -1)

    def some():
        many = torch.randint(2, 12, (12, 1))
        there = (torch.arange(12) < many).float()[..., None, None]
        near = (24 * torch.rand(12, 12, 1, 1, 2) - place).square().sum(-1)
        dots = ((-near / 2).exp() * there).amax(1)
        density = (-near / 8).exp()
        density = (density / density.sum((2, 3), keepdim=True) * there).sum(1)
        return dots[:, None] + 0.1 * torch.randn(12, 1, 24, 24), F.avg_pool2d(density, 2) * 4

    def loss_of(step):
        image, wanted = some()
        said = net(image)[:, 0]
        off = (said.sum((1, 2)) - wanted.sum((1, 2))).abs().mean().detach()
        return F.mse_loss(said, wanted, reduction="sum") / 24, {"count_mae": off}

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 220, score=score_of(lambda s: loss_of(s)[0]))


class Remembers(nn.Module):
    """A recurrent net whose state is an image (Shi et al. 2015)."""

    def __init__(self, wide=12):
        super().__init__()
        self.gates, self.out = nn.Conv2d(1 + wide, 4 * wide, 3, padding=1), nn.Conv2d(wide, 1, 1)
        self.wide = wide

    def forward(self, film):
        state = cell = film.new_zeros(len(film), self.wide, *film.shape[2:])
        said = []
        for frame in film.unbind(1):
            a, b, c, d = self.gates(torch.cat([frame[:, None], state], 1)).chunk(4, 1)
            cell = a.sigmoid() * cell + b.sigmoid() * c.tanh()
            state = d.sigmoid() * cell.tanh()
            said.append(self.out(state)[:, 0])
        return torch.stack(said, 1)


@healthy(0.3)
def next_frame_of_moving_digits(folder):
    """Digits that move and come back on the other side; the next frame, pixel by pixel."""
    seeded(1211)
    net, x = Remembers(), digits()[0]

    def loss_of(step):
        image = F.pad(x[torch.randint(len(x), (8,))], (3, 3, 3, 3))
        across, along = torch.randint(-2, 3, (2, 8)).tolist()
        film = torch.stack(
            [
                torch.stack([torch.roll(one, (t * a, t * b), (0, 1)) for t in range(7)])
                for one, a, b in zip(image, across, along, strict=True)
            ]
        )
        return F.binary_cross_entropy_with_logits(net(film[:, :-1])[:, 1:], film[:, 2:])

    return fit(folder, net, optim.RMSprop(net.parameters(), 1e-3), loss_of, 110, score=score_of(loss_of))


@healthy(0.3)
def letters_that_grow_in_training(folder):
    """Small images first, then larger ones (progressive resizing): the rate starts anew with each size."""
    seeded(1212)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(256, 36)),
    )
    draw = drawn_from(*letters(), 48)
    make = optim.AdamW(net.parameters(), 4e-3, weight_decay=0.01)
    plan = optim.lr_scheduler.CosineAnnealingWarmRestarts(make, 70)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(F.interpolate(x, 8 + 4 * min(step // 70, 2), mode="area")), y)

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(letters()[0]), letters()[1]))

    return fit(folder, net, make, loss_of, 210, schedule=plan, score=score)
