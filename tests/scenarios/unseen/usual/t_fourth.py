"""Healthy trainings of letters, post offices and printers that are unusual, and sound."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy()
def where_the_two_vans_of_a_round_are(folder):
    seeded(12060)
    parts = 3
    net = dense(1, 48, 48, 3 * parts, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def hours(rows):
        hour = 2 * torch.rand(rows, 1) - 1
        side = torch.where(torch.rand(rows, 1) < 0.5, 1.0, -1.0)
        return hour, side * (0.6 + 0.3 * (3 * hour).cos()) + 0.02 * torch.randn(rows, 1)

    def loss_on(hour, place):
        share, middle, spread = net(hour).chunk(3, 1)
        spread = spread.clamp(-5, 3)
        one = -0.5 * ((place - middle) / spread.exp()).square() - spread - 0.5 * math.log(2 * math.pi)
        return -(share.log_softmax(1) + one).logsumexp(1).mean()

    test = hours(600)
    score, clip = held_out(net, lambda: loss_on(*test)), clipped(net, 5.0)
    return fit(folder, net, optimizer, lambda step: loss_on(*hours(128)), 350, score=score, before_step=clip)


@healthy()
def papers_of_three_mills_in_thirty_steps(folder):
    seeded(12061)
    table, mills = load_wine(return_X_y=True)
    order = torch.randperm(len(mills))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(mills)[order]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = dense(13, 12, 3, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), 1.0, max_iter=4, history_size=10, line_search_fn="strong_wolfe")

    def loss_of(step):
        decay = sum(p.square().sum() for p in net.parameters())
        return F.cross_entropy(net(x[:130]), y[:130]) + 3e-3 * decay

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 30, score=score, closure=True)


@healthy()
def a_reader_of_cheques_given_other_numerals(folder):
    seeded(12062)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32)[order].view(-1, 1, 8, 8), torch.tensor(digits)[order]
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 64), nn.ReLU(),
    )  # fmt: skip
    low, old = y < 6, nn.Sequential(body, nn.Linear(64, 6))
    before = torch.optim.Adam(old.parameters(), 2e-3)
    draw = rounds(64, x[low], y[low])
    for _ in range(120):
        some, digit = draw()
        before.zero_grad()
        F.cross_entropy(old(some), digit).backward()
        before.step()

    nx, ny = x[~low], y[~low] - 6
    net = nn.Sequential(body, nn.Linear(64, 4))
    body[0].requires_grad_(False)
    groups = [{"params": body[2:].parameters(), "lr": 3e-5}, {"params": net[1].parameters(), "lr": 1e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    draw = rounds(32, nx[:500], ny[:500])

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    score = held_out(net, lambda: F.cross_entropy(net(nx[500:]), ny[500:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy()
def christmas_cards_counted_by_the_sackful(folder):
    seeded(12063)
    net = dense(7, 48, 48, 1, act=nn.SiLU)
    nn.init.constant_(net[-1].bias, math.log(60.0))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    way = torch.randn(7, 2) / 2

    def days(rows):
        x = torch.randn(rows, 7)
        return x, torch.poisson((4.0 + (x @ way).tanh().sum(1, keepdim=True)).exp())

    x, y = days(2000)
    draw = rounds(64, x, y)

    def loss_on(x, y):
        return F.poisson_nll_loss(net(x), y, full=True, reduction="sum")

    tx, ty = days(500)
    score = held_out(net, lambda: loss_on(tx, ty) / len(tx))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 300, score=score)


class Pairs(nn.Module):
    """Vectors of words and of their neighbours, both sparse."""

    def __init__(self, words, width):
        super().__init__()
        self.word, self.other = nn.Embedding(words, width, sparse=True), nn.Embedding(words, width, sparse=True)
        nn.init.uniform_(self.word.weight, -0.5 / width, 0.5 / width)
        nn.init.zeros_(self.other.weight)

    def forward(self, word, others):
        return (self.other(others) @ self.word(word)[:, :, None])[:, :, 0]


@healthy()
def greetings_that_go_with_a_holiday(folder):
    seeded(12064)
    words, topics = 400, 8
    net = Pairs(words, 16)
    optimizer = torch.optim.SparseAdam(list(net.parameters()), 0.02)

    def pairs(rows):
        word = torch.randint(words, (rows,))
        near = (word % topics) + topics * torch.randint(words // topics, (rows,))
        return word, torch.cat([near[:, None], torch.randint(words, (rows, 5))], 1)

    def loss_on(word, others):
        out = net(word, others)
        return -(F.logsigmoid(out[:, 0]) + F.logsigmoid(-out[:, 1:]).sum(1)).mean()

    test = pairs(2000)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*pairs(256)), 400, score=score)


@healthy()
def envelopes_through_the_cancelling_machine(folder):
    seeded(12065)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32)[order], torch.tensor(digits)[order]
    net = dense(64, 96, 64, 10)
    optimizer = torch.optim.SGD(net.parameters(), 0.08, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 40, 2, 1e-4)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y, label_smoothing=0.1), {"learning_rate": optimizer.param_groups[0]["lr"]}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 280, score=score, schedule=schedule)


@healthy()
def banknotes_guarded_against_a_skilled_hand(folder):
    seeded(12066)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = torch.tensor(images / 16, dtype=torch.float32)[order].view(-1, 1, 8, 8)
    y = torch.tensor(digits)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(50, x[:1400], y[:1400])

    def forged(x, y, most=0.15, times=3):
        shift = (2 * torch.rand_like(x) - 1) * most
        for _ in range(times):
            shift.requires_grad_(True)
            with torch.enable_grad():
                (way,) = torch.autograd.grad(F.cross_entropy(net((x + shift).clamp(0, 1)), y), shift)
            shift = (shift.detach() + 0.06 * way.sign()).clamp(-most, most)
        return (x + shift).clamp(0, 1)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(forged(x, y)), y)

    score = held_out(net, lambda: F.cross_entropy(net(forged(x[1400:], y[1400:])), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 180, score=score)


@healthy()
def page_margins_trimmed_the_flat_way(folder):
    seeded(12067)
    net = dense(10, 48, 48, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    lift = torch.randn(4, 10)

    def pages(rows):
        y = torch.randint(4, (rows,))
        return F.one_hot(y, 4).float() @ lift + 0.8 * torch.randn(rows, 10), y

    x, y = pages(1500)
    draw = rounds(64, x, y)

    def one(step):
        x, y = draw()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
            moved = [0.05 * p.grad / (norm + 1e-12) for p in net.parameters()]
            for p, by in zip(net.parameters(), moved, strict=True):
                p.add_(by)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for p, by in zip(net.parameters(), moved, strict=True):
                p.sub_(by)
        optimizer.step()
        return {"loss": loss}

    tx, ty = pages(600)
    return tend(folder, net, optimizer, one, 200, held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy()
def flourishes_drawn_without_a_judge(folder):
    seeded(12068)
    net = dense(4, 64, 64, 2, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def flourishes(rows):
        turn = 6.2832 * torch.rand(rows, 1)
        return torch.cat([1.5 * turn.sin(), (2 * turn).sin()], 1) + 0.05 * torch.randn(rows, 2)

    def energy(found, true):
        within = torch.pdist(found).mean() + torch.pdist(true).mean()
        return 2 * torch.cdist(found, true).mean() - within

    def loss_of(step):
        return energy(net(torch.randn(160, 4)), flourishes(160))

    test = flourishes(600)
    score = held_out(net, lambda: energy(net(torch.randn(600, 4)), test))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


class Ledger(nn.Module):
    """A recurrent model of words with one table for both ends."""

    def __init__(self, words, width):
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.memory = nn.LSTM(width, width, 1, batch_first=True)
        self.out = nn.Linear(width, words)
        self.out.weight = self.word.weight
        nn.init.uniform_(self.word.weight, -0.1, 0.1)
        nn.init.zeros_(self.out.bias)

    def forward(self, text, state=None):
        out, state = self.memory(self.word(text), state)
        return self.out(F.dropout(out, 0.1, self.training)), state


@healthy()
def a_gazette_read_on_from_issue_to_issue(folder):
    seeded(12069)
    words, rows, ahead = 30, 20, 18
    net = Ledger(words, 48)
    optimizer = torch.optim.SGD(net.parameters(), 10.0)
    follows = torch.softmax(3 * torch.randn(words, words), 1)

    def stream(length):
        text = [torch.randint(words, (rows,))]
        for _ in range(length):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    steps = 300
    text, test, state = stream(ahead * 100), stream(200), [None]

    def loss_of(step):
        at = (step % 100) * ahead
        if at == 0:
            state[0] = None
        out, new = net(text[:, at : at + ahead], state[0])
        state[0] = tuple(part.detach() for part in new)
        return F.cross_entropy(out.flatten(0, 1), text[:, at + 1 : at + 1 + ahead].flatten())

    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [200, 250], 0.25)
    score = held_out(net, lambda: F.cross_entropy(net(test[:, :-1])[0].flatten(0, 1), test[:, 1:].flatten()))
    clip = clipped(net, 0.25)
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clip)
