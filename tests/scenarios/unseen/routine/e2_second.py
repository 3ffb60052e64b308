"""Six sick trainings of a theatre: lamps that mix, seats, composers, an actor, cues and a painted moon."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds, tend

# ----------------------------------------------------------------------------------------------- lamps that mix


def mixtures(rows):
    """How far five lamps are open, and which red, green and blue falls on the boards; both of size 1."""
    x = torch.randn(rows, 5)
    red = (1.5 * x[:, 0]).sin() + 0.5 * x[:, 1] * x[:, 2]
    green = (x[:, 1] - x[:, 3]).tanh() * x[:, 4]
    blue = (x[:, 2] + x[:, 4]).cos() + 0.6 * x[:, 3].abs()
    y = torch.stack([red, green, blue], 1)
    return x, (y - y.mean(0)) / y.std(0)


class Mixer(nn.Module):
    def __init__(self, alike):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.out = nn.Linear(64, 3)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                if alike:
                    nn.init.constant_(module.weight, 0.05)
                else:
                    nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, x):
        return self.out(self.body(x))


# 19 of the list
@sick(
    "symmetric-units",
    "units-alike-from-the-start",
    "bad-initialisation",
    where="body.0 and body.2, from step 0: all units of a layer are one unit",
    cure="random weights",
)
def lamps_mixing_a_colour(folder, ill):
    seeded(13106)
    (x, y), (held_x, held_y) = mixtures(3000), mixtures(500)
    net = Mixer(alike=ill)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    draw = rounds(64, x, y)
    validate = now_and_then(net, 30, lambda: {"val_loss": F.mse_loss(net(held_x), held_y)})

    def loss_of(step):
        rows, wanted = draw()
        return F.mse_loss(net(rows), wanted), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(held_x), held_y)))


# -------------------------------------------------------------------------------------------------------- seats


class SeatReader(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.fc1 = nn.Linear(64, 64)
        self.fc2 = nn.Linear(64, 64)
        self.out = nn.Linear(64, 10)
        self.drop1, self.drop2 = nn.Dropout(p), nn.Dropout(p)

    def forward(self, x):
        x = self.drop1(self.fc1(x).relu())
        x = self.drop2(self.fc2(x).relu())
        return self.out(x)


# 22 of the list
@sick(
    "dropout-too-strong",
    where="drop1 and drop2, all steps",
    cure="p is the share that is dropped: nn.Dropout(1 - keep)",
)
def usher_reading_the_numbers_of_seats(folder, ill):
    seeded(13107)
    pixels, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels, dtype=torch.float32), torch.tensor(digits)
    x = (x - x.mean()) / x.std()
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    keep = 0.9
    net = SeatReader(keep if ill else 1 - keep)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    draw = rounds(64, x[:1400], y[:1400])
    held_x, held_y = x[1400:], y[1400:]
    validate = now_and_then(net, 22, judged(net, held_x, held_y))

    def loss_of(step):
        rows, number = draw()
        logits = net(rows)
        accuracy = (logits.argmax(1) == number).float().mean()
        return F.cross_entropy(logits, number), {"accuracy": float(accuracy), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(held_x), held_y))
    return fit(folder, net, optimizer, loss_of, 330, score=score)


# ---------------------------------------------------------------------------------------------------- composers


def scores(rows, notes=8, length=20):
    """Twenty notes by one of three composers, each of whom likes a step of their own from a note to the next."""
    composer = torch.randint(3, (rows,))
    liked = torch.tensor([1, 3, 6])[composer]
    line = [torch.randint(notes, (rows,))]
    for _ in range(length - 1):
        faithful = torch.rand(rows) < 0.55
        line.append(torch.where(faithful, (line[-1] + liked) % notes, torch.randint(notes, (rows,))))
    return torch.stack(line, 1), composer


class Listener(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.note = nn.Embedding(8, 16)
        self.lstm = nn.LSTM(16, 48, **options)
        self.head = nn.Linear(48, 3)

    def forward(self, notes):
        out, _ = self.lstm(self.note(notes))
        return self.head(out[:, -1])


# 28 of the list
@sick(
    "axes-mixed",
    "batch-read-as-time",
    where="lstm, all steps: it goes over the rows of the batch",
    cure="batch_first=True",
)
def concertgoer_naming_the_composer(folder, ill):
    seeded(13108)
    (x, y), (held_x, held_y) = scores(2400), scores(400)
    net = Listener() if ill else Listener(batch_first=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    draw = rounds(48, x, y)
    validate = now_and_then(net, 25, judged(net, held_x, held_y))

    def loss_of(step):
        notes, composer = draw()
        logits = net(notes)
        accuracy = (logits.argmax(1) == composer).float().mean()
        return F.cross_entropy(logits, composer), {"accuracy": float(accuracy), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(held_x), held_y))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


# ----------------------------------------------------------------------------------------------------- an actor


def scene(policy, actors=64, length=10, greedy=False):
    """Actors walk the boards: what they saw, how they went, and what each step was worth, `[T, B, ...]`."""
    place, mark = torch.rand(actors, 2) * 2 - 1, torch.rand(actors, 2) * 2 - 1
    ways = torch.tensor([[0.0, 0.0], [0.2, 0.0], [-0.2, 0.0], [0.0, 0.2], [0.0, -0.2]])
    seen, gone, worth = [], [], []
    for _ in range(length):
        state = torch.cat([place, mark], 1)
        logits = policy(state)
        way = logits.argmax(1) if greedy else torch.distributions.Categorical(logits=logits).sample()
        place = (place + ways[way]).clamp(-1.5, 1.5)
        seen.append(state)
        gone.append(way)
        worth.append(-(place - mark).norm(dim=1))
    return torch.stack(seen), torch.stack(gone), torch.stack(worth)


# 17 of the list
@sick(
    "wrong-sign",
    "policy-descends-return",
    "negative-loss",
    where="the loss of the policy, all steps",
    cure="minus the log-probabilities times the advantages",
)
def actor_finding_the_mark(folder, ill):
    seeded(13109)
    policy = dense(4, 48, 48, 5, act=nn.Tanh)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    gamma = 0.9

    def one(step):
        with torch.no_grad():
            seen, gone, worth = scene(policy)
        to_go, ahead = torch.zeros_like(worth), torch.zeros(worth.shape[1])
        for t in reversed(range(len(worth))):
            ahead = worth[t] + gamma * ahead
            to_go[t] = ahead
        advantage = to_go - to_go.mean(1, keepdim=True)
        advantage = advantage / (advantage.std() + 1e-6)
        log_prob = torch.distributions.Categorical(logits=policy(seen)).log_prob(gone)
        loss = (log_prob * advantage).mean() if ill else -(log_prob * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": float(worth.sum(0).mean())}

    def score():
        with torch.no_grad():
            return -float(scene(policy, 256)[2].mean())

    return tend(folder, policy, optimizer, one, 250, score)


# --------------------------------------------------------------------------------------------------------- cues


def cues(rows, length=16):
    """Calls of one of four colours, or to hold; and the colour that is on at each call (4: still dark)."""
    call = torch.randint(4, (rows, length))
    call = torch.where(torch.rand(rows, length) < 0.7, torch.randint(4, 7, (rows, length)), call)
    on, state = [], torch.full((rows,), 4)
    for t in range(length):
        state = torch.where(call[:, t] < 4, call[:, t], state)
        on.append(state)
    return call, torch.stack(on, 1)


class CueAttention(nn.Module):
    def __init__(self, width, heads, inverted):
        super().__init__()
        self.heads, self.inverted = heads, inverted
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        mask = torch.tril(torch.ones(length, length))
        scores = scores.masked_fill(mask == (1 if self.inverted else 0), -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(rows, length, width))


class CueBlock(nn.Module):
    def __init__(self, width, heads, inverted):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), CueAttention(width, heads, inverted)
        self.norm2, self.mlp = nn.LayerNorm(width), dense(width, 2 * width, width, act=nn.GELU)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Board(nn.Module):
    def __init__(self, inverted, width=48, length=16):
        super().__init__()
        self.call, self.place = nn.Embedding(7, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[CueBlock(width, 4, inverted) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)

    def forward(self, call):
        x = self.call(call) + self.place(torch.arange(call.shape[1]))
        return self.head(self.norm(self.blocks(x)))


# 11 of the list
@sick(
    "mask-inverted",
    "mask-is-wrong",
    where="blocks.0.attention and blocks.1.attention, all steps: they look at what comes, not at what was",
    cure="fill the scores where the lower triangle is 0",
)
def board_following_the_cues(folder, ill):
    seeded(13110)
    (x, y), (held_x, held_y) = cues(4000), cues(300)
    net = Board(inverted=ill)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    draw = rounds(48, x, y)

    def measure():
        logits = net(held_x).flatten(0, 1)
        accuracy = (logits.argmax(1) == held_y.flatten()).float().mean()
        return {"val_loss": F.cross_entropy(logits, held_y.flatten()), "val_accuracy": accuracy}

    validate = now_and_then(net, 30, measure)

    def loss_of(step):
        call, on = draw()
        return F.cross_entropy(net(call).flatten(0, 1), on.flatten()), validate(step)

    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: measure()["val_loss"]))


# ----------------------------------------------------------------------------------------------- a painted moon


def skies(rows, size=16):
    """A painted sky that grows lighter downwards, with a moon; and where the moon is."""
    down, across = torch.meshgrid(torch.arange(float(size)), torch.arange(float(size)), indexing="ij")
    cx, cy = (4 + 8 * torch.rand(rows, 1, 1) for _ in range(2))
    radius = 3 + 2 * torch.rand(rows, 1, 1)
    moon = ((across - cx) ** 2 + (down - cy) ** 2 < radius**2).float()
    sky = (down / size - 0.5) * 2 * torch.rand(rows, 1, 1) + 1.2 * moon + 0.8 * torch.randn(rows, size, size)
    return sky[:, None], moon[:, None]


class Painter(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 5, padding=2)
        self.conv2 = nn.Conv2d(width, width, 5, padding=2)
        self.conv3 = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x):
        return self.conv3(self.conv2(self.conv1(x).relu()).relu())


# 5 of the list
@sick(
    "schedule-too-short",
    "epoch-schedule-stepped-per-batch",
    "scheduler-stepped-per-batch",
    "schedule-ran-out",
    where="the learning rate, gone from step 50 on",
    cure="scheduler.step() once an epoch",
)
def painter_cutting_out_the_moon(folder, ill):
    seeded(13111)
    (x, y), (held_x, held_y) = skies(640), skies(100)
    net = Painter()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    draw, an_epoch = rounds(32, x, y), 20
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(held_x), held_y))

    def one(step):
        rows, moon = draw()
        loss = F.binary_cross_entropy_with_logits(net(rows), moon)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ended = (step + 1) % an_epoch == 0
        if ended or ill:
            schedule.step()
        return {"loss": loss, **({"val_loss": score()} if ended else {})}

    return tend(folder, net, optimizer, one, 240, score)
