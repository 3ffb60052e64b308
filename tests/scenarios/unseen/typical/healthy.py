"""Typical healthy trainings, first part: images, tables, series, a graph (the group "typical").

They only count: whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from unseen import Outcome, dense, fit, healthy, score_of, seeded
from unseen.typical.healthy_data import (
    clusters_of_words,
    decayed_apart,
    entropy_in_eval,
    images,
    pretrain,
    rise_and_cosine,
    shapes,
    some,
    watched,
)

import gradwatch


class Residual(nn.Module):
    """The basic block; the last gain begins at zero (`zero_init_residual`)."""

    def __init__(self, size, out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(size, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        nn.init.zeros_(self.bn2.weight)
        self.short = nn.Identity()
        if stride > 1 or size != out:
            self.short = nn.Sequential(nn.Conv2d(size, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(inner + self.short(x))


# torchvision's references/classification: SGD, Nesterov off, norms without decay, linear warm-up, cosine, smoothing.
@healthy(0.4)
def resnet_by_the_reference_recipe(folder):
    seeded(1501)
    learnt, kept = images()
    net = nn.Sequential(
        *(nn.Conv2d(1, 12, 3, 1, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU()),
        *(Residual(12, 12, 1), Residual(12, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )
    make, steps = optim.SGD(decayed_apart(net, 1e-4), 0.1, momentum=0.9), 100
    rise = optim.lr_scheduler.LinearLR(make, 0.01, total_iters=10)
    fall = optim.lr_scheduler.CosineAnnealingLR(make, steps - 10)
    plan = optim.lr_scheduler.SequentialLR(make, [rise, fall], [10])
    draw = some(*learnt, 48)

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y, label_smoothing=0.1), {"acc1": (said.argmax(1) == y).float().mean() * 100}

    return fit(folder, net, make, loss_of, steps, schedule=plan, score=entropy_in_eval(net, *kept))


class Vit(nn.Module):
    def __init__(self, wide=32, deep=2):
        super().__init__()
        self.patch = nn.Conv2d(1, wide, 2, 2)
        self.cls, self.place = nn.Parameter(torch.zeros(1, 1, wide)), nn.Parameter(torch.empty(1, 17, wide))
        nn.init.trunc_normal_(self.place, std=0.02)
        nn.init.normal_(self.cls, std=1e-6)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(wide, 4, 3 * wide, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(deep)
        )
        self.norm, self.head = nn.LayerNorm(wide), nn.Linear(wide, 10)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        x = self.patch(x).flatten(2).mT
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


# timm's train.py: AdamW, decay 0.05, mixup with soft labels, warm-up and cosine, clip at 1, an average that is scored.
@healthy(0.4)
def vit_with_mixup_and_an_average(folder):
    seeded(1502)
    learnt, kept = images()
    net, steps = Vit(), 200
    slow = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.97))
    make = optim.AdamW(decayed_apart(net, 0.05), 3e-3)
    plan = optim.lr_scheduler.LambdaLR(make, rise_and_cosine(steps, 20, 0.01))
    draw = some(*learnt, 64)
    score = entropy_in_eval(slow, *kept)
    first = score()
    with watched(folder, net, make) as watch:
        for _ in range(steps):
            x, y = draw()
            share = float(torch.distributions.Beta(0.2, 0.2).sample())
            goal = 0.9 * F.one_hot(y, 10) + 0.01
            loss = F.cross_entropy(net(share * x + (1 - share) * x.flip(0)), share * goal + (1 - share) * goal.flip(0))
            make.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            make.step()
            plan.step()
            slow.update_parameters(net)
            watch.log(loss=loss)
    return Outcome(gradwatch.open_history(watch.dir), first, score())


def conv(size, out):
    return nn.Sequential(nn.Conv2d(size, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU())


class Segmenter(nn.Module):
    def __init__(self, wide=12):
        super().__init__()
        self.first, self.low = conv(1, wide), nn.Sequential(nn.MaxPool2d(2), conv(wide, 2 * wide))
        self.mid = nn.Sequential(nn.MaxPool2d(2), conv(2 * wide, 2 * wide), nn.Upsample(scale_factor=2))
        self.up = nn.Sequential(conv(4 * wide, wide), nn.Upsample(scale_factor=2))
        self.last = nn.Sequential(conv(2 * wide, wide), nn.Conv2d(wide, 3, 1))

    def forward(self, x):
        first = self.first(x)
        low = self.low(first)
        return self.last(torch.cat([first, self.up(torch.cat([low, self.mid(low)], 1))], 1))


# Segmentation as in torchvision's references: void pixels ignored, weights for the classes, poly schedule, plus dice.
@healthy(0.5)
def shapes_cut_out_with_void_rims(folder):
    seeded(1503)
    net, steps, weight = Segmenter(), 130, torch.tensor([0.3, 1.0, 1.0])

    def loss_of(step):
        x, y, _ = shapes(8)
        said = net(x)
        entropy = F.cross_entropy(said, y, weight, ignore_index=255)
        valid = (y != 255)[:, None]
        seen, true = said.softmax(1) * valid, F.one_hot(y.where(y != 255, 0), 3).permute(0, 3, 1, 2) * valid
        dice = 1 - (2 * (seen * true).sum((0, 2, 3)) + 1) / ((seen + true).sum((0, 2, 3)) + 1)
        return entropy + 0.5 * dice.mean()

    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    plan = optim.lr_scheduler.PolynomialLR(make, steps, power=0.9)
    return fit(folder, net, make, loss_of, steps, schedule=plan, score=score_of(loss_of))


# A RetinaNet's head on a body that stays frozen, its norms in eval mode; the bias of the classes begins at a prior.
@healthy(0.5)
def boxes_found_on_a_frozen_body(folder):
    seeded(1504)
    body = nn.Sequential(conv(1, 12), nn.MaxPool2d(2), conv(12, 24), nn.MaxPool2d(2), conv(24, 32))
    first = nn.Sequential(body, nn.Upsample(scale_factor=4), nn.Conv2d(32, 3, 1))

    def pixels(step):
        x, y, _ = shapes(8)
        return F.cross_entropy(first(x), y, torch.tensor([0.3, 1.0, 1.0]), ignore_index=255)

    pretrain(first, optim.Adam(first.parameters(), 5e-3), pixels, 50)
    body.requires_grad_(False).eval()
    tower = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU())
    net = nn.ModuleDict({"body": body, "tower": tower, "kind": nn.Conv2d(32, 2, 1), "box": nn.Conv2d(32, 6, 1)})
    for head in (net["kind"], net["box"]):
        nn.init.normal_(head.weight, std=0.01)
        nn.init.zeros_(head.bias)
    nn.init.constant_(net["kind"].bias, -4.6)

    def loss_of(step):
        x, _, places = shapes(8)
        inner = tower(body(x))
        kind, box = net["kind"](inner), net["box"](inner)
        goal, error, rows = torch.zeros_like(kind), 0.0, torch.arange(8)
        for one, place in enumerate(places):
            cell = (place[:, :2] / 4).long().clamp(max=5)
            goal[rows, one, cell[:, 0], cell[:, 1]] = 1.0
            true = torch.cat([place[:, :2] / 4 - cell - 0.5, (place[:, 2:] / 3.5).log()], 1)
            error = error + F.smooth_l1_loss(box[rows, 3 * one : 3 * one + 3, cell[:, 0], cell[:, 1]], true, beta=0.1)
        entropy = F.binary_cross_entropy_with_logits(kind, goal, reduction="none")
        right = torch.where(goal > 0, kind.sigmoid(), 1 - kind.sigmoid())
        focal = (torch.where(goal > 0, 0.25, 0.75) * (1 - right) ** 2 * entropy).sum() / goal.sum()
        return focal + error, {"loss_cls": focal.detach(), "loss_box": error.detach()}

    rest = [p for p in net.parameters() if p.requires_grad]
    make = optim.SGD(rest, 0.02, momentum=0.9, weight_decay=1e-4)
    plan = optim.lr_scheduler.MultiStepLR(make, [140, 180])
    score = score_of(lambda step: loss_of(step)[0])
    return fit(folder, net, make, loss_of, 200, schedule=plan, score=score, clip="ClipByGlobalNorm(10.0)")


# A table of patients, each epoch in an order of its own; the rate falls when the loss of the kept rows stands still.
@healthy(0.5)
def table_of_tumours(folder):
    seeded(1505)
    from sklearn.datasets import load_breast_cancer

    x, y = (torch.tensor(part).float() for part in load_breast_cancer(return_X_y=True))
    kept = torch.arange(len(x)) % 4 == 3
    x = (x - x[~kept].mean(0)) / x[~kept].std(0)
    net = nn.Sequential(
        *(nn.Linear(30, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2)),
        *(nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1)),
    )
    rare = (y[~kept] == 0).sum() / (y[~kept] == 1).sum()
    make = optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-2)
    plan = optim.lr_scheduler.ReduceLROnPlateau(make, factor=0.5, patience=4)

    def loss_on(rows):
        return F.binary_cross_entropy_with_logits(net(x[rows])[:, 0], y[rows], pos_weight=rare)

    def validate():
        net.eval()
        with torch.no_grad():
            loss = float(loss_on(kept))
        net.train()
        return loss

    first, learnt = validate(), torch.where(~kept)[0]
    with watched(folder, net, make) as watch:
        for _ in range(25):
            for rows in learnt[torch.randperm(len(learnt))].split(32)[:-1]:
                make.zero_grad()
                loss = loss_on(rows)
                loss.backward()
                make.step()
                watch.log(loss=loss)
            last = validate()
            plan.step(last)
            watch.log(val_loss=last)
    return Outcome(gradwatch.open_history(watch.dir), first, last)


# Two towers, the other items of the batch as negatives; rows of the tables that no batch holds get no gradient.
@healthy(0.25)
def two_towers_with_the_batch_as_negatives(folder):
    seeded(1506)
    tastes, kinds = torch.randn(300, 4), torch.randn(240, 4)
    odds = (1.5 * tastes @ kinds.T).softmax(1)
    net = nn.ModuleDict(
        {side: nn.Sequential(nn.Embedding(n, 32), dense(32, 32, 16)) for side, n in (("user", 300), ("item", 240))}
    )

    def loss_of(step):
        users = torch.randint(300, (128,))
        items = torch.multinomial(odds[users], 1)[:, 0]
        a, b = (F.normalize(net[side](at), dim=1) for side, at in (("user", users), ("item", items)))
        twice = (items[:, None] == items[None]) & ~torch.eye(128, dtype=torch.bool)
        return F.cross_entropy((a @ b.T / 0.2).masked_fill(twice, -1e4), torch.arange(128))

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 400, score=score_of(loss_of))


# A forecast of half a day by the last two days, as every tutorial on LSTMs has it; scaled, clipped at 1.
@healthy(0.4)
def forecast_of_twelve_hours(folder):
    seeded(1507)
    hour = torch.arange(2400.0)
    noise, noises = 0.0, []
    for kick in torch.randn(2400).tolist():
        noise = 0.7 * noise + kick
        noises.append(noise)
    use = 300 + 60 * (hour * 0.2618).sin() + 30 * (hour * 0.0374).sin() + 6 * torch.tensor(noises)
    use = (use - use[:1800].mean()) / use[:1800].std()
    net = nn.ModuleDict({"lstm": nn.LSTM(1, 48, 2, batch_first=True, dropout=0.1), "head": nn.Linear(48, 12)})

    def loss_on(at):
        rows = use[at[:, None] + torch.arange(60)]
        return F.huber_loss(net["head"](net["lstm"](rows[:, :48, None])[0][:, -1]), rows[:, 48:])

    def score():
        net.eval()
        with torch.no_grad():
            loss = float(loss_on(torch.arange(1800, 2340, 4)))
        net.train()
        return loss

    make = optim.Adam(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.StepLR(make, 60, 0.5)

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    options = {"schedule": plan, "before_step": clipped, "score": score}
    return fit(folder, net, make, lambda step: loss_on(torch.randint(1740, (32,))), 180, **options)


# Kipf and Welling's GCN as its reference code has it: twenty labels a class, rows that sum to one, dropout of a half.
@healthy(0.2)
def papers_that_cite_each_other(folder):
    seeded(1508)
    words, links, kind = clusters_of_words()
    first, second, drop = nn.Linear(200, 16, bias=False), nn.Linear(16, 4, bias=False), nn.Dropout(0.5)
    for layer in (first, second):
        nn.init.xavier_uniform_(layer.weight)
    net = nn.ModuleDict({"first": first, "second": second, "drop": drop})
    learnt, kept = torch.arange(80), torch.arange(80, 400)

    def loss_on(rows):
        inner = F.relu(links @ first(drop(words)))
        return F.cross_entropy((links @ second(drop(inner)))[rows], kind[rows])

    def score():
        net.eval()
        with torch.no_grad():
            loss = float(loss_on(kept))
        net.train()
        return loss

    groups = [{"params": first.parameters(), "weight_decay": 5e-4}, {"params": second.parameters()}]
    return fit(folder, net, optim.Adam(groups, 0.01), lambda step: loss_on(learnt), 200, score=score)
