"""Platforms of a metro, a hall's echo, distress calls, a stock of houses, drifting rafts, sap in a glasshouse."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, now_and_then, rounds, tend


# 4 of the list
@sick("softmax-twice", where="the last layer and the loss, all steps", cure="hand the loss the logits")
def metro_stations_told_by_the_hum_of_their_platforms(folder, ill):
    seeded(14500)
    stations, bands = 24, 32
    hum = torch.randn(stations, 2, bands)

    def recordings(rows):
        y = torch.randint(stations, (rows,))
        mood = torch.randint(2, (rows,))
        return hum[y, mood] + 0.9 * torch.randn(rows, bands), y

    (x, y), (tx, ty) = recordings(6000), recordings(2000)
    draw = rounds(64, x, y)
    net = dense(bands, 96, 96, stations)
    if ill:
        net.append(nn.Softmax(dim=1))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)

    def mistaken():
        return (net(tx).argmax(1) != ty).float().mean()

    def measure():
        said = net(tx)
        return {"val_loss": F.cross_entropy(said, ty), "val_accuracy": (said.argmax(1) == ty).float().mean()}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        heard, station = draw()
        said = net(heard)
        right = (said.argmax(1) == station).float().mean()
        return F.cross_entropy(said, station), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, mistaken))


# 6 of the list
@sick("validation-in-train-mode", "eval-not-called", "dropout-at-evaluation",
      where="the passes over the held-out seats, every validation",
      cure="net.eval() before what is only measured, net.train() after it")  # fmt: skip
def clarity_of_speech_at_the_seats_of_a_concert_hall(folder, ill):
    seeded(14501)
    way = torch.randn(10, 4) / 10**0.5

    def seats(rows):
        x = torch.randn(rows, 10)
        seen = x @ way
        clarity = 1.2 * seen[:, 0] + (1.5 * seen[:, 1]).sin() + 0.7 * seen[:, 2] * seen[:, 3]
        return x, (clarity + 0.1 * torch.randn(rows))[:, None]

    (x, y), (tx, ty) = seats(4000), seats(1500)
    draw = rounds(50, x, y)
    net = nn.Sequential(
        nn.Linear(10, 96), nn.ReLU(), nn.Dropout(0.5), nn.Linear(96, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 1)
    )
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-4)

    @torch.no_grad()
    def evaluate():
        if not ill:
            net.eval()
        error = float(F.mse_loss(net(tx), ty))
        if not ill:
            net.train()
        return error

    def loss_of(step):
        place, clarity = draw()
        loss = F.mse_loss(net(place), clarity)
        return loss, {} if step % 25 else {"val_loss": evaluate()}

    return fit(folder, net, optimizer, loss_of, 500, score=evaluate)


# 7 of the list
@sick("left-in-eval", where="all layers, from the first validation on", cure="net.train() after each validation")
def kinds_of_distress_calls_on_a_coast_guard_channel(folder, ill):
    seeded(14502)
    kinds, length = 5, 48
    tune = 0.3 + 1.2 * torch.rand(kinds, 2)

    def calls(rows):
        y = torch.randint(kinds, (rows,))
        phase = 6.2832 * torch.rand(rows, 2)
        time = torch.arange(length).float()
        tones = (tune[y][:, :, None] * time + phase[:, :, None]).sin().sum(1)
        return (tones + torch.randn(rows, length))[:, None], y

    (x, y), (tx, ty) = calls(1000), calls(1500)
    draw = rounds(25, x, y)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(16, 32, 5, padding=2, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(32, 32, 5, padding=2, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(2),
        nn.Flatten(), nn.Linear(32 * 6, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(64, kinds),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)

    def validate():
        net.eval()
        with torch.no_grad():
            said = net(tx[:400])
        if not ill:
            net.train()
        right = (said.argmax(1) == ty[:400]).float().mean()
        return {"val_loss": float(F.cross_entropy(said, ty[:400])), "val_accuracy": float(right)}

    def loss_of(step):
        call, kind = draw()
        loss = F.cross_entropy(net(call), kind)
        return loss, validate() if step % 40 == 0 else {}

    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 8 of the list
@sick("inputs-not-normalised", where="the columns of the first layer's input, all steps",
      cure="standardise each column by what the training rows show")  # fmt: skip
def yearly_premiums_for_a_stock_of_insured_houses(folder, ill):
    seeded(14503)
    middle = torch.tensor([240000.0, 1968.0, 130.0, 2.5, 0.4, 12.0])
    spread = torch.tensor([90000.0, 25.0, 45.0, 1.2, 0.25, 6.0])

    def houses(rows):
        z = torch.randn(rows, 6)
        premium = 0.8 * z[:, 0] - 0.6 * z[:, 1] * z[:, 4] + (1.5 * z[:, 3]).sin() + 0.7 * z[:, 5].abs() + 0.3 * z[:, 2]
        return middle + spread * z, (premium + 0.1 * torch.randn(rows))[:, None]

    (x, y), (tx, ty) = houses(5000), houses(1500)
    if not ill:
        mean, std = x.mean(0), x.std(0)
        x, tx = (x - mean) / std, (tx - mean) / std
    mean, std = y.mean(), y.std()
    y, ty = (y - mean) / std, (ty - mean) / std
    draw = rounds(100, x, y)
    net = dense(6, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        house, premium = draw()
        return F.mse_loss(net(house), premium), validate(step)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


# 10 of the list
@sick("shapes-broadcast", where="the loss, all steps", cure="squeeze the last axis of the predictions")
def drift_of_life_rafts_from_an_evening_of_wind(folder, ill):
    seeded(14504)

    def evenings(rows):
        gusts = torch.randn(rows, 16, 2).cumsum(1) / 4
        decay = 0.85 ** torch.arange(15, -1, -1).float()
        drift = (decay[:, None] * gusts).sum(1)
        return gusts, drift[:, 0].tanh() + 0.5 * drift[:, 1] * drift[:, 0].cos() + 0.05 * torch.randn(rows)

    (x, y), (tx, ty) = evenings(3000), evenings(1000)
    draw = rounds(60, x, y)

    class Drift(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = nn.GRU(2, 32, batch_first=True)
            self.head = nn.Linear(32, 1)

        def forward(self, gusts):
            return self.head(self.memory(gusts)[0][:, -1])

    net = Drift()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300, 5e-4)

    def loss_of(step):
        gusts, drift = draw()
        said = net(gusts) if ill else net(gusts)[:, 0]
        return F.smooth_l1_loss(said, drift), {"lr": schedule.get_last_lr()[0]}

    score = held_out(net, lambda: F.smooth_l1_loss(net(tx)[:, 0], ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


# 15 of the list
@sick("weight-decay-too-strong", "weights-shrink", where="all weights, all steps", cure="a decay of 1e-5")
def sap_flow_of_glasshouse_palms_and_whether_they_thirst(folder, ill):
    seeded(14505)
    way = torch.randn(9, 3) / 9**0.5

    def palms(rows):
        x = torch.randn(rows, 9)
        seen = x @ way
        flow = (2 * seen[:, 0]).sin() + seen[:, 1] * seen[:, 2]
        return x, flow + 0.1 * torch.randn(rows), (seen[:, 0] + seen[:, 1].square() > 0.9).float()

    (x, flow, dry), (tx, tflow, tdry) = palms(4000), palms(1500)
    draw = rounds(64, x, flow, dry)
    net = nn.ModuleDict({"trunk": nn.Sequential(dense(9, 64, 64, act=nn.GELU), nn.GELU()), "flow": nn.Linear(64, 1),
                         "thirst": nn.Linear(64, 1)})  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3, weight_decay=0.1 if ill else 1e-5)

    def both(x, flow, dry):
        seen = net["trunk"](x)
        first = F.mse_loss(net["flow"](seen)[:, 0], flow)
        return first, F.binary_cross_entropy_with_logits(net["thirst"](seen)[:, 0], dry)

    def one(step):
        optimizer.zero_grad()
        first, second = both(*draw())
        loss = first + second
        loss.backward()
        optimizer.step()
        return {"loss": float(loss), "flow_loss": float(first), "thirst_loss": float(second)}

    return tend(folder, net, optimizer, one, 400, held_out(net, lambda: sum(both(tx, tflow, tdry))))
