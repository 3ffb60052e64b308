"""Trainings after public threads: a letter, a radar, a rooftop, a dialect."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds


class Reader(nn.Module):
    def __init__(self, words=60, width=24, classes=4):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 48, dropout=0.1, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)).mean(1))


def linear_schedule(optimizer, num_warmup_steps, num_training_steps):
    def share(step):
        if step < num_warmup_steps:
            return step / max(1, num_warmup_steps)
        return max(0.0, (num_training_steps - step) / max(1, num_training_steps - num_warmup_steps))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)


# https://github.com/shirley-wu/cross-doc-misinfo-detection/issues/1
@sick(
    "warmup-too-long",
    where="the learning rate of all steps",
    cure="hand the numbers of warmup and of training steps over in the order in which the schedule takes them",
)
def gossip_told_by_its_wording(folder, ill):
    seeded(9231)
    net = Reader()
    leaning = torch.randn(60, 4)

    def draw(rows=32):
        x = torch.randint(60, (rows, 10))
        return x, leaning[x].sum(1).argmax(1)

    steps, warmup = 400, 40
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = linear_schedule(optimizer, *((steps, warmup) if ill else (warmup, steps)))

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": float((out.argmax(1) == y).float().mean())}

    x_test, y_test = draw(400)
    score = held_out(net, lambda: F.cross_entropy(net(x_test), y_test))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clipped(net, 1.0))


def blots(rows, size=20, most=4.5):
    """Images with a dark round patch, and where it lies."""
    place = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).float()
    centre = 4 + (size - 8) * torch.rand(rows, 2, 1, 1)
    mask = ((place - centre).square().sum(1) < (2.5 + (most - 2.5) * torch.rand(rows, 1, 1)).square()).long()
    image = 0.6 * torch.randn(rows, size, size) - 0.9 * mask
    return image[:, None], mask


# https://github.com/duweidai/I2U-Net/issues/1
@sick(
    "softmax-twice",
    "activation-on-logits",
    "sigmoid-twice",
    where="the last layer and the loss, from the first step on",
    cure="drop the sigmoid at the end of the net, as binary_cross_entropy_with_logits applies its own",
)
def slicks_seen_by_radar(folder, ill):
    seeded(9232)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(12, 12, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(12, 1, 3, padding=1),
    )
    if ill:
        net.append(nn.Sigmoid())
    images, masks = blots(320)
    draw = rounds(16, images, masks)
    x_test, y_test = blots(128)

    def loss_of(step):
        x, y = draw()
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], y.float())

    def missed():
        shown = torch.sigmoid(net(x_test)[:, 0])
        return 1 - 2 * (shown * y_test).sum() / (shown.sum() + y_test.sum())

    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, missed))


# https://github.com/HasnainRaz/FC-DenseNet-TensorFlow/issues/16
@sick(
    "class-imbalance",
    "targets-constant",
    where="the targets of all steps, and with them the last layer",
    cure="do not divide masks by 255 that hold zeros and ones already",
)
def solar_panels_on_rooftops(folder, ill):
    seeded(9233)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 2, 1),
    )
    images, masks = blots(320)
    x_test, y_test = blots(128)
    images = (images - images.mean()) / images.std()
    x_test = (x_test - x_test.mean()) / x_test.std()
    if ill:
        masks = (masks / 255).long()
    draw = rounds(16, images, masks)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"pixel accuracy": float((out.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x_test), y_test))
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=2e-3), loss_of, 200, score=score)


class Adapted(nn.Module):
    """A frozen layer with a low-rank correction, of its own magnitude if `scaled`."""

    def __init__(self, layer, rank=4, scaled=False):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.size = nn.Parameter(layer.weight.norm(dim=1, keepdim=True).clone()) if scaled else None

    def forward(self, x):
        weight = self.layer.weight + self.up @ self.down
        if self.size is not None:
            weight = self.size * F.normalize(weight, dim=1)
        return F.linear(x, weight, self.layer.bias)


# https://github.com/rasbt/dora-from-scratch/pull/1
@sick(
    "not-in-optimizer",
    where="the adapters of all layers but the last (down, up, size)",
    cure="make the optimizer from the parameters of the model that is trained",
)
def a_dialect_after_the_standard_tongue(folder, ill):
    seeded(9234)
    trunk = dense(16, 64, 64, 6)
    first, turn = torch.randn(16, 6), torch.linalg.qr(torch.randn(16, 16))[0]

    def draw(rows, way):
        x = torch.randn(rows, 16)
        return x, ((x @ way).tanh() @ first).square().argmax(1)

    early = torch.optim.Adam(trunk.parameters(), lr=3e-3)
    for _ in range(400):
        x, y = draw(64, torch.eye(16))
        early.zero_grad()
        F.cross_entropy(trunk(x), y).backward()
        early.step()

    head = nn.Linear(64, 6)

    def with_adapters(scaled):
        old = copy.deepcopy(trunk)
        return nn.Sequential(Adapted(old[0], 8, scaled), old[1], Adapted(old[2], 8, scaled), old[3], head)

    model_lora, model_dora = with_adapters(False), with_adapters(True)
    model = model_lora if ill else model_dora
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)

    def loss_of(step):
        x, y = draw(64, turn)
        out = model_dora(x)
        return F.cross_entropy(out, y), {"accuracy": float((out.argmax(1) == y).float().mean())}

    x_test, y_test = draw(1024, turn)
    score = held_out(model_dora, lambda: F.cross_entropy(model_dora(x_test), y_test))
    return fit(folder, model_dora, optimizer, loss_of, 600, score=score)
