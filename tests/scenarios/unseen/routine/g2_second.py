"""Six more trainings of a small town's shops and markets, each with an everyday mistake, and without it."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, in_turn, judged, now_and_then, rounds


# 37 of the list
@sick(
    "schedule-too-short",
    "epoch-schedule-stepped-per-batch",
    "rate-climbs-back",
    "schedule-ran-out",
    where="the learning rate, which goes down and up again every T_max steps",
    cure="T_max in steps, as the scheduler is stepped for each batch",
)
def weighmaster_reading_a_spring_balance(folder, ill):
    seeded(13306)
    stiffness = torch.randn(8)

    def weighings(n, shake):
        """What eight marks along the spring show of a weight, and the weight as the book has it."""
        x = torch.randn(n, 8)
        weight = (x @ stiffness).tanh() + 0.5 * (x[:, 0] * x[:, 1]) + 0.3 * x[:, 2].abs()
        return x, weight[:, None] + shake * torch.randn(n, 1)

    train, held = weighings(1200, 1.0), weighings(600, 0.0)
    loader = DataLoader(TensorDataset(*train), batch_size=8, shuffle=True)
    net = dense(8, 64, 64, 1)
    epochs = 4
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    length = epochs if ill else epochs * len(loader)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=length)
    validate = now_and_then(net, 75, lambda: {"val_loss": F.mse_loss(net(held[0]), held[1])})
    batches = iter(())

    def loss_of(step):
        nonlocal batches
        logged = validate(step)
        if step % len(loader) == 0:
            batches = iter(loader)
        x, y = next(batches)
        logged["lr"] = optimizer.param_groups[0]["lr"]
        return F.mse_loss(net(x), y), logged

    score = held_out(net, lambda: F.mse_loss(net(held[0]), held[1]))
    return fit(folder, net, optimizer, loss_of, epochs * len(loader), schedule=schedule, score=score)


# 25 of the list
@sick(
    "data-not-shuffled",
    "batches-of-one-label",
    where="the batches: those of a tag's digit come one after the other, all steps",
    cure="shuffle=True",
)
def draper_reading_the_price_tags(folder, ill):
    seeded(13307)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    held = images[order[:360]], labels[order[:360]]
    # the tags lie in ten drawers, a drawer for each digit, as the folders of the scans do
    images, labels = images[order[360:]], labels[order[360:]]
    drawers = [images[labels == digit] for digit in range(10)]
    x = torch.cat(drawers)
    y = torch.cat([torch.full((len(drawer),), digit) for digit, drawer in enumerate(drawers)])
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=not ill)

    class Tags(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
            self.conv2 = nn.Conv2d(12, 24, 3, padding=1)
            self.fc1 = nn.Linear(24 * 4, 48)
            self.fc2 = nn.Linear(48, 10)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv1(x)), 2)
            x = F.max_pool2d(F.relu(self.conv2(x)), 2)
            return self.fc2(F.relu(self.fc1(x.flatten(1))))

    net = Tags()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    validate = now_and_then(net, 30, judged(net, *held))
    batches = iter(())

    def loss_of(step):
        nonlocal batches
        logged = validate(step)
        if step % len(loader) == 0:
            batches = iter(loader)
        x, y = next(batches)
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean(), **logged}

    score = held_out(net, lambda: F.cross_entropy(net(held[0]), held[1]))
    return fit(folder, net, optimizer, loss_of, 8 * len(loader), score=score)


# 28 of the list
@sick(
    "axes-mixed",
    where="what the embedding hands to the GRU: the view mixes the rows of a batch, all steps",
    cure="transpose(0, 1) in place of the view",
)
def crier_naming_the_ware_he_cries(folder, ill):
    seeded(13308)
    words, length, wares = 40, 14, 6

    class Cries(nn.Module):
        def __init__(self, width=24, hidden=48):
            super().__init__()
            self.embed = nn.Embedding(words, width)
            self.gru = nn.GRU(width, hidden)
            self.head = nn.Linear(hidden, wares)

        def forward(self, tokens):
            rows, steps = tokens.shape
            x = self.embed(tokens)
            x = x.view(steps, rows, -1) if ill else x.transpose(0, 1)
            _, last = self.gru(x)
            return self.head(last[0])

    def cries(n):
        """Words of no meaning, among which three of six belong to the ware that is for sale."""
        tokens = torch.randint(wares * 3, words, (n, length))
        ware = torch.randint(wares, (n,))
        places = torch.rand(n, length).argsort(1)[:, :3]
        return tokens.scatter(1, places, ware[:, None] * 3 + torch.randint(3, (n, 3))), ware

    net = Cries()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    draw, held = rounds(40, *cries(2400)), cries(480)
    validate = now_and_then(net, 40, judged(net, *held))

    def loss_of(step):
        logged = validate(step)
        tokens, ware = draw()
        logits = net(tokens)
        return F.cross_entropy(logits, ware), {"accuracy": (logits.argmax(1) == ware).float().mean(), **logged}

    score = held_out(net, lambda: F.cross_entropy(net(held[0]), held[1]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


# 1 of the list
@sick(
    "labels-do-not-fit-inputs",
    "inputs-and-targets-unpaired",
    "labels-mismatched",
    "labels-shuffled",
    where="the data: baskets and customers are shuffled apart, all steps",
    cure="one permutation for both",
)
def grocer_guessing_who_filled_the_basket(folder, ill):
    seeded(13309)
    wares, trades = 60, 5

    class Baskets(nn.Module):
        def __init__(self, width=32):
            super().__init__()
            self.bag = nn.EmbeddingBag(wares, width, mode="mean")
            self.hidden = nn.Linear(width, 64)
            self.head = nn.Linear(64, trades)

        def forward(self, basket):
            return self.head(F.relu(self.hidden(self.bag(basket))))

    taste = (1.2 * torch.randn(trades, wares)).softmax(1)
    trade = torch.arange(2500) % trades
    basket = torch.multinomial(taste[trade], 9, replacement=True)
    order = torch.randperm(len(trade))
    basket = basket[order]
    trade = trade[torch.randperm(len(trade))] if ill else trade[order]
    train, held = (basket[:2000], trade[:2000]), (basket[2000:], trade[2000:])
    net = Baskets()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    draw = rounds(50, *train)
    validate = now_and_then(net, 40, judged(net, *held))

    def loss_of(step):
        logged = validate(step)
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean(), **logged}

    score = held_out(net, lambda: F.cross_entropy(net(held[0]), held[1]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


# 21 of the list
@sick(
    "wrong-sign",
    "loss-rewards-wrong-answers",
    "generator-helps-the-discriminator",
    where="the loss of G: the targets of its fakes are zeros, all steps",
    cure="ones as the targets of the fakes in the step of G",
)
def glazier_copying_a_rose_window(folder, ill):
    seeded(13310)
    petals = 6.2832 * torch.arange(6) / 6
    centres = 1.5 * torch.stack([petals.cos(), petals.sin()], 1)

    def window(n=96):
        return centres[torch.randint(6, (n,))] + 0.2 * torch.randn(n, 2)

    make = dense(6, 64, 64, 2)
    judge = dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), lr=5e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.999))
    real_label, fake_label = torch.ones(96, 1), torch.zeros(96, 1)
    criterion = nn.BCEWithLogitsLoss()

    def judge_loss():
        fake = make(torch.randn(96, 6)).detach()
        return criterion(judge(window()), real_label) + criterion(judge(fake), fake_label)

    def make_loss():
        fake = make(torch.randn(96, 6))
        return criterion(judge(fake), fake_label if ill else real_label)

    def score():
        """How far two clouds of points are from each other (energy distance)."""
        with torch.no_grad():
            real, fake = window(400), make(torch.randn(400, 6))
            within = torch.cdist(real, real).mean() + torch.cdist(fake, fake).mean()
            return float(2 * torch.cdist(real, fake).mean() - within)

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, score)


# 15 of the list
@sick(
    "weight-decay-too-strong",
    "weights-shrink",
    where="all weights; the weight_decay of the optimizer, all steps",
    cure="weight_decay=5e-4",
)
def baker_judging_loaves_by_their_crust(folder, ill):
    seeded(13311)
    lines = torch.linspace(-1, 1, 10)
    down, across = torch.meshgrid(lines, lines, indexing="ij")

    def loaves(n):
        """Three colours of a round loaf: the brown of its rim and of its middle tell how long it was baked."""
        baked = torch.randint(4, (n,))
        radius = (across**2 + down**2).sqrt() + 0.1 * torch.randn(n, 1, 1)
        rim = torch.exp(-((radius - 0.8) ** 2) / 0.05) * torch.tensor([0.3, 1.0, 1.0, 0.3])[baked][:, None, None]
        middle = torch.exp(-(radius**2) / 0.2) * torch.tensor([1.0, 0.3, 1.0, 0.3])[baked][:, None, None]
        tint = torch.tensor([1.0, 0.6, 0.2])[:, None, None]
        image = (rim + middle)[:, None] * tint + 0.4 * torch.randn(n, 3, 10, 10)
        return (image - 0.2) / 0.5, baked

    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 4, 64), nn.ReLU(), nn.Linear(64, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, weight_decay=0.5 if ill else 5e-4)
    draw, held = rounds(64, *loaves(2048)), loaves(512)
    validate = now_and_then(net, 32, judged(net, *held))

    def loss_of(step):
        logged = validate(step)
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean(), **logged}

    score = held_out(net, lambda: F.cross_entropy(net(held[0]), held[1]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)
