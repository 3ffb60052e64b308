"""Tables, graphs and words: what most people train on rows."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


class Tastes(nn.Module):
    """Inner products of tables, with a bias for each."""

    def __init__(self, people, things, width=8):
        super().__init__()
        self.people, self.things = nn.Embedding(people, width), nn.Embedding(things, width)
        self.of_person, self.of_thing = nn.Embedding(people, 1), nn.Embedding(things, 1)
        self.middle = nn.Parameter(torch.zeros(()))
        for table in (self.people, self.things):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.of_person, self.of_thing):
            nn.init.zeros_(table.weight)

    def forward(self, who, what):
        near = (self.people(who) * self.things(what)).sum(1)
        return self.middle + near + (self.of_person(who) + self.of_thing(what))[:, 0]


@healthy(gain=0.5)
def marks_given_to_puzzle_boxes(folder):
    """Matrix factorisation with biases on a third of all pairs."""
    seeded(10016)
    truth = 3.4 + torch.randn(150, 3) @ torch.randn(3, 80) * 0.45 + 0.4 * torch.randn(150, 1) + 0.5 * torch.randn(80)
    stars = (truth + 0.3 * torch.randn(150, 80)).clamp(1, 5)
    order = torch.randperm(150 * 80)
    who, what, given = order // 80, order % 80, stars.flatten()[order]
    net = Tastes(150, 80)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-5)
    draw = rounds(256, who[:4500], what[:4500], given[:4500])

    def loss_of(step):
        who, what, given = draw()
        return F.mse_loss(net(who, what), given)

    test = slice(4500, 6000)
    nn.init.constant_(net.middle, given[:4500].mean())
    return fit(folder, net, optimizer, loss_of, 400, schedule=CosineAnnealingLR(optimizer, 400),
               score=held_out(net, lambda: F.mse_loss(net(who[test], what[test]), given[test])))  # fmt: skip


class Convolved(nn.Module):
    def __init__(self, mixed, a, b, kinds):
        super().__init__()
        self.register_buffer("mixed", mixed)
        self.first, self.second = nn.Linear(a, b), nn.Linear(b, kinds)

    def forward(self, x):
        x = F.dropout(x, 0.3, self.training)
        x = F.dropout(F.relu(self.mixed @ self.first(x)), 0.5, self.training)
        return self.mixed @ self.second(x)


@healthy(gain=0.4)
def guilds_of_traders_by_whom_they_deal_with(folder):
    """A graph convolution over all traders, of whom few have a guild that is known."""
    seeded(10017)
    guild = torch.arange(320) % 4
    tied = torch.rand(320, 320) < torch.where(guild[:, None] == guild, 0.05, 0.006)
    ties = (tied.triu(1) | tied.triu(1).T).float() + torch.eye(320)
    root = ties.sum(1).rsqrt()
    x = F.one_hot(guild, 4).float() @ torch.randn(4, 24) * 0.5 + torch.randn(320, 24)
    order = torch.randperm(320)
    known, asked = order[:80], order[80:]
    net = Convolved(root[:, None] * ties * root, 24, 16, 4)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=5e-4)

    def loss_of(step):
        out = net(x)
        right = (out.argmax(1) == guild)[known].float().mean()
        return F.cross_entropy(out[known], guild[known]), {"accuracy": right}

    score = held_out(net, lambda: F.cross_entropy(net(x)[asked], guild[asked]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Dates(nn.Module):
    """An encoder and a decoder with attention between them; the decoder is told what came before."""

    def __init__(self, kinds, said, width=64):
        super().__init__()
        self.read, self.spoken = nn.Embedding(kinds, 32), nn.Embedding(said, 32)
        self.encoder = nn.GRU(32, width // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(32, width, batch_first=True)
        self.mix, self.head = nn.Linear(2 * width, width), nn.Linear(width, said)

    def forward(self, x, before):
        seen, last = self.encoder(self.read(x))
        told = self.decoder(self.spoken(before), torch.cat([last[0], last[1]], 1)[None])[0]
        heed = (told @ seen.mT / seen.shape[-1] ** 0.5).softmax(2) @ seen
        return self.head(torch.cat([told, heed], 2).matmul(self.mix.weight.T).add(self.mix.bias).tanh())


@healthy(gain=0.7)
def days_in_a_captains_log_rewritten(folder):
    """Day, month and year in any of three orders, written as year, month and day."""
    seeded(10018)

    def days(n):
        day, month, year = torch.randint(1, 29, (n,)), torch.randint(12, (n,)), torch.randint(100, (n,))
        d, y = torch.stack([day // 10, day % 10], 1), torch.stack([year // 10, year % 10], 1)
        m = month[:, None] + 10
        mark = torch.full((n, 1), 22)
        forms = torch.stack([
            torch.cat([d, m, y, mark], 1), torch.cat([m, d, mark, y], 1), torch.cat([y, mark, m, d], 1)
        ])  # fmt: skip
        x = forms[torch.randint(3, (n,)), torch.arange(n)]
        return x, torch.cat([y, (month[:, None] + 1) // 10, (month[:, None] + 1) % 10, d], 1)

    net = Dates(23, 11)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)

    def loss_on(x, y):
        before = F.pad(y[:, :-1], (1, 0), value=10)
        out = net(x, before)
        return F.cross_entropy(out.flatten(0, 1), y.flatten()), (out.argmax(2) == y).all(1).float().mean()

    def loss_of(step):
        loss, right = loss_on(*days(48))
        return loss, {"exact": right}

    test = days(300)
    return fit(
        folder, net, optimizer, loss_of, 280, before_step=clipped(net, 1.0),
        schedule=CosineAnnealingLR(optimizer, 280, 1e-4), score=held_out(net, lambda: loss_on(*test)[0]),
    )  # fmt: skip


@healthy(gain=0.5)
def new_enamels_by_a_body_that_knows_old_ones(folder):
    """Tuning: the first block stays as it is, the others go at a tenth of the head's rate."""
    seeded(10019)
    lift = torch.randn(6, 40)

    def enamels(kinds, n, about):
        y = torch.randint(kinds, (n,))
        return ((about[y] + 0.45 * torch.randn(n, 6)) @ lift / 2).tanh() + 0.1 * torch.randn(n, 40), y

    old, new = 1.5 * torch.randn(10, 6), 1.5 * torch.randn(5, 6)
    body = nn.Sequential(*dense(40, 96, 96, 64, norm=nn.LayerNorm), nn.ReLU())
    before = nn.Sequential(body, nn.Linear(64, 10))
    optimizer = torch.optim.Adam(before.parameters(), lr=2e-3)
    for _ in range(300):
        x, y = enamels(10, 64, old)
        optimizer.zero_grad()
        F.cross_entropy(before(x), y).backward()
        optimizer.step()

    net = nn.Sequential(body, nn.Linear(64, 5))
    body[:3].requires_grad_(False)
    data, (x_test, y_test) = enamels(5, 400, new), enamels(5, 500, new)
    optimizer = torch.optim.AdamW(
        [{"params": body[3:].parameters(), "lr": 2e-4}, {"params": net[1].parameters(), "lr": 2e-3}], weight_decay=0.01
    )
    draw = rounds(32, *data)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x_test), y_test))
    return fit(folder, net, optimizer, loss_of, 200, schedule=CosineAnnealingLR(optimizer, 200), score=score)


