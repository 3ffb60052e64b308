"""Ten more of the same places: delays, catalogue codes, hills, hydrant maps, fraud, dunes, forgeries, alarms, paths."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, judged, now_and_then, rounds, tend


@healthy(0.3)
def how_late_a_flight_may_be_in_three_quantiles(folder):
    seeded(14222)
    way = torch.randn(10, 2) / 10**0.5
    levels = torch.tensor([0.1, 0.5, 0.9])

    def flights(rows):
        x = torch.randn(rows, 10)
        seen = x @ way
        return x, 20 + 15 * seen[:, :1] + 10 * (0.3 + seen[:, 1:].sigmoid()) * torch.randn(rows, 1)

    (x, y), (tx, ty) = flights(4000), flights(1000)
    middle, spread = y.mean(), y.std()
    y, ty = (y - middle) / spread, (ty - middle) / spread
    draw = rounds(64, x, y)
    net = dense(10, 64, 64, 3, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=300, pct_start=0.2)

    def pinball(said, late):
        over = late - said
        return torch.maximum(levels * over, (levels - 1) * over).mean()

    validate = now_and_then(net, 62, lambda: {"val_loss": pinball(net(tx), ty)})

    def loss_of(step):
        flight, late = draw()
        return pinball(net(flight), late), validate(step)

    score = held_out(net, lambda: pinball(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


@healthy(0.4)
def codes_for_catalogue_pictures(folder):
    seeded(14223)
    images = (torch.tensor(load_digits().data).float() / 16)[torch.randperm(1797)]
    draw = rounds(64, images[:1500])
    rest = images[1500:]

    class Coder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = dense(64, 96, 16), dense(8, 96, 64)

        def forward(self, x):
            mean, logvar = self.encoder(x).chunk(2, 1)
            code = mean + torch.randn_like(mean) * (0.5 * logvar).exp() if self.training else mean
            return self.decoder(code), mean, logvar

    net = Coder()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def bound(image):
        """Minus the evidence, of each pixel as a coin; both terms are summed over an image."""
        back, mean, logvar = net(image)
        entropy = F.binary_cross_entropy_with_logits(back, image, reduction="none").sum(1).mean()
        return entropy, -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(1).mean()

    def loss_of(step):
        (image,) = draw()
        entropy, divergence = bound(image)
        return entropy + divergence, {"reconstruction": float(entropy), "kl": float(divergence)}

    def error():
        return F.mse_loss(net(rest)[0].sigmoid(), rest)

    return fit(folder, net, optimizer, loss_of, 345, score=held_out(net, error))


@healthy(0.6)
def heights_of_the_reserve_at_any_place(folder):
    seeded(14224)
    hills, wide = torch.rand(12, 2), 0.06 + 0.12 * torch.rand(12)
    tall = torch.randn(12)

    def surveyed(rows):
        place = torch.rand(rows, 2)
        away = (place[:, None] - hills).square().sum(2)
        return place, ((-away / (2 * wide.square())).exp() * tall).sum(1, keepdim=True)

    x, y = surveyed(4000)
    middle, spread = y.mean(), y.std()
    y = (y - middle) / spread
    tx, ty = surveyed(1000)
    ty = (ty - middle) / spread

    class Map(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("waves", 1.5 * torch.randn(2, 32))
            self.net = dense(64, 64, 64, 1)

        def forward(self, place):
            angle = 6.2832 * place @ self.waves
            return self.net(torch.cat([angle.sin(), angle.cos()], 1))

    net = Map()
    draw = rounds(128, x, y)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.993)

    def loss_of(step):
        place, height = draw()
        loss = F.mse_loss(net(place), height)
        return loss, {"psnr": float(-10 * loss.detach().log10())}

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


@healthy(0.5)
def districts_of_a_network_of_hydrants(folder):
    seeded(14225)
    nodes, kinds = 400, 5
    district = torch.randint(kinds, (nodes,))
    alike = district[:, None] == district
    pipes = torch.bernoulli(torch.where(alike, 0.05, 0.006)).triu(1)
    pipes = pipes + pipes.T + torch.eye(nodes)
    degree = pipes.sum(1)
    mix = pipes / (degree[:, None] * degree).sqrt()
    x = torch.randn(kinds, 16)[district] + 2 * torch.randn(nodes, 16)
    x = (x - x.mean(0)) / x.std(0)
    order = torch.randperm(nodes)
    known, hidden = order[:200], order[200:]

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(16, 32), nn.Linear(32, kinds)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return mix @ self.second(self.drop((mix @ self.first(x)).relu()))

    net = Network()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)

    def measure():
        said = net(x)[hidden]
        right = (said.argmax(1) == district[hidden]).float().mean()
        return {"val_loss": F.cross_entropy(said, district[hidden]), "val_accuracy": right}

    validate = now_and_then(net, 15, measure)

    def loss_of(step):
        return F.cross_entropy(net(x)[known], district[known]), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(x)[hidden], district[hidden]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy(0.3)
def days_of_an_account_that_a_thief_uses(folder):
    seeded(14226)
    longest = 18

    def accounts(rows):
        stolen, length = (torch.rand(rows) < 0.4).float(), torch.randint(8, longest + 1, (rows,))
        day = torch.arange(longest)
        start = (torch.rand(rows) * (length - 4)).long()
        thief = ((day >= start[:, None]) & (day < start[:, None] + 4)).float() * stolen[:, None]
        spent, times = torch.randn(rows, longest) + 1.2 * thief, torch.randn(rows, longest) + 0.9 * thief
        held = (day < length[:, None]).float()
        return torch.stack([spent, times], 2) * held[:, :, None], length, stolen

    class Guard(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(2, 24, batch_first=True, bidirectional=True)
            self.head = nn.Linear(48, 1)

        def forward(self, x, length):
            packed = pack_padded_sequence(x, length, batch_first=True, enforce_sorted=False)
            last = self.lstm(packed)[1][0]
            return self.head(torch.cat([last[0], last[1]], 1))[:, 0]

    (x, n, y), (tx, tn, ty) = accounts(3000), accounts(300)
    draw = rounds(40, x, n, y)
    net = Guard()
    optimizer = torch.optim.RMSprop(net.parameters(), 2e-3)

    def error():
        return F.binary_cross_entropy_with_logits(net(tx, tn), ty)

    validate = now_and_then(net, 60, lambda: {"val_loss": error()})

    def loss_of(step):
        account, length, stolen = draw()
        said = net(account, length)
        right = ((said > 0) == (stolen > 0.5)).float().mean()
        return F.binary_cross_entropy_with_logits(said, stolen), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 180, score=held_out(net, error), before_step=clipped(net, 1.0))


@healthy(0.3)
def dunes_drawn_from_noise(folder):
    seeded(14227)
    keep = torch.cumprod(1 - torch.linspace(1e-4, 0.12, 50), 0)

    def dunes(rows):
        """Two crescents, each coordinate about one in size."""
        side, angle = torch.randint(2, (rows,)).float(), 3.1416 * torch.rand(rows)
        flat = torch.stack([angle.cos() + side, (1 - 2 * side) * angle.sin() + 0.5 * side], 1)
        return (flat - torch.tensor([0.5, 0.25])) / torch.tensor([0.87, 0.5]) + 0.05 * torch.randn(rows, 2)

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.time, self.net = nn.Embedding(50, 16), dense(18, 96, 96, 2, act=nn.SiLU)

        def forward(self, x, t):
            return self.net(torch.cat([x, self.time(t)], 1))

    net = Denoiser()
    draw = rounds(128, dunes(8000))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-3)

    def error(x, t, noise):
        noisy = keep[t].sqrt()[:, None] * x + (1 - keep[t]).sqrt()[:, None] * noise
        return F.mse_loss(net(noisy, t), noise)

    fixed = (dunes(2000), torch.randint(50, (2000,)), torch.randn(2000, 2))

    def loss_of(step):
        (dune,) = draw()
        return error(dune, torch.randint(50, (128,)), torch.randn(128, 2))

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: error(*fixed)))


@healthy(0.6)
def medals_struck_after_real_ones(folder):
    seeded(14228)
    lift = torch.randn(2, 6) / 2**0.5

    def medals(rows=64):
        angle = 6.2832 * torch.rand(rows)
        return torch.stack([2 * angle.cos(), angle.sin()], 1) @ lift + 1 + 0.1 * torch.randn(rows, 6)

    make, judge = dense(4, 48, 48, 6), dense(6, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))

    def judge_loss():
        struck = make(torch.randn(64, 4)).detach()
        return F.softplus(-judge(medals())).mean() + F.softplus(judge(struck)).mean()

    def make_loss():
        return F.softplus(-judge(make(torch.randn(64, 4)))).mean()

    real, noise = medals(400), torch.randn(400, 4)

    def score():
        """The energy distance of what is struck and what is real."""
        with torch.no_grad():
            struck = make(noise)
            across, within = torch.cdist(struck, real).mean(), torch.cdist(struck, struck).mean()
            return float(2 * across - within - torch.cdist(real, real).mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, score)


@healthy(0.3)
def what_an_alarm_call_mentions(folder):
    seeded(14229)
    words, things, length = 120, 8, 16
    of_thing = torch.randperm(words)[:64].view(things, 8)

    def calls(rows):
        there = (torch.rand(rows, things) < 0.3).float()
        chosen = (there + 0.05).multinomial(length, replacement=True)
        spoken = of_thing[chosen, torch.randint(8, (rows, length))]
        anything = torch.randint(words, (rows, length))
        return torch.where(torch.rand(rows, length) < 0.6, spoken, anything), there

    class Listener(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(words, 32)
            self.read = nn.Conv1d(32, 48, 3, padding=1)
            self.drop, self.head = nn.Dropout(0.2), nn.Linear(48, things)

        def forward(self, x):
            return self.head(self.drop(self.read(self.embed(x).mT).relu().mean(2)))

    (x, y), (tx, ty) = calls(5000), calls(600)
    draw = rounds(32, x, y)
    net = Listener()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def measure():
        said = net(tx)
        hits = ((said > 0) & (ty > 0.5)).sum()
        return {"val_loss": F.binary_cross_entropy_with_logits(said, ty),
                "val_f1": 2 * hits / ((said > 0).sum() + ty.sum())}  # fmt: skip

    validate = now_and_then(net, 100, measure)

    def one(step):
        """Two small batches to a step."""
        optimizer.zero_grad()
        total = 0.0
        for _ in range(2):
            call, mentioned = draw()
            loss = F.binary_cross_entropy_with_logits(net(call), mentioned) / 2
            loss.backward()
            total += loss.item()
        optimizer.step()
        return {"loss": total, **validate(step)}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(tx), ty))
    return tend(folder, net, optimizer, one, 300, score)


@healthy(0.5)
def pocket_guide_taught_by_the_large_one(folder):
    seeded(14230)
    way = torch.randn(12, 6)

    def plants(rows):
        x = torch.randn(rows, 12)
        return x, (x @ way + 2 * (x @ way.flip(0)).sin()).argmax(1)

    (x, y), (tx, ty) = plants(3000), plants(800)
    draw = rounds(64, x, y)
    large, net = dense(12, 192, 192, 6), dense(12, 48, 6)
    of_large = torch.optim.Adam(large.parameters(), 2e-3)
    for _ in range(350):
        plant, kind = draw()
        of_large.zero_grad()
        F.cross_entropy(large(plant), kind).backward()
        of_large.step()
    large.eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), 5e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350)
    validate = now_and_then(net, 46, judged(net, tx, ty))

    def loss_of(step, heat=2.0):
        plant, kind = draw()
        said = net(plant)
        soft = F.kl_div((said / heat).log_softmax(1), (large(plant) / heat).softmax(1), reduction="batchmean") * heat**2
        hard = F.cross_entropy(said, kind)
        return 0.5 * soft + 0.5 * hard, {"distillation": float(soft), "cross_entropy": float(hard), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


@healthy(0.5)
def cellars_of_the_airport_restaurant(folder):
    seeded(14231)
    bunch = load_wine()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:120].mean(0)) / x[:120].std(0)
    draw = rounds(20, x[:120], y[:120])
    net = nn.Linear(13, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, weight_decay=1e-3)

    def loss_of(step):
        wine, cellar = draw()
        said = net(wine)
        return F.cross_entropy(said, cellar), {"accuracy": float((said.argmax(1) == cellar).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[120:]), y[120:]))
    return fit(folder, net, optimizer, loss_of, 180, score=score)
