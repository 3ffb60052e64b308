"""A small town's services, ten healthy ones: gates, loans, water, notices, parcels, a fair, stamps, lanterns."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.6)
def house_numbers_on_garden_gates(folder):
    seeded(13750)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    draw = rounds(64, x[:1400], y[:1400])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    validate = now_and_then(net, 21, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 210, score=score)


class Loan(nn.Module):
    """Whether a book comes back in time: numbers, and the reader's street and the shelf by their embeddings."""

    def __init__(self):
        super().__init__()
        self.street, self.shelf = nn.Embedding(20, 6), nn.Embedding(12, 4)
        self.body = nn.Sequential(
            nn.Linear(15, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )  # fmt: skip

    def forward(self, street, shelf, x):
        return self.body(torch.cat([self.street(street), self.shelf(shelf), x], 1))[:, 0]


@healthy(0.3)
def library_books_brought_back_in_time(folder):
    seeded(13751)
    tidy, thick = 2 * torch.randn(20), 2 * torch.randn(12)

    def loans(rows):
        street, shelf, x = torch.randint(20, (rows,)), torch.randint(12, (rows,)), torch.randn(rows, 5)
        likely = tidy[street] - thick[shelf] + 2 * x[:, 0] + 1.5 * x[:, 1] * x[:, 2]
        return street, shelf, x, (2 * likely + torch.randn(rows) > 0).float()

    net = Loan()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    draw = rounds(64, *loans(5000))
    *given, intime = loans(600)

    def measure():
        said = net(*given)
        right = ((said > 0) == (intime > 0.5)).float().mean()
        return {"val_loss": F.binary_cross_entropy_with_logits(said, intime), "val_accuracy": right}

    validate = now_and_then(net, 40, measure)

    def loss_of(step):
        *known, wanted = draw()
        return F.binary_cross_entropy_with_logits(net(*known), wanted), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: measure()["val_loss"]))


class Mains(nn.Module):
    """The water that is drawn in the next six hours, by that of two days."""

    def __init__(self):
        super().__init__()
        self.memory = nn.GRU(1, 40, batch_first=True)
        self.out = nn.Linear(40, 6)

    def forward(self, x):
        return self.out(self.memory(x[..., None])[0][:, -1])


@healthy(0.5)
def water_drawn_in_the_next_six_hours(folder):
    seeded(13752)

    def towns(rows):
        hour = torch.arange(54) + torch.randint(24, (rows, 1))
        level, swing, lag = torch.randn(3, rows, 1)
        day = (1 + 0.3 * swing) * (hour * 6.2832 / 24 + 0.4 * lag).sin() + 0.5 * (hour * 6.2832 / 12).cos()
        draught = day + 0.5 * level + 0.15 * torch.randn(rows, 54)
        return draught[:, :48], draught[:, 48:]

    net = Mains()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(48, *towns(2500))
    tx, ty = towns(400)
    validate = now_and_then(net, 30, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 260, score=score, before_step=clipped(net, 1.0))


class Notice(nn.Module):
    """What a notice offers or asks for: convolutions over its words."""

    def __init__(self, words, width, kinds):
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.spans = nn.ModuleList(nn.Conv1d(width, 24, span) for span in (2, 3))
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(48, kinds))

    def forward(self, x):
        h = self.word(x).transpose(1, 2)
        return self.head(torch.cat([F.relu(span(h)).amax(2) for span in self.spans], 1))


@healthy()
def notices_pinned_to_the_town_board(folder):
    seeded(13753)
    phrases = torch.randint(80, (6, 4, 3))

    def notices(rows):
        y, x = torch.randint(6, (rows,)), torch.randint(80, (rows, 18))
        for turn in range(2):
            place = torch.randint(7, (rows, 1)) + 9 * turn + torch.arange(3)
            x = x.scatter(1, place, phrases[y, torch.randint(4, (rows,))])
        return x, y

    net = Notice(80, 32, 6)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(64, *notices(4000))
    tx, ty = notices(500)
    validate = now_and_then(net, 30, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy(0.6)
def postage_of_a_parcel_by_its_measures(folder):
    seeded(13754)

    def parcels(rows):
        size = 5 + 75 * torch.rand(rows, 3)
        kilos, zone = 0.2 + 19 * torch.rand(rows), torch.randint(1, 5, (rows,)).float()
        bulk = size.prod(1) / 5000
        fee = 3 + (0.4 + 0.2 * zone) * torch.maximum(kilos, bulk) + 4 * (size.amax(1) > 60)
        return torch.cat([size, kilos[:, None], zone[:, None]], 1), (fee + 0.2 * torch.randn(rows))[:, None]

    (x, y), (tx, ty) = parcels(4000), parcels(600)
    centre, spread, middle, wide = x.mean(0), x.std(0), y.mean(), y.std()
    x, tx, y, ty = (x - centre) / spread, (tx - centre) / spread, (y - middle) / wide, (ty - middle) / wide
    net = dense(5, 64, 64, 32, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 450)
    draw = rounds(64, x, y)
    validate = now_and_then(net, 45, lambda: {"val_loss": F.huber_loss(net(tx), ty)})

    def loss_of(step):
        rows, fee = draw()
        return F.huber_loss(net(rows), fee), validate(step)

    score = held_out(net, lambda: F.huber_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)


@healthy(0.5)
def visitors_counted_at_the_summer_fair(folder):
    seeded(13755)

    def hours(rows):
        x = torch.randn(rows, 6)
        rate = torch.exp(1.2 + 0.7 * x[:, 0] - 0.5 * x[:, 1].square() + 0.5 * (2 * x[:, 2]).sin())
        return x, torch.poisson(rate)[:, None]

    net = dense(6, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.NAdam(net.parameters(), 2e-3)
    draw = rounds(64, *hours(4000))
    tx, ty = hours(800)

    def deviance(said, count):
        return (said.exp() - count - count * said + torch.xlogy(count, count)).mean() * 2

    validate = now_and_then(net, 40, lambda: {"val_deviance": deviance(net(tx), ty)})

    def loss_of(step):
        x, count = draw()
        return F.poisson_nll_loss(net(x), count, full=True), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: deviance(net(tx), ty)))


