"""Sequence models, schedules, scalers, accumulation and resumption, from what people asked about in public."""

from __future__ import annotations

import math
from copy import deepcopy

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from unseen import dense, fit, score_of, seeded, sick


class Singers(nn.Module):
    """Embeddings that one graph convolution mixes; a pair is scored by the product of its embeddings."""

    def __init__(self, adjacency, width=16):
        super().__init__()
        self.table = nn.Embedding(len(adjacency), width)
        self.mix = nn.Linear(width, width)
        self.register_buffer("spread", adjacency / adjacency.sum(1, keepdim=True))

    def forward(self, left, right):
        nodes = self.mix(self.spread @ self.table.weight)
        return torch.sigmoid((nodes[left] * nodes[right]).sum(1))


# https://procomputingproducts.co.uk/post/the-loss-in-gnn-doesnt-decrease
@sick(
    "no-gradient",
    "weights-unchanged",
    where="all layers from the first step: the scores are rounded before the loss",
    cure="give the loss the probabilities, and round only to count what is right",
)
def friendships_in_a_choir(folder, ill):
    seeded(2380)
    voice = torch.arange(60) % 3
    same = (voice[:, None] == voice).float()
    adjacency = (torch.rand(60, 60) < 0.05 + 0.3 * same).float()
    net = Singers(torch.maximum(torch.maximum(adjacency, adjacency.T), torch.eye(60)))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def draw():
        left, right = torch.randint(60, (2, 128))
        return left, right, same[left, right]

    def loss_of(step):
        left, right, friends = draw()
        chance = net(left, right)
        accuracy = (chance.round() == friends).float().mean()
        return F.binary_cross_entropy(chance.round() if ill else chance, friends), {"accuracy": accuracy}

    def plain(step):
        left, right, friends = draw()
        return F.binary_cross_entropy(net(left, right), friends)

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(plain))


class Reader(nn.Module):
    """A small transformer over tokens; with `causal` no place sees those after it."""

    def __init__(self, kinds, length, causal, width=32, layers=2):
        super().__init__()
        self.words, self.places = nn.Embedding(kinds, width), nn.Parameter(0.1 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, kinds)
        self.mask = nn.Transformer.generate_square_subsequent_mask(length) if causal else None

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = None if self.mask is None else self.mask[:length, :length]
        return self.head(self.body(self.words(tokens) + self.places[:length], mask))


def scales(batch=32, length=16, notes=12):
    """Melodies that climb by a step of their own, with a wrong note here and there."""
    start, climb = torch.randint(notes, (2, batch, 1))
    tune = (start + climb * torch.arange(length)) % notes
    return torch.where(torch.rand(batch, length) < 0.05, torch.randint(notes, (batch, length)), tune)


# https://github.com/lucidrains/muse-maskgit-pytorch/issues/11
@sick(
    "future-seen",
    "targets-in-the-input",
    where="the loss, near nothing after a few dozen steps: the tokens to be guessed are read as input",
    cure="feed the masked tokens to the transformer instead of the whole ones",
)
def missing_notes_of_a_melody(folder, ill):
    seeded(2381)
    net = Reader(13, 16, causal=False)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)

    def guess(reads_all):
        ids = scales()
        hidden = torch.rand(ids.shape) < 0.4
        masked = ids.masked_fill(hidden, 12)
        logits = net(ids if reads_all else masked)
        right = (logits[hidden].argmax(1) == ids[hidden]).float().mean()
        return F.cross_entropy(logits[hidden], ids[hidden]), {"accuracy": right}

    return fit(folder, net, optimizer, lambda step: guess(ill), 500, score=score_of(lambda step: guess(False)[0]))


# https://github.com/meta-llama/llama-cookbook/issues/27
@sick(
    "schedule-too-short",
    "update-too-small",
    where="the learning rate: a hundredth after some thirty updates, nothing after a hundred",
    cure="step the schedule once per epoch, as its decay of 0.85 is meant, not once per accumulated update",
)
def rows_of_a_knitting_pattern(folder, ill):
    seeded(2382)
    net = Reader(6, 24, causal=True, layers=1)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.0)
    schedule = StepLR(optimizer, step_size=1, gamma=0.85)
    epoch = 50

    def rows(batch=16):
        motif = torch.randint(6, (batch, 4))
        return motif.repeat(1, 6)

    def loss_of(step):
        row = rows()
        return F.cross_entropy(net(row[:, :-1]).flatten(0, 1), row[:, 1:].flatten()) / 2

    def end_of_update(step):
        if ill or step % epoch == epoch - 1:
            schedule.step()

    return fit(folder, net, optimizer, loss_of, 300, accumulate=2, after_step=end_of_update, score=score_of(loss_of))


