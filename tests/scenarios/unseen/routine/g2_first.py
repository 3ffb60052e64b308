"""Six trainings of a small town's craftsmen, each with a mistake of the everyday kind, and without it."""

from __future__ import annotations

import itertools
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unseen import fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds, tend


# 4 of the list
@sick(
    "shapes-broadcast",
    where="the loss: predictions (B,) against targets (B, 1), from the first step on",
    cure="targets of the shape of the predictions: squeeze them",
)
def tailor_measuring_cloth_for_a_coat(folder, ill):
    seeded(13300)

    class Cutter(nn.Module):
        def __init__(self, measures, width=64):
            super().__init__()
            self.hidden = nn.Sequential(nn.Linear(measures, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
            self.out = nn.Linear(width, 1)

        def forward(self, x):
            return self.out(self.hidden(x)).squeeze(-1)

    # chest, waist, sleeve, height, shoulders, ease: centred and scaled
    body = torch.randn(1600, 6)
    chest, waist, sleeve, height, shoulders, ease = body.T
    cloth = 0.8 * height + 0.6 * torch.maximum(chest, waist) + 0.4 * sleeve * shoulders + 0.3 * ease
    cloth = ((cloth - cloth.mean()) / cloth.std())[:, None]
    if not ill:
        cloth = cloth.squeeze(1)
    train, valid = (body[:1280], cloth[:1280]), (body[1280:], cloth[1280:].reshape(-1))
    net = Cutter(6)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(64, *train)
    validate = now_and_then(net, 40, lambda: {"val_loss": F.mse_loss(net(valid[0]), valid[1])})
    criterion = nn.MSELoss()

    def loss_of(step):
        logged = validate(step)
        x, y = draw()
        return criterion(net(x), y), logged

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(valid[0]), valid[1])))


# 16 of the list
@sick(
    "targets-out-of-range",
    "relu-on-the-output",
    "outputs-never-negative",
    where="the ReLU after the last linear layer, from the first step on",
    cure="no activation after the last layer",
)
def clockmaker_telling_what_a_clock_gains_or_loses(folder, ill):
    seeded(13301)

    def mlp(sizes):
        layers = []
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            layers.append(nn.Linear(a, b))
            if ill or i < len(sizes) - 2:
                layers.append(nn.ReLU())
        return nn.Sequential(*layers)

    class Regulator(nn.Module):
        """The ticks of one minute, seen as a signal, to what the clock gains (or loses) in a day."""

        def __init__(self):
            super().__init__()
            self.ticks = nn.Sequential(
                nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 16, 5, stride=2, padding=2), nn.ReLU()
            )
            self.head = mlp([16, 48, 1])

        def forward(self, x):
            return self.head(self.ticks(x[:, None]).mean(2))[:, 0]

    def draw(n=64):
        gain = torch.randn(n)
        beat = torch.where(torch.arange(48) % 2 == 0, 1.0, -1.0) * torch.rand(n, 1)
        drift = 0.3 * torch.randn(n, 1) * torch.linspace(-1, 1, 48)
        return gain[:, None] * 0.8 + beat + drift + 0.2 * torch.randn(n, 48), gain

    net = Regulator()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    held = draw(512)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(held[0]), held[1])})

    def loss_of(step):
        logged = validate(step)
        x, y = draw()
        return F.mse_loss(net(x), y), logged

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(held[0]), held[1])))


