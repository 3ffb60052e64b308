"""Ordinary trainings that go well: language, transfer, an adversarial pair, and what is learned by acting."""

from __future__ import annotations

import math
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend

import gradwatch

GARMENTS = ["coat", "waistcoat", "skirt", "pair of trousers", "evening dress", "cape"]
CLOTHS = ["wool", "linen", "tweed", "velvet", "cotton"]
COLOURS = ["grey", "navy", "black", "bottle green", "cream"]


def one_of(words):
    return words[int(torch.randint(len(words), ()))]


def order_book(orders):
    """The text of a tailor's orders."""
    lines = []
    for _ in range(orders):
        chest = int(torch.randint(34, 48, ()))
        garment = f"{one_of(COLOURS)} {one_of(GARMENTS)} in {one_of(CLOTHS)}"
        lines.append(f"one {garment}, chest {chest}, waist {chest - 6}.\n")
    return "".join(lines)


class Writer(nn.Module):
    """A small causal transformer of letters."""

    def __init__(self, letters, width=48, context=48):
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, letters)

    def forward(self, x):
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.letter(x) + self.place(torch.arange(length))
        return self.head(self.blocks(hidden, mask=mask, is_causal=True))


@healthy()
def orders_of_a_tailor(folder):
    seeded(2597)
    text = order_book(900)
    letters = sorted(set(text))
    tokens = torch.tensor([letters.index(letter) for letter in text])
    train, last = tokens[:-4000], tokens[-4000:]
    net = Writer(len(letters))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 40, 0.1 + 0.45 * (1 + math.cos(math.pi * step / 260)))
    )

    def error(pages):
        return F.cross_entropy(net(pages[:, :-1]).flatten(0, 1), pages[:, 1:].flatten())

    def loss_of(step):
        starts = torch.randint(len(train) - 49, (24, 1))
        return error(train[starts + torch.arange(49)])

    score = held_out(net, lambda: error(last[: 49 * 80].view(80, 49)))
    return fit(folder, net, optimizer, loss_of, 260, score=score, before_step=clipped(net, 1.0), schedule=schedule)


def logbook(words, kinds=60):
    """What a fleet writes down: a chain of words, each of which likes a few that follow."""
    follows = torch.randint(kinds, (kinds, 3))
    pages = [0]
    for pick, slip, other in zip(
        torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), words, True).tolist(),
        torch.rand(words).tolist(),
        torch.randint(kinds, (words,)).tolist(),
        strict=True,
    ):
        pages.append(other if slip < 0.05 else int(follows[pages[-1], pick]))
    return torch.tensor(pages)


class Recurrent(nn.Module):
    def __init__(self, words=60, width=64):
        super().__init__()
        self.word, self.drop = nn.Embedding(words, 32), nn.Dropout(0.2)
        self.memory, self.head = nn.LSTM(32, width, batch_first=True), nn.Linear(width, words)

    def forward(self, x, state=None):
        hidden, state = self.memory(self.drop(self.word(x)), state)
        return self.head(self.drop(hidden)), tuple(part.detach() for part in state)


@healthy()
def logbooks_of_a_fishing_fleet(folder):
    seeded(2598)
    book = logbook(20 * 600 + 2000)
    columns, last = book[: 20 * 600].view(20, 600), book[20 * 600 : 20 * 600 + 2000].view(20, 100)
    net = Recurrent()
    optimizer, state = torch.optim.Adam(net.parameters(), lr=3e-3), [None]

    def loss_of(step):
        at = step % 29 * 20
        logits, state[0] = net(columns[:, at : at + 20], None if at == 0 else state[0])
        loss = F.cross_entropy(logits.flatten(0, 1), columns[:, at + 1 : at + 21].flatten())
        return loss, {"perplexity": loss.detach().exp()}

    score = held_out(net, lambda: F.cross_entropy(net(last[:, :-1])[0].flatten(0, 1), last[:, 1:].flatten()))
    return fit(folder, net, optimizer, loss_of, 700, score=score, before_step=clipped(net, 1.0))


