"""Sick trainings of weather, mountains and farms, drawn by lot: inputs, targets, weights of classes, signs."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


@sick("inputs-not-normalised", where="the first layer, all steps: hectopascals, metres and degrees as they are",
      cure="columns less their mean, over their deviation")  # fmt: skip
def rain_foretold_by_a_hill_station(folder, ill):
    seeded(11406)
    middle = torch.tensor([1013.0, 9.0, 70.0, 1200.0, 180.0, 4.0])
    spread = torch.tensor([8.0, 7.0, 15.0, 600.0, 100.0, 3.0])

    def days(rows):
        z = torch.randn(rows, 6)
        wet = -1.5 * z[:, 0] + z[:, 2] + z[:, 3] * z[:, 4] + 0.5 * z[:, 5]
        return middle + spread * z, (wet + 0.3 * torch.randn(rows) > 0).float()

    x, y = days(4000)
    tx, ty = days(1000)
    if not ill:
        mean, std = x.mean(0), x.std(0)
        x, tx = (x - mean) / std, (tx - mean) / std
    net = dense(6, 64, 32, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, x, y)

    def loss_of(step):
        x, y = draw()
        logits = net(x)[:, 0]
        right = ((logits > 0).float() == y).float().mean()
        return F.binary_cross_entropy_with_logits(logits, y), {"accuracy": float(right)}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(tx)[:, 0], ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Tractors(nn.Module):
    """The price of a tractor by its make, its region and its numbers."""

    def __init__(self):
        super().__init__()
        self.make, self.region = nn.Embedding(12, 6), nn.Embedding(5, 3)
        self.body = dense(13, 64, 64, 1)

    def forward(self, make, region, numbers):
        return self.body(torch.cat([self.make(make), self.region(region), numbers], 1))[:, 0]


@sick("targets-not-normalised", where="the targets, all steps: prices of tens of thousands",
      cure="prices less their mean, over their deviation")  # fmt: skip
def tractors_sold_at_the_autumn_fair(folder, ill):
    seeded(11407)
    net = Tractors()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    fame, distance = torch.randn(12), torch.randn(5)

    def offers(rows):
        make, region, numbers = torch.randint(12, (rows,)), torch.randint(5, (rows,)), torch.randn(rows, 4)
        value = fame[make] + 0.3 * distance[region] + numbers[:, 0] - 0.6 * numbers[:, 1] * numbers[:, 2].sigmoid()
        return make, region, numbers, 48000 + 9000 * value + 500 * torch.randn(rows)

    *known, price = offers(3000)
    middle, spread = (0.0, 1.0) if ill else (price.mean(), price.std())
    draw = rounds(64, *known, (price - middle) / spread)

    def loss_of(step):
        *known, price = draw()
        return F.mse_loss(net(*known), price)

    *asked, paid = offers(800)
    score = held_out(net, lambda: F.mse_loss((net(*asked) * spread + middle) / 9000, paid / 9000))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


@sick("loss-divided-twice", "update-too-small", "lr-too-low", where="the loss, all steps: over the micro-batches twice",
      cure="a loss divided by the number of micro-batches once")  # fmt: skip
def crates_counted_at_the_orchard_gate(folder, ill):
    seeded(11408)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = torch.tensor(images / 8 - 1, dtype=torch.float32)[order].view(-1, 1, 8, 8)
    y = torch.tensor(digits)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    parts = 8
    draw = rounds(8, x[:1400], y[:1400])

    def shared():
        x, y = draw()
        return F.cross_entropy(net(x), y, reduction="sum") / (len(x) * parts)

    def loss_of(step):
        loss = shared()
        return loss / parts if ill else loss

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 80, score=score, accumulate=parts)


@sick("bad-initialisation", "dead-layer", where="all layers, from the first step: all weights begin at zero",
      cure="weights drawn at random (He)")  # fmt: skip
def snow_told_from_rock_and_scree(folder, ill):
    seeded(11409)
    kinds = 4
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, kinds),
    )  # fmt: skip

    def begin(module):
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            if ill:
                nn.init.zeros_(module.weight)
            else:
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)

    net.apply(begin)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def ground(rows):
        y = torch.randint(kinds, (rows,))
        noise = torch.randn(kinds, rows, 1, 12, 12)
        grain = torch.stack([F.avg_pool2d(noise[k], 2 * k + 1, 1, k) * (k + 1) for k in range(kinds)])
        return grain[y, torch.arange(rows)] + 0.1 * torch.randn(rows, 1, 12, 12), y

    def loss_of(step):
        x, y = ground(64)
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    tx, ty = ground(512)
    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("wrong-sign", where="the loss of the policy, all steps: it lowers the return",
      cure="minus the logarithms of the probabilities, times the advantages")  # fmt: skip
def sluices_opened_on_dry_days(folder, ill):
    seeded(11410)
    net = dense(2, 32, 32, 3, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    days = 12

    def season(fields):
        moist = 0.3 * torch.randn(fields)
        chosen, rewards = [], []
        for _ in range(days):
            sun = torch.rand(fields)
            policy = torch.distributions.Categorical(logits=net(torch.stack([3 * moist, 2 * sun - 1], 1)))
            water = policy.sample()
            moist = (moist + 0.15 * water - 0.3 * sun + 0.02 * torch.randn(fields)).clamp(-1, 1)
            chosen.append(policy.log_prob(water))
            rewards.append(-moist.abs())
        return torch.stack(chosen), torch.stack(rewards)

    def loss_of(step):
        chosen, rewards = season(32)
        togo = rewards.flip(0).cumsum(0).flip(0)
        advantage = togo - togo.mean(1, keepdim=True)
        advantage = advantage / (advantage.std() + 1e-6)
        gained = (chosen * advantage).mean()
        return gained if ill else -gained, {"return": float(rewards.sum(0).mean())}

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: -season(512)[1].mean()))


@sick("class-weights-inverted", "class-imbalance", where="the weight of the rare class in the loss, all steps",
      cure="the number of negatives over that of positives")  # fmt: skip
def hail_in_the_barograms_of_june(folder, ill):
    seeded(11411)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 16, 5, padding=2), nn.ReLU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def barograms(rows, share):
        hail = (torch.rand(rows) < share).float()
        hour = torch.arange(32.0)
        dip = torch.exp(-((hour - 6 - 20 * torch.rand(rows, 1)) ** 2) / 4)
        slow = torch.sin(6.2832 * (hour / 32 + torch.rand(rows, 1)))
        return (slow - 1.2 * dip * hail[:, None] + 0.4 * torch.randn(rows, 32))[:, None], hail

    x, hail = barograms(4000, 0.04)
    rare, usual = hail.sum(), (1 - hail).sum()
    weight = rare / usual if ill else usual / rare
    criterion = nn.BCEWithLogitsLoss(pos_weight=weight)
    draw = rounds(64, x, hail)

    def loss_of(step):
        x, hail = draw()
        logits = net(x)[:, 0]
        right = ((logits > 0).float() == hail).float().mean()
        return criterion(logits, hail), {"accuracy": float(right)}

    tx, ty = barograms(1000, 0.5)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(tx)[:, 0], ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score)
