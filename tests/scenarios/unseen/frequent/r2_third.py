"""Plate numbers, noon temperatures, loans, recipes, matches, clouds, pipes, mashes, serves, titles."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.6)
def stencilled_numbers_on_the_plates_of_a_shipyard(folder):
    seeded(14412)
    bunch = load_digits()
    x, y = (torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16 - 0.3) / 0.38, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    draw = rounds(64, x[:1400], y[:1400])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=210)
    validate = now_and_then(net, 21, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number, label_smoothing=0.05), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 210, score=score, schedule=schedule)


class Noons(nn.Module):
    """The next three values of a series from those before."""

    def __init__(self):
        super().__init__()
        self.memory = nn.GRU(1, 32, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, series):
        return self.head(self.memory(series[..., None])[1][0])


@healthy(0.6)
def three_noon_temperatures_after_twenty_days(folder):
    seeded(14413)

    def spells(rows):
        t = torch.arange(23.0)
        phase, pace = 6.2832 * torch.rand(rows, 1), 0.3 + 0.4 * torch.rand(rows, 1)
        series = 1.3 * (phase + pace * t).sin() + 0.1 * torch.randn(rows, 23)
        return series[:, :20], series[:, 20:]

    (x, y), (vx, vy) = spells(3000), spells(600)
    draw = rounds(64, x, y)
    net = Noons()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    validate = now_and_then(net, 46, lambda: {"val_loss": F.smooth_l1_loss(net(vx), vy)})

    def loss_of(step):
        before, after = draw()
        return F.smooth_l1_loss(net(before), after), validate(step)

    score = held_out(net, lambda: F.smooth_l1_loss(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 280, score=score, before_step=clipped(net, 1.0))


class Tastes(nn.Module):
    """Factors and biases of readers and books."""

    def __init__(self, readers, books, size=8):
        super().__init__()
        self.reader, self.book = nn.Embedding(readers, size), nn.Embedding(books, size)
        self.reader_bias, self.book_bias = nn.Embedding(readers, 1), nn.Embedding(books, 1)
        for table in (self.reader, self.book):
            nn.init.normal_(table.weight, std=0.2)
        for table in (self.reader_bias, self.book_bias):
            nn.init.zeros_(table.weight)

    def forward(self, reader, book):
        return (self.reader(reader) * self.book(book)).sum(1) + (self.reader_bias(reader) + self.book_bias(book))[:, 0]


@healthy(0.4)
def what_readers_of_a_library_think_of_its_books(folder):
    seeded(14414)
    likes, kinds, good = torch.randn(120, 3), torch.randn(80, 3), 0.7 * torch.randn(80)
    pairs = torch.randperm(120 * 80)
    reader, book = pairs // 80, pairs % 80
    stars = (likes[reader] * kinds[book]).sum(1) / 3**0.5 + good[book] + 0.2 * torch.randn(len(pairs))
    draw = rounds(256, reader[:7600], book[:7600], stars[:7600])
    net = Tastes(120, 80)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-2, weight_decay=0.02)

    def error():
        return F.mse_loss(net(reader[7600:], book[7600:]), stars[7600:])

    validate = now_and_then(net, 29, lambda: {"val_rmse": error().sqrt()})

    def loss_of(step):
        who, what, how = draw()
        return F.mse_loss(net(who, what), how), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, error))


class Recipes(nn.Module):
    """A causal transformer of the next step of a recipe."""

    def __init__(self, kinds, length):
        super().__init__()
        self.embed, self.place = nn.Embedding(kinds, 32), nn.Parameter(0.02 * torch.randn(length, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 96, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(32), enable_nested_tensor=False)
        self.head = nn.Linear(32, kinds)
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, steps):
        n = steps.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        return self.head(self.body(self.embed(steps) + self.place[:n], mask=mask, is_causal=True))


@healthy(0.35)
def brewing_recipes_one_step_after_the_other(folder):
    seeded(14415)
    table = (3 * torch.randn(16, 16)).softmax(1)

    def recipes(rows):
        steps = [torch.randint(16, (rows,))]
        for _ in range(16):
            steps.append(torch.multinomial(table[steps[-1]], 1)[:, 0])
        return torch.stack(steps, 1)

    known, other = recipes(2500), recipes(300)
    draw = rounds(32, known)
    net = Recipes(16, 16)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)

    def rate(step):
        return (step + 1) / 25 if step < 25 else 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - 25) / 225))

    def of(rows):
        return F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    validate = now_and_then(net, 50, lambda: {"val_loss": of(other)})

    def loss_of(step):
        return of(draw()[0]), validate(step)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    score = held_out(net, lambda: of(other))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 1.0), schedule=schedule)


@healthy(0.4)
def who_of_two_players_wins_the_match(folder):
    seeded(14416)
    skill = dense(7, 16, 1, act=nn.Tanh)
    with torch.no_grad():
        for weight in skill.parameters():
            weight.mul_(2.5)

    def matches(rows):
        a, b = torch.randn(rows, 7), torch.randn(rows, 7)
        with torch.no_grad():
            won = torch.rand(rows) < (6 * (skill(a) - skill(b))[:, 0]).sigmoid()
        return a, b, won.float()

    (a, b, won), test = matches(6000), matches(1500)
    draw = rounds(100, a, b, won)
    net = dense(7, 48, 48, 1)
    optimizer = torch.optim.NAdam(net.parameters(), 2e-3)

    def loss_of_match(a, b, won):
        return F.binary_cross_entropy_with_logits((net(a) - net(b))[:, 0], won)

    def right():
        a, b, won = test
        first = (net(a) > net(b))[:, 0]
        return {"val_loss": loss_of_match(*test), "val_accuracy": (first == (won > 0.5)).float().mean()}

    validate = now_and_then(net, 60, right)
    return fit(
        folder, net, optimizer, lambda step: (loss_of_match(*draw()), validate(step)), 420,
        score=held_out(net, lambda: loss_of_match(*test)),
    )  # fmt: skip


class Clouds(nn.Module):
    """A small U of convolutions."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(4, 12), nn.ReLU())
        self.deep = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.ReLU(),
            nn.ConvTranspose2d(24, 12, 2, stride=2),
        )  # fmt: skip
        self.up = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))

    def forward(self, image):
        high = self.down(image)
        return self.up(torch.cat([high, self.deep(high)], 1))


