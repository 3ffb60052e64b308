"""Sent sick trainings, third part: what goes in, what is wanted, what is made of it.

They only count (the group `sent`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from nets import CODES, Transformer, batches, digits, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, score_of, seeded, sick

import gradwatch


# "loss nan" (a largest depth divided by depths of which some are zero), github.com/ialhashim/DenseDepth/issues/65
@sick(
    "nonfinite",
    where="all layers, at the first batch with a place that the sensor did not see: 10 / 0",
    cure="places without a depth left out",
)  # fmt: skip
def largest_depth_by_a_depth_of_zero(folder, ill):
    seeded(1021)
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
                        nn.Conv2d(16, 1, 3, padding=1))  # fmt: skip
    draw = batches(16)

    def loss_of(step):
        x = draw(step)[0][:, None]
        depth = 2 + 8 * F.avg_pool2d(1 - x, 3, 1, 1)
        depth = torch.where(torch.rand_like(depth) < 1e-5, 0.0, depth)
        seen = torch.ones_like(depth, dtype=torch.bool) if ill else depth > 0
        return (net(x) - 10 / depth)[seen].square().mean()

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 300, score=score_of(loss_of, 4))


# "Boundary Condition that seems troublesome" (all of them are zero but one, which is of the order of 10^3),
# github.com/lululxvi/deepxde/issues/481
@sick(
    "outputs-not-scaled", "targets-not-normalised", "update-too-small",
    where="the last layer, all steps: it has to come to a thousand by steps of a thousandth",
    cure="the output times 1000, and the equation in units of 1000",
)  # fmt: skip
def pressure_of_a_thousand_at_one_end(folder, ill):
    """p'' = -2000 between p(0) = 1000 and p(1) = 0: p = 1000 - 1000 x²."""
    seeded(1022)
    net, unit = dense(1, 32, 32, 1, act=nn.Tanh), 1.0 if ill else 1000.0
    ends = torch.tensor([[0.0], [1.0]])

    def loss_of(step):
        x = torch.rand(64, 1, requires_grad=True)
        slope = torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]
        bend = torch.autograd.grad(slope.sum(), x, create_graph=True)[0]
        return (bend + 2000 / unit).square().mean() + (net(ends) - 1000 / unit * (1 - ends)).square().sum()

    def score():
        with torch.no_grad():
            x = torch.linspace(0, 1, 101)[:, None]
            return float((unit * net(x) / 1000 - 1 + x.square()).abs().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 800, score=score)


# "Model is not learning and epoch loss high" (attributes of nodes that nobody normalised),
# github.com/kaize0409/Meta-GDN_AnomalyDetection/issues/1
@sick(
    "inputs-not-normalised",
    where="the first layer, all steps: counts of thousands beside shares",
    cure="each column less its mean, by its deviation",
)  # fmt: skip
def nodes_by_their_raw_counts(folder, ill):
    """Which nodes are unlike their neighbours?"""
    seeded(1023)
    net = nn.ModuleDict({"own": nn.Linear(10, 32), "near": nn.Linear(10, 32), "say": nn.Linear(32, 2)})
    ways, sizes = torch.randn(10), 10 ** torch.linspace(-2, 4, 10)

    def loss_of(step):
        kind = torch.randint(5, (80,))
        links = (torch.rand(80, 80) < 0.05 + 0.4 * (kind[:, None] == kind)).float()
        links = links / links.sum(1, keepdim=True).clamp(min=1)
        x = torch.randn(5, 10)[kind] + 0.3 * torch.randn(80, 10)
        y = ((x - links @ x) @ ways > 0).long()
        x = (x + 3) * sizes if ill else x
        return F.cross_entropy(net["say"]((net["own"](x) + net["near"](links @ x)).relu()), y)

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 300)


# "When EMA is enabled it doesn't learn anything" (a decay of 0.999, and what is looked at is the average),
# github.com/Nerogar/OneTrainer/issues/889
@sick(
    "average-too-slow",
    where="the average that is valued, all steps: most of it is still the beginning", cure="a decay of 0.95",
)  # fmt: skip
def average_that_outlasts_the_run(folder, ill):
    net, draw = mlp(seed=1024), batches(48)
    average, (images, names) = copy.deepcopy(net).requires_grad_(False), digits()
    decay = 0.999 if ill else 0.95

    def score():
        return float(F.cross_entropy(average(images[::4]), names[::4]))

    def loss_of(step):
        x, y = draw(step)
        return F.cross_entropy(net(x), y), ({"val_loss": score()} if step % 20 == 0 else {})

    def after(step):
        for mean, p in zip(average.parameters(), net.parameters(), strict=True):
            mean.lerp_(p.detach(), 1 - decay)

    return fit(folder, net, optim.AdamW(net.parameters(), 1e-3), loss_of, 300, after_step=after, score=score)


# "A mistake on gradient penalty" (its norm over the one channel: each pixel's slope is to be 1),
# github.com/Zeleni9/pytorch-wgan/issues/40
@sick(
    "loss-terms-apart", "loss-terms-unbalanced", "penalty-per-element",
    where="the critic, all steps: the penalty wants a slope of eight", cure="the norm over all that a row has",
)  # fmt: skip
def slope_of_one_for_every_pixel(folder, ill) -> Outcome:
    seeded(1025)
    make, critic, images = dense(16, 96, 64), dense(64, 96, 96, 1), digits()[0]
    of_make, of_critic = (optim.Adam(net.parameters(), 1e-3, (0.5, 0.9)) for net in (make, critic))

    def real(rows=48):
        return 2 * images[torch.randint(len(images), (rows,))][:, None] - 1

    def made(rows=48):
        return make(torch.randn(rows, 16)).view(rows, 1, 8, 8)

    def score():
        """How far apart both are along random directions (sliced Wasserstein distance)."""
        with torch.no_grad():
            ways = F.normalize(torch.randn(64, 128), dim=0)
            true, false = ((x.flatten(1) @ ways).sort(0).values for x in (real(512), made(512)))
            return float((true - false).abs().mean())

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    w_critic = gradwatch.watch(critic, of_critic, name="D", **options)
    w_make = gradwatch.watch(make, of_make, name="G", run=w_critic, **options)
    with w_critic, w_make:
        for step in range(750):
            true, false, share = real(), made().detach(), torch.rand(48, 1, 1, 1)
            between = (share * true + (1 - share) * false).requires_grad_()
            slope = torch.autograd.grad(critic(between.flatten(1)).sum(), between, create_graph=True)[0]
            norm = slope.norm(2, dim=1) if ill else slope.flatten(1).norm(2, dim=1)
            loss = critic(false.flatten(1)).mean() - critic(true.flatten(1)).mean() + 10 * (norm - 1).square().mean()
            of_critic.zero_grad()
            loss.backward()
            of_critic.step()
            w_critic.log(loss=loss)
            if step % 3 == 2:
                of_make.zero_grad()
                loss = -critic(made().flatten(1)).mean()
                loss.backward()
                of_make.step()
                w_make.log(loss=loss)
    return Outcome(gradwatch.open_history(w_critic.dir.parent), first, score())


# "Training from scratch with dice loss only" (all masks stay uniform; with cross-entropy beside it they do not),
# github.com/hkchengrex/XMem/issues/62
@sick(
    "vanishing", "update-too-small", "class-imbalance",
    where="all layers, from the first steps: of a few places among hundreds an overlap has next to no slope",
    cure="cross-entropy beside it",
)  # fmt: skip
def overlap_alone_of_a_few_places(folder, ill):
    seeded(1026)
    net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
                        nn.Conv2d(12, 1, 3, padding=1))  # fmt: skip

    def loss_of(step):
        mark = torch.zeros(4, 1, 24, 24)
        for one, (row, column) in zip(mark, torch.randint(1, 22, (4, 2)).tolist(), strict=True):
            one[0, row : row + 2, column : column + 2] = 1
        out = net(0.7 * mark + 0.3 * torch.randn_like(mark))
        share = out.sigmoid()
        overlap = (2 * (share * mark).sum((1, 2, 3)) + 1) / (share.sum((1, 2, 3)) + mark.sum((1, 2, 3)) + 1)
        dice = 1 - overlap.mean()
        return dice + (0 if ill else F.binary_cross_entropy_with_logits(out, mark)), {"dice": dice}

    def score():
        with torch.no_grad():
            return sum(float(loss_of(0)[1]["dice"]) for _ in range(16)) / 16

    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), loss_of, 500, score=score)


# "Bert pre-training loss convergence" (thousands of repeated lines in what was scraped),
# github.com/google-research/bert/issues/746
@sick(
    "loss-too-easy", "class-imbalance",
    where="the data, all steps: nearly every row is the same line", cure="each line once",
)  # fmt: skip
def one_line_thousands_of_times(folder, ill):
    net, piece = Transformer(32, 2, seed=1027), pieces(8, seed=5)
    line = CODES[:25]

    def loss_of(step):
        x, y = piece(step)
        again = torch.rand(8, 1) < (0.98 if ill else 0.0)
        return F.cross_entropy(net(x.where(~again, line[:-1])).flatten(0, 1), y.where(~again, line[1:]).flatten())

    make = optim.AdamW(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 300, score=score_of(predict(net, pieces(16, seed=6))))