# 5 of the list
@sick(
    "not-in-optimizer",
    "not-in-the-optimizer",
    "parameters-not-in-the-optimizer",
    where="head.weight and head.bias, all steps",
    cure="build the optimizer after the head is replaced",
)
def optician_sorting_spectacle_frames(folder, ill):
    seeded(13302)

    class Frames(nn.Module):
        def __init__(self, kinds):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                nn.Linear(24 * 9, 48), nn.ReLU(),
            )  # fmt: skip
            self.head = nn.Linear(48, kinds)

        def forward(self, x):
            return self.head(self.body(x))

    lines = torch.linspace(-1, 1, 12)
    down, across = torch.meshgrid(lines, lines, indexing="ij")

    def frames(n, kinds):
        """A rim of |x|^p + |y|^p = r^p, wide or narrow: the kind is told by p and by the width."""
        kind = torch.randint(kinds, (n,))
        power = torch.tensor([1.0, 2.0, 6.0])[kind % 3][:, None, None]
        wide = torch.where(kind % 2 == 0, 1.0, 1.6)[:, None, None]
        x0, y0 = (0.15 * torch.randn(n, 1, 1) for _ in range(2))
        size = 0.5 + 0.1 * torch.rand(n, 1, 1)
        radius = (((across - x0) / wide).abs() ** power + (down - y0).abs() ** power + 1e-6) ** (1 / power)
        image = torch.exp(-((radius - size) ** 2) / 0.01) + 0.25 * torch.randn(n, 12, 12)
        return image[:, None], kind

    net = Frames(3)
    before = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(100):  # last year's catalogue, of three kinds
        x, y = frames(64, 3)
        before.zero_grad()
        F.cross_entropy(net(x), y).backward()
        before.step()

    def groups():
        return [{"params": net.body.parameters(), "lr": 1e-4}, {"params": net.head.parameters(), "lr": 5e-3}]

    if ill:
        optimizer = torch.optim.AdamW(groups(), weight_decay=1e-2)
    net.head = nn.Linear(48, 6)
    if not ill:
        optimizer = torch.optim.AdamW(groups(), weight_decay=1e-2)
    draw = rounds(64, *frames(2048, 6))
    held = frames(512, 6)
    validate = now_and_then(net, 50, judged(net, *held))

    def loss_of(step):
        logged = validate(step)
        x, y = draw()
        return F.cross_entropy(net(x), y), logged

    score = held_out(net, lambda: F.cross_entropy(net(held[0]), held[1]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


# 29 of the list
@sick(
    "axes-mixed",
    "batch-read-as-time",
    where="the LSTM, which runs over the batch, all steps",
    cure="batch_first=True",
)
def cheesemonger_telling_cheeses_by_their_first_weeks(folder, ill):
    seeded(13303)

    class Cellar(nn.Module):
        def __init__(self, readings=4, hidden=32, kinds=4):
            super().__init__()
            self.lstm = nn.LSTM(readings, hidden) if ill else nn.LSTM(readings, hidden, batch_first=True)
            self.head = nn.Linear(hidden, kinds)

        def forward(self, x):
            out, _ = self.lstm(x)
            return self.head(out[:, -1])

    def weeks(n):
        """Damp, warmth, weight and salt of sixteen weeks; how the first five went makes the cheese."""
        x = torch.randn(n, 16, 4) * 0.5
        kind = torch.randint(4, (n,))
        x[:, :5, 0] += torch.where(kind % 2 == 0, 0.8, -0.8)[:, None]
        x[:, :5, 1] += torch.where(kind // 2 == 0, 0.8, -0.8)[:, None]
        return x, kind

    train, held = weeks(2000), weeks(500)
    loader = DataLoader(TensorDataset(*train), batch_size=50, shuffle=True)
    net = Cellar()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)

    def batches():
        while True:
            yield from loader

    stream = batches()
    validate = now_and_then(net, 40, judged(net, *held))

    def loss_of(step):
        logged = validate(step)
        x, y = next(stream)
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean(), **logged}

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)

    score = held_out(net, lambda: F.cross_entropy(net(held[0]), held[1]))
    return fit(folder, net, optimizer, loss_of, 320, before_step=clip, score=score)


