"""Mistakes that people told about in public, in trainings of other subjects: the third part."""

from __future__ import annotations

import copy

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, tend


# https://github.com/google-deepmind/learning-to-learn/issues/18
@sick("weights-reset", where="every layer, at the beginning of each epoch", cure="reset before the first epoch only")
def tides_in_a_narrow_sound(folder, ill):
    seeded(2938)
    net = dense(5, 48, 48, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    problem, state = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    way = torch.randn(5, 3)

    def reset():
        net.load_state_dict(problem)
        optimizer.load_state_dict(state)

    def tides(rows=64):
        x = torch.randn(rows, 5)
        return x, (x @ way).sin().sum(1, keepdim=True)

    def one(step):
        if step == 0 or (ill and step % 100 == 0):
            reset()
        x, y = tides()
        loss = F.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    def score():
        x, y = tides(1024)
        return F.mse_loss(net(x), y)

    return tend(folder, net, optimizer, one, 650, held_out(net, score))


class Caller(nn.Module):
    def __init__(self, kinds, width, head_std):
        super().__init__()
        self.embed = nn.Embedding(kinds, width)
        self.block = nn.TransformerEncoderLayer(width, 4, width, dropout=0.0, norm_first=True, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, kinds, bias=False)
        nn.init.normal_(self.embed.weight, std=1.0)
        nn.init.normal_(self.head.weight, std=head_std)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.norm(self.block(self.embed(x), src_mask=mask, is_causal=True)))


# https://github.com/huggingface/transformers/pull/26441
@sick(
    "bad-initialisation", where="the head, from the first step",
    cure="a variance of one over the width for the weights of the head",
)  # fmt: skip
def calls_of_a_pod_of_whales(folder, ill):
    seeded(2939)
    net = Caller(60, 160, 1.0 if ill else 160**-0.5)
    follows = torch.randn(60, 60).mul(4).softmax(1)

    def calls(rows=16, length=16):
        x = [torch.randint(60, (rows,))]
        for _ in range(length):
            x.append(torch.multinomial(follows[x[-1]], 1)[:, 0])
        x = torch.stack(x, 1)
        return x[:, :-1], x[:, 1:]

    def loss_of(step):
        x, y = calls()
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten())

    def score():
        x, y = calls(128)
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten())

    return fit(folder, net, torch.optim.AdamW(net.parameters(), 5e-4), loss_of, 200, score=held_out(net, score))


# https://github.com/ypwhs/captcha_break/issues/29
@sick(
    "nonfinite", "labels-longer-than-outputs",
    where="every layer, from the first batch with a row that cannot be aligned",
    cure="halve the width less often, so that there are more outputs than letters and blanks",
)  # fmt: skip
def stamps_on_old_coins(folder, ill):
    seeded(2940)
    net = nn.Sequential(
        nn.Conv1d(6, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv1d(32, 32, 3, stride=2 if ill else 1, padding=1), nn.ReLU(), nn.Conv1d(32, 6, 3, padding=1),
    )  # fmt: skip
    shapes = torch.randn(5, 6, 5)
    long = 6 if ill else 12

    def coins(rows=32):
        y = torch.randint(5, (rows, 4))
        gaps = F.pad(shapes[y], (0, 1))
        x = gaps.permute(0, 2, 1, 3).flatten(2)
        return x + 0.3 * torch.randn_like(x), y + 1

    def loss_of(step, rows=32, **options):
        x, y = coins(rows)
        out = net(x).log_softmax(1).permute(2, 0, 1)
        return F.ctc_loss(out, y, torch.full((rows,), long), torch.full((rows,), 4), **options)

    def score():
        return loss_of(0, 256, zero_infinity=True)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 300, score=held_out(net, score))