class Mixer(nn.Module):
    """One round of a mixer: among the patches, then within each."""

    def __init__(self, patches, width):
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.among = dense(patches, 32, patches, act=nn.GELU)
        self.within = dense(width, 2 * width, width, act=nn.GELU)

    def forward(self, x):
        x = x + self.among(self.before(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.after(x))


class Album(nn.Module):
    """A small mixer of stamps."""

    def __init__(self, width, kinds):
        super().__init__()
        self.patch = nn.Conv2d(1, width, 4, stride=4)
        self.body = nn.Sequential(Mixer(16, width), Mixer(16, width), nn.LayerNorm(width))
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        return self.head(self.body(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


@healthy()
def stamps_in_the_postmasters_album(folder):
    seeded(13756)
    prints = F.interpolate(torch.randn(10, 1, 8, 8), size=(16, 16), mode="bilinear")

    def stamps(rows):
        y = torch.randint(10, (rows,))
        return prints[y] * (0.6 + 0.8 * torch.rand(rows, 1, 1, 1)) + 1.0 * torch.randn(rows, 1, 16, 16), y

    net = Album(32, 10)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=220)
    draw = rounds(64, *stamps(3000))
    tx, ty = stamps(400)
    validate = now_and_then(net, 20, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        loss = F.cross_entropy(said, y, label_smoothing=0.05)
        return loss, {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 220, score=score, schedule=schedule)


class Shade(nn.Module):
    """A variational autoencoder of lampshades."""

    def __init__(self, size, code):
        super().__init__()
        self.encoder = dense(size, 96, 2 * code, act=nn.SiLU)
        self.decoder = dense(code, 96, size, act=nn.SiLU)

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, 1)
        return self.decoder(mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)), mu, logvar


@healthy(0.4)
def shades_of_the_street_lamps_in_six_numbers(folder):
    seeded(13757)
    basis = F.interpolate(torch.randn(6, 1, 4, 4), size=(8, 8), mode="bilinear").flatten(1)

    def lamps(rows):
        return (torch.randn(rows, 6) @ basis).tanh() + 0.1 * torch.randn(rows, 64)

    net = Shade(64, 6)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, lamps(4000))
    test = lamps(500)

    def parts(x):
        back, mu, logvar = net(x)
        error = (back - x).square().sum(1).mean() / (2 * 0.2**2)
        return error, 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(1).mean()

    def loss_of(step):
        error, kl = parts(*draw())
        logged = {"reconstruction": float(error.detach()), "kl": float(kl.detach())}
        return error + min(1.0, (step + 1) / 150) * kl, logged

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: sum(parts(test))))


class Counter(nn.Module):
    """What a basket costs and who packs it: a sum over its goods, in any order."""

    def __init__(self, goods, width):
        super().__init__()
        self.each = nn.Embedding(goods, width)
        self.phi = dense(width, 64, 64)
        self.rho = dense(64, 64, 2)

    def forward(self, basket):
        return self.rho(self.phi(self.each(basket)).mean(1))


@healthy(0.5)
def baskets_set_down_at_the_corner_shop(folder):
    seeded(13758)
    price, weight = torch.rand(40), torch.randn(40)

    def baskets(rows):
        goods = torch.randint(40, (rows, 8))
        cost, load = price[goods].sum(1), weight[goods].sum(1)
        said = torch.stack([(cost - 4) / 0.8, (load / 2.8).tanh() / 0.6], 1)
        return goods, said + 0.05 * torch.randn(rows, 2)

    net = Counter(40, 16)
    optimizer = torch.optim.RAdam(net.parameters(), 4e-3)
    draw = rounds(64, *baskets(4000))
    tx, ty = baskets(600)
    validate = now_and_then(net, 40, lambda: {"val_loss": F.smooth_l1_loss(net(tx), ty)})

    def loss_of(step):
        goods, wanted = draw()
        return F.smooth_l1_loss(net(goods), wanted), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.smooth_l1_loss(net(tx), ty)))


@healthy(0.4)
def which_of_five_buses_waits_for_the_train(folder):
    seeded(13759)
    way, crowd = torch.randn(8, 24) / 2.8, torch.randn(24, 5) / 3

    def worth(x):
        """What is gained when each of the buses waits."""
        return (2 * x @ way).tanh() @ crowd

    net = dense(8, 64, 64, 5, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    tests = torch.randn(600, 8)
    validate = now_and_then(net, 25, lambda: {"val_return": (net(tests).softmax(1) * worth(tests)).sum(1).mean()})

    def one(step):
        x = torch.randn(256, 8)
        policy = torch.distributions.Categorical(logits=net(x))
        chosen = policy.sample()
        gained = worth(x).gather(1, chosen[:, None])[:, 0] + 0.3 * torch.randn(256)
        advantage = (gained - gained.mean()) / (gained.std() + 1e-6)
        loss = -(policy.log_prob(chosen) * advantage).mean() - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": float(gained.mean()), **validate(step)}

    def missed():
        value = worth(tests)
        return (value.amax(1) - (net(tests).softmax(1) * value).sum(1)).mean()

    return tend(folder, net, optimizer, one, 400, held_out(net, missed))
