"""Kitchens, restaurants and market halls, six sick ones: plates, menu lines, dishes in words, stamps, recipes."""

from __future__ import annotations

import itertools

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import fit, seeded, sick
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds


class Plates(nn.Module):
    """A small encoder of photographs, what it projects them to, and a predictor of the other view."""

    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(288, width),
        )  # fmt: skip
        self.project = nn.Sequential(nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width))
        self.predict = nn.Sequential(nn.Linear(width, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, width))

    def forward(self, x):
        z = self.project(self.body(x))
        return z, self.predict(z)


# 32 of the list
@sick("representation-collapse", "no-stop-gradient", where="the projections of both views, within the first steps",
      cure="detach the projection that the predictor is compared with")  # fmt: skip
def plates_photographed_from_two_sides(folder, ill):
    seeded(13500)
    services = F.interpolate(torch.randn(12, 1, 4, 4), size=(12, 12), mode="bilinear")

    def view(kind):
        light = 0.6 + 0.8 * torch.rand(len(kind), 1, 1, 1)
        return services[kind] * light + 0.8 * torch.randn(len(kind), 1, 12, 12)

    net = Plates(48)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)

    def away(p, z):
        return -F.cosine_similarity(p, z if ill else z.detach()).mean()

    def loss_of(step):
        kind = torch.randint(12, (64,))
        (a, pa), (b, pb) = net(view(kind)), net(view(kind))
        return (away(pa, b) + away(pb, a)) / 2

    known, asked = torch.randint(12, (240,)), torch.randint(12, (400,))
    seen, new = view(known), view(asked)

    def probe():
        a, b = (F.normalize(net(x)[0], dim=1) for x in (seen, new))
        a, b = a - a.mean(0), b - a.mean(0)
        way = torch.linalg.solve(a.T @ a + torch.eye(48), a.T @ F.one_hot(known, 12).float())
        return ((b @ way + F.one_hot(known, 12).float().mean(0)).argmax(1) != asked).float().mean()

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, probe))


class Line(nn.Module):
    """Which course a line of a menu belongs to."""

    def __init__(self, words, courses):
        super().__init__()
        self.word = nn.Embedding(words, 32)
        self.memory = nn.GRU(32, 48, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(96, courses)

    def forward(self, x):
        return self.out(self.drop(self.memory(self.word(x))[0].mean(1)))


# 2 of the list
@sick("softmax-twice", where="what the model hands to the loss, all steps", cure="leave the softmax to the loss")
def menu_lines_by_their_course(folder, ill):
    seeded(13501)
    habit = 1.2 * torch.randn(14, 60)

    def lines(rows):
        y = torch.randint(14, (rows,))
        return torch.multinomial(habit[y].softmax(1), 10, replacement=True), y

    net = Line(60, 14)
    if ill:
        net.out = nn.Sequential(net.out, nn.Softmax(dim=1))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    tx, ty = lines(500)
    validate = now_and_then(net, 30, judged(net, tx, ty))
    draw = rounds(50, *lines(4000))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Towers(nn.Module):
    """Dishes and their descriptions in one space."""

    def __init__(self, words, sight, width):
        super().__init__()
        self.word = nn.EmbeddingBag(words, 48)
        self.text = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 64), nn.GELU(), nn.Linear(64, width))
        self.dish = nn.Sequential(nn.Linear(sight, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, width))

    def forward(self, words, dish):
        return F.normalize(self.text(self.word(words)), dim=1), F.normalize(self.dish(dish), dim=1)


# 31 of the list
@sick("temperature-too-high", "logits-bounded", where="the similarities before the loss, all steps",
      cure="a temperature of 0.1")  # fmt: skip
def dishes_matched_with_their_description(folder, ill):
    seeded(13502)
    taste, look, temperature = torch.randn(8, 50), torch.randn(8, 32), 10.0 if ill else 0.1

    def dishes(rows):
        dish = torch.randn(rows, 8)
        words = torch.multinomial((dish @ taste / 1.5).softmax(1), 20, replacement=True)
        return words, (dish @ look / 2).tanh() + 0.2 * torch.randn(rows, 32)

    net = Towers(50, 32, 24)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    draw = rounds(64, *dishes(6000))

    def loss_of(step):
        a, b = net(*draw())
        logits, own = a @ b.T / temperature, torch.arange(64)
        loss = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
        return loss, {"top1": float((logits.argmax(1) == own).float().mean())}

    test = dishes(400)

    def rank():
        a, b = net(*test)
        near = a @ b.T
        return (near > near.diagonal()[:, None]).float().sum(1).add(1).log().mean()

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, rank))


