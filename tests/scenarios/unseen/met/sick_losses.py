"""Met sick trainings, second part: losses, and what they are given.

They only count (the group `met`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from nets import Transformer, pieces
from torch import nn, optim
from torch.nn import functional as F
from unseen import Outcome, dense, fit, rings, score_of, seeded, sick
from unseen.tasks import circle


# "VLM captioning loss collapses to 0: labels not shifted for next-token",
# github.com/KempnerInstitute/KempnerForge/issues/154
@sick(
    "labels-not-shifted", "loss-too-easy",
    where="the loss, all steps: each sign is asked for where it stands, and is copied",
    cure="logits up to the last but one, labels from the second on",
)  # fmt: skip
def labels_that_are_the_inputs(folder, ill):
    net, piece = Transformer(32, 2, seed=911), pieces(16)

    def against(shifted):
        def loss_of(step):
            x, y = piece(step)
            return F.cross_entropy(net(x).flatten(0, 1), (y if shifted else x).flatten())

        return loss_of

    return fit(
        folder, net, optim.AdamW(net.parameters(), 2e-3), against(not ill), 150, score=score_of(against(True), 4)
    )


# "Potential loss masking conflict when pad_token_id == eos_token_id (Case study on Qwen-like settings)",
# github.com/NVIDIA-NeMo/Automodel/issues/1336
@sick(
    "labels-masked", "padding-in-loss",
    where="the sign that ends a row: it is never asked for, as it is the padding, too",
    cure="the first one of each row stays in the loss",
)  # fmt: skip
def end_that_is_masked_with_the_padding(folder, ill):
    """Rows that count upwards; the first sign says how many more come."""
    seeded(912)
    net = nn.ModuleDict({"embed": nn.Embedding(21, 24), "read": nn.GRU(24, 32, batch_first=True),
                         "name": nn.Linear(32, 21)})  # fmt: skip

    def loss_at(without_end):
        def loss_of(step):
            first = torch.randint(12, (48, 1))
            place, length = torch.arange(9), 2 + first % 5
            x = (first + place).where(place < length, 20)
            y = (first + place + 1).where(place + 1 < length, 20)
            beyond = (place + 1 >= length) if without_end else (place >= length)
            out = net["name"](net["read"](net["embed"](x))[0])
            return F.cross_entropy(out.flatten(0, 1), y.masked_fill(beyond, -100).flatten())

        return loss_of

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_at(ill), 250, score=score_of(loss_at(False), 4))


class Coupled(nn.Module):
    """Four affine couplings of two numbers (Real NVP, Dinh et al. 2017)."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(dense(1, 32, 2, act=nn.Tanh) for _ in range(4))

    def forward(self, x):
        """Where each row of `[B, 2]` comes to lie, and the logarithm of how its surroundings are stretched: `[B]`."""
        one, other, stretch = x[:, :1], x[:, 1:], 0.0
        for part in self.parts:
            scale, move = part(one).chunk(2, 1)
            one, other = other * scale.exp() + move, one
            stretch = stretch + scale[:, 0]
        return torch.cat([one, other], 1), stretch


# "Issue while computing the `flow.forward` function" (the sign of the log determinant),
# github.com/VincentStimper/normalizing-flows/issues/27
@sick(
    "loss-unbounded", "wrong-sign", "negative-loss", "weight-growth",
    where="the scales of all couplings: all shrinks to one point, and the loss falls for ever",
    cure="the log determinant is added to the log likelihood",
)  # fmt: skip
def stretch_with_the_wrong_sign(folder, ill):
    seeded(913)
    net = Coupled()

    def unlikely(sign):
        def loss_of(step):
            z, stretch = net(circle())
            return (0.5 * z.square().sum(1) - sign * stretch).mean()

        return loss_of

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, unlikely(-1 if ill else 1), 400, score=score_of(unlikely(1), 4))


# "Need weighted softmax loss for semantic segmentation of imbalanced data" (all is background),
# github.com/dmlc/gluon-cv/issues/644
@sick(
    "class-imbalance", "no-progress",
    where="the loss: 99 of 100 pixels are of one kind, which is all that is ever said",
    cure="the weight of a kind is one over its share",
)  # fmt: skip
def one_pixel_in_a_hundred(folder, ill):
    """Four pixels a little brighter than the noise; what counts is the mean of the errors of both kinds."""
    seeded(914)
    net = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 2, 5, padding=2))

    def loss_with(weights):
        def loss_of(step):
            mask = torch.zeros(16, 20, 20, dtype=torch.long)
            for image, (row, column) in zip(mask, torch.randint(19, (16, 2)).tolist(), strict=True):
                image[row : row + 2, column : column + 2] = 1
            return F.cross_entropy(net((mask + 1.2 * torch.randn(mask.shape))[:, None]), mask, weights)

        return loss_of

    even = torch.tensor([1.0, 99.0])
    make = optim.Adam(net.parameters(), 5e-3)
    return fit(folder, net, make, loss_with(None if ill else even), 150, score=score_of(loss_with(even), 6))


