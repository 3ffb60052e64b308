"""Healthy trainings of every day, first part: pictures, tables, clicks and sequences with the settings of tutorials."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
from trainings import TREATMENT
from unseen import Outcome, fit, healthy, seeded

import gradwatch


def evaluated(net, of):
    """`score()`: what `of()` gives of a net in eval, without gradients."""

    def score():
        net.eval()
        with torch.no_grad():
            value = float(of())
        net.train()
        return value

    return score


def epochs(folder, net, make, loader, loss_of, times, score, max_norm=None, schedule=None, after_epoch=None):
    """A plain loop over a DataLoader; `schedule` steps once a batch, `after_epoch(epoch)` is asked once an epoch.

    `loss_of(*batch)` gives the loss and a dict of what else is logged.
    """
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, make)}
    first = score()
    watch = gradwatch.watch(net, make, **options)
    with watch:
        for epoch in range(times):
            net.train()
            for batch in loader:
                make.zero_grad()
                loss, logged = loss_of(*batch)
                loss.backward()
                if max_norm:
                    nn.utils.clip_grad_norm_(net.parameters(), max_norm)
                make.step()
                if schedule:
                    schedule.step()
                watch.log(loss=loss, **logged)
            if after_epoch:
                after_epoch(epoch)
    return Outcome(gradwatch.open_history(watch.dir), first, score())


def right(out, y):
    """The share of rows whose largest logit is the right one."""
    return (out.argmax(-1) == y).float().mean()


def parted(share=0.8):
    """The digits as `[N, 1, 8, 8]` and their labels, those to train on and those to test on."""
    x, y = digits()
    order = torch.randperm(len(x))
    cut = int(share * len(x))
    return [(x[at][:, None], y[at]) for at in (order[:cut], order[cut:])]


def conv_net(classes=10, wide=16, channels=1):
    """Conv, BatchNorm, ReLU, twice with a pool between, and a linear head."""

    def block(a, b):
        return [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]

    return nn.Sequential(
        *block(channels, wide), nn.MaxPool2d(2), *block(wide, 2 * wide), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(2 * wide, classes),
    )  # fmt: skip


def classified(net):
    """`loss_of(x, y)` with the accuracy beside it."""

    def loss_of(x, y):
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": right(out, y)}

    return loss_of


# ----------------------------------------------------------------------------------------------------------- sequences


class Encoder(nn.Module):
    """A small BERT: embeddings of tokens and places, two layers, the head of the task."""

    def __init__(self, kinds=32, width=48, length=16, out=32):
        super().__init__()
        self.token, self.place = nn.Embedding(kinds, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, out)
        for table in (self.token, self.place):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, x):
        return self.norm(self.body(self.token(x) + self.place.weight[: x.shape[1]]))


def two_groups(net, decay):
    """As the libraries do: matrices decay, biases and norms do not."""
    named = list(net.named_parameters())
    return [
        {"params": [p for _, p in named if p.ndim > 1], "weight_decay": decay},
        {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]


@healthy(0.3)
def sentences_by_an_encoder_that_was_tuned(folder):
    """BERT's recipe on what a masked-token task has pretrained: a new head, AdamW, a tenth of warm-up, linear decay."""
    seeded(1)
    net = Encoder()
    topics = (1.5 * torch.randn(9, 31)).softmax(1)

    def sentences(n):
        topic = torch.randint(9, (n,))
        return torch.multinomial(topics[topic], 16, replacement=True) + 1, topic % 3

    before = optim.AdamW(net.parameters(), 2e-3)
    for _ in range(150):
        x, _ = sentences(48)
        hidden = torch.rand(x.shape) < 0.15
        before.zero_grad()
        out = net.head(net(x.masked_fill(hidden, 0)))
        F.cross_entropy(out[hidden], x[hidden]).backward()
        before.step()

    net.head = nn.Linear(48, 3)
    loader = DataLoader(TensorDataset(*sentences(640)), batch_size=32, shuffle=True)
    held = sentences(400)
    make = optim.AdamW(two_groups(net, 0.01), 5e-4)
    total = 6 * len(loader)
    plan = optim.lr_scheduler.LambdaLR(make, lambda s: min(s / (0.1 * total), (total - s) / (0.9 * total)))

    def loss_of(x, y):
        out = net.head(net(x).mean(1))
        return F.cross_entropy(out, y), {"accuracy": right(out, y)}

    score = evaluated(net, lambda: loss_of(*held)[0])
    return epochs(folder, net, make, loader, loss_of, 6, score, max_norm=1.0, schedule=plan)


