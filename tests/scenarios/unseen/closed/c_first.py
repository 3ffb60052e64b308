"""Pictures: named, cut out, packed and drawn again."""

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds


def figures(train=1400):
    """Small handwritten figures in [0, 1]: for training and held out."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x))
    x, y = torch.tensor(x).float()[order] / 16, torch.tensor(y)[order]
    return x[:train], y[:train], x[train:], y[train:]


@healthy(gain=0.8)
def meter_readings_by_a_small_convolution(folder):
    """A convolutional net with batch norm, Nesterov momentum and one cycle of the rate."""
    seeded(10000)
    x, y, x_test, y_test = figures()
    x, x_test = ((t.view(-1, 1, 8, 8) - 0.3) / 0.375 for t in (x, x_test))
    net = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 48, 3, padding=1, bias=False), nn.BatchNorm2d(48), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=5e-4)
    draw = rounds(64, x, y)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    return fit(
        folder, net, optimizer, loss_of, 220, schedule=OneCycleLR(optimizer, 0.1, total_steps=220),
        score=held_out(net, lambda: F.cross_entropy(net(x_test), y_test)),
    )  # fmt: skip


class Variational(nn.Module):
    def __init__(self, code=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
        self.mean, self.log_var = nn.Linear(128, code), nn.Linear(128, code)
        self.decoder = dense(code, 128, 64)

    def forward(self, x):
        h = self.encoder(x)
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        return self.decoder(z), mean, log_var


@healthy(gain=0.3)
def ledger_ciphers_from_eight_numbers(folder):
    """A variational autoencoder: the bound on the likelihood of a picture."""
    seeded(10001)
    x, _, x_test, _ = figures()
    net = Variational()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    draw = rounds(100, x)

    def bound(x):
        out, mean, log_var = net(x)
        built = F.binary_cross_entropy_with_logits(out, x, reduction="none").sum(1).mean()
        apart = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(1).mean()
        return built, apart

    def loss_of(step):
        built, apart = bound(*draw())
        return built + apart, {"reconstruction": built.detach(), "kl": apart.detach()}

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: sum(bound(x_test))))


class Patches(nn.Module):
    """A transformer over sixteen patches of two by two and a token of the class."""

    def __init__(self, width=32, depth=2):
        super().__init__()
        self.lift = nn.Linear(4, width)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = x.view(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)
        x = torch.cat([self.token.expand(len(x), -1, -1), self.lift(x)], 1) + self.place
        return self.head(self.body(x)[:, 0])


@healthy(gain=0.6)
def cheque_amounts_by_sixteen_patches(folder):
    """A vision transformer, two small batches to a step, warmed up, then a cosine."""
    seeded(10002)
    x, y, x_test, y_test = figures()
    net = Patches()
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.05)
    draw, steps = rounds(32, x * 2 - 1, y), 200

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y, label_smoothing=0.05) / 2

    rate = LambdaLR(optimizer, lambda s: min((s + 1) / 25, 0.5 + 0.5 * math.cos(math.pi * s / steps)))
    score = held_out(net, lambda: F.cross_entropy(net(x_test * 2 - 1), y_test))
    return fit(folder, net, optimizer, loss_of, steps, accumulate=2, schedule=rate, score=score,
               before_step=lambda step: nn.utils.clip_grad_norm_(net.parameters(), 1.0))  # fmt: skip


def twice(a, b):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
        nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
    )  # fmt: skip


class Hourglass(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = twice(1, 8), twice(8, 12), twice(12, 16)
        self.up_b, self.up_a = nn.ConvTranspose2d(16, 12, 2, 2), nn.ConvTranspose2d(12, 8, 2, 2)
        self.back_b, self.back_a, self.head = twice(24, 12), twice(16, 8), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = self.c(F.max_pool2d(b, 2))
        b = self.back_b(torch.cat([b, self.up_b(c)], 1))
        return self.head(self.back_a(torch.cat([a, self.up_a(b)], 1)))


@healthy(gain=0.5)
def leaf_rot_outlined_in_greenhouse_frames(folder):
    """A small U-Net with cross-entropy and Dice."""
    seeded(10003)
    ys, xs = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")

    def frames(n):
        at, wide = 1.2 * torch.rand(n, 2, 2, 1, 1) - 0.6, 0.2 + 0.25 * torch.rand(n, 2, 2, 1, 1)
        spots = ((xs - at[:, :, 0]) / wide[:, :, 0]) ** 2 + ((ys - at[:, :, 1]) / wide[:, :, 1]) ** 2
        mask = (spots < 1).any(1, keepdim=True).float()
        shade = 0.6 * torch.rand(n, 1, 1, 1) * xs
        return mask + shade + 0.5 * torch.randn(n, 1, 16, 16), mask

    def loss_on(x, mask):
        out = net(x)
        share = out.sigmoid()
        overlap = (2 * (share * mask).sum((1, 2, 3)) + 1) / (share.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(out, mask) + 1 - overlap.mean(), overlap.mean().detach()

    def loss_of(step):
        loss, overlap = loss_on(*draw())
        return loss, {"dice": overlap}

    draw, test, net = rounds(12, *frames(400)), frames(64), Hourglass()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    return fit(folder, net, optimizer, loss_of, 180, score=held_out(net, lambda: loss_on(*test)[0]))


class Codes(nn.Module):
    def __init__(self, kinds=32, width=8):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, width, 1)
        )
        self.book = nn.Embedding(kinds, width)
        self.decoder = nn.Sequential(
            nn.Conv2d(width, 16, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(16, 16, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, 2, 1),
        )  # fmt: skip

    @torch.no_grad()
    def begin(self, x):
        """The codes start on what the encoder makes of a few pictures."""
        z = self.encoder(x).permute(0, 2, 3, 1).flatten(0, 2)
        self.book.weight.copy_(z[torch.randperm(len(z))[: len(self.book.weight)]])

    def forward(self, x):
        z = self.encoder(x).permute(0, 2, 3, 1)
        nearest = torch.cdist(z.reshape(-1, z.shape[-1]), self.book.weight).argmin(1)
        code = self.book(nearest).view_as(z)
        committed = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        through = z + (code - z).detach()
        return self.decoder(through.permute(0, 3, 1, 2)), committed, nearest


@healthy(gain=0.5)
def weaves_kept_as_sixteen_codes(folder):
    """A vector-quantized autoencoder: straight through, a codebook by gradient, a commitment of a quarter."""
    seeded(10004)
    at = torch.arange(16.0)

    def cloth(n):
        pace, phase = 0.3 + 0.7 * torch.rand(n, 2, 1, 1), 6.2832 * torch.rand(n, 2, 1, 1)
        warp = (pace[:, 0] * at[None, :, None] + phase[:, 0]).sin()
        weft = (pace[:, 1] * at[None, None, :] + phase[:, 1]).sin()
        return (warp * weft + 0.05 * torch.randn(n, 16, 16))[:, None]

    x, test, net = cloth(1000), cloth(128), Codes()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    draw = rounds(32, x)
    net.begin(x[:64])

    def loss_of(step):
        (x,) = draw()
        out, committed, nearest = net(x)
        built = F.mse_loss(out, x)
        return built + committed, {"reconstruction": built.detach(), "codes": float(len(nearest.unique()))}

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: F.mse_loss(net(test)[0], test)))
