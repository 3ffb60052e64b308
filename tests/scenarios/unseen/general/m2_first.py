"""A hospital and its laboratory: night charts, heparin drips, chest films, biopsies, skin lesions, Gram stains."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds, tend


# 29 of the list
@sick("class-imbalance", where="the loss and what the model says, all steps",
      cure="weigh the rare class by how rare it is")  # fmt: skip
def septic_nights_on_the_ward_from_bedside_charts(folder, ill):
    seeded(13900)
    way = torch.randn(14, 3) / 14**0.5

    def nights(rows):
        x = torch.randn(rows, 14)
        seen = x @ way
        risk = 1.5 * seen[:, 0] + 1.2 * seen[:, 1].square() - 0.8 * seen[:, 2] + 1.5 * torch.randn(rows)
        return x, (risk > 5.3).float()

    (x, y), (tx, ty) = nights(8000), nights(6000)
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.Linear(14, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    criterion = nn.BCEWithLogitsLoss(pos_weight=None if ill else (1 - y.mean()) / y.mean())

    def missed():
        """One less the mean of both recalls."""
        said = net(tx)[:, 0] > 0
        return 1 - (said[ty == 1].float().mean() + (~said[ty == 0]).float().mean()) / 2

    def measure():
        said = net(tx)[:, 0]
        return {"val_loss": criterion(said, ty), "val_accuracy": ((said > 0) == (ty > 0.5)).float().mean()}

    validate = now_and_then(net, 40, measure)

    def loss_of(step):
        rows, septic = draw()
        said = net(rows)[:, 0]
        right = ((said > 0) == (septic > 0.5)).float().mean()
        return criterion(said, septic), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, missed))


# 25 of the list
@sick("weight-decay-too-strong", "weights-shrink", where="all weights, all steps",
      cure="a decay of a hundred-thousandth")  # fmt: skip
def heparin_drip_rates_from_clotting_times(folder, ill):
    seeded(13901)
    way = torch.randn(8, 4) / 2

    def drips(rows):
        x = torch.randn(rows, 8)
        rate = (x @ way).tanh().sum(1) + 0.6 * x[:, 0] * x[:, 1]
        return x, ((rate + 0.1 * torch.randn(rows)) / 1.5)[:, None]

    draw = rounds(64, *drips(4000))
    tx, ty = drips(800)
    net = dense(8, 96, 96, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3, weight_decay=0.3 if ill else 1e-5)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        rows, rate = draw()
        return F.mse_loss(net(rows), rate), validate(step)

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


class Films(nn.Module):
    """An embedding of a film and one of the report that was dictated on it."""

    def __init__(self, words, width):
        super().__init__()
        self.film = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, width),
        )  # fmt: skip
        self.report = nn.Sequential(nn.EmbeddingBag(words, 64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, width))

    def forward(self, film, report):
        return F.normalize(self.film(film), dim=1), F.normalize(self.report(report), dim=1)


# 33 of the list
@sick("temperature-too-high", "logits-bounded", "logit-scale-too-small", where="the loss of the pairs, all steps",
      cure="a temperature of 0.07")  # fmt: skip
def chest_films_beside_their_dictated_reports(folder, ill):
    seeded(13902)
    signs = F.interpolate(torch.randn(24, 1, 5, 5), size=(16, 16), mode="bilinear")

    def pairs(rows):
        found = torch.rand(rows, 24).topk(5, 1).indices
        film = signs[found].sum(1) / 2.2 + 0.4 * torch.randn(rows, 1, 16, 16)
        phrase = 3 * found + torch.randint(3, (rows, 5))
        filler = torch.randint(72, 90, (rows, 3))
        return film, torch.cat([phrase, filler], 1)

    draw = rounds(64, *pairs(3000))
    net = Films(90, 32)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    temperature = 10.0 if ill else 0.07
    film, report = pairs(200)
    same = torch.arange(200)

    def contrast(a, b, warmth):
        like = a @ b.T / warmth
        return (F.cross_entropy(like, same[: len(a)]) + F.cross_entropy(like.T, same[: len(a)])) / 2

    def measure():
        a, b = net(film, report)
        return {"val_loss": contrast(a, b, temperature), "recall": ((a @ b.T).argmax(1) == same).float().mean()}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        return contrast(*net(*draw()), temperature), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: 1 - measure()["recall"]))


# 3 of the list
@sick("update-too-small", "lr-too-low", where="all layers, all steps", cure="a learning rate of a thousandth")
def kidney_biopsies_by_their_stain(folder, ill):
    seeded(13903)
    tints = torch.randn(5, 3)
    textures = F.interpolate(torch.randn(5, 3, 8, 8), size=(24, 24), mode="bilinear")

    def biopsies(rows):
        y = torch.randint(5, (rows,))
        grain = textures[y] * (0.5 + torch.rand(rows, 1, 1, 1))
        return 0.25 * tints[y, :, None, None] + 0.6 * grain + 0.9 * torch.randn(rows, 3, 24, 24), y

    draw = rounds(32, *biopsies(1600))
    tx, ty = biopsies(300)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 5),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-6 if ill else 1e-3)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        image, stain = draw()
        said = net(image)
        right = (said.argmax(1) == stain).float().mean()
        return F.cross_entropy(said, stain), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Lesion(nn.Module):
    """A body that was trained at the first clinic, and a head."""

    def __init__(self, kinds):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
            nn.Flatten(), nn.Linear(512, 64), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(64, kinds)

    def forward(self, x):
        return self.head(self.features(x))


# 13 of the list
@sick("not-in-optimizer", "not-in-the-optimizer", "parameters-not-in-the-optimizer", where="the new head, all steps",
      cure="make the optimizer once the head has been replaced")  # fmt: skip
def skin_lesions_of_a_second_clinic(folder, ill):
    seeded(13904)
    parts = F.interpolate(torch.randn(16, 1, 5, 5), size=(16, 16), mode="bilinear")

    def clinic(kinds):
        mix = torch.randn(kinds, 16) / 2

        def lesions(rows):
            y = torch.randint(kinds, (rows,))
            weight = mix[y] + 0.25 * torch.randn(rows, 16)
            return torch.einsum("bp,pchw->bchw", weight, parts) + 0.5 * torch.randn(rows, 1, 16, 16), y

        return lesions

    at_first, at_second = clinic(8), clinic(12)
    net = Lesion(8)
    before = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(120):
        x, y = at_first(64)
        before.zero_grad()
        F.cross_entropy(net(x), y).backward()
        before.step()

    if ill:
        optimizer = torch.optim.AdamW(net.parameters(), 1e-4, weight_decay=0.01)
        net.head = nn.Linear(64, 12)
    else:
        net.head = nn.Linear(64, 12)
        optimizer = torch.optim.AdamW(
            [{"params": net.features.parameters()}, {"params": net.head.parameters(), "lr": 2e-3}], 1e-4,
            weight_decay=0.01,
        )  # fmt: skip
    draw = rounds(32, *at_second(1200))
    tx, ty = at_second(400)
    validate = now_and_then(net, 40, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        right = (said.argmax(1) == y).float().mean()
        return F.cross_entropy(said, y), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Bench(nn.Module):
    """Convolutions with batch norm, as a small VGG has them."""

    def __init__(self, kinds):
        super().__init__()
        sizes = (3, 16, 16, 32, 32, 48)
        parts = []
        for i in range(5):
            parts += [nn.Conv2d(sizes[i], sizes[i + 1], 3, padding=1, bias=False), nn.BatchNorm2d(sizes[i + 1])]
            parts += [nn.ReLU(), *([nn.MaxPool2d(2)] if i in (1, 3) else [])]
        self.body = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(48, kinds))

    def forward(self, x):
        return self.head(self.body(x))


# 7 of the list
@sick("left-in-eval", "norm-left-in-eval", where="all batch norms and the dropout, from the first validation on",
      cure="back to training mode after each validation")  # fmt: skip
def gram_stains_read_at_the_bench(folder, ill):
    seeded(13905)
    cells = F.interpolate(torch.randn(8, 3, 4, 4), size=(8, 8), mode="bilinear")

    def stains(rows):
        y = torch.randint(8, (rows,))
        image = 0.8 * torch.randn(rows, 3, 16, 16)
        for i in range(rows):
            for _ in range(3):
                top, left = torch.randint(9, (2,)).tolist()
                image[i, :, top : top + 8, left : left + 8] += cells[y[i]]
        return image, y

    draw = rounds(32, *stains(1000))
    tx, ty = stains(200)
    net = Bench(8)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)

    def one(step):
        logged = {}
        if step % 30 == 0:
            net.eval()
            with torch.no_grad():
                said = net(tx)
            right = (said.argmax(1) == ty).float().mean()
            logged = {"val_loss": float(F.cross_entropy(said, ty)), "val_accuracy": float(right)}
            if not ill:
                net.train()
        x, y = draw()
        optimizer.zero_grad()
        said = net(x)
        loss = F.cross_entropy(said, y)
        loss.backward()
        optimizer.step()
        return {"loss": loss, "accuracy": float((said.argmax(1) == y).float().mean()), **logged}

    return tend(folder, net, optimizer, one, 180, held_out(net, lambda: F.cross_entropy(net(tx), ty)))
