"""Healthy: digits, padded words, a language model, a variational autoencoder, segmentation, a graph, a table."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def digits():
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    return x[order], y[order]


@healthy(0.6)
def house_numbers_along_a_lane(folder):
    seeded(10150)
    x, y = digits()
    draw = rounds(64, x[:1500], y[:1500])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=280)

    def loss_of(step):
        image, digit = draw()
        shift = torch.randint(-1, 2, (2,)).tolist()
        said = net(image.roll(shift, (2, 3)) + 0.05 * torch.randn_like(image))
        loss = F.cross_entropy(said, digit, label_smoothing=0.05)
        return loss, {"accuracy": float((said.argmax(1) == digit).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1500:]), y[1500:]))
    return fit(folder, net, optimizer, loss_of, 280, score=score, schedule=schedule)


@healthy()
def words_that_tell_a_dialect(folder):
    seeded(10151)
    net = nn.ModuleDict({
        "letter": nn.Embedding(21, 24, padding_idx=0),
        "memory": nn.GRU(24, 32, batch_first=True, bidirectional=True),
        "head": nn.Linear(64, 3),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    habit = torch.stack([(2 * torch.randn(21, 20)).softmax(1) for _ in range(3)])

    def words(rows):
        y, length = torch.randint(3, (rows,)), torch.randint(5, 15, (rows,))
        letters = [torch.randint(20, (rows,))]
        for _ in range(13):
            letters.append(torch.multinomial(habit[y, letters[-1]], 1)[:, 0])
        x = torch.stack(letters, 1) + 1
        return x * (torch.arange(14) < length[:, None]), length, y

    def loss_on(x, length, y):
        seen = nn.utils.rnn.pack_padded_sequence(net["letter"](x), length, True, False)
        last = net["memory"](seen)[1]
        return F.cross_entropy(net["head"](torch.cat([last[0], last[1]], 1)), y)

    test = words(512)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*words(64)), 250, score=score,
               before_step=clipped(net, 1.0))  # fmt: skip


@healthy()
def recipes_in_a_grandmothers_hand(folder):
    seeded(10152)
    width, length, words = 32, 24, 20
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.05, batch_first=True, norm_first=True,
                                       activation="gelu")  # fmt: skip
    net = nn.ModuleDict({
        "word": nn.Embedding(words, width),
        "place": nn.Embedding(length, width),
        "body": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        "norm": nn.LayerNorm(width),
        "head": nn.Linear(width, words, bias=False),
    })  # fmt: skip
    for weight in net.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.02)
    decayed = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, 4e-3, betas=(0.9, 0.95))
    steps = 240
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1, (s + 1) / 30) * (0.1 + 0.45 * (1 + math.cos(math.pi * s / steps)))
    )
    phrases = torch.randint(words, (12, 5))
    ban = nn.Transformer.generate_square_subsequent_mask(length)

    def pages(rows):
        return phrases[torch.randint(12, (rows, 6))].flatten(1)[:, : length + 1]

    def loss_on(text):
        x = net["word"](text[:, :-1]) + net["place"](torch.arange(length))
        said = net["head"](net["norm"](net["body"](x, mask=ban, is_causal=True)))
        return F.cross_entropy(said.flatten(0, 1), text[:, 1:].flatten())

    test = pages(128)
    return fit(folder, net, optimizer, lambda step: loss_on(pages(24)), steps, schedule=schedule,
               score=held_out(net, lambda: loss_on(test)), before_step=clipped(net, 1.0))  # fmt: skip


@healthy()
def postmarks_squeezed_into_six_numbers(folder):
    seeded(10153)
    x, _ = digits()
    x = x.flatten(1)
    draw = rounds(64, x[:1500])
    net = nn.ModuleDict({"encoder": dense(64, 96, 12), "decoder": dense(6, 96, 64)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def bound(x, weight):
        middle, spread = net["encoder"](x).chunk(2, 1)
        z = middle + torch.randn_like(middle) * (spread / 2).exp()
        again = F.binary_cross_entropy_with_logits(net["decoder"](z), x, reduction="none").sum(1).mean()
        kl = 0.5 * (middle.square() + spread.exp() - 1 - spread).sum(1).mean()
        return again + weight * kl, again, kl

    def loss_of(step):
        loss, again, kl = bound(draw()[0], min(1.0, step / 150))
        return loss, {"reconstruction": float(again.detach()), "kl": float(kl.detach())}

    score = held_out(net, lambda: bound(x[1500:], 1.0)[0])
    return fit(folder, net, optimizer, loss_of, 500, score=score)


class Hourglass(nn.Module):
    """A small U-Net."""

    def __init__(self, width):
        super().__init__()

        def block(ins, outs):
            return nn.Sequential(nn.Conv2d(ins, outs, 3, padding=1), nn.GroupNorm(4, outs), nn.SiLU())

        self.down, self.low = block(1, width), block(width, 2 * width)
        self.up = block(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        high = self.down(x)
        low = F.interpolate(self.low(F.max_pool2d(high, 2)), scale_factor=2)
        return self.out(self.up(torch.cat([high, low], 1)))


@healthy()
def lily_pads_on_a_pond(folder):
    seeded(10154)
    net = Hourglass(8)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    grid = torch.linspace(-1, 1, 20)

    def ponds(rows):
        at, wide = 1.4 * torch.rand(rows, 3, 2) - 0.7, 0.2 + 0.15 * torch.rand(rows, 3)
        far = (grid - at[..., :1])[:, :, None] ** 2 + (grid - at[..., 1:])[..., None] ** 2
        pads = (far < wide[..., None, None] ** 2).any(1, keepdim=True).float()
        return pads - 0.3 + 0.5 * torch.randn(rows, 1, 20, 20), pads

    def terms(image, pads):
        said = net(image)
        cover = said.sigmoid()
        dice = 1 - (2 * (cover * pads).sum((1, 2, 3)) + 1) / (cover.sum((1, 2, 3)) + pads.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(said, pads), dice.mean()

    def loss_of(step):
        bce, dice = terms(*ponds(16))
        return bce + dice, {"bce": float(bce.detach()), "dice": float(dice.detach())}

    test = ponds(128)
    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: sum(terms(*test))))


@healthy()
def guilds_among_the_market_stalls(folder):
    seeded(10155)
    nodes, kinds = 160, 4
    y = torch.arange(nodes) % kinds
    chance = torch.where(y[:, None] == y, 0.2, 0.02)
    edges = (torch.rand(nodes, nodes) < chance).triu(1).float()
    edges = edges + edges.T + torch.eye(nodes)
    root = edges.sum(1).rsqrt()
    spread = root[:, None] * edges * root
    x = 0.7 * torch.randn(kinds, 16)[y] + 1.5 * torch.randn(nodes, 16)
    first, second, drop = nn.Linear(16, 32), nn.Linear(32, kinds), nn.Dropout(0.3)
    net = nn.ModuleDict({"first": first, "second": second, "drop": drop})
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)
    known = torch.randperm(nodes) < 48

    def said():
        return spread @ second(drop(F.relu(spread @ first(x))))

    def loss_of(step):
        out = said()
        return F.cross_entropy(out[known], y[known]), {"accuracy": float((out.argmax(1) == y)[~known].float().mean())}

    score = held_out(net, lambda: F.cross_entropy(said()[~known], y[~known]))
    return fit(folder, net, optimizer, loss_of, 120, score=score)


@healthy()
def samples_in_a_country_laboratory(folder):
    seeded(10156)
    bunch = load_breast_cancer()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target).float()
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:400].mean(0)) / x[:400].std(0)
    draw = rounds(32, x[:400], y[:400])
    net = dense(30, 32, 32, 1, norm=nn.BatchNorm1d)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, nesterov=True, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 80, 0.3)

    def loss_on(x, y):
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], y)

    score = held_out(net, lambda: loss_on(x[400:], y[400:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 200, score=score, schedule=schedule)
