"""Healthy trainings of every day, third part: outlines, adapters, views, old moves, and letters one by one."""

from __future__ import annotations

import copy

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, fit, healthy, mean, seeded
from unseen.further.healthy import rise_and_fall
from unseen.tasks import clipped, rounds

import gradwatch

# ----------------------------------------------------------------------------------------------------------- outlines


def twice(size, out):
    return nn.Sequential(
        nn.Conv2d(size, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
        nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
    )  # fmt: skip


class Outliner(nn.Module):
    """A U-Net of two stages (Ronneberger, Fischer and Brox 2015)."""

    def __init__(self, wide=8):
        super().__init__()
        self.one, self.two, self.three = twice(1, wide), twice(wide, 2 * wide), twice(2 * wide, 4 * wide)
        self.lift2, self.up2 = nn.ConvTranspose2d(4 * wide, 2 * wide, 2, 2), twice(4 * wide, 2 * wide)
        self.lift1, self.up1 = nn.ConvTranspose2d(2 * wide, wide, 2, 2), twice(2 * wide, wide)
        self.head = nn.Conv2d(wide, 1, 1)

    def forward(self, x):
        a = self.one(x)
        b = self.two(F.max_pool2d(a, 2))
        c = self.three(F.max_pool2d(b, 2))
        up = self.up2(torch.cat([self.lift2(c), b], 1))
        return self.head(self.up1(torch.cat([self.lift1(up), a], 1)))[:, 0]


@healthy(0.4)
def pollen_outlined_on_dusty_glass(folder):
    """A U-Net by entropy and dice; Adam at a thousandth, the rate down to a fifth for the last third."""
    seeded(2055)
    net, grid = Outliner(), torch.arange(24.0)

    def loss_of(step):
        centre, radius = 24 * torch.rand(8, 3, 2), 2 + 2.5 * torch.rand(8, 3)
        far = (grid[None, None, :, None] - centre[..., 0, None, None]).square()
        far = far + (grid[None, None, None, :] - centre[..., 1, None, None]).square()
        mask = (far.sqrt() < radius[..., None, None]).any(1).float()
        x = mask - 0.3 + 0.6 * torch.randn(8, 24, 24)
        said = net(x[:, None])
        share = said.sigmoid()
        dice = (2 * (share * mask).sum() + 1) / (share.sum() + mask.sum() + 1)
        entropy = F.binary_cross_entropy_with_logits(said, mask)
        return entropy + 1 - dice, {"bce": entropy, "dice": dice}

    make = optim.Adam(net.parameters(), 1e-3)
    plan = optim.lr_scheduler.StepLR(make, 140, 0.2)
    return fit(folder, net, make, loss_of, 210, schedule=plan)


# ------------------------------------------------------------------------------------------------------------ letters

WHO = ["fox", "hen", "crow", "wolf", "mouse", "stork"]
DID = ["saw", "fed", "met", "led", "told"]
HOW = ["old", "sly", "kind", "proud", "small"]
LETTERS = " .abcdefghijklmnopqrstuvwxyz"


def fables(count, order=(0, 1, 2, 3, 4, 5, 6)):
    """A text of sentences of one form, with words drawn; `order` is that of the words."""
    text = []
    for _ in range(count):
        draws = torch.randint(30, (5,)).tolist()
        who, did, whom = WHO[draws[0] % 6], DID[draws[1] % 5], WHO[draws[2] % 6]
        words = ["the", HOW[draws[3] % 5], who, did, "a", HOW[draws[4] % 5], whom]
        text.append(" ".join(words[i] for i in order) + ". ")
    return torch.tensor([LETTERS.index(letter) for letter in "".join(text)])


def pieces_of(text, rows, length):
    """`draw()`: letters and those that follow them."""

    def draw():
        cut = text[torch.randint(len(text) - length - 1, (rows, 1)) + torch.arange(length + 1)]
        return cut[:, :-1], cut[:, 1:]

    return draw


class Block(nn.Module):
    def __init__(self, wide, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.ask, self.key, self.value = (nn.Linear(wide, wide) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(wide, wide), nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)

    def forward(self, x):
        seen = self.norm1(x)
        split = (part(seen).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.ask, self.key, self.value))
        x = x + self.out(F.scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """As small as can be; weights as in nanoGPT."""

    def __init__(self, wide=48, depth=2, length=48):
        super().__init__()
        self.embed, self.place = nn.Embedding(len(LETTERS), wide), nn.Embedding(length, wide)
        self.blocks, self.norm = nn.Sequential(*(Block(wide, 4) for _ in range(depth))), nn.LayerNorm(wide)
        self.head = nn.Linear(wide, len(LETTERS), bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                deep = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * depth) ** 0.5 if deep else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.embed(x) + self.place.weight[: x.shape[1]])))


