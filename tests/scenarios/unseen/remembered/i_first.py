"""Mistakes drawn by lot from a list: data, labels and the loss, on ships, trains and roads."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


@sick("labels-shuffled", "labels-do-not-fit-inputs", "inputs-and-targets-unpaired", where="the data, all steps",
      cure="one permutation for the inputs and the labels")  # fmt: skip
def brake_pads_due_at_the_next_inspection(folder, ill):
    seeded(10901)
    way = torch.randn(9, 3)

    def carriages(rows):
        x = torch.randn(rows, 9)
        worn = (x @ way / 3).tanh() @ torch.tensor([1.0, -1.0, 0.8]) + 0.5 * x[:, 0] * x[:, 1]
        return x, (worn > 0.2).float()[:, None]

    x, y = carriages(2048)
    order = torch.randperm(len(x))
    x = x[order]
    if not ill:
        y = y[order]
    draw = rounds(64, x, y)
    net = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        rows, due = draw()
        said = net(rows)
        return F.binary_cross_entropy_with_logits(said, due), {"accuracy": ((said > 0) == (due > 0)).float().mean()}

    tx, ty = carriages(1024)
    test = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 400, score=test)


@sick("inputs-not-normalised", "columns-on-unlike-scales", where="the first layer, from the first step",
      cure="each column less its mean, over its spread")  # fmt: skip
def fuel_of_freighters_per_sea_mile(folder, ill):
    seeded(10902)

    def freighters(rows):
        tonnes = 4000 + 36000 * torch.rand(rows)
        knots, age, wind = 8 + 10 * torch.rand(rows), 30 * torch.rand(rows), torch.randn(rows)
        hull = torch.randint(3, (rows,))
        burnt = (tonnes / 20000) ** 0.67 * (knots / 12) ** 2 * (1 + 0.01 * age) + 0.15 * wind + 0.2 * (hull == 2)
        kind = F.one_hot(hull, 3).float()
        return torch.cat([torch.stack([tonnes, knots, age, wind], 1), kind], 1), burnt[:, None]

    x, y = freighters(3000)
    tx, ty = freighters(1000)
    ty = (ty - y.mean()) / y.std()
    y = (y - y.mean()) / y.std()
    if not ill:
        centre, spread = x.mean(0), x.std(0)
        x, tx = (x - centre) / spread, (tx - centre) / spread
    draw = rounds(64, x, y)
    net = dense(7, 64, 32, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        rows, burnt = draw()
        return F.mse_loss(net(rows), burnt)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


def arrows(rows, size=16):
    """Signs with an arrow up, right, down or left, under noise."""
    upward = torch.zeros(size, size)
    upward[4:13, 7:9] = 1
    for row in range(4):
        upward[3 + row, 7 - row : 9 + row] = 1
    ways = torch.randint(4, (rows,))
    turned = torch.stack([torch.rot90(upward, -k) for k in range(4)])
    light = 0.5 + torch.rand(rows, 1, 1)
    return (turned[ways] * light + 0.3 * torch.randn(rows, size, size))[:, None], ways


@sick("augmentation-destroys-labels", "labels-do-not-fit-inputs", where="the augmented batches, all steps",
      cure="shifts and noise, but no turns, of signs that show a direction")  # fmt: skip
def arrows_on_signs_at_a_junction(folder, ill):
    seeded(10903)
    x, y = arrows(1024)
    tx, ty = arrows(512)
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(24 * 16, 48), nn.ReLU(), nn.Linear(48, 4),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def augmented(image):
        if ill:
            turns = torch.randint(4, (len(image),))
            image = torch.stack([torch.rot90(one, int(k), (1, 2)) for one, k in zip(image, turns, strict=True)])
        dx, dy = torch.randint(-2, 3, (2,)).tolist()
        return torch.roll(image, (dx, dy), (2, 3)) + 0.05 * torch.randn_like(image)

    def loss_of(step):
        image, way = draw()
        said = net(augmented(image))
        return F.cross_entropy(said, way), {"accuracy": (said.argmax(1) == way).float().mean()}

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("softmax-twice", "logits-bounded", where="the last operation of the model, all steps",
      cure="logits as outputs: cross_entropy has a softmax of its own")  # fmt: skip
def lines_by_the_hum_of_their_trains(folder, ill):
    seeded(10904)
    lines, length = 24, 48
    pitch = 0.2 + 2.6 * torch.rand(lines, 3)

    def hums(rows):
        line = torch.randint(lines, (rows,))
        phase = 6.2832 * torch.rand(rows, 3, 1)
        wave = (pitch[line][:, :, None] * torch.arange(length) + phase).sin().sum(1, keepdim=True)
        return wave + 0.2 * torch.randn(rows, 1, length), line

    parts = [
        nn.Conv1d(1, 32, 7, padding=3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(32, 64, 5, padding=2), nn.ReLU(),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(256, 96), nn.ReLU(), nn.Linear(96, lines),
    ]  # fmt: skip
    net = nn.Sequential(*parts, *([nn.Softmax(dim=1)] if ill else []))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        wave, line = hums(64)
        said = net(wave)
        return F.cross_entropy(said, line), {"accuracy": (said.argmax(1) == line).float().mean()}

    tx, ty = hums(1024)
    wrong = held_out(net, lambda: (net(tx).argmax(1) != ty).float().mean())
    return fit(folder, net, optimizer, loss_of, 500, score=wrong)


@sick("shapes-broadcast", where="the loss, all steps", cure="a prediction of the targets' shape: squeeze(1)")
def hours_at_anchor_before_a_pilot_comes(folder, ill):
    seeded(10905)

    def calls(rows):
        x = torch.cat([torch.randn(rows, 5), torch.rand(rows, 3)], 1)
        return x, 1.5 * (x[:, 0] - x[:, 1]).tanh() + x[:, 2] * x[:, 5] + 0.4 * x[:, 6] + 0.1 * torch.randn(rows)

    x, hours = calls(2000)
    draw = rounds(50, x, hours)
    net = dense(8, 64, 64, 1)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def loss_of(step):
        rows, waited = draw()
        said = net(rows) if ill else net(rows).squeeze(1)
        return (said - waited).square().mean()

    tx, ty = calls(1000)
    test = held_out(net, lambda: F.l1_loss(net(tx)[:, 0], ty))
    return fit(folder, net, optimizer, loss_of, 400, schedule=schedule, score=test)


@sick("sigmoid-twice", "logits-bounded", "activation-on-logits", where="the last operation of the model, all steps",
      cure="no sigmoid in the model: binary_cross_entropy_with_logits has its own")  # fmt: skip
def kerbs_and_lanes_ahead_of_a_lorry(folder, ill):
    seeded(10906)
    size = 24

    def scenes(rows):
        down = torch.linspace(0, 1, size)[None, :, None]
        across = torch.linspace(-1, 1, size)[None, None, :]
        lean, at = 0.5 * torch.randn(rows, 1, 1), 0.3 * torch.randn(rows, 1, 1)
        masks = torch.stack([
            (across - at - lean * (1 - down) - side * (0.1 + 0.7 * down)).abs() < 0.08 for side in (-1.0, 0.0, 1.0)
        ]).any(0).float()  # fmt: skip
        image = 0.8 * masks - 0.4 * down + 0.4 * torch.randn(rows, size, size)
        return image[:, None], masks[:, None]

    class Segmenter(nn.Module):
        def __init__(self):
            super().__init__()
            self.outer = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
            self.inner = nn.Sequential(nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU())
            self.up = nn.ConvTranspose2d(24, 12, 2, stride=2)
            self.head = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))

        def forward(self, image):
            outer = self.outer(image)
            said = self.head(torch.cat([outer, self.up(self.inner(outer))], 1))
            return said.sigmoid() if ill else said

    net = Segmenter()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        image, mask = scenes(16)
        return F.binary_cross_entropy_with_logits(net(image), mask)

    tx, ty = scenes(64)
    test = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 200, score=test)
