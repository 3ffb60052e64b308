"""Mistakes from closed issues: coqui TTS, nanoGPT, transformers, timm, Lightning, open_clip."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


# "[Bug] BCELoss should not be masked", https://github.com/coqui-ai/TTS/issues/1192
@sick("class-never-in-loss", "loss-masked-away", "labels-ignored", where="the head that says stop, all steps",
      cure="no mask by length on the loss of the stop")  # fmt: skip
def lullabies_that_know_their_end(folder, ill):
    seeded(9907)
    length = 16
    net = nn.ModuleDict({
        "words": nn.Linear(6, 40),
        "voice": nn.GRU(4, 40, batch_first=True),
        "frame": nn.Linear(40, 4),
        "stop": dense(40, 20, 1),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    melody = torch.randn(6, 4)

    def songs(rows):
        words = torch.randn(rows, 6)
        ends = (9 + 3 * words[:, :2].sum(1)).round().clamp(4, 14)[:, None]
        at = torch.arange(length)
        frames = ((words @ melody)[:, None] * 0.5 + 0.4 * at[:, None]).sin()
        return words, frames * (at < ends)[..., None], (at < ends).float(), (at >= ends).float()

    def say(words, frames):
        before = F.pad(frames, (0, 0, 1, 0))[:, :-1]
        hidden = net["voice"](before, net["words"](words).tanh()[None])[0]
        return net["frame"](hidden), net["stop"](hidden)[..., 0]

    def losses(songs, masked):
        words, frames, sounds, stops = songs
        said, stop = say(words, frames)
        frame = ((said - frames).square().mean(2) * sounds).sum() / sounds.sum()
        ends = F.binary_cross_entropy_with_logits(stop, stops, reduction="none")
        return frame, (ends * sounds).sum() / sounds.sum() if masked else ends.mean()

    def loss_of(step):
        frame, stop = losses(songs(32), ill)
        return frame + stop, {"frame_loss": frame, "stop_loss": stop}

    test = songs(256)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: sum(losses(test, False))))


class InHalf(torch.autograd.Function):
    """What float16 holds of a value, and of its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.half().float()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.half().float()


class Half(nn.Module):
    def forward(self, x):
        return InHalf.apply(x)


# "GPT2 train loss become nan since iter 3000", https://github.com/karpathy/nanoGPT/issues/215 (float16, no scaler)
@sick("underflow", "precision-too-low", where="the first layers, more and more of the steps",
      cure="a gradient scaler around the loss and the optimizer")  # fmt: skip
def hiss_taken_off_shellac_records(folder, ill):
    seeded(9908)
    half = Half()
    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2), half, nn.ReLU(), nn.Conv1d(16, 16, 5, padding=2), half, nn.ReLU(),
        nn.Conv1d(16, 16, 5, padding=2), half, nn.ReLU(), nn.Conv1d(16, 1, 5, padding=2), half,
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    scaler = None if ill else torch.amp.GradScaler("cpu", init_scale=2.0**14)
    at = torch.arange(256) / 256

    def records(rows):
        pitch, phase = 4 + 12 * torch.rand(rows, 3, 1), 6.2832 * torch.rand(rows, 3, 1)
        music = 0.01 * (6.2832 * pitch * at + phase).sin().sum(1)[:, None]
        return music / 0.01 + 0.4 * torch.randn(rows, 1, 256), music

    def loss_of(step):
        heard, music = records(48)
        return F.mse_loss(0.01 * net(heard), music)

    heard, music = records(256)
    score = held_out(net, lambda: F.mse_loss(0.01 * net(heard), music))
    return fit(folder, net, optimizer, loss_of, 150, score=score, scaler=scaler)


# "Improve DistilBert attn mask", https://github.com/huggingface/transformers/pull/15326
@sick("nonfinite", "division-by-zero", "softmax-of-an-empty-row", where="the step whose batch holds an empty basket",
      cure="a large finite number, not -inf, where the mask hides")  # fmt: skip
