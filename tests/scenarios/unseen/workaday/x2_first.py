"""Six trainings: tea trays, playground swings, blast holes, hides, quarried slabs, tanning liquor."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds, tend


# 3 of the list
@sick("update-too-small", "lr-too-low", where="all weights, all steps",
      cure="a learning rate of a thousandth")  # fmt: skip
def withered_leaf_grades_from_tray_photographs(folder, ill):
    seeded(15000)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    draw = rounds(32, x[:1400], y[:1400])
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-5 if ill else 1e-3)
    validate = now_and_then(net, 43, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        tray, grade = draw()
        return F.cross_entropy(net(tray), grade), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 430, score=score)


# 6 of the list
@sick("left-in-eval", where="the batch norms, from the first validation on",
      cure="net.train() after each validation")  # fmt: skip
def chain_swings_that_wear_out_by_their_creaking(folder, ill):
    seeded(15001)
    tone = torch.arange(48) / 48 * 6.2832

    def creaks(rows):
        kind = torch.randint(5, (rows,))
        pitch = 2.0 + 1.5 * kind + 0.4 * torch.randn(rows)
        sound = (pitch[:, None] * tone + 6.2832 * torch.rand(rows, 1)).sin() + 0.5 * torch.randn(rows, 48)
        return sound[:, None], kind

    (x, y), (vx, vy) = creaks(2000), creaks(1000)
    draw = rounds(64, x, y)
    body, before = [], 1
    for width, stride in ((16, 1), (16, 2), (32, 1), (32, 2), (32, 1), (32, 2), (32, 1)):
        body += [nn.Conv1d(before, width, 3, stride, 1, bias=False), nn.BatchNorm1d(width), nn.ReLU()]
        before = width
    net = nn.Sequential(*body, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 5))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)

    def validate():
        net.eval()
        with torch.no_grad():
            said = net(vx)
        if not ill:
            net.train()
        right = (said.argmax(1) == vy).float().mean()
        return {"val_loss": float(F.cross_entropy(said, vy)), "val_accuracy": float(right)}

    def loss_of(step):
        found = validate() if step % 31 == 0 else {}
        sound, kind = draw()
        said = net(sound)
        return F.cross_entropy(said, kind), {"accuracy": float((said.argmax(1) == kind).float().mean()), **found}

    score = held_out(net, lambda: F.cross_entropy(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 217, score=score)


# 9 of the list
@sick("class-imbalance", where="the loss and what the model says, all steps",
      cure="weights by how rare each class is")  # fmt: skip
def blast_holes_that_misfire_from_their_drilling_logs(folder, ill):
    seeded(15002)
    way = torch.randn(10, 2) / 10**0.5

    def holes(rows):
        log = torch.randn(rows, 10)
        wet, cracked = (log @ way + 0.8 * torch.randn(rows, 2)).unbind(1)
        kind = torch.zeros(rows, dtype=torch.long)
        kind[wet > 2.3] = 1
        kind[cracked < -2.5] = 2
        return log, kind

    (x, y), (tx, ty) = holes(6000), holes(6000)
    draw = rounds(100, x, y)
    net = dense(10, 48, 48, 3, act=nn.GELU)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    share = torch.bincount(y, minlength=3) / len(y)
    criterion = nn.CrossEntropyLoss(weight=None if ill else 1 / (3 * share))

    def missed():
        """One less the mean of the three recalls."""
        said = net(tx).argmax(1)
        return 1 - torch.stack([(said[ty == kind] == kind).float().mean() for kind in range(3)]).mean()

    def loss_of(step):
        log, kind = draw()
        said = net(log)
        return criterion(said, kind), {"accuracy": float((said.argmax(1) == kind).float().mean())}

    return fit(folder, net, optimizer, loss_of, 420, score=held_out(net, missed))


# 12 of the list
@sick("no-gradient", "frozen-layers", where="the body of the network, all steps",
      cure="the body asks for gradients again")  # fmt: skip
def goat_hides_sorted_by_a_body_that_knew_calf_hides(folder, ill):
    seeded(15003)
    calf, goat = torch.randn(16, 4) / 2, torch.randn(16, 4) / 2

    def hides(way, rows):
        x = torch.randn(rows, 16)
        grain = (x @ way).unflatten(1, (2, 2))
        return x, (grain[:, 0].prod(1) > 0).long() * 2 + (grain[:, 1].prod(1) > 0).long()

    body = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU())
    net = nn.Sequential(body, nn.Linear(64, 4))
    before = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(250):
        x, kind = hides(calf, 64)
        before.zero_grad()
        F.cross_entropy(net(x), kind).backward()
        before.step()

    net[1] = nn.Linear(64, 4)
    for weight in body.parameters():
        weight.requires_grad = not ill
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    (x, y), (tx, ty) = hides(goat, 6000), hides(goat, 2000)
    draw = rounds(64, x, y)

    def loss_of(step):
        hide, kind = draw()
        said = net(hide)
        return F.cross_entropy(said, kind), {"accuracy": float((said.argmax(1) == kind).float().mean())}

    return fit(folder, net, optimizer, loss_of, 550, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 17 of the list
@sick("bad-initialisation", where="all weights, from the first step", cure="Kaiming's initialisation")
def weights_of_slabs_from_the_saw_bench(folder, ill):
    seeded(15004)
    way = torch.randn(9, 5) / 3

    def slabs(rows):
        x = torch.randn(rows, 9)
        seen = x @ way
        return x, seen[:, :3].sin().sum(1, keepdim=True) + seen[:, 3:4] * seen[:, 4:].sigmoid()

    (x, y), (tx, ty) = slabs(4000), slabs(1500)
    draw = rounds(80, x, y)
    net = dense(9, 64, 64, 64, 1)
    for layer in net:
        if isinstance(layer, nn.Linear):
            if ill:
                nn.init.normal_(layer.weight)
            else:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        slab, weight = draw()
        return F.mse_loss(net(slab), weight), validate(step)

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


# 24 of the list
@sick("weight-decay-too-strong", "weights-shrink", where="all weights, all steps",
      cure="a decay of a hundred-thousandth")  # fmt: skip
def strength_of_tanning_liquor_from_its_spectrum(folder, ill):
    seeded(15005)
    band = torch.linspace(0, 1, 30)

    def liquors(rows):
        tannin, salt, age = torch.rand(3, rows, 1)
        light = tannin * (-((band - 0.3) ** 2) / 0.01).exp() + salt * (-((band - 0.7) ** 2) / 0.02).exp() + age * band
        y = 4 * tannin * (1 - 0.6 * salt) + (6 * age).sin()
        return (light + 0.02 * torch.randn(rows, 30) - 0.5) / 0.4, (y - 1.5) / 1.1

    (x, y), (tx, ty) = liquors(3000), liquors(1000)
    draw = rounds(50, x, y)
    net = dense(30, 64, 32, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3, weight_decay=0.1 if ill else 1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 480)

    def one(step):
        light, strength = draw()
        loss = F.smooth_l1_loss(net(light), strength)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": float(loss), "lr": schedule.get_last_lr()[0]}

    return tend(folder, net, optimizer, one, 480, held_out(net, lambda: F.mse_loss(net(tx), ty)))
