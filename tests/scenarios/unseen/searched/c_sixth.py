"""People and places: tastes, likenesses, friendships, a picture dreamt up, a way home."""

import copy
from collections import deque

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds

import gradwatch


class Tastes(nn.Module):
    def __init__(self, people, books, width=8):
        super().__init__()
        self.person, self.book = nn.Embedding(people, width), nn.Embedding(books, width)
        self.lenient, self.liked = nn.Embedding(people, 1), nn.Embedding(books, 1)
        for table in (self.person, self.book):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.lenient, self.liked):
            nn.init.zeros_(table.weight)
        self.middle = nn.Parameter(torch.tensor(3.0))

    def forward(self, who, what):
        fit = (self.person(who) * self.book(what)).sum(1)
        return self.middle + fit + self.lenient(who)[:, 0] + self.liked(what)[:, 0]


@healthy()
def stars_given_in_a_book_club(folder):
    seeded(9445)
    people, books, n = 250, 160, 16000
    who, what = torch.randint(people, (n,)), torch.randint(books, (n,))
    taste, kind = torch.randn(people, 3), torch.randn(books, 3)
    leaning = 0.5 * torch.randn(people)[who] + 0.6 * torch.randn(books)[what]
    stars = (3.4 + leaning + 0.45 * (taste[who] * kind[what]).sum(1) + 0.3 * torch.randn(n)).round().clamp(1, 5)
    net = Tastes(people, books)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=1e-5)
    draw = rounds(256, who[:14000], what[:14000], stars[:14000])

    def loss_of(step):
        who, what, stars = draw()
        return F.mse_loss(net(who, what), stars)

    score = held_out(net, lambda: F.mse_loss(net(who[14000:], what[14000:]), stars[14000:]))
    return fit(folder, net, optimizer, loss_of, 540, score=score)


class Towers(nn.Module):
    def __init__(self, shoppers, goods, width=16):
        super().__init__()
        self.shopper = nn.Embedding(shoppers, 32)
        self.good = nn.Embedding(goods, 32)
        self.left, self.right = dense(32, 32, width), dense(32, 32, width)

    def forward(self, who, what):
        a, b = F.normalize(self.left(self.shopper(who)), dim=1), F.normalize(self.right(self.good(what)), dim=1)
        return a @ b.T / 0.2


@healthy(gain=0.2)
def what_else_goes_into_the_trolley(folder):
    seeded(9446)
    shoppers, goods, n = 200, 120, 12000
    table = (2.5 * torch.randn(shoppers, 3) @ torch.randn(3, goods)).softmax(1)
    who = torch.randint(shoppers, (n,))
    what = torch.multinomial(table[who], 1)[:, 0]
    net = Towers(shoppers, goods)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(128, who[:11000], what[:11000])

    def entropy(who, what):
        scores = net(who, what)
        twice = (what[:, None] == what) & ~torch.eye(len(what), dtype=torch.bool)
        return F.cross_entropy(scores.masked_fill(twice, -1e9), torch.arange(len(what)))

    parts = [(who[at : at + 128], what[at : at + 128]) for at in range(11000, 11896, 128)]
    score = held_out(net, lambda: sum(entropy(*part) for part in parts) / len(parts))
    return fit(folder, net, optimizer, lambda step: entropy(*draw()), 600, score=score)


class Dreamer(nn.Module):
    def __init__(self, size=64, width=128, inner=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(size, width), nn.ReLU())
        self.middle, self.log_variance = nn.Linear(width, inner), nn.Linear(width, inner)
        self.decoder = dense(inner, width, size)

    def forward(self, x):
        h = self.encoder(x)
        middle, log_variance = self.middle(h), self.log_variance(h)
        drawn = middle + torch.randn_like(middle) * (0.5 * log_variance).exp()
        return self.decoder(drawn), middle, log_variance


@healthy()
def figures_for_a_bus_blind(folder):
    seeded(9447)
    images = digits()[0].flatten(1)[torch.randperm(1797)]
    net = Dreamer()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(100, images[:1500])

    def terms(x):
        out, middle, log_variance = net(x)
        told = F.binary_cross_entropy_with_logits(out, x, reduction="none").sum(1).mean()
        return told, -0.5 * (1 + log_variance - middle**2 - log_variance.exp()).sum(1).mean()

    def loss_of(step):
        told, kl = terms(draw()[0])
        return told + min(1.0, step / 150) * kl, {"reconstruction": told, "kl": kl}

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: sum(terms(images[1500:]))))


