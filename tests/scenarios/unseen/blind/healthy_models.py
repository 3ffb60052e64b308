"""Blind healthy trainings, second part: architectures and optimizers. An expert has nothing to say of any of them.

They only count (the group `blind`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import Recurrent, Transformer, batches, classify, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, rings, score_of, seeded, square_of, waves


@healthy(0.3)
def thirty_layers_that_normalise_themselves(folder):
    """SELU (Klambauer et al. 2017)."""
    seeded(80)
    net = nn.Sequential(nn.Flatten(), *dense(64, *[32] * 29, 10, act=nn.SELU))
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
    make = optim.SGD(net.parameters(), 0.005, momentum=0.9)
    return fit(folder, net, make, classify(net, batches(64)), 200)


@healthy(0.3)
def two_images_a_batch_and_a_norm_over_groups(folder):
    seeded(81)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        *(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(256, 10)),
    )
    score = score_of(classify(net, batches(256, seed=9)), 2)
    make = optim.SGD(net.parameters(), 2e-3, momentum=0.9)
    return fit(folder, net, make, classify(net, batches(2)), 500, score=score)


@healthy(0.3)
def long_memory_clipped_in_every_step(folder):
    """A threshold that every norm is above: Adam divides by the size of what comes out."""
    net = Recurrent(nn.LSTM, seed=82)

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 0.05)

    make = optim.Adam(net.parameters(), 5e-3)
    return fit(folder, net, make, predict(net, pieces(8)), 200, before_step=clipped)


@healthy(0.3)
def norm_behind_the_sum_with_a_warm_up(folder):
    """The transformer of 2017: large norms at first, and a rate that comes up."""
    net = Transformer(seed=83, pre=False, tied=True)
    make = optim.AdamW(net.parameters(), 5e-3, betas=(0.9, 0.98))
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min((step + 1) / 30, (30 / (step + 1)) ** 0.5))
    return fit(folder, net, make, predict(net, pieces(8)), 150, schedule=plan, clip="ClipByGlobalNorm(1.0)")


@healthy(0.3)
def body_that_thaws_from_the_top(folder):
    """Gradual unfreezing: a third of the layers learns from the start, the others 80 and 160 steps later."""
    net = mlp(48, depth=2, seed=84)
    layers = [part for part in net if isinstance(part, nn.Linear)]
    draw = batches(64)
    loss = classify(net, draw)

    def loss_of(step):
        for i, layer in enumerate(layers[::-1]):
            layer.requires_grad_(step >= 80 * i)
        return loss(step)

    return fit(folder, net, optim.AdamW(net.parameters(), 3e-3), loss_of, 300)


class Averaged(nn.Module):
    """Graph layers that average over neighbours and keep what a node was."""

    def __init__(self, way, width=24):
        super().__init__()
        self.register_buffer("way", way)
        self.stem, self.head = nn.Linear(8, width), nn.Linear(width, 3)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))

    def forward(self, x):
        h = self.stem(x)
        for layer in self.layers:
            h = h + (self.way @ layer(h)).relu()
        return self.head(h)


@healthy(0.3)
def nodes_of_a_graph_of_which_half_are_named(folder):
    seeded(85)
    kind = torch.arange(120) % 3
    near = torch.rand(120, 120) < torch.where(kind[:, None] == kind, 0.2, 0.05)
    way = (near | near.T).float().fill_diagonal_(1)
    net = Averaged(way / way.sum(1, keepdim=True))
    x, named = torch.randn(120, 8) + F.one_hot(kind, 8), torch.rand(120) < 0.5

    def loss_of(step):
        return F.cross_entropy(net(x)[named], kind[named])

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3, weight_decay=5e-4), loss_of, 200)


@healthy(0.3)
def hashed_words_under_adagrad(folder):
    """A linear model of bags of words: most rows of the table rest in most steps."""
    seeded(86)
    net = nn.EmbeddingBag(2000, 1, mode="sum")
    nn.init.zeros_(net.weight)
    true = torch.randn(2000)
    odds = 1 / torch.arange(1, 2001.0)

    def loss_of(step):
        words = torch.multinomial(odds, 64 * 12, replacement=True).view(64, 12)
        return F.binary_cross_entropy_with_logits(net(words)[:, 0], (true[words].sum(1) > 0).float())

    return fit(folder, net, optim.Adagrad(net.parameters(), 0.5), loss_of, 400)


@healthy(0.3)
def rate_down_to_a_tenth_twice(folder):
    net = mlp(64, norm=True, seed=87)
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    plan = optim.lr_scheduler.MultiStepLR(make, [150, 250])
    return fit(folder, net, make, classify(net, batches(32)), 350, schedule=plan)


@healthy(0.3)
def rprop_on_the_whole_set(folder):
    seeded(88)
    net = dense(6, 32, 1, act=nn.Tanh)
    x, y = waves(512)()
    return fit(folder, net, optim.Rprop(net.parameters(), 1e-3), lambda step: F.mse_loss(net(x), y), 200)


@healthy(0.3)
def adadelta_as_it_comes(folder):
    net = mlp(48, seed=89)
    return fit(folder, net, optim.Adadelta(net.parameters()), classify(net, batches(64)), 300)


@healthy(0.3)
def decay_of_one_at_a_small_rate(folder):
    """AdamW with a strong decay that suits it: the weights shrink, and the task is learned."""
    seeded(90)
    net, draw = dense(12, 64, 64, 4), rings(128)
    return fit(folder, net, optim.AdamW(net.parameters(), 3e-3, weight_decay=1.0), entropy_of(net, draw), 400)


@healthy(0.3)
def only_biases_and_head_are_tuned(folder):
    """BitFit: all other weights are frozen, and meant to be."""
    net = mlp(128, seed=91)
    draw, moved = classify(net, batches(64)), optim.Adam(net.parameters(), 3e-3)
    for step in range(60):
        moved.zero_grad()
        draw(step).backward()
        moved.step()
    head = nn.Linear(128, 2)
    net[-1] = head
    for name, p in net.named_parameters():
        p.requires_grad_("bias" in name or p is head.weight)
    images = batches(64, seed=3)

    def loss_of(step):
        x, y = images(step)
        return F.cross_entropy(net(x), y % 2)

    make = optim.AdamW([p for p in net.parameters() if p.requires_grad], 3e-3)
    return fit(folder, net, make, loss_of, 200)


@healthy(0.3)
def blocks_that_are_left_out_at_random(folder):
    """Stochastic depth: half of the blocks rest in each step."""
    seeded(92)
    blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(8))
    net = nn.ModuleDict({"stem": nn.Linear(64, 32), "blocks": blocks, "head": nn.Linear(32, 10)})
    draw = batches(64)

    def loss_of(step):
        x, y = draw(step)
        h = net["stem"](x.flatten(1))
        for block in blocks:
            if torch.rand(()) < 0.5:
                h = h + 2 * block(h)
        return F.cross_entropy(net["head"](h), y)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300)


@healthy(0.3)
def one_head_of_three_a_batch(folder):
    """Three tasks in turn over one body: a head has no gradient in two steps of three."""
    seeded(93)
    net = nn.ModuleDict({"body": dense(6, 48, 48), "heads": nn.ModuleList(nn.Linear(48, 1) for _ in range(3))})
    draws = [waves(64) for _ in range(3)]

    def loss_of(step):
        x, y = draws[step % 3]()
        return F.mse_loss(net["heads"][step % 3](net["body"](x).relu()), y)

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 450)


@healthy(0.3)
def choice_that_cools_down(folder):
    """A code of categories by Gumbel's softmax, its temperature from 2 to 0.3."""
    seeded(94)
    net = nn.ModuleDict({"encode": dense(64, 48, 6 * 8), "decode": dense(6 * 8, 48, 64)})
    draw = batches(64)

    def loss_of(step):
        x = draw(step)[0].flatten(1)
        code = F.gumbel_softmax(net["encode"](x).view(-1, 6, 8), tau=max(0.3, 2 - step / 150))
        return F.mse_loss(net["decode"](code.flatten(1)), x)

    return fit(folder, net, optim.RMSprop(net.parameters(), 1e-3), loss_of, 400)


@healthy(0.3)
def nesterov_for_two_thousand_steps(folder):
    seeded(95)
    net, draw = dense(6, 48, 48, 1), waves(32)
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)
    return fit(folder, net, make, square_of(net, draw), 2000)


@healthy(0.3)
def averages_of_adam_that_are_rectified(folder):
    net = Recurrent(nn.GRU, seed=96)
    return fit(folder, net, optim.RAdam(net.parameters(), 0.01), predict(net, pieces(8)), 150)
