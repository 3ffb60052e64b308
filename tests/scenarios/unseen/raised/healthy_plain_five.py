"""Likeness, taste and ties: views of digits, walkers, ratings, baskets, a web of papers."""

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds


@healthy()
def glyphs_that_two_views_share(folder):
    seeded(2868)
    x = digits()[0][:, None]
    x = x[torch.randperm(len(x))]
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    net = nn.Sequential(body, nn.Linear(512, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))

    def view(pictures):
        angle, size = 0.3 * torch.randn(len(pictures)), 1 + 0.15 * torch.randn(len(pictures))
        shift = 0.15 * torch.randn(len(pictures), 2, 1)
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).view(-1, 2, 2)
        grid = F.affine_grid(torch.cat([turn * size[:, None, None], shift], 2), pictures.shape, align_corners=False)
        return F.grid_sample(pictures, grid, align_corners=False) + 0.05 * torch.randn_like(pictures)

    def likeness(pictures, temperature=0.2):
        out = F.normalize(net(torch.cat([view(pictures), view(pictures)])), dim=1)
        alike = (out @ out.T / temperature).masked_fill(torch.eye(len(out), dtype=torch.bool), -1e9)
        return F.cross_entropy(alike, torch.arange(len(out)).roll(len(pictures)))

    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=30)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 270)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [30])
    draw = rounds(96, x[:1500])
    score = held_out(net, lambda: likeness(x[1500:1596]))
    return fit(folder, net, optimizer, lambda step: likeness(draw()[0]), 300, score=score, schedule=schedule)


@healthy()
def walkers_known_by_their_stride(folder):
    seeded(2869)
    people, long = 60, 32
    pace, lean = 0.3 + 0.4 * torch.rand(people), torch.randn(people, 3)
    time = torch.arange(float(long))

    def strides(who):
        phase = 6.2832 * torch.rand(len(who), 1)
        beat = pace[who, None] * time + phase
        waves = torch.stack([beat.sin(), (2 * beat).sin(), (3 * beat).cos()], 2) * lean[who, None]
        return (waves + 0.3 * torch.randn_like(waves)).transpose(1, 2)

    net = nn.Sequential(
        nn.Conv1d(3, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Conv1d(32, 32, 5, stride=2, padding=2), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Conv1d(32, 48, 5, stride=2, padding=2), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(48, 16),
    )  # fmt: skip

    def triplets(first, last):
        who = torch.randint(first, last, (64,))
        other = first + (who - first + torch.randint(1, last - first, (64,))) % (last - first)
        near, same, far = (F.normalize(net(strides(one)), dim=1) for one in (who, who, other))
        return F.triplet_margin_loss(near, same, far, margin=0.4)

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    score = held_out(net, lambda: sum(triplets(45, people) for _ in range(8)) / 8)
    return fit(folder, net, optimizer, lambda step: triplets(0, 45), 450, score=score)


class Taste(nn.Module):
    """Factors and a leaning of each reader and each book."""

    def __init__(self, readers, books, middle, factors=8):
        super().__init__()
        self.reader, self.book = nn.Embedding(readers, factors), nn.Embedding(books, factors)
        self.of_reader, self.of_book = nn.Embedding(readers, 1), nn.Embedding(books, 1)
        self.middle = nn.Parameter(torch.tensor(middle))
        for table in (self.reader, self.book):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.of_reader, self.of_book):
            nn.init.zeros_(table.weight)

    def forward(self, who, what):
        match = (self.reader(who) * self.book(what)).sum(1)
        return self.middle + match + self.of_reader(who)[:, 0] + self.of_book(what)[:, 0]


@healthy()
def books_lent_and_how_they_pleased(folder):
    seeded(2870)
    readers, books, rows = 300, 200, 15000
    mine, its = torch.randn(readers, 3), torch.randn(books, 3)
    who = torch.randint(readers, (rows,))
    what = (books * torch.rand(rows).square()).long()
    liking = (
        3.4 + 0.4 * torch.randn(readers)[who] + 0.5 * torch.randn(books)[what] + 0.5 * (mine[who] * its[what]).sum(1)
    )
    stars = (liking + 0.3 * torch.randn(rows)).round().clamp(1, 5)
    train, test = slice(0, 13000), slice(13000, rows)
    net = Taste(readers, books, float(stars[train].mean()))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 250, 0.3)
    draw = rounds(256, who[train], what[train], stars[train])

    def loss_of(step):
        reader, book, given = draw()
        return F.mse_loss(net(reader, book), given)

    score = held_out(net, lambda: F.mse_loss(net(who[test], what[test]), stars[test]))
    return fit(folder, net, optimizer, loss_of, 700, score=score, schedule=schedule)


class Towers(nn.Module):
    def __init__(self, shoppers, goods, width=16):
        super().__init__()
        self.shopper = nn.Embedding(shoppers, width, sparse=True)
        self.good = nn.Embedding(goods, width, sparse=True)
        self.pull = nn.Embedding(goods, 1, sparse=True)
        for table in (self.shopper, self.good):
            nn.init.normal_(table.weight, std=0.1)
        nn.init.zeros_(self.pull.weight)

    def forward(self, who, what):
        return (self.shopper(who) * self.good(what)).sum(1) + self.pull(what)[:, 0]


