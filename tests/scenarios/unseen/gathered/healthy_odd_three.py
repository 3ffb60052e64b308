"""What is alike, what is near and what comes first: representations, ranks and margins."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, healthy, seeded
from unseen.tasks import held_out, tend


def glances(kinds, own, other, size):
    """`look(kind)`: one view of each row, in which much depends on the light and little on the kind."""
    marks, lift = 1.5 * torch.randn(kinds, own), torch.randn(own + other, size) / (own + other) ** 0.5

    def look(kind):
        light = 1.5 * torch.randn(len(kind), other)
        return (torch.cat([marks[kind], light], 1) @ lift).tanh() + 0.05 * torch.randn(len(kind), size)

    return look


def mistaken(net, look, kinds):
    """`score()`: how many of 600 rows lie nearest to the mean of a kind that is not theirs."""
    named, asked = torch.arange(kinds).repeat(40), torch.randint(kinds, (600,))
    named_x, asked_x = look(named), look(asked)

    def share():
        a, b = (F.normalize(net(x), dim=1) for x in (named_x, asked_x))
        middles = F.normalize(torch.stack([a[named == kind].mean(0) for kind in range(kinds)]), dim=1)
        return ((b @ middles.T).argmax(1) != asked).float().mean()

    return held_out(net, share)


@healthy()
def ferns_seen_in_two_lights(folder):
    seeded(2984)
    look = glances(10, 5, 9, 32)
    net = nn.ModuleDict(
        {
            "body": nn.Sequential(
                nn.Linear(32, 96, bias=False), nn.BatchNorm1d(96), nn.ReLU(),
                nn.Linear(96, 96, bias=False), nn.BatchNorm1d(96), nn.ReLU(),
                nn.Linear(96, 48, bias=False), nn.BatchNorm1d(48, affine=False),
            ),
            "guess": nn.Sequential(
                nn.Linear(48, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 48)
            ),
        }
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)

    def one(step):
        kind = torch.randint(10, (96,))
        a, b = net["body"](look(kind)), net["body"](look(kind))
        one_way = F.cosine_similarity(net["guess"](a), b.detach(), dim=1).mean()
        other_way = F.cosine_similarity(net["guess"](b), a.detach(), dim=1).mean()
        loss = -(one_way + other_way) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "spread": F.normalize(a.detach(), dim=1).std(0).mean()}

    return tend(folder, net, optimizer, one, 300, mistaken(net["body"], look, 10))


@torch.no_grad()
def shared_out(scores, heat=0.05, times=3):
    """Every prototype gets the same share of the batch (Sinkhorn and Knopp)."""
    q = ((scores - scores.max()) / heat).exp().T
    for _ in range(times):
        q = q / q.sum(1, keepdim=True) / q.shape[0]
        q = q / q.sum(0, keepdim=True) / q.shape[1]
    return (q * q.shape[1]).T


@healthy()
def mosses_grouped_by_two_glances(folder):
    seeded(2985)
    look = glances(8, 5, 8, 28)
    net = nn.ModuleDict(
        {"body": dense(28, 96, 96, 24, norm=nn.BatchNorm1d), "prototypes": nn.Linear(24, 16, bias=False)}
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-5)

    def one(step):
        with torch.no_grad():
            net["prototypes"].weight.copy_(F.normalize(net["prototypes"].weight, dim=1))
        kind = torch.randint(8, (160,))
        a, b = (net["prototypes"](F.normalize(net["body"](look(kind)), dim=1)) for _ in range(2))
        to_a, to_b = shared_out(a), shared_out(b)
        loss = (F.cross_entropy(a / 0.1, to_b) + F.cross_entropy(b / 0.1, to_a)) / 2
        optimizer.zero_grad()
        loss.backward()
        if step < 30:
            net["prototypes"].weight.grad = None
        optimizer.step()
        return {"loss": loss}

    return tend(folder, net, optimizer, one, 400, mistaken(net["body"], look, 8))


@healthy()
def words_of_a_seed_catalogue(folder):
    seeded(2986)
    beds, words = 12, 360
    bed_of = torch.arange(words) % beds
    often = 1 / (torch.arange(words) // beds + 2.0)
    near = torch.stack([often * (bed_of == bed) for bed in range(beds)]) + 0.03 * often
    rare = often**0.75
    net = nn.ModuleDict({"inner": nn.Embedding(words, 24, sparse=True), "outer": nn.Embedding(words, 24, sparse=True)})
    nn.init.uniform_(net["inner"].weight, -0.5 / 24, 0.5 / 24)
    nn.init.zeros_(net["outer"].weight)
    optimizer = torch.optim.SparseAdam(net.parameters(), lr=0.01)

    def one(step):
        beds_read = torch.randint(beds, (256,))
        pair = torch.multinomial(near[beds_read], 2, replacement=True)
        others = torch.multinomial(rare, 256 * 5, replacement=True).view(256, 5)
        word = net["inner"](pair[:, 0])
        kept = (word * net["outer"](pair[:, 1])).sum(1)
        left = (net["outer"](others) @ word[:, :, None])[..., 0]
        loss = -(F.logsigmoid(kept) + F.logsigmoid(-left).sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    def strangers():
        """Of the five words that are nearest to each of the commoner half, how many stand in other beds."""
        common = F.normalize(net["inner"].weight[: words // 2], dim=1)
        closest = (common @ common.T - 2 * torch.eye(len(common))).topk(5, 1).indices
        return (bed_of[closest] != bed_of[: words // 2, None]).float().mean()

    return tend(folder, net, optimizer, one, 600, held_out(net, strangers))


@healthy()
def finish_of_sled_dog_races(folder):
    seeded(2987)
    way = torch.randn(9, 3) / 3

    def races(n):
        """Teams with nine numbers each, in the order in which they came home; races of few are filled up."""
        teams = torch.randn(n, 10, 9)
        pull, rest, snow = (teams @ way).unbind(2)
        strength = 2 * pull + 1.5 * rest.tanh() * snow - 0.5 * torch.rand(n, 10).log().neg().log()
        there = torch.arange(10) < torch.randint(4, 11, (n, 1))
        order = strength.masked_fill(~there, -torch.inf).argsort(1, descending=True)
        return teams.gather(1, order[..., None].expand(-1, -1, 9)), there

    net = dense(9, 48, 48, 1, act=nn.ELU)
    optimizer = torch.optim.NAdam(net.parameters(), lr=2e-3)
    fresh = races(600)

    def one(step):
        """The likelihood that each was the best of those that were still on the trail (Plackett and Luce)."""
        teams, there = races(32)
        worth = net(teams)[..., 0].masked_fill(~there, -1e9)
        behind = worth.flip(1).logcumsumexp(1).flip(1)
        loss = ((behind - worth) * there).sum() / there.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    def turned_round():
        teams, there = fresh
        worth = net(teams)[..., 0]
        pairs = there[:, :, None] & there[:, None, :] & torch.ones(10, 10).triu(1).bool()
        return (worth[:, :, None] < worth[:, None, :])[pairs].float().mean()

    return tend(folder, net, optimizer, one, 400, held_out(net, turned_round))


class Cosines(nn.Module):
    """A kernel by random cosines that are never trained, and a line for each kind."""

    def __init__(self, inputs, features, kinds, width):
        super().__init__()
        self.register_buffer("waves", torch.randn(inputs, features) / width)
        self.register_buffer("phases", 6.2832 * torch.rand(features))
        self.lines = nn.Linear(features, kinds)
        nn.init.zeros_(self.lines.weight)

    def forward(self, x):
        return self.lines((x @ self.waves + self.phases).cos() * (2 / len(self.phases)) ** 0.5)


@healthy()
def porcelain_by_its_kiln(folder):
    seeded(2988)
    ways = torch.randn(6, 4)

    def shards(n):
        x = torch.randn(n, 6)
        return x, ((x @ ways[:, :2] / 2).sin() + (x @ ways[:, 2:]) / 4).argmax(1) * 2 + (x[:, 0] * x[:, 1] > 0).long()

    net, decay, begin = Cosines(6, 500, 4, 2.5), 1e-4, 2000
    optimizer = torch.optim.SGD(net.parameters(), lr=1 / (decay * begin), weight_decay=decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: begin / (begin + step))
    fresh = shards(1500)

    def one(step):
        x, kiln = shards(16)
        optimizer.zero_grad()
        loss = F.multi_margin_loss(net(x), kiln)
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss}

    return tend(folder, net, optimizer, one, 1500, held_out(net, lambda: F.multi_margin_loss(net(fresh[0]), fresh[1])))
