"""Bakeries, mills and breads: tins, bakers' hands, order slips, flour by the lot, loaves weighed, marks on loaves."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds


def digits():
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    return x[order], y[order]


@sick("gradients-accumulate", where="all layers, every step: the gradients of all earlier batches are still there",
      cure="zero_grad in each step")  # fmt: skip
def numbers_stamped_on_bread_tins(folder, ill):
    seeded(12800)
    x, y = digits()
    draw = rounds(64, x[:1400], y[:1400])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    validate = now_and_then(net, 22, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 220, score=score, zero_grad=not ill)


class Hands(nn.Module):
    """Which of thirty bakers shaped the loaf."""

    def __init__(self, last):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(288, 64), nn.ReLU(), nn.Linear(64, 30))
        self.last = last

    def forward(self, x):
        return self.last(self.head(self.body(x)))


@sick("softmax-twice", where="the model's last operation and the loss, all steps", cure="hand logits to the loss")
def loaves_by_the_baker_who_shaped_them(folder, ill):
    seeded(12801)
    shapes = F.interpolate(torch.randn(30, 1, 5, 5), size=(12, 12), mode="bilinear")

    def loaves(rows):
        y = torch.randint(30, (rows,))
        return shapes[y] * (0.8 + 0.4 * torch.rand(rows, 1, 1, 1)) + 0.6 * torch.randn(rows, 1, 12, 12), y

    draw = rounds(64, *loaves(4000))
    net = Hands(nn.Softmax(dim=1) if ill else nn.Identity())
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean())}

    tx, ty = loaves(600)
    score = held_out(net, lambda: (net(tx).argmax(1) != ty).float().mean())
    return fit(folder, net, optimizer, loss_of, 250, score=score)


class Slip(nn.Module):
    """What kind of order a slip of words is."""

    def __init__(self, words, kinds, width, length):
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        return self.head(self.norm(self.body(self.word(x) + self.place)).mean(1))


@sick("lr-too-high", "update-too-large", where="all layers, from the first steps", cure="a rate of 0.001")
def words_on_a_bakers_order_slip(folder, ill):
    seeded(12802)
    habit = 1.2 * torch.randn(6, 40)

    def slips(rows):
        y = torch.randint(6, (rows,))
        return torch.multinomial(habit[y].softmax(1), 16, replacement=True), y

    net = Slip(40, 6, 32, 16)
    optimizer = torch.optim.Adam(net.parameters(), 0.1 if ill else 1e-3)
    tx, ty = slips(400)
    validate = now_and_then(net, 25, judged(net, tx, ty))
    draw = rounds(32, *slips(3000))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        right = (said.argmax(1) == y).float().mean()
        return F.cross_entropy(said, y), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 160, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("inputs-not-normalised", "columns-on-unlike-scales", where="what comes into the first layer, all steps",
      cure="standardise each column by the training rows")  # fmt: skip
def flour_lots_by_their_mill(folder, ill):
    seeded(12803)
    usual = torch.tensor([0.55, 12.0, 0.145, 300.0, 35.0, 24_000.0, 310.0, 95.0])
    give = torch.tensor([0.08, 1.2, 0.006, 40.0, 6.0, 4_000.0, 25.0, 12.0])
    centres = 1.3 * torch.randn(5, 2, 8)

    def lots(rows):
        y = torch.randint(5, (rows,))
        return usual + give * (centres[y, torch.randint(2, (rows,))] + 0.8 * torch.randn(rows, 8)), y

    x, y = lots(2000)
    tx, ty = lots(600)
    centre, spread = (0.0, 1.0) if ill else (x.mean(0), x.std(0))
    x, tx = (x - centre) / spread, (tx - centre) / spread
    draw = rounds(64, x, y)
    net = dense(8, 64, 64, 5)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    validate = now_and_then(net, 31, judged(net, tx, ty))

    def loss_of(step):
        rows, mill = draw()
        said = net(rows)
        right = (said.argmax(1) == mill).float().mean()
        return F.cross_entropy(said, mill), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("targets-not-normalised", where="the targets, in grams; the head, all steps",
      cure="standardise the targets and scale the predictions back")  # fmt: skip
def weight_of_a_loaf_by_its_picture(folder, ill):
    seeded(12804)
    grid = torch.linspace(-1, 1, 16)

    def pictures(rows):
        wide, high = 0.35 + 0.5 * torch.rand(rows, 1, 1), 0.3 + 0.4 * torch.rand(rows, 1, 1)
        at = 0.2 * torch.randn(rows, 2, 1, 1)
        far = ((grid - at[:, 0]) / wide) ** 2 + ((grid[:, None] - at[:, 1]) / high) ** 2
        dark = 0.6 + 0.4 * torch.rand(rows, 1, 1)
        image = dark * (1.2 - far).clamp(0, 1) + 0.1 * torch.randn(rows, 16, 16)
        grams = 5000 * wide * high**1.3 + 20 * torch.randn(rows, 1, 1)
        return (image - 0.3)[:, None] / 0.35, grams.flatten(1)

    x, y = pictures(2000)
    tx, ty = pictures(400)
    centre, spread = (0.0, 1.0) if ill else (y.mean(), y.std())
    draw = rounds(50, x, (y - centre) / spread)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(384, 48), nn.ReLU(), nn.Linear(48, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        image, grams = draw()
        said = net(image)
        return F.mse_loss(said, grams), {"mae": float((said - grams).abs().mean().detach())}

    score = held_out(net, lambda: F.l1_loss(net(tx) * spread + centre, ty) / 100)
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@sick("not-in-optimizer", "parameters-not-in-the-optimizer", where="the new head, all steps",
      cure="make the optimizer once the head has been replaced")  # fmt: skip
def marks_cut_into_loaves(folder, ill):
    seeded(12805)
    old, new = torch.randn(8, 1, 6, 6).sign(), torch.randn(20, 1, 6, 6).sign()

    def loaves(marks, rows):
        y = torch.randint(len(marks), (rows,))
        image = F.pad(marks[y], (2, 2, 2, 2)).roll(torch.randint(-1, 2, (2,)).tolist(), (2, 3))
        return image + 0.4 * torch.randn(rows, 1, 10, 10), y

    net = nn.Sequential()
    net.add_module("body", nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(600, 32), nn.ReLU(),
    ))  # fmt: skip
    net.add_module("head", nn.Linear(32, 8))
    first = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(120):
        x, y = loaves(old, 48)
        first.zero_grad()
        F.cross_entropy(net(x), y).backward()
        first.step()
    first.zero_grad()

    fresh = nn.Linear(32, 20)
    if ill:
        optimizer = torch.optim.AdamW(net.parameters(), 5e-4, weight_decay=0.01)
        net.head = fresh
    else:
        net.head = fresh
        optimizer = torch.optim.AdamW(net.parameters(), 5e-4, weight_decay=0.01)

    def loss_of(step):
        x, y = loaves(new, 32)
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean())}

    tests = [loaves(new, 64) for _ in range(8)]
    score = held_out(net, lambda: sum(F.cross_entropy(net(x), y) for x, y in tests) / 8)
    return fit(folder, net, optimizer, loss_of, 250, score=score)