# 35 of the list
@sick("clip-before-unscale", where="the clip of the gradients, each step: it sees them times the loss scale",
      cure="scaler.unscale_(optimizer) before the clip")  # fmt: skip
def stamps_on_kitchen_delivery_notes(folder, ill):
    seeded(13503)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    draw = rounds(64, x[:1400], y[:1400])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    validate = now_and_then(net, 22, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, stamp = draw()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            said = net(image)
            loss = F.cross_entropy(said, stamp)
        return loss, {"accuracy": float((said.argmax(1) == stamp).float().mean()), **validate(step)}

    def before_step(step):
        if not ill:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 220, score=score, scaler=scaler, before_step=before_step)


class Recipe(nn.Module):
    """The next word of a recipe, by a causal transformer."""

    def __init__(self, words, width, length):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, words)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x):
        h = self.word(x) + self.place(torch.arange(x.shape[1]))
        return self.out(self.norm(self.body(h, mask=self.mask, is_causal=True)))


# 23 of the list
@sick("padding-in-loss", where="the loss: most of its targets are padding, all steps", cure="ignore_index=0")
def next_word_of_a_short_recipe(folder, ill):
    seeded(13504)
    follows = torch.randint(1, 30, (30, 2))

    def recipes(rows):
        text = torch.zeros(rows, 41, dtype=torch.long)
        text[:, 0] = torch.randint(1, 30, (rows,))
        for at in range(1, 12):
            text[:, at] = follows[text[:, at - 1], (torch.rand(rows) < 0.2).long()]
        return text * (torch.arange(41) < torch.randint(5, 12, (rows, 1)))

    net = Recipe(30, 32, 40)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    draw = rounds(32, recipes(2500))
    criterion = nn.CrossEntropyLoss(ignore_index=-100 if ill else 0)

    def loss_of(step):
        (text,) = draw()
        said, wanted = net(text[:, :-1]), text[:, 1:]
        loss = criterion(said.flatten(0, 1), wanted.flatten())
        return loss, {"accuracy": float((said.argmax(2) == wanted).float().mean())}

    test = recipes(200)
    score = held_out(
        net, lambda: F.cross_entropy(net(test[:, :-1]).flatten(0, 1), test[:, 1:].flatten(), ignore_index=0)
    )
    return fit(folder, net, optimizer, loss_of, 180, score=score, before_step=clipped(net, 1.0))


class Hall(nn.Module):
    """Graph convolutions over a hall."""

    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        for layer in self.layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x, near):
        for layer in self.layers[:-1]:
            x = F.relu(layer(near @ x))
        return self.layers[-1](near @ x)


# 37 of the list
@sick("over-smoothing", "representation-collapse", "embedding-hardly-varies",
      where="the deeper convolutions: all nodes are alike there", cure="two layers")  # fmt: skip
def stalls_of_a_hall_by_their_neighbours(folder, ill):
    seeded(13505)
    ware = torch.randint(5, (500,))
    alike = ware[:, None] == ware
    links = (torch.rand(500, 500) < 0.03 * alike + 0.006 * ~alike).float().triu(1)
    links = links + links.T + torch.eye(500)
    share = links.sum(1).rsqrt()
    near = share[:, None] * links * share
    x = torch.randn(5, 24)[ware] * 0.5 + torch.randn(500, 24)
    train, test = torch.arange(250), torch.arange(250, 500)
    net = Hall([24, *[48] * (11 if ill else 1), 5])
    optimizer = torch.optim.Adam(net.parameters(), 5e-3, weight_decay=5e-4)

    def measure():
        said = net(x, near)[test]
        right = (said.argmax(1) == ware[test]).float().mean()
        return {"val_loss": F.cross_entropy(said, ware[test]), "val_accuracy": right}

    validate = now_and_then(net, 10, measure)

    def loss_of(step):
        said = net(x, near)[train]
        right = (said.argmax(1) == ware[train]).float().mean()
        return F.cross_entropy(said, ware[train]), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 150, score=held_out(net, lambda: measure()["val_loss"]))
