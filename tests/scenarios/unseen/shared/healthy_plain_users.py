"""What people will like, click on, buy and use: recommenders and forecasts."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds


class Factors(nn.Module):
    def __init__(self, users, items, size, average):
        super().__init__()
        self.user, self.item = nn.Embedding(users, size), nn.Embedding(items, size)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        self.average = nn.Parameter(torch.tensor(average))
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.user_bias, self.item_bias):
            nn.init.zeros_(table.weight)

    def forward(self, u, i):
        taste = (self.user(u) * self.item(i)).sum(1)
        return taste + self.user_bias(u)[:, 0] + self.item_bias(i)[:, 0] + self.average


@healthy()
def stars_that_listeners_give_to_albums(folder):
    seeded(3622)
    users, items, rows = 200, 150, 12000
    taste, kind = torch.randn(users, 3), torch.randn(items, 3)
    u, i = torch.randint(users, (rows,)), torch.randint(items, (rows,))
    liking = 3.4 + 0.4 * torch.randn(users)[u] + 0.5 * torch.randn(items)[i] + 0.5 * (taste[u] * kind[i]).sum(1)
    stars = (liking + 0.3 * torch.randn(rows)).round().clamp(1, 5)
    draw = rounds(256, u[:10500], i[:10500], stars[:10500])
    net = Factors(users, items, 8, float(stars[:10500].mean()))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-5)

    def loss_of(step):
        a, b, y = draw()
        loss = F.mse_loss(net(a, b), y)
        return loss, {"rmse": loss.detach().sqrt()}

    score = held_out(net, lambda: F.mse_loss(net(u[10500:], i[10500:]), stars[10500:]))
    return fit(folder, net, optimizer, loss_of, 410, score=score)


@healthy()
def articles_found_for_library_visitors(folder):
    seeded(3623)
    articles, rows = 300, 5000
    topics = F.normalize(torch.randn(articles, 6), dim=1)
    features = (topics @ torch.randn(6, 24)).tanh()
    wish = F.normalize(torch.randn(rows, 6), dim=1)
    chosen = torch.multinomial((12 * wish @ topics.T).softmax(1), 1)[:, 0]
    visitor = (wish @ torch.randn(6, 20)).tanh() + 0.1 * torch.randn(rows, 20)
    draw = rounds(64, visitor[:4400], chosen[:4400])

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.visitor, self.article = dense(20, 64, 24), dense(24, 64, 24)
            self.scale = nn.Parameter(torch.tensor(10.0).log())

        def forward(self, v, a):
            v, a = F.normalize(self.visitor(v), dim=1), F.normalize(self.article(a), dim=1)
            return self.scale.exp().clamp(max=50) * v @ a.T

    net = Towers()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)

    def loss_of(step):
        v, at = draw()
        out = net(v, features[at])
        same = (at[:, None] == at) & ~torch.eye(len(at), dtype=torch.bool)
        out = out.masked_fill(same, -1e4)
        target = torch.arange(len(at))
        return F.cross_entropy(out, target), {"top1": (out.argmax(1) == target).float().mean()}

    def missed():
        best = net(visitor[4400:], features).topk(10, dim=1).indices
        return 1 - (best == chosen[4400:, None]).any(1).float().mean()

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, missed))


class Clicks(nn.Module):
    def __init__(self, sizes, width=6):
        super().__init__()
        self.wide = nn.ModuleList(nn.Embedding(n, 1) for n in sizes)
        self.deep = nn.ModuleList(nn.Embedding(n, width) for n in sizes)
        self.mlp = dense(width * len(sizes), 32, 16, 1)
        self.bias = nn.Parameter(torch.zeros(1))
        for table in self.wide:
            nn.init.zeros_(table.weight)
        for table in self.deep:
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, x):
        rows = torch.stack([table(x[:, i]) for i, table in enumerate(self.deep)], 1)
        pairs = 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(1)
        first = sum(table(x[:, i])[:, 0] for i, table in enumerate(self.wide))
        return self.bias + first + pairs + self.mlp(rows.flatten(1))[:, 0]


@healthy(gain=0.15)
def banners_that_are_clicked_on(folder):
    seeded(3624)
    sizes, rows = (40, 25, 7, 60), 12000
    x = torch.stack([torch.randint(n, (rows,)) for n in sizes], 1)
    hidden = [torch.randn(n, 4) for n in sizes]
    own = sum(0.5 * torch.randn(n)[x[:, i]] for i, n in enumerate(sizes))
    a, b, c, _ = (hidden[i][x[:, i]] for i in range(4))
    clicked = torch.bernoulli((own + 0.8 * (a * b).sum(1) + 0.5 * (b * c).sum(1) - 1).sigmoid())
    draw = rounds(256, x[:10500], clicked[:10500])
    net = Clicks(sizes)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)

    def loss_of(step):
        a, y = draw()
        return F.binary_cross_entropy_with_logits(net(a), y)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[10500:]), clicked[10500:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


def windows(series, past, future):
    both = series.unfold(-1, past + future, 1).reshape(-1, past + future)
    return both[:, :past], both[:, past:]


@healthy()
def sales_of_a_bakery_for_a_week_ahead(folder):
    seeded(3625)
    days = torch.arange(400)
    shops = torch.rand(10, 1)
    week = (1 + 0.4 * torch.randn(10, 7))[:, days % 7]
    year = 1 + 0.3 * (6.283 * (days / 365 + shops)).sin()
    sold = (50 + 100 * shops) * (week.clamp(min=0.1) * year + 0.08 * torch.randn(10, 400))
    scale = sold[:, :330].mean(1, keepdim=True)
    past, future = windows((sold / scale)[:, :330], 28, 7)
    late, after = windows((sold / scale)[:, 330:], 28, 7)
    draw = rounds(64, past, future)

    class Forecast(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(1, 40, num_layers=2, batch_first=True, dropout=0.1)
            self.head = nn.Linear(40, 7)

        def forward(self, x):
            return self.head(self.rnn(x[..., None] - 1)[0][:, -1]) + 1

    net = Forecast()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)

    def loss_of(step):
        a, b = draw()
        out = net(a)
        return F.l1_loss(out, b), {"bias": (out - b).mean()}

    score = held_out(net, lambda: F.l1_loss(net(late), after))
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


class Causal(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.one = nn.utils.parametrizations.weight_norm(nn.Conv1d(width, width, 3, dilation=dilation))
        self.two = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.two(F.relu(self.one(F.pad(x, (self.pad, 0)))))


@healthy()
def load_on_a_substation_an_hour_ahead(folder):
    seeded(3626)
    hours = torch.arange(6000)
    day = (6.283 * hours / 24).sin() + 0.5 * (6.283 * hours / 12 + 1).sin()
    slow = torch.zeros(6000)
    shock = 0.15 * torch.randn(6000)
    for t in range(1, 6000):
        slow[t] = 0.95 * slow[t - 1] + shock[t]
    load = 100 + 20 * day * (1 + 0.3 * (hours // 24 % 7 >= 5)) + 15 * slow
    z = (load - load[:5000].mean()) / load[:5000].std()
    x = z[:5000].unfold(0, 65, 16)
    test = z[5000:].unfold(0, 65, 16)
    draw = rounds(24, x)
    net = nn.Sequential(nn.Conv1d(1, 24, 1), *(Causal(24, d) for d in (1, 2, 4, 8)), nn.ReLU(), nn.Conv1d(24, 1, 1))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)

    def loss_on(rows):
        return F.mse_loss(net(rows[:, None, :-1])[:, 0, 32:], rows[:, 33:])

    return fit(
        folder,
        net,
        optimizer,
        lambda step: loss_on(draw()[0]),
        300,
        score=held_out(net, lambda: loss_on(test)),
        schedule=schedule,
    )
