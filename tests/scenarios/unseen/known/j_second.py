"""Mistakes that were listed from memory and drawn by lot: rates, schedules, the loop itself, tuning and rewards."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


# 21 of the list
@sick("lr-too-high", "update-too-large", "exploding", where="all layers, from the first steps",
      cure="a rate some tens of times lower")  # fmt: skip
def notes_found_on_a_printed_stave(folder, ill):
    seeded(11006)
    lines = torch.zeros(16, 16)
    lines[3:15:3] = 0.5

    def staves(rows):
        y, across = torch.randint(12, (rows,)), torch.randint(2, 14, (rows,))
        tall, wide = torch.arange(16)[None, :, None], torch.arange(16)[None, None, :]
        head = ((tall - 2 - y[:, None, None]).abs() <= 1) & ((wide - across[:, None, None]).abs() <= 1)
        return (lines + head.float() + 0.2 * torch.randn(rows, 16, 16))[:, None], y

    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d((1, 2)), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d((1, 2)), nn.Flatten(), nn.Linear(24 * 64, 64), nn.ReLU(), nn.Linear(64, 12),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.5 if ill else 0.01, momentum=0.9)

    def loss_of(step):
        x, y = staves(32)
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    x, y = staves(300)
    return fit(folder, net, optimizer, loss_of, 150, score=held_out(net, lambda: F.cross_entropy(net(x), y)))


# 26 of the list
@sick("warmup-too-long", "lr-too-low", where="the rate, all steps", cure="a warm-up of a tenth of the run")
def dance_tunes_continued_by_a_transformer(folder, ill):
    seeded(11007)
    pitches, length, steps, width = 14, 20, 220, 32
    warmup = 8000 if ill else 30

    class Tunes(nn.Module):
        def __init__(self):
            super().__init__()
            self.pitch, self.place = nn.Embedding(pitches, width), nn.Embedding(length, width)
            layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, pitches)

        def forward(self, x):
            ban = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            h = self.pitch(x) + self.place(torch.arange(x.shape[1]))
            return self.head(self.norm(self.body(h, mask=ban, is_causal=True)))

    def tunes(rows):
        start, leap = torch.randint(pitches, (rows, 1)), torch.randint(1, 5, (rows, 2))
        rise = leap.repeat(1, length // 2 + 1)[:, :length].cumsum(1)
        return torch.cat([start, (start + rise) % pitches], 1)

    net = Tunes()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5)
    )

    def loss_on(tune):
        return F.cross_entropy(net(tune[:, :-1]).flatten(0, 1), tune[:, 1:].flatten())

    test = tunes(200)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(tunes(20)), steps, score=score, schedule=schedule)


# 27 of the list
@sick("gradients-accumulate", where="all layers, from the second step", cure="zero_grad() before each backward")
def tempo_of_a_march_from_its_drum(folder, ill):
    seeded(11008)

    def marches(rows):
        beat = 0.4 + 0.5 * torch.rand(rows, 1)
        gaps = beat * 2.0 ** -torch.randint(3, (rows, 16)) * (1 + 0.05 * torch.randn(rows, 16))
        return gaps[:, :, None] * 4 - 1, (beat - 0.65) / 0.15

    class Listener(nn.Module):
        def __init__(self):
            super().__init__()
            self.hear, self.say = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 1)

        def forward(self, x):
            return self.say(self.hear(x)[0].mean(1))

    net = Listener()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def one(step):
        x, y = marches(32)
        if not ill:
            optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    x, y = marches(500)
    return tend(folder, net, optimizer, one, 400, held_out(net, lambda: F.mse_loss(net(x), y)))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        return F.relu(x + self.second(self.first(x)))


# 33 of the list
@sick("lr-too-high", "update-too-large", "exploding", where="all layers, the first steps",
      cure="a rate of a hundredth of the one from scratch")  # fmt: skip
def covers_of_a_small_press_after_a_large_one(folder, ill):
    seeded(11009)
    motifs = torch.randn(12, 10, 10)

    def covers(y, tint):
        turn, size = torch.randint(3, (len(y), 2)), torch.rand(len(y), 1, 1) + 0.5
        image = torch.stack([motifs[k].roll((int(a), int(b)), (0, 1)) for k, (a, b) in zip(y, turn, strict=True)])
        return (tint * size * image + 0.6 * torch.randn(len(y), 10, 10))[:, None]

    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Block(16), nn.MaxPool2d(2),
        Block(16), nn.Flatten(),
    )  # fmt: skip
    net = nn.Sequential(body, nn.Linear(16 * 25, 12))
    before = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for _ in range(150):
        y = torch.randint(12, (48,))
        before.zero_grad()
        F.cross_entropy(net(covers(y, 1.0)), y).backward()
        before.step()
    pairs = torch.randperm(12)  # the small press prints in negative and has four series of three motifs each
    series = torch.empty(12, dtype=torch.long).scatter_(0, pairs, torch.arange(12) % 4)
    net[1] = nn.Linear(16 * 25, 4)
    k = torch.randint(12, (96,))
    draw = rounds(16, covers(k, -1.0), series[k])
    optimizer = torch.optim.SGD(net.parameters(), 0.5 if ill else 0.005, momentum=0.9, nesterov=True)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    k = torch.randint(12, (400,))
    x, y = covers(k, -1.0), series[k]
    return fit(folder, net, optimizer, loss_of, 80, score=held_out(net, lambda: F.cross_entropy(net(x), y)))


# 34 of the list
@sick("optimizer-state-lost", "moments-begin-anew", where="all layers, the first step of each epoch",
      cure="keep the optimizer's state for the whole run")  # fmt: skip
def paperback_covers_squeezed_to_eight_numbers(folder, ill):
    seeded(11010)
    mix = torch.randn(8, 100) / 8**0.5

    def covers(rows):
        return (torch.randn(rows, 8).tanh() @ mix).tanh() + 0.02 * torch.randn(rows, 100)

    shelf, test = covers(256), covers(200)
    net = nn.Sequential(dense(100, 48, 8, act=nn.Tanh), dense(8, 48, 100, act=nn.Tanh))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    blank = optimizer.state_dict()
    draw = rounds(64, shelf)

    def loss_of(step):
        if ill and step % 4 == 0:  # a helper sets up each epoch as the first one was set up
            optimizer.load_state_dict(blank)
        (x,) = draw()
        return F.mse_loss(net(x), x)

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.mse_loss(net(test), test)))


# 38 of the list
@sick("returns-not-normalised", "rewards-not-normalised", "no-baseline", where="the policy's loss, all steps",
      cure="take their mean off the returns and divide by their spread")  # fmt: skip
def a_librarian_who_walks_to_the_shelf(folder, ill):
    seeded(11011)
    shelves, moves = 12, 14
    net = dense(2 * shelves, 48, 3, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def walks(rows):
        at, goal = torch.randint(shelves, (rows,)), torch.randint(shelves, (rows,))
        logs, rewards, entropy = [], [], []
        for _ in range(moves):
            seen = torch.cat([F.one_hot(at, shelves), F.one_hot(goal, shelves)], 1).float()
            policy = torch.distributions.Categorical(logits=net(seen))
            move = policy.sample()
            at = (at + move - 1).clamp(0, shelves - 1)
            logs.append(policy.log_prob(move))
            entropy.append(policy.entropy())
            rewards.append(100.0 - 5 * (at - goal).abs())
        return torch.stack(logs), torch.stack(rewards), torch.stack(entropy).mean()

    def loss_of(step):
        logs, rewards, entropy = walks(16)
        returns = rewards.flip(0).cumsum(0).flip(0)
        weight = returns
        if not ill:
            weight = (returns - returns.mean(1, keepdim=True)) / (returns.std(1, keepdim=True) + 1e-6)
        return -(logs * weight).mean(), {"return": rewards.sum(0).mean(), "entropy": entropy.detach()}

    def score():
        with torch.no_grad():
            return 100.0 - float(walks(512)[1].mean())

    return fit(folder, net, optimizer, loss_of, 150, score=score)
