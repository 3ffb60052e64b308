"""Whistles on the line, a bakery's takings, theatre subscribers, snow profiles, a camera trap, freight brakes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


# 2 of the list
@sick("softmax-twice", where="the last module of the model and the loss, all steps",
      cure="hand the logits to the cross-entropy, without the softmax")  # fmt: skip
def locomotives_by_the_sound_of_their_whistles(folder, ill):
    seeded(14000)
    timbre = torch.randn(24, 40).cumsum(1)
    timbre = (timbre - timbre.mean(1, keepdim=True)) / timbre.std(1, keepdim=True)

    def whistles(rows):
        engine, pitch = torch.randint(24, (rows,)), torch.randint(3, (rows,))
        bands = (torch.arange(36) + pitch[:, None]).clamp(max=39)
        return timbre[engine[:, None], bands][:, None] + 0.5 * torch.randn(rows, 1, 36), engine

    (x, y), (vx, vy) = whistles(4000), whistles(1500)
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
        nn.Flatten(), nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, 24), nn.Softmax(1) if ill else nn.Identity(),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    validate = now_and_then(net, 31, judged(net, vx, vy))

    def loss_of(step):
        sound, engine = draw()
        said = net(sound)
        right = (said.argmax(1) == engine).float().mean()
        return criterion(said, engine), {"accuracy": float(right), **validate(step)}

    wrong = held_out(net, lambda: (net(vx).argmax(1) != vy).float().mean())
    return fit(folder, net, optimizer, loss_of, 310, score=wrong)


# 6 of the list
@sick("targets-not-normalised", where="the targets, in cents, all steps",
      cure="train on takings less their mean, over their deviation")  # fmt: skip
def takings_of_the_bakery_on_the_station_square(folder, ill):
    seeded(14001)
    season = torch.randn(7) * 0.8

    def days(rows):
        weekday = torch.randint(7, (rows,))
        weather = torch.randn(rows, 5)
        pull = season[weekday] + 0.7 * weather[:, 0] - 0.6 * weather[:, 1].relu() + 0.4 * weather[:, 2] * weather[:, 3]
        cents = 186000 + 31000 * (pull + 0.15 * torch.randn(rows))
        return torch.cat([F.one_hot(weekday, 7).float(), weather], 1), cents[:, None]

    (x, y), (vx, vy) = days(3000), days(1000)
    middle, spread = (0.0, 1.0) if ill else (y.mean(), y.std())
    draw = rounds(50, x, (y - middle) / spread)
    net = dense(12, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    validate = now_and_then(net, 60, lambda: {"val_loss": F.mse_loss(net(vx), (vy - middle) / spread)})

    def loss_of(step):
        day, takings = draw()
        return F.mse_loss(net(day), takings), validate(step)

    in_thousands = held_out(net, lambda: (net(vx) * spread + middle - vy).abs().mean() / 1e5)
    return fit(folder, net, optimizer, loss_of, 420, score=in_thousands)


# 11 of the list
@sick("overfitting", where="the whole model, from the first tenth of the steps on",
      cure="a smaller model with dropout and weight decay")  # fmt: skip
def subscribers_who_renew_their_box_at_the_theatre(folder, ill):
    seeded(14002)
    way = torch.randn(24, 2) / 24**0.5

    def subscribers(rows):
        x = torch.randn(rows, 24)
        seen = x @ way
        leaning = 2.5 * seen[:, 0] + 1.5 * seen[:, 1].abs() - 1.2
        return x, (torch.rand(rows) < leaning.sigmoid()).long()

    (x, y), (vx, vy) = subscribers(260), subscribers(2000)
    draw = rounds(26, x, y)
    if ill:
        net = dense(24, 256, 256, 2)
    else:
        net = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01 if ill else 0.3)
    validate = now_and_then(net, 20, judged(net, vx, vy))

    def loss_of(step):
        person, renewed = draw()
        said = net(person)
        right = (said.argmax(1) == renewed).float().mean()
        return F.cross_entropy(said, renewed), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


# 12 of the list
@sick("dead-units", "bad-initialisation", where="the ReLUs of the hidden layers, from the first step on",
      cure="biases of zero at first")  # fmt: skip
def danger_of_avalanches_from_snow_profiles(folder, ill):
    seeded(14003)
    way = torch.randn(40, 3) / 40**0.5

    def profiles(rows):
        snow = torch.randn(rows, 40)
        seen = snow @ way
        danger = seen[:, 0] + 0.6 * seen[:, 1].square() + 0.5 * seen[:, 2].relu() + 0.1 * torch.randn(rows)
        return snow, torch.bucketize(danger, torch.tensor([-0.4, 0.3, 1.0, 1.9]))

    (x, y), (vx, vy) = profiles(5000), profiles(1500)
    draw = rounds(64, x, y)
    net = dense(40, 128, 96, 64, 5)
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.constant_(layer.bias, -5.0 if ill and layer.out_features > 5 else 0.0)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    validate = now_and_then(net, 50, judged(net, vx, vy))

    def loss_of(step):
        snow, danger = draw()
        return F.cross_entropy(net(snow), danger), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


# 19 of the list
@sick("left-in-eval", where="all batch norms and the dropout, from the first validation on",
      cure="net.train() after each validation")  # fmt: skip
def animals_at_the_waterhole_before_a_camera_trap(folder, ill):
    seeded(14004)
    coats = torch.randn(6, 3, 3, 3)

    def photographs(rows):
        animal, left, top = torch.randint(6, (rows,)), torch.randint(-2, 3, (rows,)), torch.randint(-2, 3, (rows,))
        image = F.interpolate(coats[animal], size=(12, 12), mode="bilinear")
        image = torch.stack([torch.roll(i, (int(a), int(b)), (1, 2)) for i, a, b in zip(image, left, top, strict=True)])
        return image + 0.6 * torch.randn(rows, 3, 12, 12), animal

    (x, y), (vx, vy) = photographs(1600), photographs(500)
    draw = rounds(32, x, y)

    def block(channels, out):
        return [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]

    net = nn.Sequential(
        *block(3, 12), *block(12, 12), *block(12, 12), nn.MaxPool2d(2), *block(12, 24), *block(24, 24), *block(24, 24),
        nn.MaxPool2d(2), *block(24, 24), *block(24, 24), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(24, 6),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 160)
    measure = judged(net, vx, vy)

    def validate():
        net.eval()
        with torch.no_grad():
            return {name: float(value) for name, value in measure().items()}

    def one(step):
        found = validate() if step % 40 == 0 else {}
        if not ill:
            net.train()
        image, animal = draw()
        optimizer.zero_grad()
        said = net(image)
        loss = F.cross_entropy(said, animal)
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "accuracy": (said.argmax(1) == animal).float().mean(), **found}

    score = held_out(net, lambda: F.cross_entropy(net(vx), vy))
    return tend(folder, net, optimizer, one, 160, score)


# 24 of the list
@sick("clip-is-your-learning-rate", where="the clipping of all gradients, all steps",
      cure="clip at a norm of 1, which only the largest gradients reach")  # fmt: skip
def braking_distances_of_freight_trains(folder, ill):
    seeded(14005)
    way = torch.randn(10, 3) / 10**0.5

    def trains(rows):
        x = torch.randn(rows, 10)
        seen = x @ way
        metres = 1.2 * seen[:, 0] + seen[:, 1].square() + 0.8 * (2 * seen[:, 2]).sin() + 0.1 * torch.randn(rows)
        return x, metres[:, None]

    (x, y), (vx, vy) = trains(4000), trains(1000)
    middle, spread = y.mean(), y.std()
    y, vy = (y - middle) / spread, (vy - middle) / spread
    draw = rounds(64, x, y)
    net = dense(10, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 450)

    def loss_of(step):
        train, metres = draw()
        return F.mse_loss(net(train), metres)

    score = held_out(net, lambda: F.mse_loss(net(vx), vy))
    before_step = clipped(net, 1e-3 if ill else 1.0)
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule, before_step=before_step)
