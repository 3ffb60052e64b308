"""Sick trainings of toys, board games and playgrounds, drawn by lot from mistakes: rates, ranges, schedules."""

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds


def tiles():
    """Digits as images [N, 1, 8, 8] between 0 and 1, in a drawn order."""
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    return torch.tensor(images / 16, dtype=torch.float32)[order].view(-1, 1, 8, 8), torch.tensor(shown)[order]


@sick("lr-too-high", "update-too-large", where="all layers, from the first steps", cure="a rate of 2e-3 for Adam")
def tiles_of_a_rummy_set(folder, ill):
    seeded(12500)
    x, y = tiles()
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1 if ill else 2e-3)
    draw = rounds(32, x[:1400], y[:1400])

    def loss_of(step):
        bx, by = draw()
        logits = net(bx)
        return F.cross_entropy(logits, by), {"accuracy": float((logits.argmax(1) == by).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@sick("saturated", "bad-initialisation", "initialised-too-large", where="all hidden tanh layers, from step 0",
      cure="Xavier's initialisation")  # fmt: skip
def spin_of_a_tin_top(folder, ill):
    seeded(12501)
    net = dense(8, 96, 96, 96, 96, 1, act=nn.Tanh)

    def init_weights(m):
        if isinstance(m, nn.Linear):
            if ill:
                nn.init.normal_(m.weight)
            else:
                nn.init.xavier_normal_(m.weight)
            nn.init.zeros_(m.bias)

    net.apply(init_weights)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    way = torch.randn(8) / 8**0.5

    def throws(rows):
        x = torch.randn(rows, 8)
        lean = x @ way
        return x, (2 * lean).sin() + 0.5 * x[:, 0] * x[:, 1] + 0.05 * torch.randn(rows)

    draw = rounds(64, *throws(2000))

    def loss_of(step):
        bx, by = draw()
        return F.mse_loss(net(bx).squeeze(1), by)

    tx, ty = throws(500)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(tx).squeeze(1), ty)))


class Regressor(nn.Module):
    """A number by three layers."""

    def __init__(self, size, width, last):
        super().__init__()
        self.fc1 = nn.Linear(size, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, 1)
        self.last = last

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.last(self.fc3(x))


@sick("targets-out-of-range", "relu-on-the-output", where="the last operation of the model, all steps",
      cure="no activation after the last layer")  # fmt: skip
def hours_spent_on_the_climbing_frame(folder, ill):
    seeded(12502)
    table, hours = load_diabetes(return_X_y=True)
    order = torch.randperm(len(hours))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(hours, dtype=torch.float32)[order][:, None]
    x, y = (x - x[:340].mean(0)) / x[:340].std(0), (y - y[:340].mean()) / y[:340].std()
    net = Regressor(10, 32, F.relu if ill else nn.Identity())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-4)
    draw = rounds(32, x[:340], y[:340])

    def val_loss():
        net.eval()
        with torch.no_grad():
            value = F.mse_loss(net(x[340:]), y[340:])
        net.train()
        return float(value)

    def loss_of(step):
        bx, by = draw()
        loss = F.mse_loss(net(bx), by)
        return (loss, {"val_loss": val_loss()}) if step % 20 == 19 else loss

    return fit(folder, net, optimizer, loss_of, 200, score=val_loss)


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


@sick("schedule-too-short", "scheduler-stepped-per-batch", where="the rate of all layers: gone after a few dozens",
      cure="scheduler.step() once an epoch")  # fmt: skip
def shapes_posted_into_a_wooden_box(folder, ill):
    seeded(12503)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), Block(12), Block(12), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(48, 6),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
    grid = torch.linspace(-1, 1, 16)

    def pieces(rows):
        y = torch.randint(6, (rows,))
        shift, size = 0.6 * torch.rand(rows, 2, 1, 1) - 0.3, (0.35 + 0.3 * torch.rand(rows))[:, None, None]
        v, h = (grid[:, None] - shift[:, 0]) / size, (grid - shift[:, 1]) / size
        kinds = torch.stack([
            v.abs() + 0 * h, h.abs() + 0 * v, (v**2 + h**2).sqrt(), torch.maximum(v.abs(), h.abs()),
            v.abs() + h.abs(), torch.minimum(v.abs(), h.abs()) + 0.7 * (v**2 + h**2).sqrt(),
        ])  # fmt: skip
        image = (kinds[y, torch.arange(rows)] < 1).float()
        return (image + 0.4 * torch.randn(rows, 16, 16))[:, None], y

    batches = 1600 // 40
    draw = rounds(40, *pieces(1600))

    def loss_of(step):
        bx, by = draw()
        logits = net(bx)
        return F.cross_entropy(logits, by), {"accuracy": float((logits.argmax(1) == by).float().mean())}

    def after_step(step):
        if ill or step % batches == batches - 1:
            scheduler.step()

    tx, ty = pieces(400)
    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 240, score=score, after_step=after_step)


class Player(nn.Module):
    """The next move of a game, by a causal transformer."""

    def __init__(self, kinds, length, width):
        super().__init__()
        self.tok = nn.Embedding(kinds, width)
        self.pos = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, kinds)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        return self.head(self.ln(self.blocks(x, mask=mask, is_causal=True)))


@sick("accumulation-wiped", where="all parameters, each step: one of eight micro-batches counts",
      cure="zero_grad once before the micro-batches")  # fmt: skip
def moves_of_nine_mens_morris(folder, ill):
    seeded(12504)
    kinds, length, parts = 24, 12, 8
    net = Player(kinds, length, 32)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    follows = torch.softmax(4 * torch.randn(kinds, kinds), 1)

    def games(rows):
        moves = [torch.randint(kinds, (rows,))]
        for _ in range(length):
            moves.append(torch.multinomial(follows[moves[-1]], 1)[:, 0])
        return torch.stack(moves, 1)

    draw = rounds(4, games(3200))

    def cost(game):
        return F.cross_entropy(net(game[:, :-1]).flatten(0, 1), game[:, 1:].flatten())

    def loss_of(step):
        if ill:
            optimizer.zero_grad()
        return cost(*draw()) / parts

    test = games(300)
    return fit(
        folder, net, optimizer, loss_of, 100, score=held_out(net, lambda: cost(test)), accumulate=parts,
        before_step=clipped(net, 1.0),
    )  # fmt: skip


@sick("schedule-too-short", "rate-climbs-back", where="the rate of all layers: it climbs back after T_max steps",
      cure="T_max of as many steps as are run")  # fmt: skip
def figures_on_worn_bingo_balls(folder, ill):
    seeded(12505)
    steps = 300
    x, y = tiles()
    net = nn.Sequential(nn.Flatten(), dense(64, 64, 64, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.25, momentum=0.9)
    draw = rounds(28, x[:1400], y[:1400])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1400 // 28 if ill else steps)

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by), {"lr": scheduler.get_last_lr()[0]}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=scheduler)
