"""Schools, classrooms, orchestras and rehearsals: ten healthy trainings as courses and teams have them."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds


@healthy(0.6)
def room_numbers_chalked_on_doors(folder):
    seeded(13650)
    digits = load_digits()
    x, y = torch.tensor(digits.images).float()[:, None] / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 220)
    batch = rounds(64, x[:1400], y[:1400])
    validate = now_and_then(net, 21, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        a, b = batch()
        said = net(a)
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean(), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 220, score=score, schedule=schedule)


@healthy(0.5)
def throats_of_the_choir_seen_by_a_doctor(folder):
    seeded(13651)
    table = load_breast_cancer()
    x, y = torch.tensor(table.data).float(), torch.tensor(table.target).float()
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:420].mean(0)) / x[:420].std(0)
    net = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)
    batch = rounds(32, x[:420], y[:420])

    def measure():
        said = net(x[420:])[:, 0]
        right = ((said > 0) == (y[420:] > 0)).float().mean()
        return {"val_loss": F.binary_cross_entropy_with_logits(said, y[420:]), "val_accuracy": right}

    validate = now_and_then(net, 26, measure)

    def loss_of(step):
        a, b = batch()
        return F.binary_cross_entropy_with_logits(net(a)[:, 0], b), validate(step)

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: measure()["val_loss"]))


class Excuse(nn.Module):
    """A packed LSTM over words, read at the last one of each."""

    def __init__(self, words, classes):
        super().__init__()
        self.word = nn.Embedding(words, 32, padding_idx=0)
        self.rnn = nn.LSTM(32, 48, batch_first=True)
        self.head = nn.Linear(48, classes)

    def forward(self, text, length):
        packed = pack_padded_sequence(self.word(text), length, batch_first=True, enforce_sorted=False)
        return self.head(self.rnn(packed)[1][0][-1])


@healthy(0.5)
def excuses_for_homework_by_their_kind(folder):
    seeded(13652)
    words, kinds, longest = 120, 5, 18
    habit = 1.5 * torch.randn(kinds, words - 1)

    def excuses(rows):
        y = torch.randint(kinds, (rows,))
        text = 1 + torch.multinomial(habit[y].softmax(1), longest, replacement=True)
        length = torch.randint(5, longest + 1, (rows,))
        return text.masked_fill(torch.arange(longest) >= length[:, None], 0), length, y

    net = Excuse(words, kinds)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    train, test = excuses(2000), excuses(400)
    batch = rounds(40, *train)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.cross_entropy(net(*test[:2]), test[2])})

    def loss_of(step):
        text, length, y = batch()
        said = net(text, length)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean(), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(*test[:2]), test[2]))
    return fit(folder, net, optimizer, loss_of, 200, score=score, before_step=clipped(net, 1.0))


def twice(a, b):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b),
        nn.ReLU(),
    )  # fmt: skip


class Plan(nn.Module):
    """A U-Net with one level, for three classes."""

    def __init__(self):
        super().__init__()
        self.down, self.low, self.up = twice(1, 12), twice(12, 24), nn.ConvTranspose2d(24, 12, 2, 2)
        self.last, self.out = twice(24, 12), nn.Conv2d(12, 3, 1)

    def forward(self, x):
        fine = self.down(x)
        return self.out(self.last(torch.cat([fine, self.up(self.low(F.max_pool2d(fine, 2)))], 1)))


@healthy(0.5)
def desks_and_benches_on_a_floor_plan(folder):
    seeded(13653)
    net, grid = Plan(), torch.arange(16.0)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def plans(rows):
        mask = torch.zeros(rows, 16, 16, dtype=torch.long)
        for kind, high, wide in ((1, 2.5, 2.5), (2, 1.5, 4.5), (1, 2.5, 2.5)):
            at = 3 + 10 * torch.rand(rows, 2, 1, 1)
            inside = ((grid[:, None] - at[:, 0]).abs() < high) & ((grid - at[:, 1]).abs() < wide)
            mask[inside] = kind
        ink = torch.tensor([0.0, 1.0, 0.9])[mask]
        return (ink + 0.35 * torch.randn(rows, 16, 16) - 0.3)[:, None], mask

    train, test = plans(800), plans(100)
    batch = rounds(16, *train)

    def measure():
        said = net(test[0])
        right = (said.argmax(1) == test[1]).float().mean()
        return {"val_loss": F.cross_entropy(said, test[1]), "pixel_accuracy": right}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        x, mask = batch()
        return F.cross_entropy(net(x), mask), validate(step)

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: measure()["val_loss"]))


class Questions(nn.Module):
    """A transformer over words, told where padding is, with the mean of the words classified."""

    def __init__(self, words, length, classes, width=32):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, text):
        empty = text == 0
        x = self.word(text) * self.word.embedding_dim**0.5 + self.place.weight
        x = self.body(x, src_key_padding_mask=empty)
        there = (~empty).float()[:, :, None]
        return self.head((x * there).sum(1) / there.sum(1))


@healthy(0.5)
def questions_put_to_the_class_by_subject(folder):
    seeded(13654)
    words, length, subjects = 80, 16, 6
    habit = 1.3 * torch.randn(subjects, words - 1)

    def questions(rows):
        y = torch.randint(subjects, (rows,))
        text = 1 + torch.multinomial(habit[y].softmax(1), length, replacement=True)
        return text.masked_fill(torch.arange(length) >= torch.randint(6, length + 1, (rows, 1)), 0), y

    net = Questions(words, length, subjects)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 20, 1 - 0.9 * step / 200))
    train, test = questions(3000), questions(400)
    batch = rounds(32, *train)
    validate = now_and_then(net, 50, judged(net, *test))

    def loss_of(step):
        x, y = batch()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean(), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(test[0]), test[1]))
    return fit(folder, net, optimizer, loss_of, 200, score=score, schedule=schedule, before_step=clipped(net, 1.0))


class Tune(nn.Module):
    """A GRU that says the next note of a tune."""

    def __init__(self, notes):
        super().__init__()
        self.note = nn.Embedding(notes, 24)
        self.rnn = nn.GRU(24, 64, batch_first=True)
        self.head = nn.Linear(64, notes)

    def forward(self, tune):
        return self.head(self.rnn(self.note(tune))[0])


@healthy(0.35)
def rounds_sung_note_by_note(folder):
    seeded(13655)
    notes, length = 20, 24
    phrases = torch.randint(notes, (12, 6))

    def tunes(rows):
        tune = phrases[torch.randint(12, (rows, 4))].flatten(1)
        return torch.where(torch.rand(rows, length) < 0.05, torch.randint(notes, (rows, length)), tune)

    net = Tune(notes)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    train, test = tunes(1600), tunes(200)
    batch = rounds(32, train)

    def loss_on(tune):
        return F.cross_entropy(net(tune[:, :-1]).flatten(0, 1), tune[:, 1:].flatten())

    validate = now_and_then(net, 50, lambda: {"val_loss": loss_on(test)})

    def loss_of(step):
        (tune,) = batch()
        loss = loss_on(tune)
        return loss, {"perplexity": loss.detach().exp(), **validate(step)}

    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, loss_of, 200, score=score, before_step=clipped(net, 1.0))


@healthy(0.3)
def a_prefect_patrolling_the_corridor(folder):
    seeded(13656)
    rows, length = 24, 12
    net = nn.ModuleDict({"policy": dense(3, 32, 3, act=nn.Tanh), "value": dense(3, 32, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def patrolled(rows):
        at, noise = 2 * torch.rand(rows) - 1, 2 * torch.rand(rows) - 1
        seen, taken, paid = [], [], []
        for i in range(length):
            state = torch.stack([at, noise, torch.full((rows,), i / length)], 1)
            with torch.no_grad():
                action = Categorical(logits=net["policy"](state)).sample()
            at = (at + 0.3 * (action - 1)).clamp(-1.2, 1.2)
            seen.append(state), taken.append(action), paid.append(1 - (at - noise).abs())
        return torch.stack(seen), torch.stack(taken), torch.stack(paid)

    def loss_of(step):
        states, actions, rewards = patrolled(rows)
        returns, after = torch.zeros_like(rewards), torch.zeros(rows)
        for i in reversed(range(length)):
            returns[i] = after = rewards[i] + 0.9 * after
        said, value = Categorical(logits=net["policy"](states)), net["value"](states)[:, :, 0]
        advantage = (returns - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        entropy = said.entropy().mean()
        policy_loss, value_loss = -(said.log_prob(actions) * advantage).mean(), F.mse_loss(value, returns)
        logged = {"return": rewards.sum(0).mean(), "value_loss": value_loss.detach(), "entropy": entropy.detach()}
        return policy_loss + 0.5 * value_loss - 0.01 * entropy, logged

    def score():
        with torch.no_grad():
            return length - float(patrolled(500)[2].sum(0).mean())

    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 0.5))


@healthy(0.5)
def scores_scanned_with_tea_upon_them(folder):
    seeded(13657)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    grid = torch.arange(16.0)

    def scans(rows):
        clean = torch.zeros(rows, 16, 16)
        clean[:, 3::3] = 0.6
        at = 16 * torch.rand(rows, 3, 2, 1, 1)
        heads = ((grid[:, None] - at[:, :, 0]).square() + (grid - at[:, :, 1]).square() < 2.5).any(1)
        clean[heads] = 1.0
        spill = F.interpolate(torch.randn(rows, 1, 4, 4), size=(16, 16), mode="bilinear")
        return clean[:, None] + 0.4 * spill + 0.3 * torch.randn(rows, 1, 16, 16), clean[:, None]

    train, test = scans(1200), scans(200)
    batch = rounds(32, *train)
    validate = now_and_then(net, 37, lambda: {"val_loss": F.mse_loss(net(test[0]), test[1])})

    def loss_of(step):
        x, y = batch()
        return F.mse_loss(net(x), y), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(test[0]), test[1]))
    return fit(folder, net, optimizer, loss_of, 220, score=score)


class Hall(nn.Module):
    """Convolutions over a day of hours, then the next hour."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(2, 24, 5), nn.ReLU(), nn.Conv1d(24, 24, 5, stride=2), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(24 * 8, 1)

    def forward(self, x):
        return self.head(self.body(x))


