"""Airports, balloons, gliders and towers: routes, radio calls, shapes from below, runways, soundings, wind profiles."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds, tend


class Routes(nn.Module):
    """A graph convolutional network over the airports that flights join."""

    def __init__(self, links, ins, width, kinds, depth):
        super().__init__()
        self.register_buffer("links", links)
        self.first = nn.Linear(ins, width)
        self.rounds = nn.ModuleList(nn.Linear(width, width) for _ in range(depth - 1))
        self.head = nn.Linear(width, kinds)
        for layer in (self.first, *self.rounds):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        h = F.relu(self.links @ self.first(x))
        for layer in self.rounds:
            h = F.relu(self.links @ layer(h))
        return self.head(h)


# 26 of the list
@sick("over-smoothing", "representation-collapse",
      where="the rounds of messages, all steps: all airports come out alike",
      cure="two rounds of messages in place of fourteen")  # fmt: skip
def airports_by_their_region_on_the_route_map(folder, ill):
    seeded(13400)
    region = torch.randint(5, (400,))
    chance = torch.where(region[:, None] == region, 0.09, 0.018)
    flown = (torch.rand(400, 400) < chance).float().triu(1)
    flown = flown + flown.T + torch.eye(400)
    reach = flown.sum(1).rsqrt()
    x = 0.7 * torch.randn(5, 16)[region] + torch.randn(400, 16)
    known, rest = torch.arange(200), torch.arange(200, 400)
    net = Routes(reach[:, None] * flown * reach, 16, 48, 5, 14 if ill else 2)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3, weight_decay=5e-4)

    def measure():
        said = net(x)[rest]
        right = (said.argmax(1) == region[rest]).float().mean()
        return {"val_loss": F.cross_entropy(said, region[rest]), "val_accuracy": right}

    validate = now_and_then(net, 20, measure)

    def loss_of(step):
        said = net(x)[known]
        right = (said.argmax(1) == region[known]).float().mean()
        return F.cross_entropy(said, region[known]), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: measure()["val_loss"]))


class Call(nn.Module):
    """What a call over the radio is about: convolutions over its words."""

    def __init__(self, words, kinds, width):
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.spans = nn.ModuleList(nn.Conv1d(width, 32, span, padding=1) for span in (2, 3, 4))
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(96, kinds))

    def forward(self, x):
        h = self.word(x).transpose(1, 2)
        return self.head(torch.cat([F.relu(span(h)).amax(2) for span in self.spans], 1))


class Purpose(nn.Module):
    """A body, and what stands behind it."""

    def __init__(self, body, last):
        super().__init__()
        self.body, self.last = body, last

    def forward(self, x):
        return self.last(self.body(x))


# 2 of the list
@sick("softmax-twice", where="the end of the model and the loss, all steps", cure="hand the logits to the loss")
def calls_to_the_control_tower_by_their_purpose(folder, ill):
    seeded(13401)
    phrases = torch.randint(120, (40, 2, 3))

    def calls(rows):
        y = torch.randint(40, (rows,))
        x = torch.randint(120, (rows, 16))
        for turn in range(2):
            at = torch.randint(6, (rows,)) + 8 * turn
            said = torch.rand(rows, 1) < 0.85
            place = at[:, None] + torch.arange(3)
            x = x.scatter(1, place, torch.where(said, phrases[y, turn], x.gather(1, place)))
        return x, y

    draw = rounds(64, *calls(6000))
    net = Purpose(Call(120, 40, 32), nn.Softmax(dim=-1) if ill else nn.Identity())
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    tx, ty = calls(800)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        right = (said.argmax(1) == y).float().mean()
        return F.cross_entropy(said, y), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: (net(tx).argmax(1) != ty).float().mean())
    return fit(folder, net, optimizer, loss_of, 400, score=score)


# 10 of the list
@sick("schedule-too-short", "epoch-schedule-stepped-per-batch", "scheduler-stepped-per-batch",
      where="all layers, from some fifty steps on", cure="step the schedule once in an epoch")  # fmt: skip
def aeroplanes_by_their_shape_from_below(folder, ill):
    seeded(13402)
    shapes = F.interpolate(torch.randn(12, 1, 6, 6), size=(16, 16), mode="bilinear").sign()

    def sightings(rows):
        y = torch.randint(12, (rows,))
        image = shapes[y] * (0.5 + torch.rand(rows, 1, 1, 1))
        shift = torch.randint(-2, 3, (rows, 2))
        image = torch.stack([one.roll(by.tolist(), (1, 2)) for one, by in zip(image, shift, strict=False)])
        return image + 0.9 * torch.randn(rows, 1, 16, 16), y

    x, y = sightings(3200)
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 12),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    tx, ty = sightings(500)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def one(step):
        image, kind = draw()
        optimizer.zero_grad()
        said = net(image)
        loss = F.cross_entropy(said, kind)
        loss.backward()
        optimizer.step()
        if ill or step % 50 == 49:
            scheduler.step()
        return {"loss": loss, "accuracy": float((said.argmax(1) == kind).float().mean()), **validate(step)}

    return tend(folder, net, optimizer, one, 300, held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Runway(nn.Module):
    """How wet a runway is, by a frame from the air."""

    def __init__(self, norm, flat):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False), norm(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), norm(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1, bias=False), norm(32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(32, 48, bias=False), flat(48), nn.ReLU(), nn.Linear(48, 4))

    def forward(self, x):
        return self.head(self.body(x))


# 36 of the list
@sick("norm-over-too-few", "norm-statistics-noisy", where="all batch norms, those of the head before all, all steps",
      cure="group norms, which do not ask how many rows there are")  # fmt: skip
def wet_patches_on_a_runway_in_aerial_frames(folder, ill):
    seeded(13403)

    def frames(rows):
        y = torch.randint(4, (rows,))
        field = F.interpolate(torch.randn(rows, 1, 9, 9), size=(32, 32), mode="bilinear")
        wet = (field > torch.tensor([1.3, 0.75, 0.3, -0.1])[y].view(-1, 1, 1, 1)).float()
        light = 0.2 * torch.randn(rows, 1, 1, 1)
        return wet - 0.3 + light + 0.3 * torch.randn(rows, 1, 32, 32), y

    def group(width):
        return nn.GroupNorm(4, width)

    draw = rounds(2, *frames(1000))
    net = Runway(nn.BatchNorm2d, nn.BatchNorm1d) if ill else Runway(group, group)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    tx, ty = frames(400)
    validate = now_and_then(net, 60, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 5 of the list
@sick("inputs-not-normalised", "columns-on-unlike-scales", "features-not-normalised",
      where="what comes into the first layer, all steps", cure="standardise each column")  # fmt: skip
def soundings_of_a_balloon_by_their_air_mass(folder, ill):
    seeded(13404)
    # pascals, kelvins, share of saturation, metres, metres a second, kelvins a metre, kilograms a cubic metre
    usual = torch.tensor([70_000.0, 275.0, 0.6, 3_000.0, 12.0, 0.0065, 0.9])
    give = torch.tensor([8_000.0, 9.0, 0.2, 900.0, 5.0, 0.0015, 0.1])
    centres = 1.4 * torch.randn(6, 2, 7)

    def soundings(rows):
        y = torch.randint(6, (rows,))
        return usual + give * (centres[y, torch.randint(2, (rows,))] + 0.6 * torch.randn(rows, 7)), y

    x, y = soundings(2400)
    tx, ty = soundings(600)
    if not ill:
        centre, spread = x.mean(0), x.std(0)
        x, tx = (x - centre) / spread, (tx - centre) / spread
    draw = rounds(48, x, y)
    net = nn.Sequential(
        nn.Linear(7, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Dropout(0.1), nn.Linear(96, 6)
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        rows, mass = draw()
        said = net(rows)
        right = (said.argmax(1) == mass).float().mean()
        return F.cross_entropy(said, mass), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Profiles(nn.Module):
    """A variational autoencoder of the wind over height."""

    def __init__(self, size, code, ill):
        super().__init__()
        self.encoder = nn.Sequential(dense(size, 64, 64), nn.ReLU())
        self.mu, self.logvar = nn.Linear(64, code), nn.Linear(64, code)
        self.decoder = dense(code, 64, 64, size)
        self.ill = ill

    def reparameterize(self, mu, logvar):
        std = logvar if self.ill else torch.exp(0.5 * logvar)
        return mu + std * torch.randn_like(mu)

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        return self.decoder(self.reparameterize(mu, logvar)), mu, logvar


# 22 of the list
@sick("log-variance-as-deviation", where="the draw of the code, all steps",
      cure="the exponential of half the log-variance as the deviation")  # fmt: skip
def wind_profiles_from_four_drawn_numbers(folder, ill):
    seeded(13405)
    height = torch.linspace(0, 1, 24)

    def profiles(rows):
        shear, jet, at, turn = torch.randn(4, rows, 1)
        speed = (1 + 0.4 * shear) * height.sqrt() + (0.6 + 0.3 * jet) * torch.exp(
            -((height - 0.6 - 0.1 * at) ** 2) / 0.02
        )
        return 2 * (speed + 0.3 * turn * (6 * height).sin() - 0.9) + 0.1 * torch.randn(rows, 24)

    draw = rounds(64, profiles(4000))
    net = Profiles(24, 4, ill)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        (x,) = draw()
        back, mu, logvar = net(x)
        error = (back - x).square().sum(1).mean() / (2 * 0.3**2)
        kl = 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(1).mean()
        return error + kl, {"reconstruction": float(error.detach()), "kl": float(kl.detach())}

    test = profiles(500)

    def apart():
        """The energy distance of what is drawn to what was measured."""
        made = net.decoder(torch.randn(500, 4))
        return 2 * torch.cdist(made, test).mean() - torch.cdist(made, made).mean() - torch.cdist(test, test).mean()

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, apart))
