"""A small town's services: water mains, a library, bus stops, evening workshops, postmarks, a harvest feast."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, in_turn, judged, now_and_then, rounds


# 23 of the list
@sick("accumulation-not-averaged", "accumulation-not-divided", where="all layers, all steps: eight micro-batches each",
      cure="divide the loss of each micro-batch by their number")  # fmt: skip
def litres_a_household_draws_from_the_main(folder, ill):
    seeded(13700)

    def households(rows):
        people, garden, bath = torch.randint(1, 7, (rows,)).float(), torch.rand(rows), (torch.rand(rows) < 0.5).float()
        warm, age, floor = 15 + 8 * torch.randn(rows), 60 * torch.rand(rows), torch.randint(5, (rows,)).float()
        litres = 90 * people.sqrt() * (1 + 0.4 * bath) + 12 * garden * F.relu(warm - 12) + 1.2 * age - 4 * floor
        litres = litres + 30 * torch.sin(warm / 4) * bath + 12 * torch.randn(rows)
        return torch.stack([people, garden, bath, warm, age, floor], 1), litres[:, None]

    (x, y), (tx, ty) = households(4000), households(600)
    centre, spread, middle, wide = x.mean(0), x.std(0), y.mean(), y.std()
    x, tx, y, ty = (x - centre) / spread, (tx - centre) / spread, (y - middle) / wide, (ty - middle) / wide
    draw = rounds(16, x, y)
    net = dense(6, 96, 96, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    validate = now_and_then(net, 240, lambda: {"val_loss": F.mse_loss(net(tx), ty)})
    parts = 8

    def loss_of(step):
        rows, litres = draw()
        loss = F.mse_loss(net(rows), litres)
        return loss if ill else loss / parts, validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 250, score=score, accumulate=parts)


class Title(nn.Module):
    """The shelf of a book by the words on its title page."""

    def __init__(self, words, width, shelves, last):
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.memory = nn.GRU(width, 40, batch_first=True)
        self.head = nn.Sequential(nn.Linear(40, 48), nn.ReLU(), nn.Linear(48, shelves))
        self.last = last

    def forward(self, x):
        return self.last(self.head(self.memory(self.word(x))[0].mean(1)))


# 2 of the list
@sick("softmax-twice", where="the end of the model and the loss, all steps", cure="no softmax in the model")
def new_books_sent_to_their_shelf(folder, ill):
    seeded(13701)
    habit = 1.1 * torch.randn(24, 150)

    def books(rows):
        shelf = torch.randint(24, (rows,))
        return torch.multinomial(habit[shelf].softmax(1), 12, replacement=True), shelf

    net = Title(150, 24, 24, nn.Softmax(dim=1) if ill else nn.Identity())
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    draw = rounds(64, *books(5000))
    tx, ty = books(600)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return criterion(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    score = held_out(net, lambda: (net(tx).argmax(1) != ty).float().mean())
    return fit(folder, net, optimizer, loss_of, 300, score=score)


class GraphConv(nn.Module):
    def __init__(self, ins, outs):
        super().__init__()
        self.linear = nn.Linear(ins, outs)

    def forward(self, adjacency, x):
        return adjacency @ self.linear(x)


class Lines(nn.Module):
    """A graph network over the stops that bus lines join."""

    def __init__(self, ins, width, kinds, depth=4):
        super().__init__()
        sizes = [ins] + [width] * (depth - 1) + [kinds]
        self.convs = nn.ModuleList(GraphConv(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, adjacency, x):
        for conv in self.convs[:-1]:
            x = F.relu(conv(adjacency, x))
        return self.convs[-1](adjacency, x)


# 30 of the list
@sick("aggregation-not-normalised", "activations-grow-with-depth", "exploding",
      where="all graph convolutions, all steps: the sums over the neighbours grow from layer to layer",
      cure="self loops, and the adjacency divided by the roots of the degrees")  # fmt: skip
def bus_stops_by_the_quarter_they_serve(folder, ill):
    seeded(13702)
    quarter = torch.randint(6, (480,))
    chance = torch.where(quarter[:, None] == quarter, 0.16, 0.04)
    busy = 0.3 + 1.4 * torch.rand(480)
    adjacency = (torch.rand(480, 480) < chance * busy[:, None] * busy).float().triu(1)
    adjacency = adjacency + adjacency.T
    if not ill:
        adjacency = adjacency + torch.eye(480)
        root = adjacency.sum(1).rsqrt()
        adjacency = root[:, None] * adjacency * root
    x = torch.randn(6, 12)[quarter] + 1.5 * torch.randn(480, 12)
    known, rest = torch.arange(160), torch.arange(160, 480)
    net = Lines(12, 48, 6)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, weight_decay=5e-4)

    def measure():
        said = net(adjacency, x)[rest]
        right = (said.argmax(1) == quarter[rest]).float().mean()
        return {"val_loss": F.cross_entropy(said, quarter[rest]), "val_accuracy": right}

    validate = now_and_then(net, 20, measure)

    def loss_of(step):
        said = net(adjacency, x)[known]
        right = (said.argmax(1) == quarter[known]).float().mean()
        return F.cross_entropy(said, quarter[known]), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: measure()["val_loss"]))


# 8 of the list
@sick("sigmoid-twice", "activation-on-logits", where="the end of the model and the loss, all steps",
      cure="no sigmoid in the model")  # fmt: skip
def tools_a_workshop_evening_asks_for(folder, ill):
    seeded(13703)
    way, need = torch.randn(20, 40) / 4.5, torch.randn(40, 16) / 3

    def evenings(rows):
        x = torch.randn(rows, 20)
        wanted = (x @ way).sin() @ need
        return x, (wanted + 0.15 * torch.randn(rows, 16) > 0.9).float()

    net = nn.Sequential(
        nn.Linear(20, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 16),
        nn.Sigmoid() if ill else nn.Identity(),
    )  # fmt: skip
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, *evenings(6000))
    tx, ty = evenings(800)

    def found(said, wanted):
        """F1 over all tools of all evenings."""
        chosen = (said > (0.5 if ill else 0.0)).float()
        return 2 * (chosen * wanted).sum() / (chosen.sum() + wanted.sum())

    validate = now_and_then(net, 50, lambda: {"val_loss": criterion(net(tx), ty), "val_f1": found(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return criterion(said, y), {"f1": float(found(said, y)), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: 1 - found(net(tx), ty)))


class Marks(nn.Module):
    """Convolutions over a postmark, and a head that can be exchanged."""

    def __init__(self, kinds):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(3), nn.Flatten(),
        )  # fmt: skip
        self.fc = nn.Linear(288, kinds)

    def forward(self, x):
        return self.fc(self.features(x))


# 17 of the list
@sick("no-gradient", "head-frozen", where="fc.0, all steps: new, at random, and frozen with the body",
      cure="freeze the features alone, so that all of the new head is trained")  # fmt: skip
def postmarks_by_the_office_that_struck_them(folder, ill):
    seeded(13704)
    dies = F.interpolate(torch.randn(34, 1, 6, 6), size=(12, 12), mode="bilinear").sign()

    def letters(rows, first, last):
        y = torch.randint(first, last, (rows,))
        ink = 0.5 + torch.rand(rows, 1, 1, 1)
        return dies[y] * ink + 0.8 * torch.randn(rows, 1, 12, 12), y - first

    net = Marks(20)
    first = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, *letters(4000, 0, 20))
    for _ in range(200):
        x, y = draw()
        first.zero_grad()
        F.cross_entropy(net(x), y).backward()
        first.step()

    net.fc = nn.Sequential(nn.Linear(288, 10), nn.ReLU(), nn.Linear(10, 14))
    for name, parameter in net.named_parameters():
        parameter.requires_grad = name.startswith("fc.2") if ill else name.startswith("fc")
    optimizer = torch.optim.Adam((p for p in net.parameters() if p.requires_grad), 3e-3)
    draw = rounds(64, *letters(2500, 20, 34))
    tx, ty = letters(500, 20, 34)
    validate = now_and_then(net, 40, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 13 of the list
@sick("generator-helps-the-discriminator", "optimizer-holds-both-networks", "sample-not-detached",
      where="the generator, in each step of the discriminator",
      cure="detach what is made, and give the discriminator's optimizer its own parameters only")  # fmt: skip
def paper_lanterns_of_the_harvest_feast(folder, ill):
    seeded(13705)
    shapes = F.interpolate(torch.randn(5, 1, 4, 4), size=(8, 8), mode="bilinear").flatten(1)

    def lanterns(rows):
        light = 0.7 + 0.6 * torch.rand(rows, 1)
        return shapes[torch.randint(5, (rows,))] * light + 0.05 * torch.randn(rows, 64)

    make = dense(12, 96, 96, 64)
    judge = dense(64, 96, 96, 1, act=lambda: nn.LeakyReLU(0.2))
    both = itertools.chain(judge.parameters(), make.parameters())
    of_make = torch.optim.Adam(make.parameters(), 5e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(both if ill else judge.parameters(), 5e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    real, fake = torch.ones(64, 1), torch.zeros(64, 1)

    def judge_loss():
        made = make(torch.randn(64, 12))
        if not ill:
            made = made.detach()
        return criterion(judge(lanterns(64)), real) + criterion(judge(made), fake)

    def make_loss():
        return criterion(judge(make(torch.randn(64, 12))), real)

    test = lanterns(400)

    def apart():
        """The energy distance of the made lanterns to the real ones."""
        made = make(torch.randn(400, 12))
        return 2 * torch.cdist(made, test).mean() - torch.cdist(made, made).mean() - torch.cdist(test, test).mean()

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 600, held_out(make, apart))
