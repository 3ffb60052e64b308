"""Asked sick trainings, second part: losses and data.

They only count (the group `asked`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import batches, classify, cnn, mlp
from torch import nn, optim
from torch.nn import functional as F
from unseen import Outcome, dense, entropy_of, fit, rings, score_of, seeded, sick, waves
from unseen.reported.sick import rivals
from unseen.tasks import bandit, play


# "Why policy loss is negative?" (should the signs not be turned?), github.com/ikostrikov/pytorch-a3c/issues/30
@sick(
    "wrong-sign", "no-progress",
    where="all layers, all steps: what pays is made rarer", cure="minus the logarithm times the advantage",
)  # fmt: skip
def policy_that_climbs_down(folder, ill):
    seeded(521)
    net, best = dense(5, 32, 4), torch.randn(5, 4)

    def loss_of(step):
        state = torch.randn(128, 5)
        kind = torch.distributions.Categorical(logits=net(state))
        action = kind.sample()
        paid = (state @ best).gather(1, action[:, None])[:, 0] + 0.1 * torch.randn(128)
        gain = (kind.log_prob(action) * (paid - paid.mean())).mean()
        return (gain if ill else -gain), {"return": paid.mean()}

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 300, score=bandit(net, best), higher_is_better={"return": True})


# "BUG of DCGAN in PaddleGAN" (a sigmoid, and a loss that has its own; in Chinese),
# github.com/PaddlePaddle/Paddle/issues/22085
@sick(
    "softmax-twice", "generator-starves", "no-progress", "saturated",
    where="the judge's last layer, all steps", cure="no sigmoid before a loss of logits",
)  # fmt: skip
def judge_that_is_squashed_twice(folder, ill) -> Outcome:
    make, judge = rivals(522)

    def said(x):
        return judge(x).sigmoid() if ill else judge(x)

    def judge_loss(real, made):
        return F.softplus(-said(real)).mean() + F.softplus(said(made)).mean()

    def make_loss(made):
        return F.softplus(-said(made)).mean()

    of_make, of_judge = (optim.Adam(net.parameters(), 1e-3, (0.5, 0.9)) for net in (make, judge))
    return play(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500)


# "one class training" (a softmax over one column is 1), github.com/ultralytics/yolov3/issues/191
@sick(
    "dead-layer", "weights-unchanged", "softmax-twice", "no-progress",
    where="all layers, all steps: the gradient is zero", cure="a sigmoid for one output, a softmax for several",
)  # fmt: skip
def softmax_over_one_column(folder, ill):
    seeded(523)
    net, draw = dense(12, 32, 32, 1), rings(64, classes=2)

    def loss_of(step):
        x, y = draw()
        share = F.softmax(net(x), 1) if ill else net(x).sigmoid()
        return F.binary_cross_entropy(share[:, 0], y.float())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250)


class Spread(nn.Module):
    """Layers over the nodes of a graph, each a linear one behind the mean of the neighbours; `[N, size]`."""

    def __init__(self, size, width, kinds, depth, seed, around=False):
        super().__init__()
        seeded(seed)
        links = (torch.rand(160, 160) < 0.05).float()
        links = ((links + links.T + torch.eye(160)) > 0).float()
        self.register_buffer("mean", links / links.sum(1, keepdim=True))
        self.first, self.last = nn.Linear(size, width), nn.Linear(width, kinds)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.around = around

    def forward(self, x):
        h = self.first(x).relu()
        for layer in self.layers:
            new = layer(self.mean @ h).relu()
            h = h + new if self.around else new
        return self.last(h)


# "Fix bug softmax" (one before a CrossEntropyLoss), github.com/mlelarge/graph_neural_net/pull/37
@sick(
    "softmax-twice",
    where="the last layer, all steps", cure="hand the logits to cross_entropy",
)  # fmt: skip
def nodes_named_by_a_softmax_of_a_softmax(folder, ill):
    net = Spread(12, 32, 6, 1, seed=524, around=True)
    way = torch.randn(12, 6)

    def loss_of(step):
        x = torch.randn(160, 12)
        out = net(x)
        return F.cross_entropy(out.softmax(1) if ill else out, (x @ way).argmax(1))

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 250)


# "NLLLoss" (behind a softmax: the loss is always negative),
# github.com/AnubhavGupta3377/Text-Classification-Models-Pytorch/issues/9
@sick(
    "negative-loss",
    where="the last layer, all steps", cure="log_softmax before nll_loss",
)  # fmt: skip
def subjects_by_a_share_without_its_logarithm(folder, ill):
    seeded(525)
    net = nn.Sequential(nn.EmbeddingBag(400, 24, mode="mean"), nn.Linear(24, 30))
    usual = torch.randn(30, 400).mul(1.5).softmax(1)

    def draw():
        y = torch.randint(30, (64,))
        return torch.multinomial(usual[y], 16), y

    def loss_of(step):
        x, y = draw()
        return F.nll_loss(net(x).softmax(1) if ill else net(x).log_softmax(1), y)

    score = score_of(entropy_of(net, draw), 4)
    return fit(folder, net, optim.SGD(net.parameters(), 0.5, momentum=0.9), loss_of, 400, score=score)


def painted(rows, empty):
    """Squares on a dim ground, and where they are; some images have none. `[B, 1, 12, 12]` twice."""
    at = torch.randint(0, 8, (rows, 2))
    place = torch.arange(12)
    inside = ((place[None] - at[:, :1]).clamp(0, 4) == place[None] - at[:, :1])[:, :, None]
    inside = inside & ((place[None] - at[:, 1:]).clamp(0, 4) == place[None] - at[:, 1:])[:, None]
    mask = (inside & (torch.rand(rows) >= empty)[:, None, None]).float()[:, None]
    return mask * 0.8 + 0.4 * torch.randn(rows, 1, 12, 12), mask


# "Segmentation: dice losses are not computed properly when patch does not include every class",
# github.com/NifTK/NiftyNet/issues/249
@sick(
    "nonfinite",
    where="the loss, at the first image without a square: its weight is one over nothing",
    cure="a small number in the denominators",
)  # fmt: skip
def overlap_with_an_empty_mask(folder, ill):
    seeded(526)
    net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
                        nn.Conv2d(12, 1, 3, padding=1))  # fmt: skip
    small = 0.0 if ill else 1.0

    def loss_of(step):
        x, mask = painted(24, 0.002)
        found = net(x).sigmoid()
        both = torch.stack([mask, 1 - mask]).flatten(2)
        share = torch.stack([found, 1 - found]).flatten(2)
        weight = 1 / (both.sum(2) + small).square()
        met = (weight * (both * share).sum(2)).sum(0)
        return 1 - (2 * met / (weight * (both + share).sum(2)).sum(0)).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250)


# "Fix nan gradients in NFW and TNFW" (torch.where does not keep NaN out), github.com/Ciela-Institute/caustics/pull/83
@sick(
    "nonfinite",
    where="all layers, the first step: the loss is finite, its gradient is not",
    cure="keep the root's argument positive before where, not behind it",
)  # fmt: skip
def profile_of_two_branches(folder, ill):
    seeded(527)
    net, way = dense(4, 32, 1, act=nn.Tanh), torch.randn(4)

    def profile(x):
        inner, outer = 1 - x.square(), x.square() - 1
        if not ill:
            inner, outer = inner.clamp(min=1e-3), outer.clamp(min=1e-3)
        return torch.where(x < 1, 1 - 0.5 * inner.sqrt(), 1 + 0.5 * outer.sqrt())

    def loss_of(step):
        x, r = torch.randn(64, 4), 0.3 + 2 * torch.rand(64)
        with torch.no_grad():
            seen = torch.nan_to_num(profile(r * (0.5 * (x @ way).tanh()).exp()))
        return F.mse_loss(profile(r * net(x)[:, 0].exp()), seen)

    def score():
        x = torch.randn(512, 4)
        with torch.no_grad():
            return float(F.mse_loss(net(x)[:, 0], 0.5 * (x @ way).tanh()))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250, score=score)


# "Negative loss" (the learned weights of the losses are negative), github.com/aharley/simple_bev/issues/13
@sick(
    "negative-loss", "loss-unbounded", "exploding", "weight-growth", "wrong-sign", "no-progress",
    where="the weights of the two losses, which fall without end, and then all layers",
    cure="exp(-s) times the loss, plus s (Kendall et al. 2018)",
)  # fmt: skip
def weights_of_losses_that_fall_below_zero(folder, ill):
    seeded(528)
    net, draw, other = dense(6, 48, 2, act=nn.SiLU), waves(64), torch.randn(6)
    net.register_parameter("weights", nn.Parameter(torch.ones(2) if ill else torch.zeros(2)))

    def two():
        x, y = draw()
        out = net(x)
        return torch.stack([F.mse_loss(out[:, :1], y), F.mse_loss(out[:, 1], (x @ other).cos())])

    def loss_of(step):
        losses = two()
        return (net.weights * losses).sum() if ill else ((-net.weights).exp() * losses + net.weights).sum()

    score = score_of(lambda step: two().sum(), 4)
    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 400, score=score)


# "Linear regression in Python blows up gradients for larger values of x in y = mx + c" (in Spanish),
# mejorcodigo.com/p/45698.html
@sick(
    "inputs-not-normalised", "exploding", "nonfinite", "lr-too-high", "update-too-large", "weight-growth",
    where="the only layer, from the first steps: each overshoots more than the last",
    cure="columns of mean 0 and deviation 1",
)  # fmt: skip
def line_through_values_up_to_a_hundred(folder, ill):
    seeded(529)
    net = nn.Linear(1, 1)

    def loss_of(step):
        x = 100 * torch.rand(64, 1)
        y = 0.5 * x + 3 + 0.1 * torch.randn(64, 1)
        return F.mse_loss(net(x if ill else (x - 50) / 29), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.01), loss_of, 300)


# "IOU=0.000000 occurs all the way", github.com/AlexeyAB/darknet/issues/5429
@sick(
    "dead-layer", "no-progress", "weights-unchanged", "vanishing",
    where="all layers, all steps: boxes that do not meet give no gradient",
    cure="a loss that knows how far apart they are (GIoU, Rezatofighi et al. 2019)",
)  # fmt: skip
def boxes_that_never_meet(folder, ill):
    seeded(530)
    net, way = dense(8, 48, 4), torch.randn(8, 2)
    nn.init.zeros_(net[-1].bias)

    def loss_of(step):
        x = torch.randn(64, 8)
        centre = 6 + (x @ way).tanh()
        low, high = centre - 1, centre + 1
        out = net(x)
        mine_low, mine_high = out[:, :2] - F.softplus(out[:, 2:]), out[:, :2] + F.softplus(out[:, 2:])
        met = (torch.minimum(high, mine_high) - torch.maximum(low, mine_low)).clamp(min=0).prod(1)
        union = 4 + (mine_high - mine_low).prod(1) - met
        around = (torch.maximum(high, mine_high) - torch.minimum(low, mine_low)).prod(1)
        overlap = met / union
        return (1 - overlap if ill else 1 - overlap + (around - union) / around).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 300)


# "Fix double-normalization bug in train_input_pipeline version of DRAW", github.com/pkmital/pycadl/pull/5
@sick(
    "inputs-not-normalised", "update-too-small", "no-progress",
    where="the first layer, all steps: nothing larger than a 255th comes in", cure="divide by 255 once",
)  # fmt: skip
def divided_by_255_and_again(folder, ill):
    net, draw = mlp(48, seed=531), batches(64)

    def loss_of(step):
        x, y = draw(step)
        return F.cross_entropy(net(x / 255 if ill else x), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), loss_of, 250)


# "Normalization, ToTensor, PILToTensor" (a mean of 127.5 taken from what is between 0 and 1),
# github.com/choyingw/SynergyNet/issues/19
@sick(
    "inputs-not-normalised", "no-progress",
    where="the first layer, all steps: every pixel is near to -1", cure="a mean of 0.5 and a deviation of 0.5",
)  # fmt: skip
def mean_of_bytes_taken_from_shares(folder, ill):
    net, draw = cnn(seed=532), batches(64)
    loss = classify(net, lambda step: ((draw(step)[0] - 127.5) / 128, draw(step)[1]))
    cured = classify(net, lambda step: ((draw(step)[0] - 0.5) / 0.5, draw(step)[1]))
    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), loss if ill else cured, 200)