@healthy(gain=0.3)
def progress_of_an_illness_in_a_year(folder):
    """Ten columns of the diabetes rows to one number, both standardised, with Huber's loss."""
    seeded(10020)
    x, y = load_diabetes(return_X_y=True)
    order = torch.randperm(len(x))
    x, y = torch.tensor(x).float()[order] * len(x) ** 0.5, torch.tensor(y).float()[order, None]
    y = (y - y[:342].mean()) / y[:342].std()
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-3)
    draw = rounds(32, x[:342], y[:342])

    def loss_of(step):
        x, y = draw()
        return F.huber_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.huber_loss(net(x[342:]), y[342:])))


class Columns(nn.Module):
    """A table for each column of kinds beside the numbers, then blocks with batch norm."""

    def __init__(self, kinds, numbers):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(k, min(12, 2 + k // 3)) for k in kinds)
        wide = sum(t.embedding_dim for t in self.tables) + numbers
        self.norm = nn.BatchNorm1d(numbers)
        self.body = nn.Sequential(
            nn.Linear(wide, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.05),
            nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1),
        )  # fmt: skip

    def forward(self, kinds, numbers):
        looked = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
        return self.body(torch.cat([*looked, self.norm(numbers)], 1))[:, 0]


@healthy(gain=0.6)
def rent_of_market_stalls(folder):
    """The logarithm of a rent from columns of kinds and of numbers, in one cycle of the rate."""
    seeded(10021)
    kinds = [24, 12, 7]
    worth = [0.5 * torch.randn(k) for k in kinds]

    def stalls(n):
        k = torch.stack([torch.randint(most, (n,)) for most in kinds], 1)
        width, distance, age = 1 + 5 * torch.rand(n), 400 * torch.rand(n), 40 * torch.rand(n)
        rent = sum(w[k[:, i]] for i, w in enumerate(worth)) + 0.8 * width.log() - distance / 300 * (k[:, 2] < 4)
        numbers = torch.stack([(width - 3.5) / 1.5, (distance - 200) / 120, (age - 20) / 12], 1)
        return k, numbers, rent + 0.1 * torch.randn(n)

    data, test, net = stalls(3000), stalls(500), Columns(kinds, 3)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    draw = rounds(64, *data)

    def loss_of(step):
        k, numbers, rent = draw()
        return F.mse_loss(net(k, numbers), rent)

    return fit(folder, net, optimizer, loss_of, 368, schedule=OneCycleLR(optimizer, 1e-2, total_steps=368),
               score=held_out(net, lambda: F.mse_loss(net(*test[:2]), test[2])))  # fmt: skip
