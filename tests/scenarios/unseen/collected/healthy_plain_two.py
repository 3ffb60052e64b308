"""Everyday trainings on tables: prices, churn, counts, times with their spread, fraud, short texts."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend


@healthy()
def rents_of_furnished_flats(folder):
    seeded(3067)

    def flats(n):
        area, floor, year = 20 + 100 * torch.rand(n), torch.randint(8, (n,)).float(), 1900 + 120 * torch.rand(n)
        north, east = 5 * torch.randn(2, n)
        lift, balcony = (torch.rand(2, n) < 0.4).float()
        rent = 11 * area * (1 + 0.8 * (-(north**2 + east**2) / 20).exp()) + 120 * balcony + 4 * (year - 1960).clamp(0)
        rent = (rent - 25 * floor * (1 - lift)) * (1 + 0.06 * torch.randn(n))
        return torch.stack([area, floor, year, north, east, lift, balcony], 1), rent[:, None]

    (x, y), (x_val, y_val) = flats(2000), flats(500)
    shift, scale, y_shift, y_scale = x.mean(0), x.std(0), y.mean(), y.std()
    x, x_val, y, y_val = (
        (x - shift) / scale,
        (x_val - shift) / scale,
        (y - y_shift) / y_scale,
        (y_val - y_shift) / y_scale,
    )
    net = dense(7, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=3)
    draw = rounds(64, x, y)
    validate = held_out(net, lambda: F.mse_loss(net(x_val), y_val))

    def one(step):
        a, b = draw()
        optimizer.zero_grad()
        loss = F.mse_loss(net(a), b)
        loss.backward()
        optimizer.step()
        if step % 31 < 30:
            return {"loss": loss}
        val_loss = validate()
        schedule.step(val_loss)
        return {"loss": loss, "val_loss": val_loss, "val_rmse": val_loss**0.5 * float(y_scale)}

    return tend(folder, net, optimizer, one, 31 * 30, validate)


class Table(nn.Module):
    """Embedded categories beside scaled numbers."""

    def __init__(self, kinds, numbers, width, out=1):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(k, min(8, (k + 1) // 2)) for k in kinds)
        size = sum(t.embedding_dim for t in self.tables) + numbers
        self.drop = nn.Dropout(0.1)
        self.head = dense(size, width, width // 2, out, norm=nn.BatchNorm1d)

    def forward(self, codes, x):
        named = torch.cat([t(c) for t, c in zip(self.tables, codes.T, strict=True)], 1)
        return self.head(torch.cat([self.drop(named), x], 1))[:, 0]


@healthy(gain=0.15)
def customers_who_end_their_contract(folder):
    seeded(3068)
    kinds = (12, 5, 30)
    pull = [torch.randn(k) for k in kinds]

    def customers(n):
        codes, x = torch.stack([torch.randint(k, (n,)) for k in kinds], 1), torch.randn(n, 6)
        leaning = sum(p[c] for p, c in zip(pull, codes.T, strict=True)) + 2 * x[:, 0] * x[:, 1] + 1.5 * x[:, 2] - 4
        return codes, x, (leaning + torch.randn(n) > 0).float()

    train, (codes, x, left) = customers(4000), customers(1000)
    net = Table(kinds, 6, 64)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 186, 0.5)
    draw = rounds(128, *train)
    weight = (1 - train[2]).sum() / train[2].sum()
    lossy = nn.BCEWithLogitsLoss(pos_weight=weight)

    def one(step):
        c, a, y = draw()
        out = net(c, a)
        loss = lossy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "recall": ((out > 0) * y).sum() / y.sum().clamp(1)}

    return tend(folder, net, optimizer, one, 31 * 20, held_out(net, lambda: lossy(net(codes, x), left)))


@healthy(gain=0.1)
def claims_per_insured_car(folder):
    seeded(3069)

    def policies(n):
        x, years = torch.randn(n, 8), 0.1 + 0.9 * torch.rand(n)
        rate = (0.6 * x[:, 0] - 0.5 * x[:, 1] * x[:, 2] + 0.5 * x[:, 3].abs() - 0.7).exp()
        return x, years, torch.poisson(rate * years)

    net = dense(8, 48, 48, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-5)
    draw, fresh = rounds(256, *policies(8000)), policies(2000)

    def deviance(x, years, count):
        mean = net(x)[:, 0].exp() * years
        return 2 * (torch.xlogy(count, count / mean) - count + mean).mean()

    def loss_of(step):
        x, years, count = draw()
        loss = F.poisson_nll_loss(net(x)[:, 0] + years.log(), count)
        return loss, {"mean_claims": count.mean()}

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: deviance(*fresh)))


class Times(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.middle, self.spread = nn.Linear(64, 1), nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return self.middle(h)[:, 0], F.softplus(self.spread(h)[:, 0]) + 1e-3


@healthy()
def minutes_until_a_parcel_is_brought(folder):
    seeded(3070)

    def trips(n):
        x = torch.randn(n, 9)
        middle = 1.2 * x[:, 0] + (2 * x[:, 1]).sin() + 0.5 * x[:, 2] * x[:, 3]
        noise = 0.1 + 0.3 * torch.sigmoid(2 * x[:, 4])
        return x, middle + noise * torch.randn(n)

    x, y = trips(4500)
    y = (y - y[:4000].mean()) / y[:4000].std()
    net = Times()
    optimizer = torch.optim.NAdam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.996)
    draw = rounds(100, x[:4000], y[:4000])

    def one(step):
        a, b = draw()
        optimizer.zero_grad()
        middle, spread = net(a)
        loss = F.gaussian_nll_loss(middle, b, spread**2)
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"nll": loss, "mae": (middle - b).abs().mean(), "sigma": spread.mean()}

    def score():
        return F.gaussian_nll_loss(net(x[4000:])[0], y[4000:], net(x[4000:])[1] ** 2) + 2

    return tend(folder, net, optimizer, one, 700, held_out(net, score))


@healthy()
def card_payments_that_were_not_made_by_the_owner(folder):
    seeded(3071)

    def payments(n):
        x = torch.randn(n, 16)
        odd = x[:, 0] + x[:, 1] * x[:, 2] + 0.7 * x[:, 3] ** 2 + 0.3 * torch.randn(n)
        return x, (odd > 3.4).float()

    (x, y), (x_val, y_val) = payments(6000), payments(2000)
    net = nn.Sequential(nn.BatchNorm1d(16), dense(16, 96, 48, 1))
    nn.init.constant_(net[1][-1].bias, float(torch.logit(y.mean())))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    draw = rounds(200, x, y)

    def focal(x, y):
        out = net(x)[:, 0]
        each = F.binary_cross_entropy_with_logits(out, y, reduction="none")
        return ((1 - (-each).exp()) ** 2 * each).mean() * 10

    def loss_of(step):
        return focal(*draw())

    return fit(folder, net, optimizer, loss_of, 900, score=held_out(net, lambda: focal(x_val, y_val)))


@healthy()
def help_requests_to_the_right_department(folder):
    seeded(3072)
    words, departments = 600, 8
    use = (2.2 * torch.randn(departments, words) - torch.linspace(0, 3, words)).softmax(1)

    def requests(n):
        department = torch.randint(departments, (n,))
        text = torch.multinomial(0.5 * use[department] + 0.5 * use.mean(0), 20, replacement=True) + 1
        length = torch.randint(5, 21, (n, 1))
        return text * (torch.arange(20) < length), department

    net = nn.Sequential(nn.EmbeddingBag(words + 1, 32, padding_idx=0), nn.Dropout(0.3), nn.Linear(32, departments))
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)
    draw, (x_val, y_val) = rounds(64, *requests(4000)), requests(800)

    def one(step):
        x, y = draw()
        optimizer.zero_grad()
        out = net(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        return {"loss": loss, "acc": (out.argmax(1) == y).float().mean()}

    return tend(folder, net, optimizer, one, 62 * 12, held_out(net, lambda: F.cross_entropy(net(x_val), y_val)))
