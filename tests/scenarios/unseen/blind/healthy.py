"""Blind healthy trainings, first part: losses, data and games. An expert has nothing to say of any of them.

They only count (the group `blind`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import batches, classify, cnn, mlp
from torch import nn, optim
from torch.nn import functional as F
from trainings import blobs
from unseen import dense, fit, healthy, rings, score_of, seeded, square_of, waves
from unseen.tasks import play, views


@healthy(0.3)
def value_loss_that_grows_with_the_return(folder):
    """Actor and critic of a walk of twelve steps that ends with the first wrong one; the score is what is missing."""
    seeded(50)
    net = nn.ModuleDict({"actor": dense(6, 32, 3, act=nn.Tanh), "critic": dense(6, 32, 1, act=nn.Tanh)})
    rule = torch.randn(6, 3)

    def walk(rows):
        seen = torch.randn(rows, 12, 6)
        choice = torch.distributions.Categorical(logits=net["actor"](seen))
        action = choice.sample()
        alive = (action == (seen @ rule).argmax(2)).float().cumprod(1)
        begun = torch.cat([torch.ones(rows, 1), alive[:, :-1]], 1)
        return seen, choice, action, alive.flip(1).cumsum(1).flip(1), begun

    def loss_of(step):
        seen, choice, action, worth, begun = walk(32)
        value = net["critic"](seen)[..., 0]
        gain = (worth - value).detach()
        actor = -(choice.log_prob(action) * gain * begun).sum() / begun.sum()
        critic = ((value - worth).square() * begun).sum() / begun.sum()
        return actor + 0.5 * critic, {"value_loss": critic, "episode_return": worth[:, 0].mean()}

    def score():
        with torch.no_grad():
            return 12 - float(walk(256)[3][:, 0].mean())

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 400, score=score)


@healthy(0.2)
def adversaries_with_a_penalty_at_the_real(folder):
    """R1 (Mescheder et al. 2018)."""
    seeded(51)
    make, judge = dense(4, 32, 32, 2), dense(2, 32, 32, 1)
    of_make, of_judge = (optim.Adam(net.parameters(), 3e-3, betas=(0.5, 0.9)) for net in (make, judge))

    def judge_loss(real, made):
        real.requires_grad_(True)
        said = judge(real)
        (slope,) = torch.autograd.grad(said.sum(), real, create_graph=True)
        return F.softplus(-said).mean() + F.softplus(judge(made)).mean() + 0.5 * slope.square().sum(1).mean()

    return play(folder, make, judge, of_make, of_judge, judge_loss, lambda x: F.softplus(-judge(x)).mean(), 400)


@healthy(0.3)
def few_bright_pixels_under_a_focal_loss(folder):
    seeded(52)
    net = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 1, 5, padding=2))
    nn.init.constant_(net[-1].bias, -4.0)
    grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))

    def loss_of(step):
        centre = 3 + 10 * torch.rand(16, 2, 1, 1)
        mask = ((grid - centre).square().sum(1, keepdim=True) < 4).float()
        apart = F.binary_cross_entropy_with_logits(net(mask + 0.4 * torch.randn(mask.shape)), mask, reduction="none")
        return ((1 - (-apart).exp()).square() * apart).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 150)


@healthy(0.3)
def redundancy_of_two_views(folder):
    """Barlow twins; the score is how well the views find each other."""
    seeded(53)
    net, _, _ = views(0.1)
    lifts = torch.randn(2, 3, 12)

    def both():
        point = torch.randn(96, 3)
        return [net[side]((point @ lift).tanh()) for side, lift in zip(net, lifts, strict=True)]

    def loss_of(step):
        a, b = ((z - z.mean(0)) / (z.std(0) + 1e-4) for z in both())
        cross = a.T @ b / 96
        alike = (cross.diagonal() - 1).square().sum()
        return alike + 0.02 * (cross.square().sum() - cross.diagonal().square().sum())

    def found():
        a, b = (F.normalize(z - z.mean(0), dim=1) for z in both())
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(96))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300, score=score_of(lambda step: found()))


@healthy(0.3)
def four_labels_in_ten_are_wrong(folder):
    """The score is the loss on right labels; its own loss hardly falls."""
    net = mlp(48, seed=54)
    clean = score_of(classify(net, batches(256, seed=9)))
    return fit(
        folder, net, optim.AdamW(net.parameters(), 1e-3), classify(net, batches(64, noise=0.4)), 300, score=clean
    )


@healthy(0.3)
def teacher_at_a_temperature_of_four(folder):
    """Distillation (Hinton et al. 2015) with its square of the temperature."""
    teacher, net = mlp(64, seed=55), mlp(24, seed=56)
    draw = batches(64)
    fast = optim.Adam(teacher.parameters(), 3e-3)
    for step in range(150):
        fast.zero_grad()
        classify(teacher, draw)(step).backward()
        fast.step()

    def loss_of(step):
        x, y = draw(1000 + step)
        with torch.no_grad():
            told = (teacher(x) / 4).softmax(1)
        out = net(x)
        return 16 * F.kl_div((out / 4).log_softmax(1), told, reduction="batchmean") + 0.1 * F.cross_entropy(out, y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), loss_of, 250)


@healthy(0.3)
def pairs_that_were_taken_before_those_that_were_not(folder):
    """A recommender by Bayesian personalised ranking, with L2 on what is drawn."""
    seeded(57)
    net = nn.ModuleDict({"user": nn.Embedding(60, 16), "item": nn.Embedding(40, 16)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.1)
    taste = torch.randn(60, 3) @ torch.randn(3, 40)

    def loss_of(step):
        u, i, j = torch.randint(60, (256,)), torch.randint(40, (256,)), torch.randint(40, (256,))
        i, j = torch.where(taste[u, i] > taste[u, j], i, j), torch.where(taste[u, i] > taste[u, j], j, i)
        user, gap = net["user"](u), net["item"](i) - net["item"](j)
        return -F.logsigmoid((user * gap).sum(1)).mean() + 1e-3 * (user.square().sum(1) + gap.square().sum(1)).mean()

    return fit(folder, net, optim.SGD(net.parameters(), 5.0), loss_of, 400)


@healthy(0.5)
def equation_that_is_its_own_loss(folder):
    """y'' = -y from y(0) = 0, y'(0) = 1: the loss falls by decades."""
    seeded(58)
    net = dense(1, 24, 24, 1, act=nn.Tanh)

    def loss_of(step):
        t = (3 * torch.rand(48, 1)).index_fill(0, torch.tensor([0]), 0.0).requires_grad_(True)
        y = net(t)
        (first,) = torch.autograd.grad(y.sum(), t, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), t, create_graph=True)
        return (second + y).square().mean() + y[0, 0].square() + (first[0, 0] - 1).square()

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 400)