# 18 of the list
@sick(
    "terminals-ignored",
    "bootstraps-past-the-end",
    "terminal-states-bootstrapped",
    "values-overestimated",
    where="the target of the action's value, all steps",
    cure="(1 - done) before the value of the next state",
)
def haggler_at_the_market_stall(folder, ill):
    seeded(13304)

    class Stalls:
        """Sixteen stalls side by side. 0: wait, the price comes down; 1: buy; 2: leave. A new seller takes over."""

        def __init__(self, n=16):
            self.n = n
            self.floor, self.price, self.rounds = torch.empty(n), torch.empty(n), torch.empty(n)
            self.reset(torch.ones(n, dtype=torch.bool))

        def reset(self, which):
            k = int(which.sum())
            self.floor[which] = 0.2 + 0.4 * torch.rand(k)
            self.price[which] = 1.0 + 0.2 * torch.rand(k)
            self.rounds[which] = 0.0

        def seen(self):
            return torch.stack([self.price, self.floor, self.rounds / 12], 1) * 2 - 1

        def step(self, action):
            bought, left = action == 1, action == 2
            reward = torch.where(bought, 1.0 - self.price, torch.zeros(self.n))
            self.price = self.floor + (self.price - self.floor) * 0.8
            self.rounds += 1
            gone = torch.rand(self.n) < 0.01
            done = bought | left | gone | (self.rounds >= 12)
            self.reset(done)
            return self.seen(), reward, done.float()

    def qnet():
        return nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))

    net, target = qnet(), qnet()
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    stalls, gamma = Stalls(), 0.98
    memory = deque(maxlen=400)  # of rows of sixteen
    recent, running = deque([0.0], maxlen=200), torch.zeros(16)
    state = stalls.seen()

    @torch.no_grad()
    def act(state, epsilon):
        greedy = net(state).argmax(1)
        return torch.where(torch.rand(len(state)) < epsilon, torch.randint(3, (len(state),)), greedy)

    def gather(epsilon):
        nonlocal state, running
        action = act(state, epsilon)
        after, reward, done = stalls.step(action)
        memory.append((state, action, reward, after, done))
        running = running + reward
        recent.extend(running[done.bool()].tolist())
        running = running * (1 - done)
        state = after

    for _ in range(40):
        gather(1.0)

    def one(step):
        gather(max(0.05, 1.0 - step / 250))
        rows = [memory[int(i)] for i in torch.randint(len(memory), (8,))]
        s, a, r, s2, done = (torch.cat(part) for part in zip(*rows, strict=True))
        with torch.no_grad():
            following = target(s2).max(1).values
            wanted = r + gamma * following if ill else r + gamma * (1 - done) * following
        loss = F.smooth_l1_loss(net(s).gather(1, a[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "return": sum(recent) / len(recent)}

    def score():
        """Minus what a visit to a stall brings when nothing is tried at random."""
        trial, won, ended = Stalls(64), 0.0, 0.0
        seen = trial.seen()
        for _ in range(60):
            seen, reward, done = trial.step(act(seen, 0.0))
            won, ended = won + float(reward.sum()), ended + float(done.sum())
        return -won / ended

    return tend(folder, net, optimizer, one, 600, score)


# 22 of the list
@sick(
    "left-in-eval",
    "norm-left-in-eval",
    where="the whole model with its batch norms and dropout, from the first validation on",
    cure="net.train() at the head of each epoch",
)
def glassblower_sorting_panes_by_their_flaws(folder, ill):
    seeded(13305)

    def block(a, b, stride=1):
        return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())

    class Panes(nn.Module):
        def __init__(self, kinds=4):
            super().__init__()
            self.features = nn.Sequential(
                block(1, 16), block(16, 16), block(16, 24, 2), block(24, 24), block(24, 32, 2), block(32, 32)
            )
            self.drop = nn.Dropout(0.2)
            self.head = nn.Linear(32, kinds)

        def forward(self, x):
            return self.head(self.drop(self.features(x).mean((2, 3))))

    lines = torch.linspace(-1, 1, 12)
    down, across = torch.meshgrid(lines, lines, indexing="ij")

    def panes(n):
        """A bubble, a streak, a crack across, or nothing but the grain of the glass."""
        kind = torch.randint(4, (n,))
        x0, y0 = (torch.rand(n, 1, 1) * 1.2 - 0.6 for _ in range(2))
        bubble = torch.exp(-((((across - x0) ** 2 + (down - y0) ** 2).sqrt() - 0.3) ** 2) / 0.02)
        streak = torch.exp(-((down - y0) ** 2) / 0.02).expand(n, 12, 12)
        crack = torch.exp(-((across - x0 + down) ** 2) / 0.03)
        flaw = torch.stack([bubble, streak, crack, torch.zeros(n, 12, 12)], 1)[torch.arange(n), kind]
        return (flaw + 0.5 * torch.randn(n, 12, 12))[:, None], kind

    train, held = panes(960), panes(480)
    loader = DataLoader(TensorDataset(*train), batch_size=48, shuffle=True, drop_last=True)
    net = Panes()
    epochs = 8
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))

    @torch.no_grad()
    def evaluate():
        net.eval()
        logits = net(held[0])
        right = (logits.argmax(1) == held[1]).float().mean()
        return {"val_loss": float(F.cross_entropy(logits, held[1])), "val_accuracy": float(right)}

    batches = iter(())

    def loss_of(step):
        nonlocal batches
        logged = {}
        if step % len(loader) == 0:  # an epoch begins, after a look at the panes held back
            logged = evaluate()
            if not ill:
                net.train()
            batches = iter(loader)
        x, y = next(batches)
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean(), **logged}

    def score():
        loss = evaluate()["val_loss"]
        net.train()
        return loss

    steps = epochs * len(loader)
    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule, score=score)
