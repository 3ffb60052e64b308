"""Ten trainings: crate numbers, blasts, nursery rhymes, tea prices, faded labels, toys, buoys, moss, quays, play."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.6)
def crate_numbers_stencilled_at_the_loading_dock(folder):
    seeded(15012)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    draw = rounds(48, x[:1400], y[:1400])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 261)
    validate = now_and_then(net, 29, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        crate, number = draw()
        said = net(crate)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 261, score=score, schedule=schedule)


@healthy(0.6)
def tremor_at_the_village_from_the_charge_in_the_quarry(folder):
    seeded(15013)

    def blasts(rows):
        charge, depth, wet = torch.randn(3, rows, 1)
        distance = 0.3 + torch.rand(rows, 1)
        tremor = (0.4 * charge - 0.2 * wet * depth).exp() / distance + 0.05 * torch.randn(rows, 1)
        return torch.cat([charge, depth, wet, (distance - 0.8) / 0.29], 1), (tremor - 1.6) / 1.1

    (x, y), (tx, ty) = blasts(4000), blasts(1000)
    draw = rounds(80, x, y)
    net = dense(4, 64, 64, 1, act=nn.ELU)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 150, 0.4)

    def loss_of(step):
        charge, tremor = draw()
        said = net(charge)
        return F.huber_loss(said, tremor), {"mae": float((said - tremor).abs().mean())}

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)


class Rhymes(nn.Module):
    """A small causal transformer."""

    def __init__(self, words, length, width=32):
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, words)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x):
        n = x.shape[1]
        return self.head(self.blocks(self.word(x) + self.place[:n], mask=self.mask[:n, :n], is_causal=True))


@healthy(0.2)
def counting_rhymes_that_children_say_in_turn(folder):
    seeded(15014)
    words, length = 12, 20
    follows = (3 * torch.randn(words, words, words)).softmax(2)

    def rhymes(rows):
        said = [torch.randint(words, (rows,)), torch.randint(words, (rows,))]
        for _ in range(length - 1):
            said.append(torch.multinomial(follows[said[-2], said[-1]], 1)[:, 0])
        return torch.stack(said, 1)

    text, other = rhymes(3000), rhymes(400)
    draw = rounds(48, text)
    net = Rhymes(words, length)
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3, betas=(0.9, 0.98), weight_decay=0.01)
    steps = 240
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / 24, 0.5 + 0.5 * math.cos(math.pi * min(s / steps, 1)))
    )

    def asked(rhyme):
        return F.cross_entropy(net(rhyme[:, :-1]).flatten(0, 1), rhyme[:, 1:].flatten())

    validate = now_and_then(net, 40, lambda: {"val_loss": asked(other)})

    def one(step):
        found = validate(step)
        (rhyme,) = draw()
        loss = asked(rhyme)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return {"loss": loss, "perplexity": float(loss.detach().exp()), **found}

    return tend(folder, net, optimizer, one, steps, held_out(net, lambda: asked(other)))


@healthy(0.5)
def price_of_a_chest_of_tea_at_next_weeks_auction(folder):
    seeded(15015)

    def weeks(rows, length=25):
        week = torch.arange(length)
        season = 6.2832 * torch.rand(rows, 1)
        pace, height = 0.3 + 0.3 * torch.rand(rows, 1), 0.5 + torch.rand(rows, 1)
        price = height * (pace * week + season).sin() + 0.1 * torch.randn(rows, length)
        return price[:, :-1, None], price[:, -1:]

    (x, y), (tx, ty) = weeks(3000), weeks(600)
    draw = rounds(64, x, y)

    class Clerk(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = nn.GRU(1, 32, batch_first=True)
            self.head = nn.Linear(32, 1)

        def forward(self, prices):
            return self.head(self.memory(prices)[0][:, -1])

    net = Clerk()
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    validate = now_and_then(net, 30, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        prices, then = draw()
        return F.mse_loss(net(prices), then), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 240, score=score, before_step=clipped(net, 1.0))


@healthy(0.5)
def faded_labels_on_hides_made_legible(folder):
    seeded(15016)
    bunch = load_digits()
    clean = torch.tensor(bunch.data).float()[torch.randperm(len(bunch.data))] / 16
    draw = rounds(64, clean[:1500])
    seen = clean[1500:]
    faded = seen * (torch.rand_like(seen) > 0.3) + 0.1 * torch.randn_like(seen)
    net = nn.Sequential(dense(64, 128, 32, 128, 64, act=nn.LeakyReLU), nn.Sigmoid())
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)

    def loss_of(step):
        (label,) = draw()
        worn = label * (torch.rand_like(label) > 0.3) + 0.1 * torch.randn_like(label)
        return F.mse_loss(net(worn), label)

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: F.mse_loss(net(faded), seen)))


class Shelf(nn.Module):
    """How much a child likes a toy: a product of two embeddings and two biases."""

    def __init__(self, children, toys, width=6):
        super().__init__()
        self.child, self.toy = nn.Embedding(children, width), nn.Embedding(toys, width)
        self.child_bias, self.toy_bias = nn.Embedding(children, 1), nn.Embedding(toys, 1)
        for table in (self.child, self.toy):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.child_bias, self.toy_bias):
            nn.init.zeros_(table.weight)

    def forward(self, child, toy):
        product = (self.child(child) * self.toy(toy)).sum(1)
        return product + self.child_bias(child)[:, 0] + self.toy_bias(toy)[:, 0]


@healthy(0.4)
def toys_that_each_child_reaches_for_again(folder):
    seeded(15017)
    children, toys = 120, 80
    taste, trait = torch.randn(children, 3), torch.randn(toys, 3)
    liking = taste @ trait.T / 3**0.5 + 0.5 * torch.randn(toys)
    child, toy = torch.randint(children, (12000,)), torch.randint(toys, (12000,))
    pairs = child * toys + toy
    pairs = torch.unique(pairs)
    pairs = pairs[torch.randperm(len(pairs))]
    child, toy = pairs // toys, pairs % toys
    stars = liking[child, toy] + 0.2 * torch.randn(len(pairs))
    known = len(pairs) * 4 // 5
    draw = rounds(256, child[:known], toy[:known], stars[:known])
    net = Shelf(children, toys)
    optimizer = torch.optim.Adam(net.parameters(), 0.02)

    def off():
        return F.mse_loss(net(child[known:], toy[known:]), stars[known:])

    validate = now_and_then(net, 44, lambda: {"val_rmse": off().sqrt()})

    def loss_of(step):
        who, what, how = draw()
        return F.mse_loss(net(who, what), how), validate(step)

    return fit(folder, net, optimizer, loss_of, 440, score=held_out(net, off))


class Lookout(nn.Module):
    """Two towers, one for each view of a buoy, and the scale of their cosines."""

    def __init__(self):
        super().__init__()
        self.radar, self.lamp = dense(20, 64, 12), dense(14, 64, 12)
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, radar, lamp):
        a, b = F.normalize(self.radar(radar), dim=1), F.normalize(self.lamp(lamp), dim=1)
        return self.log_scale.exp() * a @ b.T


@healthy(0.4)
def radar_echoes_matched_with_lamps_of_buoys(folder):
    seeded(15018)
    by_radar, by_lamp = torch.randn(5, 20) / 5**0.5, torch.randn(5, 14) / 5**0.5

    def buoys(rows):
        place = torch.randn(rows, 5)
        radar = (place @ by_radar).tanh() + 0.05 * torch.randn(rows, 20)
        return radar, (place @ by_lamp).sin() + 0.05 * torch.randn(rows, 14)

    (radar, lamp), (tr, tl) = buoys(6000), buoys(64)
    draw = rounds(64, radar, lamp)
    net = Lookout()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def both(logits):
        own = torch.arange(len(logits))
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2

    def loss_of(step):
        logits = net(*draw())
        right = (logits.argmax(1) == torch.arange(len(logits))).float().mean()
        return both(logits), {"top1": float(right)}

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: both(net(tr, tl))))


class Outline(nn.Module):
    """A small U-net."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.deep = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Upsample(scale_factor=2),
        )  # fmt: skip
        self.out = nn.Sequential(nn.Conv2d(36, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))

    def forward(self, x):
        fine = self.down(x)
        return self.out(torch.cat([fine, self.deep(fine)], 1))


