"""Mistakes that people told about in public: two rivals, a learned graph, outputs, half precision, decay."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, in_turn, rounds


# https://github.com/torchgan/torchgan/pull/42
@sick(
    "exploding", "weight-growth", "critic-unbounded", where="the critic D, from the first steps on",
    cure="clip the critic's weights after each of its steps",
)  # fmt: skip
def bees_round_a_hive(folder, ill):
    seeded(3177)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1)
    of_make = torch.optim.RMSprop(make.parameters(), lr=1e-3)
    of_judge = torch.optim.RMSprop(judge.parameters(), lr=1e-3)

    def bees(rows=64):
        turn = 4.7 * torch.rand(rows)
        return torch.stack([turn.cos(), turn.sin()], 1) * (1 + turn[:, None] / 4) + 0.05 * torch.randn(rows, 2)

    def made(rows=64):
        return make(torch.randn(rows, 4))

    def judge_loss():
        return judge(made().detach()).mean() - judge(bees()).mean()

    def make_loss():
        return -judge(made()).mean()

    def score():
        with torch.no_grad():
            real, fake = bees(256), made(256)
            return float(2 * torch.cdist(real, fake).mean() - torch.cdist(real, real).mean()
                         - torch.cdist(fake, fake).mean())  # fmt: skip

    def clip():
        with torch.no_grad():
            for weight in judge.parameters():
                weight.clamp_(-0.1, 0.1)

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 300, score, rounds=3,
                   after_judge=None if ill else clip)  # fmt: skip


class Neighbours(nn.Module):
    """A graph layer that finds its edges by itself."""

    def __init__(self, size, width, ill):
        super().__init__()
        self.phi, self.theta, self.value = nn.Linear(size, 16), nn.Linear(size, 16), nn.Linear(size, width)
        self.head, self.ill = dense(width, 32, 1), ill

    def forward(self, x):
        edges = (self.phi(x) @ self.theta(x).transpose(1, 2)).softmax(2)
        if self.ill:
            edges = edges.detach()
        return self.head((edges @ self.value(x)).relu())[..., 0]


# https://github.com/queenie88/A-GCN/issues/4
@sick("no-gradient", where="phi and theta, at every step", cure="leave the edges in the graph: no detach")
def gossip_of_a_village(folder, ill):
    seeded(3178)
    net = Neighbours(7, 32, ill)

    def villages(rows=32, people=20):
        clan = F.one_hot(torch.randint(6, (rows, people)), 6).float()
        heard = torch.randn(rows, people, 1)
        same = clan @ clan.transpose(1, 2)
        x = torch.cat([clan + 0.1 * torch.randn(rows, people, 6), heard], 2)
        return x, ((same / same.sum(2, keepdim=True)) @ heard)[..., 0]

    def loss_of(step):
        x, y = villages()
        return F.mse_loss(net(x), y)

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=5e-3), loss_of, 500, score=score_of(loss_of))


# https://github.com/UC-IIC2613/Syllabus/issues/208
@sick(
    "targets-out-of-range", where="the sigmoid after the last layer: half of the targets are below zero",
    cure="no activation after the last layer",
)  # fmt: skip
def tides_at_an_old_quay(folder, ill):
    seeded(3179)
    speeds = torch.tensor([0.5, 1.0, 1.9])

    def hours(rows):
        moon = 6.2832 * torch.rand(rows, 3)
        height = (moon.cos() * speeds).sum(1, keepdim=True)
        return torch.cat([moon.cos() + 0.05 * torch.randn(rows, 3), moon.sin()], 1), height

    x, y = hours(2048)
    y_mean, y_std = y.mean(), y.std()
    draw, (new_x, new_y) = rounds(64, x, (y - y_mean) / y_std), hours(512)
    net = dense(6, 32, 32, 1, act=nn.Sigmoid)
    if ill:
        net.append(nn.Sigmoid())

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    score = held_out(net, lambda: F.mse_loss(net(new_x) * y_std + y_mean, new_y))
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=1e-2), loss_of, 500, score=score)


# https://github.com/deeplearning4j/deeplearning4j-examples/pull/1002
@sick(
    "targets-out-of-range", where="the softmax after the last layer: the pixels of a weave sum to far more than one",
    cure="a sigmoid or nothing in its place",
)  # fmt: skip
def weaves_of_a_basket(folder, ill):
    seeded(3180)
    strands = (torch.randn(5, 36) > 0.3).float()

    def weaves(rows=64):
        share = torch.rand(rows, 5)
        return (share @ strands / 2).clamp(0, 1) * 0.9 + 0.1 * torch.rand(rows, 36)

    last = nn.Softmax(1) if ill else nn.LeakyReLU(0.01)
    net = nn.Sequential(dense(36, 48, 6), nn.LeakyReLU(), dense(6, 48, 36), last)

    def loss_of(step):
        x = weaves()
        return F.mse_loss(net(x), x)

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=3e-3), loss_of, 400, score=score_of(loss_of))


# https://github.com/pytorch/pytorch/issues/8860
@sick(
    "nonfinite", where="the weights after the first steps: Adam's eps is zero in half precision",
    cure="a larger eps in Adam (1e-4)",
)  # fmt: skip
def creaks_of_a_staircase(folder, ill):
    seeded(3181)
    stairs = torch.randn(8, 24)
    net = dense(24, 64, 64, 8).half()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-8 if ill else 1e-4)

    def loss_of(step):
        stair = torch.randint(8, (64,))
        sound = (stairs[stair] + 0.8 * torch.randn(64, 24)).half()
        return F.cross_entropy(net(sound).float(), stair)

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(loss_of))


# https://github.com/tinghuiz/SfMLearner/issues/34
@sick(
    "weight-decay-too-strong", "weights-shrink", where="all layers of both networks, from the first steps on",
    cure="a weight decay of 5e-4 or less in Adam",
)  # fmt: skip
def snowpack_from_two_radars(folder, ill):
    seeded(3182)
    near, far, deep = torch.randn(12), torch.randn(12), torch.randn(12, 3) / 12**0.5
    net = nn.ModuleDict({"near": dense(12, 48, 48, 48, 8), "far": dense(12, 48, 48, 48, 8), "depth": dense(16, 32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=0.05 if ill else 5e-5)

    def loss_of(step):
        x = torch.randn(64, 12)
        seen = [net["near"](x * near), net["far"](x * far)]
        return F.mse_loss(net["depth"](torch.cat(seen, 1)), (x @ deep).sin().sum(1, keepdim=True) / 4)

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of))
