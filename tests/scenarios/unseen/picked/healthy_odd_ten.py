"""Structure and scarcity: one row at a time, tables of which few rows are met, labels that follow each other."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import tend

# ------------------------------------------------------------ one row at a time


@healthy()
def a_gauge_read_one_hour_at_a_time(folder):
    seeded(3263)
    net = dense(4, 24, 1, act=nn.Tanh)
    shown = AveragedModel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 / (1 + s / 300) ** 0.7)

    def hours(n):
        x = torch.randn(n, 4)
        level = (1.5 * x[:, :1]).sin() + x[:, 1:2] * (x[:, 2:3] > 0).float() - 0.5 * x[:, 3:]
        return x, level + 0.1 * torch.randn(n, 1)

    x_test, y_test = hours(1500)

    def loss_of(step):
        x, y = hours(1)
        return F.mse_loss(net(x), y)

    def average(step):
        if step >= 750:
            shown.update_parameters(net)

    def score():
        with torch.no_grad():
            return float(F.mse_loss((shown.module if shown.n_averaged else net)(x_test), y_test))

    return fit(folder, net, optimizer, loss_of, 1500, score=score, after_step=average, schedule=schedule)


# ------------------------------------------------------------ tables, few rows


@healthy()
def dishes_for_every_cook(folder):
    seeded(3264)
    cooks, dishes, size = 300, 800, 5
    of_cooks, of_dishes = torch.randn(cooks, size), torch.randn(dishes, size)
    often = 1 / (10 + torch.arange(dishes).float())

    def choices(n):
        cook = torch.randint(cooks, (n,))
        pair = torch.multinomial(often, 2 * n, replacement=True).view(n, 2)
        liking = (of_cooks[cook][:, None] * of_dishes[pair]).sum(2) + 0.3 * torch.randn(n, 2)
        return cook, pair.gather(1, liking.argsort(1, descending=True))

    class Taste(nn.Module):
        def __init__(self, width=16):
            super().__init__()
            self.cook = nn.Embedding(cooks, width, sparse=True)
            self.dish = nn.Embedding(dishes, width, sparse=True)
            self.liked = nn.Embedding(dishes, 1, sparse=True)
            self.mix = nn.Linear(width, width, bias=False)
            nn.init.normal_(self.cook.weight, std=0.1)
            nn.init.normal_(self.dish.weight, std=0.1)
            nn.init.zeros_(self.liked.weight)
            nn.init.eye_(self.mix.weight)

        def forward(self, cook, dish):
            return (self.mix(self.cook(cook))[:, None] * self.dish(dish)).sum(2) + self.liked(dish)[..., 0]

    net = Taste()
    of_tables = torch.optim.SparseAdam([net.cook.weight, net.dish.weight, net.liked.weight], lr=1e-2)
    of_mix = torch.optim.Adam(net.mix.parameters(), lr=1e-3)

    def error(n=512):
        cook, pair = choices(n)
        said = net(cook, pair)
        return -F.logsigmoid(said[:, 0] - said[:, 1]).mean(), (said[:, 0] > said[:, 1]).float().mean()

    def one(step):
        loss, right = error()
        of_tables.zero_grad()
        of_mix.zero_grad()
        loss.backward()
        of_tables.step()
        of_mix.step()
        return {"loss": loss, "right_order": right}

    return tend(folder, net, [of_tables, of_mix], one, 600, score_of(lambda step: error()[0]))


# ------------------------------------------------------------ labels in their order


class Register(nn.Module):
    """Scores of labels from both sides of a line, and of each label after another (a conditional random field)."""

    def __init__(self, words, labels, width=24):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.memory = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, labels)
        self.follow = nn.Parameter(0.1 * torch.randn(labels, labels))
        self.begin, self.end = nn.Parameter(torch.zeros(labels)), nn.Parameter(torch.zeros(labels))

    def scores(self, x):
        return self.out(self.memory(self.words(x))[0])

    def surprise(self, x, y):
        """Minus the logarithm of what is given to the right labels, per word."""
        scores = self.scores(x)
        right = scores.gather(2, y[..., None])[..., 0].sum(1) + self.follow[y[:, :-1], y[:, 1:]].sum(1)
        right = right + self.begin[y[:, 0]] + self.end[y[:, -1]]
        ahead = self.begin + scores[:, 0]
        for t in range(1, x.shape[1]):
            ahead = (ahead[:, :, None] + self.follow).logsumexp(1) + scores[:, t]
        return ((ahead + self.end).logsumexp(1) - right).mean() / x.shape[1]


@healthy()
def entries_of_a_parish_register(folder):
    seeded(3265)
    labels, words, length = 5, 40, 10
    after = (2.5 * torch.randn(labels, labels)).softmax(1)
    said = (2.0 * torch.randn(labels, words)).softmax(1)

    def entries(n):
        kinds = [torch.randint(labels, (n,))]
        for _ in range(length - 1):
            kinds.append(torch.multinomial(after[kinds[-1]], 1)[:, 0])
        y = torch.stack(kinds, 1)
        return torch.multinomial(said[y.flatten()], 1).view(n, length), y

    net = Register(words, labels)
    optimizer = torch.optim.Adam(net.parameters(), lr=6e-3, amsgrad=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300, eta_min=3e-4)

    def loss_of(step):
        return net.surprise(*entries(48))

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(loss_of), schedule=schedule)
