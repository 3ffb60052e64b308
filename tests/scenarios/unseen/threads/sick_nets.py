"""Mistakes that people reported of tables, autoencoders and small segmentations, rebuilt on other tasks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, rounds


def blobs(images, size, radius):
    """Discs of a few pixels at places of their own; `[N, 1, size, size]` of zeros and ones."""
    axis = torch.arange(size).float()
    at = radius + torch.rand(images, 2) * (size - 1 - 2 * radius)
    down, across = (axis[None] - at[:, :1]).square(), (axis[None] - at[:, 1:]).square()
    return (down[:, :, None] + across[:, None, :] <= radius**2).float()[:, None]


def balanced_error(said, mask):
    """The mean of the share of the object that is missed and of the share of the background that is taken for it."""
    missed = (mask * (1 - said)).sum() / mask.sum()
    false = ((1 - mask) * said).sum() / (1 - mask).sum()
    return (missed + false) / 2


# https://datascience.stackexchange.com/questions/15962/why-is-learning-rate-causing-my-neural-networks-weights-to-skyrocket
@sick(
    "lr-too-high", "exploding", "nonfinite", "update-too-large",
    where="all layers within the first tens of steps", cure="a tenth of the learning rate",
)  # fmt: skip
def harvest_of_an_orchard(folder, ill):
    seeded(2360)
    weather, ways = torch.randn(1024, 24), torch.randn(24, 3) / 5
    tons = (weather @ ways).tanh().sum(1, keepdim=True) * 3
    net, draw = dense(24, 256, 128, 1, act=nn.LeakyReLU), rounds(256, weather, tons)
    for weight in net.parameters():
        nn.init.normal_(weight, std=0.13)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3 if ill else 1e-4)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y, reduction="sum")

    return fit(folder, net, optimizer, loss_of, 300, score=lambda: F.mse_loss(net(weather), tons).item())


# https://stackoverflow.com/questions/44601367/keras-autoencoder-simple-example-has-a-strange-output
@sick(
    "targets-out-of-range", "saturated",
    where="the sigmoid of the output, from early on", cure="a linear output, or readings scaled to between 0 and 1",
)  # fmt: skip
def titration_readings_squeezed(folder, ill):
    seeded(2361)
    causes = torch.rand(800, 3)
    readings = 1 + 2 * (causes @ torch.rand(3, 8)) / 3 + 0.8 * causes.repeat(1, 3)[:, :8]
    decode = nn.Sequential(nn.Linear(6, 8), nn.Sigmoid()) if ill else nn.Linear(6, 8)
    net = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), decode)
    draw = rounds(16, readings)

    def loss_of(step):
        (x,) = draw()
        return F.mse_loss(net(x), x)

    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
    return fit(folder, net, optimizer, loss_of, 600, score=lambda: F.mse_loss(net(readings), readings).item())


# https://answerofmath.com/solved-possible-reasons-why-the-cnn-fails-to-learn-image-segmentation/
@sick(
    "class-imbalance",
    where="the loss of each step: hardly a pixel in a hundred is a screw", cure="weigh the pixels of the object more",
)  # fmt: skip
def screws_on_a_circuit_board(folder, ill):
    seeded(2362)
    masks = blobs(300, 24, 1.3)
    boards = 1.1 * masks + 0.7 * torch.randn(300, 1, 24, 24)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1)
    )
    draw = rounds(8, boards, masks)
    weight = torch.tensor(1.0 if ill else 60.0)

    def loss_of(step):
        x, mask = draw()
        out = net(x)
        found = ((out > 0).float() * mask).sum() / mask.sum()
        loss = F.binary_cross_entropy_with_logits(out, mask, pos_weight=weight)
        return loss, {"recall": float(found)}

    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    score = held_out(net, lambda: balanced_error((net(boards) > 0).float(), masks))
    return fit(folder, net, optimizer, loss_of, 350, score=score)


class Medals(nn.Module):
    """A variational autoencoder of small pictures."""

    def __init__(self, end):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.LeakyReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.LeakyReLU(), nn.Flatten(), nn.Linear(16 * 9, 16),
        )  # fmt: skip
        self.decode = nn.Sequential(dense(8, 96, 144, act=nn.LeakyReLU), end)

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, 1)
        drawn = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        apart = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return self.decode(drawn).view_as(x), apart


# https://whosebug.com/question/5616116/What-could-cause-a-VAE-Variational-AutoEncoder-to-output-random-noise-even-after-training
@sick(
    "targets-out-of-range", "saturated",
    where="the sigmoid at the end of the decoder, all along", cure="an output that spans what the pixels span",
)  # fmt: skip
def medals_from_a_mint(folder, ill):
    seeded(2363)
    light = blobs(600, 12, 2.5) * 0.8 + 0.4 * torch.rand(600, 1, 1, 1)
    pictures = (light.clamp(0, 1) - 0.5) / 0.5
    net, draw = Medals(nn.Sigmoid() if ill else nn.Tanh()), rounds(32, pictures)

    def loss_of(step):
        (x,) = draw()
        out, apart = net(x)
        rebuilt = F.mse_loss(out, x)
        return rebuilt + 1e-3 * apart, {"reconstruction": rebuilt.item(), "kl": apart.item()}

    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    score = score_of(lambda step: F.mse_loss(net(pictures)[0], pictures), 4)
    return fit(folder, net, optimizer, loss_of, 700, score=score)


class Scan(nn.Module):
    """A U of two levels."""

    def __init__(self, end, out=1):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(24, 12, 2, stride=2)
        self.head = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, out, 1), end)

    def forward(self, x):
        fine = self.down(x)
        return self.head(torch.cat([fine, self.up(self.deep(fine))], 1))


# http://www.dtcms.com/a/394596.html
@sick(
    "logits-bounded", "dead-layer", "dead-units", "no-gradient",
    where="the rectifier behind the last convolution", cure="hand the loss the output of the convolution itself",
)  # fmt: skip
def nodules_on_a_scan(folder, ill):
    seeded(2364)
    masks = blobs(240, 20, 3.0)
    scans = masks + 0.4 * torch.randn(240, 1, 20, 20)
    net, draw = Scan(nn.ReLU() if ill else nn.Identity()), rounds(8, scans, masks)

    def loss_of(step):
        x, mask = draw()
        out = net(x)
        shared = ((out > 0).float() * mask).sum()
        dice = 2 * shared / ((out > 0).float().sum() + mask.sum())
        return F.binary_cross_entropy_with_logits(out, mask), {"dice": float(dice)}

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(scans), masks))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


# https://discuss.pytorch.org/t/output-of-the-model-depends-on-the-shape-of-the-weights-tensor/148155
@sick(
    "shapes-broadcast",
    where="the loss of each step: a column of predictions against a row of targets", cure="targets as a column",
)  # fmt: skip
def balance_of_three_accounts(folder, ill):
    seeded(2365)
    moves = torch.randn(1024, 3)
    total = moves.sum(1)
    net = nn.Sequential(nn.Linear(3, 1, bias=False))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "min", factor=0.5, patience=20)
    seen = []

    def loss_of(step):
        loss = F.mse_loss(net(moves), total if ill else total[:, None])
        seen.append(loss.item())
        return loss

    score = held_out(net, lambda: F.mse_loss(net(moves)[:, 0], total))
    return fit(folder, net, optimizer, loss_of, 500, score=score, after_step=lambda step: schedule.step(seen[-1]))
