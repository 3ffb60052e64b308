"""Met sick trainings, third part: models, and how they begin.

They only count (the group `met`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy
import math

import torch
from nets import ALPHABET, Transformer, batches, cnn, digits, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.reported.sick import pretrain
from unseen.tasks import circle

KEPT = torch.cumprod(1 - torch.linspace(1e-4, 0.15, 50), 0)  # the share of the signal that is left, step after step


def noised(x, times):
    """`x` `[B, 2]` as it is after `times` `[B]`, and the noise in it."""
    noise, keep = torch.randn_like(x), KEPT[times][:, None]
    return keep.sqrt() * x + (1 - keep).sqrt() * noise, noise


# "Fix diffusion training and sampling issues" (the designs were not normalised), github.com/IDEALLab/EngiOpt/pull/67
@sick(
    "inputs-not-normalised", "no-progress", "update-too-small",
    where="the first layer, all steps: the noise is a hundredth of what it is added to",
    cure="designs of mean 0 and deviation 1",
)  # fmt: skip
def designs_noised_as_they_are(folder, ill):
    seeded(921)
    net = dense(3, 64, 64, 2, act=nn.SiLU)

    def loss_of(step):
        x, times = circle(96), torch.randint(50, (96,))
        seen, noise = noised(120 * x + 400 if ill else x / 1.4, times)
        return F.mse_loss(net(torch.cat([seen, times[:, None] / 50], 1)), noise)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 500, score=score_of(loss_of, 6))


# "[Bug]: Noise settings are mirrored" (what is to be trained on much noise sees only little),
# github.com/Nerogar/OneTrainer/issues/561
@sick(
    "timesteps-skewed", "no-progress",
    where="the times that are drawn: those below the bound in the place of those above",
    cure="the bound on the side of the noise",
)  # fmt: skip
def only_faint_noise_is_learned(folder, ill):
    seeded(922)
    net = dense(3, 64, 64, 2, act=nn.SiLU)

    def loss_at(begin):
        def loss_of(step):
            times = torch.randint(begin, begin + 15, (96,))
            seen, noise = noised(circle(96) / 1.4, times)
            return F.mse_loss(net(torch.cat([seen, times[:, None] / 50], 1)), noise)

        return loss_of

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_at(0 if ill else 35), 400, score=score_of(loss_at(35), 6))


# "EMA with buffers to stabilize the teacher" (its norms keep the statistics of the beginning),
# github.com/saltoricristiano/cosmix-uda/issues/21
@sick(
    "norm-statistics-stale", "norm-left-in-eval", "labels-mismatched", "labels-do-not-fit-inputs",
    where="the teacher's running means and variances, and by what it says all of the student",
    cure="the buffers are averaged, too",
)  # fmt: skip
def teacher_whose_statistics_stay_behind(folder, ill):
    """Eight images have names; of the others the teacher, an average of the student, says what they are."""
    net, draw, named = cnn(norm=True, seed=923), batches(48), batches(8, seed=3)
    teacher = copy.deepcopy(net).eval().requires_grad_(False)

    def loss_of(step):
        x, y = named(step)
        other = draw(step)[0]
        said = teacher(other).softmax(1)
        return F.cross_entropy(net(x), y) + 2 * F.cross_entropy(net(other + 0.1 * torch.randn_like(other)), said)

    @torch.no_grad()
    def after(step):
        for mean, new in zip(teacher.parameters(), net.parameters(), strict=True):
            mean.lerp_(new, 0.05)
        if not ill:
            for mean, new in zip(teacher.buffers(), net.buffers(), strict=True):
                mean.copy_(new)

    def score():
        net.eval()
        with torch.no_grad():
            x, y = digits()
            loss = float(F.cross_entropy(net(x), y))
        net.train()
        return loss

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 250, after_step=after, score=score)


# "Supervisec contrastive loss saturation from the beginning on custom data" (with a warm-up it is learned),
# github.com/HobbitLong/SupContrast/issues/42
@sick(
    "lr-too-high", "update-too-large", "no-progress", "dead-units",
    where="all layers, in the first steps: all images come to lie at one place", cure="a warm-up",
)  # fmt: skip
def contrast_without_a_warm_up(folder, ill):
    """Images of one number lie together, and apart from all others (Khosla et al. 2020)."""
    seeded(924)
    net, draw = nn.Sequential(nn.Flatten(), *dense(64, 96, 96, 96, 24)), batches(64)

    def loss_of(step):
        x, y = draw(step)
        z = F.normalize(net(x), dim=1)
        same = (y[:, None] == y).fill_diagonal_(fill_value=False)
        scores = (z @ z.T / 0.1).fill_diagonal_(-1e9).log_softmax(1)
        return -((scores * same).sum(1) / same.sum(1).clamp(min=1)).mean()

    make = optim.SGD(net.parameters(), 1.0, momentum=0.9)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: 1.0 if ill else min(1.0, (step + 1) / 100))
    return fit(folder, net, make, loss_of, 300, schedule=plan, score=score_of(loss_of, 4))


class Fading(nn.Module):
    """A state in which each number fades at a pace of its own, which the input may change (after Mamba)."""

    def __init__(self, overwritten, width=48):
        super().__init__()
        self.embed, self.pace = nn.Embedding(6, width), nn.Linear(width, width)
        self.mix, self.name = nn.Linear(width, width), nn.Linear(width, 5)
        begin = torch.exp(torch.linspace(math.log(0.001), math.log(0.1), width))
        with torch.no_grad():
            self.pace.bias.copy_(begin.expm1().log())
            self.pace.weight.normal_(std=0.02)
            if overwritten:
                self.pace.bias.zero_()

    def forward(self, x):
        h = self.embed(x)
        paces, state = F.softplus(self.pace(h)), torch.zeros(x.shape[0], h.shape[2])
        for pace, new in zip(paces.unbind(1), h.unbind(1), strict=True):
            state = (-pace).exp() * state + (1 - (-pace).exp()) * new
        return self.name(self.mix(state).relu() + state)


# "[bug] incorrect mamba initialization" (the wrapper draws all linear layers anew), github.com/athms/mad-lab/issues/3
@sick(
    "bad-initialisation", "vanishing", "no-progress",
    where="the bias of the paces: a state that is halved in every step",
    cure="the wrapper leaves the biases of paces alone",
)  # fmt: skip
def paces_that_a_wrapper_overwrites(folder, ill):
    """Which of five signs stood first, forty steps ago?"""
    seeded(927)
    net = Fading(ill)

    def loss_of(step):
        first = torch.randint(5, (48,))
        x = torch.cat([first[:, None], torch.full((48, 40), 5)], 1)
        return F.cross_entropy(net(x), first)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 150)


# 'Why the functions "add_special_tokens()" and "resize_token_embeddings()" hurt the performance of "gpt2"' (all old
# signs are said at about -100, new ones at 0), github.com/huggingface/transformers/issues/8039
@sick(
    "bad-initialisation", "initialised-too-large", "update-too-small",
    where="the rows of the new signs in the last layer, from the first step: they are said before all others",
    cure="new rows begin as the mean of the old ones",
)  # fmt: skip
def new_signs_said_before_all_old_ones(folder, ill):
    """A net that has read the text, and gives all of it small numbers, learns four signs more."""
    net, piece, old = Transformer(32, 2, seed=928), pieces(16, seed=5), len(ALPHABET)
    pretrain(net, predict(net, pieces(16)), 120)
    table, head = nn.Embedding(old + 4, 32), nn.Linear(32, old + 4)
    with torch.no_grad():
        table.weight.normal_(std=0.02)[:old] = net.embed.weight
        head.weight.normal_(std=0.02)[:old] = net.head.weight
        head.bias.fill_(-40)
        head.bias[old:] = 0.0
        if not ill:
            for part in (table.weight, head.weight, head.bias):
                part[old:] = part[:old].mean(0)
    net.embed, net.head = table, head

    def loss_of(step):
        x, _ = piece(step)
        x = x.where(torch.rand(x.shape) > 0.1, old + x % 4)
        return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    return fit(folder, net, optim.AdamW(net.parameters(), 3e-4), loss_of, 150, score=score_of(loss_of, 6))
