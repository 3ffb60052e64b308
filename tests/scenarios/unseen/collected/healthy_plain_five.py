"""Everyday trainings: a small pupil, a mower, accounts, spoken words, steps on a wrist, a meter that is read."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy()
def a_light_model_for_a_doorbell(folder):
    seeded(3085)
    basis = torch.randn(10, 40) / 3

    def events(n):
        z = torch.randn(n, 10)
        y = (z[:, 0] * z[:, 1] > 0.2).long() + 2 * (z[:, 2] + z[:, 3].abs() > 0.7).long()
        return (z @ basis).tanh() + 0.05 * torch.randn(n, 40), y

    draw, (x_val, y_val) = rounds(64, *events(6000)), events(1000)
    teacher = dense(40, 128, 128, 4)
    earlier = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    for _ in range(350):
        x, y = draw()
        earlier.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        earlier.step()
    teacher.eval().requires_grad_(False)

    net = dense(40, 48, 32, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 550)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        told = F.kl_div((out / 3).log_softmax(1), (teacher(x) / 3).softmax(1), reduction="batchmean") * 9
        hard = F.cross_entropy(out, y)
        return 0.5 * told + 0.5 * hard, {"kd": told, "ce": hard}

    score = held_out(net, lambda: F.cross_entropy(net(x_val), y_val))
    return fit(folder, net, optimizer, loss_of, 550, score=score, schedule=schedule)


@healthy()
def a_mower_on_its_way_to_the_dock(folder):
    seeded(3086)
    size, lawns = 6, 64
    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def begin(n):
        return torch.randint(size, (n, 2)), torch.randint(size, (n, 2))

    def seen(at, dock):
        return torch.cat([at, dock, dock - at], 1).float() / size

    def move(at, dock, action):
        after = (at + moves[action]).clamp(0, size - 1)
        home = (after == dock).all(1)
        return after, home, home.float() - 0.05

    net = dense(6, 96, 96, 4)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    at, dock = begin(lawns)
    memory = []

    def live(epsilon):
        nonlocal at, dock
        x = seen(at, dock)
        with torch.no_grad():
            action = net(x).argmax(1)
        action = torch.where(torch.rand(lawns) < epsilon, torch.randint(4, (lawns,)), action)
        after, home, reward = move(at, dock, action)
        memory.append((x, action, reward, home.float(), seen(after, dock)))
        del memory[:-150]
        new_at, new_dock = begin(lawns)
        anew = (home | (torch.rand(lawns) < 0.03))[:, None]
        at, dock = torch.where(anew, new_at, after), torch.where(anew, new_dock, dock)
        return reward.mean()

    for _ in range(30):
        live(1.0)

    def one(step):
        epsilon = max(0.1, 1 - step / 300)
        reward = live(epsilon)
        rows = torch.randint(lawns, (128,)), torch.randint(len(memory), (128,))
        x, action, got, home, later = (torch.stack(part)[rows[1], rows[0]] for part in zip(*memory, strict=True))
        with torch.no_grad():
            best = target(later).gather(1, net(later).argmax(1, keepdim=True))[:, 0]
            goal = got + 0.95 * (1 - home) * best
        q = net(x).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(q, goal)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
        return {"loss": loss, "q": q.mean(), "reward": reward, "epsilon": epsilon}

    starts = begin(300)

    def score():
        here, there = starts
        total, on = torch.zeros(300), torch.ones(300)
        with torch.no_grad():
            for _ in range(16):
                here, home, reward = move(here, there, net(seen(here, there)).argmax(1))
                total, on = total + on * reward, on * (1 - home.float())
        return 1 - float(total.mean())

    return tend(folder, net, optimizer, one, 900, score)


class Neighbours(nn.Module):
    """A graph convolution of two layers."""

    def __init__(self, links, size, width, kinds):
        super().__init__()
        self.links, self.one, self.two = links, nn.Linear(size, width), nn.Linear(width, kinds)

    def forward(self, x):
        h = F.relu(self.links @ self.one(F.dropout(x, 0.3, self.training)))
        return self.links @ self.two(F.dropout(h, 0.5, self.training))


@healthy()
def accounts_that_belong_to_one_ring(folder):
    seeded(3087)
    n, kinds = 600, 4
    kind = torch.randint(kinds, (n,))
    chance = torch.where(kind[:, None] == kind, 0.03, 0.004)
    near = torch.triu(torch.rand(n, n) < chance, 1).float()
    near = near + near.T + torch.eye(n)
    root = near.sum(1).rsqrt()
    links = root[:, None] * near * root
    x = torch.randn(kinds, 32)[kind] * 0.35 + torch.randn(n, 32)
    net = Neighbours(links, 32, 16, kinds)
    decays = [{"params": net.one.parameters(), "weight_decay": 5e-4}, {"params": net.two.parameters()}]
    optimizer = torch.optim.Adam(decays, lr=0.01)
    known, rest = torch.arange(200), torch.arange(200, 600)

    def loss_of(step):
        out = net(x)
        loss = F.cross_entropy(out[known], kind[known])
        return loss, {"train_acc": (out[known].argmax(1) == kind[known]).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x)[rest], kind[rest]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@healthy()
def orders_called_out_in_a_warehouse(folder):
    seeded(3088)
    voices = F.interpolate(2 * torch.randn(8, 1, 5, 6), size=(16, 20), mode="bilinear")[:, 0]

    def calls(n):
        word, shift = torch.randint(8, (n,)), torch.randint(-3, 4, (n,))
        at = (torch.arange(20) - shift[:, None]) % 20
        x = voices[word].gather(2, at[:, None].expand(n, 16, 20))
        return x[:, None] + 1.2 * torch.randn(n, 1, 16, 20), word

    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.GroupNorm(4, 32),
        nn.SiLU(),
        nn.Conv2d(32, 32, 3, 1, 1),
        nn.GroupNorm(4, 32),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d((1, 2)),
        nn.Flatten(),
        nn.Linear(64, 8),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 250)
    draw, (x_val, y_val) = rounds(16, *calls(3000)), calls(400)

    def loss_of(step):
        x, y = draw()
        share = float(torch.distributions.Beta(0.2, 0.2).sample())
        order = torch.randperm(len(x))
        with torch.autocast("cpu", torch.bfloat16):
            out = net(share * x + (1 - share) * x[order])
        loss = share * F.cross_entropy(out.float(), y) + (1 - share) * F.cross_entropy(out.float(), y[order])
        return loss / 2

    score = held_out(net, lambda: F.cross_entropy(net(x_val), y_val))
    return fit(folder, net, optimizer, loss_of, 250, score=score, accumulate=2, schedule=schedule)


class Wrist(nn.Module):
    """Convolutions over time, then a memory."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(3, 24, 5, padding=2, bias=False),
            nn.BatchNorm1d(24),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(24, 32, 5, padding=2, bias=False),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.MaxPool1d(2),
        )
        self.memory, self.drop, self.head = nn.GRU(32, 32, batch_first=True), nn.Dropout(0.3), nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.drop(self.memory(self.body(x).transpose(1, 2))[0].mean(1)))


