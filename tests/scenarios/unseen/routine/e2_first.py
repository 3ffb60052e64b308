"""Six sick trainings of a theatre: posters, lamps, masks, lines of a play, a puppet and costumes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, in_turn, judged, now_and_then, rounds, tend

# ------------------------------------------------------------------------------------------------------ posters


def posters(rows):
    """Sheets of 16 by 16 with ink from 0 to 255, of four genres: stripes, columns, slants, a chequered ground."""
    genre = torch.randint(4, (rows,))
    down, across = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    ways = torch.stack([down, across, (down + across) * 0.7, down])[genre]
    phase = 6.2832 * torch.rand(rows, 1, 1)
    ink = (1.5 * ways + phase).sin()
    ink = torch.where((genre == 3)[:, None, None], ink * (1.5 * across + phase).sin() * 1.4, ink)
    return (120 + 45 * ink + 45 * torch.randn(rows, 16, 16)).clamp(0, 255).round()[:, None], genre


class PosterNet(nn.Module):
    def __init__(self, genres=4):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(16 * 4 * 4, genres)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


# 9 of the list
@sick(
    "inputs-not-normalised",
    "features-not-normalised",
    where="features.0, from step 0",
    cure="subtract the training set's mean and divide by its standard deviation",
)
def poster_telling_its_genre(folder, ill):
    seeded(13100)
    (x, y), (held_x, held_y) = posters(1500), posters(400)
    if not ill:
        mean, std = x.mean(), x.std()
        x, held_x = (x - mean) / std, (held_x - mean) / std
    net = PosterNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    draw = rounds(50, x, y)
    validate = now_and_then(net, 30, judged(net, held_x, held_y))

    def loss_of(step):
        rows, genre = draw()
        logits = net(rows)
        accuracy = (logits.argmax(1) == genre).float().mean()
        return F.cross_entropy(logits, genre), {"accuracy": float(accuracy), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(held_x), held_y))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


# -------------------------------------------------------------------------------------------------------- lamps


def beams(rows):
    """A lamp seen from above, and its beam: to the left, right, up or down; `[B, 1, 14, 14]` and `[B]`."""
    way = torch.randint(4, (rows,))
    vx = torch.tensor([-1.0, 1.0, 0.0, 0.0])[way][:, None, None]
    vy = torch.tensor([0.0, 0.0, -1.0, 1.0])[way][:, None, None]
    down, across = torch.meshgrid(torch.arange(14.0), torch.arange(14.0), indexing="ij")
    dx, dy = (grid - 5 - 3 * torch.rand(rows, 1, 1) for grid in (across, down))
    along, aside = dx * vx + dy * vy, (dx * vy - dy * vx).abs()
    lit = ((along >= 0) & (along <= 5) & (aside <= 0.8 * along + 0.5)).float()
    return (2 * lit - 0.3 + 0.6 * torch.randn(rows, 14, 14))[:, None], way


def augment(x, flip):
    """A shift by a pixel, a little noise and, for one in two, the mirror."""
    x = torch.roll(x, tuple(torch.randint(-1, 2, (2,)).tolist()), dims=(2, 3)) + 0.1 * torch.randn_like(x)
    if flip:
        mirrored = torch.rand(len(x), 1, 1, 1) < 0.5
        x = torch.where(mirrored, x.flip(3), x)
    return x


# 35 of the list
@sick(
    "augmentation-changes-label",
    "augmentation-changes-labels",
    "augmentation-destroys-labels",
    "labels-do-not-fit-inputs",
    where="the batches, all steps: the mirror makes a left of a right",
    cure="no mirror (or the labels of left and right change places with it)",
)
def lamp_pointing_across_the_stage(folder, ill):
    seeded(13101)
    (x, y), (held_x, held_y) = beams(1200), beams(300)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 7 * 7, 4),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    draw = rounds(60, x, y)
    validate = now_and_then(net, 25, judged(net, held_x, held_y))

    def loss_of(step):
        rows, way = draw()
        logits = net(augment(rows, flip=ill))
        accuracy = (logits.argmax(1) == way).float().mean()
        return F.cross_entropy(logits, way), {"accuracy": float(accuracy), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(held_x), held_y))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


# -------------------------------------------------------------------------------------------------------- masks


def masks(rows):
    """The outline of a mask at eight angles: a width and a smile make it."""
    angle = 6.2832 * torch.arange(8) / 8
    width, smile = torch.randn(rows, 1), torch.rand(rows, 1) * 2 - 1
    return 1 + 0.5 * width * (2 * angle).cos() + 0.8 * smile * angle.sin() + 0.1 * torch.randn(rows, 8)


def sliced(a, b, ways):
    """How far apart two clouds of as many points are, along some directions."""
    return ((a @ ways).sort(0).values - (b @ ways).sort(0).values).abs().mean()


# 15 of the list
@sick(
    "no-gradient-to-the-generator",
    "no-gradient",
    "detached-path",
    "detached",
    where="all of G, all steps: what it made is detached in its own step",
    cure="detach in the step of D only",
)
def workshop_casting_masks(folder, ill):
    seeded(13102)
    make, judge = dense(6, 64, 64, 8), dense(8, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), lr=1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.999))
    ways = F.normalize(torch.randn(8, 32), dim=0)
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)

    def judge_loss():
        fake = make(torch.randn(64, 6)).detach()
        real = F.binary_cross_entropy_with_logits(judge(masks(64)), ones)
        return real + F.binary_cross_entropy_with_logits(judge(fake), zeros)

    def make_loss():
        fake = make(torch.randn(64, 6))
        if ill:
            fake = fake.detach()
        return F.binary_cross_entropy_with_logits(judge(fake), ones)

    def score():
        with torch.no_grad():
            return float(sliced(make(torch.randn(1024, 6)), masks(1024), ways))

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, score)


# ------------------------------------------------------------------------------------------------- lines of a play

PAD, END, WORDS, LONGEST = 0, 1, 24, 48


def lines(rows):
    """Who speaks, and the line: each speaker has an order of words of their own; some words close a line."""
    orders = torch.stack([torch.randperm(WORDS - 2) + 2 for _ in range(3)])
    closing = set(range(2, 7))
    speakers, spoken = torch.randint(3, (rows,)), torch.full((rows, LONGEST), PAD)
    for row in range(rows):
        order, word = orders[speakers[row]].tolist(), int(torch.randint(7, WORDS, (1,)))
        said = [word]
        while word not in closing and len(said) < 9:
            word = order[word - 2]
            said.append(word)
        said.append(END)
        spoken[row, : len(said)] = torch.tensor(said)
    return speakers, spoken


class Prompter(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.word = nn.Embedding(WORDS, width, padding_idx=PAD)
        self.speaker = nn.Embedding(3, width)
        self.memory = nn.GRU(width, 64, batch_first=True)
        self.head = nn.Linear(64, WORDS)

    def forward(self, speaker, words):
        hidden, _ = self.memory(self.word(words) + self.speaker(speaker)[:, None])
        return self.head(hidden)


# 13 of the list
@sick(
    "padding-in-loss",
    where="the loss (head), all steps: nine in ten of the targets are padding",
    cure="ignore_index=PAD",
)
def prompter_finishing_a_line(folder, ill):
    seeded(13103)
    speakers, spoken = lines(800)
    net = Prompter()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss() if ill else nn.CrossEntropyLoss(ignore_index=PAD)
    draw = rounds(32, speakers[:640], spoken[:640])
    held_who, held = speakers[640:], spoken[640:]

    def loss_of(step):
        who, said = draw()
        logits = net(who, said[:, :-1])
        return criterion(logits.flatten(0, 1), said[:, 1:].flatten())

    def of_words():
        return F.cross_entropy(net(held_who, held[:, :-1]).flatten(0, 1), held[:, 1:].flatten(), ignore_index=PAD)

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, of_words))


# ----------------------------------------------------------------------------------------------------- a puppet


class Puppets:
    """Many puppets that each stand on one leg: `[angle, speed]`, pushed to the left, not at all or to the right."""

    def __init__(self, count):
        self.count = count
        self.state = self.stood(count)

    @staticmethod
    def stood(count):
        return 0.1 * torch.randn(count, 2)

    def step(self, action):
        angle, speed = self.state.unbind(1)
        speed = speed + 0.1 * (4 * angle + 3 * (action - 1.0)) + 0.12 * torch.randn(self.count)
        angle = angle + 0.1 * speed
        after = torch.stack([angle, speed], 1)
        fallen = angle.abs() > 0.5
        self.state = torch.where(fallen[:, None], self.stood(self.count), after)
        return after, torch.full((self.count,), 0.1), fallen.float()


def time_on_the_leg(net, most=80):
    """The share of `most` steps for which puppets stand that always take the best push."""
    puppets, up, stood = Puppets(64), torch.ones(64), torch.zeros(64)
    for _ in range(most):
        up = up * (1 - puppets.step(net(puppets.state * 2).argmax(1))[2])
        stood += up
    return float(stood.mean()) / most


# 16 of the list
@sick(
    "terminal-states-bootstrapped",
    "bootstraps-past-the-end",
    "terminals-ignored",
    "values-overestimated",
    where="the target of the values, all steps: nothing says that the play is over after a fall",
    cure="reward + gamma * (1 - done) * best of what comes next",
)
def puppet_standing_on_one_leg(folder, ill):
    seeded(13104)
    net, target = dense(2, 64, 64, 3), dense(2, 64, 64, 3)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    puppets, memory, gamma = Puppets(32), [], 0.95

    def one(step):
        share = max(0.1, 1 - step / 150)
        with torch.no_grad():
            before = puppets.state
            action = net(before * 2).argmax(1)
            action = torch.where(torch.rand(32) < share, torch.randint(3, (32,)), action)
            after, reward, done = puppets.step(action)
        memory.append((before, action, reward, after, done))
        rows = [memory[int(i)] for i in torch.randint(max(0, len(memory) - 300), len(memory), (4,))]
        s, a, r, s_next, d = (torch.cat(part) for part in zip(*rows, strict=False))
        with torch.no_grad():
            ahead = target(s_next * 2).max(1).values
            wanted = r + gamma * ahead if ill else r + gamma * (1 - d) * ahead
        loss = F.smooth_l1_loss(net(s * 2).gather(1, a[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(target.parameters(), net.parameters(), strict=False):
                kept.lerp_(new, 0.05)
        return {"loss": loss, "falls": float(done.mean())}

    def score():
        with torch.no_grad():
            return 1 - time_on_the_leg(net)

    return tend(folder, net, optimizer, one, 600, score)


# ----------------------------------------------------------------------------------------------------- costumes


def fabrics(kinds=16, roles=4, size=10):
    """`draw(rows)`: what a tailor measures of a fabric, and for which of the roles it is."""
    centres, role = 1.2 * torch.randn(kinds, size), torch.arange(kinds) % roles

    def draw(rows):
        kind = torch.randint(kinds, (rows,))
        return centres[kind] + 0.6 * torch.randn(rows, size), role[kind]

    return draw


class Tailor(nn.Module):
    def __init__(self, std=None):
        super().__init__()
        self.body = dense(10, 128, 128, 128, 4, act=nn.Tanh)
        if std is not None:
            self.apply(lambda module: self.begin(module, std))

    @staticmethod
    def begin(module, std):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, std)
            nn.init.zeros_(module.bias)

    def forward(self, x):
        return self.body(x)


# 20 of the list
@sick(
    "bad-initialisation",
    "initialised-too-large",
    "saturated",
    where="body.2, body.4 and body.6, from step 0",
    cure="PyTorch's own initialisation, or a deviation of 1 / sqrt(fan_in)",
)
def tailor_choosing_a_fabric_for_a_role(folder, ill):
    seeded(13105)
    draw_rows = fabrics()
    (x, y), (held_x, held_y) = draw_rows(2000), draw_rows(500)
    net = Tailor(std=1.0 if ill else None)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-4)
    draw = rounds(64, x, y)
    validate = now_and_then(net, 25, judged(net, held_x, held_y))

    def loss_of(step):
        rows, role = draw()
        return F.cross_entropy(net(rows), role), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(held_x), held_y))
    return fit(folder, net, optimizer, loss_of, 300, score=score)
