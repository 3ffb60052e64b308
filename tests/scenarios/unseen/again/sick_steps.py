"""Sick trainings that no rule was written for: mistakes on the side of the step, drawn by lot, part one."""

from __future__ import annotations

import torch
from nets import batches, digits
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, mean, rings, score_of, seeded, sick

import gradwatch


def watched(folder, net, optimizer, train_step, steps, score) -> Outcome:
    """A loop that its caller writes out: `train_step(step)` does all of a step and gives the loss to be logged."""
    first = float(score())
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, optimizer)}
    watch = gradwatch.watch(net, optimizer, **options)
    with watch:
        for step in range(steps):
            watch.log(loss=train_step(step))
    return Outcome(gradwatch.open_history(watch.dir), first, mean([float(score())]))


# ----------------------------------------------------------------------------------------------------------- contrast


class SimClr(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = dense(24, 64, 64, 32)
        self.projector = nn.Sequential(nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        return F.normalize(self.projector(self.encoder(x)), dim=1)


def nt_xent(a, b, temperature):
    z = torch.cat([a, b])
    likeness = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    return F.cross_entropy(likeness, torch.arange(len(z)).roll(len(a)))


@sick(
    "betas-swapped", "momentum-too-high", "lr-too-high", "update-too-large",
    where="all layers, once the gradients fall (from step 20 or so)", cure="betas=(0.9, 0.999): they are swapped",
)  # fmt: skip
def two_views_under_swapped_memories(folder, ill):
    seeded(1201)
    net, lift, bend = SimClr(), torch.randn(6, 24), torch.randn(24, 24) / 5

    def view(point):
        return ((point + 0.15 * torch.randn_like(point)) @ lift).tanh() @ bend + 0.2 * torch.randn(len(point), 24)

    def loss_of(step):
        point = torch.randn(64, 6)
        return nt_xent(net(view(point)), net(view(point)), 0.2)

    make = optim.Adam(net.parameters(), 3e-3, betas=(0.999, 0.9) if ill else (0.9, 0.999))
    return fit(folder, net, make, loss_of, 350, score=score_of(loss_of))


# ------------------------------------------------------------------------------------------------------- distillation


def teacher_of_digits():
    """A net that was trained on the digits already."""
    teacher, batch = nn.Sequential(nn.Flatten(), dense(64, 128, 128, 10)), batches(64, seed=5)
    make = optim.Adam(teacher.parameters(), 3e-3)
    for step in range(150):
        x, y = batch(step)
        make.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        make.step()
    return teacher.eval().requires_grad_(False)


@sick(
    "update-too-small", "no-progress", "loss-divided-twice",
    where="all layers, all steps", cure="divide by the number of parts once: the loss function does so already",
)  # fmt: skip
def student_whose_parts_are_divided_again(folder, ill):
    seeded(1202)
    teacher, parts, warm = teacher_of_digits(), 8, 2.0
    student, batch = nn.Sequential(nn.Flatten(), dense(64, 48, 10)), batches(16)

    def distil(step):
        x, y = batch(step)
        with torch.no_grad():
            wanted = teacher(x) / warm
        guess = (student(x) / warm).log_softmax(1)
        soft = F.kl_div(guess, wanted.log_softmax(1), reduction="batchmean", log_target=True)
        return 0.7 * warm**2 * soft + 0.3 * F.cross_entropy(student(x), y)

    make = optim.SGD(student.parameters(), 0.03, momentum=0.5)

    def train_step(step):
        total = 0.0
        make.zero_grad()
        for part in range(parts):
            loss = distil(parts * step + part) / parts
            total += loss.item()
            (loss / parts if ill else loss).backward()
        make.step()
        return total

    return watched(folder, student, make, train_step, 120, score_of(distil, 20))


# ------------------------------------------------------------------------------------------------------ a deep resnet


class PreBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x):
        return x + self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))


class ResNet(nn.Module):
    def __init__(self, width=8, depth=4):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*(PreBlock(width) for _ in range(depth)))
        self.norm, self.head = nn.BatchNorm2d(width), nn.Linear(width, 10)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.blocks(self.stem(x[:, None])))).mean((2, 3)))


@sick(
    "schedule-too-short", "schedule-ran-out", "update-too-small", "weights-unchanged", "no-progress",
    where="all layers, from step 20 or so: the rate is cut every few steps",
    cure="ask ReduceLROnPlateau once an epoch, with the mean loss of the epoch",
)  # fmt: skip
def blocks_whose_patience_is_two_batches(folder, ill):
    seeded(1205)
    net, batch = ResNet(), batches(32)
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    plan = optim.lr_scheduler.ReduceLROnPlateau(make, factor=0.3, patience=2)
    epoch = []

    def train_step(step):
        x, y = batch(step)
        loss = F.cross_entropy(net(x + 0.2 * torch.randn_like(x)), y)
        make.zero_grad()
        loss.backward()
        make.step()
        epoch.append(loss.item())
        if ill:
            plan.step(loss.item())
        elif step % 50 == 49:
            plan.step(mean(epoch))
            epoch.clear()
        return loss

    def score():
        net.eval()
        x, y = digits()
        with torch.no_grad():
            loss = F.cross_entropy(net(x), y)
        net.train()
        return loss

    return watched(folder, net, make, train_step, 250, score)


