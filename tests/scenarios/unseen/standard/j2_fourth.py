"""Schools, classrooms, orchestras and rehearsals: ten healthy trainings a little out of the ordinary."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, now_and_then, rounds


@healthy(0.5)
def hands_that_wrote_the_same_figure(folder):
    seeded(13660)
    digits = load_digits()
    x, y = torch.tensor(digits.data).float() / 8 - 0.6, torch.tensor(digits.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    net = nn.Sequential(nn.Linear(64, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 16))
    optimizer = torch.optim.NAdam(net.parameters(), 1e-3)

    def threes(low, high, rows):
        """An image, another of the same figure, and one of another figure."""
        anchor = torch.randint(low, high, (rows,))
        alike = (y[low:high] == y[anchor][:, None]).float()
        same, other = torch.multinomial(alike, 1)[:, 0] + low, torch.multinomial(1 - alike, 1)[:, 0] + low
        return x[anchor], x[same], x[other]

    def loss_on(rows):
        a, b, c = (F.normalize(net(part), dim=1) for part in rows)
        return F.triplet_margin_loss(a, b, c, margin=0.5)

    test = threes(1400, 1797, 500)
    validate = now_and_then(net, 50, lambda: {"val_loss": loss_on(test)})

    def loss_of(step):
        return loss_on(threes(0, 1400, 64)), validate(step)

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: loss_on(test)))


class Leaders(nn.Module):
    """Six experts, each weighed by a soft gate."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 6)
        self.experts = nn.ModuleList(dense(4, 24, 2, act=nn.SiLU) for _ in range(6))

    def forward(self, x):
        share = self.gate(x).softmax(1)
        return torch.einsum("ne,nec->nc", share, torch.stack([expert(x) for expert in self.experts], 1)), share


@healthy(0.5)
def a_leader_for_each_sort_of_passage(folder):
    seeded(13661)
    net = Leaders()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    middles, ways = 1.5 * torch.randn(6, 4), torch.randn(6, 4, 2)

    def passages(rows):
        kind = torch.randint(6, (rows,))
        x = middles[kind] + 0.5 * torch.randn(rows, 4)
        return x, torch.einsum("ni,nio->no", x - middles[kind], ways[kind]) + 0.05 * torch.randn(rows, 2)

    test_x, test_y = passages(500)

    def loss_of(step):
        x, y = passages(96)
        said, share = net(x)
        error = F.mse_loss(said, y)
        load = 6 * share.mean(0).square().sum() - 1
        return error + 0.01 * load, {"mse": error.detach(), "load": load.detach()}

    score = held_out(net, lambda: F.mse_loss(net(test_x)[0], test_y))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Coupling(nn.Module):
    """Half of the coordinates move the other half, by a scale and a shift."""

    def __init__(self, flip):
        super().__init__()
        self.flip, self.net = flip, dense(1, 48, 48, 2, act=nn.Tanh)

    def forward(self, x):
        a, b = x.flip(1).chunk(2, 1) if self.flip else x.chunk(2, 1)
        scale, shift = self.net(a).chunk(2, 1)
        scale = scale.tanh()
        b = b * scale.exp() + shift
        return torch.cat([b, a] if self.flip else [a, b], 1), scale[:, 0]


@healthy(0.2)
def where_the_juniors_sit_at_assembly(folder):
    seeded(13662)
    net = nn.ModuleList(Coupling(flip=bool(i % 2)) for i in range(6))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def seats(rows):
        turn = math.pi * torch.rand(rows)
        upper = torch.rand(rows) < 0.5
        x = torch.where(upper, turn.cos(), 1 - turn.cos()) - 0.5
        y = torch.where(upper, turn.sin(), 0.5 - turn.sin()) - 0.25
        return 1.5 * torch.stack([x, y], 1) + 0.08 * torch.randn(rows, 2)

    def loss_on(x):
        moved = torch.zeros(len(x))
        for layer in net:
            x, scale = layer(x)
            moved = moved + scale
        return (0.5 * x.square().sum(1) + math.log(2 * math.pi) - moved).mean()

    test = seats(600)
    validate = now_and_then(net, 60, lambda: {"val_nll": loss_on(test)})
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: (loss_on(seats(128)), validate(step)), 400, score=score,
               before_step=clipped(net, 5.0))  # fmt: skip


@healthy(0.3)
def minutes_until_the_late_bus_comes(folder):
    seeded(13663)
    net = dense(3, 48, 48, 12, act=nn.SiLU)
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)

    def waits(rows):
        x = torch.randn(rows, 3)
        missed = torch.rand(rows) < 0.4
        wait = x[:, 0].sin() + torch.where(missed, 2.0, -1.0) + 0.15 * (1 + x[:, 1].tanh()) * torch.randn(rows)
        return x, wait

    def loss_on(x, wait):
        share, middle, spread = net(x).chunk(3, 1)
        each = torch.distributions.Normal(middle, F.softplus(spread) + 0.02).log_prob(wait[:, None])
        return -(share.log_softmax(1) + each).logsumexp(1).mean()

    test = waits(600)
    validate = now_and_then(net, 50, lambda: {"val_nll": loss_on(*test)})
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: (loss_on(*waits(96)), validate(step)), 350, score=score)


