"""Trainings with mistakes that people asked about in public: the address of the thread stands above each."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam
from torch.optim.lr_scheduler import LambdaLR
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, rounds


# https://github.com/ScrollPrize/villa/pull/1495
@sick(
    "schedule-too-short",
    where="the learning rate: its cycles are as many steps long as there are epochs, and each begins lower",
    cure="give the schedule the number of steps, epochs times batches, not the number of epochs",
)
def inks_on_a_charred_roll(folder, ill):
    seeded(2914)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(400, 5),
    )
    stamps = torch.randn(5, 1, 6, 6)
    epochs, batches = 10, 45

    def draw():
        y = torch.randint(5, (24,))
        page = 1.2 * torch.randn(24, 1, 10, 10)
        for row, (down, over) in enumerate(torch.randint(5, (24, 2)).tolist()):
            page[row, :, down : down + 6, over : over + 6] += stamps[y[row]]
        return page, y

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    horizon = epochs if ill else epochs * batches

    def share(step):
        cycle, within = divmod(step, horizon)
        return 0.9 ** (2 * cycle) * 0.5 * (1 + math.cos(math.pi * within / horizon))

    optimizer = Adam(net.parameters(), 1e-3)
    schedule = LambdaLR(optimizer, share)
    return fit(folder, net, optimizer, loss_of, epochs * batches, score=score_of(loss_of), schedule=schedule)


# https://github.com/mpariente/pytorch_stoi/pull/14
@sick(
    "nonfinite",
    where="the square root of the energy of a silent stretch, in the loss; then all layers at once",
    cure="add the small number before the square root, not after it",
)
def a_choir_over_the_traffic(folder, ill):
    seeded(2915)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 9, padding=4, bias=False),
        nn.ReLU(),
        nn.Conv1d(16, 16, 9, padding=4, bias=False),
        nn.ReLU(),
        nn.Conv1d(16, 1, 9, padding=4, bias=False),
    )
    time = torch.arange(96) / 96

    def draw(silent):
        pitch = 3 + 6 * torch.rand(32, 1, 1)
        clean = (6.2832 * (pitch * time + torch.rand(32, 1, 1))).sin()
        clean = clean + 0.5 * (12.5664 * (pitch * time + torch.rand(32, 1, 1))).sin()
        noisy = clean + 0.8 * torch.randn(32, 1, 96)
        pause = (torch.rand(32, 1, 1) < silent).float()
        return noisy * (1 - pause), clean * (1 - pause)

    def unit(x):
        x = x - x.mean(2, keepdim=True)
        if ill:
            return x / (x.square().sum(2, keepdim=True).sqrt() + 1e-8)
        return x / (x.square().sum(2, keepdim=True) + 1e-8).sqrt()

    def alike(silent):
        x, y = draw(silent)
        return 1 - (unit(net(x)) * unit(y)).sum(2).mean()

    return fit(
        folder,
        net,
        Adam(net.parameters(), 1e-3),
        lambda step: alike(3e-4),
        400,
        score=score_of(lambda step: alike(0)),
    )


class Mixture(nn.Module):
    """The boiling point of two liquids poured together."""

    def __init__(self, kinds):
        super().__init__()
        self.embedding = nn.Embedding(kinds, 12)
        self.body = dense(25, 48, 48)
        self.readout = nn.Linear(48, 1)
        self.pair_embedding = nn.Embedding(kinds * kinds, 1)
        nn.init.zeros_(self.pair_embedding.weight)

    def forward(self, first, second, share):
        both = torch.cat([self.embedding(first), self.embedding(second), share], 1)
        own = self.readout(self.body(both).relu())
        return own + 4 * share * (1 - share) * self.pair_embedding(first * 12 + second)


# https://github.com/ACEsuit/mace/pull/1529
@sick(
    "not-in-optimizer",
    where="pair_embedding: no group of the optimizer names it",
    cure="make the groups from all parameters of the model, or add one for pair_embedding",
)
def boiling_points_of_mixed_liquids(folder, ill):
    seeded(2916)
    net = Mixture(12)
    alone, together = torch.randn(12, 1), 1.5 * torch.randn(144, 1)

    def draw():
        first, second, share = torch.randint(12, (64,)), torch.randint(12, (64,)), torch.rand(64, 1)
        own = share * alone[first] + (1 - share) * alone[second]
        return first, second, share, own + 4 * share * (1 - share) * together[first * 12 + second]

    def loss_of(step):
        first, second, share, y = draw()
        return F.mse_loss(net(first, second, share), y)

    groups = [
        {"name": "embedding", "params": net.embedding.parameters()},
        {"name": "body", "params": net.body.parameters(), "weight_decay": 1e-3},
        {"name": "readout", "params": net.readout.parameters()},
    ]
    if not ill:
        groups.append({"name": "pair_embedding", "params": net.pair_embedding.parameters(), "lr": 3e-2})
    return fit(folder, net, Adam(groups, 1e-3), loss_of, 500, score=score_of(loss_of))


# https://github.com/pkmital/pycadl/pull/5
@sick(
    "inputs-not-normalised",
    where="what comes into the first layer: grey levels that were divided by 255 twice",
    cure="divide by 255 once",
)
def flags_of_ships_at_anchor(folder, ill):
    seeded(2917)
    colours = torch.randint(30, 226, (8, 4))

    def drawn(rows):
        y = torch.randint(8, (rows,))
        flag = colours[y].float().view(rows, 2, 2)
        flag = F.interpolate(flag[:, None], size=(10, 10))[:, 0] + 45 * torch.randn(rows, 10, 10)
        return flag.clamp(0, 255).byte(), y

    def pipeline(rows):
        pictures, y = drawn(rows)
        return pictures.float() / 255, y

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = dense(100, 48, 48, 8)

        def forward(self, x):
            return self.body((x / 255 if ill else x).flatten(1))

    net = Reader()

    def loss_of(step):
        x, y = pipeline(64)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, Adam(net.parameters(), 1e-3), loss_of, 300, score=score_of(loss_of))


# https://github.com/navneet-nmk/pytorch-rl/issues/2
@sick(
    "bootstrap-past-the-end",
    "values-overestimated",
    "targets-run-away",
    where="the targets of the last moves, which go on counting after the fall",
    cure="leave the value of the next state out where the episode is done",
)
def a_broom_upright_on_a_palm(folder, ill):
    seeded(2918)
    net, slow = dense(2, 48, 48, 2), dense(2, 48, 48, 2)
    slow.load_state_dict(net.state_dict())

    def move(state, push):
        lean, speed = state.unbind(1)
        speed = speed + 0.08 * lean + 0.06 * (2 * push.float() - 1) + 0.01 * torch.randn(len(lean))
        after = torch.stack([lean + 0.3 * speed, speed], 1)
        return after, after[:, 0].abs() > 0.6

    state, seen = 0.1 * torch.randn(200, 2), []
    for _ in range(60):
        push = torch.randint(2, (200,))
        after, done = move(state, push)
        seen.append((state, push, after, done))
        state = torch.where(done[:, None], 0.3 * torch.randn(200, 2), after)
    draw = rounds(64, *(torch.cat(part) for part in zip(*seen, strict=True)))

    def loss_of(step):
        if step % 20 == 0:
            slow.load_state_dict(net.state_dict())
        state, push, after, done = draw()
        value = net(state).gather(1, push[:, None])[:, 0]
        with torch.no_grad():
            future = slow(after).amax(1)
        wanted = 1 + 0.95 * (future if ill else future * ~done)
        return F.smooth_l1_loss(value, wanted), {"value": value.mean()}

    def score():
        state, held = 0.2 * torch.randn(100, 2), torch.zeros(100)
        up = torch.ones(100, dtype=torch.bool)
        for _ in range(80):
            state, done = move(state, net(state).argmax(1))
            up &= ~done
            held += up
        return -held.mean()

    return fit(folder, net, Adam(net.parameters(), 1e-3), loss_of, 800, score=held_out(net, score))


# https://github.com/keras-team/keras/pull/16726
@sick(
    "norm-statistics",
    where="the batch norms: their running statistics are those of the last batch",
    cure="a momentum of a tenth",
)
def pollen_under_a_lens(folder, ill):
    seeded(2919)
    momentum = 1.0 if ill else 0.1
    net = nn.Sequential(
        nn.Linear(16, 48),
        nn.BatchNorm1d(48, momentum=momentum),
        nn.ReLU(),
        nn.Linear(48, 48),
        nn.BatchNorm1d(48, momentum=momentum),
        nn.ReLU(),
        nn.Linear(48, 6),
    )
    kinds = 1.3 * torch.randn(6, 16)

    def draw(rows=8):
        y = torch.randint(6, (rows,))
        return kinds[y] * (0.3 + 2 * torch.rand(rows, 1)) + 1.5 * torch.randn(rows, 16), y

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    def fresh():
        x, y = draw(1000)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, Adam(net.parameters(), 1e-3), loss_of, 600, score=held_out(net, fresh))