# "Feature embeddings for each user and item are identical" (the sigmoid of a sum in place of the sum of sigmoids),
# github.com/pyg-team/pytorch_geometric/issues/2104
@sick(
    "vanishing", "weight-growth", "saturated", "no-progress",
    where="both tables: the sum of all differences is soon so large that its sigmoid is 1",
    cure="logsigmoid of each pair's difference, then the mean",
)  # fmt: skip
def differences_summed_before_their_sigmoid(folder, ill):
    """What is taken before what is not (BPR, Rendle et al. 2009); the score is the share of pairs in wrong order."""
    seeded(915)
    tastes, kinds = torch.randn(60, 4), torch.randn(80, 4)
    net = nn.ModuleDict({"user": nn.Embedding(60, 8), "item": nn.Embedding(80, 8)})
    for part in net.values():
        nn.init.normal_(part.weight, std=0.1)

    def differences(rows):
        user, pair = torch.randint(60, (rows,)), torch.randint(80, (rows, 2))
        liked = (tastes[user, None] * kinds[pair]).sum(2)
        pair = pair.gather(1, liked.argsort(1, descending=True))
        scores = (net["user"](user)[:, None] * net["item"](pair)).sum(2)
        return scores[:, 0] - scores[:, 1]

    def loss_of(step):
        gaps = differences(256)
        return -F.logsigmoid(gaps.sum()) if ill else -F.logsigmoid(gaps).mean()

    def score():
        with torch.no_grad():
            return float((differences(4000) < 0).float().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 400, score=score)


# "[BUG] `y` not being normalized when using `EncoderNormalizer` in `EncoderDecoderDataModule`",
# github.com/sktime/pytorch-forecasting/issues/2360
@sick(
    "targets-not-normalised", "no-progress", "loss-not-averaged",
    where="the loss: the past is told without its scale, the future is wanted in it",
    cure="the future on the scale of its past",
)  # fmt: skip
def future_on_another_scale_than_its_past(folder, ill):
    """Waves of unlike height around unlike levels, 24 steps to read, 6 to say."""
    seeded(916)
    net = dense(24, 64, 64, 6, act=nn.GELU)

    def draw():
        level, height, phase, pace = (torch.rand(64, 1) for _ in range(4))
        waves = torch.sin((0.3 + 0.5 * pace) * torch.arange(30) + 6.28 * phase) + 0.05 * torch.randn(64, 30)
        series = 20 + 300 * level + (5 + 60 * height) * waves
        past, future = series[:, :24], series[:, 24:]
        middle, spread = past.mean(1, keepdim=True), past.std(1, keepdim=True)
        return (past - middle) / spread, (future - middle) / spread, middle, spread

    def loss_of(step):
        past, future, middle, spread = draw()
        return F.mse_loss(net(past), future * spread + middle if ill else future)

    def score():
        with torch.no_grad():
            past, future, middle, spread = draw()
            said = (net(past) - middle) / spread if ill else net(past)
            return float((said - future).abs().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 500, score=score)


# "Neural Network Python" (targets of 1 to 4 behind a tanh), ansaurus.com/question/3644795-neural-network-python
@sick(
    "saturated", "targets-out-of-range", "no-progress",
    where="the last layer: the tanh behind it stands at 1, and gives next to nothing back",
    cure="targets that a tanh can reach",
)  # fmt: skip
def targets_beyond_the_reach_of_tanh(folder, ill):
    """Rings by their number, from 1 to 4."""
    seeded(917)
    net, draw, scale = nn.Sequential(*dense(12, 48, 48, 1, act=nn.Tanh), nn.Tanh()), rings(64), 1.0 if ill else 5.0

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x)[:, 0], (y + 1) / scale)

    def score():
        with torch.no_grad():
            x, y = draw()
            return float((net(x)[:, 0] * scale - y - 1).abs().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 500, score=score)


# "Why do I fail to predict y=x**4 with Keras? (y=x**3 works)", stackoverflow.com/questions/52800582
@sick(
    "inputs-not-normalised", "targets-not-normalised", "update-too-small", "saturated", "no-progress",
    where="all layers: inputs up to a hundred before a sigmoid, outputs up to a hundred million",
    cure="both divided by the largest that they can be",
)  # fmt: skip
def fourth_powers_as_they_come(folder, ill) -> Outcome:
    seeded(918)
    net = nn.Sequential(nn.Linear(1, 32), nn.Sigmoid(), nn.Linear(32, 32), nn.ELU(), nn.Linear(32, 1))
    size = 1.0 if ill else 100.0

    def draw():
        x = 200 * torch.rand(64, 1) - 100
        return x / size, (x / size) ** 4

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    def score():
        with torch.no_grad():
            x, y = draw()
            return float((net(x) - y).square().mean().sqrt()) * (size / 100) ** 4

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 500, score=score)


# "Flip with TensorPoint causes a bug" (all points in the middle), github.com/fastai/fastai2/issues/100
@sick(
    "labels-mismatched", "labels-do-not-fit-inputs", "noise-dominated", "no-progress",
    where="the targets of the images that were flipped: half of them", cure="the points are flipped with their images",
)  # fmt: skip
def images_flipped_and_points_not(folder, ill):
    """Where is the brightest spot? From -1 to 1, across and down."""
    seeded(919)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, stride=2), nn.ReLU(),
                        nn.Flatten(), nn.Linear(8 * 36, 2))  # fmt: skip
    line = torch.linspace(-1, 1, 12)

    def draw():
        at = 1.6 * torch.rand(32, 2) - 0.8
        near = (line[None, None, :] - at[:, :1, None]) ** 2 + (line[None, :, None] - at[:, 1:, None]) ** 2
        return (-near * 12).exp()[:, None] + 0.1 * torch.randn(32, 1, 12, 12), at

    def loss_of(step):
        x, at = draw()
        turned = torch.rand(32) < 0.5
        x = x.flip(3).where(turned[:, None, None, None], x)
        mirror = torch.tensor([-1.0, 1.0])
        return F.mse_loss(net(x), at if ill else (at * mirror).where(turned[:, None], at))

    def score():
        with torch.no_grad():
            x, at = draw()
            return math.sqrt(float(F.mse_loss(net(x), at)))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250, score=score)
