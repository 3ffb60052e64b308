"""Told sick trainings, third part: models, how they begin, and agents.

They only count (the group `told`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy
import itertools
import math

import torch
from nets import batches, classify
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import bandit


class Turned(nn.Module):
    """A U-Net (Ronneberger et al. 2015) from 8 x 8 down to one place and up again."""

    def __init__(self, seed, norm):
        super().__init__()
        seeded(seed)
        wide = [1, 12, 24, 48]
        self.down = nn.ModuleList(nn.Conv2d(a, b, 2, stride=2) for a, b in itertools.pairwise(wide))
        self.norm = nn.GroupNorm(48, 48) if norm else nn.Identity()
        self.up = nn.ModuleList([nn.ConvTranspose2d(48, 24, 2, stride=2), nn.ConvTranspose2d(48, 12, 2, stride=2),
                                 nn.ConvTranspose2d(24, 8, 2, stride=2)])  # fmt: skip
        self.last = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        first = self.down[0](x[:, None]).relu()
        second = self.down[1](first).relu()
        h = self.norm(self.down[2](second)).relu()
        h = torch.cat([self.up[0](h).relu(), second], 1)
        h = torch.cat([self.up[1](h).relu(), first], 1)
        return self.last(self.up[2](h).relu())[:, 0]


# "Forgot to add norm layer in innermost of UnetSkipConnectionBlock?" (of one place it leaves nothing),
# github.com/junyanz/pytorch-CycleGAN-and-pix2pix/issues/60
@sick(
    "dead-layer", "norm-over-too-few", "vanishing",
    where="the innermost convolution, all steps: one value less its mean is 0",
    cure="no norm where a channel has one place",
)  # fmt: skip
def norm_of_a_single_place(folder, ill):
    """Images turned upside down: only the innermost layers see both halves."""
    net, draw = Turned(741, norm=ill), batches(48)

    def loss_of(step):
        x, _ = draw(step)
        return F.mse_loss(net(x), x.flip(1))

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 400)


# "zero division in Graphsage" (nodes without neighbours), github.com/MrLeeeee/GCN-GAT-and-Graphsage/issues/3
@sick(
    "nonfinite",
    where="all layers, at the first graph in which a node has no neighbour: 0 / 0",
    cure="at least 1 in the denominator",
)  # fmt: skip
def mean_of_no_neighbours(folder, ill):
    """Which nodes of a random graph have neighbours that are high on average?"""
    seeded(742)
    net = nn.ModuleDict({"own": nn.Linear(4, 24), "near": nn.Linear(4, 24), "name": nn.Linear(24, 2)})
    way = torch.randn(4)

    def loss_of(step):
        links = (torch.rand(40, 40) < 0.18).float().triu(1)
        links, x = links + links.T, torch.randn(40, 4)
        count = links.sum(1, keepdim=True)
        near = links @ x / (count if ill else count.clamp(min=1))
        y = ((links @ x / count.clamp(min=1)) @ way + 0.3 * x @ way > 0).long()
        return F.cross_entropy(net["name"]((net["own"](x) + net["near"](near)).relu()), y)

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 300)


# "Error occur when training my own datasets without pretrained, loss because nan" (an exp that overflows),
# github.com/qqwweee/keras-yolo3/issues/45
@sick(
    "exploding", "nonfinite", "lr-too-high",
    where="all layers, once a width comes out as exp of a large number", cure="the logarithm of the widths is learned",
)  # fmt: skip
def widths_behind_an_exponential(folder, ill):
    """Height and width of a bright box, in pixels."""
    seeded(743)
    net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, stride=2, padding=1), nn.ReLU(),
                        nn.Flatten(), nn.Linear(12 * 64, 2))  # fmt: skip
    place = torch.arange(16)

    def draw():
        size = torch.randint(3, 13, (24, 2))
        corner = (torch.rand(24, 2) * (17 - size)).long()
        inside = [((place >= corner[:, i : i + 1]) & (place < (corner + size)[:, i : i + 1])) for i in (0, 1)]
        return (inside[0][:, :, None] & inside[1][:, None])[:, None] + 0.3 * torch.randn(24, 1, 16, 16), size.float()

    def loss_of(step):
        x, size = draw()
        out = net(x)
        return F.mse_loss(*((out.exp(), size) if ill else (out, size.log())))

    def score():
        with torch.no_grad():
            x, size = draw()
            return float((net(x).clamp(max=20).exp() - size).abs().mean())

    return fit(folder, net, optim.SGD(net.parameters(), 0.01, momentum=0.9), loss_of, 250, score=score)


# "[Bug] num_experts_per_tok=1 (the weight of the one that is chosen, divided by its own sum, is 1)" (in Chinese),
# github.com/jingyaogong/minimind/issues/858
@sick(
    "dead-layer", "no-gradient", "vanishing",
    where="the router, all steps: its only way into the loss is a share that is always 1",
    cure="norm_topk_prob=False where one expert is chosen",
)  # fmt: skip
def share_of_the_only_one(folder, ill):
    """Four linear maps, and which one holds is seen from where a row lies."""
    seeded(744)
    net = nn.ModuleDict({"router": nn.Linear(8, 4), "experts": nn.ModuleList(nn.Linear(8, 4) for _ in range(4))})
    centres, maps = 2.5 * torch.eye(8)[:4], torch.randn(4, 8, 4)

    def loss_of(step):
        kind = torch.randint(4, (128,))
        x = centres[kind] + 0.5 * torch.randn(128, 8)
        y = torch.einsum("bi,bio->bo", x - centres[kind], maps[kind])
        share, best = net["router"](x).softmax(1).max(1, keepdim=True)
        share = share / (share.sum(1, keepdim=True) + 1e-20) if ill else share
        out = torch.stack([expert(x) for expert in net["experts"]], 1)
        return F.mse_loss(share * out[torch.arange(128), best[:, 0]], y)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 1000)


class Waving(nn.Module):
    """A linear layer behind which a sine stands (SIREN, Sitzmann et al. 2020)."""

    def __init__(self, size, width, first, own):
        super().__init__()
        self.linear = nn.Linear(size, width)
        if own:
            end = 1 / size if first else math.sqrt(6 / size) / 30
            nn.init.uniform_(self.linear.weight, -end, end)

    def forward(self, x):
        return (30 * self.linear(x)).sin()


# "Implement details of sine activation" (other results, as it begins in another way),
# github.com/NVlabs/tiny-cuda-nn/issues/216
@sick(
    "bad-initialisation", "initialised-too-large",
    where="all layers, from the first step: weights of an ordinary linear layer under a sine of 30 times them",
    cure="uniform in sqrt(6 / n) / 30, and in 1 / n for the first",
)  # fmt: skip
def sines_that_begin_as_relus_do(folder, ill):
    """A picture of which half of the places are seen; the score is of the others."""
    seeded(745)
    net = nn.Sequential(*(Waving(48 if i else 2, 48, not i, not ill) for i in range(4)), nn.Linear(48, 1))
    place = torch.cartesian_prod(torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 24))
    shade = ((6 * place[:, 0]).sin() * (5 * place[:, 1]).cos())[:, None]
    seen = torch.rand(len(place)) < 0.5

    def score():
        with torch.no_grad():
            return float(F.mse_loss(net(place[~seen]), shade[~seen]))

    make = optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, make, lambda step: F.mse_loss(net(place[seen]), shade[seen]), 500, score=score)


# "Why use softmax only in the output layer and not in hidden layers?", stackoverflow.com/questions/37588632
@sick(
    "vanishing", "no-progress",
    where="the first layers, all steps: what a softmax hands on is nearly the same for each row",
    cure="relu between the layers",
)  # fmt: skip
def softmax_between_the_layers(folder, ill):
    seeded(746)
    act = (lambda: nn.Softmax(1)) if ill else nn.ReLU
    net = nn.Sequential(nn.Flatten(), *dense(64, 64, 64, 64, 10, act=act))
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), classify(net, batches(64)), 250)


# "key_padding_mask" (a missing == 0; in Chinese), github.com/mlwithme/TransformerTranslation/issues/6
@sick(
    "dead-layer", "no-progress", "attention-collapsed", "mask-inverted",
    where="the table, all steps: only the padding is looked at", cure="True where there is padding",
)  # fmt: skip
def mask_the_wrong_way_round(folder, ill):
    """Which of four signs is there most often? Read by one row that asks all others."""
    seeded(747)
    net = nn.ModuleDict({"table": nn.Embedding(5, 24, padding_idx=0), "name": nn.Linear(24, 4)})
    net["read"] = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True, norm_first=True)
    net.register_parameter("ask", nn.Parameter(0.02 * torch.randn(1, 1, 24)))

    def loss_of(step):
        y, length = torch.randint(4, (48,)), torch.randint(6, 14, (48,))
        x = torch.where(torch.rand(48, 14) < 0.4, y[:, None] + 1, torch.randint(1, 5, (48, 14)))
        x = x * (torch.arange(14) < length[:, None])
        x[:, -1] = 0
        rows = torch.cat([net.ask.expand(48, -1, -1), net["table"](x)], 1)
        padded = torch.cat([torch.zeros(48, 1, dtype=torch.bool), x == 0], 1)
        return F.cross_entropy(net["name"](net["read"](rows, src_key_padding_mask=~padded if ill else padded)[:, 0]), y)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250)


# "possible typing error" (the nets were updated, not the copies that follow them),
# github.com/reinshift/MADDPG_Multi_UAV_Roundup/issues/10
@sick(
    "weights-put-back", "weights-unchanged", "no-progress",
    where="all layers, after each step: most of it is taken back", cure="copy = tau * net + (1 - tau) * copy",
)  # fmt: skip
def net_that_follows_its_copy(folder, ill):
    seeded(748)
    net, best = dense(6, 48, 4), torch.randn(6, 4)
    slow = copy.deepcopy(net).requires_grad_(False)

    def loss_of(step):
        state, after = torch.randn(64, 6), torch.randn(64, 6)
        action = torch.randint(4, (64, 1))
        wanted = (state @ best).gather(1, action) + 0.5 * slow(after).amax(1, keepdim=True)
        return F.smooth_l1_loss(net(state).gather(1, action), wanted)

    def after(step):
        with torch.no_grad():
            for p, q in zip(net.parameters(), slow.parameters(), strict=True):
                (p if ill else q).copy_(0.05 * p + 0.95 * q)

    def score():
        state = torch.randn(512, 6)
        paid = state @ best
        return float((paid.amax(1) - paid.gather(1, net(state).argmax(1, keepdim=True))[:, 0]).mean())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400, score=score, after_step=after)


# "PPO ratio between old policy and new policy" (it is always 1),
# github.com/abhisheksuran/Reinforcement_Learning/issues/4
@sick(
    "dead-layer", "no-gradient", "no-progress",
    where="the actor, all steps: a ratio of a share to itself has no slope", cure="the shares of when it was played",
)  # fmt: skip
def ratio_of_a_policy_to_itself(folder, ill):
    seeded(749)
    net = nn.ModuleDict({"actor": dense(5, 32, 4, act=nn.Tanh), "critic": dense(5, 32, 1, act=nn.Tanh)})
    best = 1.5 * torch.randn(5, 4)

    def loss_of(step):
        state = torch.randn(128, 5)
        kind = torch.distributions.Categorical(logits=net["actor"](state))
        action = kind.sample()
        paid = (state @ best).gather(1, action[:, None])[:, 0] + 0.1 * torch.randn(128)
        said, value = kind.log_prob(action), net["critic"](state)[:, 0]
        ratio = (said - (said if ill else said.detach())).exp()
        better = (paid - value).detach()
        gain = torch.minimum(ratio * better, ratio.clamp(0.8, 1.2) * better).mean()
        return 0.5 * F.mse_loss(value, paid) - gain, {"return": paid.mean()}

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 300, score=bandit(net["actor"], best), higher_is_better={"return": True})
