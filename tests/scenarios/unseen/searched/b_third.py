"""Letters to departments, Morse, cheeses, rows of grapes, a steam pipe, numerals out of noise."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out


# https://errorhandle.ai/tensorflow-accuracy-stuck-at-25-for-4-labels-text-classification
@sick(
    "shapes-broadcast",
    "labels-not-one-hot",
    where="the loss, from the first step: the numbers of the labels weigh all classes alike, so equal shares are best",
    cure="encode the labels as one-hot rows for this loss, or take the loss for numbers of classes",
)
def letters_to_four_departments(folder, ill):
    seeded(9392)
    net = nn.Sequential(nn.EmbeddingBag(120, 24), nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 4))
    habits = (1.2 * torch.randn(4, 120)).softmax(1)

    def draw(rows=48):
        y = torch.randint(4, (rows,))
        return torch.multinomial(habits[y], 12, replacement=True), y

    def loss_of(step):
        x, y = draw()
        labels = y[:, None] if ill else F.one_hot(y, 4)
        out = net(x)
        loss = -(labels * out.log_softmax(1)).sum(1).mean()
        return loss, {"accuracy": (out.argmax(1) == y).float().mean()}

    def fresh():
        x, y = draw(1024)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 400, score=held_out(net, fresh))


class Listener(nn.Module):
    def __init__(self, bands, signs):
        super().__init__()
        self.gru = nn.GRU(bands, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, signs + 1)

    def forward(self, x):
        return self.head(self.gru(x)[0]).log_softmax(2)


# https://github.com/cyprienruffino/CTCModel/issues/12
@sick(
    "too-few-steps",
    where="the end of the run: it stops on the plateau on which a CTC loss begins, where nothing but blanks is named",
    cure="train on: the plateau lasts some hundreds of steps, and the loss falls after it",
)
def morse_on_a_hissing_line(folder, ill):
    seeded(9393)
    net, tones = Listener(6, 5), torch.randn(5, 6)

    def draw(rows=12):
        signs = torch.randint(5, (rows, 4))
        x = torch.zeros(rows, 24, 6)
        for at in range(4):
            begin = 6 * at + torch.randint(3, (rows,))
            for later in range(3):
                x[torch.arange(rows), begin + later] += tones[signs[:, at]]
        return x + 0.3 * torch.randn(x.shape), signs + 1

    def loss_of(step):
        x, y = draw()
        return F.ctc_loss(net(x).transpose(0, 1), y, torch.full((len(y),), 24), torch.full((len(y),), 4))

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, optimizer, loss_of, 100 if ill else 450, score=score_of(loss_of))


class Cheeses(nn.Module):
    """What a cheese tastes like and how old it is: two heads, and a trunk for both or one for each."""

    def __init__(self, shared):
        super().__init__()
        trunks = [dense(8, 5, 5), dense(8, 5, 5)]
        self.trunks = nn.ModuleList(trunks[:1] if shared else trunks)
        self.taste, self.age = nn.Linear(5, 1), nn.Linear(5, 1)

    def forward(self, x):
        return self.taste(self.trunks[0](x)), self.age(self.trunks[-1](x))


# https://theneuralbase.com/few-shot-learning/learn/intermediate/when-multi-task-hurts/
@sick(
    "task-interference",
    "gradients-conflict",
    where="the trunk, all along: two tasks without anything in common pull at the same few units",
    cure="layers of its own for each task",
)
def taste_and_age_of_cheeses(folder, ill):
    seeded(9394)
    net = Cheeses(shared=ill)

    def draw(rows=64):
        x = torch.randn(rows, 8)
        taste = (x[:, :1] - x[:, 1:2]).abs() - x[:, 2:3].abs()
        return x, taste, (x[:, 4:5] + x[:, 5:6]).abs() - (x[:, 6:7] - x[:, 7:8]).abs()

    def loss_of(step):
        x, taste, age = draw()
        out = net(x)
        losses = {"taste": F.mse_loss(out[0], taste), "age": F.mse_loss(out[1], age)}
        return sum(losses.values()), losses

    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    return fit(folder, net, optimizer, loss_of, 800, score=score_of(lambda step: loss_of(step)[0]))


# https://fixeme.com/why-is-my-loss-function-increasing-with-each-epoch/
@sick(
    "lr-too-high",
    "exploding",
    "inputs-not-normalised",
    where="the whole net, from the first step: with inputs of up to 20 each step goes far beyond the least loss",
    cure="a smaller learning rate, 1e-4 instead of 1e-2, or inputs of size one",
)
def kilos_of_grapes_per_row(folder, ill):
    seeded(9395)
    net = nn.Linear(2, 1)
    x = torch.stack([torch.arange(1.0, 21.0), 20 * torch.rand(20)], 1)
    y = x @ torch.tensor([[0.5], [0.2]]) + 0.1 * torch.randn(20, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01 if ill else 1e-4)

    def loss_of(step):
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 150, score=score_of(loss_of, 1))


# https://discuss.pytorch.org/t/suboptimal-convergence-when-compared-with-tensorflow-model/5099/38
@sick(
    "lr-too-high",
    "no-decay",
    where="the second half of the run: the rate stays where it began, and the loss does not come down any further",
    cure="let the rate fall by steps, to a fifth each time",
)
def pressures_in_a_steam_pipe(folder, ill):
    seeded(9396)
    net, way = dense(8, 64, 64, 1), torch.randn(8, 3) / 2
    optimizer = torch.optim.Adam(net.parameters(), 0.03)
    schedule = None if ill else torch.optim.lr_scheduler.StepLR(optimizer, 250, 0.2)

    def draw(rows=16):
        x = torch.randn(rows, 8)
        return x, (x @ way).sin().sum(1, keepdim=True)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y + 0.2 * torch.randn_like(y))

    def fresh():
        x, y = draw(2048)
        return F.mse_loss(net(x), y).sqrt()

    return fit(folder, net, optimizer, loss_of, 1000, schedule=schedule, score=held_out(net, fresh))


# https://github.com/Janspiry/Palette-Image-to-Image-Diffusion-Models/issues/24
@sick(
    "too-few-steps",
    where="the end of the run: the loss still falls, and what is drawn is still noise",
    cure="train ten times as long",
)
def numerals_of_old_shop_tills(folder, ill):
    seeded(9397)
    net, pictures = dense(65, 160, 160, 64, act=nn.SiLU), 2 * digits()[0].flatten(1) - 1
    keep = torch.cumprod(1 - torch.linspace(1e-3, 0.15, 40), 0)

    def loss_of(step, rows=64):
        x, t = pictures[torch.randint(len(pictures), (rows,))], torch.randint(40, (rows,))
        noise = torch.randn_like(x)
        noisy = keep[t].sqrt()[:, None] * x + (1 - keep[t]).sqrt()[:, None] * noise
        return F.mse_loss(net(torch.cat([noisy, t[:, None] / 40], 1)), noise)

    optimizer = torch.optim.Adam(net.parameters(), 5e-4)
    steps = 120 if ill else 1200
    return fit(folder, net, optimizer, loss_of, steps, score=held_out(net, lambda: loss_of(0, 1024)))
