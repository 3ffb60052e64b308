"""A hospital and its laboratory: pressure curves, triage notes, anaesthesia, breaths, spirometers, marrow."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, in_turn, judged, now_and_then, rounds


def curves(rows):
    """The arterial pressure over a beat, at 24 times."""
    time = torch.linspace(0, 1, 24)
    high, at, notch = 1 + 0.25 * torch.randn(rows, 1), 0.25 + 0.04 * torch.randn(rows, 1), torch.rand(rows, 1)
    rise = high * torch.exp(-((time - at) ** 2) / 0.02)
    return 2 * (rise + 0.5 * notch * torch.exp(-((time - 0.6) ** 2) / 0.01) - 0.35) + 0.05 * torch.randn(rows, 24)


def energy_apart(make, test, code):
    """`score()`: the energy distance of what is made to what was measured."""

    def score():
        with torch.no_grad():
            made = make(torch.randn(500, code))
            gap = 2 * torch.cdist(made, test).mean() - torch.cdist(made, made).mean() - torch.cdist(test, test).mean()
        return float(gap)

    return score


# 23 of the list
@sick("no-gradient", "no-gradient-to-the-generator", "detached", where="the generator, all steps",
      cure="do not detach what is made in the generator's own step")  # fmt: skip
def arterial_pressure_curves_invented(folder, ill):
    seeded(13906)
    draw, test = rounds(64, curves(4000)), curves(500)
    make = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 24))
    judge = nn.Sequential(nn.Linear(24, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)

    def judge_loss():
        fake = make(torch.randn(64, 8)).detach()
        return criterion(judge(draw()[0]), ones) + criterion(judge(fake), zeros)

    def make_loss():
        fake = make(torch.randn(64, 8))
        return criterion(judge(fake.detach() if ill else fake), ones)

    score = energy_apart(make, test, 8)
    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, score)


class Heads(nn.Module):
    """Attention of several heads, written out."""

    def __init__(self, width, heads, scale):
        super().__init__()
        self.heads, self.scale = heads, scale
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        for layer in (self.query, self.key):
            nn.init.normal_(layer.weight, std=1.6 * width**-0.5)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (
            part(x).view(rows, length, self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        weight = (q @ k.transpose(2, 3) * self.scale).softmax(-1)
        return self.out((weight @ v).transpose(1, 2).reshape(rows, length, width))


class Note(nn.Module):
    """A transformer over the words of a note; the first token is asked."""

    def __init__(self, words, length, kinds, width, scale, depth=2):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Parameter(0.3 * torch.randn(length + 1, width))
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.mix = nn.ModuleList(Heads(width, 2, scale) for _ in range(depth))
        self.before = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.turn = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), dense(width, 96, width)) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, kinds))

    def forward(self, x):
        h = torch.cat([self.first.expand(len(x), -1, -1), self.word(x)], 1) + self.place
        for mix, before, turn in zip(self.mix, self.before, self.turn, strict=True):
            h = h + mix(before(h))
            h = h + turn(h)
        return self.head(h[:, 0])


# 36 of the list
@sick("attention-not-scaled", "attention-unscaled", "attention-scale", "attention-collapsed",
      where="the logits of all heads, all steps", cure="divide them by the root of the width of a head")  # fmt: skip
def wards_named_by_marked_words_of_a_triage_note(folder, ill):
    seeded(13907)
    habit = 1.1 * torch.randn(8, 60)

    def notes(rows):
        y = torch.randint(8, (rows,))
        return torch.multinomial(habit[y].softmax(1), 20, replacement=True), y

    draw = rounds(32, *notes(3000))
    tx, ty = notes(300)
    net = Note(60, 20, 8, 96, 1.0 if ill else 48**-0.5)
    optimizer = torch.optim.AdamW(net.parameters(), 5e-4, weight_decay=0.01)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        right = (said.argmax(1) == y).float().mean()
        return F.cross_entropy(said, y), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 220, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 2 of the list
@sick("lr-too-high", "update-too-large", where="all layers, from the first steps on", cure="a rate of a thousandth")
def anaesthetic_depth_from_the_monitor(folder, ill):
    seeded(13908)
    way = torch.randn(12, 4) / 3

    def minutes(rows):
        x = torch.randn(rows, 12)
        depth = (1.5 * x @ way).sin().sum(1) + 0.5 * x[:, 3].abs()
        return x, ((depth - 0.4 + 0.15 * torch.randn(rows)) / 1.3)[:, None]

    draw = rounds(64, *minutes(5000))
    tx, ty = minutes(800)
    net = dense(12, 128, 128, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 0.1 if ill else 1e-3)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        rows, depth = draw()
        return F.mse_loss(net(rows), depth), validate(step)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


class Breaths(nn.Module):
    """A recurrent net over the exhaled gas, and what it says of the whole trace."""

    def __init__(self, width, kinds):
        super().__init__()
        self.memory = nn.RNN(2, width, nonlinearity="relu", batch_first=True)
        nn.init.orthogonal_(self.memory.weight_hh_l0)
        nn.init.zeros_(self.memory.bias_ih_l0)
        nn.init.zeros_(self.memory.bias_hh_l0)
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


# 20 of the list
@sick("exploding", "clip-not-applied", where="the recurrence, over its 100 times",
      cure="hold the norm of all gradients at 1")  # fmt: skip
def capnograph_traces_over_a_long_operation(folder, ill):
    seeded(13909)
    time = torch.arange(100) / 100

    def traces(rows):
        y = torch.randint(4, (rows,))
        pace = torch.tensor([6.0, 9.0, 12.0, 15.0])[y][:, None] + 0.5 * torch.randn(rows, 1)
        angle = 6.2832 * (pace * time + torch.rand(rows, 1))
        gas = torch.stack([angle.sin(), (2 * angle).cos()], 2)
        return gas + 0.3 * torch.randn(rows, 100, 2), y

    draw = rounds(32, *traces(2000))
    tx, ty = traces(250)
    net = Breaths(64, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    validate = now_and_then(net, 40, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        right = (said.argmax(1) == y).float().mean()
        return F.cross_entropy(said, y), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: (net(tx).argmax(1) != ty).float().mean())
    before_step = None if ill else clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, 240, score=score, before_step=before_step)


# 22 of the list
@sick("generator-starves", "saturating-generator-loss", "discriminator-too-strong", where="the generator, soon",
      cure="minus the logarithm of what the judge says, and a judge of the same rate as the maker")  # fmt: skip
def spirometer_loops_made_from_noise(folder, ill):
    seeded(13910)
    time = torch.linspace(0, 1, 20)

    def loops(rows):
        volume, blocked = 1 + 0.2 * torch.randn(rows, 1), torch.rand(rows, 1)
        flow = volume * (8 * time) * torch.exp(-(4 + 3 * blocked) * time)
        return 2 * torch.cat([flow - 0.4, -volume * (3.1416 * time).sin() + 0.6], 1) + 0.03 * torch.randn(rows, 40)

    draw, test = rounds(64, loops(4000)), loops(500)
    make = dense(6, 64, 64, 40)
    judge = nn.Sequential(dense(40, 128, 128, 1, act=lambda: nn.LeakyReLU(0.2)), nn.Sigmoid())
    of_make = torch.optim.Adam(make.parameters(), 5e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 4e-3 if ill else 5e-4, betas=(0.5, 0.999))
    criterion = nn.BCELoss()
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)

    def judge_loss():
        fake = make(torch.randn(64, 6)).detach()
        return criterion(judge(draw()[0]), ones) + criterion(judge(fake), zeros)

    def make_loss():
        said = judge(make(torch.randn(64, 6)))
        return -criterion(said, zeros) if ill else criterion(said, ones)

    score = energy_apart(make, test, 6)
    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, score, rounds=5 if ill else 1)


class Smears(nn.Module):
    """SimSiam: an encoder with its projector, and a predictor."""

    def __init__(self, code):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(40, 96, bias=False), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, code))
        self.predictor = nn.Sequential(
            nn.Linear(code, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, code)
        )

    def forward(self, x):
        z = self.encoder(x)
        return z, self.predictor(z)


# 34 of the list
@sick("representation-collapse", "no-stop-gradient", where="the encoder, soon",
      cure="no gradient through the side that is not predicted")  # fmt: skip
def two_smears_of_one_marrow(folder, ill):
    seeded(13911)
    lift, stain = torch.randn(6, 40), torch.randn(10, 40)
    centres = 1.5 * torch.randn(10, 6)

    def marrows(rows):
        y = torch.randint(10, (rows,))
        return centres[y] + 0.4 * torch.randn(rows, 6), y

    def smear(marrow):
        return (marrow @ lift + 1.9 * torch.randn(len(marrow), 10) @ stain) / 3 + 0.3 * torch.randn(len(marrow), 40)

    draw = rounds(128, marrows(4000)[0])
    net = Smears(32)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    (known, kind), (other, truth) = marrows(1000), marrows(500)
    known, other = smear(known), smear(other)

    def unexplained():
        """What a ridge regression on the embeddings leaves of the kinds of others, to what was there."""
        z, other_z = (F.normalize(net.encoder(x), dim=1) for x in (known, other))
        wanted, usual = F.one_hot(kind, 10).float(), z.mean(0)
        z, other_z, share = z - usual, other_z - usual, wanted.mean(0)
        way = torch.linalg.solve(z.T @ z + 3 * torch.eye(32), z.T @ (wanted - share))
        left = other_z @ way + share - F.one_hot(truth, 10)
        return left.square().sum() / (F.one_hot(truth, 10) - share).square().sum()

    def loss_of(step):
        (marrow,) = draw()
        (za, pa), (zb, pb) = net(smear(marrow)), net(smear(marrow))
        if not ill:
            za, zb = za.detach(), zb.detach()
        return -(F.cosine_similarity(pa, zb).mean() + F.cosine_similarity(pb, za).mean()) / 2

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, unexplained))