def hums(count, pitches, length=96):
    """Recordings of a hive: each kind has a pitch of its own and a depth of its beat."""
    kind = torch.randint(len(pitches), (count,))
    time = torch.linspace(0, 1, length)
    pitch = torch.tensor(pitches)[kind, None] * (1 + 0.05 * torch.randn(count, 1))
    beat = 1 + 0.5 * (6.2832 * 2 * time + 6.2832 * torch.rand(count, 1)).sin()
    hum = beat * (6.2832 * (pitch * time + torch.rand(count, 1))).sin() + 0.5 * torch.randn(count, length)
    return hum[:, None], kind


def listener():
    return nn.Sequential(
        nn.Conv1d(1, 16, 9, 2, 4), nn.BatchNorm1d(16), nn.ReLU(),
        nn.Conv1d(16, 32, 9, 2, 4), nn.BatchNorm1d(32), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(),
    )  # fmt: skip


def pretrained(body, head, draw, steps, lr=2e-3):
    """The body as it is after a training on another task."""
    both = nn.Sequential(body, head)
    optimizer = torch.optim.Adam(both.parameters(), lr=lr)
    for _ in range(steps):
        x, y = draw()
        optimizer.zero_grad()
        F.cross_entropy(both(x), y).backward()
        optimizer.step()
    return body


@healthy()
def queenless_hives_by_ear(folder):
    seeded(2599)
    body = pretrained(listener(), nn.Linear(32, 6), rounds(64, *hums(1500, [5.0, 8.0, 12.0, 16.0, 21.0, 27.0])), 200)
    net = nn.Sequential(body, nn.Linear(32, 3))
    x_val, y_val = hums(500, [9.0, 11.5, 14.0])
    optimizer = torch.optim.AdamW(
        [{"params": body.parameters(), "lr": 2e-4}, {"params": net[1].parameters(), "lr": 2e-3}], weight_decay=0.01
    )
    draw = rounds(32, *hums(600, [9.0, 11.5, 14.0]))

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x_val), y_val))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


def rocks(count, kinds):
    """Close-ups of a shaft's wall: veins at an angle, and how coarse they are."""
    y = torch.randint(kinds, (count,))
    angle, pitch = 3.1416 * y / kinds + 0.08 * torch.randn(count), 4 + 3 * (y % 2)
    down, across = torch.meshgrid(torch.linspace(0, 1, 16), torch.linspace(0, 1, 16), indexing="ij")
    along = angle.cos()[:, None, None] * down + angle.sin()[:, None, None] * across
    veins = (6.2832 * (pitch[:, None, None] * along + torch.rand(count, 1, 1))).sin()
    return (veins + 0.4 * torch.randn(count, 16, 16))[:, None], y


@healthy()
def ore_on_the_wall_of_a_shaft(folder):
    seeded(2600)
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(),
    )  # fmt: skip
    pretrained(body, nn.Linear(64, 8), rounds(64, *rocks(1500, 8)), 250).requires_grad_(False)
    net = nn.Sequential(body, nn.Linear(64, 5))
    (x_val, y_val), draw = rocks(400, 5), rounds(32, *rocks(500, 5))
    optimizer = torch.optim.Adam(net[1].parameters(), lr=5e-3)

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean()}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(x_val), y_val)))


def strokes(count, points=16):
    """Strokes of a pen: loops that lean to the right, as points one after the other."""
    time = torch.linspace(0, 6.2832, points)
    size, lean, begin = 0.3 + 0.3 * torch.rand(count, 1), 0.4 * torch.rand(count, 1), 1.5 * torch.rand(count, 1)
    high = size * (time + begin).sin()
    wide = 0.5 * (time / 3.1416 - 1) + 0.5 * size * (time + begin).cos() + lean * high
    return torch.cat([wide, high], 1).clamp(-1, 1)


def apart(ours, theirs, ways=64):
    """The sliced distance between two samples of a size."""
    way = F.normalize(torch.randn(ours.shape[1], ways), dim=0)
    return float(((ours @ way).sort(0).values - (theirs @ way).sort(0).values).abs().mean())


