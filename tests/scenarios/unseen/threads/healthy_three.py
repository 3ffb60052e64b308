"""Sound trainings of an ordinary make: tea leaves, echoes off a seabed, looms, street lamps, a taster of wine."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend

import gradwatch

# ----------------------------------------------------------------------------------------------------------------- tea


def leaves(rows, size=16):
    """Leaves on a tray by grade, three colours: whole ones are long, broken ones short, tips pale."""
    grade = torch.randint(5, (rows,))
    y, x = torch.meshgrid(*[torch.arange(size).float() - size / 2 + 0.5] * 2, indexing="ij")
    turn, shift = 3.1416 * torch.rand(rows, 1, 1), torch.randn(2, rows, 1, 1)
    along = turn.cos() * (y - shift[0]) + turn.sin() * (x - shift[1])
    across = turn.cos() * (x - shift[1]) - turn.sin() * (y - shift[0])
    length = torch.tensor([6.5, 5.0, 3.8, 3.0, 5.0])[grade][:, None, None] * (0.9 + 0.2 * torch.rand(rows, 1, 1))
    leaf = torch.sigmoid(4 * (1 - (along / length).square() - (across / 2.2).square()))[:, None]
    green = torch.tensor([[0.3, 0.5, 0.2]]) + torch.tensor([0.0, 0.0, 0.0, 0.0, 0.3])[grade][:, None]
    tray = 0.9 - leaf * (0.9 - green + 0.1 * torch.randn(rows, 3))[..., None, None]
    return tray + 0.15 * torch.randn(rows, 3, size, size), grade


def flipped_and_cropped(x):
    if torch.rand(()) < 0.5:
        x = x.flip(3)
    top, left = torch.randint(5, (2,)).tolist()
    return F.pad(x, [2] * 4, mode="replicate")[..., top : top + 16, left : left + 16]


@healthy()
def tea_leaves_by_grade(folder, steps=400):
    seeded(2408)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    draw, (x_new, y_new) = rounds(64, *leaves(2560)), leaves(400)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)

    def loss_of(step):
        x, y = draw()
        out = net(flipped_and_cropped((x - 0.7) / 0.3))
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    def score():
        return held_out(net, lambda: F.cross_entropy(net((x_new - 0.7) / 0.3), y_new))()

    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


# -------------------------------------------------------------------------------------------------------------- seabed


def soundings(graphs):
    """Graphs of echoes: their strength and depth, who is near whom, whose graph it is, and what lies there."""
    sizes = torch.randint(10, 24, (graphs,))
    of = torch.arange(graphs).repeat_interleave(sizes)
    bed = torch.randint(4, (graphs,))
    kind, at = bed[of], 3 * torch.rand(len(of), 2)
    hull = (kind == 3).float() * (-(at - 1.5).square().sum(1) * 2).exp()
    ripple = (kind == 1).float() * 0.4 * (4 * at[:, 0]).sin()
    depth = ripple + hull + torch.where(kind == 2, 0.5, 0.1) * torch.randn(len(of))
    near = (torch.cdist(at, at) < 1.0) & (of[:, None] == of)
    echo = 0.5 + 0.3 * (kind == 2) + 0.3 * torch.randn(len(of))
    return torch.stack([depth, depth.square(), echo], 1), near.nonzero().T, of, bed


class Gin(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        sizes = [(3, width), (width, width), (width, width)]
        self.maps = nn.ModuleList(dense(a, b, b, norm=nn.BatchNorm1d) for a, b in sizes)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 4))

    def forward(self, x, edges, of):
        for part in self.maps:
            x = part(torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])).relu()
        count = of.bincount()
        return self.head(x.new_zeros(len(count), x.shape[1]).index_add(0, of, x) / count[:, None])


@healthy()
def seabed_under_the_sonar(folder):
    seeded(2409)
    net = Gin()
    optimizer = torch.optim.Adam(net.parameters(), 0.003)
    charted, (*new, bed_new) = [soundings(32) for _ in range(40)], soundings(200)

    def loss_of(step):
        *graphs, bed = charted[int(torch.randint(40, ()))]
        out = net(*graphs)
        return F.cross_entropy(out, bed), {"train_acc": (out.argmax(1) == bed).float().mean()}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.cross_entropy(net(*new), bed_new)))


# --------------------------------------------------------------------------------------------------------------- looms


class Loom(nn.Module):
    """The logarithm of the faults to expect, from a loom's settings and its yarn."""

    def __init__(self):
        super().__init__()
        self.yarn, self.body = nn.Embedding(12, 4), dense(9, 64, 64, 1)

    def forward(self, settings, yarn):
        return self.body(torch.cat([settings, self.yarn(yarn)], 1))[:, 0]


def woven(rows, strength):
    settings, yarn = torch.randn(rows, 5), torch.randint(12, (rows,))
    strain = settings[:, 0] * settings[:, 1] + settings[:, 2].abs() - strength[yarn]
    return settings, yarn, torch.poisson((0.5 + 0.6 * strain).clamp(-3, 3).exp())


