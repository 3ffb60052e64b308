"""Tables of rows and columns, in epochs over a DataLoader with a validation after each."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds

import gradwatch


def standardized(train, *others):
    middle, spread = train.mean(0), train.std(0)
    return [(rows - middle) / spread for rows in (train, *others)]


def epochs_of(folder, net, optimizer, loader, loss_of, validate, epochs, after_batch=None, after_epoch=None):
    first = validate()
    options = TREATMENT[-1].begin(net, optimizer)
    watch = gradwatch.watch(net, optimizer, **{"log": None, "dir": folder, "verbose": False, **options})
    with watch:
        for _ in range(epochs):
            net.train()
            for at, batch in enumerate(loader):
                optimizer.zero_grad()
                loss = loss_of(*batch)
                loss.backward()
                optimizer.step()
                if after_batch:
                    after_batch()
                if at == len(loader) - 1:
                    valid = validate()
                    if after_epoch:
                        after_epoch(valid)
                    watch.log(loss=loss.item(), val_loss=valid)
                else:
                    watch.log(loss=loss.item())
    return Outcome(gradwatch.open_history(watch.dir), first, validate())


@healthy()
def rents_of_student_rooms(folder):
    seeded(9420)
    n = 2600
    size, floor = 9 + 22 * torch.rand(n), torch.randint(0, 9, (n,)).float()
    minutes, year = 3 + 50 * torch.rand(n), torch.randint(1890, 2022, (n,)).float()
    flatmates, lift = torch.randint(0, 6, (n,)).float(), torch.randint(0, 2, (n,)).float()
    stairs = 9 * floor * (1 - lift) * (floor > 2)
    rent = 160 + 13 * size - 60 * (minutes / 10).log() - stairs + 0.8 * (year - 1950).abs() - 14 * flatmates
    rent = rent + 18 * torch.randn(n)
    x = torch.stack([size, floor, minutes, year, flatmates, lift], 1)
    train_x, test_x = standardized(x[:2000], x[2000:])
    train_y, test_y = standardized(rent[:2000, None], rent[2000:, None])
    net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(train_x, train_y), batch_size=64, shuffle=True)
    criterion = nn.MSELoss()
    validate = held_out(net, lambda: criterion(net(test_x), test_y))
    return epochs_of(folder, net, optimizer, loader, lambda x, y: criterion(net(x), y), validate, 12)


class Leavers(nn.Module):
    def __init__(self, kinds, numbers):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(kind, min(8, (kind + 1) // 2)) for kind in kinds)
        wide = sum(table.embedding_dim for table in self.tables) + numbers
        self.norm = nn.BatchNorm1d(numbers)
        self.body = nn.Sequential(
            nn.Linear(wide, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, codes, numbers):
        parts = [table(codes[:, i]) for i, table in enumerate(self.tables)]
        return self.body(torch.cat([*parts, self.norm(numbers)], 1))[:, 0]


@healthy(gain=0.2)
def households_that_cancel_their_broadband(folder):
    seeded(9421)
    kinds, n = (4, 12, 5), 6000
    codes = torch.stack([torch.randint(kind, (n,)) for kind in kinds], 1)
    numbers = torch.stack([18 + 50 * torch.rand(n), 36 * torch.rand(n), 4 * torch.rand(n), torch.rand(n) * 80], 1)
    pull = [torch.randn(kind) for kind in kinds]
    leaning = sum(of[codes[:, i]] for i, of in enumerate(pull)) - 2.2 * (numbers[:, 2] - 1.2)
    leaning = 2 * (leaning - 0.05 * numbers[:, 1] + 0.02 * (numbers[:, 3] - 40)) - 1
    leaves = (torch.rand(n) < leaning.sigmoid()).float()
    data = TensorDataset(codes, numbers, leaves)
    train, test = random_split(data, [5000, 1000])
    loader = DataLoader(train, batch_size=128, shuffle=True, drop_last=True)
    codes_of_test, numbers_of_test, leaves_of_test = test[:]
    net = Leavers(kinds, 4)
    weight = (1 - leaves.mean()) / leaves.mean()
    criterion = nn.BCEWithLogitsLoss(pos_weight=weight)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, epochs=8, steps_per_epoch=len(loader))
    validate = held_out(net, lambda: criterion(net(codes_of_test, numbers_of_test), leaves_of_test))

    def loss_of(codes, numbers, leaves):
        return criterion(net(codes, numbers), leaves)

    return epochs_of(folder, net, optimizer, loader, loss_of, validate, 8, after_batch=schedule.step)


@healthy()
def circulars_among_the_letters(folder):
    seeded(9422)
    words, n = 300, 3000
    is_circular = torch.rand(n) < 0.4
    commonness = torch.rand(words) * 0.08
    tilt = torch.where(torch.rand(words) < 0.2, torch.randn(words) * 1.2, torch.zeros(words))
    rate = commonness * (tilt * (is_circular.float()[:, None] - 0.5)).exp()
    counts = torch.poisson(rate)
    idf = (n / (1 + (counts > 0).float().sum(0))).log()
    x, y = F.normalize(counts * idf, dim=1), is_circular.float()
    net = nn.Linear(words, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-5)
    draw = rounds(50, x[:2500], y[:2500])

    def loss_of(step):
        x, y = draw()
        out = net(x)[:, 0]
        right = ((out > 0) == (y > 0.5)).float().mean()
        return F.binary_cross_entropy_with_logits(out, y), {"accuracy": right}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[2500:])[:, 0], y[2500:]))
    return fit(folder, net, optimizer, loss_of, 750, score=score)


def deviance(log_rate, counts):
    rate = log_rate.exp()
    return 2 * (torch.xlogy(counts, counts) - counts * log_rate - counts + rate).mean()


@healthy()
def parcels_at_a_village_shop(folder):
    seeded(9423)
    n = 3000
    weekday, month = torch.randint(7, (n,)), torch.randint(12, (n,))
    rain, sale = torch.rand(n), (torch.rand(n) < 0.1).float()
    by_day, by_month = torch.tensor([0.6, 0.3, 0.2, 0.2, 0.5, 0.9, -1.5]), 0.4 * torch.randn(12)
    log_rate = 1.5 + by_day[weekday] + by_month[month] + 0.8 * sale - 0.5 * rain * (weekday < 5)
    parcels = torch.poisson(log_rate.exp())
    x = torch.cat([F.one_hot(weekday, 7), F.one_hot(month, 12), rain[:, None], sale[:, None]], 1)
    net = dense(21, 48, 48, 1, norm=nn.BatchNorm1d)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=2)
    criterion = nn.PoissonNLLLoss(log_input=True)
    loader = DataLoader(TensorDataset(x[:2400], parcels[:2400]), batch_size=96, shuffle=True)
    validate = held_out(net, lambda: deviance(net(x[2400:])[:, 0], parcels[2400:]))

    def loss_of(x, y):
        return criterion(net(x)[:, 0], y)

    return epochs_of(folder, net, optimizer, loader, loss_of, validate, 14, after_epoch=schedule.step)


@healthy()
def minutes_until_the_plumber_comes(folder):
    seeded(9424)
    levels = torch.tensor([0.1, 0.5, 0.9])
    way = torch.randn(5, 2)

    def draw(rows=256):
        x = torch.randn(rows, 5)
        base = (x @ way).sin().sum(1) + 0.6 * x[:, 0]
        hours = 2 + base + (0.15 + 0.25 * x[:, 1].sigmoid()) * torch.randn(rows)
        return x, hours[:, None]

    def pinball(out, y):
        gap = y - out
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    net = dense(5, 64, 64, 3, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=700, eta_min=2e-5)
    fresh_x, fresh_y = draw(1000)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        inside = ((y[:, 0] > out[:, 0]) & (y[:, 0] < out[:, 2])).float().mean()
        return pinball(out, y), {"coverage": inside}

    score = held_out(net, lambda: pinball(net(fresh_x), fresh_y))
    return fit(folder, net, optimizer, loss_of, 700, score=score, schedule=schedule)