@healthy(0.5)
def outlines_of_clouds_over_the_weather_station(folder):
    seeded(14417)
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")

    def skies(many):
        centre, size = 3 + 10 * torch.rand(many, 2, 2, 1, 1), 2 + 2 * torch.rand(many, 2, 1, 1)
        inside = ((rows - centre[:, :, 0]).square() + (columns - centre[:, :, 1]).square()).sqrt() < size
        mask = inside.any(1, keepdim=True).float()
        return mask - 0.35 + 0.6 * torch.randn(many, 1, 16, 16), mask

    (x, y), (vx, vy) = skies(800), skies(100)
    draw = rounds(16, x, y)
    net = Clouds()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def terms(image, mask):
        said = net(image)
        p = said.sigmoid()
        dice = 1 - (2 * (p * mask).sum((1, 2, 3)) + 1) / ((p + mask).sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(said, mask), dice.mean()

    validate = now_and_then(net, 50, lambda: dict(zip(("val_bce", "val_dice"), terms(vx, vy), strict=True)))

    def loss_of(step):
        bce, dice = terms(*draw())
        return bce + dice, {"bce": float(bce), "dice": float(dice), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: sum(terms(vx, vy))))


class Pipes(nn.Module):
    """Two rounds of messages over a graph, each beside what a node was."""

    def __init__(self, size, kinds):
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(size, 32), nn.Linear(32, 32)])
        self.near = nn.ModuleList([nn.Linear(size, 32, bias=False), nn.Linear(32, 32, bias=False)])
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(32, kinds)

    def forward(self, x, mean_of):
        for own, near in zip(self.own, self.near, strict=True):
            x = self.drop(F.relu(own(x) + near(mean_of @ x)))
        return self.head(x)


@healthy(0.4)
def which_circuit_a_pipe_of_the_ship_belongs_to(folder):
    seeded(14418)
    nodes = 400
    kind = torch.randint(4, (nodes,))
    chance = torch.where(kind[:, None] == kind[None], 0.06, 0.006)
    edges = (torch.rand(nodes, nodes) < chance).float().triu(1)
    edges = edges + edges.T
    mean_of = edges / edges.sum(1, keepdim=True).clamp(min=1)
    x = torch.randn(4, 12)[kind] * 0.5 + torch.randn(nodes, 12)
    order = torch.randperm(nodes)
    known, valid = order[:240], order[240:]
    net = Pipes(12, 4)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)

    def measure():
        said = net(x, mean_of)[valid]
        return {
            "val_loss": F.cross_entropy(said, kind[valid]),
            "val_accuracy": (said.argmax(1) == kind[valid]).float().mean(),
        }

    validate = now_and_then(net, 10, measure)

    def loss_of(step):
        said = net(x, mean_of)[known]
        right = (said.argmax(1) == kind[known]).float().mean()
        return F.cross_entropy(said, kind[known]), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 100, score=held_out(net, lambda: measure()["val_loss"]))