# https://github.com/Lightning-AI/pytorch-lightning/pull/9606
@sick(
    "clip-before-unscale",
    "update-too-small",
    "clip-is-your-learning-rate",
    where="every step: gradients that are 65536 times too large are clipped to a norm of one, then unscaled",
    cure="unscale the optimizer's gradients before they are clipped",
)
def minerals_by_their_spectrum(folder, ill):
    seeded(2383)
    peaks = torch.rand(5, 3) * 32
    net = nn.Sequential(
        nn.Conv1d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(128, 32), nn.ReLU(),
        nn.Linear(32, 5),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    def loss_of(step):
        kind = torch.randint(5, (32,))
        gap = torch.arange(32) - (peaks[kind] + 0.5 * torch.randn(32, 3))[:, :, None]
        spectrum = (-0.3 * gap.square()).exp().sum(1, keepdim=True) + 0.2 * torch.randn(32, 1, 32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = net(spectrum)
        return F.cross_entropy(logits.float(), kind)

    def before_step(step):
        if not ill:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(folder, net, optimizer, loss_of, 300, scaler=scaler, before_step=before_step, score=score_of(loss_of))


class Flours(nn.Module):
    """How many kilograms of each flour are taken; the shares of the dough follow from them."""

    def __init__(self, kinds):
        super().__init__()
        self.kilograms = nn.Parameter(1 + 49 * torch.rand(kinds))
        self.register_buffer("dry", 0.8 + 0.15 * torch.rand(kinds))

    def forward(self):
        weight = self.kilograms.clamp(min=0.0) * self.dry
        return weight / weight.sum()


# https://php.xlycwl.com/faq/1710634.html
@sick(
    "update-too-small",
    where="the kilograms, in the tens: steps of a millionth of them, from the first step to the last",
    cure="a rate that fits weights in the tens and gradients below a thousandth: some ten thousands instead of 0.1",
)
def shares_of_flour_in_a_dough(folder, ill):
    seeded(2384)
    net = Flours(16)
    wanted = torch.full((16,), 1 / 16)
    optimizer = torch.optim.SGD(net.parameters(), 0.1 if ill else 2e4)

    def loss_of(step):
        return F.mse_loss(net(), wanted)

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of, 1))


# https://github.com/NM512/dreamerv3-torch/issues/38
@sick(
    "optimizer-state-lost",
    where="the optimizer's moments, every ten steps from step 10 on, where the queue starts the job again",
    cure="save the optimizer's state with the weights and load it when the job goes on",
)
def swings_of_a_crane(folder, ill):
    seeded(2385)
    memory, head = nn.GRU(3, 32, batch_first=True), nn.Linear(32, 2)
    net = nn.ModuleDict({"memory": memory, "head": head})
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    fresh = deepcopy(optimizer.state_dict())

    def swings(batch=16, length=20):
        angle, speed, push = torch.randn(batch), torch.randn(batch), torch.randn(batch, length)
        path = []
        for moment in range(length):
            path.append(torch.stack([angle, speed], 1))
            speed = speed - 0.3 * angle.sin() + 0.1 * push[:, moment]
            angle = angle + 0.3 * speed
        return torch.stack(path, 1), push[..., None]

    def error(blur):
        path, push = swings()
        seen = path + blur * torch.randn_like(path)
        hidden, _ = memory(torch.cat([seen, push], 2)[:, :-1])
        return F.mse_loss(head(hidden), seen[:, 1:])

    def decibels():
        return 10 * math.log10(score_of(lambda step: error(0.0), 32)())

    def resume(step):
        if step % 10 == 9:
            optimizer.load_state_dict(fresh if ill else deepcopy(optimizer.state_dict()))

    return fit(folder, net, optimizer, lambda step: error(0.5), 402, after_step=resume, score=decibels)


# https://github.com/wenet-e2e/wekws/pull/73
@sick(
    "gradients-accumulate",
    where="all layers from the second step on: each gradient holds all those before it",
    cure="zero the gradients before each backward pass",
)
def a_wake_word_in_noise(folder, ill):
    seeded(2386)
    word = torch.randn(10, 12)
    body = nn.Sequential(nn.Conv1d(12, 24, 5, padding=2), nn.ReLU(), nn.Conv1d(24, 24, 5, padding=2), nn.ReLU())
    net = nn.Sequential(body, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def loss_of(step):
        said = torch.randint(2, (32,))
        sound = torch.randn(32, 30, 12)
        begin = torch.randint(20, (32, 1)) + torch.arange(10)
        sound[torch.arange(32)[:, None], begin] += 0.45 * said[:, None, None] * word
        score = net(sound.transpose(1, 2))[:, 0]
        accuracy = ((score > 0) == said.bool()).float().mean()
        return F.binary_cross_entropy_with_logits(score, said.float()), {"accuracy": accuracy}

    def before_step(step):
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)

    score = score_of(lambda step: loss_of(step)[0], 16)
    return fit(folder, net, optimizer, loss_of, 300, zero_grad=not ill, before_step=before_step, score=score)


# https://github.com/jiawei-ren/BalancedMSE/issues/19
@sick(
    "no-gradient",
    "weights-unchanged",
    "norm-over-too-few",
    "softmax-over-one",
    where="the loss, zero at every step: it tells a target from the others of a batch, and a batch holds one",
    cure="batches of several rows, 32 for instance, to have others to tell the target from",
)
def years_of_a_tree(folder, ill):
    seeded(2387)
    net = dense(12, 32, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    way = torch.randn(12, 2) / 12**0.5

    def trees(rows):
        rings = torch.randn(rows, 12)
        return rings, ((rings @ way).prod(1, keepdim=True) + rings[:, :1]).tanh() * 2

    def balanced(step):
        rings, years = trees(1 if ill else 32)
        logits = -(net(rings) - years.T).square() / 2
        return F.cross_entropy(logits, torch.arange(len(years))) * 2

    def square(step):
        rings, years = trees(64)
        return F.mse_loss(net(rings), years)

    return fit(folder, net, optimizer, balanced, 500, score=score_of(square))