@healthy()
def goods_that_go_into_a_basket(folder):
    seeded(2871)
    shoppers, goods = 400, 250
    wish = torch.randn(shoppers, 4) @ torch.randn(4, goods) + 0.8 * torch.randn(goods)
    bought = torch.multinomial(wish.softmax(1), 30)
    owns = torch.zeros(shoppers, goods).scatter_(1, bought, 1.0)
    who = torch.arange(shoppers)[:, None].expand(-1, 24).flatten()
    what = bought[:, torch.randperm(30)]
    kept, what = what[:, 24:], what[:, :24].flatten()
    net = Towers(shoppers, goods)
    optimizer = torch.optim.SparseAdam(net.parameters(), lr=1e-2)
    draw = rounds(256, who, what)

    def unlike(shopper):
        return torch.multinomial(1 - owns[shopper], 1)[:, 0]

    def loss_of(step):
        shopper, good = draw()
        lead = net(shopper, good) - net(shopper, unlike(shopper))
        return F.softplus(-lead).mean(), {"ahead": float((lead > 0).float().mean())}

    def wrongly_ordered():
        shopper = torch.arange(shoppers).repeat_interleave(6)
        lead = net(shopper, kept.flatten()) - net(shopper, unlike(shopper))
        return (lead <= 0).float().mean()

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, wrongly_ordered))


class Neighbours(nn.Module):
    """Two layers over a graph, as Kipf and Welling have them."""

    def __init__(self, columns, classes, graph, width=32):
        super().__init__()
        self.first, self.second = nn.Linear(columns, width), nn.Linear(width, classes)
        self.register_buffer("graph", graph, persistent=False)

    def forward(self, x):
        h = F.dropout(x, 0.5, self.training)
        h = (self.graph @ self.first(h)).relu()
        return self.graph @ self.second(F.dropout(h, 0.5, self.training))


@healthy()
def papers_by_what_they_quote(folder):
    seeded(2872)
    papers, fields, words = 600, 5, 120
    field = torch.randint(fields, (papers,))
    odds = torch.where(field[:, None] == field, 0.03, 0.003)
    ties = torch.bernoulli(odds).triu(1)
    ties = ties + ties.T + torch.eye(papers)
    scale = ties.sum(1).rsqrt()
    topic = torch.where(torch.rand(fields, words) < 0.1, 0.12, 0.04)
    x = torch.bernoulli(topic[field])
    x = x / x.sum(1, keepdim=True).clamp(min=1)
    known = torch.zeros(papers, dtype=torch.bool)
    for one in range(fields):
        known[torch.nonzero(field == one)[:20, 0]] = True
    net = Neighbours(words, fields, scale[:, None] * ties * scale)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=5e-4)

    def loss_of(step):
        out = net(x)[known]
        return F.cross_entropy(out, field[known]), {"accuracy": float((out.argmax(1) == field[known]).float().mean())}

    score = held_out(net, lambda: (net(x)[~known].argmax(1) != field[~known]).float().mean())
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Ties(nn.Module):
    """Atoms tell their neighbours; all atoms together make an answer."""

    def __init__(self, kinds, width=32, turns=3):
        super().__init__()
        self.begin = nn.Embedding(kinds, width)
        self.told = nn.ModuleList(nn.Linear(width, width) for _ in range(turns))
        self.kept = nn.ModuleList(nn.GRUCell(width, width) for _ in range(turns))
        self.head = dense(width, width, 1, act=nn.SiLU)

    def forward(self, kind, ties, there):
        h = self.begin(kind)
        for told, kept in zip(self.told, self.kept, strict=True):
            heard = ties @ told(h).relu()
            h = kept(heard.flatten(0, 1), h.flatten(0, 1)).view_as(h)
        return self.head((h * there[:, :, None]).sum(1) / 6)[:, 0]


@healthy()
def viscosity_of_small_oils(folder):
    seeded(2873)
    most, kinds = 10, 4

    def oils(rows):
        count = torch.randint(4, most + 1, (rows,))
        there = (torch.arange(most) < count[:, None]).float()
        ties = torch.zeros(rows, most, most)
        for atom in range(1, most):
            parent = (torch.rand(rows) * atom).long()
            ties[torch.arange(rows), atom, parent] = ties[torch.arange(rows), parent, atom] = 1.0
        ties = ties * there[:, :, None] * there[:, None]
        kind = torch.randint(kinds, (rows, most))
        heavy, polar = torch.tensor([1.0, 1.4, 0.6, 1.9])[kind] * there, (kind == 3).float() * there
        branched = ((ties.sum(2) > 2).float() * there).sum(1)
        pairs = (polar[:, :, None] * ties * (kind == 1)[:, None]).sum((1, 2))
        y = 0.3 * heavy.sum(1) - 0.4 * branched + 0.8 * pairs + 0.05 * torch.randn(rows)
        return kind, ties, there, y

    *graphs, y = oils(2500)
    *fresh, fresh_y = oils(500)
    middle, spread = y.mean(), y.std()
    y, fresh_y = (y - middle) / spread, (fresh_y - middle) / spread
    net = Ties(kinds)
    optimizer = torch.optim.RAdam(net.parameters(), lr=3e-3)
    draw = rounds(64, *graphs, y)

    def loss_of(step):
        *rows, target = draw()
        out = net(*rows)
        return F.huber_loss(out, target), {"mae": float((out.detach() - target).abs().mean())}

    score = held_out(net, lambda: F.l1_loss(net(*fresh), fresh_y))
    return fit(folder, net, optimizer, loss_of, 400, score=score)
