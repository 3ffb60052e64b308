"""Spikes, weights of one bit, texts that are filled up, experts and a memory that is asked twice."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


class Spike(torch.autograd.Function):
    """One above the threshold, nought below; its slope is that of a fast sigmoid."""

    @staticmethod
    def forward(ctx, over):
        ctx.save_for_backward(over)
        return (over > 0).float()

    @staticmethod
    def backward(ctx, slope):
        (over,) = ctx.saved_tensors
        return slope / (1 + 5 * over.abs()).square()


class Ganglion(nn.Module):
    def __init__(self, inputs, width, kinds):
        super().__init__()
        self.inward, self.round = nn.Linear(inputs, width), nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, kinds)
        nn.init.normal_(self.inward.weight, std=1.5 / inputs**0.5)
        nn.init.normal_(self.round.weight, std=0.3 / width**0.5)
        self.leak = nn.Parameter(torch.full((width,), 1.5))

    def forward(self, x):
        """`[B, T, inputs]` to the means of leaky outputs, and how often a cell fired."""
        charge = fired = torch.zeros(len(x), self.round.in_features)
        out, total, spikes = 0.0, 0.0, 0.0
        keep = self.leak.sigmoid()
        for t in range(x.shape[1]):
            charge = keep * charge * (1 - fired.detach()) + self.inward(x[:, t]) + self.round(fired)
            fired = Spike.apply(charge - 1)
            out = 0.8 * out + self.out(fired)
            total, spikes = total + out, spikes + fired.mean()
        return total / x.shape[1], spikes / x.shape[1]


@healthy()
def clicks_of_crickets(folder):
    seeded(2994)
    length, ears = 20, 16
    delays, starts = torch.randint(0, 12, (5, ears)), torch.arange(length)

    def evening(n):
        kind = torch.randint(5, (n,))
        since = starts[None, :, None] - delays[kind][:, None] - torch.randint(0, 3, (n, 1, 1))
        chance = 0.02 + 0.7 * ((since >= 0) & (since % 11 < 2))
        return (torch.rand(n, length, ears) < chance).float(), kind

    net = Ganglion(ears, 48, 5)
    optimizer = torch.optim.Adamax(net.parameters(), lr=4e-3)
    fresh = evening(500)

    def loss_of(step):
        x, kind = evening(48)
        out, rate = net(x)
        named = F.cross_entropy(out, kind)
        return named + 0.5 * (rate - 0.1).relu(), {"rate of fire": rate, "named": named}

    return fit(folder, net, optimizer, loss_of, 200,
               score=held_out(net, lambda: F.cross_entropy(net(fresh[0])[0], fresh[1])))  # fmt: skip


class Signs(nn.Linear):
    """Used as signs, kept as numbers between minus one and one."""

    def forward(self, x):
        signs = torch.where(self.weight >= 0, 1.0, -1.0)
        return F.linear(x, self.weight + (signs - self.weight).detach())


@healthy()
def numerals_on_jar_labels(folder):
    seeded(2995)
    x, y = digits()
    mixed = torch.randperm(len(x))
    x, y = 2 * x[mixed].flatten(1) - 1, y[mixed]
    net = nn.Sequential(
        Signs(64, 160, bias=False), nn.BatchNorm1d(160), nn.Hardtanh(),
        Signs(160, 160, bias=False), nn.BatchNorm1d(160), nn.Hardtanh(),
        Signs(160, 10, bias=False), nn.BatchNorm1d(10),
    )  # fmt: skip
    for layer in net:
        if isinstance(layer, Signs):
            nn.init.uniform_(layer.weight, -0.3, 0.3)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    draw = rounds(100, x[:1400], y[:1400])

    def loss_of(step):
        pixels, name = draw()
        out = net(pixels)
        return F.cross_entropy(out, name), {"accuracy": (out.argmax(1) == name).float().mean()}

    @torch.no_grad()
    def within(step):
        for layer in net:
            if isinstance(layer, Signs):
                layer.weight.clamp_(-1, 1)

    return fit(folder, net, optimizer, loss_of, 300, schedule=schedule, after_step=within,
               score=held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:])))  # fmt: skip


class Reader(nn.Module):
    """Words in vectors that are given and stay as they are, read in both directions to the end of each text."""

    def __init__(self, vectors):
        super().__init__()
        self.words = nn.Embedding.from_pretrained(vectors, freeze=True, padding_idx=0)
        self.read = nn.GRU(vectors.shape[1], 32, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(64, 1))

    def forward(self, text, length):
        packed = pack_padded_sequence(self.words(text), length, batch_first=True, enforce_sorted=False)
        last = self.read(packed)[1]
        return self.head(torch.cat([last[0], last[1]], 1))[:, 0]


@healthy()
def praise_in_guest_books(folder):
    seeded(2996)
    words, most = 120, 14
    worth = torch.cat([torch.zeros(60), torch.randn(60)])
    turns = torch.zeros(words, dtype=torch.bool)
    turns[1:7] = True
    vectors = torch.randn(words, 24) * 0.5
    vectors[:, 0], vectors[:, 1] = worth + 0.2 * torch.randn(words), 2 * turns.float()
    vectors = vectors @ torch.linalg.qr(torch.randn(24, 24))[0]
    vectors[0] = 0

    def entries(n):
        """A word's worth is turned by a "not" that stands before it; an entry pleases or does not."""
        text, length = torch.randint(7, words, (n, most)), torch.randint(4, most + 1, (n,))
        text = torch.where(torch.rand(n, most) < 0.2, torch.randint(1, 7, (n, most)), text)
        text = text.masked_fill(torch.arange(most) >= length[:, None], 0)
        turned = F.pad(turns[text], (1, 0))[:, :-1]
        total = (worth[text] * torch.where(turned, -1, 1)).sum(1)
        return text, length, (total + 0.1 * torch.randn(n) > 0).float()

    net = Reader(vectors)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=4e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 30) * (1 - step / 450))
    fresh = entries(800)

    def loss_of(step):
        text, length, pleased = entries(48)
        return F.binary_cross_entropy_with_logits(net(text, length), pleased)

    def error():
        return ((net(*fresh[:2]) > 0) != fresh[2].bool()).float().mean()

    return fit(folder, net, optimizer, loss_of, 400, schedule=schedule, before_step=clipped(net, 1.0),
               score=held_out(net, error))  # fmt: skip


