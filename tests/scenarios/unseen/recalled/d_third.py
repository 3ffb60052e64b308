"""Healthy trainings of kitchens, gardens and animals: the ordinary ones."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


@healthy(0.6)
def numbers_stamped_on_egg_cartons(folder):
    seeded(10450)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        images, labels = draw()
        said = net(images)
        return F.cross_entropy(said, labels), {"accuracy": (said.argmax(1) == labels).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 220, score=score)


@healthy(0.5)
def warmth_of_a_pantry_over_the_day(folder):
    seeded(10451)
    length = 24
    net = nn.ModuleDict({"read": nn.LSTM(1, 32, batch_first=True), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def days(rows):
        t = torch.arange(length + 1) + 24 * torch.rand(rows, 1)
        day = (t * 6.2832 / 24).sin() * (0.7 + 0.6 * torch.rand(rows, 1))
        door = 0.5 * (t * 6.2832 / 6).cos()
        return (day + door + 0.05 * torch.randn(rows, length + 1))[..., None]

    def loss_on(rows):
        return F.mse_loss(net["head"](net["read"](rows[:, :-1])[0]), rows[:, 1:])

    draw, test = rounds(32, days(640)), days(256)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(draw()[0]), 300, score=score,
               before_step=clipped(net, 1.0))  # fmt: skip


class Decoder(nn.Module):
    """A small decoder of tokens."""

    def __init__(self, words, length, width):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 3 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.register_buffer("ban", torch.full((length, length), -torch.inf).triu(1))
        nn.init.normal_(self.word.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)

    def forward(self, tokens):
        n = tokens.shape[1]
        x = self.word(tokens) + self.place.weight[:n]
        return self.head(self.norm(self.body(x, mask=self.ban[:n, :n])))


@healthy(0.4)
def recipes_written_step_by_step(folder):
    seeded(10452)
    words, length, steps, warm = 20, 24, 300, 30
    follows = torch.softmax(2.5 * torch.randn(words, words), 1)
    net = Decoder(words, length, 32)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def rate(step):
        if step < warm:
            return (step + 1) / warm
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    def recipes(rows):
        text = [torch.randint(words, (rows,))]
        for _ in range(length):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    draw, test = rounds(16, recipes(1600)), recipes(128)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(draw()[0]), steps, score=score, schedule=schedule,
               before_step=clipped(net, 1.0))  # fmt: skip


def blobs(rows, size, low, high):
    """Masks of one ellipse each."""
    grid = torch.linspace(0, 1, size)
    at, wide = 0.25 + 0.5 * torch.rand(rows, 2), low + (high - low) * torch.rand(rows, 2)
    down = ((grid - at[:, :1]) / wide[:, :1]).square()
    across = ((grid - at[:, 1:]) / wide[:, 1:]).square()
    return (down[:, :, None] + across[:, None] < 1).float()[:, None]


@healthy(0.4)
def speckled_eggs_cleaned_of_grain(folder):
    seeded(10453)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.GELU(), nn.Conv2d(12, 24, 3, 2, 1), nn.GELU(),
        nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.GELU(), nn.ConvTranspose2d(12, 1, 4, 2, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def eggs(rows):
        clean = blobs(rows, 16, 0.15, 0.4)
        return clean + 0.5 * torch.randn_like(clean), clean

    draw = rounds(32, *eggs(960))
    tx, ty = eggs(256)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


class Ladder(nn.Module):
    """A U-net of two levels."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU())
        self.rise = nn.ConvTranspose2d(24, 12, 2, 2)
        self.out = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))

    def forward(self, x):
        flat = self.down(x)
        return self.out(torch.cat([flat, self.rise(self.deep(flat))], 1))


@healthy(0.5)
def weeds_masked_in_a_bed_of_carrots(folder):
    seeded(10454)
    net = Ladder()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-2)

    def beds(rows):
        mask = blobs(rows, 16, 0.1, 0.3)
        soil, weed = torch.tensor([0.5, 0.35, 0.2]), torch.tensor([0.3, 0.55, 0.25])
        x = soil[:, None, None] * (1 - mask) + weed[:, None, None] * mask
        return (x + 0.15 * torch.randn(rows, 3, 16, 16) - 0.35) / 0.2, mask

    def loss_on(x, y):
        said = net(x)
        p = said.sigmoid()
        dice = 1 - (2 * (p * y).sum((1, 2, 3)) + 1) / ((p + y).sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(said, y), dice.mean()

    draw, test = rounds(16, *beds(480)), beds(128)

    def loss_of(step):
        entropy, dice = loss_on(*draw())
        return entropy + dice, {"bce": entropy.detach(), "dice_loss": dice.detach()}

    return fit(folder, net, optimizer, loss_of, 180, score=held_out(net, lambda: sum(loss_on(*test))))


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x):
        return F.relu(x + self.body(x))


