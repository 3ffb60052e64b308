"""Sick trainings that no rule was written for: mistakes on the side of the step, drawn by lot, part two."""

from __future__ import annotations

import copy

import torch
from nets import batches, digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import fit, score_of, seeded, sick
from unseen.again.sick_steps import watched

# ------------------------------------------------------------------------------------------------------ deep Q-learning


class QNet(nn.Module):
    def __init__(self, seen, actions):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(seen, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, actions)

    def forward(self, x):
        return self.head(self.body(x))


def grid(size=5, gamma=0.9):
    """Where each action leads from each cell, what it pays, and what it is worth if all goes on as well as it can."""
    cells = torch.cartesian_prod(torch.arange(size), torch.arange(size))
    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
    to = (cells[:, None] + moves).clamp(0, size - 1)
    to = to[..., 0] * size + to[..., 1]
    pays = torch.where(to == size * size - 1, 1.0, -0.02)
    worth = torch.zeros(size * size, 4)
    for _ in range(100):
        worth = pays + gamma * worth.amax(1)[to]
    return to, pays, worth


@sick(
    "weights-unchanged", "not-in-the-optimizer", "no-gradient", "not-in-optimizer",
    where="head.weight and head.bias, all steps: the optimizer holds those of the old head",
    cure="make the optimizer after the head has been replaced",
)  # fmt: skip
def walker_that_gets_its_four_actions_later(folder, ill):
    seeded(1207)
    to, pays, worth = grid()
    net, seen = QNet(25, 2), torch.eye(25)
    make = optim.Adam(net.parameters(), 1e-3)
    net.head = nn.Linear(64, 4)
    nn.init.orthogonal_(net.head.weight, 0.01)
    nn.init.zeros_(net.head.bias)
    if not ill:
        make = optim.Adam(net.parameters(), 1e-3)
    target = copy.deepcopy(net)

    def train_step(step):
        if step % 25 == 0:
            target.load_state_dict(net.state_dict())
        cell, action = torch.randint(25, (64,)), torch.randint(4, (64,))
        with torch.no_grad():
            wanted = pays[cell, action] + 0.9 * target(seen[to[cell, action]]).amax(1)
        loss = F.smooth_l1_loss(net(seen[cell]).gather(1, action[:, None])[:, 0], wanted)
        make.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        make.step()
        return loss

    def score():
        with torch.no_grad():
            return (net(seen) - worth).square().mean()

    return watched(folder, net, make, train_step, 500, score)


# ---------------------------------------------------------------------------------------------------------- a small cnn


@sick(
    "scaled-gradients", "exploding", "update-too-large", "lr-too-high", "stepped-past-the-scaler",
    where="all layers, from the first step", cure="scaler.step(optimizer) and scaler.update(): step() sees scaled ones",
)  # fmt: skip
def digits_enlarged_and_never_shrunk(folder, ill):
    seeded(1209)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    batch, scaler = batches(32), torch.amp.GradScaler("cpu", init_scale=2.0**16)
    make = optim.SGD(net.parameters(), 0.02, momentum=0.9)

    def train_step(step):
        x, y = batch(step)
        make.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        loss = F.cross_entropy(out.float(), y)
        scaler.scale(loss).backward()
        if ill:
            make.step()
        else:
            scaler.step(make)
            scaler.update()
        return loss

    def score():
        net.eval()
        x, y = digits()
        with torch.no_grad():
            loss = F.cross_entropy(net(x), y)
        net.train()
        return loss

    return watched(folder, net, make, train_step, 200, score)


# --------------------------------------------------------------------------------------------------------------- lora


class LoraLinear(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + 2 * x @ self.lora_a.T @ self.lora_b.T


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(2, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, kinds=16, length=16, width=32, depth=2):
        super().__init__()
        self.embed, self.place = nn.Embedding(kinds, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.embed(x) + self.place.weight[: x.shape[1]])))


def language(kinds=16):
    """`draw(rows)`: texts in which each letter follows from the one before it, mostly."""
    follows = (torch.randn(kinds, kinds) * 3).softmax(1)

    def draw(rows=16, length=16):
        text = [torch.randint(kinds, (rows,))]
        while len(text) <= length:
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    return draw


def next_letter(net, draw):
    def loss_of(step):
        text = draw()
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    return loss_of