# ------------------------------------------------------------------------------------------------- a picture in a net


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(x)


def siren(width=64, speed=12.0):
    net = dense(2, width, width, width, 1, act=Sine)
    for i, layer in enumerate(net[::2]):
        reach = speed / 2 if i == 0 else (6 / width) ** 0.5
        nn.init.uniform_(layer.weight, -reach, reach)
    return net


@sick(
    "no-gradient", "weights-unchanged", "no-progress", "accumulation-wiped", "zeroed-before-the-step",
    where="all layers, all steps", cure="zero_grad before backward: between backward and step it wipes what step reads",
)  # fmt: skip
def picture_whose_gradients_are_tidied_away(folder, ill):
    seeded(1206)
    line = torch.linspace(-1, 1, 24)
    at = torch.cartesian_prod(line, line)
    picture = (5 * at[:, :1] + 3 * at[:, 1:].square()).sin() * (-at.square().sum(1, keepdim=True)).exp()
    picture[at.abs().amax(1) < 0.3] = 1.0
    net = siren()
    make = optim.AdamW(net.parameters(), 1e-3)

    def train_step(step):
        if not ill:
            make.zero_grad()
        loss = F.mse_loss(net(at), picture)
        loss.backward()
        if ill:
            make.zero_grad(set_to_none=False)
        make.step()
        return loss

    def score():
        with torch.no_grad():
            return F.mse_loss(net(at), picture)

    return watched(folder, net, make, train_step, 200, score)


# ------------------------------------------------------------------------------------------------------------- experts


class Experts(nn.Module):
    def __init__(self, seen=12, classes=4, experts=4):
        super().__init__()
        self.router = nn.Linear(seen, experts)
        self.experts = nn.ModuleList(dense(seen, 32, classes) for _ in range(experts))

    def forward(self, x):
        share = self.router(x).softmax(1)
        best, at = share.topk(2, 1)
        every = torch.stack([expert(x) for expert in self.experts], 1)
        chosen = every.gather(1, at[:, :, None].expand(-1, -1, every.shape[2]))
        even = len(self.experts) * (F.one_hot(at[:, 0], len(self.experts)).float().mean(0) @ share.mean(0))
        return (best[:, :, None] / best.sum(1)[:, None, None] * chosen).sum(1), even


@sick(
    "weight-decay-too-strong", "weights-shrink",
    where="all layers, from the first steps",
    cure="AdamW: in Adam a decay of 0.1 is a gradient of 0.1 times the weight",
)  # fmt: skip
def two_of_four_experts_by_adam(folder, ill):
    seeded(1220)
    net, draw = Experts(), rings()

    def loss_of(step, weight=0.02):
        x, y = draw()
        logits, even = net(x)
        return F.cross_entropy(logits, y) + weight * even

    make = (optim.Adam if ill else optim.AdamW)(net.parameters(), 3e-3, weight_decay=0.1)
    return fit(folder, net, make, loss_of, 300, score=score_of(lambda step: loss_of(step, 0.0), 10))


# ------------------------------------------------------------------------------------------------- a vision transformer


class ViT(nn.Module):
    def __init__(self, width=32, depth=2):
        super().__init__()
        self.patch, self.place = nn.Conv2d(1, width, 2, stride=2), nn.Parameter(0.02 * torch.randn(17, width))
        self.first = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, norm_first=True, batch_first=True)
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        h = self.patch(x[:, None]).flatten(2).transpose(1, 2)
        h = torch.cat([self.first.expand(len(x), -1, -1), h], 1) + self.place
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h[:, 0]))


@sick(
    "clip-inert", "clip-after-the-step", "clip-after-step", "exploding", "lr-too-high", "update-too-large",
    where="all layers, all steps: the clip stands behind the step", cure="clip between backward and step",
)  # fmt: skip
def patches_of_digits_tamed_too_late(folder, ill):
    seeded(1223)
    net, batch = ViT(), batches(32)
    make = optim.SGD(net.parameters(), 0.4, momentum=0.9)

    def train_step(step):
        x, y = batch(step)
        loss = F.cross_entropy(net(x), y)
        make.zero_grad()
        loss.backward()
        if ill:
            make.step()
            nn.utils.clip_grad_norm_(net.parameters(), 0.2)
        else:
            nn.utils.clip_grad_norm_(net.parameters(), 0.2)
            make.step()
        return loss

    def score():
        x, y = batches(256, seed=9)(0)
        with torch.no_grad():
            return F.cross_entropy(net(x), y)

    return watched(folder, net, make, train_step, 250, score)
