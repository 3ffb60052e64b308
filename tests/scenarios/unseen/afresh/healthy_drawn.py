"""Ordinary healthy trainings, second part: more of the shapes, which are cut out anew, compared and drawn again."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.afresh.healthy import KINDS, beforehand, painted


class Beside(nn.Module):
    """A convolution at rest and a thin one beside it, whose second half begins at zero."""

    def __init__(self, conv, rank=4, alpha=8):
        super().__init__()
        self.conv, self.scale = conv.requires_grad_(False), alpha / rank
        self.lora_a = nn.Conv2d(conv.in_channels, rank, 3, padding=1, bias=False)
        self.lora_b = nn.Conv2d(rank, conv.out_channels, 1, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.conv(x) + self.scale * self.lora_b(self.lora_a(x))


@healthy(0.3)
def outlines_in_another_light(folder):
    """Adapters beside the convolutions of a segmenter, for images whose colours are turned and dimmed; AdamW falls."""
    seeded(5311)
    parts, size = [], 3
    for out in (16, 24, 24):
        parts += [nn.Conv2d(size, out, 3, padding=1), nn.GroupNorm(4, out), nn.ReLU()]
        size = out
    net = nn.Sequential(*parts, nn.Conv2d(size, 1, 1))

    def overlap(said, mask):
        found = said > 0
        return 2 * (found & mask).sum() / (found.sum() + mask.sum()).clamp(min=1)

    def before(step):
        x, _, mask = painted(16)
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], mask.float())

    beforehand(net, optim.Adam(net.parameters(), 3e-3), before, 150)
    net.requires_grad_(False)
    for i in (0, 3, 6):
        net[i] = Beside(net[i])

    def loss_of(step):
        x, _, mask = painted(16)
        x = 0.4 * x.flip(1) - 0.6 * x[:, :1] + 0.5 + 0.3 * torch.randn_like(x)
        said = net(x)[:, 0]
        return F.binary_cross_entropy_with_logits(said, mask.float()), {"dice": overlap(said, mask)}

    trained = [p for p in net.parameters() if p.requires_grad]
    make, steps = optim.AdamW(trained, 2e-3, weight_decay=0.0), 250
    plan = optim.lr_scheduler.LinearLR(make, 1.0, 0.05, steps)
    return fit(folder, net, make, loss_of, steps, schedule=plan)


@healthy(0.3)
def seals_of_forty_houses_by_several_likenesses(folder):
    """The multi-similarity loss (Wang et al. 2019), eight kinds by four, Adam at a rate cut once; recall is logged."""
    seeded(5312)
    seals = F.interpolate(torch.randn(40, 1, 5, 5), size=16, mode="bicubic")
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 48, 3, 2, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU(), nn.Flatten(), nn.Linear(192, 32),
    )  # fmt: skip

    def loss_of(step):
        y = torch.randperm(40)[:8].repeat_interleave(4)
        shift = torch.randint(-2, 3, (2,)).tolist()
        x = torch.roll(seals[y], shift, (2, 3)) * (0.7 + 0.6 * torch.rand(32, 1, 1, 1))
        code = F.normalize(net(x + 0.7 * torch.randn_like(x)), dim=1)
        like = code @ code.T
        same = (y[:, None] == y) & ~torch.eye(32, dtype=torch.bool)
        other = y[:, None] != y
        near = torch.log1p(((-2 * (like - 0.5)).exp() * same).sum(1)) / 2
        far = torch.log1p(((40 * (like - 0.5)).exp() * other).sum(1)) / 40
        best = like.detach().fill_diagonal_(-1).argmax(1)
        return (near + far).mean(), {"recall@1": (y[best] == y).float().mean()}

    make = optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4)
    plan = optim.lr_scheduler.StepLR(make, 250, 0.1)
    return fit(folder, net, make, loss_of, 350, schedule=plan)


class Conditional(nn.Module):
    """An encoder and a decoder of black and white shapes that are both told the kind."""

    def __init__(self, latent=6):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.both = nn.Linear(512 + KINDS, 2 * latent)
        self.lift = nn.Linear(latent + KINDS, 512)
        self.up = nn.Sequential(
            nn.Unflatten(1, (32, 4, 4)), nn.ReLU(), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x, kind):
        told = F.one_hot(kind, KINDS).float()
        mean, log_var = self.both(torch.cat([self.down(x), told], 1)).chunk(2, 1)
        z = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        return self.up(self.lift(torch.cat([z, told], 1))), mean, log_var


@healthy(0.3)
def shapes_drawn_by_their_kinds_with_adamax(folder):
    """A conditional variational autoencoder: the sum over the pixels, the mean over the rows; Adamax as it comes."""
    seeded(5313)
    net = Conditional()

    def loss_of(step):
        _, y, mask = painted(64)
        x = mask[:, None].float()
        drawn, mean, log_var = net(x, y)
        error = F.binary_cross_entropy_with_logits(drawn, x, reduction="sum") / len(x)
        apart = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
        return error + apart, {"reconstruction": error, "kl": apart}

    return fit(folder, net, optim.Adamax(net.parameters(), 2e-3), loss_of, 350)
