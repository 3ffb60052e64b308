"""Sick trainings of theatres and markets, drawn by lot from a list of mistakes: rates, outputs, beginnings, rewards."""

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds, tend


class Score(nn.Module):
    """A recurrent model of the next note."""

    def __init__(self, notes, width):
        super().__init__()
        self.note, self.memory = nn.Embedding(notes, width), nn.LSTM(width, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, notes)

    def forward(self, melody):
        return self.head(self.memory(self.note(melody))[0])


@sick("update-too-small", "lr-too-low", where="all layers, all steps", cure="a rate of 4e-3")
def second_fiddle_goes_on_by_ear(folder, ill):
    seeded(11506)
    notes, length = 18, 16
    net = Score(notes, 24)
    optimizer = torch.optim.Adam(net.parameters(), 1e-6 if ill else 4e-3)
    follows = torch.softmax(2.5 * torch.randn(notes, notes), 1)

    def melodies(rows):
        melody = [torch.randint(notes, (rows,))]
        for _ in range(length):
            melody.append(torch.multinomial(follows[melody[-1]], 1)[:, 0])
        return torch.stack(melody, 1)

    melody = melodies(1600)
    draw = rounds(32, melody[:1300])

    def loss_on(melody):
        return F.cross_entropy(net(melody[:, :-1]).flatten(0, 1), melody[:, 1:].flatten())

    score = held_out(net, lambda: loss_on(melody[1300:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 250, score=score, before_step=clipped(net, 1.0))


@sick("softmax-twice", where="the last operation of the model", cure="logits to the cross-entropy")
def bottles_poured_in_the_interval(folder, ill):
    seeded(11507)
    table, grower = load_wine(return_X_y=True)
    order = torch.randperm(len(grower))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(grower)[order]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = dense(13, 32, 32, 3)
    if ill:
        net.append(nn.Softmax(1))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(16, x[:130], y[:130])

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": float((out.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@sick("bad-initialisation", "units-alike-from-the-start", where="all layers, before the first step",
      cure="He's random weights")  # fmt: skip
def health_of_stagehands_after_a_season(folder, ill):
    seeded(11508)
    table, targets = load_diabetes(return_X_y=True)
    order = torch.randperm(len(targets))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(targets, dtype=torch.float32)[order, None]
    x, y = (x - x[:340].mean(0)) / x[:340].std(0), (y - y[:340].mean()) / y[:340].std()
    net = dense(10, 32, 32, 1)

    def start(layer):
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.weight) if ill else nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    net.apply(start)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    draw = rounds(34, x[:340], y[:340])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    score = held_out(net, lambda: F.mse_loss(net(x[340:]), y[340:]))
    return fit(folder, net, optimizer, loss_of, 100, score=score)


class Conductor(nn.Module):
    """A transformer that hears who plays when, and says who of two began."""

    def __init__(self, players, length, width=32, places=True):
        super().__init__()
        self.player = nn.Embedding(players, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))
        self.place = nn.Parameter(0.1 * torch.randn(length, width)) if places else None

    def forward(self, entries):
        x = self.player(entries)
        if self.place is not None:
            x = x + self.place
        return self.head(self.body(x).mean(1))


@sick("positions-missing", where="the inputs of the transformer, all steps", cure="learnt places added to the tokens")
def which_of_two_horns_came_in_first(folder, ill):
    seeded(11509)
    players, length = 8, 8
    net = Conductor(players, length, places=not ill)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)

    def concerts(rows):
        entries = torch.randint(2, players, (rows, length))
        seats = torch.rand(rows, length).argsort(1)[:, :2]
        entries.scatter_(1, seats, torch.tensor([[0, 1]]).expand(rows, 2))
        return entries, (seats[:, 0] < seats[:, 1]).long()

    def loss_of(step):
        entries, first = concerts(48)
        logits = net(entries)
        return F.cross_entropy(logits, first), {"accuracy": float((logits.argmax(1) == first).float().mean())}

    tx, ty = concerts(512)
    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("returns-not-normalised", where="the weights of the log-probabilities, all steps",
      cure="returns less their mean, by their deviation")  # fmt: skip
def a_baker_before_the_market_opens(folder, ill):
    seeded(11510)
    trays, days = 8, 6
    net = dense(2, 32, trays, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def season(rows):
        stock = torch.zeros(rows)
        logs, takings, missed = [], [], []
        for _ in range(days):
            crowd = torch.rand(rows)
            choice = torch.distributions.Categorical(logits=net(torch.stack([crowd - 0.5, stock / trays - 0.5], 1)))
            baked = choice.sample()
            asked = 7 * crowd + 0.3 * torch.randn(rows)
            sold = torch.minimum(asked.clamp(min=0), baked + stock)
            takings.append(60 + 30 * sold - 12 * baked)
            missed.append(60 + 18 * asked.clamp(min=0) - takings[-1])
            stock = 0.5 * (baked + stock - sold)
            logs.append(choice.log_prob(baked))
        return torch.stack(logs), torch.stack(takings), torch.stack(missed)

    def one(step):
        logs, takings, _ = season(32)
        gain = takings.flip(0).cumsum(0).flip(0)
        if not ill:
            gain = (gain - gain.mean(1, keepdim=True)) / (gain.std(1, keepdim=True) + 1e-6)
        loss = -(logs * gain).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": takings.sum(0).mean()}

    return tend(folder, net, optimizer, one, 200, held_out(net, lambda: season(512)[2].sum(0).mean()))


class Ledger(nn.Module):
    """What a stall gains or loses on the next day, by a GRU over its last days."""

    def __init__(self, columns, width):
        super().__init__()
        self.memory = nn.GRU(columns, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, days):
        return self.head(self.memory(days)[0][:, -1])


@sick("targets-out-of-range", "relu-on-the-output", "outputs-never-negative", where="the last operation of the model",
      cure="a linear output")  # fmt: skip
def what_a_flower_stall_gains_tomorrow(folder, ill):
    seeded(11511)
    net = Ledger(3, 32)
    if ill:
        net.head.append(nn.ReLU())
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def weeks(rows):
        swing = 6.2832 * torch.rand(rows, 1) + torch.arange(13) * 0.9
        sun, price = torch.randn(rows, 13), 0.5 * torch.randn(rows, 13)
        gain = swing.sin() + 0.3 * sun - 0.4 * price + 0.1 * torch.randn(rows, 13)
        return torch.stack([gain, sun.roll(-1, 1), price.roll(-1, 1)], 2)[:, :12], gain[:, 12:]

    x, y = weeks(2500)
    draw = rounds(64, x[:2000], y[:2000])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    score = held_out(net, lambda: F.mse_loss(net(x[2000:]), y[2000:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)