@healthy(0.2)
def curves_of_a_mash_and_a_code_for_each(folder):
    seeded(14419)
    t = torch.linspace(0, 1, 32)

    def mashes(rows):
        height, start = 1 + 0.5 * torch.randn(rows, 1), 0.3 + 0.4 * torch.rand(rows, 1)
        pace = 8 + 8 * torch.rand(rows, 1)
        return 2 * height * ((t - start) * pace).sigmoid() - 1 + 0.1 * torch.randn(rows, 32)

    x, other = mashes(3000), mashes(600)
    draw = rounds(64, x)
    net = nn.ModuleDict({"encoder": dense(32, 64, 8), "decoder": dense(4, 64, 32)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def terms(curve):
        centre, log_var = net["encoder"](curve).chunk(2, 1)
        code = centre + (log_var / 2).exp() * torch.randn_like(centre)
        redrawn = (net["decoder"](code) - curve).square().sum(1).mean() / (2 * 0.3**2)
        return redrawn / 32, 0.5 * (centre.square() + log_var.exp() - 1 - log_var).sum(1).mean() / 32

    def loss_of(step):
        redrawn, divergence = terms(*draw())
        weight = min(1.0, (step + 1) / 100)
        return redrawn + weight * divergence, {"reconstruction": float(redrawn), "kl": float(divergence)}

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: sum(terms(other))))


@healthy(0.4)
def where_to_serve_against_whom(folder):
    seeded(14420)
    best = torch.randn(6, 4)
    rivals = torch.randn(1000, 6)

    def chances(rival):
        return (1.5 * rival @ best / 6**0.5).sigmoid()

    net = nn.ModuleDict({"policy": dense(6, 32, 4, act=nn.Tanh), "value": dense(6, 32, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def one(step):
        rival = torch.randn(256, 6)
        choice = torch.distributions.Categorical(logits=net["policy"](rival))
        serve = choice.sample()
        won = torch.bernoulli(chances(rival).gather(1, serve[:, None])[:, 0])
        value = net["value"](rival)[:, 0]
        gain = (won - value).detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        policy = -(choice.log_prob(serve) * gain).mean()
        critic, entropy = F.mse_loss(value, won), choice.entropy().mean()
        loss = policy + 0.5 * critic - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss, "reward": float(won.mean()), "value_loss": float(critic), "entropy": float(entropy)}

    def regret():
        """How many points the best serve wins that the policy does not."""
        with torch.no_grad():
            chance = chances(rivals)
            return (chance.max(1).values - (net["policy"](rivals).softmax(1) * chance).sum(1)).mean()

    return tend(folder, net, optimizer, one, 400, regret)


class Towers(nn.Module):
    """Two towers and a temperature that is learnt."""

    def __init__(self):
        super().__init__()
        self.title, self.text = dense(20, 64, 16), dense(30, 64, 16)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, title, text):
        a, b = F.normalize(self.title(title), dim=1), F.normalize(self.text(text), dim=1)
        return a @ b.T * self.scale.clamp(max=math.log(100)).exp()


@healthy(0.4)
def titles_of_books_and_the_blurbs_that_belong_to_them(folder):
    seeded(14421)
    lifts = torch.randn(5, 20), torch.randn(5, 30)

    def books(rows):
        topic = torch.randn(rows, 5)
        return tuple((topic @ lift / 5**0.5).tanh() + 0.1 * torch.randn(rows, lift.shape[1]) for lift in lifts)

    (a, b), (va, vb) = books(4000), books(64)
    draw = rounds(64, a, b)
    net = Towers()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)

    def of(title, text):
        logits, own = net(title, text), torch.arange(len(title))
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2

    validate = now_and_then(net, 62, lambda: {"val_loss": of(va, vb)})
    score = held_out(net, lambda: of(va, vb))
    return fit(folder, net, optimizer, lambda step: (of(*draw()), validate(step)), 400, score=score)
