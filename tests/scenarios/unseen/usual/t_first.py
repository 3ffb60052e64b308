"""Sick trainings of letters and printers, drawn by lot from a list of mistakes: gradients, signs, inputs, schedules."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


class Graphologist(nn.Module):
    """An encoder of images and a head upon it."""

    def __init__(self, senders, probe=False):
        super().__init__()
        self.probe = probe
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 24), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, senders))

    def forward(self, image):
        features = self.encoder(image)
        if self.probe:
            features = features.detach()
        return self.head(features)


@sick("no-gradient", where="the encoder, all steps: its output is detached in forward", cure="no detach")
def sender_guessed_from_the_handwriting(folder, ill):
    seeded(12000)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = torch.tensor(images / 16, dtype=torch.float32)[order].view(-1, 1, 8, 8)
    y = torch.tensor(digits)[order]
    net = Graphologist(10, probe=ill)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@sick("wrong-sign", where="the loss of the policy, all steps", cure="minus the mean of log-probabilities by advantages")
def a_courier_crossing_the_paved_yard(folder, ill):
    seeded(12001)
    net = dense(4, 48, 48, 4, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    moves = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])

    def episode(rows):
        place, door = torch.randint(-3, 4, (rows, 2)).float(), torch.randint(-3, 4, (rows, 2)).float()
        logs, rewards = [], []
        for _ in range(10):
            choice = torch.distributions.Categorical(logits=net(torch.cat([place, door], 1) / 3))
            action = choice.sample()
            place = (place + moves[action]).clamp(-4, 4)
            logs.append(choice.log_prob(action))
            rewards.append(-(place - door).abs().sum(1) / 8)
        return torch.stack(logs), torch.stack(rewards)

    def one(step):
        logs, rewards = episode(48)
        to_come = torch.zeros_like(rewards)
        running = torch.zeros(rewards.shape[1])
        for t in reversed(range(len(rewards))):
            running = rewards[t] + 0.9 * running
            to_come[t] = running
        gain = (to_come - to_come.mean(1, keepdim=True)) / (to_come.std() + 1e-6)
        loss = (logs * gain).mean() if ill else -(logs * gain).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": rewards.sum(0).mean()}

    return tend(folder, net, optimizer, one, 150, held_out(net, lambda: -episode(512)[1].sum(0).mean()))


@sick("inputs-not-normalised", where="the inputs of the first layer: columns as they are, one in the thousands",
      cure="columns less their mean, by their standard deviation")  # fmt: skip
def inks_of_three_printing_houses(folder, ill):
    seeded(12002)
    table, houses = load_wine(return_X_y=True)
    order = torch.randperm(len(houses))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(houses)[order]
    if not ill:
        x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = dense(13, 32, 16, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    draw = rounds(26, x[:130], y[:130])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


class Counter(nn.Module):
    """What a bundle costs, from its measures."""

    def __init__(self, columns, width, plain):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(columns, width), nn.Linear(width, width)])
        self.out = nn.Linear(width, 1)
        if plain:
            self.apply(self.clear)

    @staticmethod
    def clear(module):
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.out(x)


@sick("bad-initialisation", where="all weights before the first step: zero", cure="the initialisation of nn.Linear")
def postage_due_on_a_heavy_bundle(folder, ill):
    seeded(12003)
    net = Counter(6, 64, plain=ill)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def bundles(rows):
        x = torch.randn(rows, 6)
        due = 0.8 * x[:, 0].relu() + x[:, 1] * (x[:, 2] > 0) + 0.5 * x[:, 3] + 0.05 * torch.randn(rows)
        return x, due[:, None]

    x, y = bundles(3000)
    draw = rounds(100, x, y)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    tx, ty = bundles(800)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


@sick("schedule-too-short", where="the learning rate, which halves every three batches instead of every three epochs",
      cure="a step of the schedule after each epoch")  # fmt: skip
def wax_seals_pressed_in_a_hurry(folder, ill):
    seeded(12004)
    kinds, batch, rows, epochs = 6, 40, 1200, 9
    shapes = (torch.randn(kinds, 1, 6, 6) > 0).float()

    def seals(rows):
        y = torch.randint(kinds, (rows,))
        x = 0.4 * torch.randn(rows, 1, 12, 12)
        down, right = torch.randint(7, (2, rows))
        for i in range(rows):
            x[i, :, down[i] : down[i] + 6, right[i] : right[i] + 6] += shapes[y[i]] - 0.5
        return x, y

    x, y = seals(rows)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, kinds),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    draw, an_epoch = rounds(batch, x, y), rows // batch

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        right = float((logits.argmax(1) == y).float().mean())
        return F.cross_entropy(logits, y), {"accuracy": right, "learning_rate": optimizer.param_groups[0]["lr"]}

    def after_step(step):
        if ill or (step + 1) % an_epoch == 0:
            schedule.step()

    tx, ty = seals(400)
    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, epochs * an_epoch, score=score, after_step=after_step)


class Desk(nn.Module):
    """Which desk a letter goes to, by its words."""

    def __init__(self, words, desks, shares):
        super().__init__()
        self.words = nn.EmbeddingBag(words, 32)
        self.hidden = nn.Linear(32, 32)
        self.out = nn.Linear(32, desks)
        self.shares = shares

    def forward(self, text):
        out = self.out(F.relu(self.hidden(self.words(text))))
        return out.softmax(1) if self.shares else out


@sick("softmax-twice", where="the output of the model, all steps", cure="logits into the loss")
def complaints_brought_to_the_right_counter(folder, ill):
    seeded(12005)
    words, desks = 120, 6
    net = Desk(words, desks, shares=ill)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    chances = torch.softmax(1.5 * torch.randn(desks, words), 1)

    def letters(rows):
        desk = torch.randint(desks, (rows,))
        return torch.multinomial(chances[desk], 14, replacement=True), desk

    text, desk = letters(2400)
    draw = rounds(48, text[:2000], desk[:2000])

    def loss_of(step):
        text, desk = draw()
        out = net(text)
        return F.cross_entropy(out, desk), {"accuracy": float((out.argmax(1) == desk).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(text[2000:]), desk[2000:]))
    return fit(folder, net, optimizer, loss_of, 320, score=score)