@healthy()
def voices_of_twelve_cousins(folder):
    seeded(9448)
    centres, mix = torch.randn(12, 6), torch.randn(6, 40)

    def voices(who):
        return ((centres[who] + 0.35 * torch.randn(len(who), 6)) @ mix * 0.6).sin() + 0.2 * torch.randn(len(who), 40)

    def triplets(rows):
        who = torch.randint(12, (rows,))
        other = (who + torch.randint(1, 12, (rows,))) % 12
        return voices(who), voices(who), voices(other)

    net = dense(40, 64, 64, 16, norm=nn.BatchNorm1d)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    criterion = nn.TripletMarginLoss(margin=1.0)
    fresh = triplets(600)

    def loss_of(step):
        return criterion(*net(torch.cat(triplets(64))).chunk(3))

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: criterion(*map(net, fresh))))


class Neighbours(nn.Module):
    def __init__(self, links, size, classes, hidden=16):
        super().__init__()
        self.register_buffer("links", links)
        self.one, self.two = nn.Linear(size, hidden), nn.Linear(hidden, classes)

    def forward(self, x):
        h = F.relu(self.links @ self.one(F.dropout(x, 0.5, self.training)))
        return self.links @ self.two(F.dropout(h, 0.5, self.training))


@healthy()
def pupils_and_the_clubs_they_join(folder):
    seeded(9449)
    n, clubs = 400, 5
    club = torch.randint(clubs, (n,))
    chance = torch.where(club[:, None] == club, 0.05, 0.006)
    linked = torch.triu(torch.rand(n, n) < chance, 1).float()
    linked = linked + linked.T + torch.eye(n)
    scale = linked.sum(1).rsqrt()
    words = torch.rand(clubs, 60) * 0.12
    x = (torch.rand(n, 60) < 0.05 + words[club]).float()
    x = x / x.sum(1, keepdim=True).clamp(min=1)
    net = Neighbours(scale[:, None] * linked * scale, 60, clubs)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)
    order = torch.randperm(n)
    known, test = order[:150], order[200:]

    def loss_of(step):
        out = net(x)[known]
        return F.cross_entropy(out, club[known]), {"train_acc": (out.argmax(1) == club[known]).float().mean()}

    return fit(
        folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.cross_entropy(net(x)[test], club[test]))
    )


MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class Rooms:
    """Many copies of a floor of 6 by 6 tiles with a dock at a place of its own; 24 moves at most."""

    def __init__(self, rows, side=6):
        self.rows, self.side = rows, side
        self.at, self.dock = (torch.randint(side, (rows, 2)) for _ in range(2))
        self.age = torch.zeros(rows)

    def seen(self):
        return torch.cat([F.one_hot(self.at, self.side), F.one_hot(self.dock, self.side)], 1).flatten(1).float()

    def step(self, move):
        self.at = (self.at + MOVES[move]).clamp(0, self.side - 1)
        self.age += 1
        home = (self.at == self.dock).all(1)
        after, over = self.seen(), home | (self.age >= 24)
        fresh = torch.randint(self.side, (2, self.rows, 2))
        self.at = torch.where(over[:, None], fresh[0], self.at)
        self.dock = torch.where(over[:, None], fresh[1], self.dock)
        self.age = self.age * ~over
        return after, torch.where(home, 1.0, -0.04), home


@healthy()
def a_vacuum_cleaner_that_docks(folder):
    seeded(9450)
    net = dense(24, 64, 64, 4)
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    rooms, memory = Rooms(16), deque(maxlen=500)

    def act(seen, chance):
        with torch.no_grad():
            best = net(seen).argmax(1)
        return torch.where(torch.rand(len(seen)) < chance, torch.randint(4, (len(seen),)), best)

    def live(chance):
        seen = rooms.seen()
        move = act(seen, chance)
        memory.append((seen, move, *rooms.step(move)))
        return memory[-1][3].mean()

    def moves_home():
        test, total = Rooms(300), torch.zeros(300)
        away = (test.at != test.dock).any(1)
        for _ in range(23):
            total += away
            away = away & ~test.step(act(test.seen(), 0.0))[2]
        return float(total.mean())

    for _ in range(60):
        live(1.0)
    first = moves_home()
    options = TREATMENT[-1].begin(net, optimizer)
    watch = gradwatch.watch(net, optimizer, **{"log": None, "dir": folder, "verbose": False, **options})
    with watch:
        for step in range(1200):
            chance = max(0.05, 1 - step / 600)
            reward = live(chance)
            batch = [memory[int(at)] for at in torch.randint(len(memory), (4,))]
            seen, move, after, gained, home = (torch.cat(part) for part in zip(*batch, strict=True))
            with torch.no_grad():
                worth = gained + 0.95 * target(after).amax(1) * ~home
            value = net(seen).gather(1, move[:, None])[:, 0]
            loss = F.smooth_l1_loss(value, worth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 100 == 99:
                target.load_state_dict(net.state_dict())
            watch.log(loss=loss, reward=reward, epsilon=chance, mean_q=value.mean())
    return Outcome(gradwatch.open_history(watch.dir), first, moves_home())
