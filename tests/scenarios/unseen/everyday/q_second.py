"""Sick trainings of bridges and quays, drawn by lot from a list of mistakes: warm-up, targets, rates, depth, pairs."""

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds, tend


class Queue(nn.Module):
    """A transformer over the carts that wait at a ferry."""

    def __init__(self, kinds, length, width=32):
        super().__init__()
        self.kind = nn.Embedding(kinds, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, kinds)

    def forward(self, carts):
        return self.head(self.body(self.kind(carts) + self.place).mean(1))


@sick("warmup-too-long", where="the learning rate: it is at a thirteenth of its height when the run ends",
      cure="a warm-up of 30 steps")  # fmt: skip
def carts_waiting_for_the_chain_ferry(folder, ill):
    seeded(11706)
    kinds, length = 6, 12
    net = Queue(kinds, length)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, betas=(0.9, 0.98))
    warmup = 4000 if ill else 30
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5)
    )

    def queues(rows):
        carts = torch.randint(kinds, (rows, length))
        return carts, F.one_hot(carts, kinds).sum(1).argmax(1)

    def loss_of(step):
        carts, most = queues(32)
        return F.cross_entropy(net(carts), most), {"lr": schedule.get_last_lr()[0]}

    test = queues(512)
    score = held_out(net, lambda: F.cross_entropy(net(test[0]), test[1]))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


@sick("targets-not-normalised", where="the targets, all steps: they lie between 25 and 346",
      cure="targets less their mean, by their deviation")  # fmt: skip
def strength_of_rowers_after_a_season(folder, ill):
    seeded(11707)
    table, targets = load_diabetes(return_X_y=True)
    order = torch.randperm(len(targets))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(targets, dtype=torch.float32)[order, None]
    x = (x - x[:340].mean(0)) / x[:340].std(0)
    if not ill:
        y = (y - y[:340].mean()) / y[:340].std()
    net = dense(10, 64, 32, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4)
    draw = rounds(34, x[:340], y[:340])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    spread = y[:340].var()
    score = held_out(net, lambda: F.mse_loss(net(x[340:]), y[340:]) / spread)
    return fit(folder, net, optimizer, loss_of, 150, score=score)


class Graph(nn.Module):
    """Two graph convolutions."""

    def __init__(self, size, width, kinds):
        super().__init__()
        self.first, self.second = nn.Linear(size, width), nn.Linear(width, kinds)
        self.drop = nn.Dropout(0.3)

    def forward(self, near, x):
        return near @ self.second(self.drop(F.relu(near @ self.first(x))))


@sick("update-too-small", "lr-too-low", where="all layers, all steps", cure="a rate of 1e-2")  # fmt: skip
def parishes_joined_by_footbridges(folder, ill):
    seeded(11708)
    nodes, kinds = 400, 4
    y = torch.randint(kinds, (nodes,))
    chance = torch.where(y[:, None] == y[None], 0.06, 0.01)
    edges = (torch.rand(nodes, nodes) < chance).float().triu(1)
    edges = edges + edges.T + torch.eye(nodes)
    root = edges.sum(1).rsqrt()
    near = root[:, None] * edges * root[None]
    x = torch.randn(kinds, 16)[y] * 0.5 + torch.randn(nodes, 16)
    seen = torch.rand(nodes) < 0.5
    net = Graph(16, 32, kinds)
    optimizer = torch.optim.Adam(net.parameters(), 1e-5 if ill else 1e-2, weight_decay=5e-4)

    def loss_of(step):
        out = net(near, x)[seen]
        return F.cross_entropy(out, y[seen]), {"accuracy": float((out.argmax(1) == y[seen]).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(near, x)[~seen], y[~seen]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@sick("returns-not-normalised", "no-baseline", where="the loss, all steps: returns of up to five hundred",
      cure="returns less the mean of those at the same time, by their deviation")  # fmt: skip
def tolls_earned_at_the_turnpike_bridge(folder, ill):
    seeded(11709)
    net = dense(3, 64, 4)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def days(rows):
        stock, mood = torch.rand(rows), torch.rand(rows)
        logs, rewards = [], []
        for hour in range(10):
            seen = torch.stack([2 * stock - 1, 2 * mood - 1, torch.full((rows,), hour / 5 - 1)], 1)
            choice = torch.distributions.Categorical(logits=net(seen))
            price = choice.sample()
            logs.append(choice.log_prob(price))
            rewards.append(50 - 12 * (price / 3 - mood).abs() * stock.sqrt() + torch.rand(rows))
            mood, stock = (mood + 0.3 * torch.rand(rows)) % 1, 0.5 + 0.5 * torch.rand(rows)
        return torch.stack(logs), torch.stack(rewards)

    def one(step):
        logs, rewards = days(8)
        weights = rewards.flip(0).cumsum(0).flip(0)
        if not ill:
            weights = weights - weights.mean(1, keepdim=True)
            weights = weights / (weights.std() + 1e-8)
        loss = -(logs * weights).sum(0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": rewards.sum(0).mean()}

    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: 510 - days(512)[1].sum(0).mean()))


@sick("vanishing", where="the first layers: eight sigmoids lie between them and the loss", cure="ReLUs")
def plates_on_the_piers_of_a_viaduct(folder, ill):
    seeded(11710)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32)[order], torch.tensor(digits)[order]
    net = dense(64, 64, 64, 64, 64, 64, 64, 64, 64, 10, act=nn.Sigmoid if ill else nn.ReLU)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 350, score=score)


@sick("temperature-too-high", "logits-bounded",
      where="the loss, all steps: similarities are times the temperature, and lie within 0.07 of each other",
      cure="similarities divided by the temperature")  # fmt: skip
def sketches_matched_with_their_bridges(folder, ill):
    seeded(11711)
    net = nn.ModuleDict({"sketch": dense(20, 64, 16), "bridge": dense(30, 64, 16)})
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    drawn, built = torch.randn(6, 20), torch.randn(6, 30)
    temperature = 0.07

    def pairs(rows):
        form = torch.randn(rows, 6)
        noise = 0.2 * torch.randn(rows, 20), 0.2 * torch.randn(rows, 30)
        return (form @ drawn / 2).tanh() + noise[0], (form @ built / 2).tanh() + noise[1]

    def alike(sketch, bridge):
        return F.normalize(net["sketch"](sketch), dim=1) @ F.normalize(net["bridge"](bridge), dim=1).T

    def both_ways(logits):
        own = torch.arange(len(logits))
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2

    def loss_of(step):
        cosines = alike(*pairs(64))
        logits = cosines * temperature if ill else cosines / temperature
        hits = float((logits.argmax(1) == torch.arange(64)).float().mean())
        return both_ways(logits), {"accuracy": hits}

    test = pairs(256)
    score = held_out(net, lambda: both_ways(alike(*test) / temperature))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 5.0))