@healthy()
def what_a_wearer_of_a_wristband_does(folder):
    seeded(3089)
    pace, force = torch.tensor([0.0, 1.5, 2.0, 3.0, 1.5]), torch.tensor([0.1, 0.8, 1.0, 1.2, 0.8])
    sides = torch.randn(5, 3)

    def windows(n):
        kind, t = torch.randint(5, (n,)), torch.arange(48.0) / 16
        speed = pace[kind] * (1 + 0.08 * torch.randn(n))
        turn = 6.2832 * (speed[:, None] * t + torch.rand(n, 1))
        swing = turn.sin() + 0.4 * (2 * turn).cos() * (kind == 4)[:, None]
        x = force[kind, None, None] * swing[:, None] * sides[kind, :, None] + 0.3 * torch.randn(n, 3, 1)
        return x + 0.6 * torch.randn(n, 3, 48), kind

    net = Wrist()
    average = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98), use_buffers=True
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw, (x_val, y_val) = rounds(64, *windows(4000)), windows(600)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"acc": (out.argmax(1) == y).float().mean()}

    score = held_out(average, lambda: F.cross_entropy(average(x_val), y_val))
    return fit(
        folder, net, optimizer, loss_of, 350, score=score, after_step=lambda step: average.update_parameters(net)
    )


class Dials(nn.Module):
    """Reads a strip from left to right; sign 0 is the blank one."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8 * 3, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU())
        self.memory, self.head = nn.GRU(48, 32, batch_first=True, bidirectional=True), nn.Linear(64, 11)

    def forward(self, x):
        slices = F.pad(x, (1, 1)).unfold(2, 3, 1).permute(0, 2, 1, 3).flatten(2)
        return self.head(self.memory(self.body(slices))[0]).log_softmax(2).transpose(0, 1)


@healthy()
def counters_of_electricity_meters_read(folder):
    seeded(3090)
    glyphs = torch.randn(10, 8, 4)

    def strips(n):
        digits, strip = torch.randint(10, (n, 4)), torch.zeros(n, 8, 24)
        for place in range(4):
            left = 1 + 6 * place + torch.randint(2, (n, 1, 1))
            columns = (left + torch.arange(4)).expand(n, 8, 4)
            strip.scatter_(2, columns, glyphs[digits[:, place]])
        return strip + 0.25 * torch.randn(n, 8, 24), digits + 1

    net = Dials()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw, fresh = rounds(32, *strips(4000)), strips(300)

    def ctc(x, digits):
        n = len(x)
        return F.ctc_loss(net(x), digits, torch.full((n,), 24), torch.full((n,), 4), zero_infinity=True)

    def loss_of(step):
        return ctc(*draw())

    score = held_out(net, lambda: ctc(*fresh))
    return fit(folder, net, optimizer, loss_of, 320, score=score, before_step=clipped(net, 5.0))