# https://github.com/DaoyuanLi2816/Molecule-Generator/pull/20
@sick("padding-in-loss", where="the loss, every step", cure="give the loss the index of the padding to ignore")
def knots_along_a_cord(folder, ill):
    seeded(2941)
    net = nn.ModuleDict({"embed": nn.Embedding(30, 24), "memory": nn.GRU(24, 40, batch_first=True)})
    net["head"] = nn.Linear(40, 30)
    follows = torch.randn(29, 29).mul(5).softmax(1)

    def cords(rows=16, longest=40):
        x = [torch.randint(29, (rows,))]
        for _ in range(8):
            x.append(torch.multinomial(follows[x[-1]], 1)[:, 0])
        x = torch.stack(x, 1) + 1
        lengths = torch.randint(3, 9, (rows, 1))
        x = torch.where(torch.arange(9) <= lengths, x, 0)
        return F.pad(x, (0, longest - 9))

    def loss_of(step, rows=16, **options):
        x = cords(rows)
        out = net["head"](net["memory"](net["embed"](x[:, :-1]))[0])
        return F.cross_entropy(out.flatten(0, 1), x[:, 1:].flatten(), **options)

    def train_loss(step):
        return loss_of(step) if ill else loss_of(step, ignore_index=0)

    def score():
        return loss_of(0, 256, ignore_index=0)

    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    return fit(folder, net, optimizer, train_loss, 220, score=held_out(net, score))


class Answerer(nn.Module):
    def __init__(self, ill):
        super().__init__()
        self.ill = ill
        self.visual = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 16))
        self.embed = nn.Embedding(12, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 32, dropout=0.0, norm_first=True, batch_first=True)
        self.head = nn.Linear(8, 10)

    def forward(self, words, image):
        seen = self.visual(image).unflatten(1, (2, 8))
        hidden = self.embed(words)
        if self.ill:
            hidden.data[:, 1:3] = seen.data
        else:
            hidden = hidden.clone()
            hidden[:, 1:3] = seen
        return self.head(self.block(hidden)[:, -1])


# https://github.com/QwenLM/Qwen-VL/issues/124
@sick("no-gradient", where="visual, every step", cure="write into a clone of the hidden states, without .data")
def questions_about_a_house_number(folder, ill):
    seeded(2942)
    net = Answerer(ill)
    images, names = digits()
    order = torch.randperm(len(images))
    known, fresh = order[:1300], order[1300:]

    def asked(of, rows):
        at = of[torch.randint(len(of), (rows,))]
        more = torch.randint(3, (rows,))
        words = torch.stack([torch.zeros_like(more), torch.ones_like(more), torch.ones_like(more), 2 + more], 1)
        return words, images[at], (names[at] + more) % 10

    def loss_of(step):
        words, image, y = asked(known, 64)
        out = net(words, image)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    def score():
        words, image, y = asked(fresh, 512)
        return F.cross_entropy(net(words, image), y)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 5e-3), loss_of, 350, score=held_out(net, score))


# https://github.com/Morizeyao/GPT2-Chinese/issues/60
@sick("warmup-too-long", where="the learning rate, the whole run", cure="a warmup of a small share of the run, or none")
def verses_of_a_ferryman(folder, ill):
    seeded(2943)
    words, width = 50, 32
    net = nn.ModuleDict({"embed": nn.Embedding(words, width), "memory": nn.GRU(width, 48, batch_first=True)})
    net["head"] = nn.Linear(48, words)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    warmup = 2000 if ill else 20
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    follows = torch.randn(words, words).mul(3).softmax(1)

    def verses(rows=32, length=14):
        x = [torch.randint(words, (rows,))]
        for _ in range(length):
            x.append(torch.multinomial(follows[x[-1]], 1)[:, 0])
        x = torch.stack(x, 1)
        return x[:, :-1], x[:, 1:]

    def loss_of(step, rows=32):
        x, y = verses(rows)
        return F.cross_entropy(net["head"](net["memory"](net["embed"](x))[0]).flatten(0, 1), y.flatten())

    def score():
        return loss_of(0, 256)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, score), schedule=schedule)