@healthy(0.6)
def warmth_of_the_rehearsal_hall_next_hour(folder):
    seeded(13658)
    hours = torch.arange(2400.0)
    outside = (6.2832 * hours / 24).sin() + 0.5 * (6.2832 * hours / 168).cos()
    singers = (torch.rand(2400) < 0.2).float()
    warm = torch.zeros(2400)
    for i in range(1, 2400):
        warm[i] = 0.8 * warm[i - 1] + 0.2 * outside[i] + 0.4 * singers[i - 1] + 0.05 * torch.randn(())
    middle, spread = warm[:1900].mean(), warm[:1900].std()
    both = torch.stack([(warm - middle) / spread, (singers - 0.2) / 0.4])
    windows = both.unfold(1, 25, 1).transpose(0, 1)
    x, y = windows[:, :, :24].contiguous(), windows[:, 0, 24:].contiguous()
    net = Hall()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-5)
    batch = rounds(64, x[:1850], y[:1850])
    validate = now_and_then(net, 28, lambda: {"val_mae": (net(x[1900:]) - y[1900:]).abs().mean()})

    def loss_of(step):
        a, b = batch()
        return F.mse_loss(net(a), b), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(x[1900:]), y[1900:]))
    return fit(folder, net, optimizer, loss_of, 280, score=score)


