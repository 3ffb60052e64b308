"""Healthy trainings of gardens, bees and orchards in spring: what a course or a team's repository has."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_friedman1
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


def digits():
    """Images [N, 64] between -1 and 1 and what they show, in a drawn order."""
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    return torch.tensor(images / 8 - 1, dtype=torch.float32)[order], torch.tensor(shown)[order]


@healthy()
def bed_numbers_on_slate_markers(folder):
    seeded(11950)
    x, y = digits()
    net = dense(64, 128, 64, 10, norm=nn.BatchNorm1d)
    steps = 240
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by), {"lr": schedule.get_last_lr()[0]}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def cider_presses_of_three_villages(folder):
    seeded(11951)
    table, kinds = load_wine(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds)[order]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = dense(13, 32, 3)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, weight_decay=1e-4)
    draw = rounds(26, x[:130], y[:130])

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by)

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy()
def pears_in_the_cool_shed(folder):
    seeded(11952)
    table, sweet = make_friedman1(1500, 10, noise=0.5, random_state=int(torch.randint(10**6, ())))
    x, y = torch.tensor(table, dtype=torch.float32), torch.tensor(sweet, dtype=torch.float32)[:, None]
    x, y = (x - x[:1200].mean(0)) / x[:1200].std(0), (y - y[:1200].mean()) / y[:1200].std()
    net = dense(10, 64, 64, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)
    draw = rounds(64, x[:1200], y[:1200])

    def loss_of(step):
        bx, by = draw()
        return F.mse_loss(net(bx), by)

    score = held_out(net, lambda: F.mse_loss(net(x[1200:]), y[1200:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


class Song(nn.Module):
    """Which bird sings, by the last state of a GRU over what was heard."""

    def __init__(self, bands, width, birds):
        super().__init__()
        self.hear = nn.GRU(bands, width, batch_first=True, bidirectional=True)
        self.name = nn.Linear(2 * width, birds)

    def forward(self, song):
        return self.name(self.hear(song)[0].mean(1))


@healthy()
def songs_heard_from_the_hawthorn(folder):
    seeded(11953)
    birds = 5
    net = Song(6, 24, birds)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    pitch = torch.randn(birds, 6)

    def songs(rows, length=16):
        y = torch.randint(birds, (rows,))
        time = torch.arange(float(length))[:, None]
        phase = 6.2832 * torch.rand(rows, 1, 1)
        tune = ((0.4 + 0.15 * y[:, None, None]) * time + phase).sin() * pitch[y][:, None]
        return tune + 0.3 * torch.randn(rows, length, 6), y

    draw = rounds(32, *songs(1200))

    def loss_of(step):
        song, bird = draw()
        logits = net(song)
        return F.cross_entropy(logits, bird), {"accuracy": float((logits.argmax(1) == bird).float().mean())}

    tx, ty = songs(400)
    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 150, score=score, before_step=clipped(net, 5.0))


class Reader(nn.Module):
    """A causal transformer over what is sown, week by week."""

    def __init__(self, kinds, length, width):
        super().__init__()
        self.kind = nn.Embedding(kinds, width)
        self.week = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, kinds))

    def forward(self, sown):
        mask = nn.Transformer.generate_square_subsequent_mask(sown.shape[1])
        return self.out(self.body(self.kind(sown) + self.week.weight, mask=mask, is_causal=True))


@healthy()
def what_is_sown_after_the_peas(folder):
    seeded(11954)
    kinds, length, steps = 14, 12, 240
    net = Reader(kinds, length, 32)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps + 1, pct_start=0.1)
    follows = torch.softmax(3 * torch.randn(kinds, kinds), 1)

    def plans(rows):
        plan = [torch.randint(kinds, (rows,))]
        for _ in range(length):
            plan.append(torch.multinomial(follows[plan[-1]], 1)[:, 0])
        return torch.stack(plan, 1)

    draw = rounds(32, plans(2000))

    def loss_on(plan):
        return F.cross_entropy(net(plan[:, :-1]).flatten(0, 1), plan[:, 1:].flatten())

    test = plans(300)
    score = held_out(net, lambda: loss_on(test))
    clip = clipped(net, 1.0)
    return fit(
        folder, net, optimizer, lambda step: loss_on(*draw()), steps, score=score, schedule=schedule, before_step=clip
    )


@healthy()
def ladybirds_located_on_a_leaf(folder):
    seeded(11955)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24 * 16, 64), nn.ReLU(), nn.Linear(64, 2),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    grid = torch.linspace(-1, 1, 16)

    def leaves(rows):
        middle = 1.6 * torch.rand(rows, 2) - 0.8
        spot = ((grid[:, None] - middle[:, :1, None]) ** 2 + (grid - middle[:, 1:, None]) ** 2) / 0.04
        return (2 * (-spot).exp() + 0.2 * torch.randn(rows, 16, 16))[:, None], middle

    draw = rounds(32, *leaves(1500))

    def loss_of(step):
        leaf, middle = draw()
        return F.smooth_l1_loss(net(leaf), middle, beta=0.1)

    tx, ty = leaves(300)
    score = held_out(net, lambda: F.smooth_l1_loss(net(tx), ty, beta=0.1))
    return fit(folder, net, optimizer, loss_of, 220, score=score)


@healthy()
def pressed_flowers_in_sixteen_numbers(folder):
    seeded(11956)
    x, _ = digits()
    net = nn.Sequential(dense(64, 96, 16), dense(16, 96, 64))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1500])

    def loss_on(x):
        return F.mse_loss(net(x), x)

    score = held_out(net, lambda: loss_on(x[1500:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 300, score=score)


@healthy()
def a_watering_can_kept_half_full(folder):
    seeded(11957)
    net = dense(2, 48, 48, 3)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    change = torch.tensor([-0.2, 0.0, 0.2])

    def pour(state, move):
        level, leak = state.unbind(1)
        level = (level + change[move] - leak + 0.02 * torch.randn(len(level))).clamp(-1, 1)
        return torch.stack([level, leak], 1), -level.abs()

    def begin(rows):
        return torch.stack([2 * torch.rand(rows) - 1, 0.15 * torch.rand(rows)], 1)

    memory, state = [], begin(32)

    def one(step):
        nonlocal state
        with torch.no_grad():
            greedy = net(state).argmax(1)
        move = torch.where(torch.rand(32) < max(0.1, 1 - step / 150), torch.randint(3, (32,)), greedy)
        after, reward = pour(state, move)
        memory.append((state, move, reward, after))
        state = torch.where(torch.rand(32, 1) < 0.1, begin(32), after)
        s, a, r, s2 = (torch.cat(p) for p in zip(*[memory[i] for i in torch.randint(len(memory), (4,))], strict=False))
        with torch.no_grad():
            best = net(s2).argmax(1, keepdim=True)
            wanted = r + 0.8 * target(s2).gather(1, best)[:, 0]
        loss = F.smooth_l1_loss(net(s).gather(1, a[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), net.parameters(), strict=False):
                slow.lerp_(fast, 0.02)
        return {"loss": loss, "reward": reward.mean()}

    def cost():
        state, total = begin(400), 0.0
        for _ in range(12):
            state, reward = pour(state, net(state).argmax(1))
            total -= reward.mean()
        return total

    return tend(folder, net, optimizer, one, 350, held_out(net, cost))


@healthy()
def galls_on_oak_leaves_good_or_bad(folder):
    seeded(11958)
    table, good = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(good))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(good, dtype=torch.float32)[order]
    x = (x - x[:420].mean(0)) / x[:420].std(0)
    net = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(30, x[:420], y[:420])

    def loss_of(step):
        bx, by = draw()
        return F.binary_cross_entropy_with_logits(net(bx)[:, 0], by)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[420:])[:, 0], y[420:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Meadow(nn.Module):
    """Two graph convolutions."""

    def __init__(self, size, width, kinds):
        super().__init__()
        self.first, self.second = nn.Linear(size, width), nn.Linear(width, kinds)
        self.drop = nn.Dropout(0.3)

    def forward(self, x, links):
        return links @ self.second(self.drop((links @ self.first(x)).relu()))


@healthy()
def flowers_visited_by_the_same_bees(folder):
    seeded(11959)
    nodes, kinds = 300, 4
    y = torch.randint(kinds, (nodes,))
    alike = y[:, None] == y
    links = (torch.rand(nodes, nodes) < torch.where(alike, 0.06, 0.01)).float().triu(1)
    links = links + links.T + torch.eye(nodes)
    scale = links.sum(1).rsqrt()
    links = scale[:, None] * links * scale
    x = F.one_hot(y, kinds).float() @ torch.randn(kinds, 16) + 1.5 * torch.randn(nodes, 16)
    train = torch.rand(nodes) < 0.5
    net = Meadow(16, 32, kinds)
    optimizer = torch.optim.Adam(net.parameters(), 0.01, weight_decay=5e-4)

    def loss_of(step):
        return F.cross_entropy(net(x, links)[train], y[train])

    score = held_out(net, lambda: F.cross_entropy(net(x, links)[~train], y[~train]))
    return fit(folder, net, optimizer, loss_of, 120, score=score)
