"""Fresh healthy trainings, first part: tasks, games and optimizers. An expert has nothing to say of any of them.

They only count (the group `fresh`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from nets import Transformer, batches, classify, cnn, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, rings, score_of, seeded, square_of, waves
from unseen.tasks import play


@healthy(0.3)
def four_rows_a_batch_under_a_falling_rate(folder):
    """Robbins and Monro: noise in the targets as large as they are, and a rate that falls as one over the step."""
    seeded(150)
    net, draw = dense(3, 48, 1, act=nn.Tanh), waves(4, 3)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y + torch.randn_like(y))

    make = optim.SGD(net.parameters(), 0.05)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: 1 / (1 + step / 400))
    score = score_of(square_of(net, draw), 128)
    return fit(folder, net, make, loss_of, 1500, schedule=plan, score=score)


@healthy(0.5)
def sum_over_thousands_of_pixels(folder):
    """A denoiser whose loss is a sum: norms of thousands, and a rate to match."""
    seeded(151)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
    draw = batches(64)

    def loss_of(step):
        x = draw(step)[0][:, None]
        return F.mse_loss(net(x + 0.3 * torch.randn_like(x)), x, reduction="sum")

    return fit(folder, net, optim.SGD(net.parameters(), 1e-5, momentum=0.9), loss_of, 250)


@healthy(0.5)
def targets_of_a_hundredth_under_adam(folder):
    """Norms of a thousandth and below, far above what Adam adds to them."""
    seeded(152)
    net, draw = dense(6, 48, 48, 1), waves(64)
    nn.init.normal_(net[-1].weight, std=1e-3)
    nn.init.zeros_(net[-1].bias)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), 0.01 * y)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 800)


@healthy(0.5)
def sum_of_a_row_by_a_clipped_recurrence(folder):
    """An identity to begin with (Le et al. 2015): the clip binds in most of the first steps, and should."""
    seeded(153)
    memory, head = nn.RNN(2, 32, nonlinearity="relu", batch_first=True), nn.Linear(32, 1)
    nn.init.eye_(memory.weight_hh_l0)
    nn.init.normal_(memory.weight_ih_l0, std=0.05)
    net = nn.ModuleDict({"memory": memory, "head": head})

    def loss_of(step):
        x = torch.rand(48, 30, 1)
        chosen = torch.zeros(48, 30, 1).scatter_(1, torch.rand(48, 30).topk(2, 1).indices[..., None], 1.0)
        return F.mse_loss(head(memory(torch.cat([x, chosen], 2))[0][:, -1]), (x * chosen).sum(1))

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 600, before_step=clipped)


@healthy(0.5)
def decay_for_the_matrices_alone(folder):
    """The usual recipe of a language model: two groups, a warm-up, a cosine, a clip at 1."""
    net = Transformer(depth=3, seed=154)
    large, small = ([p for p in net.parameters() if (p.ndim > 1) is many] for many in (True, False))
    groups = [{"params": large, "weight_decay": 0.1}, {"params": small, "weight_decay": 0.0}]
    make = optim.AdamW(groups, 4e-3, betas=(0.9, 0.95))

    def share(step):
        return min((step + 1) / 20, 0.55 + 0.45 * math.cos(math.pi * step / 200))

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    plan = optim.lr_scheduler.LambdaLR(make, share)
    return fit(folder, net, make, predict(net, pieces(8)), 200, before_step=clipped, schedule=plan)


def pretrain(net, loss_of, steps, rate=3e-3):
    """What somebody else did: without a Watch."""
    make = optim.Adam(net.parameters(), rate)
    for step in range(steps):
        make.zero_grad()
        loss_of(step).backward()
        make.step()


class Adapted(nn.Module):
    """A frozen layer, and a narrow detour behind it that begins as nothing (Houlsby et al. 2019)."""

    def __init__(self, layer, width, code=8):
        super().__init__()
        self.layer, self.down, self.up = layer, nn.Linear(width, code), nn.Linear(code, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x, **options):
        h = self.layer(x, **options)
        return h + self.up(F.gelu(self.down(h)))


@healthy(0.3)
def narrow_detours_behind_frozen_blocks(folder):
    """A net that read forwards learns to read backwards."""
    net = Transformer(seed=155)
    pretrain(net, predict(net, pieces(8)), 100)
    net.requires_grad_(False)
    net.blocks = nn.ModuleList(Adapted(block, 32) for block in net.blocks)
    net.head.requires_grad_(True)
    forwards = pieces(8, seed=1)

    def loss_of(step):
        x, y = forwards(step)
        row = torch.cat([x, y[:, -1:]], 1).flip(1)
        return F.cross_entropy(net(row[:, :-1]).flatten(0, 1), row[:, 1:].flatten())

    make = optim.AdamW([p for p in net.parameters() if p.requires_grad], 5e-3)
    return fit(folder, net, make, loss_of, 200)


class Factored(nn.Module):
    """A frozen linear layer and a product of rank 4 beside it (Hu et al. 2022)."""

    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + x @ self.a.T @ self.b.T


@healthy(0.3)
def factors_with_rates_of_their_own(folder):
    """LoRA+ (Hayou et al. 2024): B learns sixteen times as fast as A. The images come upside down."""
    net, draw = mlp(64, depth=3, seed=156), batches(64)
    pretrain(net, classify(net, draw), 150)
    net = nn.Sequential(*(Factored(part) if isinstance(part, nn.Linear) else part for part in net))

    def loss_of(step):
        x, y = draw(5000 + step)
        return F.cross_entropy(net(x.flip(1)), y)

    rates = {"a": 5e-4, "b": 8e-3}
    groups = [
        {"params": [p for name, p in net.named_parameters() if name.endswith(f".{k}")], "lr": rates[k]} for k in rates
    ]
    return fit(folder, net, optim.AdamW(groups, weight_decay=0.0), loss_of, 300)


@healthy(0.3)
def adversaries_that_compare_pairs(folder):
    """Relativistic (Jolicoeur-Martineau 2018): is what is real more real than what is made?"""
    seeded(157)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1)
    of_make = optim.Adam(make.parameters(), 1e-3, betas=(0.0, 0.9))
    of_judge = optim.Adam(judge.parameters(), 3e-3, betas=(0.0, 0.9))
    real_ones = torch.randn(64) * 6.2832

    def make_loss(x):
        real = torch.stack([real_ones.cos(), real_ones.sin()], 1) * 2
        return F.softplus(judge(real) - judge(x)).mean()

    return play(
        folder, make, judge, of_make, of_judge,
        lambda real, made: F.softplus(judge(made) - judge(real)).mean(), make_loss, 500,
    )  # fmt: skip


@healthy(0.3)
def arm_that_reaches_by_chance(folder):
    """A policy gradient over Gaussian moves; the score is how far from the goal its mean ends."""
    seeded(158)
    net = nn.ModuleDict({"mean": dense(4, 48, 2, act=nn.Tanh), "spread": nn.ParameterList([torch.zeros(2)])})
    way, usual = 0.7 * torch.randn(4, 2), [0.0]

    def loss_of(step):
        seen = torch.randn(64, 4)
        move = torch.distributions.Normal(net["mean"](seen), net["spread"][0].exp())
        made = move.sample()
        reward = -(made - (seen @ way).tanh()).square().sum(1)
        gain = reward - usual[0]
        usual[0] = 0.95 * usual[0] + 0.05 * float(reward.mean())
        return -(move.log_prob(made).sum(1) * gain).mean(), {"reward": reward.mean()}

    def score():
        seen = torch.randn(512, 4)
        with torch.no_grad():
            return float((net["mean"](seen) - (seen @ way).tanh()).norm(dim=1).mean())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 800, score=score)


@healthy(0.3)
def predictor_of_a_slow_copy(folder):
    """BYOL (Grill et al. 2020): no negatives, and yet no collapse; the score is how well the views find each other."""
    seeded(159)
    net = nn.ModuleDict(
        {"online": dense(12, 64, 16, norm=nn.BatchNorm1d), "say": dense(16, 48, 16, norm=nn.BatchNorm1d)}
    )
    slow = dense(12, 64, 16, norm=nn.BatchNorm1d).requires_grad_(False)
    slow.load_state_dict(net["online"].state_dict())
    lift, stray = torch.randn(2, 3, 12)

    def both():
        """What two views share, and what each has for itself."""
        point = torch.randn(96, 3)
        return [point @ lift + torch.randn(96, 3) @ stray for _ in range(2)]

    def loss_of(step):
        a, b = both()
        pairs = [(net["say"](net["online"](one)), slow(other)) for one, other in ((a, b), (b, a))]
        return sum(2 - 2 * F.cosine_similarity(said, meant, dim=1).mean() for said, meant in pairs)

    @torch.no_grad()
    def follow(step):
        for mine, theirs in zip(slow.parameters(), net["online"].parameters(), strict=True):
            mine.lerp_(theirs, 0.02)

    def found(step):
        a, b = (F.normalize(z - z.mean(0), dim=1) for z in (net["online"](part) for part in both()))
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(96))

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_of, 400, after_step=follow, score=score_of(found))


@healthy(0.3)
def slow_weights_that_wait_five_steps(folder):
    """Lookahead (Zhang et al. 2019): every five steps the weights go back by half of the way."""
    seeded(160)
    net, draw = dense(12, 48, 48, 4), rings()
    slow = [p.detach().clone() for p in net.parameters()]

    @torch.no_grad()
    def look(step):
        if step % 5 == 4:
            for mine, p in zip(slow, net.parameters(), strict=True):
                p.copy_(mine.lerp_(p, 0.5))

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), entropy_of(net, draw), 400, after_step=look)


@healthy(0.3)
def sharpness_in_units_of_the_weights(folder):
    """ASAM (Kwon et al. 2021): the gradient is that of the steepest neighbour."""
    net = cnn(seed=161)
    loss_of = classify(net, batches(64))

    def uphill(step):
        params = [p for p in net.parameters() if p.grad is not None]
        with torch.no_grad():
            ways = [p.abs().add(0.01).square() * p.grad for p in params]
            norm = torch.stack([(p.abs().add(0.01) * p.grad).norm() for p in params]).norm() + 1e-12
            for p, way in zip(params, ways, strict=True):
                p.add_(way * (0.2 / norm))
        net.zero_grad()
        loss_of(step).backward()
        with torch.no_grad():
            for p, way in zip(params, ways, strict=True):
                p.sub_(way * (0.2 / norm))

    return fit(folder, net, optim.SGD(net.parameters(), 0.02, momentum=0.9), loss_of, 200, before_step=uphill)