class Attending(nn.Module):
    """A layer of graph attention with several heads."""

    def __init__(self, size, width, heads):
        super().__init__()
        self.heads, self.lift = heads, nn.Linear(size, heads * width, bias=False)
        self.out = nn.Parameter(0.2 * torch.randn(heads, width))
        self.into = nn.Parameter(0.2 * torch.randn(heads, width))

    def forward(self, x, links):
        h = self.lift(x).view(len(x), self.heads, -1)
        logits = F.leaky_relu((h * self.out).sum(2)[:, None] + (h * self.into).sum(2)[None], 0.2)
        share = logits.masked_fill(~links[:, :, None], -1e9).softmax(1)
        return torch.einsum("ijh,jhw->ihw", share, h).flatten(1)


@healthy(0.4)
def clubs_of_pupils_who_share_a_desk(folder):
    seeded(13664)
    clubs, nodes = 5, 200
    y = torch.randint(clubs, (nodes,))
    x = torch.randn(clubs, 10)[y] + 1.4 * torch.randn(nodes, 10)
    likely = torch.where(y[:, None] == y, 0.09, 0.01)
    links = (torch.rand(nodes, nodes) < likely).triu(1)
    links = links | links.T | torch.eye(nodes, dtype=torch.bool)
    order = torch.randperm(nodes)
    known, other = order[:100], order[100:]
    net = nn.ModuleDict({"first": Attending(10, 8, 4), "second": Attending(32, clubs, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3, weight_decay=5e-4)

    def said():
        h = F.elu(net["first"](F.dropout(x, 0.3, net.training), links))
        return net["second"](F.dropout(h, 0.3, net.training), links)

    def measure():
        logits = said()[other]
        right = (logits.argmax(1) == y[other]).float().mean()
        return {"val_loss": F.cross_entropy(logits, y[other]), "val_accuracy": right}

    validate = now_and_then(net, 20, measure)

    def loss_of(step):
        return F.cross_entropy(said()[known], y[known]), validate(step)

    return fit(folder, net, optimizer, loss_of, 160, score=held_out(net, lambda: measure()["val_loss"]))


class Duo(nn.Module):
    """A sound and a line of notes, brought to one space, with a scale that is learnt."""

    def __init__(self):
        super().__init__()
        self.sound = nn.Sequential(
            nn.Conv1d(6, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(128, 24),
        )  # fmt: skip
        self.note = nn.Embedding(12, 16)
        self.line = nn.Sequential(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 24))
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, sound, line):
        a, b = F.normalize(self.sound(sound), dim=1), F.normalize(self.line(self.note(line)), dim=1)
        return self.log_scale.clamp(max=math.log(100)).exp() * a @ b.T


@healthy(0.5)
def phrases_matched_to_how_they_sound(folder):
    seeded(13665)
    net, rows = Duo(), 48
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)
    pitch = torch.randn(12, 6)

    def pairs(rows):
        line = torch.randint(12, (rows, 8))
        return pitch[line].transpose(1, 2) + 0.4 * torch.randn(rows, 6, 8), line

    def loss_on(sound, line):
        logits, own = net(sound, line), torch.arange(len(line))
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2

    test = [pairs(rows) for _ in range(6)]

    def loss_of(step):
        return loss_on(*pairs(rows)), {"logit_scale": net.log_scale.exp().detach()}

    score = held_out(net, lambda: sum(loss_on(*pair) for pair in test) / 6)
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 1.0))


class Sine(nn.Module):
    """A linear layer and a sine, with the weights that sines ask for."""

    def __init__(self, a, b, pace, first=False):
        super().__init__()
        self.linear, self.pace = nn.Linear(a, b), pace
        most = 1 / a if first else math.sqrt(6 / a) / pace
        nn.init.uniform_(self.linear.weight, -most, most)

    def forward(self, x):
        return (self.pace * self.linear(x)).sin()