class Harbours(nn.Module):
    """Two of six experts for each row, chosen with some noise while it is trained."""

    def __init__(self, inputs, experts=6):
        super().__init__()
        self.gate = nn.Linear(inputs, experts)
        self.experts = nn.ModuleList(dense(inputs, 32, 1, act=nn.GELU) for _ in range(experts))

    def forward(self, x):
        raw = self.gate(x)
        noisy = raw + 0.3 * torch.randn_like(raw) if self.training else raw
        best, at = noisy.topk(2, 1)
        share = torch.zeros_like(raw).scatter(1, at, best.softmax(1))
        used = F.one_hot(at, raw.shape[1]).sum(1).float().mean(0) / 2
        balance = raw.shape[1] * (used * raw.softmax(1).mean(0)).sum()
        steady = raw.logsumexp(1).square().mean()
        found = torch.stack([expert(x)[:, 0] for expert in self.experts], 1)
        return (found * share).sum(1), balance, steady


@healthy()
def fares_in_six_harbours(folder):
    seeded(2997)
    tariffs, marks = torch.randn(6, 4), torch.randn(6, 5)

    def fares(n):
        harbour, cargo = torch.randint(6, (n,)), torch.randn(n, 4)
        fare = (tariffs[harbour] * cargo).sum(1) + (tariffs[harbour, :2] * cargo[:, 2:]).sum(1).cos()
        seen = marks[harbour] + 0.15 * torch.randn(n, 5)
        return torch.cat([seen, cargo], 1), fare + 0.1 * torch.randn(n)

    net = Harbours(9)
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 50, (50 / (step + 1)) ** 0.5))
    fresh = fares(1000)

    def loss_of(step):
        x, fare = fares(128)
        found, balance, steady = net(x)
        error = F.huber_loss(found, fare)
        return error + 0.01 * balance + 1e-3 * steady, {"error": error, "balance": balance}

    return fit(folder, net, optimizer, loss_of, 500, schedule=schedule, before_step=clipped(net, 1.0),
               score=held_out(net, lambda: F.mse_loss(net(fresh[0])[0], fresh[1])))  # fmt: skip


class Household(nn.Module):
    """Lines of a story are kept as they come and asked twice for what is wanted."""

    def __init__(self, things, rooms, most, width=24):
        super().__init__()
        self.things, self.rooms = nn.Embedding(things, width), nn.Embedding(rooms, width)
        self.kept_at, self.read_at = nn.Embedding(most, width), nn.Embedding(most, width)
        self.asked, self.answer = nn.Embedding(things, width), nn.Linear(width, rooms, bias=False)
        for table in (self.things, self.rooms, self.kept_at, self.read_at, self.asked, self.answer):
            nn.init.normal_(table.weight, std=0.2)

    def forward(self, thing, room, there, wanted):
        age = torch.arange(thing.shape[1])
        keys = self.things(thing) + self.kept_at(age)
        values = self.rooms(room) + self.read_at(age)
        asked = self.asked(wanted)
        for _ in range(2):
            fits = (keys @ asked[:, :, None])[..., 0].masked_fill(~there, -1e9)
            asked = asked + (fits.softmax(1)[:, None] @ values)[:, 0]
        return self.answer(asked)


@healthy()
def whereabouts_of_the_household_keys(folder):
    seeded(2998)
    things, rooms, most = 8, 6, 12

    def stories(n):
        """Newest line first; a thing may have been carried on, so that its newest line counts."""
        thing, room = torch.randint(things, (n, most)), torch.randint(rooms, (n, most))
        there = torch.arange(most) < torch.randint(4, most + 1, (n, 1))
        wanted = thing.gather(1, (torch.rand(n, 1) * there.sum(1, keepdim=True)).long())
        newest = ((thing == wanted) & there).float().argmax(1)
        return thing, room, there, wanted[:, 0], room.gather(1, newest[:, None])[:, 0]

    net = Household(things, rooms, most)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 200, 0.5)
    fresh = stories(800)

    def one(step):
        *story, room = stories(64)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(*story), room)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 40.0)
        optimizer.step()
        schedule.step()
        return {"loss": loss}

    return tend(folder, net, optimizer, one, 700, held_out(net, lambda: F.cross_entropy(net(*fresh[:4]), fresh[4])))
