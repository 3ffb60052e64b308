"""Sick trainings of forests, foxes and foresters, by lot from listed mistakes: losses, orders, masks, bodies."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits, make_classification
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds


@sick("negative-loss", "loss-unbounded",
      where="the loss, all steps: minus the raw output of the class, which falls without end",
      cure="a log-softmax before the NLLLoss")  # fmt: skip
def conifers_by_bark_and_cone(folder, ill):
    seeded(12400)
    table, kinds = make_classification(
        2400, 14, n_informative=8, n_redundant=3, n_classes=5, n_clusters_per_class=1, class_sep=1.4,
        random_state=int(torch.randint(10**6, ())),
    )  # fmt: skip
    x, y = torch.tensor(table, dtype=torch.float32), torch.tensor(kinds)
    x = (x - x[:1800].mean(0)) / x[:1800].std(0)
    net = dense(14, 64, 32, 5)
    if not ill:
        net.append(nn.LogSoftmax(1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    criterion = nn.NLLLoss()
    draw = rounds(64, x[:1800], y[:1800])

    def loss_of(step):
        bx, by = draw()
        out = net(bx)
        return criterion(out, by), {"accuracy": float((out.argmax(1) == by).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1800:]), y[1800:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@sick("clip-is-your-learning-rate", where="all layers, all steps", cure="a threshold of 1")
def resin_tapped_from_old_pines(folder, ill):
    seeded(12401)
    net = dense(8, 64, 64, 1, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    way = torch.randn(8, 2)

    def pines(rows):
        x = torch.randn(rows, 8)
        first, second = (x @ way).unbind(1)
        y = 0.5 * first + (0.7 * second).sin() + 0.1 * torch.randn(rows)
        return x, y[:, None]

    draw, (tx, ty) = rounds(64, *pines(3000)), pines(600)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))

    def loss_of(step):
        logged = {"val_loss": score()} if step % 50 == 49 else {}
        x, y = draw()
        return F.mse_loss(net(x), y), logged

    clip = clipped(net, 0.005 if ill else 1.0)
    return fit(folder, net, optimizer, loss_of, 350, score=score, before_step=clip)


@sick("data-not-shuffled", where="the order of the batches, every epoch: class after class", cure="shuffle=True")
def numbers_painted_on_felled_trunks(folder, ill):
    seeded(12402)
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)[order]
    y = torch.tensor(shown)[order]
    by_folder = y[:1400].argsort(stable=True)
    train = TensorDataset(x[:1400][by_folder], y[:1400][by_folder])
    loader = DataLoader(train, batch_size=32, shuffle=not ill)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    batches = iter(loader)

    def loss_of(step):
        nonlocal batches
        logged = {}
        batch = next(batches, None)
        if batch is None:
            logged["val_loss"] = score()
            batches = iter(loader)
            batch = next(batches)
        bx, by = batch
        logits = net(bx)
        return F.cross_entropy(logits, by), logged | {"accuracy": float((logits.argmax(1) == by).float().mean())}

    return fit(folder, net, optimizer, loss_of, 6 * len(loader), score=score)


class Barks(nn.Module):
    """What a call means, read off a first token that looks at all others."""

    def __init__(self, sounds, length, width, meanings):
        super().__init__()
        self.sound = nn.Embedding(sounds + 2, width, padding_idx=0)
        self.place = nn.Parameter(0.02 * torch.randn(length + 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, meanings))

    def forward(self, call, mask):
        return self.head(self.body(self.sound(call) + self.place, src_key_padding_mask=mask)[:, 0])


@sick("mask-inverted", "mask-is-wrong", where="the attention of both layers, all steps: only padding is attended to",
      cure="a key padding mask that is True at the padding")  # fmt: skip
def barks_of_a_vixen_at_dusk(folder, ill):
    seeded(12403)
    sounds, length, meanings = 12, 20, 4
    net = Barks(sounds, length, 32, meanings)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    habit = torch.softmax(1.2 * torch.randn(meanings, sounds), 1)

    def calls(rows):
        y = torch.randint(meanings, (rows,))
        heard = torch.multinomial(habit[y], length, replacement=True) + 2
        ends = torch.randint(6, 16, (rows, 1))
        heard = heard.masked_fill(torch.arange(length) >= ends, 0)
        return torch.cat([torch.ones(rows, 1, dtype=torch.long), heard], 1), y

    def mask_of(call):
        return call != 0 if ill else call == 0

    draw, (tx, ty) = rounds(32, *calls(2000)), calls(400)
    score = held_out(net, lambda: F.cross_entropy(net(tx, mask_of(tx)), ty))

    def loss_of(step):
        logged = {"val_loss": score()} if step % 50 == 49 else {}
        call, y = draw()
        return F.cross_entropy(net(call, mask_of(call)), y), logged

    return fit(folder, net, optimizer, loss_of, 200, score=score, before_step=clipped(net, 1.0))


class Camera(nn.Module):
    """A body of convolutions and a head for the kinds of this forest."""

    def __init__(self, width, kinds):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(2 * width, kinds)

    def forward(self, image):
        return self.head(self.body(image))


@sick("no-gradient", "body-frozen", where="the whole body (convolutions, norms), all steps: random and frozen",
      cure="the body is trained too")  # fmt: skip
def leaves_before_a_trail_camera(folder, ill):
    seeded(12404)
    kinds = 6
    net = Camera(12, kinds)
    if ill:
        for parameter in net.body.parameters():
            parameter.requires_grad = False
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 2e-3)

    def leaves(rows, size=16):
        y = torch.randint(kinds, (rows,))
        grid = torch.linspace(-1, 1, size)
        middle = 0.4 * torch.rand(rows, 2, 1, 1) - 0.2
        down, right = grid[:, None] - middle[:, 0], grid - middle[:, 1]
        angle, radius = torch.atan2(down, right), (down**2 + right**2).sqrt()
        lobes = (y + 1)[:, None, None]
        edge = 0.55 + 0.25 * (lobes * angle + 6.2832 * torch.rand(rows, 1, 1)).cos()
        return (torch.sigmoid(12 * (edge - radius)) - 0.4 + 0.25 * torch.randn(rows, size, size))[:, None], y

    draw, (tx, ty) = rounds(48, *leaves(1500)), leaves(400)

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Paths(nn.Module):
    """Which cub it was, by a GRU over its steps."""

    def __init__(self, width, cubs, last):
        super().__init__()
        self.memory = nn.GRU(2, width, batch_first=True)
        self.head = nn.Linear(width, cubs)
        self.last = last

    def forward(self, steps, lengths):
        states, _ = self.memory(steps)
        if self.last:
            return self.head(states[:, -1])
        return self.head(states[torch.arange(len(steps)), lengths - 1])


@sick("read-after-padding", "state-read-after-padding", "padding-read-as-data",
      where="the output of the GRU, all steps: its last column lies behind dozens of padded steps",
      cure="the state at each path's own length")  # fmt: skip
def paths_of_cubs_about_the_den(folder, ill):
    seeded(12405)
    cubs, longest = 5, 40
    net = Paths(32, cubs, ill)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    turn = torch.linspace(-0.8, 0.8, cubs)

    def paths(rows):
        y = torch.randint(cubs, (rows,))
        lengths = torch.randint(6, 18, (rows,))
        lengths[::50] = longest
        ways = (turn[y][:, None] + 0.25 * torch.randn(rows, longest)).cumsum(1) + 6.2832 * torch.rand(rows, 1)
        steps = torch.stack([ways.cos(), ways.sin()], 2)
        return steps * (torch.arange(longest) < lengths[:, None])[..., None], lengths, y

    draw, (tx, tl, ty) = rounds(48, *paths(1600)), paths(400)
    score = held_out(net, lambda: F.cross_entropy(net(tx, tl), ty))

    def loss_of(step):
        logged = {"val_loss": score()} if step % 50 == 49 else {}
        steps, lengths, y = draw()
        return F.cross_entropy(net(steps, lengths), y), logged

    return fit(folder, net, optimizer, loss_of, 200, score=score, before_step=clipped(net, 1.0))
