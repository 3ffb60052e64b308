"""Welds in a shipyard, beer styles, shelf marks, serves at a tennis club, subjects of books, a weather service."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, now_and_then, rounds


# 4 of the list
@sick("update-too-small", "lr-too-low", where="all weights, all steps", cure="a rate a thousand times as large")
def strength_of_hull_welds_from_arc_recordings(folder, ill):
    seeded(14400)
    bumps = torch.randn(3, 48) / 48**0.5

    def welds(rows):
        drive = torch.randn(rows, 3)
        trace = drive @ bumps * 4 + 0.5 * torch.randn(rows, 48)
        strength = drive[:, 0] + 0.7 * drive[:, 1] * drive[:, 2] + 0.1 * torch.randn(rows)
        return trace[:, None], strength[:, None]

    (x, y), (vx, vy) = welds(3000), welds(800)
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv1d(16, 24, 5, stride=2, padding=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(24 * 12, 48), nn.ReLU(), nn.Linear(48, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-6 if ill else 2e-3, weight_decay=1e-2)
    validate = now_and_then(net, 46, lambda: {"val_loss": F.mse_loss(net(vx), vy)})

    def loss_of(step):
        trace, strength = draw()
        return F.mse_loss(net(trace), strength), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(vx), vy)))


# 10 of the list
@sick("left-in-eval", where="dropout and batch norm, from step 30 on", cure="net.train() after each validation")
def style_of_a_beer_from_its_spectrum(folder, ill):
    seeded(14401)
    way = torch.randn(60, 5) / 60**0.5

    def beers(rows):
        x = torch.randn(rows, 60)
        return x, (2.5 * x @ way + 0.8 * torch.randn(rows, 5)).argmax(1)

    (x, y), (vx, vy) = beers(400), beers(1500)
    draw = rounds(32, x, y)
    net = nn.Sequential(
        nn.Linear(60, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 5),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def validate():
        net.eval()
        with torch.no_grad():
            said = net(vx)
            right = (said.argmax(1) == vy).float().mean()
            found = {"val_loss": float(F.cross_entropy(said, vy)), "val_acc": float(right)}
        if not ill:
            net.train()
        return found

    def loss_of(step):
        spectrum, style = draw()
        said = net(spectrum)
        logged = {"acc": float((said.argmax(1) == style).float().mean())}
        return F.cross_entropy(said, style), logged | (validate() if step % 30 == 29 else {})

    return fit(folder, net, optimizer, loss_of, 480, score=held_out(net, lambda: F.cross_entropy(net(vx), vy)))


# 14 of the list
@sick("lr-too-high", "update-too-large", where="the whole net, above all the convolutions, from the first step on",
      cure="a rate a hundredth as large, as is usual for fine-tuning")  # fmt: skip
def shelf_marks_of_a_second_library_from_a_net_that_knows_the_first(folder, ill):
    seeded(14402)
    bunch = load_digits()
    x, y = (torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16 - 0.3) / 0.38, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    known = y < 6
    old, new = rounds(64, x[known], y[known]), (x[~known], y[~known] - 6)
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(),
    )  # fmt: skip
    first = nn.Sequential(body, nn.Linear(64, 6))
    optimizer = torch.optim.Adam(first.parameters(), 2e-3)
    for _ in range(200):
        image, mark = old()
        optimizer.zero_grad()
        F.cross_entropy(first(image), mark).backward()
        optimizer.step()

    draw = rounds(16, new[0][:80], new[1][:80])
    vx, vy = new[0][80:], new[1][80:]
    net = nn.Sequential(body, nn.Linear(64, 4))
    optimizer = torch.optim.Adam(net.parameters(), 5e-2 if ill else 5e-4)

    def loss_of(step):
        image, mark = draw()
        said = net(image)
        return F.cross_entropy(said, mark), {"accuracy": float((said.argmax(1) == mark).float().mean())}

    return fit(folder, net, optimizer, loss_of, 150, score=held_out(net, lambda: F.cross_entropy(net(vx), vy)))


# 17 of the list
@sick("dropout-too-strong", where="both dropouts, all steps", cure="drop a tenth")
def speed_of_a_serve_from_the_joints_of_the_player(folder, ill):
    seeded(14403)
    way = torch.randn(18, 4) / 18**0.5

    def serves(rows):
        joints = torch.randn(rows, 18)
        seen = joints @ way
        speed = seen[:, 0] + (2 * seen[:, 1]).sin() + seen[:, 2] * seen[:, 3]
        return joints, (speed + 0.1 * torch.randn(rows))[:, None] / 1.5

    (x, y), (tx, ty) = serves(6000), serves(1500)
    draw = rounds(128, x, y)
    drop = 0.9 if ill else 0.1
    net = nn.Sequential(
        nn.Linear(18, 96), nn.GELU(), nn.Dropout(drop), nn.Linear(96, 96), nn.GELU(), nn.Dropout(drop), nn.Linear(96, 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    validate = now_and_then(net, 47, lambda: {"val_mse": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        joints, speed = draw()
        return F.mse_loss(net(joints), speed), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


# 19 of the list
@sick("activation-on-logits", where="the last operation of the model, all steps", cure="hand the loss the logits")
def subjects_of_a_book_from_the_words_of_its_title(folder, ill):
    seeded(14404)
    meaning = torch.randn(200, 8)

    def books(rows):
        words = torch.randint(200, (rows, 10))
        return words, (meaning[words].mean(1) * 10**0.5 + 0.2 * torch.randn(rows, 8) > 0.5).float()

    class Subjects(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.EmbeddingBag(200, 32)
            self.head = dense(32, 64, 8)

        def forward(self, words):
            said = self.head(self.words(words))
            return said.sigmoid() if ill else said

    (x, y), (vx, vy) = books(6000), books(1500)
    draw = rounds(64, x, y)
    net = Subjects()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    criterion = nn.BCEWithLogitsLoss()
    validate = now_and_then(net, 93, lambda: {"val_loss": criterion(net(vx), vy)})

    def loss_of(step):
        words, subjects = draw()
        return criterion(net(words), subjects), validate(step)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: criterion(net(vx), vy)))


# 21 of the list
@sick("targets-out-of-range", where="the last layer and what follows it, all steps", cure="end with the linear layer")
def how_much_warmer_than_usual_tomorrow_will_be(folder, ill):
    seeded(14405)
    way = torch.randn(12, 3) / 12**0.5

    def days(rows):
        x = torch.randn(rows, 12)
        seen = x @ way
        return x, ((seen[:, 0] + seen[:, 1] * seen[:, 2].tanh()) / 1.1 + 0.15 * torch.randn(rows))[:, None]

    (x, y), (tx, ty) = days(4000), days(1000)
    draw = rounds(50, x, y)
    net = nn.Sequential(
        nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1), *([nn.ReLU()] if ill else [])
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)

    def loss_of(step):
        measured, warmer = draw()
        said = net(measured)
        return F.mse_loss(said, warmer), {"mae": float((said - warmer).abs().mean())}

    return fit(folder, net, optimizer, loss_of, 480, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))
