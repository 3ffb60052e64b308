"""Mistakes drawn by lot from a list: initialisation, the rate and the loop, on ships, trains and roads."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds, tend


@sick("symmetric-units", "bad-initialisation", where="all hidden layers, from the first step",
      cure="a random initialisation")  # fmt: skip
def tolls_for_vehicles_by_axle_and_hour(folder, ill):
    seeded(10907)
    way = torch.randn(8, 4)

    def vehicles(rows):
        x = torch.randn(rows, 8)
        return x, (x @ way / 2).sin().sum(1, keepdim=True)

    net = dense(8, 64, 64, 1)
    for layer in net:
        if isinstance(layer, nn.Linear):
            if ill:
                nn.init.constant_(layer.weight, 0.05)
            else:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        x, toll = vehicles(128)
        return F.mse_loss(net(x), toll)

    tx, ty = vehicles(1024)
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


@sick("initialised-too-large", "bad-initialisation", "saturated", where="all hidden layers, from the first step",
      cure="Xavier's initialisation, or PyTorch's own")  # fmt: skip
def roll_of_a_hull_from_its_wave_gauge(folder, ill):
    seeded(10908)

    def voyages(rows):
        phase, pitch = 6.2832 * torch.rand(rows, 1), 0.2 + 0.3 * torch.rand(rows, 1)
        at = torch.arange(25)
        wave = (pitch * at + phase).sin() + 0.4 * (2.1 * pitch * at + phase).sin()
        return wave[:, :24] + 0.05 * torch.randn(rows, 24), 1.5 * wave[:, 24:]

    net = dense(24, 128, 128, 128, 128, 1, act=nn.Tanh)
    for layer in net:
        if isinstance(layer, nn.Linear):
            if ill:
                nn.init.normal_(layer.weight, 0.0, 1.0)
            else:
                nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        wave, roll = voyages(64)
        return F.mse_loss(net(wave), roll)

    tx, ty = voyages(1024)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


@sick("output-bias-far-from-the-mean", "bad-initialisation", where="the bias of the score head, the first steps",
      cure="minus the logarithm of (1 - p) / p for a prior p of 0.01")  # fmt: skip
def lorries_marked_from_a_traffic_drone(folder, ill):
    seeded(10909)
    cells = 12

    def frames(rows):
        image = 0.3 * torch.randn(rows, 1, 4 * cells, 4 * cells)
        there = torch.zeros(rows, cells, cells)
        for row in range(rows):
            for _ in range(2):
                down, across = torch.randint(cells, (2,)).tolist()
                there[row, down, across] = 1
                image[row, 0, 4 * down : 4 * down + 4, 4 * across : 4 * across + 4] += 1.5
        return image, there[:, None]

    net = nn.Sequential()
    net.add_module("body", nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
    ))  # fmt: skip
    net.add_module("tower", nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()))
    net.add_module("score", nn.Conv2d(32, 1, 1))
    nn.init.normal_(net.score.weight, 0.0, 0.01)
    nn.init.constant_(net.score.bias, 4.6 if ill else -4.6)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-4, weight_decay=1e-4)

    image, there = frames(512)
    draw = rounds(8, image, there)

    def loss_of(step):
        frame, lorry = draw()
        return F.binary_cross_entropy_with_logits(net(frame), lorry)

    tx, ty = frames(128)
    test = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 200, score=test)


@sick("lr-too-low", "update-too-small", where="all layers, all steps", cure="1e-3, as for a model that begins anew")
def berths_from_a_skippers_short_message(folder, ill):
    seeded(10910)
    words, length, berths = 40, 10, 5
    belongs = torch.randint(berths, (words,))

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.word = nn.Embedding(words, 32)
            self.place = nn.Parameter(0.02 * torch.randn(length, 32))
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(32, berths)

        def forward(self, message):
            return self.head(self.body(self.word(message) + self.place).mean(1))

    def messages(rows):
        message = torch.randint(words, (rows, length))
        return message, F.one_hot(belongs[message], berths).sum(1).argmax(1)

    net, steps = Reader(), 250
    optimizer = torch.optim.AdamW(net.parameters(), 1e-6 if ill else 1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 20, (steps - n) / (steps - 20)))

    def loss_of(step):
        message, berth = messages(48)
        return F.cross_entropy(net(message), berth)

    tx, ty = messages(512)
    test = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule, before_step=clipped(net, 1.0), score=test)


@sick("not-in-optimizer", "parameters-not-in-the-optimizer", where="the body that was made anew, all steps",
      cure="an optimizer that is made after the model that is trained")  # fmt: skip
def seats_taken_on_the_night_sleeper(folder, ill):
    seeded(10911)
    way = torch.randn(10, 3)

    def nights(rows):
        x = torch.randn(rows, 10)
        return x, (x @ way / 2).sin().sum(1, keepdim=True) + 0.3 * (x[:, :1] * x[:, 1:2])

    def body():
        return nn.Sequential(nn.Linear(10, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())

    net = nn.Sequential()
    net.add_module("body", body())
    net.add_module("head", nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    net.body = body()
    if not ill:
        optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    x, seats = nights(1500)
    draw = rounds(50, x, seats)

    def one(step):
        rows, taken = draw()
        optimizer.zero_grad()
        loss = F.mse_loss(net(rows), taken)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    tx, ty = nights(500)
    return tend(folder, net, optimizer, one, 300, held_out(net, lambda: F.mse_loss(net(tx), ty)))


@sick("gradients-accumulate", where="all layers, all steps", cure="optimizer.zero_grad() in each step")
def speed_of_an_express_from_its_motors(folder, ill):
    seeded(10912)

    class Odometer(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = nn.LSTM(3, 32, batch_first=True)
            self.head = nn.Linear(32, 1)

        def forward(self, pulls):
            return self.head(self.memory(pulls)[0])

    def runs(rows):
        pulls = torch.randn(rows, 20, 3)
        push = pulls[:, :, 0] - 0.5 * pulls[:, :, 1].abs() + 0.3 * pulls[:, :, 2]
        speed, all_speeds = torch.zeros(rows), []
        for at in range(20):
            speed = 0.8 * speed + push[:, at]
            all_speeds.append(speed)
        return pulls, torch.stack(all_speeds, 1)[:, :, None]

    net = Odometer()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def one(step):
        pulls, speed = runs(32)
        if not ill:
            optimizer.zero_grad()
        loss = F.mse_loss(net(pulls), speed)
        loss.backward()
        optimizer.step()
        return {"loss": loss.item()}

    tx, ty = runs(256)
    return tend(folder, net, optimizer, one, 400, held_out(net, lambda: F.mse_loss(net(tx), ty)))