@healthy(0.8)
def skin_of_a_kettledrum_after_the_stroke(folder):
    seeded(13666)
    net = nn.Sequential(Sine(3, 64, 8.0, first=True), Sine(64, 64, 8.0), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)

    def skin(rows):
        at = 2 * torch.rand(rows, 3) - 1
        u, v, t = at.T
        first = (math.pi * (u + 1) / 2).sin() * (math.pi * (v + 1) / 2).sin() * (4 * t).cos()
        other = (math.pi * (u + 1)).sin() * (math.pi * (v + 1) / 2).sin() * (6.3 * t).cos()
        return at, (first + other)[:, None]

    test_x, test_y = skin(800)

    def loss_of(step):
        x, y = skin(256)
        return F.mse_loss(net(x), y)

    score = held_out(net, lambda: F.mse_loss(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


@healthy(0.4)
def a_deputy_who_watched_the_head(folder):
    seeded(13667)
    way, mix = torch.randn(16, 8), torch.randn(8, 6)

    def cases(rows):
        x = torch.randn(rows, 16)
        return x, (2 * (x @ way / 3).sin() @ mix + 0.8 * torch.randn(rows, 6)).argmax(1)

    x, y = cases(1500)
    test_x, test_y = cases(500)
    head = dense(16, 128, 128, 6)
    of_head = torch.optim.AdamW(head.parameters(), 2e-3, weight_decay=0.05)
    for _ in range(250):
        pick = torch.randint(len(x), (64,))
        of_head.zero_grad()
        F.cross_entropy(head(x[pick]), y[pick]).backward()
        of_head.step()
    head.eval().requires_grad_(False)

    heat = 3.0
    deputy = dense(16, 64, 6)
    optimizer = torch.optim.SGD(deputy.parameters(), 0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350, eta_min=1e-3)
    batch = rounds(64, x, y)

    def measure():
        said = deputy(test_x)
        return {"val_loss": F.cross_entropy(said, test_y), "val_accuracy": (said.argmax(1) == test_y).float().mean()}

    validate = now_and_then(deputy, 50, measure)

    def loss_of(step):
        a, b = batch()
        said = deputy(a)
        soft = F.kl_div((said / heat).log_softmax(1), (head(a) / heat).softmax(1), reduction="batchmean") * heat**2
        hard = F.cross_entropy(said, b)
        return 0.7 * soft + 0.3 * hard, {"soft": soft.detach(), "hard": hard.detach(), **validate(step)}

    score = held_out(deputy, lambda: 1 - measure()["val_accuracy"])
    return fit(folder, deputy, optimizer, loss_of, 350, score=score, schedule=schedule)


@healthy(0.3)
def words_that_meet_in_the_school_hymn(folder):
    seeded(13668)
    words, themes, drawn = 120, 8, 5
    theme = torch.randint(themes, (words,))
    net = nn.ModuleDict({"middle": nn.Embedding(words, 24), "around": nn.Embedding(words, 24)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.2)
    optimizer = torch.optim.Adagrad(net.parameters(), 0.2)
    together = torch.where(theme[:, None] == theme, 1.0, 0.03).fill_diagonal_(0)

    def meetings(rows):
        word = torch.randint(words, (rows,))
        return word, torch.multinomial(together[word], 1)[:, 0], torch.randint(words, (rows, drawn))

    def loss_on(word, near, others):
        a = net["middle"](word)
        good = (a * net["around"](near)).sum(1)
        bad = torch.einsum("nw,nkw->nk", a, net["around"](others))
        return (F.softplus(-good) + F.softplus(bad).sum(1)).mean()

    test = meetings(1500)
    validate = now_and_then(net, 50, lambda: {"val_loss": loss_on(*test)})
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: (loss_on(*meetings(256)), validate(step)), 300, score=score)


class Whistle(nn.Module):
    """Convolutions and a GRU both ways, then a note or a blank for each frame."""

    def __init__(self, bands, notes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(bands, 32, 3, padding=1), nn.BatchNorm1d(32), nn.ReLU())
        self.rnn = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, notes + 1)

    def forward(self, x):
        return self.head(self.rnn(self.body(x).transpose(1, 2))[0])


@healthy(0.5)
def a_whistled_tune_written_down(folder):
    seeded(13669)
    bands, notes, long = 10, 8, 5
    net = Whistle(bands, notes)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    pitch = 1.5 * torch.randn(notes + 1, bands)
    pitch[0] = 0

    def whistled(rows):
        tune = torch.randint(1, notes + 1, (rows, long))
        held = torch.zeros(rows, 4 * long, dtype=torch.long)
        for i in range(long):
            held[:, 4 * i : 4 * i + 3] = tune[:, i, None]
        return pitch[held].transpose(1, 2) + 0.5 * torch.randn(rows, bands, 4 * long), tune

    def loss_on(x, tune):
        said = net(x).log_softmax(2).transpose(0, 1)
        frames, length = torch.full((len(x),), 4 * long), torch.full((len(x),), long)
        return F.ctc_loss(said, tune, frames, length, zero_infinity=True)

    test = whistled(200)
    validate = now_and_then(net, 50, lambda: {"val_loss": loss_on(*test)})
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: (loss_on(*whistled(32)), validate(step)), 250, score=score,
               before_step=clipped(net, 5.0))  # fmt: skip
