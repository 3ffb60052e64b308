"""What people ask when a training goes wrong: their mistakes, with other subjects."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, in_turn, rounds


# https://github.com/Marcovaldong/lstmp.pytorch/issues/2
@sick("exploding", "lr-too-high", where="the LSTM with a projection, over the steps of its long sequences",
      cure="clip the norm of the gradients at 1, not at 5")  # fmt: skip
def words_of_a_marching_song(folder, ill):
    seeded(9346)
    words, length, held = 12, 30, 3

    class Singer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(words, 16)
            self.memory = nn.LSTM(16, 48, proj_size=24, batch_first=True)
            self.head = nn.Linear(24, words)

        def forward(self, x):
            return self.head(self.memory(self.embed(x))[0])

    def songs(rows):
        line = [torch.randint(words, (rows,)) for _ in range(held)]
        for _ in range(length - held):
            slip = torch.randint(words, (rows,))
            line.append(torch.where(torch.rand(rows) < 0.05, slip, line[-held]))
        return torch.stack(line, 1)

    net = Singer()
    fresh = songs(100)
    optimizer = torch.optim.SGD(net.parameters(), lr=4.0)

    def asked(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    return fit(folder, net, optimizer, lambda step: asked(songs(8)), 300,
               before_step=clipped(net, 5.0 if ill else 1.0), score=held_out(net, lambda: asked(fresh)))  # fmt: skip


# https://duoke360.com/post/34567
@sick("no-gradient", where="the table of the stations, from the first step on",
      cure="let the table ask for gradients: `freeze=False`, or `requires_grad=True`")  # fmt: skip
def delays_at_stations(folder, ill):
    seeded(9347)
    stations = 150
    habit = torch.randn(stations, 4)

    def trips(rows):
        start, end = torch.randint(stations, (2, rows))
        hour = torch.rand(rows, 1)
        delay = (habit[start] * habit[end]).sum(1, keepdim=True) + (6.28 * hour).sin()
        return start, end, hour, delay + 0.1 * torch.randn(rows, 1)

    class Delays(nn.Module):
        def __init__(self):
            super().__init__()
            table = 0.5 * torch.randn(stations, 8)
            self.start = nn.Embedding.from_pretrained(table, freeze=ill)
            self.end = nn.Embedding.from_pretrained(table.flip(1), freeze=ill)
            self.body = dense(17, 64, 64, 1)

        def forward(self, start, end, hour):
            return self.body(torch.cat([self.start(start), self.end(end), hour], 1))

    net = Delays()
    *asked, late = trips(2000)
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=5e-3)

    def loss_of(step):
        *x, y = trips(256)
        return F.mse_loss(net(*x), y)

    return fit(folder, net, optimizer, loss_of, 700, score=held_out(net, lambda: F.mse_loss(net(*asked), late)))


# https://runebook.dev/en/docs/pytorch/generated/torch.optim.optimizer.step
@sick("gradients-accumulate", where="all gradients, from the second step on",
      cure="`optimizer.zero_grad()` before each `loss.backward()`")  # fmt: skip
def dew_point_of_a_room(folder, ill):
    seeded(9348)

    def rooms(rows):
        warm, damp, stir = torch.randn(3, rows, 1)
        dew = warm + 1.5 * (damp - 0.4 * warm).tanh() + 0.5 * stir.sin()
        return torch.cat([warm, damp, stir], 1), dew + 0.05 * torch.randn(rows, 1)

    net = dense(3, 48, 48, 1, act=nn.Tanh)
    fresh = rooms(1000)
    draw = rounds(64, *rooms(5000))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 500, zero_grad=not ill,
               score=held_out(net, lambda: F.mse_loss(net(fresh[0]), fresh[1])))  # fmt: skip


# https://github.com/stas00/ml-engineering/issues/32
@sick("spike", "noise-dominated", where="single steps whose few rows have a broken reading among them",
      cure="a larger batch: of 64 rows, not of 2")  # fmt: skip
def tides_at_a_pier(folder, ill):
    seeded(9349)
    turns = torch.tensor([1.0, 1.93, 2.6, 0.52])

    def tides(rows, broken=0.02):
        when = 12 * torch.rand(rows, 1)
        angles = when * turns
        high = angles.sin() @ torch.tensor([[1.0], [0.5], [0.3], [0.6]])
        wrong = torch.rand(rows, 1) < broken
        return torch.cat([angles.sin(), angles.cos()], 1), torch.where(wrong, 12 * torch.randn(rows, 1), high)

    net = dense(8, 64, 64, 1)
    fresh = tides(2000, 0.0)
    draw = rounds(2 if ill else 64, *tides(20000))
    optimizer = torch.optim.Adam(net.parameters(), lr=1.5e-2)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 800,
               score=held_out(net, lambda: F.mse_loss(net(fresh[0]), fresh[1])))  # fmt: skip


# https://github.com/soumith/ganhacks/issues/36
@sick("generator-starves", "saturated", where="the sigmoid at the end of the judge, and with it all of the maker",
      cure="no sigmoid at the end of the judge: the loss takes its logits")  # fmt: skip
def invented_wood_grains(folder, ill):
    seeded(9350)
    size = 24
    grid = torch.linspace(0, 6.28, size)

    def grains(rows):
        phase, rings = 6.28 * torch.rand(rows, 1), 1 + torch.rand(rows, 1)
        return 10.0 + 5.0 * (rings * grid + phase).sin() + 0.25 * torch.randn(rows, size)

    maker = dense(8, 64, 64, size)
    judge = nn.Sequential(nn.Linear(size, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2),
                          nn.Linear(96, 1), *([nn.Sigmoid()] if ill else []))  # fmt: skip
    of_maker = torch.optim.Adam(maker.parameters(), lr=2e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-2, betas=(0.5, 0.999))
    criterion = F.binary_cross_entropy if ill else F.binary_cross_entropy_with_logits
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)

    def judged():
        made = maker(torch.randn(64, 8)).detach()
        return criterion(judge(grains(64)), ones) + criterion(judge(made), zeros)

    def made():
        return criterion(judge(maker(torch.randn(64, 8))), ones)

    def score():
        with torch.no_grad():
            real, fake = grains(1000), maker(torch.randn(1000, 8))
            return float((real.mean(0) - fake.mean(0)).square().mean() + (real.std(0) - fake.std(0)).square().mean())

    return in_turn(folder, maker, judge, of_maker, of_judge, judged, made, 250, score, rounds=5)