@healthy(0.4)
def moss_outlined_on_old_quarry_walls(folder):
    seeded(15019)
    row = torch.arange(16.0)

    def walls(rows):
        centre, radius = 3 + 10 * torch.rand(rows, 2), 3 + 2 * torch.rand(rows, 1, 1)
        down, along = (row - centre[:, :1])[:, :, None], (row - centre[:, 1:])[:, None, :]
        moss = ((down**2 + along**2).sqrt() < radius).float()[:, None]
        return moss - 0.2 + 0.6 * torch.randn(rows, 1, 16, 16), moss

    (x, y), (tx, ty) = walls(500), walls(150)
    draw = rounds(16, x, y)
    net = Outline()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)

    def terms(said, moss):
        soft = said.sigmoid()
        overlap = (2 * (soft * moss).sum((1, 2, 3)) + 1) / (soft.sum((1, 2, 3)) + moss.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(said, moss), 1 - overlap.mean()

    def loss_of(step):
        wall, moss = draw()
        bce, dice = terms(net(wall), moss)
        return bce + dice, {"bce": float(bce), "dice": float(dice)}

    return fit(folder, net, optimizer, loss_of, 180, score=held_out(net, lambda: sum(terms(net(tx), ty))))


class Quays(nn.Module):
    """Two layers of graph convolution."""

    def __init__(self, near, features, kinds):
        super().__init__()
        self.register_buffer("near", near)
        self.first, self.second = nn.Linear(features, 32), nn.Linear(32, kinds)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        return self.second(self.near @ self.drop(F.relu(self.first(self.near @ x))))


@healthy(0.4)
def companies_that_quays_belong_to_by_who_trades_with_whom(folder):
    seeded(15020)
    count, kinds = 300, 4
    kind = torch.randint(kinds, (count,))
    chance = torch.where(kind[:, None] == kind, 0.08, 0.01)
    edge = (torch.rand(count, count) < chance).float().triu(1)
    edge = edge + edge.T + torch.eye(count)
    scale = edge.sum(1).rsqrt()
    near = scale[:, None] * edge * scale
    x = torch.randn(kinds, 10)[kind] * 0.5 + torch.randn(count, 10)
    order = torch.randperm(count)
    known, rest = order[:120], order[120:]
    net = Quays(near, 10, kinds)
    optimizer = torch.optim.Adam(net.parameters(), 0.01, weight_decay=5e-4)

    def measure():
        said = net(x)[rest]
        return {"val_loss": F.cross_entropy(said, kind[rest]), "val_acc": (said.argmax(1) == kind[rest]).float().mean()}

    validate = now_and_then(net, 10, measure)

    def loss_of(step):
        return F.cross_entropy(net(x)[known], kind[known]), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(x)[rest], kind[rest]))
    return fit(folder, net, optimizer, loss_of, 120, score=score)


@healthy(0.4)
def games_offered_on_a_rainy_afternoon(folder):
    seeded(15021)
    joy = torch.randn(8, 5) / 8**0.5
    net = nn.ModuleDict({"policy": dense(8, 32, 5, act=nn.Tanh), "value": dense(8, 32, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    moods = torch.randn(1000, 8)

    def one(step):
        mood = torch.randn(128, 8)
        choice = torch.distributions.Categorical(logits=net["policy"](mood))
        game = choice.sample()
        reward = (mood @ joy).gather(1, game[:, None])[:, 0] + 0.3 * torch.randn(128)
        value = net["value"](mood)[:, 0]
        policy_loss = -(choice.log_prob(game) * (reward - value.detach())).mean()
        value_loss, entropy = F.mse_loss(value, reward), choice.entropy().mean()
        loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {
            "loss": loss, "reward": float(reward.mean()), "value_loss": float(value_loss), "entropy": float(entropy),
        }  # fmt: skip

    def regret():
        best = moods @ joy
        return (best.max(1).values - (net["policy"](moods).softmax(1) * best).sum(1)).mean()

    return tend(folder, net, optimizer, one, 400, held_out(net, regret))