@healthy(0.3)
def codes_corrected_by_an_encoder_and_a_decoder(folder):
    """T5's optimizer at its constant rate: a repeated symbol was lost in every gap, and stands there once more."""
    seeded(2)

    class Translator(nn.Module):
        def __init__(self, kinds=14, width=32):
            super().__init__()
            self.token = nn.Embedding(kinds, width)
            self.place = nn.Parameter(0.1 * torch.randn(12, width))
            self.core = nn.Transformer(width, 4, 2, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.head = nn.Linear(width, kinds)

        def forward(self, source, target):
            ahead = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
            a, b = (self.token(t) + self.place[: t.shape[1]] for t in (source, target))
            return self.head(self.core(a, b, tgt_mask=ahead, tgt_is_causal=True))

    net = Translator()
    make = optim.Adafactor(net.parameters(), 1e-2)

    def loss_of(step):
        code = torch.randint(2, 14, (32, 10))
        lost = torch.rand(32, 10) < 0.3
        lost[:, 0] = False
        code[:, 1:] = torch.where(lost[:, 1:], code[:, :-1], code[:, 1:])
        shown = torch.cat([torch.ones(32, 1, dtype=torch.long), code[:, :-1]], 1)
        out = net(code.masked_fill(lost, 0), shown)
        return F.cross_entropy(out.flatten(0, 1), code.flatten()), {"accuracy": right(out, code)}

    return fit(folder, net, make, loss_of, 200)


# ------------------------------------------------------------------------------------------------------------ pictures


@healthy(0.5)
def scans_in_epochs_with_nesterov_and_milestones(folder):
    seeded(3)
    train, test = parted()
    net = conv_net()
    loader = DataLoader(TensorDataset(*train), batch_size=64, shuffle=True)
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    plan = optim.lr_scheduler.MultiStepLR(make, [7, 10], gamma=0.1)
    score = evaluated(net, lambda: F.cross_entropy(net(test[0]), test[1]))
    return epochs(folder, net, make, loader, classified(net), 12, score, after_epoch=lambda epoch: plan.step())


def framed(n, size=16):
    """Pictures of one full, hollow or crossed rectangle in noise; its box as centre and size from 0 to 1; its kind."""
    kind = torch.randint(3, (n,))
    low = torch.randint(1, 8, (n, 2))
    long = torch.randint(5, 8, (n, 2))
    at = torch.arange(size)
    x, y = at[None, None, :], at[None, :, None]
    left, top = (low[:, i, None, None] for i in (0, 1))
    wide, high = (long[:, i, None, None] for i in (0, 1))
    inside = (x >= left) & (x < left + wide) & (y >= top) & (y < top + high)
    edge = inside & ((x == left) | (x == left + wide - 1) | (y == top) | (y == top + high - 1))
    cross = inside & ((x == left + wide // 2) | (y == top + high // 2))
    shape = torch.stack([inside, edge, cross])[kind, torch.arange(n)].float()
    box = torch.cat([low + long / 2, long], 1) / size
    return (shape + 0.1 * torch.randn(n, size, size))[:, None], box, kind


def overlap(a, b):
    """The intersection over the union of boxes given by centre and size."""
    low = torch.maximum(a[:, :2] - a[:, 2:] / 2, b[:, :2] - b[:, 2:] / 2)
    high = torch.minimum(a[:, :2] + a[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2)
    both = (high - low).clamp(min=0).prod(1)
    return both / (a[:, 2:].prod(1) + b[:, 2:].prod(1) - both)


@healthy(0.3)
def rectangles_and_kinds_by_momentum_with_a_rise(folder):
    """A box by smooth L1 and its kind by cross-entropy: SGD, a linear rise, two falls."""
    seeded(4)

    class Finder(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Linear(512, 64), nn.ReLU(),
            )  # fmt: skip
            self.box, self.kind = nn.Linear(64, 4), nn.Linear(64, 3)

        def forward(self, x):
            h = self.body(x)
            return self.box(h).sigmoid(), self.kind(h)

    net = Finder()
    held, held_box, _ = framed(256)
    make = optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)
    rise = optim.lr_scheduler.LinearLR(make, 0.01, total_iters=40)
    falls = optim.lr_scheduler.MultiStepLR(make, [250, 320])
    plan = optim.lr_scheduler.ChainedScheduler([rise, falls])

    def loss_of(step):
        x, box, kind = framed(32)
        found, told = net(x)
        of_box, of_kind = F.smooth_l1_loss(found, box, beta=0.1), F.cross_entropy(told, kind)
        return 5 * of_box + of_kind, {"iou": overlap(found.detach(), box).mean(), "loss_box": of_box}

    score = evaluated(net, lambda: 1 - overlap(net(held)[0], held_box).mean())
    return fit(folder, net, make, loss_of, 350, score=score, schedule=plan)


@healthy(0.3)
def embeddings_by_the_nearest_farther_negative(folder):
    """FaceNet's semi-hard triplets, a margin of 0.2 on the unit sphere."""
    seeded(5)
    train, test = parted()
    net = conv_net(16)
    make = optim.Adam(net.parameters(), 1e-3)

    def triplets(x, y):
        out = F.normalize(net(x), dim=1)
        far = (2 - 2 * out @ out.T).clamp(min=0)
        same = y[:, None] == y
        pair = same & ~torch.eye(len(y), dtype=torch.bool)
        a, p = pair.nonzero(as_tuple=True)
        other = far[a].masked_fill(same[a] | (far[a] <= far[a, p][:, None]), 9.0).amin(1)
        return F.relu(far[a, p] - torch.where(other < 9, other, far[a].masked_fill(same[a], 0).amax(1)) + 0.2)

    def loss_of(x, y):
        each = triplets(x, y)
        return each.mean(), {"active": (each > 0).float().mean()}

    loader = DataLoader(TensorDataset(*train), batch_size=64, shuffle=True, drop_last=True)
    return epochs(folder, net, make, loader, loss_of, 12, evaluated(net, lambda: triplets(*test).mean()))


@healthy(0.3)
def unequal_kinds_drawn_equally_often(folder):
    """A long tail of digits under a WeightedRandomSampler; the score counts each kind alike."""
    seeded(6)
    (x, y), test = parted()
    kept = torch.cat([(y == k).nonzero()[:, 0][: int(130 * 0.75**k) + 1] for k in range(10)])
    x, y = x[kept], y[kept]
    sampler = WeightedRandomSampler((1 / torch.bincount(y))[y], 900)
    net = conv_net()
    make = optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(TensorDataset(x, y), batch_size=50, sampler=sampler)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 15 * len(loader))
    score = evaluated(net, lambda: F.cross_entropy(net(test[0]), test[1]))
    return epochs(folder, net, make, loader, classified(net), 15, score, schedule=plan)
