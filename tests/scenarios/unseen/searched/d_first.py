"""Learning without backpropagation through the whole net: other rules of credit."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn
from torch.func import functional_call, jvp, vmap
from torch.nn import functional as F
from unseen import dense, fit, healthy, mean, score_of, seeded
from unseen.tasks import tend


class FixedFeedback(torch.autograd.Function):
    """A linear map whose error goes back through a fixed random matrix (Lillicrap et al., 2016)."""

    @staticmethod
    def forward(ctx, x, weight, bias, feedback):
        ctx.save_for_backward(x, feedback)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, grad):
        x, feedback = ctx.saved_tensors
        return grad @ feedback, grad.T @ x, grad.sum(0), None


class AlignedLinear(nn.Linear):
    def __init__(self, size, width):
        super().__init__(size, width)
        self.register_buffer("feedback", torch.randn(width, size) / size**0.5)

    def forward(self, x):
        return FixedFeedback.apply(x, self.weight, self.bias, self.feedback)


@healthy()
def tins_of_paint_named_by_their_strongest_pigment(folder):
    seeded(9460)
    filters = torch.randn(5, 9)
    net = nn.Sequential(AlignedLinear(9, 64), nn.Tanh(), AlignedLinear(64, 48), nn.Tanh(), AlignedLinear(48, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def loss_of(step):
        amounts = (1.5 * torch.randn(64, 5)).softmax(1)
        seen = 3 * torch.sigmoid(3 * amounts @ filters) - 1.5 + 0.02 * torch.randn(64, 9)
        out, y = net(seen), amounts.argmax(1)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    return fit(folder, net, optimizer, loss_of, 600, score=score_of(lambda step: loss_of(step)[0]))


class GoodnessLayer(nn.Module):
    """One layer of the forward-forward algorithm: much activity for real pairs, little for false ones."""

    def __init__(self, size, width):
        super().__init__()
        self.linear = nn.Linear(size, width)

    def forward(self, x):
        return F.relu(self.linear(x / (x.norm(dim=1, keepdim=True) + 1e-4) * x.shape[1] ** 0.5))


@healthy()
def numerals_on_locker_doors_forward_twice(folder):
    seeded(9461)
    images, labels = digits()
    order = torch.randperm(len(images))
    images, labels = images.flatten(1)[order], labels[order]
    net = nn.ModuleList([GoodnessLayer(74, 160), GoodnessLayer(160, 160)])
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def with_label(x, y):
        return torch.cat([x, F.one_hot(y, 10).float()], 1)

    def goodness(x):
        found = []
        for layer in net:
            x = layer(x.detach())
            found.append(x.square().mean(1))
        return found

    def loss_of(step):
        at = torch.randint(1400, (128,))
        wrong = (labels[at] + torch.randint(1, 10, (128,))) % 10
        real, false = goodness(with_label(images[at], labels[at])), goodness(with_label(images[at], wrong))
        losses = [(F.softplus(1 - a) + F.softplus(b - 1)).mean() for a, b in zip(real, false, strict=True)]
        return sum(losses), {"layer_1": losses[0].detach(), "layer_2": losses[1].detach()}

    def score():
        with torch.no_grad():
            x = images[1400:]
            every = [sum(goodness(with_label(x, torch.full((len(x),), digit)))) for digit in range(10)]
            return float((torch.stack(every, 1).argmax(1) != labels[1400:]).float().mean())

    return fit(folder, net, optimizer, loss_of, 900, score=score)


class Settling(nn.Module):
    """A layered Hopfield net that settles to a minimum of its energy (equilibrium propagation)."""

    def __init__(self, size, hidden, out):
        super().__init__()
        self.lower = nn.Linear(size, hidden)
        self.upper = nn.Linear(hidden, out)

    def energy(self, x, h, o):
        own = 0.5 * (h.square().sum(1) + o.square().sum(1))
        return own - (h * self.lower(x)).sum(1) - (o * self.upper(h)).sum(1)

    @torch.no_grad()
    def settle(self, x, h, o, rounds, beta=0.0, target=None):
        drive = self.lower(x)
        for _ in range(rounds):
            pull_h = drive + o @ self.upper.weight - h
            pull_o = self.upper(h) - o
            if target is not None:
                pull_o = pull_o + beta * (target - o)
            h, o = (h + 0.5 * pull_h).clamp(0, 1), (o + 0.5 * pull_o).clamp(0, 1)
        return h, o


@healthy()
def levers_of_a_signal_box_that_settle(folder):
    seeded(9462)
    rule = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 3)).requires_grad_(False)
    rule[0].weight.mul_(3)
    usual = rule(2 * torch.randint(2, (2000, 10)).float() - 1).mean(0)
    net = Settling(10, 80, 3)
    optimizer = torch.optim.SGD(
        [{"params": net.lower.parameters(), "lr": 0.2}, {"params": net.upper.parameters(), "lr": 0.05}]
    )

    def draw():
        x = torch.randint(2, (32, 10)).float()
        out = rule(2 * x - 1)
        return x, F.one_hot((out - usual).argmax(1), 3).float()

    def free(x):
        return net.settle(x, torch.full((len(x), 80), 0.5), torch.full((len(x), 3), 0.5), 20)

    def one(step):
        x, y = draw()
        beta = 0.5 if torch.rand(()) < 0.5 else -0.5
        h, o = free(x)
        nudged_h, nudged_o = net.settle(x, h, o, 6, beta, y)
        optimizer.zero_grad()
        contrast = (net.energy(x, nudged_h, nudged_o) - net.energy(x, h, o)).mean() / beta
        contrast.backward()
        optimizer.step()
        return {"loss": (o - y).square().sum(1).mean() / 2, "accuracy": (o.argmax(1) == y.argmax(1)).float().mean()}

    def score():
        pairs = [draw() for _ in range(16)]
        return mean([float((free(x)[1] - y).square().sum(1).mean()) for x, y in pairs])

    return tend(folder, net, optimizer, one, 1200, score)


@healthy()
def a_punt_poled_across_the_backwater(folder):
    seeded(9463)
    net = dense(4, 16, 2, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    current = torch.tensor([0.03, -0.02])
    sigma, pairs = 0.1, 24

    def cost(params, starts):
        place, speed, total = starts, torch.zeros_like(starts), 0.0
        for _ in range(25):
            push = functional_call(net, params, (torch.cat([place, speed], 1),)).tanh()
            speed = 0.9 * speed + 0.1 * push
            place = place + 0.5 * speed + current
            total = total + place.norm(dim=1).mean() + 0.05 * push.square().mean()
        return total / 25

    @torch.no_grad()
    def one(step):
        starts = 2 * torch.rand(16, 2) - 1
        noise = {name: torch.randn(pairs, *p.shape) for name, p in net.named_parameters()}
        noise = {name: torch.cat([n, -n]) for name, n in noise.items()}
        tried = {name: p + sigma * noise[name] for name, p in net.named_parameters()}
        costs = vmap(cost, in_dims=(0, None))(tried, starts)
        ranks = costs.argsort().argsort().float() / (2 * pairs - 1) - 0.5
        for name, p in net.named_parameters():
            p.grad = torch.einsum("i,i...->...", ranks, noise[name]) / (2 * pairs * sigma)
        optimizer.step()
        return {"loss": costs.mean(), "best": costs.min()}

    def score():
        with torch.no_grad():
            return float(cost(dict(net.named_parameters()), 2 * torch.rand(256, 2) - 1))

    return tend(folder, net, optimizer, one, 200, score)


class Stage(nn.Module):
    def __init__(self, channels, width, kinds, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        x = self.body(x)
        return x, self.head(x.mean((2, 3)))


@healthy()
def weaves_of_twill_learned_stage_by_stage(folder):
    seeded(9464)
    net = nn.ModuleList([Stage(1, 12, 6, 1), Stage(12, 20, 6, 2), Stage(20, 28, 6, 1)])
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350)
    rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")

    def draw():
        y = torch.randint(6, (48,))
        angle = y * 0.5236 + 0.1 * torch.randn(48)
        along = angle.cos()[:, None, None] * rows + angle.sin()[:, None, None] * columns
        pitch = 1.2 + 0.5 * torch.rand(48, 1, 1)
        cloth = (pitch * along + 6.2832 * torch.rand(48, 1, 1)).sin()
        return (cloth + 0.6 * torch.randn(48, 12, 12))[:, None], y

    def losses_of():
        x, y = draw()
        losses = []
        for stage in net:
            x, out = stage(x.detach())
            losses.append(F.cross_entropy(out, y))
        return losses, (out.argmax(1) == y).float().mean()

    def loss_of(step):
        losses, right = losses_of()
        return sum(losses), {"last_stage": losses[-1].detach(), "accuracy": right}

    def score():
        net.eval()
        with torch.no_grad():
            value = mean([float(losses_of()[0][-1]) for _ in range(8)])
        net.train()
        return value

    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


@healthy()
def frost_on_the_slopes_of_a_vineyard(folder):
    seeded(9465)
    net = dense(5, 16, 1, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    way = torch.randn(5, 2) / 2

    def draw():
        x = torch.randn(64, 5)
        return x, ((x @ way).tanh().sum(1, keepdim=True) + 0.5 * x[:, :1] + 0.05 * torch.randn(64, 1))

    def one(step):
        x, y = draw()
        params = {name: p.detach() for name, p in net.named_parameters()}

        def loss_at(at):
            return F.mse_loss(functional_call(net, at, (x,)), y)

        tangents = {name: torch.randn(12, *p.shape) for name, p in params.items()}
        loss, slopes = vmap(lambda v: jvp(loss_at, (params,), (v,)))(tangents)
        for name, p in net.named_parameters():
            p.grad = torch.einsum("i,i...->...", slopes, tangents[name]) / 12
        optimizer.step()
        return {"loss": loss.mean()}

    def error(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return tend(folder, net, optimizer, one, 900, score_of(error))
