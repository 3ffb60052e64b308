"""Gardens, orchards, beekeepers and hedges: healthy trainings that are unusual and yet fine."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, now_and_then, rounds, tend


@healthy(0.3)
def two_heights_a_hedge_may_have(folder):
    """A mixture density network."""
    seeded(13060)
    net = dense(3, 48, 48, 9)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def hedges(rows):
        x = torch.randn(rows, 3)
        cut = torch.where(torch.rand(rows) < 0.5, 1.0, -1.0)
        return x, x[:, 0].sin() + cut * (1 + 0.3 * x[:, 1]) + 0.4 * torch.randn(rows)

    def loss_on(x, y):
        share, middle, spread = net(x).chunk(3, 1)
        each = torch.distributions.Normal(middle, F.softplus(spread) + 0.05).log_prob(y[:, None])
        return -(share.log_softmax(1) + each).logsumexp(1).mean()

    test_x, test_y = hedges(600)
    score = held_out(net, lambda: loss_on(test_x, test_y))
    return fit(folder, net, optimizer, lambda step: loss_on(*hedges(64)), 300, score=score)


@healthy(0.4)
def a_poor_and_a_good_year_for_plums(folder):
    """Three quantiles by the pinball loss."""
    seeded(13061)
    levels = torch.tensor([0.1, 0.5, 0.9])
    net = dense(5, 64, 64, 3, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)

    def years(rows):
        x = torch.randn(rows, 5)
        usual = x[:, 0] + (1.5 * x[:, 1]).sin()
        return x, (usual + (0.2 + 0.15 * x[:, 2].abs()) * torch.randn(rows))[:, None]

    def loss_on(x, y):
        gap = y - net(x)
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    test_x, test_y = years(600)

    def inside():
        low, _, high = net(test_x).split(1, 1)
        return {"covered": ((test_y > low) & (test_y < high)).float().mean()}

    validate = now_and_then(net, 50, inside)
    score = held_out(net, lambda: loss_on(test_x, test_y))
    return fit(folder, net, optimizer, lambda step: (loss_on(*years(64)), validate(step)), 300, score=score,
               schedule=schedule)  # fmt: skip


@healthy(0.5)
def warmth_that_sinks_into_a_compost_heap(folder):
    """The heat equation in the loss, with an edge and a beginning that are given."""
    seeded(13062)
    net = dense(2, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    flow = 0.1

    def truth(x, t):
        return (math.pi * x).sin() * (-flow * math.pi**2 * t).exp()

    def loss_of(step):
        x, t = torch.rand(64, 1, requires_grad=True), torch.rand(64, 1, requires_grad=True)
        u = net(torch.cat([2 * x - 1, 2 * t - 1], 1))
        u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        residual = (u_t - flow * u_xx).square().mean()
        x, t = torch.rand(32, 1), torch.zeros(32, 1)
        begin = (net(torch.cat([2 * x - 1, 2 * t - 1], 1)) - truth(x, t)).square().mean()
        x, t = torch.randint(2, (32, 1)).float(), torch.rand(32, 1)
        edge = net(torch.cat([2 * x - 1, 2 * t - 1], 1)).square().mean()
        return residual + begin + edge, {"residual": residual, "begin": begin, "edge": edge}

    x, t = torch.rand(500, 1), torch.rand(500, 1)
    score = held_out(net, lambda: F.mse_loss(net(torch.cat([2 * x - 1, 2 * t - 1], 1)), truth(x, t)))
    return fit(folder, net, optimizer, loss_of, 350, score=score)


class Coupling(nn.Module):
    """Affine couplings that take turns."""

    def __init__(self, size, layers):
        super().__init__()
        self.nets = nn.ModuleList(dense(size // 2, 32, size) for _ in range(layers))

    def forward(self, x):
        grown = torch.zeros(len(x))
        for net in self.nets:
            a, b = x.chunk(2, 1)
            scale, shift = net(a).chunk(2, 1)
            scale = scale.tanh()
            x = torch.cat([b * scale.exp() + shift, a], 1)
            grown = grown + scale.sum(1)
        return x, grown


@healthy(0.3)
def where_the_windfalls_come_to_lie(folder):
    """A normalising flow."""
    seeded(13063)
    net = Coupling(2, 6)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def windfalls(rows):
        angle = 6.2832 * torch.rand(rows)
        return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.25 * torch.randn(rows, 2)

    def loss_on(x):
        z, grown = net(x)
        return (0.5 * z.square().sum(1) - grown).mean() + math.log(2 * math.pi)

    test = windfalls(800)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(windfalls(128)), 300, score=score)


@healthy(0.5)
def the_apprentice_reads_as_the_head_gardener_does(folder):
    """Distillation with a temperature of three."""
    seeded(13064)
    digits = load_digits()
    x, y = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
    x = (x - 0.3) / 0.38
    teacher, net, warmth = dense(64, 128, 10), dense(64, 32, 10), 3.0
    before = torch.optim.Adam(teacher.parameters(), 2e-3)
    first = rounds(64, x[:1400], y[:1400])
    for _ in range(200):
        a, b = first()
        before.zero_grad()
        F.cross_entropy(teacher(a), b).backward()
        before.step()
    teacher.requires_grad_(False).eval()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    batch = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        a, b = batch()
        said = net(a)
        aim = (teacher(a) / warmth).softmax(1)
        soft = F.kl_div((said / warmth).log_softmax(1), aim, reduction="batchmean") * warmth**2
        hard = F.cross_entropy(said, b)
        accuracy = (said.argmax(1) == b).float().mean()
        return 0.7 * soft + 0.3 * hard, {"soft": soft, "hard": hard, "accuracy": accuracy}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


class Tastes(nn.Module):
    """Two tables of vectors with biases."""

    def __init__(self, bees, flowers, size):
        super().__init__()
        self.bee, self.flower = nn.Embedding(bees, size), nn.Embedding(flowers, size)
        self.of_bee, self.of_flower = nn.Embedding(bees, 1), nn.Embedding(flowers, 1)
        for table, spread in ((self.bee, 0.3), (self.flower, 0.3), (self.of_bee, 0.0), (self.of_flower, 0.0)):
            nn.init.normal_(table.weight, std=spread)

    def forward(self, bee, flower):
        biases = self.of_bee(bee) + self.of_flower(flower)
        return (self.bee(bee) * self.flower(flower)).sum(1) + biases[:, 0]


@healthy(0.4)
def which_flowers_each_colony_prefers(folder):
    """A factorisation of a table with gaps, by Adagrad."""
    seeded(13065)
    bees, flowers = 60, 50
    liking = (torch.randn(bees, 3) @ torch.randn(3, flowers)) / 1.7 + 0.5 * torch.randn(flowers)
    bee, flower = torch.meshgrid(torch.arange(bees), torch.arange(flowers), indexing="ij")
    order = torch.randperm(bees * flowers)
    bee, flower = bee.flatten()[order], flower.flatten()[order]
    y = liking[bee, flower] + 0.1 * torch.randn(bees * flowers)
    net = Tastes(bees, flowers, 4)
    optimizer = torch.optim.Adagrad(net.parameters(), 0.15)
    batch = rounds(128, bee[:2400], flower[:2400], y[:2400])

    def loss_of(step):
        a, b, c = batch()
        return F.mse_loss(net(a, b), c)

    score = held_out(net, lambda: F.mse_loss(net(bee[2400:], flower[2400:]), y[2400:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Gaps(nn.Module):
    """A transformer encoder that names what is hidden."""

    def __init__(self, kinds, length, width):
        super().__init__()
        self.kind, self.place = nn.Embedding(kinds + 1, width), nn.Parameter(0.1 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)

    def forward(self, row):
        return self.head(self.norm(self.body(self.kind(row) + self.place)))


@healthy(0.3)
def hidden_plants_in_a_repeating_border(folder):
    """Masked tokens, and only these are asked for."""
    seeded(13066)
    kinds, length = 6, 12
    net = Gaps(kinds, length, 32)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 20))

    def borders(rows):
        row = torch.randint(kinds, (rows, 4)).repeat(1, 3)
        hidden = torch.rand(rows, length) < 0.2
        return row.masked_fill(hidden, kinds), row.masked_fill(~hidden, -100)

    def loss_on(row, asked):
        return F.cross_entropy(net(row).flatten(0, 1), asked.flatten(), ignore_index=-100)

    row, asked = borders(300)
    score = held_out(net, lambda: loss_on(row, asked))
    return fit(folder, net, optimizer, lambda step: loss_on(*borders(48)), 400, score=score, schedule=schedule,
               before_step=clipped(net, 1.0))  # fmt: skip


@healthy(0.1)
def how_long_a_cut_rose_will_last(folder):
    """Cox's partial likelihood, with some roses that were still fresh at the end."""
    seeded(13067)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1, bias=False))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)
    way = torch.randn(8) / 2

    def roses(rows):
        x = torch.randn(rows, 8)
        risk = x @ way + 0.8 * (x[:, 0] * x[:, 1]).tanh()
        lasts, watched = -torch.rand(rows).log() / risk.exp(), 3 * torch.rand(rows) + 0.3
        return x, torch.minimum(lasts, watched), (lasts < watched).float()

    def loss_on(x, time, wilted):
        order = time.argsort(descending=True)
        risk = net(x[order])[:, 0]
        return -((risk - risk.logcumsumexp(0)) * wilted[order]).sum() / wilted.sum()

    batch, test = rounds(128, *roses(2000)), roses(128)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*batch()), 250, score=score)