@sick(
    "weight-decay-too-strong", "weights-shrink",
    where="the gains of the norms and lora_a and lora_b, from the first steps",
    cure="no decay for the gains and AdamW for the adapters: Adam turns a decay of 0.1 into whole steps toward zero",
)  # fmt: skip
def dialect_by_adapters_and_gains(folder, ill):
    seeded(1210)
    net = Gpt()
    before = optim.Adam(net.parameters(), 5e-3)
    loss_of = next_letter(net, language())
    for step in range(120):
        before.zero_grad()
        loss_of(step).backward()
        before.step()
    net.requires_grad_(False)
    for block in net.blocks:
        for name in ("qkv", "out", "up", "down"):
            setattr(block, name, LoraLinear(getattr(block, name)))
        block.norm1.requires_grad_(True)
        block.norm2.requires_grad_(True)
    net.norm.requires_grad_(True)
    trained = [p for p in net.parameters() if p.requires_grad]
    make = optim.Adam(trained, 5e-3, weight_decay=0.1) if ill else optim.AdamW(trained, 5e-3, weight_decay=1e-3)
    loss_of = next_letter(net, language())
    return fit(folder, net, make, loss_of, 250, score=score_of(loss_of, 10))


# ---------------------------------------------------------------------------------------------------------- detection


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(24 * 16, 64), nn.ReLU(),
        )  # fmt: skip
        self.box, self.kind = nn.Linear(64, 4), nn.Linear(64, 3)

    def forward(self, x):
        seen = self.features(x)
        return self.box(seen).sigmoid(), self.kind(seen)


def scenes(rows=32, size=16):
    """Pictures of one thing each: a full, a hollow or a crossed rectangle; its box (centre, size) and its kind."""
    wide, kind = torch.randint(4, 10, (rows, 2)), torch.randint(3, (rows,))
    low = (torch.rand(rows, 2) * (size - wide)).long()
    line = torch.arange(size)
    inside = [(line >= low[:, i, None]) & (line < (low + wide)[:, i, None]) for i in (0, 1)]
    core = [(line > low[:, i, None]) & (line < (low + wide)[:, i, None] - 1) for i in (0, 1)]
    full, hole = (a[0][:, :, None] & a[1][:, None, :] for a in (inside, core))
    woven = (line[:, None] + line) % 2 == 0
    k = kind[:, None, None]
    picture = torch.where(k == 0, full, torch.where(k == 1, full & ~hole, full & woven)).float()
    box = torch.cat([(low + wide / 2) / size, wide / size], 1)
    return (picture + 0.1 * torch.randn(rows, size, size))[:, None], box, kind


@sick(
    "gradients-accumulate", "zeroed-once-an-epoch", "update-too-large", "lr-too-high",
    where="all layers: gradients grow over each epoch of 15 batches and fall back at its start",
    cure="zero_grad in the loop over the batches, not before it",
)  # fmt: skip
def boxes_and_kinds_in_epochs_of_fifteen(folder, ill):
    seeded(1211)
    net = Detector()
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def loss_of(step):
        x, box, kind = scenes()
        at, logits = net(x)
        return 5 * F.smooth_l1_loss(at, box, beta=0.1) + F.cross_entropy(logits, kind)

    def train_step(step):
        if not ill or step % 15 == 0:
            make.zero_grad()
        loss = loss_of(step)
        loss.backward()
        make.step()
        return loss

    return watched(folder, net, make, train_step, 300, score_of(loss_of, 10))


# ---------------------------------------------------------------------------------------------------------------- gpt


@sick(
    "clip-is-your-learning-rate", "update-too-small", "no-progress",
    where="all layers, all steps: every element is cut to a hundred-thousandth",
    cure="clip_grad_norm_ at 1 in its place: no element may reach what its gradient is",
)  # fmt: skip
def letters_with_a_lid_on_each_element(folder, ill):
    seeded(1224)
    net = Gpt()
    loss_of = next_letter(net, language())
    make = optim.SGD(net.parameters(), 0.2, momentum=0.9)

    def clip(step):
        if ill:
            nn.utils.clip_grad_value_(net.parameters(), 1e-5)
        else:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(folder, net, make, loss_of, 200, score=score_of(loss_of, 10), before_step=clip)
