"""A bakery, a planetarium, a railway, an orchard: price tags, proving, seats, nebulae, grafts, zones, cakes."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


def written():
    """Digits, shuffled and standardised: images `[B, 64]` and labels."""
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float() / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    return (x[order] - 0.305) / 0.376, y[order]


@healthy(0.7)
def price_tags_in_the_window_read_by_a_mixer_of_patches(folder):
    seeded(14812)
    x, y = written()
    draw = rounds(64, x[:1400], y[:1400])

    class Mixer(nn.Module):
        def __init__(self, patches=16, width=32):
            super().__init__()
            self.cut = nn.Conv2d(1, width, 2, stride=2)
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
            self.across = nn.ModuleList(dense(patches, 32, patches, act=nn.GELU) for _ in range(2))
            self.within = nn.ModuleList(dense(width, 64, width, act=nn.GELU) for _ in range(2))
            self.head = nn.Linear(width, 10)

        def forward(self, image):
            h = self.cut(image.view(-1, 1, 8, 8)).flatten(2).mT
            for n in range(2):
                h = h + self.across[n](self.norms[2 * n](h).mT).mT
                h = h + self.within[n](self.norms[2 * n + 1](h))
            return self.head(self.norms[4](h).mean(1))

    net = Mixer()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, 252, pct_start=0.2)
    validate = now_and_then(net, 21, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, price = draw()
        said = net(image)
        right = (said.argmax(1) == price).float().mean()
        return F.cross_entropy(said, price), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 252, score=score, schedule=schedule)


@healthy(0.6)
def hours_of_proving_from_flour_water_and_warmth(folder):
    seeded(14813)

    def doughs(rows):
        flour, water, warmth, yeast, salt = torch.randn(5, rows)
        hours = (-0.5 * warmth - 0.4 * yeast).exp() * (1 + 0.3 * salt.tanh()) + 0.3 * (flour * water).tanh()
        odd = torch.rand(rows) < 0.03
        hours = hours + torch.where(odd, 3.0, 0.1) * torch.randn(rows)
        return torch.stack([flour, water, warmth, yeast, salt], 1), hours[:, None]

    (x, y), (vx, vy) = doughs(3000), doughs(1000)
    centre, scale = y.mean(), y.std()
    y, vy = (y - centre) / scale, (vy - centre) / scale
    draw = rounds(100, x, y)
    net = dense(5, 48, 48, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 450)
    criterion = nn.HuberLoss(delta=0.5)
    validate = now_and_then(net, 30, lambda: {"val_loss": criterion(net(vx), vy)})

    def loss_of(step):
        dough, hours = draw()
        return criterion(net(dough), hours), validate(step)

    score = held_out(net, lambda: criterion(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)


@healthy(0.7)
def seats_taken_on_the_commuter_line_in_the_next_hour(folder):
    seeded(14814)
    hour = torch.arange(2400)
    day, week = 6.2832 * hour / 24, 6.2832 * hour / 168
    crowd = (day - 1).sin() + 0.6 * (2 * day).sin() * (1 + 0.5 * week.cos())
    drift = torch.zeros(2400)
    for n in range(1, 2400):
        drift[n] = 0.9 * drift[n - 1] + 0.08 * torch.randn(())
    seats = crowd + drift
    seats = (seats - seats[:1800].mean()) / seats[:1800].std()
    windows = seats.unfold(0, 37, 1)
    past, later = windows[:1760], windows[1800:]
    draw = rounds(48, past)

    class Forecast(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = nn.GRU(1, 32, batch_first=True)
            self.head = nn.Linear(32, 1)

        def forward(self, window):
            return window[:, -1] + self.head(self.memory(window[..., None])[0][:, -1])[:, 0]

    net = Forecast()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    validate = now_and_then(net, 36, lambda: {"val_loss": F.mse_loss(net(later[:, :-1]), later[:, -1])})

    def loss_of(step):
        (window,) = draw()
        return F.mse_loss(net(window[:, :-1]), window[:, -1]), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(later[:, :-1]), later[:, -1]))
    return fit(folder, net, optimizer, loss_of, 216, score=score, before_step=clipped(net, 1.0))


@healthy(0.5)
def outlines_of_nebulae_on_plates_of_the_sky(folder):
    seeded(14815)
    across = torch.arange(16).float()

    def plates(rows):
        at, wide = 4 + 8 * torch.rand(rows, 2, 1, 1), 2.5 + 2 * torch.rand(rows, 2, 1, 1)
        down = (across[None, :, None] - at[:, 0]) / wide[:, 0]
        right = (across[None, None, :] - at[:, 1]) / wide[:, 1]
        far = down.square() + right.square()
        star = (torch.rand(rows, 16, 16) < 0.03).float()
        glow = 1.4 * (-far).exp() + 1.5 * star + 0.25 * torch.randn(rows, 16, 16)
        return ((glow - 0.25) / 0.5)[:, None], (far < 1).float()[:, None]

    (x, y), (vx, vy) = plates(1200), plates(300)
    draw = rounds(24, x, y)

    class Outline(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU())
            self.deep = nn.Sequential(
                nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.GroupNorm(3, 24), nn.ReLU(),
                nn.ConvTranspose2d(24, 12, 2, stride=2),
            )  # fmt: skip
            self.up = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))

        def forward(self, plate):
            h = self.down(plate)
            return self.up(torch.cat([h, self.deep(h)], 1))

    net = Outline()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)

    def terms(plate, mask):
        said = net(plate)
        share = said.sigmoid()
        both = (share * mask).sum((1, 2, 3))
        dice = 1 - ((2 * both + 1) / (share.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)).mean()
        return F.binary_cross_entropy_with_logits(said, mask), dice

    validate = now_and_then(net, 50, lambda: {"val_loss": sum(terms(vx, vy))})

    def loss_of(step):
        bce, dice = terms(*draw())
        return bce + dice, {"bce": float(bce), "dice": float(dice), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: sum(terms(vx, vy))))


@healthy(0.5)
def scions_matched_to_the_rootstocks_that_they_take_to(folder):
    seeded(14816)
    lifts = torch.randn(2, 4, 16)

    def grafts(rows):
        sap = torch.randn(rows, 4)
        return [(sap @ lift).tanh() + 0.1 * torch.randn(rows, 16) for lift in lifts]

    scions, roots = grafts(6000)
    others = grafts(256)
    draw = rounds(64, scions, roots)

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.scion, self.root = dense(16, 64, 16), dense(16, 64, 16)
            self.scale = nn.Parameter(torch.tensor(10.0).log())

        def forward(self, scion, root):
            a, b = F.normalize(self.scion(scion), dim=1), F.normalize(self.root(root), dim=1)
            return self.scale.exp() * a @ b.T

    net = Towers()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def contrast(scion, root):
        said, each = net(scion, root), torch.arange(len(scion))
        return (F.cross_entropy(said, each) + F.cross_entropy(said.T, each)) / 2, said

    def loss_of(step):
        loss, said = contrast(*draw())
        right = (said.argmax(1) == torch.arange(len(said))).float().mean()
        return loss, {"accuracy": float(right), "scale": float(net.scale.detach().exp())}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: contrast(*others)[0]))


@healthy(0.5)
def kinds_of_words_in_announcements_on_the_platform(folder):
    seeded(14817)
    words, kinds, length = 60, 5, 12
    own = torch.randint(kinds, (words,))

    def announcements(rows):
        """What a word is depends on itself and, for a third of all words, on the one before it."""
        text = torch.randint(words, (rows, length))
        before = F.pad(own[text], (1, 0))[:, :-1]
        return text, torch.where(text % 3 == 0, (own[text] + before) % kinds, own[text])

    (x, y), (vx, vy) = announcements(4000), announcements(400)
    draw = rounds(32, x, y)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(words, 32)
            self.place = nn.Parameter(0.02 * torch.randn(length, 32))
            self.body = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, norm_first=True, batch_first=True)
            self.window = nn.Conv1d(32, 32, 3, padding=1)
            self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, kinds))

        def forward(self, text):
            h = self.embed(text) + self.place
            h = h + F.gelu(self.window(h.mT)).mT
            return self.head(self.body(h))

    net = Tagger()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 30, (400 - n) / 370))

    def measure():
        said = net(vx)
        return {
            "val_loss": F.cross_entropy(said.flatten(0, 1), vy.flatten()),
            "val_accuracy": (said.argmax(2) == vy).float().mean(),
        }

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        text, kind = draw()
        return F.cross_entropy(net(text).flatten(0, 1), kind.flatten(), label_smoothing=0.05), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(vx).flatten(0, 1), vy.flatten()))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


@healthy(0.5)
def smudged_numbers_on_flour_sacks_made_clean(folder):
    seeded(14818)
    x, _ = written()
    x, vx = x[:1500], x[1500:]
    smudge = torch.randn(len(vx), 64)
    draw = rounds(50, x)
    net = nn.Sequential(
        nn.Linear(64, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 128), nn.ReLU(),
        nn.Linear(128, 64),
    )  # fmt: skip
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)

    def loss_of(step):
        (image,) = draw()
        return F.mse_loss(net(image + 0.6 * torch.randn_like(image)), image)

    score = held_out(net, lambda: F.mse_loss(net(vx + 0.6 * smudge), vx))
    return fit(folder, net, optimizer, loss_of, 480, score=score, schedule=schedule)


@healthy(0.6)
def fare_zones_of_stations_told_over_the_lines_between_them(folder):
    seeded(14819)
    stations, zones = 240, 4
    zone = torch.randint(zones, (stations,))
    near = torch.where(zone[:, None] == zone, 0.08, 0.008)
    line = (torch.rand(stations, stations) < near).float().triu(1)
    line = line + line.T + torch.eye(stations)
    root = line.sum(1).rsqrt()
    spread = root[:, None] * line * root
    x = 0.8 * F.one_hot(zone, zones) @ torch.randn(zones, 16) + torch.randn(stations, 16)
    order = torch.randperm(stations)
    known, asked = order[:120], order[120:]

    class Zones(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(16, 32), nn.Linear(32, zones)

        def forward(self, x):
            h = F.dropout(F.relu(spread @ self.first(x)), 0.4, self.training)
            return spread @ self.second(h)

    net = Zones()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)

    def measure():
        said = net(x)[asked]
        right = (said.argmax(1) == zone[asked]).float().mean()
        return {"val_loss": F.cross_entropy(said, zone[asked]), "val_accuracy": right}

    validate = now_and_then(net, 10, measure)

    def loss_of(step):
        return F.cross_entropy(net(x)[known], zone[known]), validate(step)

    return fit(folder, net, optimizer, loss_of, 120, score=held_out(net, lambda: measure()["val_loss"]))


@healthy(0.5)
def how_much_each_customer_likes_each_cake(folder):
    seeded(14820)
    people, cakes = 150, 80
    likes = (torch.randn(people, 3) @ torch.randn(3, cakes)) / 3**0.5
    likes = 0.8 * likes + 0.5 * torch.randn(people, 1) + 0.5 * torch.randn(cakes)
    who, what = torch.cartesian_prod(torch.arange(people), torch.arange(cakes)).unbind(1)
    order = torch.randperm(len(who))[:9000]
    who, what = who[order], what[order]
    stars = 3.5 + likes[who, what] + 0.1 * torch.randn(len(who))
    middle = stars[:7500].mean()
    draw = rounds(128, who[:7500], what[:7500], stars[:7500])

    class Tastes(nn.Module):
        def __init__(self):
            super().__init__()
            self.person, self.cake = nn.Embedding(people, 8), nn.Embedding(cakes, 8)
            self.generous, self.good = nn.Embedding(people, 1), nn.Embedding(cakes, 1)
            for table in (self.person, self.cake):
                nn.init.normal_(table.weight, std=0.3)
            for table in (self.generous, self.good):
                nn.init.zeros_(table.weight)

        def forward(self, who, what):
            both = (self.person(who) * self.cake(what)).sum(1)
            return middle + both + self.generous(who)[:, 0] + self.good(what)[:, 0]

    net = Tastes()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=1e-5)

    def missed():
        return F.mse_loss(net(who[7500:], what[7500:]), stars[7500:])

    validate = now_and_then(net, 58, lambda: {"val_rmse": missed().sqrt()})

    def loss_of(step):
        person, cake, given = draw()
        return F.mse_loss(net(person, cake), given), validate(step)

    return fit(folder, net, optimizer, loss_of, 580, score=held_out(net, missed))


@healthy(0.6)
def colours_of_double_stars_by_sharpness_aware_steps(folder):
    seeded(14821)
    lift = torch.randn(2, 10)

    def pairs(rows):
        kind = torch.randint(3, (rows,))
        angle = 6.2832 * torch.rand(rows)
        flat = torch.stack([angle.cos(), angle.sin()], 1) * (0.6 + 0.7 * kind[:, None])
        return (flat + 0.08 * torch.randn(rows, 2)) @ lift, kind

    (x, y), (vx, vy) = pairs(2000), pairs(1000)
    centre, scale = x.mean(0), x.std(0)
    x, vx = (x - centre) / scale, (vx - centre) / scale
    draw = rounds(64, x, y)
    net = dense(10, 64, 64, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    validate = now_and_then(net, 31, judged(net, vx, vy))

    def one(step):
        found = validate(step)
        star, kind = draw()
        loss = F.cross_entropy(net(star), kind)
        weights = list(net.parameters())
        gradients = torch.autograd.grad(loss, weights)
        size = torch.stack([g.norm() for g in gradients]).norm() + 1e-12
        aside = [0.03 * g / size for g in gradients]
        with torch.no_grad():
            for weight, move in zip(weights, aside, strict=True):
                weight.add_(move)
        optimizer.zero_grad()
        F.cross_entropy(net(star), kind).backward()
        with torch.no_grad():
            for weight, move in zip(weights, aside, strict=True):
                weight.sub_(move)
        optimizer.step()
        return {"loss": loss, **found}

    return tend(folder, net, optimizer, one, 310, held_out(net, lambda: F.cross_entropy(net(vx), vy)))
