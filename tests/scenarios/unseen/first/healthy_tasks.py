"""Healthy trainings that no rule was written for, fourth part: models, games, rewards and losses."""

from __future__ import annotations

import torch
from nets import Transformer, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, mean, rings, score_of, seeded
from unseen.tasks import play, recall, views


@healthy()
def transformer_on_characters(folder):
    """Tied weights, a warm-up and a clip by the loop, as is usual."""
    net = Transformer(depth=1, seed=140, tied=True)
    make = optim.AdamW(net.parameters(), 1e-2, betas=(0.9, 0.95))
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min(1.0, (step + 1) / 20))

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(folder, net, make, predict(net, pieces(8, 16, 140)), 120, before_step=clip, schedule=plan)


@healthy()
def memory_of_the_first_token(folder):
    seeded(141)
    memory = nn.LSTM(4, 24, batch_first=True)
    nn.init.constant_(memory.bias_ih_l0[24:48], 2.0)
    net, loss_of = recall(memory)
    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 200)


@healthy()
def twenty_blocks_that_begin_as_nothing(folder):
    """Residual blocks whose last weights begin at zero: at first all before those get no gradient, rightly."""
    seeded(142)
    stem, head, draw = nn.Linear(12, 24), nn.Linear(24, 4), rings()
    blocks = nn.ModuleList(dense(24, 24, 24) for _ in range(20))
    for block in blocks:
        nn.init.zeros_(block[2].weight)
    net = nn.ModuleDict({"stem": stem, "blocks": blocks, "head": head})

    def forward(x):
        h = stem(x)
        for block in blocks:
            h = h + block(h)
        return head(h)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), entropy_of(forward, draw), 80)


@healthy(0.2)
def variational_autoencoder(folder):
    seeded(143)
    net = nn.ModuleDict({"encoder": dense(12, 48, 4), "decoder": dense(2, 48, 12)})
    draw = rings()

    def loss_of(step):
        x, _ = draw()
        middle, spread = net["encoder"](x).chunk(2, 1)
        z = middle + (spread / 2).exp() * torch.randn_like(middle)
        apart = 0.5 * (middle.square() + spread.exp() - 1 - spread).sum(1).mean()
        error = (net["decoder"](z) - x).square().sum(1).mean()
        return error + 0.05 * apart, {"apart": apart, "error": error}

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 200)


@healthy()
def two_views_of_a_point(folder):
    seeded(144)
    net, loss_of, _ = views(0.1)
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 150)


@healthy()
def two_tasks_with_weights_of_their_own(folder):
    """Each task's weight is learned (Kendall et al. 2018): the loss goes below zero."""
    seeded(145)
    net = nn.ModuleDict({"body": dense(6, 48, 24), "value": nn.Linear(24, 1), "side": nn.Linear(24, 2)})
    doubt = net["doubt"] = nn.ParameterList([torch.zeros(2)])
    way = torch.randn(6, 1)

    def errors(step):
        x = torch.randn(64, 6)
        h = net["body"](x)
        value, side = (x @ way).sin(), (x[:, 0] > 0).long()
        return torch.stack([F.mse_loss(net["value"](h), value), F.cross_entropy(net["side"](h), side)])

    def loss_of(step):
        return ((-doubt[0]).exp() * errors(step) + doubt[0]).sum()

    score = score_of(lambda step: errors(step).sum())
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 200, score=score)


@healthy()
def game_of_least_squares(folder):
    seeded(146)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=nn.GELU)
    of_make, of_judge = (optim.Adam(m.parameters(), 1e-3, betas=(0.5, 0.9)) for m in (make, judge))
    return play(
        folder, make, judge, of_make, of_judge,
        lambda real, fake: (judge(real) - 1).square().mean() + judge(fake).square().mean(),
        lambda fake: (judge(fake) - 1).square().mean(), 200,
    )  # fmt: skip


@healthy(0.5)
def walk_to_the_corner(folder):
    """Actor and critic on a grid of 4 x 4: the return rises, and the loss, a sum over the walk, rises with it."""
    seeded(147)
    net, cells = nn.ModuleDict({"actor": nn.Linear(16, 4), "critic": nn.Linear(16, 1)}), torch.eye(16)
    moves = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])

    def walk():
        """The cells and moves of 16 walks of 12 steps, and what came after each move: 1 for the corner."""
        at, seen = torch.zeros(16, 2, dtype=torch.long), []
        for _ in range(12):
            cell = cells[4 * at[:, 0] + at[:, 1]]
            with torch.no_grad():
                move = torch.distributions.Categorical(logits=net["actor"](cell)).sample()
            at = (at + moves[move]).clamp(0, 3)
            seen.append((cell, move, (at == 3).all(1).float()))
        cell, move, reward = (torch.stack(part) for part in zip(*seen, strict=True))
        return cell, move, reward.flip(0).cumsum(0).flip(0)

    def loss_of(step):
        cell, move, after = walk()
        value = net["critic"](cell)[..., 0]
        chosen = torch.distributions.Categorical(logits=net["actor"](cell)).log_prob(move)
        loss = (0.5 * (after - value).square() - chosen * (after - value.detach())).sum(0).mean()
        return loss, {"episode_return": after[0].mean()}

    def score():
        return 12 - mean([float(walk()[2][0].mean()) for _ in range(10)])

    return fit(folder, net, optim.Adam(net.parameters(), 3e-2), loss_of, 150, score=score)


@healthy()
def margins_that_nearly_hold(folder):
    """A hinge loss that begins near zero: most batches have no gradient at all."""
    seeded(148)
    net, way = nn.Linear(10, 1), torch.randn(10)
    with torch.no_grad():
        net.weight.copy_(2 * way)
        net.weight[0, :2] += 2

    def loss_of(step):
        x = torch.randn(8, 10)
        x = x[(x @ way).abs() > 1.5]
        return F.relu(1 - net(x)[:, 0] * (x @ way).sign()).sum() / 8

    return fit(folder, net, optim.SGD(net.parameters(), 0.05), loss_of, 250, score=score_of(loss_of, 200))


@healthy()
def preferences(folder):
    """DPO: the better of two answers against a frozen copy; the loss begins at the logarithm of 2."""
    seeded(149)
    net, frozen, taste = dense(8, 32, 6), dense(8, 32, 6), torch.randn(8, 6)
    frozen.load_state_dict(net.state_dict())

    def loss_of(step):
        x, two = torch.randn(64, 8), torch.rand(64, 6).argsort(1)[:, :2]
        liked = (x @ taste).gather(1, two).diff(dim=1).sign()
        with torch.no_grad():
            before = frozen(x).log_softmax(1)
        gain = (net(x).log_softmax(1) - before).gather(1, two).diff(dim=1)
        return -F.logsigmoid(0.5 * liked * gain).mean()

    return fit(folder, net, optim.AdamW(net.parameters(), 3e-3), loss_of, 150)
