"""Healthy trainings of gardens, bees and orchards in spring of an unusual make."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits, make_moons
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, seeded, square_of
from unseen.tasks import held_out, in_turn, rounds, tend


def digits():
    """Images [N, 64] between -1 and 1 and what they show, in a drawn order."""
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    return torch.tensor(images / 8 - 1, dtype=torch.float32)[order], torch.tensor(shown)[order]


@healthy()
def sap_that_rises_by_an_equation(folder):
    seeded(11960)
    net = dense(1, 24, 24, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=8, history_size=20, line_search_fn="strong_wolfe")
    time = torch.linspace(0, 2, 64)[:, None]

    def loss_of(step):
        t = time.clone().requires_grad_()
        height = net(t)
        (speed,) = torch.autograd.grad(height.sum(), t, create_graph=True)
        residual = (speed + 2 * height - (3 * t).cos()).square().mean()
        return residual + (net(torch.zeros(1, 1)) - 1).square().mean()

    truth = (2 * (3 * time).cos() + 3 * (3 * time).sin() + 11 * (-2 * time).exp()) / 13
    score = held_out(net, lambda: F.mse_loss(net(time), truth))
    return fit(folder, net, optimizer, loss_of, 40, score=score, closure=True)


@healthy()
def pollen_strewn_like_the_wind_does(folder):
    seeded(11961)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=nn.SiLU)
    of_make = torch.optim.Adam(make.parameters(), 2e-3, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 2e-3, betas=(0.0, 0.9))

    def real(rows):
        side = torch.randint(2, (rows, 1)) * 2.0 - 1
        return torch.cat([1.2 * side, 0.8 * side], 1) + 0.4 * torch.randn(rows, 2)

    def judge_loss():
        x, z = real(64), make(torch.randn(64, 4)).detach()
        share = torch.rand(64, 1)
        between = (share * x + (1 - share) * z).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        return judge(z).mean() - judge(x).mean() + (slope.norm(dim=1) - 1).square().mean()

    def make_loss():
        return -judge(make(torch.randn(64, 4))).mean()

    test = real(1000)

    def score():
        with torch.no_grad():
            z = make(torch.randn(1000, 4))
            return float((z.mean(0) - test.mean(0)).norm() + (z.T.cov() - test.T.cov()).norm())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 250, score, rounds=4)


class Coupling(nn.Module):
    """Half of the numbers are scaled and moved by what the other half says."""

    def __init__(self, width, turned):
        super().__init__()
        self.says = dense(1, width, width, 2, act=nn.Tanh)
        nn.init.zeros_(self.says[-1].weight)
        nn.init.zeros_(self.says[-1].bias)
        self.turned = turned

    def forward(self, x):
        a, b = x.flip(1).chunk(2, 1) if self.turned else x.chunk(2, 1)
        scale, move = self.says(a).chunk(2, 1)
        b = (b - move) * (-scale).exp()
        return torch.cat([b, a] if self.turned else [a, b], 1), -scale[:, 0]


@healthy()
def hedges_grown_along_two_crescents(folder):
    seeded(11962)
    points, _ = make_moons(2500, noise=0.05, random_state=int(torch.randint(10**6, ())))
    x = 0.2 * torch.tensor(points - points.mean(0), dtype=torch.float32)
    flow = nn.ModuleList(Coupling(32, bool(i % 2)) for i in range(6))
    optimizer = torch.optim.Adam(flow.parameters(), 3e-3)
    draw = rounds(128, x[:2000])

    def loss_on(x):
        total = 0.0
        for layer in flow:
            x, volume = layer(x)
            total = total + volume
        return (0.5 * x.square().sum(1) + math.log(2 * math.pi) - total).mean()

    score = held_out(flow, lambda: loss_on(x[2000:]))
    return fit(folder, flow, optimizer, lambda step: loss_on(*draw()), 220, score=score)


@healthy()
def a_beekeeper_among_fickle_flowers(folder):
    seeded(11963)
    actor, critic = dense(5, 32, 4, act=nn.Tanh), dense(5, 32, 1, act=nn.Tanh)
    net = nn.ModuleDict({"actor": actor, "critic": critic})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    worth = torch.randn(5, 4)

    def one(step):
        weather = torch.randn(64, 5)
        choice = torch.distributions.Categorical(logits=actor(weather))
        field = choice.sample()
        reward = (weather @ worth).gather(1, field[:, None])[:, 0] + 2.0 * torch.randn(64)
        value = critic(weather)[:, 0]
        gain = (reward - value).detach()
        policy = -(choice.log_prob(field) * gain).mean()
        loss = policy + 0.5 * F.mse_loss(value, reward) - 0.01 * choice.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        return {"loss": loss, "return": reward.mean()}

    test = torch.randn(512, 5)

    def regret():
        return ((test @ worth).amax(1) - (actor(test).softmax(1) * (test @ worth)).sum(1)).mean()

    return tend(folder, net, optimizer, one, 250, held_out(net, regret))


@healthy(gain=0.2)
def old_labels_in_a_new_hand(folder):
    seeded(11964)
    x, y = digits()
    net = dense(64, 128, 128, 10, act=nn.GELU, norm=nn.LayerNorm)
    early = torch.optim.AdamW(net.parameters(), 2e-3)
    draw = rounds(64, x[:900], y[:900])
    for _ in range(150):
        bx, by = draw()
        early.zero_grad()
        F.cross_entropy(net(bx), by).backward()
        early.step()

    def slanted(x):
        image = x.view(-1, 1, 8, 8)
        turn = torch.tensor([[1.0, 0.35, 0.0], [0.0, 1.0, 0.0]]).expand(len(x), 2, 3)
        grid = F.affine_grid(turn, list(image.shape), align_corners=False)
        return F.grid_sample(image, grid, padding_mode="border", align_corners=False).flatten(1)

    x = slanted(x)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-5, weight_decay=0.01)
    draw = rounds(32, x[900:1500], y[900:1500])

    score = held_out(net, lambda: F.cross_entropy(net(x[1500:]), y[1500:]))
    return fit(folder, net, optimizer, entropy_of(net, draw), 250, score=score)


@healthy()
def scarecrows_that_crows_see_through(folder):
    seeded(11965)
    x, y = digits()
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    x = x.view(-1, 1, 8, 8)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(48, x[:1400], y[:1400])

    def disturbed(x, y, most=0.25, times=3):
        z = x + most * (2 * torch.rand_like(x) - 1)
        for _ in range(times):
            z.requires_grad_()
            with torch.enable_grad():
                (way,) = torch.autograd.grad(F.cross_entropy(net(z), y), z)
            z = (z.detach() + 0.12 * way.sign()).clamp(x - most, x + most).clamp(-1, 1)
        return z

    def loss_on(x, y):
        return F.cross_entropy(net(disturbed(x, y)), y)

    score = held_out(net, lambda: loss_on(x[1400:], y[1400:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 160, score=score)


@healthy()
def herbs_named_in_the_same_breath(folder):
    seeded(11966)
    words, topics = 400, 8
    net = nn.ModuleDict({side: nn.Embedding(words, 16, sparse=True) for side in ("word", "beside")})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.3)
    optimizer = torch.optim.SparseAdam(list(net.parameters()), 0.02)
    topic = torch.randint(topics, (words,))

    def near(word):
        return torch.multinomial((topic[word][:, None] == topic).float(), 1)[:, 0]

    def loss_on(word, near, far):
        w = net["word"](word)
        close = (w * net["beside"](near)).sum(1)
        away = (net["beside"](far) @ w[:, :, None])[..., 0]
        return F.softplus(-close).mean() + F.softplus(away).mean(0).sum()

    def pairs(rows):
        word = torch.randint(words, (rows,))
        return word, near(word), torch.randint(words, (rows, 4))

    test = pairs(1000)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*pairs(128)), 300, score=score)


@healthy()
def prunings_in_three_winters(folder):
    seeded(11967)
    net = dense(8, 64, 64, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.08, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 100, eta_min=1e-3)
    way = torch.randn(8, 3) / 2

    def trees(rows):
        x = torch.randn(rows, 8)
        return x, (x @ way).sin().sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1)

    draw = rounds(128, *trees(4000))

    tx, ty = trees(1000)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, square_of(net, draw), 300, score=score, schedule=schedule)


class Waves(nn.Module):
    """Random Fourier features that stay as drawn, and a linear readout."""

    def __init__(self, size, many):
        super().__init__()
        self.waves, self.readout = nn.Linear(size, many).requires_grad_(False), nn.Linear(many, 1)
        nn.init.normal_(self.waves.weight, std=0.8)
        nn.init.uniform_(self.waves.bias, 0, 2 * math.pi)

    def forward(self, x):
        return self.readout(self.waves(x).cos() * (2 / self.waves.out_features) ** 0.5)


@healthy()
def ripples_in_the_garden_pond(folder):
    seeded(11968)
    net = Waves(3, 300)
    optimizer = torch.optim.Adam(net.readout.parameters(), 0.03)

    def pond(rows):
        x = torch.randn(rows, 3)
        return x, (1.5 * x[:, :1]).sin() + x[:, 1:2] * x[:, 2:].tanh() + 0.1 * torch.randn(rows, 1)

    draw = rounds(64, *pond(3000))
    tx, ty = pond(600)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, square_of(net, draw), 300, score=score)


@healthy()
def diaries_that_no_neighbour_may_read(folder):
    seeded(11969)
    x, y = digits()
    net = dense(64, 32, 10, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    draw, most, noise = rounds(256, x[:1400], y[:1400]), 1.0, 0.6

    def loss_of_one(weights, x, y):
        return F.cross_entropy(functional_call(net, weights, (x[None],)), y[None])

    gradients = vmap(grad(loss_of_one), in_dims=(None, 0, 0))

    def one(step):
        bx, by = draw()
        weights = {name: p.detach() for name, p in net.named_parameters()}
        each = gradients(weights, bx, by)
        norm = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        share = (most / norm).clamp(max=1.0)
        optimizer.zero_grad()
        for name, p in net.named_parameters():
            total = torch.einsum("n,n...->...", share, each[name])
            p.grad = (total + noise * most * torch.randn_like(p)) / len(bx)
        optimizer.step()
        with torch.no_grad():
            logits = net(bx)
        return {"loss": F.cross_entropy(logits, by), "accuracy": float((logits.argmax(1) == by).float().mean())}

    return tend(folder, net, optimizer, one, 150, held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:])))
