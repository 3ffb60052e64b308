"""Trainings with mistakes that people asked about in public: the address of the thread stands above each."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader
from unseen import dense, fit, score_of, seeded, sick


class Coder(nn.Module):
    """A variational autoencoder of flat rows."""

    def __init__(self, size, code, width=64):
        super().__init__()
        self.encoder = dense(size, width, 2 * code)
        self.decoder = dense(code, width, size)

    def forward(self, x):
        mean, spread = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + spread.exp() * torch.randn_like(mean)), mean, spread


# http://blog.shlomidom.com/Fixing-VAE-model-reconstructions
@sick(
    "posterior-collapse",
    where="the encoder and the first layer of the decoder, from the first hundred steps on",
    cure="sum the squares over the pixels, as the divergence is summed over the code",
)
def ripples_on_a_pond(folder, ill):
    seeded(2908)
    net = Coder(100, 4)
    place = torch.rand(100, 2) * 6

    def draw():
        phase = 6.2832 * torch.rand(64, 2)
        return (place[:, 0] + phase[:, :1]).sin() + 0.7 * (place[:, 1] + phase[:, 1:]).cos()

    def loss_of(step):
        x = draw()
        again, mean, spread = net(x)
        likeness = F.mse_loss(again, x) if ill else (again - x).square().sum(1).mean()
        divergence = -0.5 * (1 + 2 * spread - mean.square() - (2 * spread).exp()).sum(1).mean()
        return likeness + divergence, {"likeness": likeness, "divergence": divergence}

    def error(step):
        x = draw()
        return F.mse_loss(net.decoder(net.encoder(x)[:, :4]), x)

    return fit(folder, net, Adam(net.parameters(), 2e-3), loss_of, 500, score=score_of(error))


# https://github.com/RaphaelMeudec/deblur-gan/issues/31
@sick(
    "inputs-and-targets-unpaired",
    "labels-do-not-fit-inputs",
    "labels-shuffled",
    "no-progress",
    "noise-dominated",
    where="the batches: what the net is given and what it is asked for are not of one picture",
    cure="load both pictures of a pair together",
)
def old_postcards_made_sharp(folder, ill):
    seeded(2909)
    steep = torch.randn(2, 1, 5, 5)
    sharp = F.conv2d(torch.randn(800, 2, 16, 16), steep.transpose(0, 1), padding=2) / 5
    sharp = torch.tanh(2 * sharp)
    blurred = F.avg_pool2d(sharp, 3, stride=1, padding=1)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 1, 3, padding=1),
    )

    def batches():
        while True:
            if ill:
                yield from zip(DataLoader(blurred[:700], 25, True), DataLoader(sharp[:700], 25, True), strict=True)
            else:
                order = torch.randperm(700)
                yield from ((blurred[rows], sharp[rows]) for rows in order.split(25))

    pairs = batches()

    def loss_of(step):
        x, y = next(pairs)
        return F.mse_loss(net(x), y)

    def score():
        with torch.no_grad():
            return float(F.mse_loss(net(blurred[700:]), sharp[700:]))

    return fit(folder, net, Adam(net.parameters(), 2e-3), loss_of, 250, score=score)


# https://github.com/FluxML/model-zoo/pull/147
@sick(
    "wrong-sign",
    "negative-loss",
    where="the logarithm of the spread in the divergence; the half of the encoder's last layer that gives it",
    cure="subtract the logarithm of the spread",
)
def gaits_of_horses_in_a_short_code(folder, ill):
    seeded(2910)
    net = Coder(40, 3)
    time = torch.linspace(0, 6.2832, 20)

    def draw():
        pace, shift = 1 + torch.rand(64, 1), 6.2832 * torch.rand(64, 1)
        legs = torch.cat([(pace * time + shift).sin(), (2 * pace * time + shift).cos()], 1)
        return legs + 0.1 * torch.randn(64, 40)

    def divergence(mean, spread, sign):
        return 0.5 * ((2 * spread).exp() + mean.square() - 1 + sign * 2 * spread).sum(1).mean()

    def bound(sign):
        x = draw()
        again, mean, spread = net(x)
        likeness = 5 * (again - x).square().sum(1).mean()
        apart = divergence(mean, spread, sign)
        return likeness + apart, {"likeness": likeness, "divergence": apart}

    def loss_of(step):
        return bound(1 if ill else -1)

    return fit(folder, net, Adam(net.parameters(), 2e-3), loss_of, 600, score=score_of(lambda step: bound(-1)[0]))


# https://github.com/RasmussenLab/vamb/pull/182
@sick(
    "posterior-collapse",
    "spread-never-below-one",
    where="the softplus on the logarithm of the spread: every code has as much noise as the prior, or more",
    cure="leave the logarithm of the spread without a softplus",
)
def voters_by_their_answers(folder, ill):
    seeded(2911)
    net = nn.ModuleDict({"body": dense(30, 64, 64), "mean": nn.Linear(64, 4), "spread": nn.Linear(64, 4)})
    net["decoder"] = dense(4, 64, 30)
    leaning = torch.randn(3, 30)

    def bound(step):
        x = 1.5 * (torch.randn(64, 3) @ leaning).tanh() + 0.1 * torch.randn(64, 30)
        h = net["body"](x).relu()
        mean, spread = net["mean"](h), net["spread"](h)
        if ill:
            spread = F.softplus(spread)
        again = net["decoder"](mean + spread.exp() * torch.randn_like(mean))
        likeness = 2 * (again - x).square().sum(1).mean()
        divergence = -0.5 * (1 + 2 * spread - mean.square() - (2 * spread).exp()).sum(1).mean()
        return likeness + divergence, {"likeness": likeness, "divergence": divergence}

    return fit(folder, net, Adam(net.parameters(), 2e-3), bound, 600, score=score_of(lambda step: bound(step)[0]))


# https://github.com/vanderschaarlab/synthcity/issues/331
@sick(
    "nonfinite",
    where="the exponential of the logarithm of the variance, at the row with an enormous amount",
    cure="clamp the logarithm of the variance before it is raised",
)
def accounts_of_a_savings_bank(folder, ill):
    seeded(2912)
    net = Coder(12, 3)
    mixing = torch.randn(3, 12)
    table = torch.randn(2000, 3) @ mixing + 0.1 * torch.randn(2000, 12)
    table[:, 0] = table[:, 0].sign() * (2.2 * table[:, 0].abs()).exp()
    table = (table - table.median(0).values) / table.abs().median(0).values
    usual = table[table.abs().amax(1) < 6]

    def bound(x):
        mean, spread = net.encoder(x).chunk(2, 1)
        log_var = 2 * spread if ill else (2 * spread).clamp(-8, 2)
        again = net.decoder(mean + (0.5 * log_var).exp() * torch.randn_like(mean))
        likeness = F.smooth_l1_loss(again, x, reduction="none").sum(1).mean()
        divergence = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
        return likeness + 0.1 * divergence, {"likeness": likeness, "divergence": divergence}

    def loss_of(step):
        return bound(table[torch.randint(2000, (64,))])

    def score(step):
        return bound(usual[torch.randint(len(usual), (64,))])[0]

    return fit(folder, net, Adam(net.parameters(), 1e-3), loss_of, 600, score=score_of(score))


# https://github.com/facebookresearch/clevr-iep/pull/22
@sick(
    "left-in-eval",
    "norm-statistics",
    where="the batch norms, in all steps after the first check of the accuracy",
    cure="set the model back to train mode after the accuracy was checked",
)
def questions_about_a_tray_of_blocks(folder, ill):
    seeded(2913)
    net = dense(14, 48, 48, 48, 48, 4, norm=nn.BatchNorm1d)
    optimizer = SGD(net.parameters(), 0.1, momentum=0.9)
    most = torch.tensor([4.0, 9, 25, 60, 2, 7, 12, 30, 5, 80, 3, 15])
    colour, shape = torch.randn(2, 12, 4)

    def draw(rows=64):
        tray = (torch.rand(rows, 12) * most).round()
        question = torch.randint(2, (rows, 1))
        answer = torch.where(question == 0, (tray / most) @ colour, (tray / most) @ shape).argmax(1)
        return torch.cat([tray, 1 - question, question], 1), answer

    def check_accuracy():
        net.eval()
        x, y = draw(256)
        with torch.no_grad():
            right = (net(x).argmax(1) == y).float().mean()
        if not ill:
            net.train()
        return right

    def loss_of(step):
        x, y = draw()
        loss = F.cross_entropy(net(x), y)
        if step % 50 == 0:
            return loss, {"accuracy": check_accuracy()}
        return loss

    def score():
        net.eval()
        x, y = draw(2000)
        with torch.no_grad():
            wrong = float(F.cross_entropy(net(x), y))
        net.train()
        return wrong

    return fit(folder, net, optimizer, loss_of, 600, score=score)