def next_letter(net, draw):
    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten())

    return loss_of


def groups(net, decay):
    """Matrices are decayed, vectors are not."""
    return [
        {"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in net.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]


@healthy(0.5)
def fables_a_letter_at_a_time(folder):
    """A small GPT: AdamW as in nanoGPT, a rise and a cosine to a tenth, a clip at one."""
    seeded(2056)
    net = Gpt()
    loss_of = next_letter(net, pieces_of(fables(400), 16, 48))
    make, steps = optim.AdamW(groups(net, 0.1), 3e-3, betas=(0.9, 0.95)), 320
    rise = optim.lr_scheduler.LinearLR(make, 0.04, total_iters=25)
    fall = optim.lr_scheduler.CosineAnnealingLR(make, steps - 25, 3e-4)
    plan = optim.lr_scheduler.SequentialLR(make, [rise, fall], [25])
    return fit(folder, net, make, loss_of, steps, schedule=plan, before_step=clipped(net, 1.0))


class Low(nn.Module):
    """A frozen layer and a change of rank six beside it (Hu et al. 2021)."""

    def __init__(self, layer, rank=6, alpha=12):
        super().__init__()
        self.layer, self.scale, self.drop = layer.requires_grad_(False), alpha / rank, nn.Dropout(0.05)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + self.scale * self.drop(x) @ self.a.T @ self.b.T


@healthy(0.25)
def fables_told_with_the_verb_at_the_end(folder):
    """A reader of fables gets adapters at all its layers for another order of words; AdamW, a rise, a straight fall."""
    seeded(2057)
    net = Gpt()
    before = optim.AdamW(net.parameters(), 3e-3)
    known = next_letter(net, pieces_of(fables(400), 16, 48))
    for step in range(120):
        before.zero_grad()
        known(step).backward()
        before.step()
    net.requires_grad_(False)
    for block in net.blocks:
        for name in ("ask", "key", "value", "out", "up", "down"):
            setattr(block, name, Low(getattr(block, name)))
    loss_of = next_letter(net, pieces_of(fables(300, (4, 5, 6, 0, 1, 2, 3)), 16, 48))
    make, steps = optim.AdamW([p for p in net.parameters() if p.requires_grad], 3e-3), 180
    return fit(folder, net, make, loss_of, steps, schedule=rise_and_fall(make, 10, steps))


class Rhymer(nn.Module):
    """Two layers of LSTM with dropout between."""

    def __init__(self, wide=48):
        super().__init__()
        self.embed, self.drop = nn.Embedding(len(LETTERS), wide), nn.Dropout(0.1)
        self.lstm, self.head = nn.LSTM(wide, wide, 2, batch_first=True, dropout=0.1), nn.Linear(wide, len(LETTERS))

    def forward(self, x):
        return self.head(self.drop(self.lstm(self.drop(self.embed(x)))[0]))


@healthy(0.5)
def fables_by_two_layers_of_lstm(folder):
    """Letters by an LSTM: Adam at five thousandths, the rate halved twice, a clip at five."""
    seeded(2058)
    net = Rhymer()
    loss_of = next_letter(net, pieces_of(fables(400), 16, 32))
    make = optim.Adam(net.parameters(), 5e-3)
    plan = optim.lr_scheduler.MultiStepLR(make, [200, 260], 0.5)
    return fit(folder, net, make, loss_of, 300, schedule=plan, before_step=clipped(net, 5.0))


# --------------------------------------------------------------------------------------------------------------- views


@healthy(0.3)
def digits_shaken_and_brought_together(folder):
    """SimCLR at a temperature of a fifth: two shaken copies, a projection, Adam with a rise and a cosine."""
    seeded(2060)
    draw = rounds(64, digits()[0])
    net = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 48, 3, 2, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU(), nn.Flatten(),
        nn.Linear(48 * 16, 64), nn.ReLU(), nn.Linear(64, 32),
    )  # fmt: skip

    def shaken(x):
        padded, near = F.pad(x, (1, 1, 1, 1)), torch.arange(8)
        down, over = torch.randint(3, (2, len(x), 1)) + near
        x = padded[torch.arange(len(x))[:, None, None], down[:, :, None], over[:, None]]
        x = x * (0.7 + 0.6 * torch.rand(len(x), 1, 1)) + 0.1 * torch.randn_like(x)
        return ((x - 0.3) / 0.38)[:, None]

    def loss_of(step):
        x = draw()[0]
        seen = F.normalize(net(torch.cat([shaken(x), shaken(x)])), dim=1)
        alike = (seen @ seen.T / 0.2).masked_fill(torch.eye(128, dtype=torch.bool), -1e9)
        return F.cross_entropy(alike, torch.arange(128).roll(64))

    make, steps = optim.Adam(net.parameters(), 1e-3, weight_decay=1e-6), 240
    rise = optim.lr_scheduler.LinearLR(make, 0.1, total_iters=20)
    plan = optim.lr_scheduler.SequentialLR(make, [rise, optim.lr_scheduler.CosineAnnealingLR(make, steps - 20)], [20])
    return fit(folder, net, make, loss_of, steps, schedule=plan)


# ----------------------------------------------------------------------------------------------------------- old moves


def drifted(state, act):
    """Where boats are after a stroke to one side, to none or to the other, and what that cost."""
    x, v, stream = state.unbind(1)
    v = 0.9 * v + 0.15 * (act - 1.0) + 0.05 * stream
    x = (x + 0.2 * v).clamp(-2, 2)
    return torch.stack([x, v, stream], 1), -x.abs() - 0.05 * (act != 1).float()


def launched(rows):
    return torch.stack([2 * torch.rand(rows) - 1, 0.2 * torch.randn(rows), 2 * torch.rand(rows) - 1], 1)


def rowed(net):
    """The cost of forty strokes that seem best."""
    state, total = launched(128), 0.0
    with torch.no_grad():
        for _ in range(40):
            state, reward = drifted(state, net(state).argmax(1))
            total -= float(reward.mean())
    return total


@healthy(0.3)
def boats_kept_midstream_from_old_strokes(folder):
    """Double Q-learning: old moves, a target copied every hundred steps, Huber's loss, Adam, a clip at ten."""
    seeded(2061)
    net = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    target, make, gamma = copy.deepcopy(net).requires_grad_(False), optim.Adam(net.parameters(), 1e-3), 0.95
    first, kept, ages, running, returns = rowed(net), [], torch.randint(40, (8,)), torch.zeros(8), []
    state = launched(8)
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, make)}
    with gradwatch.watch(net, make, **options) as watch:
        for step in range(1200):
            for _ in range(60 if step == 0 else 1):
                chance = max(0.05, 1 - step / 500)
                with torch.no_grad():
                    act = torch.where(torch.rand(8) < chance, torch.randint(3, (8,)), net(state).argmax(1))
                after, reward = drifted(state, act)
                kept.append((state, act, reward, after))
                ages, running = ages + 1, running + reward
                over = ages >= 40
                returns += running[over].tolist()
                state, running = torch.where(over[:, None], launched(8), after), torch.where(over, 0.0, running)
                ages = torch.where(over, 0, ages)
            kept = kept[-1000:]
            drawn = [kept[i] for i in torch.randint(len(kept), (8,)).tolist()]
            seen, act, reward, after = (torch.cat(part) for part in zip(*drawn, strict=True))
            with torch.no_grad():
                best = net(after).argmax(1, keepdim=True)
                wanted = reward + gamma * target(after).gather(1, best)[:, 0]
            value = net(seen).gather(1, act[:, None])[:, 0]
            loss = F.smooth_l1_loss(value, wanted)
            make.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 10.0)
            make.step()
            if step % 100 == 99:
                target.load_state_dict(net.state_dict())
            watch.log(loss=loss, q=value.mean(), epsilon=chance)
            if returns:
                watch.log(**{"return": mean(returns[-20:])})
    return Outcome(gradwatch.open_history(watch.dir), first, rowed(net))