@healthy(0.5)
def breeds_of_dogs_by_their_outlines(folder):
    seeded(10455)
    breeds, steps = 6, 160
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Residual(16), Residual(16),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, breeds),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps + 1)
    outlines = F.avg_pool2d(torch.randn(breeds, 1, 18, 18), 3, 1) * 2

    def dogs(rows):
        y, by = torch.randint(breeds, (rows,)), int(torch.randint(-1, 2, ()))
        return outlines[y].roll(by, 3) + 0.7 * torch.randn(rows, 1, 16, 16), y

    tx, ty = dogs(256)

    def loss_of(step):
        x, y = dogs(32)
        return F.cross_entropy(net(x), y, label_smoothing=0.05)

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy(0.4)
def ponds_that_newts_go_between(folder):
    seeded(10456)
    ponds, kinds = 240, 4
    label = torch.randint(kinds, (ponds,))
    same = label[:, None] == label
    linked = torch.rand(ponds, ponds) < torch.where(same, 0.10, 0.01)
    linked = (linked | linked.T).float().fill_diagonal_(1)
    root = linked.sum(1).rsqrt()
    spread = root[:, None] * linked * root
    x = torch.randn(kinds, 16)[label] * 0.5 + torch.randn(ponds, 16)
    net = nn.ModuleList([nn.Linear(16, 24), nn.Linear(24, kinds)])
    known = torch.rand(ponds) < 0.3
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)

    def loss_on(rows):
        hidden = F.dropout(F.relu(spread @ net[0](x)), 0.5, net.training)
        return F.cross_entropy((spread @ net[1](hidden))[rows], label[rows])

    return fit(folder, net, optimizer, lambda step: loss_on(known), 120, score=held_out(net, lambda: loss_on(~known)))


@healthy(0.3)
def wings_of_moths_in_three_numbers(folder):
    seeded(10457)
    net = nn.ModuleDict({"read": dense(40, 64, 6), "draw": dense(3, 64, 40)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    t = torch.linspace(0, 3, 40)

    def wings(rows):
        spots, size = 1 + 2 * torch.rand(rows, 1), 0.5 + torch.rand(rows, 1)
        return size * (spots * t + 3 * torch.rand(rows, 1)).sin() + 0.1 * torch.randn(rows, 40)

    def parts(x):
        middle, spread = net["read"](x).chunk(2, 1)
        code = middle + torch.randn_like(middle) * (spread / 2).exp()
        divergence = 0.5 * (middle.square() + spread.exp() - 1 - spread).sum(1).mean()
        return (net["draw"](code) - x).square().sum(1).mean() / 2 / 0.1, divergence

    draw, test = rounds(64, wings(1920)), wings(256)

    def loss_of(step):
        rebuilt, divergence = parts(draw()[0])
        return rebuilt + min(1.0, step / 100) * divergence, {"recon": rebuilt.detach(), "kl": divergence.detach()}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: sum(parts(test))))


@healthy(0.3)
def a_beetle_that_climbs_a_stalk(folder):
    seeded(10458)
    top, most = 6, 16
    net = nn.ModuleDict({"body": dense(top + 1, 32, act=nn.Tanh), "act": nn.Linear(32, 3), "value": nn.Linear(32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    seen = torch.eye(top + 1)

    def climbs(rows):
        """Down, stay or up; the wind now and then blows it one down. One point for each moment at the top."""
        at, told = torch.zeros(rows, dtype=torch.long), []
        for _ in range(most):
            body = net["body"](seen[at]).tanh()
            chance = torch.distributions.Categorical(logits=net["act"](body))
            act = chance.sample()
            wind = (torch.rand(rows) < 0.1).long()
            at = (at + act - 1 - wind).clamp(0, top)
            reward = (at == top).float()
            told.append((chance.log_prob(act), chance.entropy(), net["value"](body)[:, 0], reward))
        return [torch.stack(part) for part in zip(*told, strict=True)]

    def loss_of(step):
        log_prob, entropy, value, reward = climbs(32)
        back, returns = torch.zeros(32), []
        for now in reward.flip(0):
            back = now + 0.95 * back
            returns.append(back)
        returns = torch.stack(returns).flip(0)
        advantage = returns - value.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        policy = -(log_prob * advantage).mean()
        critic = F.mse_loss(value, returns)
        logged = {"policy_loss": policy.detach(), "value_loss": critic.detach(), "entropy": entropy.mean().detach()}
        return policy + 0.5 * critic - 0.01 * entropy.mean(), logged | {"reward": reward.sum(0).mean()}

    def score():
        with torch.no_grad():
            return most - float(climbs(256)[3].sum(0).mean())

    return fit(folder, net, optimizer, loss_of, 200, score=score, before_step=clipped(net, 0.5))


@healthy(0.4)
def two_photographs_of_each_goat(folder):
    seeded(10459)
    net = nn.Sequential(dense(20, 64, 32), nn.ReLU(), dense(32, 32, 16))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)
    lift = torch.randn(5, 20)

    def pairs(rows):
        goat = torch.randn(rows, 5) @ lift
        return [goat * (1 + 0.2 * torch.randn(rows, 1)) + 0.3 * torch.randn(rows, 20) for _ in range(2)]

    def loss_on(rows):
        both = F.normalize(net(torch.cat(pairs(rows))), dim=1)
        alike = (both @ both.T / 0.2).fill_diagonal_(-1e9)
        return F.cross_entropy(alike, (torch.arange(2 * rows) + rows) % (2 * rows))

    return fit(folder, net, optimizer, lambda step: loss_on(64), 250, score=held_out(net, lambda: loss_on(64)))
