"""A valley's dam, post office, market, farm and school: inflow, rounds, takings, udders, copybooks, parcels."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, now_and_then, rounds


# 1 of the list
@sick("lr-too-high", "update-too-large", where="all layers, all steps",
      cure="a rate of a thousandth: a tenth is for plain SGD, not for Adam")  # fmt: skip
def tomorrows_inflow_behind_the_dam_from_three_rain_gauges(folder, ill):
    seeded(14300)
    share, fade = torch.tensor([0.6, 0.3, 0.9]), torch.tensor([0.9, 0.8, 0.6])

    def days(rows):
        rain = torch.rand(rows, 20, 3).pow(3)
        stored = torch.zeros(rows, 3)
        for hour in range(20):
            stored = fade * stored + rain[:, hour]
        inflow = (share * stored).sum(1, keepdim=True)
        inflow = inflow + 0.5 * (inflow - 1.5).relu().square() + 0.05 * torch.randn(rows, 1)
        return (rain - 0.25) / 0.28, inflow

    class Forecaster(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Linear(3, 32), nn.Linear(32, 1)
            self.place = nn.Parameter(0.1 * torch.randn(20, 32))
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 2)

        def forward(self, rain):
            return self.head(self.body(self.embed(rain) + self.place).mean(1))

    (x, y), (vx, vy) = days(3000), days(800)
    middle, spread = y.mean(), y.std()
    y, vy = (y - middle) / spread, (vy - middle) / spread
    draw = rounds(32, x, y)
    net = Forecaster()
    optimizer = torch.optim.Adam(net.parameters(), 0.1 if ill else 1e-3)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(vx), vy)})

    def loss_of(step):
        rain, inflow = draw()
        return F.mse_loss(net(rain), inflow), validate(step)

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.mse_loss(net(vx), vy)))


# 3 of the list
@sick("softmax-twice", "double-softmax", where="the last layer and the loss, all steps",
      cure="hand the logits to the cross-entropy, without a softmax in the model")  # fmt: skip
def postmens_rounds_for_letters_by_their_street_codes(folder, ill):
    seeded(14301)
    towns = 24
    homes = torch.randn(towns, 2, 20)

    def letters(rows):
        town = torch.randint(towns, (rows,))
        return homes[town, torch.randint(2, (rows,))] + 0.7 * torch.randn(rows, 20), town

    (x, y), (vx, vy) = letters(5000), letters(1500)
    draw = rounds(64, x, y)
    layers = [nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, towns)]
    net = nn.Sequential(*layers, *([nn.Softmax(dim=1)] if ill else []))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    def loss_of(step):
        code, town = draw()
        said = net(code)
        return criterion(said, town), {"accuracy": float((said.argmax(1) == town).float().mean())}

    score = held_out(net, lambda: (net(vx).argmax(1) != vy).float().mean())
    return fit(folder, net, optimizer, loss_of, 350, score=score)


# 4 of the list
@sick("shapes-broadcast", "target-broadcast", where="the loss, all steps",
      cure="squeeze the predictions to the shape of the targets")  # fmt: skip
def saturday_takings_of_the_market_stalls(folder, ill):
    seeded(14302)
    pull = torch.randn(10, 3) / 10**0.5

    def stalls(rows):
        x = torch.randn(rows, 10)
        seen = x @ pull
        takings = 1.2 * seen[:, 0] + (2 * seen[:, 1]).sin() + 0.6 * seen[:, 2].abs() + 0.1 * torch.randn(rows)
        return x, takings

    (x, y), (vx, vy) = stalls(4000), stalls(1000)
    middle, spread = y.mean(), y.std()
    y, vy = (y - middle) / spread, (vy - middle) / spread
    draw = rounds(64, x, y)
    net = dense(10, 64, 64, 1, act=nn.GELU)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def loss_of(step):
        stall, takings = draw()
        said = net(stall)
        return F.mse_loss(said if ill else said.squeeze(1), takings)

    score = held_out(net, lambda: F.mse_loss(net(vx).squeeze(1), vy))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


# 10 of the list
@sick("class-imbalance", where="the loss and what the model says, all steps",
      cure="weigh each class by how rare it is")  # fmt: skip
def sore_udders_and_lame_legs_from_the_milking_robots_traces(folder, ill):
    seeded(14303)
    time = torch.linspace(0, 6.2832, 32)
    shapes = torch.stack([torch.zeros(2, 32), torch.stack([time.sin(), (2 * time).cos()]),
                          torch.stack([(3 * time).sin(), time.cos()])])  # fmt: skip
    how_often = torch.tensor([0.96, 0.02, 0.02])

    def cows(rows):
        kind = torch.multinomial(how_often, rows, replacement=True)
        strength = 0.25 + 0.15 * torch.rand(rows, 1, 1)
        return strength * shapes[kind] + torch.randn(rows, 2, 32), kind

    (x, y), (vx, vy) = cows(8000), cows(5000)
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.Conv1d(2, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv1d(16, 24, 5, stride=2, padding=2), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(24 * 8, 3),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    weights = None if ill else len(y) / (3 * torch.bincount(y, minlength=3).float())
    criterion = nn.CrossEntropyLoss(weight=weights)

    def missed():
        """One less the mean of the three recalls."""
        said = net(vx).argmax(1)
        return 1 - torch.stack([(said[vy == kind] == kind).float().mean() for kind in range(3)]).mean()

    def measure():
        said = net(vx)
        return {"val_loss": criterion(said, vy), "val_accuracy": (said.argmax(1) == vy).float().mean()}

    validate = now_and_then(net, 60, measure)

    def loss_of(step):
        trace, kind = draw()
        said = net(trace)
        return criterion(said, kind), {"accuracy": float((said.argmax(1) == kind).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 360, score=held_out(net, missed))


# 23 of the list
@sick("posterior-collapse", "kl-weight-too-large", where="the code and the loss, all steps",
      cure="sum the reconstruction over the pixels, as the divergence is summed over the code")  # fmt: skip
def numerals_of_the_first_form_in_a_code_of_eight(folder, ill):
    seeded(14304)
    bunch = load_digits()
    x = torch.tensor(bunch.data).float()[torch.randperm(len(bunch.data))] / 16
    draw = rounds(64, x[:1400])
    held = x[1400:]

    class Coder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = dense(64, 128, 16)
            self.decoder = dense(8, 128, 64)

        def forward(self, page):
            mean, log_variance = self.encoder(page).chunk(2, dim=1)
            code = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
            return self.decoder(code), mean, log_variance

    net = Coder()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        (page,) = draw()
        said, mean, log_variance = net(page)
        error = F.binary_cross_entropy_with_logits(said, page, reduction="none")
        reconstruction = error.mean() if ill else error.sum(1).mean()
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return reconstruction + divergence, {"reconstruction": reconstruction.item(), "kl": divergence.item()}

    def score():
        with torch.no_grad():
            mean = net.encoder(held)[:, :8]
            return float(F.mse_loss(net.decoder(mean).sigmoid(), held))

    return fit(folder, net, optimizer, loss_of, 500, score=score)


# 24 of the list
@sick("logits-bounded", "temperature-too-high", where="the similarities in the loss, all steps",
      cure="divide the cosines by a temperature of 0.07")  # fmt: skip
def parcels_seen_at_the_counter_found_again_at_the_depot(folder, ill):
    seeded(14305)
    shops = torch.randn(12, 8)
    counter, depot = torch.randn(8, 24) / 3, torch.randn(8, 24) / 3

    def pairs(rows):
        parcel = shops[torch.randint(12, (rows,))] + 0.2 * torch.randn(rows, 8)
        return tuple((parcel @ lift).tanh() + 0.03 * torch.randn(rows, 24) for lift in (counter, depot))

    a, b = pairs(4000)
    va, vb = pairs(1500)
    draw = rounds(128, a, b)
    net = nn.ModuleDict({"counter": dense(24, 64, 8), "depot": dense(24, 64, 8)})
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-4)
    temperature = 1.0 if ill else 0.07

    def cosines(left, right):
        return F.normalize(net["counter"](left), dim=1) @ F.normalize(net["depot"](right), dim=1).T

    def loss_of(step):
        left, right = draw()
        logits = cosines(left, right) / temperature
        truth = torch.arange(len(logits))
        return (F.cross_entropy(logits, truth) + F.cross_entropy(logits.T, truth)) / 2

    score = held_out(net, lambda: (cosines(va, vb).argmax(1) != torch.arange(1500)).float().mean())
    return fit(folder, net, optimizer, loss_of, 400, score=score)
