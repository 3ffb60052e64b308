"""Sick trainings of gardens, bees and orchards in spring, drawn by lot: values, modes, schedules, heads."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds, tend

MOVES = 0.25 * torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])


def fly(place, move):
    """A bee that moves over a meadow; its reward and whether it is home, at the middle."""
    place = (place + MOVES[move]).clamp(-1, 1)
    home = place.abs().amax(1) < 0.2
    return place, torch.where(home, 1.0, -0.05), home


@sick("target-network-stale", where="the target network: as it began, all steps",
      cure="the target network set to the trained one every 20 steps")  # fmt: skip
def a_bee_home_before_the_rain(folder, ill):
    seeded(11906)
    net = dense(2, 64, 64, 4)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    memory, place = [], 2 * torch.rand(32, 2) - 1

    def one(step):
        nonlocal place
        with torch.no_grad():
            greedy = net(place).argmax(1)
        move = torch.where(torch.rand(32) < max(0.1, 1 - step / 150), torch.randint(4, (32,)), greedy)
        after, reward, home = fly(place, move)
        memory.append((place, move, reward, after, home))
        again = home | (torch.rand(32) < 0.05)
        place = torch.where(again[:, None], 2 * torch.rand(32, 2) - 1, after)
        picked = [memory[i] for i in torch.randint(len(memory), (4,))]
        x, a, r, x2, end = (torch.cat(part) for part in zip(*picked, strict=False))
        with torch.no_grad():
            wanted = r + 0.95 * target(x2).amax(1) * ~end
        loss = F.smooth_l1_loss(net(x).gather(1, a[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        if step % 20 == 0 and not ill:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "reward": reward.mean()}

    def minutes():
        place, out = 2 * torch.rand(400, 2) - 1, torch.ones(400, dtype=torch.bool)
        total = 0.0
        for _ in range(20):
            total = total + out.float().mean()
            place, _, home = fly(place, net(place).argmax(1))
            out = out & ~home
        return total

    return tend(folder, net, optimizer, one, 400, held_out(net, minutes))


@sick("left-in-eval", where="batch norms, from the first validation on: running statistics that nobody updates",
      cure="net.train() after each validation")  # fmt: skip
def seed_packets_read_by_number(folder, ill):
    seeded(11907)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = (torch.tensor(images, dtype=torch.float32)[order] - 4.9) / 6.0
    y = torch.tensor(digits)[order]
    net = dense(64, 96, 96, 96, 96, 96, 96, 96, 96, 10, norm=nn.BatchNorm1d)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    draw = rounds(64, x[:1300], y[:1300])

    def validate():
        net.eval()
        with torch.no_grad():
            right = float((net(x[1300:1500]).argmax(1) == y[1300:1500]).float().mean())
        if not ill:
            net.train()
        return right

    def loss_of(step):
        logged = {"val_accuracy": validate()} if step % 20 == 0 else {}
        bx, by = draw()
        return F.cross_entropy(net(bx), by), logged

    score = held_out(net, lambda: F.cross_entropy(net(x[1500:]), y[1500:]))
    return fit(folder, net, optimizer, loss_of, 160, score=score)


class Diary(nn.Module):
    """A model of the next letter."""

    def __init__(self, letters, width):
        super().__init__()
        self.letter = nn.Embedding(letters, width)
        self.memory = nn.LSTM(width, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, letters)

    def forward(self, text):
        return self.head(self.memory(self.letter(text))[0])


@sick("schedule-too-short", "scheduler-stepped-per-batch",
      where="the learning rate, from the first epoch on: steps of epochs are counted in batches",
      cure="the scheduler stepped once an epoch")  # fmt: skip
def notes_kept_by_an_old_gardener(folder, ill):
    seeded(11908)
    letters, batches, epochs = 18, 30, 10
    net = Diary(letters, 24)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.3)
    follows = torch.softmax(2.5 * torch.randn(letters, letters, letters), 2)

    def texts(rows, length=16):
        text = [torch.randint(letters, (rows,)), torch.randint(letters, (rows,))]
        for _ in range(length):
            text.append(torch.multinomial(follows[text[-2] // 6, text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    draw = rounds(32, texts(32 * batches))

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def loss_of(step):
        return loss_on(*draw()), {"lr": optimizer.param_groups[0]["lr"]}

    def after_step(step):
        if ill or step % batches == batches - 1:
            scheduler.step()

    test = texts(300)
    score = held_out(net, lambda: loss_on(test))
    clip = clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, batches * epochs, score=score, before_step=clip, after_step=after_step)


class Beds(nn.Module):
    """A transformer that reads what grows in a row and says one thing of it."""

    def __init__(self, kinds, length, answers, dropout):
        super().__init__()
        self.kind = nn.Embedding(kinds, 32)
        self.place = nn.Parameter(0.1 * torch.randn(length, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, answers)

    def forward(self, row):
        return self.head(self.body(self.kind(row) + self.place).mean(1))


@sick("dropout-too-strong", where="all dropouts of the transformer, all steps", cure="a dropout of a tenth")
def sage_in_the_fourth_place(folder, ill):
    seeded(11909)
    kinds, length = 6, 8
    net = Beds(kinds, length, kinds, dropout=0.9 if ill else 0.1)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)

    def beds(rows):
        row = torch.randint(kinds, (rows, length))
        return row, row[:, 3]

    draw = rounds(48, *beds(3000))

    def loss_of(step):
        row, there = draw()
        logits = net(row)
        return F.cross_entropy(logits, there), {"accuracy": float((logits.argmax(1) == there).float().mean())}

    tx, ty = beds(600)
    return fit(folder, net, optimizer, loss_of, 220, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("not-in-optimizer", where="the new head, all steps: the optimizer holds the parameters of the old one",
      cure="the optimizer made after the head is replaced")  # fmt: skip
def plum_stones_after_cherry_stones(folder, ill):
    seeded(11910)
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(digits)
    order = torch.randperm(len(y))
    x, y = x[order], y[order]
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 48), nn.ReLU(),
    )  # fmt: skip
    net = nn.Sequential(body, nn.Linear(48, 5))
    before = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(32, x[y < 5], y[y < 5])
    for _ in range(60):
        bx, by = draw()
        before.zero_grad()
        F.cross_entropy(net(bx), by).backward()
        before.step()

    def fine_tuning():
        return torch.optim.AdamW([{"params": body.parameters(), "lr": 5e-5}, {"params": net[1].parameters()}], 2e-3)

    if ill:
        optimizer = fine_tuning()
        net[1] = nn.Linear(48, 5)
    else:
        net[1] = nn.Linear(48, 5)
        optimizer = fine_tuning()
    x, y = x[y >= 5], y[y >= 5] - 5
    draw = rounds(32, x[:700], y[:700])

    def loss_of(step):
        bx, by = draw()
        logits = net(bx)
        return F.cross_entropy(logits, by), {"accuracy": float((logits.argmax(1) == by).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[700:]), y[700:]))
    return fit(folder, net, optimizer, loss_of, 120, score=score)


class Almanac(nn.Module):
    """The subject of a text by the mean of its words."""

    def __init__(self, words, subjects, last):
        super().__init__()
        self.words = nn.EmbeddingBag(words, 32, mode="mean")
        self.rest = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, subjects), *last)

    def forward(self, text):
        return self.rest(self.words(text))


@sick("softmax-twice", where="the last operation of the model, all steps", cure="logits into the loss")
def advice_for_the_month_of_april(folder, ill):
    seeded(11911)
    words, subjects, length = 200, 10, 20
    net = Almanac(words, subjects, [nn.Softmax(dim=1)] if ill else [])
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    of_subject = torch.softmax(1.2 * torch.randn(subjects, words), 1)

    def texts(rows):
        y = torch.randint(subjects, (rows,))
        return torch.multinomial(of_subject[y], length, replacement=True), y

    criterion = nn.CrossEntropyLoss()
    draw = rounds(64, *texts(2500))

    def loss_of(step):
        text, y = draw()
        out = net(text)
        return criterion(out, y), {"accuracy": float((out.argmax(1) == y).float().mean())}

    tx, ty = texts(600)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: criterion(net(tx), ty)))