@healthy(0.4)
def the_song_of_a_blackbird_in_the_pear_tree(folder):
    """CTC over frames that are more than the notes."""
    seeded(13068)
    notes, frames = 4, 16
    sounds = torch.randn(notes, 6)
    net = nn.Sequential(
        nn.Conv1d(6, 48, 3, padding=1), nn.ReLU(), nn.Conv1d(48, 48, 3, padding=1), nn.ReLU(),
        nn.Conv1d(48, notes + 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    length = torch.full((32,), 4)

    def songs(rows):
        song = torch.randint(notes, (rows, 4))
        at = torch.arange(frames)
        sung = sounds[song][:, at // 4] * ((at % 4) < 3).float()[:, None]
        return (sung + 0.3 * torch.randn(rows, frames, 6)).transpose(1, 2), song + 1

    def loss_on(x, song):
        said = net(x).permute(2, 0, 1).log_softmax(2)
        return F.ctc_loss(said, song, torch.full((len(x),), frames), length[:1].expand(len(x)))

    x, song = songs(200)
    score = held_out(net, lambda: loss_on(x, song))
    return fit(folder, net, optimizer, lambda step: loss_on(*songs(32)), 250, score=score)


@healthy(0.5)
def a_gate_in_the_hedge_found_on_level_ground(folder):
    """Sharpness-aware steps: up a little, then down from there."""
    seeded(13069)
    way = torch.randn(10, 3)
    net = dense(10, 64, 64, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)

    def gates(rows):
        x = torch.randn(rows, 10)
        return x, ((x @ way).tanh() + 0.3 * x[:, :3]).argmax(1)

    x, y = gates(600)

    def one(step):
        a, b = gates(64)
        optimizer.zero_grad()
        F.cross_entropy(net(a), b).backward()
        with torch.no_grad():
            size = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
            ways = [0.05 * p.grad / (size + 1e-12) for p in net.parameters()]
            for p, up in zip(net.parameters(), ways, strict=True):
                p.add_(up)
        optimizer.zero_grad()
        said = net(a)
        loss = F.cross_entropy(said, b)
        loss.backward()
        with torch.no_grad():
            for p, up in zip(net.parameters(), ways, strict=True):
                p.sub_(up)
        optimizer.step()
        return {"loss": loss, "accuracy": (said.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x), y))
    return tend(folder, net, optimizer, one, 300, score)
