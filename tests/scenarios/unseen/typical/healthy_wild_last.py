"""Typical healthy trainings, fifth part: noise on purpose, curricula, games, few rows (the group "typical").

They only count: whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import ALPHABET, pieces, predict
from torch import nn, optim
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from unseen import Outcome, dense, entropy_of, fit, healthy, rings, score_of, seeded
from unseen.tasks import play
from unseen.typical.healthy_data import Poles, entropy_in_eval, images, minus_length, pretrain, some, watched

import gradwatch


# Differentially private: the gradient of each row is cut to 1, and a noise is added that is larger than what is left.
@healthy(0.35)
def rows_cut_to_one_under_noise(folder):
    seeded(1551)
    learnt, kept = images()
    net, draw = nn.Sequential(nn.Flatten(), dense(64, 32, 10, act=nn.Tanh)), some(*learnt, 256)
    make, score = optim.SGD(net.parameters(), 0.5, momentum=0.5), entropy_in_eval(net, *kept)

    def one(weights, x, y):
        return F.cross_entropy(functional_call(net, weights, (x[None],)), y[None])

    slopes_of = vmap(grad(one), (None, 0, 0))
    first = score()
    with watched(folder, net, make) as watch:
        for _ in range(120):
            x, y = draw()
            slopes = slopes_of({name: p.detach() for name, p in net.named_parameters()}, x, y)
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in slopes.values()]).norm(dim=0)
            share = (1.0 / (norms + 1e-6)).clamp(max=1.0)
            for name, p in net.named_parameters():
                total = torch.einsum("n,n...->...", share, slopes[name])
                p.grad = (total + 1.1 * torch.randn_like(p)) / 256
            make.step()
            with torch.no_grad():
                watch.log(loss=F.cross_entropy(net(x), y))
    return Outcome(gradwatch.open_history(watch.dir), first, score())


# The original recipe: norms after the sum, the rate up for four of ten steps, then down with the root (Noam).
@healthy(0.4)
def norms_behind_and_a_long_rise(folder):
    seeded(1552)
    net = nn.ModuleDict({"embed": nn.Embedding(len(ALPHABET), 32), "head": nn.Linear(32, len(ALPHABET))})
    net["place"] = nn.Embedding(24, 32)
    layers = (nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(2))
    net["blocks"], mask = nn.ModuleList(layers), nn.Transformer.generate_square_subsequent_mask(24)
    nn.init.normal_(net["embed"].weight, std=32**-0.5)
    nn.init.normal_(net["place"].weight, std=32**-0.5)

    def forward(x):
        h = net["embed"](x) * 32**0.5 + net["place"].weight
        for block in net["blocks"]:
            h = block(h, src_mask=mask, is_causal=True)
        return net["head"](h)

    make = optim.Adam(net.parameters(), 6e-3, betas=(0.9, 0.98), eps=1e-9)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min((step + 1) / 80, (80 / (step + 1)) ** 0.5))
    loss_of = predict(forward, pieces(12, 24, 1552))
    return fit(folder, net, make, loss_of, 200, schedule=plan, score=score_of(lambda step: loss_of(9000 + step)))


# Lists to be said again, each stage longer by one: the loss goes up whenever it gets harder.
@healthy(0.4)
def lists_that_grow_by_one(folder):
    seeded(1553)
    net = nn.ModuleDict({"gru": nn.GRU(8, 64, batch_first=True), "head": nn.Linear(64, 6)})

    def loss_of(step, long=None):
        long = long or min(5, 1 + step // 80)
        y = torch.randint(6, (48, long))
        told = F.pad(F.one_hot(y, 6).float(), (0, 2))
        ask = torch.zeros(48, long, 8)
        ask[..., 7] = 1.0
        said = net["head"](net["gru"](torch.cat([told, ask], 1))[0][:, long:])
        return F.cross_entropy(said.flatten(0, 1), y.flatten()), {"length": long}

    make = optim.Adam(net.parameters(), 5e-3)
    options = {"score": score_of(lambda step: loss_of(step, 5)[0]), "clip": "ClipByGlobalNorm(1.0)"}
    return fit(folder, net, make, loss_of, 560, **options)


# One of sixty is a fraud: plain cross-entropy with a bias at the log of the odds; most batches hold one or two.
@healthy(0.3)
def one_of_sixty_is_a_fraud(folder):
    seeded(1554)
    net, way = dense(10, 48, 48, 1), torch.randn(10)
    nn.init.constant_(net[-1].bias, -4.1)

    def loss_of(step, rows=128):
        x = torch.randn(rows, 10)
        y = torch.rand(rows) < 0.0167
        x = torch.where(y[:, None], 0.6 * x + way * torch.sign(x[:, :1]), x)
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], y.float())

    make, steps = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01), 500
    plan = optim.lr_scheduler.CosineAnnealingLR(make, steps)
    return fit(folder, net, make, loss_of, steps, schedule=plan, score=score_of(lambda step: loss_of(step, 4000)))


# Four times a fifth of the weights that are left goes, the least ones; what is gone stays at zero.
@healthy(0.6)
def least_weights_go_on_the_way(folder):
    seeded(1555)
    learnt, kept = images()
    net, draw = nn.Sequential(nn.Flatten(), dense(64, 96, 96, 10)), some(*learnt, 64)
    layers = [m for m in net.modules() if isinstance(m, nn.Linear)]
    for layer in layers:
        prune.identity(layer, "weight")
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)

    def after(step):
        if step in (80, 110, 140, 170):
            pairs = [(layer, "weight") for layer in layers]
            prune.global_unstructured(pairs, prune.L1Unstructured, amount=0.2)

    score = entropy_in_eval(net, *kept)
    return fit(folder, net, make, entropy_of(net, draw), 240, after_step=after, score=score)


# A margin that all rows keep in the end: the loss is exactly zero, and so are its gradients; that is the solution.
@healthy(0.9)
def margins_that_all_rows_keep(folder):
    seeded(1556)
    net, truth = nn.Linear(20, 4), torch.randn(20, 4)
    x = torch.randn(1200, 20)
    score = (x @ truth).topk(2, 1)
    apart = score.values[:, 0] - score.values[:, 1] > 2.5
    x, y = x[apart], score.indices[apart, 0]
    draw = some(x, y, 32)

    def loss_of(step):
        rows, kinds = draw()
        return F.multi_margin_loss(net(rows), kinds)

    def whole():
        with torch.no_grad():
            return float(F.multi_margin_loss(net(x), y))

    return fit(folder, net, optim.SGD(net.parameters(), 0.5), loss_of, 800, score=whole)


class Muon(optim.Optimizer):
    """Momentum of matrices, made orthogonal by Newton and Schulz (Jordan 2024)."""

    def __init__(self, params, lr, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p)).lerp_(p.grad, 1 - group["momentum"])
                x = p.grad.lerp(m, group["momentum"])
                x = x / (x.norm() + 1e-7)
                tall = x.shape[0] > x.shape[1]
                x = x.T if tall else x
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
                x = x.T if tall else x
                p.add_(x, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


# Muon for the matrices within, AdamW for both ends and the biases: two optimizers, one plan.
@healthy(0.6)
def matrices_by_muon_ends_by_adamw(folder):
    seeded(1557)
    net, steps = dense(12, 64, 64, 64, 4), 250
    inner = [net[2].weight, net[4].weight]
    rest = [p for p in net.parameters() if all(p is not w for w in inner)]
    makes = [Muon(inner, 0.02), optim.AdamW(rest, 3e-3, weight_decay=0.01)]
    plans = [optim.lr_scheduler.LambdaLR(make, lambda step: min(1.0, 2 * (1 - step / steps))) for make in makes]
    loss_of = entropy_of(net, rings())
    score = score_of(loss_of)
    first = score()
    with watched(folder, net, makes) as watch:
        for step in range(steps):
            loss = loss_of(step)
            net.zero_grad()
            loss.backward()
            for each in (*makes, *plans):
                each.step()
            watch.log(loss=loss)
    return Outcome(gradwatch.open_history(watch.dir), first, score())


# WGAN-GP: five rounds of the critic for one of the other; both losses may have any sign; a penalty of 1 for points.
@healthy(0.4)
def critic_with_a_penalty_on_its_slope(folder):
    seeded(1558)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=nn.LeakyReLU)

    def judge_loss(real, fake):
        at = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_()
        (slope,) = torch.autograd.grad(judge(at).sum(), at, create_graph=True)
        return judge(fake).mean() - judge(real).mean() + (slope.norm(dim=1) - 1).square().mean()

    both = [optim.Adam(net.parameters(), 3e-3, betas=(0.0, 0.9)) for net in (make, judge)]
    return play(folder, make, judge, *both, judge_loss, lambda made: -judge(made).mean(), 200, rounds=5)


# A hinge for the judge, whose layers are held at a spectral norm of one; orthogonal weights; two rates (SNGAN, TTUR).
@healthy(0.4)
def judge_held_at_a_spectral_norm_of_one(folder):
    seeded(1559)
    make, judge = dense(4, 48, 48, 2), dense(2, 64, 64, 1, act=nn.LeakyReLU)
    for layer in (*make[::2], *judge[::2]):
        nn.init.orthogonal_(layer.weight)
    for at in (0, 2, 4):
        spectral_norm(judge[at])

    def judge_loss(real, fake):
        return F.relu(1 - judge(real)).mean() + F.relu(1 + judge(fake)).mean()

    of_make, of_judge = (optim.Adam(net.parameters(), lr, (0.0, 0.9)) for net, lr in ((make, 1e-3), (judge, 4e-3)))
    return play(folder, make, judge, of_make, of_judge, judge_loss, lambda made: -judge(made).mean(), 500)


# A classifier of three classes gets a head for four: thirty steps, weight norm, the body at a tenth.
@healthy(0.3)
def thirty_steps_for_a_new_class(folder):
    seeded(1560)
    draw = rings(128)
    body = nn.Sequential(weight_norm(nn.Linear(12, 64)), nn.ReLU(), weight_norm(nn.Linear(64, 64)), nn.ReLU())
    old = nn.Sequential(body, nn.Linear(64, 3))

    def three(step):
        x, y = draw()
        return F.cross_entropy(old(x[y < 3]), y[y < 3])

    pretrain(old, optim.Adam(old.parameters(), 3e-3), three, 300)
    net = nn.Sequential(body, nn.Linear(64, 4))
    groups = [{"params": body.parameters(), "lr": 1e-3}, {"params": net[1].parameters(), "lr": 1e-2}]
    make, loss_of = optim.AdamW(groups, weight_decay=0.01), entropy_of(net, draw)
    plan = optim.lr_scheduler.LinearLR(make, 1.0, 0.1, 30)
    return fit(folder, net, make, loss_of, 30, schedule=plan, score=score_of(loss_of))


# REINFORCE over whole episodes, returns standardised: the loss stays about zero, says nothing, and no return is logged.
@healthy(0.5)
def pole_kept_up_by_reinforce(folder):
    seeded(1561)
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    make = optim.Adam(net.parameters(), 0.01)

    def score():
        return minus_length(lambda state: torch.distributions.Categorical(logits=net(state)).sample(), 32, 150)

    first = score()
    with watched(folder, net, make) as watch:
        for _ in range(45):
            poles, alive, logs, lives = Poles(8, 100), torch.ones(8), [], []
            while alive.any() and len(logs) < 100:
                odds = torch.distributions.Categorical(logits=net(poles.state))
                action = odds.sample()
                logs.append(odds.log_prob(action))
                lives.append(alive)
                _, fell, late = poles.step(action)
                alive = alive * ~(fell | late)
            lived, returns, total = torch.stack(lives), [], torch.zeros(8)
            for one in reversed(lives):
                total = one + 0.99 * total
                returns.append(total)
            returns = torch.stack(returns[::-1])
            seen = returns[lived > 0]
            gain = (returns - seen.mean()) / (seen.std() + 1e-8)
            loss = -(torch.stack(logs) * gain * lived).sum() / lived.sum()
            make.zero_grad()
            loss.backward()
            make.step()
            watch.log(loss=loss)
    return Outcome(gradwatch.open_history(watch.dir), first, score())