@healthy(0.5)
def new_instruments_for_a_practised_ear(folder):
    seeded(13659)
    old, new = torch.randn(8, 3, 12), torch.randn(5, 3, 12)

    def heard(timbres, rows):
        y = torch.randint(len(timbres), (rows,))
        shape = F.interpolate(timbres[y], size=36, mode="linear")
        return shape + 0.8 * torch.randn(rows, 3, 36), y

    net = nn.Sequential()
    net.add_module("body", nn.Sequential(
        nn.Conv1d(3, 24, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(24, 32, 5, padding=2), nn.ReLU(),
        nn.MaxPool1d(2), nn.Flatten(), nn.Linear(288, 48), nn.ReLU(),
    ))  # fmt: skip
    net.add_module("head", nn.Linear(48, 8))
    first = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(150):
        x, y = heard(old, 48)
        first.zero_grad()
        F.cross_entropy(net(x), y).backward()
        first.step()
    first.zero_grad()
    net.head = nn.Linear(48, 5)
    groups = [{"params": net.body.parameters(), "lr": 2e-4}, {"params": net.head.parameters(), "lr": 2e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    train, test = heard(new, 600), heard(new, 300)
    batch = rounds(30, *train)
    validate = now_and_then(net, 20, judged(net, *test))

    def loss_of(step):
        x, y = batch()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean(), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(test[0]), test[1]))
    return fit(folder, net, optimizer, loss_of, 160, score=score)
