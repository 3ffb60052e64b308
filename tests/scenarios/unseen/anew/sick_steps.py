"""Sick trainings of the step: rates, schedules, decay, scalers and clips, drawn by lot with tasks; first part."""

from __future__ import annotations

import copy

import torch
from nets import batches
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, score_of, seeded, sick

import gradwatch


def loop(folder, net, optimizers, one, steps, score):
    """A loop under a Watch for what `fit` does not write: `one(step)` does all of a step and gives what is logged."""
    first = float(score())
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, optimizers[0])}
    with gradwatch.watch(net, optimizers, **options) as watch:
        for step in range(steps):
            watch.log(**one(step))
    return Outcome(gradwatch.open_history(watch.dir), first, float(score()))


class Patches(nn.Module):
    """A small vision transformer: sixteen patches of two by two pixels, a token for the kind, learned places."""

    def __init__(self, width=32, depth=2, kinds=10):
        super().__init__()
        self.cut = nn.Conv2d(1, width, 2, stride=2)
        self.kind = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        h = self.cut(x[:, None]).flatten(2).transpose(1, 2)
        h = torch.cat([self.kind.expand(len(h), -1, -1), h], 1) + self.place
        return self.head(self.norm(self.blocks(h))[:, 0])


@sick(
    "weight-decay-too-strong", "weights-shrink", "decay-on-norm-gains",
    where="gains of the norms, places and matrices alike, within 100 steps",
    cure="a decay of 0.05, for the matrices alone",
)  # fmt: skip
def patches_in_one_group_with_their_gains(folder, ill):
    """One group for everything, and 5 where the recipe says 0.05."""
    seeded(301)
    net, batch = Patches(), batches(64, seed=31)

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(x), y)

    if ill:
        make = optim.AdamW(net.parameters(), lr=3e-3, weight_decay=5.0)
    else:
        matrices = [p for p in net.parameters() if p.ndim == 2]
        rest = [p for p in net.parameters() if p.ndim != 2]
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
        make = optim.AdamW(groups, lr=3e-3)
    return fit(folder, net, make, loss_of, 250)


class Grid:
    """A grid of five by five: four moves, the goal pays 1, every other move costs 0.05."""

    def __init__(self, goal, side=5, discount=0.9):
        self.goal, self.side, self.discount = goal, side, discount
        self.eye = torch.eye(side * side)

    def move(self, state, action):
        row, column = state // self.side, state % self.side
        row = (row + torch.tensor([-1, 1, 0, 0])[action]).clamp(0, self.side - 1)
        column = (column + torch.tensor([0, 0, -1, 1])[action]).clamp(0, self.side - 1)
        after = row * self.side + column
        done = after == self.goal
        return after, torch.where(done, 1.0, -0.05), done

    def best(self):
        state = torch.arange(self.side**2)[:, None].expand(-1, 4).reshape(-1)
        action = torch.arange(4).repeat(self.side**2)
        after, reward, done = self.move(state, action)
        value = torch.zeros(self.side**2)
        for _ in range(60):
            q = (reward + self.discount * value[after] * ~done).view(-1, 4)
            value = q.max(1).values
        return q

    def loss(self, net, slow):
        state, action = torch.randint(self.side**2, (64,)), torch.randint(4, (64,))
        after, reward, done = self.move(state, action)
        with torch.no_grad():
            target = reward + self.discount * slow(self.eye[after]).max(1).values * ~done
        return F.smooth_l1_loss(net(self.eye[state]).gather(1, action[:, None])[:, 0], target)


@sick(
    "update-too-small", "weights-unchanged", "no-progress", "rate-restored",
    where="all layers, all steps of the second phase",
    cure="set the group's rate after load_state_dict: it brings back the rate of the phase that was over",
)  # fmt: skip
def rat_in_a_grid_whose_cheese_is_moved(folder, ill):
    """Values of one goal are learned with a cosine to 1e-7; a checkpoint of it begins the training for another."""
    seeded(302)
    net = dense(25, 64, 4)
    slow = copy.deepcopy(net).requires_grad_(False)

    @torch.no_grad()
    def follow(step):
        for mine, p in zip(slow.parameters(), net.parameters(), strict=True):
            mine.lerp_(p, 0.05)

    first = optim.Adam(net.parameters(), lr=3e-3)
    plan = optim.lr_scheduler.CosineAnnealingLR(first, T_max=200, eta_min=1e-7)
    old = Grid(goal=24)
    for step in range(200):
        first.zero_grad()
        old.loss(net, slow).backward()
        first.step()
        plan.step()
        follow(step)
    checkpoint = {"net": net.state_dict(), "optimizer": first.state_dict()}

    grid = Grid(goal=2)
    make = optim.Adam(net.parameters(), lr=3e-3)
    net.load_state_dict(checkpoint["net"])
    make.load_state_dict(checkpoint["optimizer"])
    if not ill:
        for group in make.param_groups:
            group["lr"] = 3e-3
    best = grid.best()

    def score():
        with torch.no_grad():
            return (net(grid.eye) - best).abs().mean()

    return fit(folder, net, make, lambda step: grid.loss(net, slow), 500, score=score, after_step=follow)