@healthy()
def faults_of_the_looms(folder, epoch=40):
    seeded(2410)
    strength, net = torch.randn(12), Loom()
    draw, held, new = (rounds(64, *woven(epoch * 64, strength)), woven(500, strength), woven(800, strength))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    best = {"loss": float("inf"), "net": copy.deepcopy(net.state_dict())}

    def loss(settings, yarn, faults):
        return F.poisson_nll_loss(net(settings, yarn), faults)

    def deviance(settings, yarn, faults):
        expected = net(settings, yarn)
        return 2 * (torch.xlogy(faults, faults) - faults * expected - faults + expected.exp()).mean()

    def one(step):
        optimizer.zero_grad()
        now = loss(*draw())
        now.backward()
        optimizer.step()
        if step % epoch < epoch - 1:
            return {"loss": now}
        level = held_out(net, lambda: loss(*held))()
        schedule.step(level)
        if level < best["loss"]:
            best.update(loss=level, net=copy.deepcopy(net.state_dict()))
        return {"loss": now, "val_loss": level}

    def score():
        net.load_state_dict(best["net"])
        return held_out(net, lambda: deviance(*new))()

    return tend(folder, net, optimizer, one, 20 * epoch, score)


# --------------------------------------------------------------------------------------------------------------- lamps


def lamps_on_cables(cables=10, each=24):
    """What a drone sees of each lamp, and which lamps hang on the same stretch of cable."""
    t, start, way = torch.linspace(0, 1, each), torch.rand(cables, 1, 2), torch.rand(cables, 1, 2) - 0.5
    at = start + way * t[:, None] + 0.1 * torch.rand(cables, 1, 2) * (6 * t[:, None]).sin()
    hue = torch.rand(cables, 1, 3).expand(-1, each, -1) + 0.15 * torch.randn(cables, each, 3)
    seen = torch.cat([4 * at - 2, hue], 2).flatten(0, 1)
    first = torch.arange(cables * each).view(cables, each)
    links = [torch.stack([first[:, :-step].flatten(), first[:, step:].flatten()]) for step in (1, 2, 3)]
    return seen, torch.cat(links, 1)


def spread(edges, n):
    """The adjacency with loops, normed on both sides."""
    near = torch.eye(n)
    near[edges[0], edges[1]] = near[edges[1], edges[0]] = 1.0
    scale = near.sum(1).rsqrt()
    return scale[:, None] * near * scale


@healthy(gain=0.2)
def lamps_on_the_same_cable(folder):
    seeded(2411)
    seen, links = lamps_on_cables()
    n, links = len(seen), links[:, torch.randperm(links.shape[1])]
    new, known = links[:, :100], links[:, 100:]
    near, inner, outer = spread(known, n), nn.Linear(5, 64), nn.Linear(64, 32)
    net = nn.ModuleDict({"conv1": inner, "conv2": outer})
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    apart_from_new = torch.randint(n, (2, 100))

    def loss(true, false):
        z = near @ outer((near @ inner(seen)).relu())
        pairs = torch.cat([true, false], 1)
        wanted = torch.cat([torch.ones(true.shape[1]), torch.zeros(false.shape[1])])
        return F.binary_cross_entropy_with_logits((z[pairs[0]] * z[pairs[1]]).sum(1), wanted)

    def loss_of(step):
        return loss(known, torch.randint(n, known.shape))

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: loss(new, apart_from_new)))


# ---------------------------------------------------------------------------------------------------------------- wine


class Taster(nn.Module):
    """Says word after word, looking back at the readings; it is told what word was right before."""

    def __init__(self, words=13, width=48):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(words, width), nn.GRUCell(2 * width, width)
        self.query, self.key, self.weight = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.out = nn.Linear(width, words)

    def forward(self, readings, state, words):
        keys, said = self.key(readings), []
        for word in self.embedding(words).unbind(1):
            share = self.weight((keys + self.query(state)[:, None]).tanh()).softmax(1)
            state = self.gru(torch.cat([word, (share * readings).sum(1)], 1), state)
            said.append(self.out(state))
        return torch.stack(said, 1)


@healthy()
def notes_of_a_wine_taster(folder, steps=350):
    seeded(2412)
    encoder = nn.ModuleDict({"embedding": nn.Embedding(12, 48), "gru": nn.GRU(48, 48, batch_first=True)})
    decoder, meaning = Taster(), torch.randperm(12)
    optimizers = [torch.optim.Adam(part.parameters(), 3e-3) for part in (encoder, decoder)]

    def loss(rows=32):
        readings = torch.randint(12, (rows, 8))
        note = meaning[readings.flip(1)]
        before = F.pad(note[:, :-1], (1, 0), value=12)
        outs, state = encoder["gru"](encoder["embedding"](readings))
        return F.cross_entropy(decoder(outs, state[0], before).flatten(0, 1), note.flatten())

    def score():
        with torch.no_grad():
            return float(loss(256))

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(encoder, optimizers[0])}
    w_encoder = gradwatch.watch(encoder, optimizers[0], name="encoder", **options)
    w_decoder = gradwatch.watch(decoder, optimizers[1], name="decoder", run=w_encoder, **options)
    with w_encoder, w_decoder:
        for _ in range(steps):
            for optimizer in optimizers:
                optimizer.zero_grad()
            now = loss()
            now.backward()
            for optimizer in optimizers:
                optimizer.step()
            w_encoder.log(loss=now)
            w_decoder.log(loss=now)
    return Outcome(gradwatch.open_history(w_encoder.dir.parent), first, score())
