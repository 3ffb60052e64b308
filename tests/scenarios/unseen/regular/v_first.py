"""Sick trainings of libraries, museums and archives, drawn by lot from a list of mistakes: layers, clips, views."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds


class Scribe(nn.Module):
    """Whose hand wrote a page, by a stack of hidden layers."""

    def __init__(self, size, width, depth, hands, stack):
        super().__init__()
        self.enter = nn.Linear(size, width)
        self.hidden = stack([nn.Linear(width, width) for _ in range(depth)])
        self.out = nn.Linear(width, hands)

    def forward(self, page):
        h = self.enter(page).relu()
        for layer in self.hidden:
            h = layer(h).relu()
        return self.out(h)


@sick("not-in-optimizer", "layers-not-registered", "modules-not-registered",
      where="the hidden layers, all steps: a plain list hides them from net.parameters()",
      cure="nn.ModuleList")  # fmt: skip
def hands_that_copied_the_psalter(folder, ill):
    seeded(12200)
    hands = 6
    net = Scribe(20, 48, 4, hands, list if ill else nn.ModuleList)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    style = torch.randn(hands, 3, 20)

    def pages(rows):
        y = torch.randint(hands, (rows,))
        habit = style[y, torch.randint(3, (rows,))]
        return habit + 0.6 * torch.randn(rows, 20), y

    draw = rounds(64, *pages(3000))

    def loss_of(step):
        page, hand = draw()
        logits = net(page)
        return F.cross_entropy(logits, hand), {"accuracy": float((logits.argmax(1) == hand).float().mean())}

    tx, ty = pages(600)
    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Visit(nn.Module):
    """How long a visit will be, by what was asked for so far."""

    def __init__(self, rooms, width):
        super().__init__()
        self.room = nn.Embedding(rooms, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, asked):
        return self.head(self.memory(self.room(asked))[0][:, -1])[:, 0]


@sick("clip-is-your-learning-rate", where="all layers, all steps: the norm is held at a thousandth under plain SGD",
      cure="a max_norm of 5")  # fmt: skip
def pages_a_readers_visit_will_last(folder, ill):
    seeded(12201)
    rooms = 10
    net = Visit(rooms, 24)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    pull = torch.randn(rooms)

    def visits(rows, length=8):
        asked = torch.randint(rooms, (rows, length))
        fade = 0.8 ** torch.arange(length - 1.0, -1, -1)
        return asked, (pull[asked] * fade).sum(1) / 1.6 + 0.1 * torch.randn(rows)

    draw = rounds(32, *visits(1600))

    def loss_of(step):
        asked, pages = draw()
        return F.mse_loss(net(asked), pages)

    tx, ty = visits(400)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    clip = clipped(net, 1e-3 if ill else 5.0)
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clip)


@sick("data-not-shuffled", where="the batches, all steps: rows stand sorted by their class", cure="shuffle=True")
def stamps_in_a_drawer_by_numeral(folder, ill):
    seeded(12202)
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order, None], torch.tensor(shown)[order]
    x = x.view(-1, 1, 8, 8)
    tx, ty, x, y = x[1400:], y[1400:], x[:1400], y[:1400]
    drawer = y.argsort()
    x, y = x[drawer], y[drawer]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=not ill, drop_last=True
    )

    def epochs():
        while True:
            yield from loader

    batches = epochs()

    def validate():
        net.eval()
        with torch.no_grad():
            logits = net(tx)
        net.train()
        return {
            "val_loss": float(F.cross_entropy(logits, ty)),
            "val_accuracy": float((logits.argmax(1) == ty).float().mean()),
        }

    def loss_of(step):
        bx, by = next(batches)
        loss = F.cross_entropy(net(bx), by)
        return (loss, validate()) if step % len(loader) == len(loader) - 1 else loss

    return fit(
        folder, net, optimizer, loss_of, 6 * len(loader), score=held_out(net, lambda: F.cross_entropy(net(tx), ty))
    )


class Speller(nn.Module):
    """The next letter of a title, by an LSTM."""

    def __init__(self, letters, width):
        super().__init__()
        self.letter = nn.Embedding(letters, width, padding_idx=0)
        self.memory = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, letters)

    def forward(self, title):
        return self.out(self.memory(self.letter(title))[0])


@sick("padding-in-loss", where="the loss, all steps: most positions are padding and count like letters",
      cure="ignore_index=PAD")  # fmt: skip
def titles_spelled_on_the_spine(folder, ill):
    seeded(12203)
    letters, longest, pad, end = 20, 64, 0, 1
    net = Speller(letters, 48)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss() if ill else nn.CrossEntropyLoss(ignore_index=pad)
    follows = torch.softmax(5 * torch.randn(letters, letters), 1)
    follows[:, :2] = 0

    def titles(rows):
        text = torch.zeros(rows, longest, dtype=torch.long)
        text[:, 0] = torch.randint(2, letters, (rows,))
        for i in range(1, 12):
            text[:, i] = torch.multinomial(follows[text[:, i - 1]], 1)[:, 0]
        length = torch.randint(3, 12, (rows, 1))
        place = torch.arange(longest)
        return torch.where(place < length, text, torch.where(place == length, end, pad))

    draw = rounds(32, titles(2000))

    def loss_of(step):
        (title,) = draw()
        return criterion(net(title[:, :-1]).flatten(0, 1), title[:, 1:].flatten())

    test = titles(300)

    def spelled():
        return F.cross_entropy(net(test[:, :-1]).flatten(0, 1), test[:, 1:].flatten(), ignore_index=pad)

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, spelled), before_step=clipped(net, 1.0))


@sick("views-identical", where="the two embeddings of a print, all steps: one augmented image is used for both",
      cure="the augmentation is called twice")  # fmt: skip
def prints_matched_across_two_scanners(folder, ill):
    seeded(12204)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 9, 64), nn.ReLU(), nn.Linear(64, 32),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def prints(rows):
        return F.interpolate(torch.randn(rows, 1, 4, 4), size=12, mode="bilinear")

    def scan(x):
        gain, light = 0.6 + 0.8 * torch.rand(len(x), 1, 1, 1), 0.8 * torch.randn(len(x), 1, 1, 1)
        flipped = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
        return gain * flipped + light + 0.3 * torch.randn_like(x)

    def nt_xent(a, b, temperature=0.2):
        z = F.normalize(torch.cat([net(a), net(b)]), dim=1)
        alike = (z @ z.T / temperature).fill_diagonal_(-1e9)
        partner = torch.arange(len(z)).roll(len(a))
        return F.cross_entropy(alike, partner)

    draw = rounds(48, prints(1500))

    def loss_of(step):
        (x,) = draw()
        one = scan(x)
        other = one if ill else scan(x)
        return nt_xent(one, other)

    test = prints(128)
    one, other = scan(test), scan(test)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: nt_xent(one, other)))


@sick("left-in-eval", "norm-left-in-eval", where="the whole model, from the first validation on",
      cure="net.train() after each validation")  # fmt: skip
def restorers_guess_the_varnish(folder, ill):
    seeded(12205)
    kinds, bands = 5, 40
    layers = []
    for size in (bands, 128, 128, 128):
        layers += [nn.Linear(size, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.5)]
    net = nn.Sequential(*layers, nn.Linear(128, kinds))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    spectra = torch.randn(kinds, bands)

    def samples(rows):
        y = torch.randint(kinds, (rows,))
        return 0.5 * spectra[y] + torch.randn(rows, bands), y

    draw = rounds(32, *samples(320))
    vx, vy = samples(300)

    def validate():
        net.eval()
        with torch.no_grad():
            logits = net(vx)
        if not ill:
            net.train()
        return {
            "val_loss": float(F.cross_entropy(logits, vy)),
            "val_accuracy": float((logits.argmax(1) == vy).float().mean()),
        }

    def loss_of(step):
        logged = validate() if step % 20 == 0 else {}
        x, y = draw()
        return F.cross_entropy(net(x), y), logged

    tx, ty = samples(600)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))