@sick(
    "clip-after-step", "clip-inert", "exploding", "spike", "nonfinite", "lr-too-high",
    where="all layers, at each window with a fault of the sensor", cure="clip between backward and step",
)  # fmt: skip
def two_sines_with_a_loose_contact(folder, ill):
    """The clip stands behind the step. A loose contact throws single readings to fifty and more."""
    seeded(303)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 16, 5, padding=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 24, 1),
    )  # fmt: skip

    def windows(faults):
        start, time = 50 * torch.rand(32, 1), torch.arange(25)
        x = (0.5 * (start + time)).sin() + 0.5 * (1.3 * (start + time)).sin() + 0.05 * torch.randn(32, 25)
        hit = (torch.rand(32, 25) < 0.001).float()
        return x + 60 * hit * torch.randn(32, 25) if faults else x

    def loss_of(step, faults=True):
        x = windows(faults)
        return F.mse_loss(net(x[:, None, :-1]), x[:, -1:])

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    make = optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    hook = {"after_step" if ill else "before_step": clip}
    return fit(folder, net, make, loss_of, 300, score=score_of(lambda step: loss_of(step, False)), **hook)


@sick(
    "scaled-gradients", "update-too-large", "lr-too-high", "exploding", "nonfinite",
    where="all layers, from the first step", cure="scaler.step(optimizer): it divides by the scale of 65536",
)  # fmt: skip
def two_towers_that_forget_who_multiplied(folder, ill):
    """Scaler.scale(loss).backward() is followed by a plain optimizer.step()."""
    seeded(304)
    net = nn.ModuleDict({"left": dense(20, 64, 16), "right": dense(14, 64, 16)})
    of_left, of_right = torch.randn(4, 20), torch.randn(4, 14)

    def loss_of(step):
        point = torch.randn(64, 4)
        a = F.normalize(net["left"]((point @ of_left).tanh() + 0.1 * torch.randn(64, 20)), dim=1)
        b = F.normalize(net["right"]((point @ of_right).tanh() + 0.1 * torch.randn(64, 14)), dim=1)
        products, same = a @ b.T / 0.1, torch.arange(64)
        return (F.cross_entropy(products, same) + F.cross_entropy(products.T, same)) / 2

    make = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")

    def one(step):
        make.zero_grad()
        loss = loss_of(step)
        scaler.scale(loss).backward()
        if ill:
            make.step()
        else:
            scaler.step(make)
            scaler.update()
        return {"loss": loss}

    return loop(folder, net, [make], one, 250, score_of(loss_of))


@sick(
    "schedule-ran-out", "schedule-too-short", "update-too-small", "weights-unchanged", "no-progress",
    where="all layers, once the rate has been cut a few times (from step 60 or so)",
    cure="mode='min': a loss is to fall, and each epoch that it fell in counts as a bad one",
)  # fmt: skip
def bright_patch_boxed_by_a_patient_schedule(folder, ill):
    """ReduceLROnPlateau with mode='max', as for an accuracy, is handed the loss of each epoch."""
    seeded(305)
    body = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(12 * 64, 48), nn.ReLU(),
    )  # fmt: skip
    net = nn.ModuleDict({"body": body, "box": nn.Linear(48, 4), "there": nn.Linear(48, 1)})
    lines = torch.arange(16)
    seen = []

    def loss_of(step):
        low, size = torch.randint(0, 10, (48, 2)), torch.randint(3, 7, (48, 2))
        there = (torch.rand(48) < 0.7).float()
        inside = [(lines >= low[:, i, None]) & (lines < (low + size)[:, i, None]) for i in range(2)]
        patch = (inside[0][:, :, None] & inside[1][:, None, :]).float()
        image = 0.4 * torch.randn(48, 16, 16) + there[:, None, None] * patch
        h = body(image[:, None])
        of_box = F.smooth_l1_loss(net["box"](h), torch.cat([low, size], 1) / 4, reduction="none").mean(1)
        loss = (of_box * there).sum() / there.sum()
        loss = loss + F.binary_cross_entropy_with_logits(net["there"](h)[:, 0], there)
        seen.append(float(loss.detach()))
        return loss

    make = optim.AdamW(net.parameters(), lr=1e-3)
    plan = optim.lr_scheduler.ReduceLROnPlateau(make, mode="max" if ill else "min", factor=0.1, patience=3)

    def epoch_ends(step):
        if step % 15 == 14:
            plan.step(sum(seen[-15:]) / 15)

    return fit(folder, net, make, loss_of, 450, after_step=epoch_ends)


@sick(
    "optimizer-state-lost", "moments-begin-anew",
    where="all layers, at each epoch's first steps (every third step)",
    cure="load the optimizer's first state dict once, not at each epoch's begin",
)  # fmt: skip
def digits_cleaned_by_what_begins_anew(folder, ill):
    """Each epoch of three steps begins with the optimizer's state as it was at the start; moments are gone."""
    seeded(306)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3, stride=2, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(8, 16, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1),
    )  # fmt: skip
    batch = batches(32, seed=36)

    def loss_of(step):
        x = batch(step)[0][:, None]
        return F.mse_loss(net(x + 0.3 * torch.randn_like(x)), x)

    make = optim.Adam(net.parameters(), lr=1e-2)
    fresh = copy.deepcopy(make.state_dict())

    def epoch_ends(step):
        if ill and step % 3 == 2:
            make.load_state_dict(copy.deepcopy(fresh))

    return fit(folder, net, make, loss_of, 300, after_step=epoch_ends)
