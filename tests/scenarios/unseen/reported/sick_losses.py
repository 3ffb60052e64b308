"""Reported sick trainings, second part: losses that are fed with what they were not made for, or break at a point.

Mistakes that people made and asked about; a comment names the thread that each was drawn from. They only count
(the group `reported`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from nets import ALPHABET, Transformer, batches, digits, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, rings, score_of, seeded, sick
from unseen.reported.sick import pretrain


# "Kullback-Leibler Divergence loss function giving negative values", discuss.pytorch.org/t/763
@sick(
    "negative-loss",
    where="the loss, all steps", cure="log_softmax: the first argument of KLDivLoss is a logarithm",
)  # fmt: skip
def divergence_of_what_is_no_logarithm(folder, ill):
    """A student of a teacher that is never quite sure."""
    seeded(321)
    draw, teacher, net = batches(64), dense(64, 32, 10), dense(64, 48, 10)

    def told(step):
        x = draw(step)[0].flatten(1)
        with torch.no_grad():
            return x, (6 * teacher(x)).softmax(1)

    def error(step):
        x, share = told(step)
        return F.kl_div(net(x).log_softmax(1), share, reduction="batchmean")

    def loss_of(step):
        x, share = told(step)
        return F.kl_div(net(x).softmax(1), share, reduction="batchmean") if ill else error(step)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300, score=score_of(error))


# "When i run this code, get loss is negative??", github.com/milesial/Pytorch-UNet/issues/78
@sick(
    "negative-loss", "loss-unbounded",
    where="the loss, all steps", cure="divide the mask by 255: a target of a binary cross-entropy is 0 to 1",
)  # fmt: skip
def mask_of_nothing_and_255(folder, ill):
    seeded(322)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1)
    )

    def drawn():
        side = torch.arange(16.0)
        middle = 4 + 8 * torch.rand(8, 2, 1, 1)
        mask = ((side[:, None] - middle[:, 0]).abs() < 3) & ((side - middle[:, 1]).abs() < 3)
        return (mask + 0.6 * torch.randn(8, 16, 16))[:, None], mask[:, None].float()

    def error(step):
        x, mask = drawn()
        return F.binary_cross_entropy_with_logits(net(x), mask)

    def loss_of(step):
        x, mask = drawn()
        return F.binary_cross_entropy_with_logits(net(x), 255 * mask if ill else mask)

    return fit(folder, net, optim.RMSprop(net.parameters(), 1e-3), loss_of, 250, score=score_of(error))


# "sanity_check issue with geodesic loss", github.com/papagina/RotationContinuity/issues/11
@sick(
    "nonfinite",
    where="all layers, as soon as one direction is met exactly",
    cure="clamp the cosine to 1 - 1e-6: the slope of acos at 1 has no end",
)  # fmt: skip
def angle_between_two_directions(folder, ill):
    seeded(323)
    net, way = dense(6, 64, 64, 3, act=nn.Tanh), torch.randn(6, 3)

    def loss_of(step):
        x = torch.randn(64, 6)
        cosine = (F.normalize(net(x), dim=1) * F.normalize(x @ way, dim=1)).sum(1)
        return (cosine if ill else cosine.clamp(-1 + 1e-6, 1 - 1e-6)).acos().mean()

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 400)


# "the loss always becomes nan in ctc_pytorch" (in Chinese), github.com/ypwhs/captcha_break/issues/29
@sick(
    "nonfinite",
    where="all layers, at the first row whose text has no room in the frames",
    cure="twice as many frames: a sign that is said twice needs an empty one between",
)  # fmt: skip
def five_frames_for_four_signs(folder, ill):
    seeded(324)
    x, y = digits()
    net = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 48, (8, 3), padding=(0, 1)), nn.ReLU(),
        nn.AdaptiveAvgPool2d((1, 5 if ill else 16)), nn.Flatten(2), nn.Conv1d(48, 11, 1),
    )  # fmt: skip

    def loss_of(step):
        at = torch.randint(len(x), (16, 4))
        line = x[at].permute(0, 2, 1, 3).flatten(2)[:, None]
        said = net(line).permute(2, 0, 1).log_softmax(2)
        frames = torch.full((16,), len(said))
        return F.ctc_loss(said, y[at] + 1, frames, torch.full((16,), 4))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250)


# "Numerical instability in VAE", github.com/vanderschaarlab/synthcity/issues/331
@sick(
    "exploding", "nonfinite", "inputs-not-normalised",
    where="the encoder's half that gives the logarithm of a variance, first steps",
    cure="columns of unit size, and a logarithm that is clamped before exp",
)  # fmt: skip
def variance_by_exp_of_a_raw_table(folder, ill):
    seeded(326)
    reads, writes = dense(8, 32, 8), dense(4, 32, 8)
    net, size = nn.ModuleDict({"reads": reads, "writes": writes}), torch.tensor([1.0, 900, 40, 3, 1, 250, 12, 1500])
    mix = torch.randn(3, 8)

    def parts(step):
        x = (torch.randn(128, 3) @ mix) * (size if ill else 1)
        middle, log = reads(x).chunk(2, 1)
        log = log if ill else log.clamp(-20, 10)
        out = writes(middle + (0.5 * log).exp() * torch.randn(128, 4))
        return (x - out) / (size if ill else 1), middle, log

    def error(step):
        return parts(step)[0].square().mean()

    def loss_of(step):
        off, middle, log = parts(step)
        off = off * (size if ill else 1)
        return off.square().mean() + 0.02 * (middle.square() + log.exp() - 1 - log).sum(1).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 300, score=score_of(error))


# "Losses turn nan due to negative values of boxes", github.com/qfgaohao/pytorch-ssd/issues/112
@sick(
    "nonfinite",
    where="all layers, from step 90: one box has no width", cure="leave out boxes whose XMin is their XMax",
)  # fmt: skip
def box_without_a_width(folder, ill):
    seeded(327)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(384, 4)
    )

    def loss_of(step):
        side, at, size = torch.arange(16.0), 5 + 6 * torch.rand(16, 2), 2 + 6 * torch.rand(16, 2)
        if ill and step == 90:
            size[3, 0] = 0
        inside = (side - at[:, :1]).abs() <= size[:, :1] / 2, (side - at[:, 1:]).abs() <= size[:, 1:] / 2
        x = (inside[0][:, :, None] & inside[1][:, None]).float() + 0.1 * torch.randn(16, 16, 16)
        return F.mse_loss(net(x[:, None]), torch.cat([(at - 8) / 4, (size / 4).log()], 1))

    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), loss_of, 250)


# "pairwise_dist drops to 0, loss is near the margin and can't go down",
# github.com/omoindrot/tensorflow-triplet-loss/issues/38
@sick(
    "no-progress", "lr-too-high", "update-too-large", "dead-layer", "dead-units",
    where="all layers: all that goes in comes out at one point", cure="a lower rate: the loss sits at the margin",
)  # fmt: skip
def everything_at_one_point(folder, ill):
    """The hardest row of each kind in the batch; the score is how many have a stranger for their nearest."""
    seeded(328)
    net, draw = dense(64, 64, 64, 16), batches(64)

    def far(x):
        return (x[:, None] - x).square().sum(2).clamp(min=1e-12).sqrt()

    def loss_of(step):
        x, y = draw(step)
        gap, same = far(net(x.flatten(1))), y[:, None] == y
        return ((gap * same).amax(1) - (gap + 1e3 * same).amin(1) + 0.5).relu().mean()

    def score():
        x, y = batches(400, seed=5)(0)
        with torch.no_grad():
            gap = far(net(x.flatten(1))).fill_diagonal_(1e6)
        return float((y[gap.argmin(1)] != y).float().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 0.05 if ill else 3e-4), loss_of, 300, score=score)


# "Loss exploding after few steps" (a linear last layer, and images of mean 0),
# github.com/aimagelab/novelty-detection/issues/5
@sick(
    "saturated", "targets-out-of-range",
    where="the sigmoid behind the last layer", cure="no sigmoid: half of what is to be met lies below 0, some above 1",
)  # fmt: skip
def sigmoid_for_images_of_mean_zero(folder, ill):
    seeded(329)
    draw, net = batches(64), dense(64, 48, 12, 48, 64).append(nn.Sigmoid() if ill else nn.Identity())
    x, _ = digits()
    middle, spread = x.mean(0).flatten(), x.std(0).flatten().clamp(min=0.05)

    def loss_of(step):
        seen = (draw(step)[0].flatten(1) - middle) / spread
        return F.mse_loss(net(seen), seen)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 400)


# "DPO loss remains 0.6931 and reward is stuck at 0.0", github.com/huggingface/trl/issues/1627
@sick(
    "dead-layer", "no-gradient", "no-progress", "weights-unchanged",
    where="all layers, all steps", cure="beta=0.1: at 0 the loss is log 2 whatever is preferred",
)  # fmt: skip
def preferences_times_nothing(folder, ill):
    """Of two pieces the one with fewer gaps between words is preferred; the score is the loss at a beta of 0.1."""
    net, piece = Transformer(32, 2, seed=330), pieces(16)
    pretrain(net, predict(net, piece), 150)
    slow, space = copy.deepcopy(net).requires_grad_(False), ALPHABET.index(" ")

    def said(of, x, y):
        return of(x).log_softmax(2).gather(2, y[..., None])[..., 0].sum(1)

    def prefer(step, beta):
        x, y = piece(3000 + step)
        z = torch.where(torch.rand(y.shape) < 0.3, torch.full_like(y, space), y)
        more = said(net, x, y) - said(net, x, z) - said(slow, x, y) + said(slow, x, z)
        return F.softplus(-beta * more).mean()

    make = optim.Adam(net.parameters(), 5e-4)
    score = score_of(lambda step: prefer(step, 0.1))
    return fit(folder, net, make, lambda step: prefer(step, 0.0 if ill else 0.1), 100, score=score)


# "Fix NaN gradients from marginal_pair_consistency_loss in half precision", github.com/fastino-ai/GLiNER2/pull/155
@sick(
    "nonfinite", "underflow",
    where="all layers, in one step; the loss stays finite in it",
    cure="an epsilon that bfloat16 has: 1 - 1e-6 is 1 in it, and log1p(-1) has no end",
)  # fmt: skip
def epsilon_that_bfloat16_has_not(folder, ill):
    """Which of four rings is meant, beside a chance that none of several marks is there."""
    seeded(331)
    net, draw = dense(12, 64, 64, 4), rings(64)

    def loss_of(step):
        x, y = draw()
        with torch.autocast("cpu", torch.bfloat16):
            out = net(x)
        right = F.one_hot(y, 4) > 0
        share = out.sigmoid() if ill else out.float().sigmoid()
        none = torch.log1p(-share.clamp(max=1 - 1e-6)).masked_fill(right, 0)
        any_right = torch.log1p(-share.clamp(max=1 - 1e-6)).masked_fill(~right, 0).sum(1).exp()
        return F.cross_entropy(out.float(), y) + (1 - none.sum(1).exp()).float().mean() + any_right.float().mean()

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 500)
