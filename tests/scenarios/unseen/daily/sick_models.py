"""Daily sick trainings, second part: those that were drawn next. See `sick`."""

from __future__ import annotations

import copy

import torch
from nets import Transformer, batches, digits, pieces
from torch import nn, optim
from torch.nn import functional as F
from unseen import Outcome, dense, fit, mean, score_of, seeded, sick
from unseen.tasks import circle, diffusion

import gradwatch


# Adam with the decay that a recipe gives for AdamW, in a distillation.
@sick(
    "weights-shrink", "weight-decay-too-strong", "no-progress",
    where="all layers of the student, all steps: the decay goes through the moments", cure="AdamW",
)  # fmt: skip
def student_by_adam_with_the_decay_of_adamw(folder, ill):
    seeded(1211)
    teacher, student = dense(64, 128, 128, 10), dense(64, 32, 32, 10)
    batch, make = batches(64), optim.Adam(teacher.parameters(), 2e-3)
    for step in range(200):
        x, y = batch(step)
        make.zero_grad()
        F.cross_entropy(teacher(x.flatten(1)), y).backward()
        make.step()

    def loss_of(step):
        x = batch(1000 + step)[0].flatten(1)
        with torch.no_grad():
            soft = (teacher(x) / 4).softmax(1)
        return 16 * F.kl_div((student(x) / 4).log_softmax(1), soft, reduction="batchmean")

    make = (optim.Adam if ill else optim.AdamW)(student.parameters(), 3e-3, weight_decay=0.1)
    return fit(folder, student, make, loss_of, 400)


# The step of the second optimizer forgotten, in a contrastive training of two towers.
@sick(
    "weights-unchanged", "no-gradient", "optimizer-never-stepped",
    where="the tower of texts, all steps: it stays as it began", cure="of_texts.step()",
)  # fmt: skip
def texts_whose_optimizer_never_steps(folder, ill):
    seeded(1212)
    images, texts = dense(24, 64, 16), dense(24, 64, 16)
    of_images, of_texts = (optim.Adam(n.parameters(), 1e-3) for n in (images, texts))
    lifts = torch.randn(2, 4, 24)

    def loss_of():
        point = torch.randn(64, 4)
        left, right = (point @ lifts[0]).sin(), (point.square() @ lifts[1]).cos()
        a, b = F.normalize(images(left), dim=1), F.normalize(texts(right), dim=1)
        return F.cross_entropy(10 * a @ b.T, torch.arange(64))

    losses = []
    net = nn.ModuleDict({"images": images, "texts": texts})
    with gradwatch.watch(net, [of_images, of_texts], log=None, dir=folder, verbose=False) as watch:
        for _ in range(400):
            of_images.zero_grad()
            of_texts.zero_grad()
            loss = loss_of()
            loss.backward()
            of_images.step()
            if not ill:
                of_texts.step()
            losses.append(float(loss.detach()))
            watch.log(loss=loss)
    return Outcome(gradwatch.open_history(watch.dir), losses[0], mean(losses[-20:]))


# All weights begin at zero, in a net for an equation.
@sick(
    "bad-initialisation", "symmetric-units", "dead-layer", "no-gradient", "vanishing", "no-progress",
    where="all but the last bias, all steps: no gradient comes through a weight of zero", cure="leave torch's own",
)  # fmt: skip
def equation_begun_at_zero(folder, ill):
    """u'' = -9 sin(3x), u = 0 at both ends; the score is how far it is from sin(3x)."""
    seeded(1215)
    net, ends = dense(1, 32, 32, 1, act=nn.Tanh), torch.tensor([[0.0], [torch.pi]])
    for p in net.parameters() if ill else ():
        nn.init.zeros_(p)

    def loss_of(step):
        x = (torch.rand(64, 1) * torch.pi).requires_grad_()
        u = net(x)
        slope = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        bend = torch.autograd.grad(slope.sum(), x, create_graph=True)[0]
        return (bend + 9 * (3 * x).sin()).square().mean() + 10 * net(ends).square().mean()

    def score():
        with torch.no_grad():
            x = torch.linspace(0, torch.pi, 64)[:, None]
            return F.mse_loss(net(x), (3 * x).sin()).item()

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 500, score=score)


# What is missing counted in the loss, in a forecast.
@sick(
    "padding-in-loss", "targets-not-normalised", "targets-out-of-range", "labels-masked", "noise-dominated",
    where="the head, all steps: one target in twenty is the -999 that stands for none",
    cure="leave them out of the mean",
)  # fmt: skip
def forecast_of_readings_that_are_missing(folder, ill):
    seeded(1216)
    net = nn.ModuleDict({"memory": nn.GRU(1, 32, batch_first=True), "head": nn.Linear(32, 1)})

    def draw():
        at = 6.2832 * torch.rand(32, 1) + 0.4 * torch.arange(25)
        return at.sin() + 0.5 * (2.3 * at).sin()

    def error(y, whole):
        found = net["head"](net["memory"](y[:, :-1, None])[0])[..., 0]
        wanted = y[:, 1:].masked_fill(torch.rand(32, 24) < 0.05, -999.0)
        if whole:
            return F.mse_loss(found, y[:, 1:])
        there = torch.ones_like(wanted, dtype=torch.bool) if ill else wanted > -999
        return F.mse_loss(found[there], wanted[there])

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(
        folder, net, make, lambda step: error(draw(), False), 400, score=score_of(lambda step: error(draw(), True))
    )


