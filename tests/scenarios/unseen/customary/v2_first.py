"""Flour grades, crate numbers, callers' concerns, railway delays, star patterns, blotches on leaves."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds


# 1 of the list
@sick("gradients-accumulate", where="all layers, from the second step on",
      cure="zero the gradients before each backward")  # fmt: skip
def flour_grades_at_the_mill_of_the_bakery_from_twelve_readings(folder, ill):
    seeded(14800)
    centres = 1.2 * torch.randn(12, 12)

    def sacks(rows):
        kind = torch.randint(12, (rows,))
        return centres[kind] + 0.7 * torch.randn(rows, 12), kind % 6

    (x, y), (vx, vy) = sacks(3000), sacks(1500)
    draw = rounds(64, x, y)
    net = dense(12, 64, 64, 6)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    validate = now_and_then(net, 50, judged(net, vx, vy))

    def loss_of(step):
        readings, grade = draw()
        return F.cross_entropy(net(readings), grade), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 400, score=score, zero_grad=not ill)


# 9 of the list
@sick("labels-do-not-fit-inputs", where="the loss of training beside that of validation, all steps",
      cure="keep each label with its image when the rows are shuffled")  # fmt: skip
def stencilled_numbers_on_apple_crates(folder, ill):
    seeded(14801)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float() / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.305) / 0.376, y[order]
    tx, ty = x[1500:], y[1500:]
    x, y = x[:1500], y[:1500]
    again = torch.randperm(len(x))
    x, y = x[again], y[torch.randperm(len(y)) if ill else again]
    draw = rounds(50, x[:1200], y[:1200])
    net = nn.Sequential(
        nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    validate = now_and_then(net, 24, judged(net, x[1200:], y[1200:]))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 480, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 10 of the list
@sick("class-imbalance", where="the loss and what the model says, all steps",
      cure="weigh each class by how rare it is")  # fmt: skip
def what_a_caller_is_concerned_with_from_the_first_minute(folder, ill):
    seeded(14802)
    share = torch.tensor([0.95, 0.02, 0.015, 0.015])
    centres = 0.4 * torch.randn(4, 20)

    def calls(rows, of=share):
        concern = torch.multinomial(of, rows, replacement=True)
        return centres[concern] + torch.randn(rows, 20), concern

    (x, y), (vx, vy) = calls(8000), calls(2000)
    tx, ty = calls(4000, torch.ones(4))
    draw = rounds(128, x, y)
    net = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 4))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4)
    count = torch.bincount(y, minlength=4).float()
    criterion = nn.CrossEntropyLoss(weight=None if ill else len(y) / (4 * count))

    def measure():
        said = net(vx)
        return {"val_loss": criterion(said, vy), "val_accuracy": (said.argmax(1) == vy).float().mean()}

    validate = now_and_then(net, 40, measure)

    def loss_of(step):
        minute, concern = draw()
        said = net(minute)
        right = (said.argmax(1) == concern).float().mean()
        return criterion(said, concern), {"accuracy": float(right), **validate(step)}

    # Concerns are equally many among the test's rows: the share that is told wrongly is one less the mean recall.
    return fit(folder, net, optimizer, loss_of, 360,
               score=held_out(net, lambda: (net(tx).argmax(1) != ty).float().mean()))  # fmt: skip


# 13 of the list
@sick("symmetric-initialisation", "bad-initialisation", where="the weights of the hidden layers, all steps",
      cure="begin at random weights, He's")  # fmt: skip
def minutes_of_delay_at_the_terminus_from_the_junctions(folder, ill):
    seeded(14803)
    way = torch.randn(10, 5) / 10**0.5

    def runs(rows):
        x = torch.randn(rows, 10)
        seen = x @ way
        late = seen[:, 0].abs() + (2 * seen[:, 1]).sin() + seen[:, 2] * seen[:, 3] - seen[:, 4].clamp(min=0)
        return x, (late[:, None] + 0.05 * torch.randn(rows, 1)) / 1.5

    (x, y), (vx, vy) = runs(4000), runs(1500)
    draw = rounds(64, x, y)
    net = dense(10, 64, 64, 1)
    for layer in net:
        if isinstance(layer, nn.Linear):
            if ill:
                nn.init.constant_(layer.weight, 0.05)
            else:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(vx), vy)})

    def loss_of(step):
        junctions, delay = draw()
        return F.mse_loss(net(junctions), delay), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


# 14 of the list
@sick("bad-initialisation", where="the weights of all layers at the start", cure="Xavier's scale")
def star_patterns_on_the_dome_told_from_seven_points(folder, ill):
    seeded(14804)
    patterns = torch.randn(8, 7, 2)

    def skies(rows):
        kind = torch.randint(8, (rows,))
        angle = 0.6 * torch.randn(rows)
        c, s = angle.cos(), angle.sin()
        turn = torch.stack([torch.stack([c, -s], 1), torch.stack([s, c], 1)], 1)
        return (patterns[kind] @ turn + 0.25 * torch.randn(rows, 7, 2)).flatten(1), kind

    (x, y), (vx, vy) = skies(4000), skies(1500)
    draw = rounds(64, x, y)
    net = dense(14, 96, 96, 96, 96, 8, act=nn.Tanh)
    for layer in net:
        if isinstance(layer, nn.Linear):
            if ill:
                nn.init.normal_(layer.weight)
            else:
                nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        sky, kind = draw()
        said = net(sky)
        return F.cross_entropy(said, kind), {"accuracy": float((said.argmax(1) == kind).float().mean())}

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.cross_entropy(net(vx), vy)))


# 19 of the list
@sick("weight-decay-too-strong", "weights-shrink", where="all weights, all steps",
      cure="a decay of five ten-thousandths")  # fmt: skip
def blotches_on_the_leaves_of_pear_trees(folder, ill):
    seeded(14805)
    across = torch.arange(12).float()

    def leaves(rows):
        """Spots, streaks, rims or nothing, on a mottled leaf."""
        kind = torch.randint(4, (rows,))
        at, turn = 3 + 6 * torch.rand(rows, 2, 1, 1), 6.28 * torch.rand(rows, 1, 1)
        down, right = across[None, :, None] - at[:, 0], across[None, None, :] - at[:, 1]
        far = (down.square() + right.square()).sqrt()
        spot = (-far.square() / 3).exp()
        streak = (-(down * turn.cos() + right * turn.sin()).square()).exp()
        rim = (-(far - 3).square()).exp()
        drawn = torch.stack([spot, streak, rim, torch.zeros_like(spot)], 1)[torch.arange(rows), kind]
        return 1.5 * drawn[:, None] + 0.4 * torch.randn(rows, 1, 12, 12), kind

    (x, y), (vx, vy) = leaves(2000), leaves(600)
    draw = rounds(32, x, y)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(216, 48), nn.ReLU(), nn.Linear(48, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.015, momentum=0.9, weight_decay=0.1 if ill else 5e-4)
    validate = now_and_then(net, 60, judged(net, vx, vy))

    def loss_of(step):
        leaf, kind = draw()
        return F.cross_entropy(net(leaf), kind), validate(step)

    return fit(folder, net, optimizer, loss_of, 420, score=held_out(net, lambda: F.cross_entropy(net(vx), vy)))
