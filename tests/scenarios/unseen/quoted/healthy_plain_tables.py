"""What is asked of rows and columns: prices, customers, counts, stays, mails."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


class Listing(nn.Module):
    """Categories as embeddings beside the numbers of a row."""

    def __init__(self, sizes, numbers, width=64):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, min(16, (n + 1) // 2)) for n in sizes)
        size = numbers + sum(table.embedding_dim for table in self.tables)
        self.body = nn.Sequential(
            nn.Linear(size, width), nn.ReLU(), nn.Dropout(0.05), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, kinds, numbers):
        parts = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
        return self.body(torch.cat([*parts, numbers], 1))[:, 0]


@healthy()
def asking_prices_of_motorhomes(folder):
    seeded(3507)
    rows, sizes = 6000, (30, 8, 4)
    kinds = torch.stack([torch.randint(n, (rows,)) for n in sizes], 1)
    worth = [0.4 * torch.randn(n) for n in sizes]
    age, distance, berths = 20 * torch.rand(rows), 250 * torch.rand(rows), torch.randint(2, 7, (rows,)).float()
    log_price = 10.8 + sum(w[kinds[:, i]] for i, w in enumerate(worth)) - 0.06 * age - 0.002 * distance
    log_price = log_price + 0.08 * berths * (age < 10) + 0.08 * torch.randn(rows)
    numbers = torch.stack([age, distance, berths], 1)
    fitted = numbers[:5000]
    numbers = (numbers - fitted.mean(0)) / fitted.std(0)
    y = (log_price - log_price[:5000].mean()) / log_price[:5000].std()

    net = Listing(sizes, 3)
    draw = rounds(128, kinds[:5000], numbers[:5000], y[:5000])
    steps = 39 * 12
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps + 1)

    def loss_of(step):
        k, n, target = draw()
        found = net(k, n)
        return F.huber_loss(found, target), {"mae": (found.detach() - target).abs().mean()}

    score = held_out(net, lambda: F.l1_loss(net(kinds[5000:], numbers[5000:]), y[5000:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy(gain=0.2)
def subscribers_who_leave_their_gym(folder):
    seeded(3508)
    x = torch.randn(5000, 14)
    x[:, 9:] = (x[:, 9:] > 0.8).float()
    leaning = 1.6 * x[:, 0] - 1.4 * x[:, 1] * (x[:, 9] + 0.5) + 1.2 * x[:, 2].abs() + 1.5 * x[:, 10] - 3.2
    y = (torch.rand(5000) < (1.5 * leaning).sigmoid()).float()
    share = y[:4000].mean()
    net = nn.Sequential(
        nn.Linear(14, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1),
    )  # fmt: skip
    weigh = nn.BCEWithLogitsLoss(pos_weight=(1 - share) / share)
    draw = rounds(100, x[:4000], y[:4000])

    def loss_of(step):
        rows, target = draw()
        out = net(rows)[:, 0]
        loss = weigh(out, target)
        found = (out.detach() > 0).float()
        return loss, {
            "accuracy": (found == target).float().mean(),
            "recall": (found * target).sum() / target.sum().clamp(min=1),
        }

    score = held_out(net, lambda: weigh(net(x[4000:])[:, 0], y[4000:]))
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=1e-3), loss_of, 600, score=score)


@healthy(gain=0.1)
def umbrellas_lent_by_the_hour(folder):
    seeded(3509)
    rows = 8000
    hour, day, rain = 24 * torch.rand(rows), torch.randint(7, (rows,)), torch.rand(rows)
    turn = 2 * torch.pi * hour / 24
    rate = (1.5 + 0.9 * (turn - 3.6).cos() + 1.4 * rain * (day < 5) + 0.3 * (2 * turn).sin()).exp()
    counts = torch.poisson(rate)
    x = torch.cat([turn.sin()[:, None], turn.cos()[:, None], rain[:, None] - 0.5, F.one_hot(day, 7).float()], 1)
    net = dense(10, 48, 48, 1, act=nn.Tanh)
    draw = rounds(64, x[:7000], counts[:7000])

    def of(rows, target):
        return F.poisson_nll_loss(net(rows)[:, 0], target, full=True)

    score = held_out(net, lambda: of(x[7000:], counts[7000:]))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    return fit(folder, net, optimizer, lambda step: of(*draw()), 900, score=score, before_step=clipped(net, 5.0))


@healthy()
def nights_that_patients_stay(folder):
    seeded(3510)
    x = torch.randn(4000, 9)
    centre = 1.0 + 0.8 * x[:, 0] + 0.7 * (x[:, 1] * x[:, 2]).tanh() + 0.5 * x[:, 3].relu()
    y = centre + (0.1 + 0.25 * x[:, 4].sigmoid()) * torch.randn(4000)
    levels = torch.tensor([0.1, 0.5, 0.9])
    net = dense(9, 40, 40, 3, act=nn.SiLU)
    draw = rounds(50, x[:3200], y[:3200])

    def pinball(rows, target):
        gap = target[:, None] - net(rows)
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    steps = 64 * 10
    optimizer = torch.optim.NAdam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 64 * 3, gamma=0.5)
    score = held_out(net, lambda: pinball(x[3200:], y[3200:]))
    return fit(folder, net, optimizer, lambda step: pinball(*draw()), steps, score=score, schedule=schedule)


@healthy()
def complaints_sent_to_the_right_desk(folder):
    seeded(3511)
    desks, words, length = 6, 800, 30
    topics = (1.5 * torch.randn(desks, words)).softmax(1)
    common = torch.rand(words).pow(4)
    topics = 0.6 * topics + 0.4 * common / common.sum()
    y = torch.randint(desks, (3000,))
    mails = torch.multinomial(topics[y], length, replacement=True)
    net = nn.Sequential(nn.EmbeddingBag(words, 32, mode="mean"), nn.Linear(32, desks))
    draw = rounds(32, mails[:2500], y[:2500])

    def loss_of(step):
        mail, desk = draw()
        out = net(mail)
        return F.cross_entropy(out, desk), {"accuracy": (out.argmax(1) == desk).float().mean()}

    steps = 78 * 12
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=steps)
    score = held_out(net, lambda: F.cross_entropy(net(mails[2500:]), y[2500:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)