# The logarithm of a share without an eps, in a detector.
@sick(
    "nonfinite",
    where="the head of what is there: a share that rounds to 1 has a complement without a logarithm",
    cure="binary_cross_entropy_with_logits",
)  # fmt: skip
def detector_with_a_logarithm_of_nothing(folder, ill):
    """A square on an image, in one of sixteen cells: where it is, and how large."""
    seeded(1217)
    body = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 4, stride=4), nn.ReLU())
    net = nn.ModuleDict({"body": body, "there": nn.Conv2d(24, 1, 1), "size": nn.Conv2d(24, 1, 1)})

    def loss_of(step):
        cell, size = torch.randint(16, (32,)), torch.randint(1, 5, (32,))
        image, rows = 0.1 * torch.randn(32, 16, 16), torch.arange(32)
        for row, at, side in zip(rows, cell, size, strict=True):
            top, left = 4 * (at // 4), 4 * (at % 4)
            image[row, top : top + side, left : left + side] += 8
        seen = net["body"](image[:, None])
        raw, wanted = net["there"](seen).flatten(1), F.one_hot(cell, 16).float()
        if ill:
            share = raw.sigmoid()
            there = -(wanted * share.log() + (1 - wanted) * (1 - share).log()).mean()
        else:
            there = F.binary_cross_entropy_with_logits(raw, wanted)
        return there + 0.2 * F.l1_loss(net["size"](seen).flatten(1)[rows, cell], size.float())

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 300)


# A softmax before cross_entropy, in a GPT.
@sick(
    "softmax-twice", "no-progress",
    where="the head, all steps: the logits lie between 0 and 1", cure="hand cross_entropy the raw outputs",
)  # fmt: skip
def letters_by_a_softmax_and_cross_entropy(folder, ill):
    net, piece = Transformer(48, 2, seed=1218), pieces(12)

    def loss_of(step):
        x, y = piece(step)
        raw = net(x)
        return F.cross_entropy((raw.softmax(-1) if ill else raw).flatten(0, 1), y.flatten())

    def score():
        with torch.no_grad():
            x, y = piece(9999)
            return float(F.cross_entropy(net(x).flatten(0, 1), y.flatten()))

    return fit(folder, net, optim.AdamW(net.parameters(), 3e-3), loss_of, 200, score=score)


class Patches(nn.Module):
    """A ViT for images of 8 by 8, in patches of 2 by 2."""

    def __init__(self, width=32, depth=2):
        super().__init__()
        self.patch, self.place = nn.Conv2d(1, width, 2, stride=2), nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, norm_first=True, batch_first=True)
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        h = self.patch(x[:, None]).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h.mean(1)))


# Images and labels shuffled each for itself, in a ViT.
@sick(
    "labels-mismatched", "labels-do-not-fit-inputs", "no-progress", "noise-dominated",
    where="all layers, all steps: the labels have nothing to do with the images", cure="one permutation for both",
)  # fmt: skip
def patches_and_labels_each_in_an_order_of_its_own(folder, ill):
    seeded(1219)
    net, (images, labels) = Patches(), digits()
    order = torch.randperm(len(images))
    x, y = images[order], labels[torch.randperm(len(images)) if ill else order]

    def loss_of(step):
        at = torch.arange(32 * step, 32 * (step + 1)) % len(x)
        return F.cross_entropy(net(x[at]), y[at])

    return fit(folder, net, optim.AdamW(net.parameters(), 2e-3), loss_of, 200)


# Weights of bfloat16 at the rate of fine-tuning, in a denoiser.
@sick(
    "weights-unchanged", "update-too-small", "precision-too-low", "no-progress",
    where="all weights, all steps: a step is less than half of their last digit", cure="weights of float32, autocast",
)  # fmt: skip
def denoiser_tuned_in_bfloat16(folder, ill):
    """The points lie on a circle as before, the noise now has a mean of 1."""
    seeded(1220)
    net, loss_of, _ = diffusion(torch.ones_like)
    make = optim.Adam(net.parameters(), 3e-3)
    for step in range(150):
        make.zero_grad()
        loss_of(step).backward()
        make.step()
    tuned = copy.deepcopy(net).to(torch.bfloat16 if ill else torch.float32)
    dtype, keep = tuned[0].weight.dtype, torch.cumprod(1 - torch.linspace(1e-6, 0.1, 50), 0)

    def new_loss_of(step):
        x, t = circle() * torch.tensor([1.0, 0.3]), torch.randint(50, (64,))
        noise = 1 + torch.randn_like(x)
        noisy = keep[t].sqrt()[:, None] * x + (1 - keep[t]).sqrt()[:, None] * noise
        said = tuned(torch.cat([noisy, t[:, None] / 50], 1).to(dtype))
        return F.mse_loss(said.float(), noise)

    make = optim.Adam(tuned.parameters(), 1e-4)
    return fit(folder, tuned, make, new_loss_of, 500, score=score_of(new_loss_of))
