"""Reported healthy trainings, third part: tasks, games and agents. An expert has nothing to say of any.

They only count (the group `reported`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from nets import Transformer, batches, classify, cnn, digits, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded, waves
from unseen.reported.sick import pretrain, rivals
from unseen.tasks import play


@healthy(0.2)
def pushes_with_a_wanted_entropy(folder):
    """Soft actor and a price of known form (Haarnoja et al. 2018): the weight of the entropy is learned too."""
    seeded(441)
    net, way = nn.ModuleDict({"actor": dense(3, 48, 48, 4)}), torch.randn(3, 2)
    net.register_parameter("weight", nn.Parameter(torch.zeros(())))

    def paid(state, action):
        return -4 * (action - 0.7 * (state @ way).tanh()).square().sum(1)

    def loss_of(step):
        state = torch.randn(128, 3)
        middle, log = net["actor"](state).chunk(2, 1)
        log = log.clamp(-5, 2)
        noise = torch.randn(128, 2)
        action = middle + log.exp() * noise
        said = (-0.5 * noise.square() - log - 0.5 * math.log(2 * math.pi)).sum(1)
        said = said - 2 * (math.log(2) - action - F.softplus(-2 * action)).sum(1)
        gain = paid(state, action.tanh())
        loss = (net.weight.exp().detach() * said - gain).mean() - net.weight.exp() * (said.detach() - 2).mean()
        return loss, {"return": gain.mean()}

    def score():
        state = torch.randn(512, 3)
        with torch.no_grad():
            return -float(paid(state, net["actor"](state)[:, :2].tanh()).mean())

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_of, 500, score=score, higher_is_better={"return": True})


@healthy(0.2)
def walk_to_a_corner_by_advantage(folder):
    """Actor and critic on one body (Mnih et al. 2016): eight moves, paid by how near to a corner they end."""
    seeded(442)
    net = nn.ModuleDict({"body": dense(2, 48, 48), "actor": nn.Linear(48, 4), "critic": nn.Linear(48, 1)})
    ways = torch.tensor([[0.0, 0.25], [0.25, 0.0], [0.0, -0.25], [-0.25, 0.0]])

    def walk(rows):
        at, steps = 2 * torch.rand(rows, 2) - 1, []
        for _ in range(8):
            h = net["body"](at).tanh()
            choice = torch.distributions.Categorical(logits=net["actor"](h))
            action = choice.sample()
            at = (at + ways[action]).clamp(-1, 1)
            paid = -(at - 0.9).norm(dim=1)
            steps.append((choice.log_prob(action), choice.entropy(), net["critic"](h)[:, 0], paid))
        return steps

    def loss_of(step):
        back, loss, steps = 0.0, 0.0, walk(64)
        for log, entropy, value, paid in reversed(steps):
            back = paid + 0.9 * back
            gain = back - value
            loss = loss + (0.5 * gain.square() - log * gain.detach() - 0.01 * entropy).mean() / 8
        return loss, {"return": back.mean()}

    def score():
        with torch.no_grad():
            return -float(torch.stack([paid for *_, paid in walk(256)]).mean())

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)

    make = optim.RMSprop(net.parameters(), 2e-3, alpha=0.99, eps=1e-5)
    options = {"score": score, "before_step": clipped, "higher_is_better": {"return": True}}
    return fit(folder, net, make, loss_of, 300, **options)


@healthy(0.3)
def adversaries_by_least_squares(folder):
    """Mao et al. (2017), with the judge's spectral norms at 1 (Miyato et al. 2018)."""
    make, judge = rivals(443, nn.SiLU)
    for part in judge:
        if isinstance(part, nn.Linear):
            nn.utils.parametrizations.spectral_norm(part)

    def judge_loss(real, made):
        return (5 * judge(real) - 1).square().mean() + (5 * judge(made) + 1).square().mean()

    def make_loss(made):
        return (5 * judge(made) - 1).square().mean()

    of_make, of_judge = (optim.Adam(net.parameters(), 2e-3, (0.5, 0.99)) for net in (make, judge))
    return play(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 600)


@healthy(0.15)
def straight_ways_from_noise_to_digits(folder):
    """Flow matching (Lipman et al. 2023)."""
    seeded(444)
    net, (x, _) = dense(80, 128, 128, 64, act=nn.SiLU), digits()
    wave = 3.1416 * torch.arange(1, 9)

    def loss_of(step):
        at, noise = torch.rand(128, 1), torch.randn(128, 64)
        image = 2 * x[torch.randint(len(x), (128,))].flatten(1) - 1
        told = torch.cat([(1 - at) * noise + at * image, (at * wave).sin(), (at * wave).cos()], 1)
        return F.mse_loss(net(told), image - noise)

    make = optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    return fit(folder, net, make, loss_of, 500, score=score_of(loss_of))