@healthy(0.5)
def letters_without_their_places(folder):
    """Connectionist temporal classification: a loss of tens, then a plateau of blanks, then the letters."""
    seeded(59)
    net = nn.ModuleDict({"read": nn.GRU(6, 24, batch_first=True, bidirectional=True), "head": nn.Linear(48, 5)})
    look = torch.randn(5, 6)

    def loss_of(step):
        said = torch.randint(1, 5, (16, 5))
        heard = look[said.repeat_interleave(4, 1)] + 0.3 * torch.randn(16, 20, 6)
        out = net["head"](net["read"](heard)[0]).log_softmax(2).transpose(0, 1)
        lengths = torch.full((16,), 20), torch.full((16,), 5)
        return F.ctc_loss(out, said, *lengths, reduction="sum") / 16

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, 200)


@healthy(0.5)
def mixture_whose_loss_falls_below_zero(folder):
    """A density of three Gaussians for the inverse of a curve."""
    seeded(60)
    net = dense(1, 32, 9, act=nn.Tanh)

    def loss_of(step):
        y = torch.rand(128, 1)
        x = y + 0.3 * (6.2832 * y).sin() + 0.02 * torch.randn(128, 1)
        share, middle, log_width = net(x).chunk(3, 1)
        apart = (y - middle) / log_width.exp()
        return -(share.log_softmax(1) - 0.5 * apart.square() - log_width).logsumexp(1).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 400)


