"""A start that soon learns, steps that keep a secret, a net that foresees its errors, rows that grow."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy()
def springs_weighed_five_times(folder):
    seeded(2999)
    net = dense(1, 40, 40, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def springs(n, rows):
        """Each spring has a stiffness and a bend of its own."""
        x = 4 * torch.rand(n, rows, 1) - 2
        stiff, bend = 0.5 + 1.5 * torch.rand(n, 1, 1), 3.1416 * torch.rand(n, 1, 1)
        return x, stiff * (1.5 * x + bend).sin()

    def error(weights, x, y):
        return F.mse_loss(functional_call(net, weights, (x,)), y)

    def weighed(weights, seen_x, seen_y, x, y, times):
        """The error on other weights of the same spring, after a few steps on those that were seen."""
        for _ in range(times):
            slopes = grad(error)(weights, seen_x, seen_y)
            weights = {name: w - 0.1 * slopes[name] for name, w in weights.items()}
        return error(weights, x, y)

    def over_tasks(n, times):
        x, y = springs(n, 15)
        each = vmap(lambda *rows: weighed(dict(net.named_parameters()), *rows, times))
        return each(x[:, :5], y[:, :5], x[:, 5:], y[:, 5:]).mean()

    def one(step):
        optimizer.zero_grad()
        loss = over_tasks(16, 2)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return tend(folder, net, optimizer, one, 300, lambda: over_tasks(300, 2).detach())


@healthy()
def sleepers_by_their_diary(folder):
    seeded(3000)
    ways = torch.randn(12, 3)

    def diaries(n):
        x = torch.randn(n, 12)
        return x, (x @ ways + 1.5 * (x[:, :3] * x[:, 3:6])).argmax(1)

    net = dense(12, 24, 3, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5)
    (x, kind), fresh = diaries(4000), diaries(1000)
    most, noise, expected = 1.0, 0.8, 200

    def of_one(weights, row, label):
        return F.cross_entropy(functional_call(net, weights, (row[None],)), label[None])

    def one(step):
        """Each person's slope is cut to a length of one and noise is put over the sum; batches are of any size."""
        chosen = torch.rand(len(x)) < expected / len(x)
        weights = {name: p.detach() for name, p in net.named_parameters()}
        slopes, losses = vmap(grad_and_value(of_one), (None, 0, 0))(weights, x[chosen], kind[chosen])
        lengths = torch.stack([s.flatten(1).norm(dim=1) for s in slopes.values()]).norm(dim=0)
        share = (most / (lengths + 1e-6)).clamp(max=1)
        for name, p in net.named_parameters():
            total = torch.tensordot(share, slopes[name], 1) + noise * most * torch.randn_like(p)
            p.grad = total / expected
        optimizer.step()
        return {"loss": losses.mean(), "cut": (share < 1).float().mean()}

    def error():
        return (net(fresh[0]).argmax(1) != fresh[1]).float().mean()

    return tend(folder, net, optimizer, one, 300, held_out(net, error))


class Orchard(nn.Module):
    """A yield, and from the layers before it a guess how far off that yield will be."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(7, 64), nn.Linear(64, 64)
        self.out = nn.Linear(64, 1)
        self.doubt = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        a = self.first(x).relu()
        b = self.second(a).relu()
        return self.out(b)[:, 0], self.doubt(torch.cat([a, b], 1).detach())[:, 0]


@healthy()
def yields_of_orchards_and_their_doubt(folder):
    seeded(3001)
    way = torch.randn(7, 2) / 7**0.5

    def orchards(n):
        x = torch.randn(n, 7)
        old, sunny = (x @ way).unbind(1)
        return x, (2 * sunny).sin() + old + (0.05 + 0.6 * (3 * x[:, 0]).sigmoid()) * torch.randn(n)

    net = Orchard()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [350, 450], 0.2)
    draw, fresh = rounds(40, *orchards(3000)), orchards(1000)

    def loss_of(step):
        """Of two rows the one with the larger error shall have the larger doubt."""
        x, harvest = draw()
        guess, doubt = net(x)
        errors = (guess - harvest).square()
        (here, there), (e, f) = doubt.view(2, -1), errors.detach().view(2, -1)
        ranked = F.margin_ranking_loss(here, there, (e - f).sign(), margin=0.5)
        return errors.mean() + 0.5 * ranked, {"errors": errors.mean(), "ranked": ranked}

    def left():
        """The error on the surer half of all orchards."""
        guess, doubt = net(fresh[0])
        return (guess - fresh[1]).square()[doubt.argsort()[:500]].mean()

    return fit(folder, net, optimizer, loss_of, 500, schedule=schedule, score=held_out(net, left))


@healthy()
def notes_pinned_to_a_parish_board(folder):
    seeded(3002)
    subjects, words = 5, 200
    likely = 0.15 / words + torch.distributions.Dirichlet(torch.full((words,), 0.08)).sample((subjects,))

    def notes(n):
        subject = torch.randint(subjects, (n,))
        text = torch.multinomial(likely[subject], 12, replacement=True) + 1
        return text.masked_fill(torch.arange(12) >= torch.randint(5, 13, (n, 1)), 0), subject

    table, head = nn.EmbeddingBag(words + 1, 10, mode="mean", padding_idx=0), nn.Linear(10, subjects, bias=False)
    with torch.no_grad():
        table.weight[1:].uniform_(-0.1, 0.1)
        head.weight.zero_()
    net = nn.Sequential(table, head)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 1500)
    (texts, names), fresh = notes(750), notes(1000)
    order = torch.cat([torch.randperm(750) for _ in range(2)])

    def loss_of(step):
        return F.cross_entropy(net(texts[order[step], None]), names[order[step], None])

    return fit(folder, net, optimizer, loss_of, 1500, schedule=schedule,
               score=held_out(net, lambda: F.cross_entropy(net(fresh[0]), fresh[1])))  # fmt: skip


class Shelf(nn.Module):
    """One layer that is gone through three times."""

    def __init__(self, sizes, most, width=32):
        super().__init__()
        self.embed, self.place = nn.Embedding(sizes + 1, width, padding_idx=0), nn.Embedding(most, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, sizes)

    def forward(self, x):
        h = self.embed(x) + self.place(torch.arange(x.shape[1]))
        for _ in range(3):
            h = self.layer(h, src_key_padding_mask=x == 0)
        return self.head(self.norm(h))


@healthy()
def bottles_lined_up_by_size(folder):
    seeded(3003)
    sizes, most = 9, 8

    def bottles(n, longest):
        """Rows of at most so many bottles, filled up with noughts, and the same from small to large."""
        there = torch.arange(longest) < torch.randint(2, longest + 1, (n, 1))
        x = torch.randint(1, sizes + 1, (n, longest))
        lined = x.masked_fill(~there, sizes + 1).sort(1).values
        return x.masked_fill(~there, 0), torch.where(there, lined - 1, -100)

    net = Shelf(sizes, most)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 40) * (1 - step / 400))
    fresh = bottles(500, most)

    def of(x, lined):
        return F.cross_entropy(net(x).flatten(0, 1), lined.flatten(), ignore_index=-100)

    def loss_of(step):
        longest = min(most, 3 + step // 45)
        return of(*bottles(48, longest)), {"longest": longest}

    return fit(folder, net, optimizer, loss_of, 360, schedule=schedule, before_step=clipped(net, 1.0),
               score=held_out(net, lambda: of(*fresh)))  # fmt: skip
