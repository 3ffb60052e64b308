"""Sick trainings of the railway, drawn by lot from a list of mistakes: layers, losses, schedules, labels."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds


@sick("not-in-optimizer", where="the new head, all steps: the optimizer holds the old one",
      cure="the optimizer made after the head was replaced")  # fmt: skip
def plates_of_engines_sold_abroad(folder, ill):
    seeded(11300)
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(digits)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    home, abroad = (x[y < 5], y[y < 5]), (x[y >= 5], y[y >= 5] - 5)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(24 * 16, 64), nn.ReLU(), nn.Linear(64, 5),
    )  # fmt: skip
    before = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(32, *home)
    for _ in range(120):
        bx, by = draw()
        before.zero_grad()
        F.cross_entropy(net(bx), by).backward()
        before.step()

    def tuned():
        return torch.optim.AdamW(
            [{"params": net[:-1].parameters(), "lr": 2e-5}, {"params": net[-1].parameters(), "lr": 2e-3}],
            weight_decay=0.01,
        )

    if ill:
        optimizer = tuned()
    net[-1] = nn.Linear(64, 5)
    if not ill:
        optimizer = tuned()
    draw = rounds(32, abroad[0][:650], abroad[1][:650])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(abroad[0][650:]), abroad[1][650:]))
    return fit(folder, net, optimizer, loss_of, 240, score=score)


class Ahead(nn.Module):
    """The delay at the next stop, and those at the stops behind it."""

    def __init__(self, size, stops):
        super().__init__()
        self.body = nn.Sequential(dense(size, 64, 64), nn.ReLU())
        self.nearest = nn.Linear(64, 1)
        self.further = nn.ModuleList(dense(64, 16, 1) for _ in range(stops - 1))

    def forward(self, x):
        x = self.body(x)
        return self.nearest(x), [head(x) for head in self.further]


@sick("no-gradient", where="the heads of the further stops, all steps: their losses are made numbers before the sum",
      cure="the losses stacked as they are")  # fmt: skip
def delay_carried_to_the_next_four_stops(folder, ill):
    seeded(11301)
    stops = 5
    net = Ahead(10, stops)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    weights = torch.randn(10, 3)

    def trains(rows):
        x = torch.randn(rows, 10)
        base = (x @ weights / 2).tanh()
        share = torch.linspace(1.0, 0.4, stops)
        late = base[:, :1] * share + base[:, 1:2] * (1 - share) + 0.5 * base[:, 2:] * x[:, :1]
        return x, late + 0.05 * torch.randn(rows, stops)

    x, y = trains(3000)
    draw = rounds(64, x, y)

    def losses_on(x, y):
        first, others = net(x)
        return F.mse_loss(first, y[:, :1]), [F.mse_loss(out, y[:, i + 1, None]) for i, out in enumerate(others)]

    def loss_of(step):
        nearest, further = losses_on(*draw())
        rest = torch.tensor([loss.item() for loss in further]).mean() if ill else torch.stack(further).mean()
        return nearest + rest, {"nearest": float(nearest), "further": float(rest)}

    tx, ty = trains(1000)

    def tested():
        nearest, further = losses_on(tx, ty)
        return nearest + torch.stack(further).mean()

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, tested))


@sick("bad-initialisation", "dead-layer", where="all linear layers, from the start: every weight is zero",
      cure="weights drawn as Kaiming has it")  # fmt: skip
def wheels_found_cracked_by_ultrasound(folder, ill):
    seeded(11302)
    table, kinds = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds, dtype=torch.float32)[order, None]
    x = (x - x[:420].mean(0)) / x[:420].std(0)
    net = dense(30, 48, 24, 1)

    def begin(module):
        if isinstance(module, nn.Linear):
            if ill:
                nn.init.zeros_(module.weight)
            else:
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)

    net.apply(begin)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    draw = rounds(30, x[:420], y[:420])

    def loss_of(step):
        x, y = draw()
        return F.binary_cross_entropy_with_logits(net(x), y)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[420:]), y[420:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Announcer(nn.Module):
    """A GRU of what is said next."""

    def __init__(self, words):
        super().__init__()
        self.word, self.memory = nn.Embedding(words, 32), nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, words)

    def forward(self, text):
        return self.head(self.memory(self.word(text))[0])


@sick("schedule-too-short", where="the learning rate, from the third epoch on: it falls with each batch",
      cure="the schedule stepped once an epoch")  # fmt: skip
def announcements_in_the_waiting_hall(folder, ill):
    seeded(11303)
    words, batches = 24, 30
    net = Announcer(words)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    follows = torch.softmax(3 * torch.randn(words, words), 1)

    def said(rows):
        text = [torch.randint(words, (rows,))]
        for _ in range(14):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    text = said(32 * batches)
    draw = rounds(32, text)

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def loss_of(step):
        return loss_on(*draw()), {"lr": optimizer.param_groups[0]["lr"]}

    def after_step(step):
        if ill or (step + 1) % batches == 0:
            schedule.step()

    test = said(400)
    score = held_out(net, lambda: loss_on(test))
    clip = clipped(net, 5.0)
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clip, after_step=after_step)


@sick("labels-mismatched", "labels-do-not-fit-inputs",
      where="the labels of training, all steps: each is one further than those of the test",
      cure="the number of the platform less one, in both")  # fmt: skip
def echo_of_a_bell_on_eight_platforms(folder, ill):
    seeded(11304)
    kinds = 8
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, 2, 3), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 5, 2, 2), nn.BatchNorm1d(32),
        nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(128, kinds),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    time = torch.linspace(0, 1, 64)

    def recorded(rows):
        platform = torch.randint(1, kinds + 1, (rows,))
        pitch = 4 + 2 * platform[:, None] + 0.3 * torch.randn(rows, 1)
        sound = (6.2832 * (pitch * time + torch.rand(rows, 1))).sin() * (-2 * time).exp()
        return (sound + 0.15 * torch.randn(rows, 64))[:, None], platform

    x, platform = recorded(2000)
    y = platform % kinds if ill else platform - 1
    draw = rounds(50, x, y)

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    tx, ty = recorded(600)
    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: F.cross_entropy(net(tx), ty - 1)))


class Heeding(nn.Module):
    """Self-attention."""

    def __init__(self, width, heads, scale):
        super().__init__()
        self.heads, self.scale = heads, scale
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.xavier_normal_(layer.weight)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (f(x).view(rows, length, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        weights = (q @ k.transpose(-2, -1) * self.scale).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(rows, length, width))


class Consist(nn.Module):
    """A transformer over the carriages of a train."""

    def __init__(self, size, width, heads, scale):
        super().__init__()
        self.begin = nn.Parameter(torch.randn(width))
        self.read, self.norm = nn.Linear(size, width), nn.LayerNorm(width)
        self.heed = Heeding(width, heads, scale)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, carriages):
        x = self.read(carriages)
        x = torch.cat([self.begin.expand(len(x), 1, -1), x], 1)
        return self.head((x + self.heed(self.norm(x)))[:, 0])


@sick("attention-collapsed", where="the softmax of the attention, from the first step: its logits are not scaled",
      cure="the products of queries and keys divided by the root of the width of a head")  # fmt: skip
def weight_of_a_train_from_its_carriages(folder, ill):
    seeded(11305)
    width, heads = 128, 1
    net = Consist(6, width, heads, 1.0 if ill else (width // heads) ** -0.5)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-4, weight_decay=0.01)
    load = torch.randn(6, 2)

    def trains(rows):
        carriages = torch.randn(rows, 10, 6)
        weight = (carriages @ load / 2).tanh().sum((1, 2))[:, None] / 3
        return carriages, weight + 0.05 * torch.randn(rows, 1)

    x, y = trains(4000)
    draw = rounds(32, x, y)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    tx, ty = trains(500)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 1.0))