@healthy(0.3)
def counts_with_a_log_link(folder):
    """Poisson regression: norms of hundreds at first, a warm-up and a clip."""
    seeded(61)
    net, way = dense(6, 48, 1), 0.5 * torch.randn(6, 1)

    def loss_of(step):
        x = torch.randn(128, 6)
        return F.poisson_nll_loss(net(x), torch.poisson((x @ way + 3).exp()), full=True)

    make = optim.AdamW(net.parameters(), 0.01)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min(1.0, (step + 1) / 40))
    return fit(folder, net, make, loss_of, 300, schedule=plan, clip="ClipByGlobalNorm(10.0)")


@healthy(0.3)
def rare_kind_that_weighs_a_hundredfold(folder):
    seeded(62)
    net = dense(8, 32, 2)

    def loss_of(step):
        y = (torch.rand(256) < 0.01).long()
        x = torch.randn(256, 8) + 1.2 * y[:, None]
        return F.cross_entropy(net(x), y, weight=torch.tensor([1.0, 99.0]))

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 300)


@healthy(0.3)
def function_that_moves_on_every_hundred_steps(folder):
    """The loss leaps with every move, and is made good each time."""
    seeded(63)
    net = dense(6, 48, 48, 1)
    draws = [waves(64, 6) for _ in range(4)]
    make = optim.Adam(net.parameters(), 5e-3)
    return fit(
        folder, net, make, lambda step: square_of(net, draws[min(step // 100, 3)])(step), 500,
        score=score_of(square_of(net, draws[3])),
    )  # fmt: skip


@healthy(0.3)
def rebuilt_first_and_named_afterwards(folder):
    """Two phases in one run: an autoencoder's error, then a cross-entropy a hundred times as large."""
    seeded(64)
    net = nn.ModuleDict({"body": dense(64, 48, 24), "back": dense(24, 64), "head": nn.Linear(24, 10)})
    draw = batches(64)

    def loss_of(step):
        x, y = draw(step)
        code = net["body"](x.flatten(1)).relu()
        return F.mse_loss(net["back"](code), x.flatten(1)) if step < 120 else F.cross_entropy(net["head"](code), y)

    def named():
        x, y = draw(10_000)
        with torch.no_grad():
            return float(F.cross_entropy(net["head"](net["body"](x.flatten(1)).relu()), y))

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 350, score=named)


@healthy(0.3)
def whole_set_at_a_rate_of_one(folder):
    net = cnn(norm=True, seed=65)
    make = optim.SGD(net.parameters(), 1.0, momentum=0.9, nesterov=True)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 60)
    return fit(folder, net, make, classify(net, batches(1024)), 60, schedule=plan)


@healthy(0.3)
def kinds_far_apart_learned_to_nothing(folder):
    """An easy task: the loss ends at 1e-4 and less, and so do the gradients."""
    seeded(66)
    net, draw = dense(16, 32, 4), blobs(4, 16, 64, spread=0.2)
    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), lambda step: entropy(net, draw(step)), 500)


def entropy(net, drawn):
    x, y = drawn
    return F.cross_entropy(net(x), y)


@healthy(0.3)
def temperature_that_is_learned(folder):
    """Two views of a point, named by each other; the scale of their products grows as it should (CLIP)."""
    seeded(67)
    net = nn.ModuleDict(
        {"left": dense(12, 48, 8), "right": dense(12, 48, 8), "scale": nn.ParameterList([torch.zeros(1)])}
    )
    lifts = torch.randn(2, 3, 12)

    def loss_of(step):
        point = torch.randn(64, 3)
        sides = zip(("left", "right"), lifts, strict=True)
        a, b = (F.normalize(net[side]((point @ lift).tanh()), dim=1) for side, lift in sides)
        logits = a @ b.T * net["scale"][0].exp()
        return (F.cross_entropy(logits, torch.arange(64)) + F.cross_entropy(logits.T, torch.arange(64))) / 2

    return fit(folder, net, optim.AdamW(net.parameters(), 0.01), loss_of, 250)


@healthy(0.3)
def rings_under_langevin_noise(folder):
    """Weights that are shaken after every step (Welling and Teh 2011)."""
    seeded(68)
    net, draw = dense(12, 48, 48, 4), rings()

    @torch.no_grad()
    def shake(step):
        for p in net.parameters():
            p.add_(torch.randn_like(p), alpha=1e-3)

    return fit(
        folder, net, optim.SGD(net.parameters(), 0.1), lambda step: entropy(net, draw()), 300, after_step=shake
    )  # fmt: skip
