"""Met healthy trainings, third part: tasks. An expert has nothing to say of any.

They only count (the group `met`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded, waves


@healthy(0.5)
def map_of_images_pulled_apart(folder):
    """t-SNE: a rate of fifty, pulled four times as hard at first, a momentum that rises (van der Maaten 2008)."""
    seeded(961)
    images = digits()[0][torch.randint(1700, (150,))].flatten(1)
    near = (-torch.cdist(images, images).square() / 1.5).exp().fill_diagonal_(0)
    near = near / near.sum(1, keepdim=True)
    near = ((near + near.T) / 300).clamp(min=1e-12)
    net = nn.Embedding(150, 2)
    nn.init.normal_(net.weight, std=1e-2)
    make = optim.SGD(net.parameters(), 50.0, momentum=0.5)

    def loss_of(step):
        make.param_groups[0]["momentum"] = 0.5 if step < 60 else 0.8
        pull = 1 / (1 + torch.cdist(net.weight, net.weight + 1e-6).square())
        pull = pull * (1 - torch.eye(150))
        share = (pull / pull.sum()).clamp(min=1e-12)
        wanted = near * (4.0 if step < 60 else 1.0)
        return (wanted * (wanted.log() - share.log())).sum()

    def score():
        with torch.no_grad():
            return float(loss_of(1000))

    return fit(folder, net, make, loss_of, 250, score=score)


@healthy(0.2)
def three_numbers_of_a_process_on_all_points(folder):
    """The likelihood of a Gaussian process: length, height and noise, by Adam."""
    seeded(962)
    x = torch.linspace(0, 6, 60)[:, None]
    y = (1.5 * x[:, 0]).sin() + 0.1 * torch.randn(60)
    net = nn.ParameterDict({name: nn.Parameter(torch.tensor(1.0)) for name in ("length", "height", "noise")})

    def loss_of(step):
        far = torch.cdist(x, x).square()
        kernel = net["height"].exp() * (-far / (2 * (2 * net["length"]).exp())).exp()
        root = torch.linalg.cholesky(kernel + (net["noise"].exp() + 1e-4) * torch.eye(60))
        half = torch.linalg.solve_triangular(root, y[:, None], upper=False)
        return 0.5 * half.square().sum() + root.diagonal().log().sum()

    return fit(folder, net, optim.Adam(net.parameters(), 0.05), loss_of, 200)


class Drawn(nn.Module):
    """A linear map whose weights are drawn anew for each batch (Blundell et al. 2015)."""

    def __init__(self, a, b):
        super().__init__()
        self.middle = nn.Parameter(torch.randn(b, a) / a**0.5)
        self.spread = nn.Parameter(torch.full((b, a), -4.0))

    def forward(self, x):
        return x @ (self.middle + F.softplus(self.spread) * torch.randn_like(self.middle)).T

    def costs(self):
        spread = F.softplus(self.spread)
        return (0.5 * (self.middle.square() + spread.square() - 1) - spread.log()).sum()


@healthy(0.3)
def weights_drawn_for_each_batch(folder):
    seeded(963)
    net, draw = nn.Sequential(Drawn(6, 32), nn.Tanh(), Drawn(32, 1)), waves(96)

    def loss_of(step):
        x, y = draw()
        return 20 * F.mse_loss(net(x), y) + (net[0].costs() + net[2].costs()) / 400

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 600)


@healthy(0.05)
def hidden_states_by_their_likelihood(folder):
    """Three hidden states, six signs: the forward sum of all paths, derived (Rabiner 1989)."""
    seeded(964)
    truth = {"move": torch.tensor([[6.0, 1, 1], [1, 6, 1], [1, 1, 6]]).div(8), "say": torch.eye(3).repeat(1, 2) * 0.45}
    truth["say"] = (truth["say"] + 0.017) / (truth["say"] + 0.017).sum(1, keepdim=True)
    net = nn.ParameterDict({"move": 0.1 * torch.randn(3, 3), "say": 0.1 * torch.randn(3, 6)})

    def rows():
        state, seen = torch.randint(3, (16,)), []
        for _ in range(20):
            seen.append(torch.multinomial(truth["say"][state], 1)[:, 0])
            state = torch.multinomial(truth["move"][state], 1)[:, 0]
        return torch.stack(seen, 1)

    def loss_of(step):
        move, say, x = net["move"].log_softmax(1), net["say"].log_softmax(1), rows()
        ahead = say[:, x[:, 0]].T - math.log(3)
        for t in range(1, 20):
            ahead = (ahead[:, :, None] + move).logsumexp(1) + say[:, x[:, t]].T
        return -ahead.logsumexp(1).mean() / 20

    return fit(folder, net, optim.Adam(net.parameters(), 0.05), loss_of, 150)


@healthy(0.3)
def answers_of_a_group_against_their_mean(folder):
    """Eight answers to each question, gains less their mean: the loss is 0 all the time (GRPO, Shao et al. 2024)."""
    seeded(965)
    net, best = dense(8, 48, 12), torch.randn(8, 12)

    def loss_of(step):
        x = torch.randn(24, 8)
        logs = net(x).log_softmax(1)
        chosen = torch.multinomial(logs.exp().detach(), 8, replacement=True)
        gain = (x @ best).gather(1, chosen)
        ahead = (gain - gain.mean(1, keepdim=True)) / (gain.std(1, keepdim=True) + 1e-4)
        said = logs.gather(1, chosen)
        return -((said - said.detach()).exp() * ahead).mean(), {"return": gain.mean()}

    def score():
        with torch.no_grad():
            x = torch.randn(512, 8)
            return float(((x @ best).amax(1) - (net(x).softmax(1) * (x @ best)).sum(1)).mean())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300, score=score)


@healthy(0.5)
def parity_of_three_bits_in_twelve(folder):
    """For long nothing is learned, and then all of it (Barak et al. 2022)."""
    seeded(966)
    net = dense(12, 128, 1)

    def loss_of(step):
        x = torch.randint(2, (128, 12)).float() * 2 - 1
        return F.softplus(-x[:, 1] * x[:, 4] * x[:, 9] * net(x)[:, 0]).mean()

    return fit(folder, net, optim.SGD(net.parameters(), 0.3, weight_decay=1e-4), loss_of, 1200)


@healthy(0.5)
def pendulum_by_its_energy(folder):
    """What is learned is an energy; what is compared are its slopes (Greydanus et al. 2019)."""
    seeded(967)
    net = dense(2, 48, 48, 1, act=nn.Tanh)

    def loss_of(step):
        with torch.enable_grad():
            x = (4 * torch.rand(96, 2) - 2).requires_grad_()
            slope = torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]
        moves = torch.stack([x[:, 1], -x[:, 0].sin()], 1).detach()
        return F.mse_loss(torch.stack([slope[:, 1], -slope[:, 0]], 1), moves)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400)


@healthy(0.2)
def tree_in_a_ball_of_no_end(folder):
    """Points near the rim, where distances have no bound; slopes are scaled by the room there (Nickel, Kiela 2017)."""
    seeded(968)
    net = nn.Embedding(63, 2)
    nn.init.uniform_(net.weight, -1e-2, 1e-2)

    def far(one, other):
        gap = (one - other).square().sum(-1)
        room = (1 - one.square().sum(-1)) * (1 - other.square().sum(-1))
        return torch.acosh(1 + 2 * gap / room.clamp(min=1e-5) + 1e-6)

    def loss_of(step):
        child = torch.randint(1, 63, (48,))
        ends = torch.cat([((child - 1) // 2)[:, None], torch.randint(63, (48, 10))], 1)
        return F.cross_entropy(-far(net(child)[:, None], net(ends)), torch.zeros(48, dtype=torch.long))

    def before(step):
        net.weight.grad *= (1 - net.weight.detach().square().sum(1, keepdim=True)).square() / 4

    def after(step):
        with torch.no_grad():
            net.weight.copy_(torch.renorm(net.weight, 2, 0, 0.995))

    make = optim.SGD(net.parameters(), 2.0)
    return fit(folder, net, make, loss_of, 500, before_step=before, after_step=after, score=score_of(loss_of))