@healthy(0.15)
def alike_if_of_one_kind(folder):
    """Supervised contrast (Khosla et al. 2020) on images moved about; all of a kind attract."""
    seeded(445)
    net, draw = nn.Sequential(*list(cnn(norm=True, seed=445))[:-1], nn.Linear(256, 16)), batches(96)

    def loss_of(step):
        x, y = draw(step)
        z = F.normalize(net(x + 0.1 * torch.randn_like(x)), dim=1)
        alike = (z @ z.T / 0.2).fill_diagonal_(-1e4)
        same = (y[:, None] == y).float().fill_diagonal_(0)
        return -((alike.log_softmax(1) * same).sum(1) / same.sum(1).clamp(min=1)).mean()

    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4), loss_of, 200)


@healthy(0.2)
def what_is_taken_before_what_is_not(folder):
    """Bayesian personalised ranking (Rendle et al. 2009): two tables and plain SGD, decay by hand."""
    seeded(447)
    net = nn.ModuleDict({"who": nn.Embedding(80, 8), "what": nn.Embedding(120, 8)})
    for part in net.values():
        nn.init.normal_(part.weight, std=0.1)
    like = torch.randn(80, 4) @ torch.randn(4, 120)

    def loss_of(step):
        who, one, two = torch.randint(80, (512,)), torch.randint(120, (512,)), torch.randint(120, (512,))
        first = like[who, one] > like[who, two]
        good, bad = torch.where(first, one, two), torch.where(first, two, one)
        at = net["who"](who)
        gap = (at * (net["what"](good) - net["what"](bad))).sum(1)
        return F.softplus(-gap).mean() + 1e-4 * at.square().sum(1).mean()

    return fit(folder, net, optim.SGD(net.parameters(), 20.0), loss_of, 800)


@healthy(0.2)
def prompt_before_a_frozen_net(folder):
    """Six rows before the text are all that is learned (Lester et al. 2021), and a head: which sign stood fourth?"""
    net, piece = Transformer(32, 2, seed=448), pieces(16)
    pretrain(net, predict(net, piece), 150)
    net.requires_grad_(False)
    net.prompt, net.head = nn.Parameter(0.5 * torch.randn(6, 32)), nn.Linear(32, 2)

    def loss_of(step):
        x, _ = piece(700 + step)
        x = x[:, :18]
        h = torch.cat([net.prompt.expand(len(x), 6, 32), net.embed(x)], 1) + net.place
        mask = nn.Transformer.generate_square_subsequent_mask(24)
        for block in net.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return F.cross_entropy(net.head(net.norm(h)[:, 9]), (x[:, 3] % 2).long())

    make = optim.AdamW([p for p in net.parameters() if p.requires_grad], 0.02)
    return fit(folder, net, make, loss_of, 250)


@healthy(0.3)
def how_sure_as_well_as_how_much(folder):
    """A mean and a variance of every row (Seitzer et al. 2022: the loss is weighted by the root of the variance)."""
    seeded(449)
    net, draw = dense(6, 64, 64, 2, act=nn.GELU), waves(128)

    def both():
        x, y = draw()
        noise = 0.1 + 0.4 * (x[:, :1] > 0).float()
        middle, log = net(x).chunk(2, 1)
        return middle, log, y + noise * torch.randn_like(y)

    def loss_of(step):
        middle, log, y = both()
        each = 0.5 * log + 0.5 * (y - middle).square() / log.exp()
        return (each * (0.5 * log).exp().detach()).mean()

    def score():
        with torch.no_grad():
            middle, _, y = both()
        return float(F.mse_loss(middle, y))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 600, score=score)


@healthy(0.3)
def head_first_and_then_all(folder):
    """A new head on a frozen net for sixty steps, then all of it at a lower rate (Kumar et al. 2022)."""
    net, draw = cnn(seed=450), batches(64)
    pretrain(net, classify(net, draw), 100)
    net[-1] = nn.Linear(256, 10)
    body = [p for part in list(net)[:-1] for p in part.parameters()]
    for p in body:
        p.requires_grad_(False)
    make = optim.AdamW(net[-1].parameters(), 3e-3)

    def after(step):
        if step == 59:
            for p in body:
                p.requires_grad_(True)
            make.param_groups[0]["lr"] = 5e-4
            make.add_param_group({"params": body, "lr": 5e-4})

    def loss_of(step):
        x, y = draw(9000 + step)
        return F.cross_entropy(net(x.transpose(1, 2)), y)

    return fit(folder, net, make, loss_of, 200, after_step=after)