def mushroom_baskets_weighed_for_a_feast(folder, ill):
    seeded(9909)
    kinds, most = 12, 6
    net = nn.ModuleDict({
        "kind": nn.Embedding(kinds, 32), "key": nn.Linear(32, 32), "value": nn.Linear(32, 32),
        "ask": nn.Linear(32, 4, bias=False), "head": dense(4 * 32, 32, 1),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    worth = torch.randn(kinds)

    def baskets(rows):
        found = torch.randint(kinds, (rows, most))
        held = torch.rand(rows, most) < 0.75
        value = (worth[found] * held).sum(1) / held.sum(1).clamp(min=1) + held.sum(1) / 4
        return found, held, value[:, None]

    def feast(found, held):
        x = net["kind"](found)
        scores = net["ask"](net["key"](x).tanh()).masked_fill(~held[..., None], -torch.inf if ill else -1e9)
        return net["head"]((scores.softmax(1).transpose(1, 2) @ net["value"](x)).flatten(1))

    def loss_of(step):
        found, held, value = baskets(48)
        return F.mse_loss(feast(found, held), value)

    found, held, value = baskets(512)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(feast(found, held), value)))


class Step(nn.Module):
    """A causal convolution beside what it is given."""

    def __init__(self, width, apart):
        super().__init__()
        self.apart, self.look, self.mix = apart, nn.Conv1d(width, width, 2, dilation=apart), nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.mix(F.relu(self.look(F.pad(x, (self.apart, 0)))))


# "Loss becomes nan after training for ~2000 iterations", https://github.com/karpathy/nanoGPT/issues/136
@sick("lr-too-high", "update-too-large", "exploding", where="all layers, from where the loss leaves its way",
      cure="a tenth of the rate")  # fmt: skip
def knots_in_a_fishers_rope(folder, ill):
    seeded(9910)
    kinds, length = 10, 24
    net = nn.Sequential(nn.Embedding(kinds, 32), *(Step(32, apart) for apart in (1, 2, 4, 8)), nn.Conv1d(32, kinds, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1.0 if ill else 0.1, momentum=0.9)

    def ropes(rows):
        knots = list(torch.randint(kinds, (2, rows)))
        for _ in range(length - 1):
            slip = torch.rand(rows) < 0.1
            knots.append(torch.where(slip, torch.randint(kinds, (rows,)), (knots[-1] + 3 * knots[-2] + 1) % kinds))
        return torch.stack(knots, 1)

    def loss_on(knots):
        x = net[0](knots[:, :-1]).transpose(1, 2)
        return F.cross_entropy(net[1:](x), knots[:, 1:])

    test = ropes(128)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(ropes(24)), 300, score=score)


# "ResNet not training after using hparams from website",
# https://github.com/huggingface/pytorch-image-models/issues/281
@sick("average-too-slow", where="the average of the weights, all steps", cure="a decay that fits the run, 0.98")
def house_numbers_for_a_postman(folder, ill):
    seeded(9911)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    y, order = torch.tensor(digits.target), torch.randperm(1797)
    x, y = x[order], y[order]
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.SiLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.BatchNorm2d(24),
        nn.SiLU(), nn.Flatten(), nn.Linear(24 * 16, 10),
    )  # fmt: skip
    average = copy.deepcopy(net).eval().requires_grad_(False)
    decay, draw = 0.9999 if ill else 0.98, rounds(64, x[:1400], y[:1400])
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3, alpha=0.9, momentum=0.9)

    def error():
        return F.cross_entropy(average(x[1400:]), y[1400:])

    def one(step):
        images, numbers = draw()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), numbers)
        loss.backward()
        optimizer.step()
        for kept, new in zip(average.state_dict().values(), net.state_dict().values(), strict=True):
            kept.lerp_(new, 1 - decay) if kept.is_floating_point() else kept.copy_(new)
        return {"loss": loss, "val_loss": error()}

    return tend(folder, net, optimizer, one, 200, error)


# "LightningOptimizer parity test", https://github.com/Lightning-AI/pytorch-lightning/pull/5191 (manual optimization:
# "loss /= accumulate_grad_batches")
@sick("accumulation-not-divided", "accumulation-not-averaged", "lr-too-high", where="all gradients, all steps",
      cure="divide each loss by the number of batches that are accumulated")  # fmt: skip
def current_drawn_by_a_tram_line(folder, ill):
    seeded(9912)
    net = nn.ModuleDict({"past": nn.LSTM(3, 32, batch_first=True), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    parts = 16

    def days(rows):
        x = torch.randn(rows, 14, 3)
        load = torch.zeros(rows)
        for hour in range(14):
            load = 0.7 * load + x[:, hour, 0] - x[:, hour, 1].relu()
        return x, load[:, None]

    def loss_on(x, y):
        return F.mse_loss(net["head"](net["past"](x)[0][:, -1]), y)

    def loss_of(step):
        return loss_on(*days(4)) / (1 if ill else parts)

    test = days(512)
    return fit(folder, net, optimizer, loss_of, 120, score=held_out(net, lambda: loss_on(*test)), accumulate=parts)
