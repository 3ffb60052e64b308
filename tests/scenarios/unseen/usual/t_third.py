"""Healthy trainings of letters, post offices and printers: what a course or a team's repository has."""

from __future__ import annotations

import copy
import random

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, make_friedman1
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy()
def franking_marks_read_by_a_machine(folder):
    seeded(12050)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = (torch.tensor(images / 16, dtype=torch.float32)[order].view(-1, 1, 8, 8) - 0.3) / 0.37
    y = torch.tensor(digits)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 220)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 220, score=score, schedule=schedule)


@healthy()
def gloss_of_a_magazine_cover(folder):
    seeded(12051)
    table, gloss = make_friedman1(1200, 8, noise=0.5, random_state=12)
    x, y = torch.tensor(table, dtype=torch.float32) * 2 - 1, torch.tensor(gloss, dtype=torch.float32)[:, None]
    y = (y - y[:900].mean()) / y[:900].std()
    net = dense(8, 64, 32, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(60, x[:900], y[:900])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(x[900:]), y[900:])))


@healthy()
def sheets_held_back_before_binding(folder):
    seeded(12052)
    table, sound = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(sound))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(sound, dtype=torch.float32)[order, None]
    x = (x - x[:420].mean(0)) / x[:420].std(0)
    net = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    draw = rounds(42, x[:420], y[:420])

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.binary_cross_entropy_with_logits(out, y), {"accuracy": float(((out > 0) == (y > 0.5)).float().mean())}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[420:]), y[420:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Proof(nn.Module):
    """Tags each letter of a line, read in both directions."""

    def __init__(self, letters, tags):
        super().__init__()
        self.letter = nn.Embedding(letters, 24, padding_idx=0)
        self.memory = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(48, tags)

    def forward(self, text):
        return self.tag(self.memory(self.letter(text))[0])


@healthy()
def ligatures_marked_in_a_proof(folder):
    seeded(12053)
    letters, longest = 18, 16
    net = Proof(letters, 3)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def lines(rows):
        text = torch.randint(1, letters, (rows, longest))
        follows = torch.cat([text[:, 1:], torch.zeros(rows, 1, dtype=torch.long)], 1)
        before = torch.cat([torch.zeros(rows, 1, dtype=torch.long), text[:, :-1]], 1)
        opens, closes = (text < 7) & (follows > 10), (text > 10) & (before < 7) & (before > 0)
        tag = torch.where(opens, 1, torch.where(closes, 2, 0))
        outside = torch.arange(longest) >= torch.randint(6, longest + 1, (rows, 1))
        tag[opens & outside.roll(-1, 1)] = 0
        return text.masked_fill(outside, 0), tag.masked_fill(outside, -100)

    text, tag = lines(1500)
    draw = rounds(40, text[:1200], tag[:1200])

    def loss_on(text, tag):
        return F.cross_entropy(net(text).flatten(0, 1), tag.flatten(), ignore_index=-100)

    score = held_out(net, lambda: loss_on(text[1200:], tag[1200:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 200, score=score, before_step=clipped(net, 1.0))


class Transcriber(nn.Module):
    """Encoder and decoder for short texts."""

    def __init__(self, signs, length, width=32):
        super().__init__()
        self.sign = nn.Embedding(signs + 1, width)
        self.place = nn.Parameter(0.1 * torch.randn(length, width))
        self.body = nn.Transformer(width, 4, 1, 1, 64, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, signs)

    def forward(self, text, said):
        mask = nn.Transformer.generate_square_subsequent_mask(said.shape[1])
        out = self.body(self.sign(text) + self.place, self.sign(said) + self.place, tgt_mask=mask, tgt_is_causal=True)
        return self.head(out)


@healthy()
def type_set_mirrored_in_the_stick(folder):
    seeded(12054)
    signs, length, steps = 10, 7, 190
    net = Transcriber(signs, length)
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min((i + 1) / 25, 1.0) * (1 - 0.9 * i / steps))

    def loss_on(text):
        wanted = text.flip(1)
        said = torch.cat([torch.full_like(text[:, :1], signs), wanted[:, :-1]], 1)
        return F.cross_entropy(net(text, said).flatten(0, 1), wanted.flatten())

    def loss_of(step):
        return loss_on(torch.randint(signs, (48, length)))

    test, clip = torch.randint(signs, (400, length)), clipped(net, 1.0)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clip)


@healthy()
def faded_receipts_made_legible(folder):
    seeded(12055)
    images, _ = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32)[torch.randperm(len(images))].view(-1, 1, 8, 8)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Sigmoid(),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(64, x[:1500])

    def loss_of(step):
        (clean,) = draw()
        return F.mse_loss(net((0.6 * clean + 0.2 * torch.randn_like(clean)).clamp(0, 1)), clean)

    test = x[1500:]
    faded = (0.6 * test + 0.2 * torch.randn_like(test)).clamp(0, 1)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.mse_loss(net(faded), test)))