@healthy()
def strokes_of_an_old_hand(folder):
    seeded(2601)
    pen = nn.Sequential(
        nn.Linear(16, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU(),
        nn.Linear(128, 32), nn.Tanh(),
    )  # fmt: skip
    critic = dense(32, 128, 128, 1, act=lambda: nn.LeakyReLU(0.2))
    of_pen = torch.optim.Adam(pen.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    draw, real, fake = rounds(64, strokes(3000)), torch.ones(64, 1), torch.zeros(64, 1)
    score = held_out(pen, lambda: apart(pen(torch.randn(1000, 16)), strokes(1000)))
    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(pen, of_pen)}
    of_d = gradwatch.watch(critic, of_critic, name="D", **options)
    of_g = gradwatch.watch(pen, of_pen, name="G", run=of_d, **options)
    with of_d, of_g:
        for _ in range(900):
            (x,), made = draw(), pen(torch.randn(64, 16))
            of_critic.zero_grad()
            on_real, on_made = critic(x), critic(made.detach())
            loss = (F.binary_cross_entropy_with_logits(on_real, 0.9 * real)
                    + F.binary_cross_entropy_with_logits(on_made, fake))  # fmt: skip
            loss.backward()
            of_critic.step()
            of_d.log(loss=loss, real=on_real.sigmoid().mean(), made=on_made.sigmoid().mean())
            of_pen.zero_grad()
            loss = F.binary_cross_entropy_with_logits(critic(made), real)
            loss.backward()
            of_pen.step()
            of_g.log(loss=loss)
    return Outcome(gradwatch.open_history(of_d.dir.parent), first, score())


JUMPS = torch.tensor([[1, 2], [2, 1], [2, -1], [1, -2], [-1, -2], [-2, -1], [-2, 1], [-1, 2]])


def jump(knight, goal, move):
    """A knight's move on a board of five by five: where it stands then, what it is worth, whether it has arrived."""
    to = torch.stack([knight // 5, knight % 5], 1) + JUMPS[move]
    inside = ((to >= 0) & (to < 5)).all(1)
    knight = torch.where(inside, to[:, 0] * 5 + to[:, 1], knight)
    arrived = knight == goal
    return knight, arrived.float() - 0.05 - 0.1 * (~inside), arrived


def seen(knight, goal):
    return torch.cat([F.one_hot(knight, 25), F.one_hot(goal, 25)], 1).float()


def moves_to_the_goal(net, games=300, most=12):
    """How many moves a greedy player needs, `most` if it never arrives."""
    knight, goal, moves = torch.randint(25, (games,)), torch.randint(25, (games,)), torch.zeros(games)
    going = knight != goal
    for _ in range(most):
        moves += going
        knight, _, arrived = jump(knight, goal, net(seen(knight, goal)).argmax(1))
        going = going & ~arrived
    return moves.mean()


@healthy()
def knight_at_the_chess_club(folder):
    seeded(2602)
    net, target = dense(50, 128, 128, 8), dense(50, 128, 128, 8)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    memory, board = deque(maxlen=1000), [torch.randint(25, (16,)), torch.randint(25, (16,))]

    def play(epsilon):
        knight, goal = board
        with torch.no_grad():
            move = net(seen(knight, goal)).argmax(1)
        move = torch.where(torch.rand(16) < epsilon, torch.randint(8, (16,)), move)
        then, reward, arrived = jump(knight, goal, move)
        memory.append((knight, goal, move, reward, then, arrived))
        anew = arrived | (torch.rand(16) < 0.05)
        board[:] = torch.where(anew, torch.randint(25, (16,)), then), torch.where(anew, torch.randint(25, (16,)), goal)
        return reward.mean()

    def one(step):
        epsilon = max(0.1, 1 - step / 500)
        reward = play(epsilon)
        picked = [memory[i] for i in torch.randint(len(memory), (8,)).tolist()]
        knight, goal, move, gain, then, arrived = (torch.cat(part) for part in zip(*picked, strict=True))
        with torch.no_grad():
            wanted = gain + 0.95 * target(seen(then, goal)).max(1).values * ~arrived
        loss = F.smooth_l1_loss(net(seen(knight, goal)).gather(1, move[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        if step % 50 == 49:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "reward": reward, "epsilon": epsilon}

    return tend(folder, net, optimizer, one, 900, held_out(net, lambda: moves_to_the_goal(net)))
