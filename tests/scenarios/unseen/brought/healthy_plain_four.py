"""Everyday trainings that start from another net, that teach one, that spread over a graph, that take noise away."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def trained_before(net, loss_of, steps, rate=2e-3):
    """What somebody else did, elsewhere and earlier."""
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(step).backward()
        optimizer.step()
        schedule.step()
    return net


def graded(net, rows):
    """What a net says of what is drawn, and the truth."""
    return net(rows[0]), rows[1]


def entropy_and_accuracy(logits, y):
    return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}


# --------------------------------------------------------------------------------------------------------- fine-tuning


def struck_notes(rows, notes=12):
    """Spectra of struck keys in sixty-four bins; the note, and whether a spinet, an upright or a grand was struck."""
    note, make = torch.randint(notes, (rows,)), torch.randint(3, (rows,))
    partial, bins = torch.arange(1, 7), torch.linspace(0, 3.2, 64)
    stiff = torch.tensor([0.012, 0.006, 0.002])[make] * (1 + 0.2 * torch.randn(rows))
    fade = torch.tensor([0.9, 0.6, 0.35])[make] * (1 + 0.2 * torch.randn(rows))
    pitch = (note[:, None] / notes + partial.log2()) + stiff[:, None] * partial.square()
    loud = (-fade[:, None] * (partial - 1)).exp()
    spectrum = (loud[:, :, None] * (-((bins - pitch[:, :, None]) / 0.05).square() / 2).exp()).sum(1)
    return 4 * (spectrum - 0.12) + 0.3 * torch.randn(rows, 64), note, make


@healthy()
def makes_of_pianos_that_are_tuned(folder):
    seeded(2804)
    body = dense(64, 96, 96, 64)
    heard, known = nn.Sequential(body, nn.ReLU(), nn.Linear(64, 12)), struck_notes(6000)
    draw = rounds(64, *known[:2])

    def name_the_note(step):
        x, note = draw()
        return F.cross_entropy(heard(x), note)

    trained_before(heard, name_the_note, 400)
    body.requires_grad_(False).eval()
    head = nn.Sequential(nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 3))
    net = nn.ModuleDict({"body": body, "head": head})
    optimizer = torch.optim.AdamW(head.parameters(), lr=2e-3, weight_decay=0.01)
    x, _, make = struck_notes(4000)
    tuned = rounds(64, x[:3500], make[:3500])

    def says(x):
        with torch.no_grad():
            features = body(x)
        return head(features)

    def loss_of(step):
        x, y = tuned()
        return entropy_and_accuracy(says(x), y)

    score = held_out(net, lambda: F.cross_entropy(says(x[3500:]), make[3500:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


def leaf_spectra(rows, grades, bends, offset=0.0):
    """Near-infrared spectra of tea in forty-eight wavelengths, by an instrument with an offset; the grade."""
    grade = torch.randint(grades, (rows,))
    wave = torch.linspace(0, 6.2832, 48)
    strength = bends[grade] + 0.25 * torch.randn(rows, bends.shape[1])
    parts = torch.stack([(k * wave + offset).sin() for k in range(1, bends.shape[1] + 1)])
    return (strength @ parts + 0.2 * torch.randn(rows, 48))[:, None], grade


@healthy()
def grades_of_tea_from_another_plantation(folder):
    seeded(2805)
    body = nn.Sequential(
        nn.Conv1d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv1d(16, 32, 5, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(384, 64)
    )  # fmt: skip
    first, bends = nn.Sequential(body, nn.ReLU(), nn.Linear(64, 8)), torch.randn(8, 6) * 0.5
    trained_before(first, lambda step: entropy_and_accuracy(*graded(first, leaf_spectra(64, 8, bends)))[0], 400)
    net = nn.Sequential(body, nn.ReLU(), nn.Linear(64, 4))
    groups = [{"params": body.parameters(), "lr": 1e-4}, {"params": net[2].parameters(), "lr": 1e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 40, (401 - step) / 361))
    x, grade = leaf_spectra(2500, 4, torch.randn(4, 6) * 0.5, offset=0.3)
    draw = rounds(32, x[:2000], grade[:2000])
    score = held_out(net, lambda: F.cross_entropy(net(x[2000:]), grade[2000:]))

    def loss_of(step):
        return entropy_and_accuracy(*graded(net, draw()))

    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule, before_step=clipped(net, 1.0))


class Adapted(nn.Module):
    """A linear layer that stays, and beside it a way of low rank that starts at nothing (LoRA)."""

    def __init__(self, layer, rank, alpha):
        super().__init__()
        self.layer, self.scale = layer.requires_grad_(False), alpha / rank
        self.down, self.up = nn.Linear(layer.in_features, rank, False), nn.Linear(rank, layer.out_features, False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.scale * self.up(self.down(x))


def ascents(station, batch=64):
    """What a balloon measures on the way to ten kilometres, and the wind in eight layers above, as a station has it."""
    x = torch.randn(batch, 12)
    return x, (x @ station[0]).tanh() @ station[1] + 0.1 * torch.randn(batch, 8)


@healthy()
def winds_above_a_new_balloon_station(folder):
    seeded(2806)
    first = [torch.randn(12, 24) / 12**0.5, torch.randn(24, 8) / 24**0.5]
    base = dense(12, 96, 96, 8, act=nn.GELU)
    trained_before(base, lambda step: F.mse_loss(*graded(base, ascents(first))), 600)
    shift = [torch.randn(12, 2) @ torch.randn(2, 24) / 8, torch.randn(24, 2) @ torch.randn(2, 8) / 12]
    other = [old + new for old, new in zip(first, shift, strict=True)]
    net = nn.Sequential(*(Adapted(part, 8, 16) if isinstance(part, nn.Linear) else part for part in base))
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    kept = ascents(other, 1024)
    score = held_out(net, lambda: F.mse_loss(*graded(net, kept)))
    return fit(folder, net, optimizer, lambda step: F.mse_loss(*graded(net, ascents(other))), 600, score=score,
               schedule=schedule)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ a teacher


def gums(rows):
    """Twenty measures of a tooth and the gum about it, and which of six findings the dentist wrote down."""
    finding = torch.randint(6, (rows,))
    forms = torch.randn(6, 4, 20)
    return forms[finding, torch.randint(4, (rows,))] + 0.9 * torch.randn(rows, 20), finding


@healthy()
def findings_of_a_dentist_by_a_small_net(folder):
    seeded(2807)
    x, finding = gums(9000)
    draw, teacher, net = rounds(64, x[:8000], finding[:8000]), dense(20, 192, 192, 6), dense(20, 40, 40, 6)
    trained_before(teacher, lambda step: F.cross_entropy(*graded(teacher, draw())), 500)
    teacher.requires_grad_(False).eval()
    optimizer, warmth = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01), 3.0

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        soft = (teacher(x) / warmth).log_softmax(1)
        told = F.kl_div((logits / warmth).log_softmax(1), soft, log_target=True, reduction="batchmean") * warmth**2
        hard, logged = entropy_and_accuracy(logits, y)
        return 0.7 * told + 0.3 * hard, {"told": float(told), "hard": float(hard), **logged}

    score = held_out(net, lambda: F.cross_entropy(net(x[8000:]), finding[8000:]))
    return fit(folder, net, optimizer, loss_of, 700, score=score)


# -------------------------------------------------------------------------------------------------------------- a graph


class GraphNet(nn.Module):
    """Two rounds of means over neighbours (GCN)."""

    def __init__(self, inputs, width, kinds, ways):
        super().__init__()
        self.first, self.second = nn.Linear(inputs, width), nn.Linear(width, kinds)
        self.register_buffer("ways", ways)

    def forward(self, x):
        x = (self.ways @ self.first(F.dropout(x, 0.5, self.training))).relu()
        return self.ways @ self.second(F.dropout(x, 0.5, self.training))


def neighbours(x, near=6):
    """Means over those that are alike, both ways, scaled by how many there are."""
    alike = torch.cdist(x, x).topk(near + 1, largest=False).indices
    ways = torch.zeros(len(x), len(x)).scatter(1, alike, 1.0)
    ways = torch.maximum(ways, ways.T)
    root = ways.sum(1).rsqrt()
    return root[:, None] * ways * root


@healthy()
def urgency_of_patients_like_others(folder):
    seeded(2808)
    urgency = torch.randint(4, (500,))
    vitals = torch.randn(4, 5)[urgency] + 0.7 * torch.randn(500, 5)
    notes = torch.randn(4, 30)[urgency] * 0.5 + torch.randn(500, 30)
    net = GraphNet(30, 32, 4, neighbours(vitals))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)

    def loss_of(step):
        return entropy_and_accuracy(net(notes)[:200], urgency[:200])

    score = held_out(net, lambda: F.cross_entropy(net(notes)[200:], urgency[200:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


# --------------------------------------------------------------------------------------------------------------- noise


def bicycles_left(batch):
    """Where bicycles are left in a town: at six stations, and along the river."""
    turn = 6.2832 * torch.randint(6, (batch,)) / 6
    station = torch.stack([turn.cos(), turn.sin()], 1) * 1.6
    along = 3 * torch.rand(batch) - 1.5
    river = torch.stack([along, 0.4 * (2 * along).sin()], 1)
    return torch.where((torch.rand(batch) < 0.3)[:, None], river, station) + 0.06 * torch.randn(batch, 2)


@healthy()
def places_where_bicycles_are_left(folder):
    seeded(2803)
    net, ends = dense(2 + 16, 128, 128, 2, act=nn.SiLU), 100
    keep = torch.cumprod(1 - torch.linspace(1e-4, 0.08, ends), 0)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 900, 1e-4)
    pace = torch.logspace(0, 1.5, 8)

    def loss_of(step, batch=256):
        x, t = bicycles_left(batch), torch.randint(ends, (batch,))
        noise = torch.randn_like(x)
        noisy = keep[t].sqrt()[:, None] * x + (1 - keep[t]).sqrt()[:, None] * noise
        angle = t[:, None] / ends * pace
        return F.mse_loss(net(torch.cat([noisy, angle.sin(), angle.cos()], 1)), noise)

    score = held_out(net, lambda: loss_of(0, 2048))
    return fit(folder, net, optimizer, loss_of, 900, score=score, schedule=schedule)