class Neighbours(nn.Module):
    """Two graph convolutions."""

    def __init__(self, columns, kinds, among):
        super().__init__()
        self.register_buffer("among", among)
        self.first, self.second = nn.Linear(columns, 24), nn.Linear(24, kinds)

    def forward(self, x):
        x = F.relu(self.among @ self.first(x))
        return self.among @ self.second(F.dropout(x, 0.3, self.training))


@healthy()
def villages_that_share_a_sorting_office(folder):
    seeded(12056)
    places, offices = 240, 4
    office = torch.arange(places) % offices
    near = office[:, None] == office[None]
    link = (torch.rand(places, places) < torch.where(near, 0.12, 0.01)).triu(1).float()
    link = link + link.T + torch.eye(places)
    scale = link.sum(1).rsqrt()
    net = Neighbours(16, offices, scale[:, None] * link * scale)
    x = F.one_hot(office, offices).float() @ torch.randn(offices, 16) * 0.4 + torch.randn(places, 16)
    known = torch.randperm(places)
    optimizer = torch.optim.Adam(net.parameters(), 0.01, weight_decay=5e-4)

    def loss_of(step):
        out, right = net(x)[known[:60]], office[known[:60]]
        return F.cross_entropy(out, right), {"accuracy": float((out.argmax(1) == right).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x)[known[60:]], office[known[60:]]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy()
def a_pneumatic_tube_to_the_right_floor(folder):
    seeded(12057)
    random.seed(12057)
    size, net = 5, dense(20, 64, 64, 4)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    moves = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])
    memory = []

    def seen(place, goal):
        return F.one_hot(torch.cat([place, goal], 1), size).flatten(1).float()

    def places(rows):
        return torch.randint(size, (rows, 2)), torch.randint(size, (rows, 2))

    def steps_needed(rows=300):
        place, goal = places(rows)
        needed = torch.zeros(rows)
        for _ in range(20):
            away = (place != goal).any(1)
            needed += away
            step = moves[net(seen(place, goal)).argmax(1)]
            place = torch.where(away[:, None], (place + step).clamp(0, size - 1), place)
        return needed.mean()

    def one(step):
        place, goal = places(32)
        epsilon = max(0.1, 1 - step / 150)
        with torch.no_grad():
            best = net(seen(place, goal)).argmax(1)
        action = torch.where(torch.rand(32) < epsilon, torch.randint(4, (32,)), best)
        then = (place + moves[action]).clamp(0, size - 1)
        done = (then == goal).all(1).float()
        memory.extend(zip(seen(place, goal), action, done, seen(then, goal), strict=True))
        del memory[:-6000]
        state, action, done, follow = (torch.stack(part) for part in zip(*random.sample(memory, 32), strict=True))
        with torch.no_grad():
            wanted = done + 0.9 * (1 - done) * target(follow).max(1).values
        value = net(state).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "epsilon": epsilon, "q": value.mean()}

    return tend(folder, net, optimizer, one, 400, held_out(net, steps_needed))


@healthy()
def numerals_kept_in_eight_drawers(folder):
    seeded(12058)
    images, _ = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32)[torch.randperm(len(images))]
    net = nn.ModuleDict({"read": dense(64, 96, 16), "draw": dense(8, 96, 64)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1500])

    def parts(x):
        middle, spread = net["read"](x).chunk(2, 1)
        code = middle + (spread / 2).exp() * torch.randn_like(middle)
        error = F.binary_cross_entropy_with_logits(net["draw"](code), x, reduction="none").sum(1).mean()
        return error, -0.5 * (1 + spread - middle.square() - spread.exp()).sum(1).mean()

    def loss_of(step):
        error, apart = parts(*draw())
        return error + min(1.0, step / 120) * apart, {"reconstruction": float(error), "kl": float(apart)}

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: sum(parts(x[1500:]))))


@healthy()
def flowers_pressed_between_two_letters(folder):
    seeded(12059)
    table, kinds = load_iris(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds)[order]
    x = (x - x[:110].mean(0)) / x[:110].std(0)
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)
    draw = rounds(22, x[:110], y[:110])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[110:]), y[110:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)
