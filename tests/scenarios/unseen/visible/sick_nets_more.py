"""Sick trainings of nets, second half: how weights begin, what the data hold, what of the loss reaches a layer."""

from __future__ import annotations

import torch
from nets import ALPHABET, CODES, digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick


@sick(
    "bad-initialisation", "vanishing", "no-progress",
    where="both tables, all steps: each is the other's gradient, and both begin at a ten-thousandth",
    cure="tables that begin at 0.3",
)  # fmt: skip
def moves_valued_by_two_tiny_tables(folder, ill):
    seeded(907)
    tables = [nn.ModuleDict({"state": nn.Embedding(36, 16), "move": nn.Embedding(4, 16)}) for _ in range(2)]
    net, old = tables
    for table in net.values():
        nn.init.normal_(table.weight, std=1e-4 if ill else 0.3)
    old.load_state_dict(net.state_dict())
    place, way = torch.arange(36), torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
    row, column = ((p[:, None] + w).clamp(0, 5) for p, w in zip((place // 6, place % 6), way.T, strict=True))
    to = row * 6 + column
    reward, end = (to == 35).float(), (to == 35).float()
    best = torch.zeros(36, 4)
    for _ in range(100):
        best = reward + 0.9 * (1 - end) * best.max(1).values[to]

    def values(of):
        return of["state"].weight @ of["move"].weight.T

    def loss_of(step):
        s, a = torch.randint(35, (128,)), torch.randint(4, (128,))
        with torch.no_grad():
            wanted = reward[s, a] + 0.9 * (1 - end[s, a]) * values(old)[to[s, a]].max(1).values
        return F.mse_loss((net["state"](s) * net["move"](a)).sum(1), wanted)

    def refresh(step):
        if step % 25 == 24:
            old.load_state_dict(net.state_dict())

    def score():
        with torch.no_grad():
            return float((values(net) - best)[:35].square().mean())

    make = optim.SGD(net.parameters(), 0.3, momentum=0.9)
    return fit(folder, net, make, loss_of, 250, score=score, after_step=refresh)


@sick(
    "spike", "inputs-not-normalised", "stale-second-moment", "units-mixed",
    where="all layers, every 12th step: one recorder of twelve writes another unit",
    cure="divide what that recorder writes by 100",
)  # fmt: skip
def same_or_not_with_one_recorder_in_centimetres(folder, ill):
    seeded(910)
    net, lift = dense(10, 64, 64, 8), torch.randn(2, 10)

    def seen(y):
        angle = 6.2832 * torch.rand(len(y))
        flat = torch.stack([angle.cos(), angle.sin()], 1) * (0.4 + 0.5 * y[:, None])
        return (flat + 0.05 * torch.randn(len(y), 2)) @ lift

    def contrast(unit):
        y, same = torch.randint(4, (64,)), torch.rand(64) < 0.5
        other = torch.where(same, y, (y + torch.randint(1, 4, (64,))) % 4)
        gap = (net(seen(y) * unit) - net(seen(other) * unit)).square().sum(1)
        far = F.relu(1 - (gap + 1e-6).sqrt()).square()
        return torch.where(same, gap, far).mean()

    def loss_of(step):
        return contrast(100.0 if ill and step % 12 == 7 else 1.0)

    make = optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, make, loss_of, 400, score=score_of(lambda step: contrast(1.0)))


@sick(
    "bad-initialisation", "vanishing", "no-progress",
    where="all layers but the last bias, all steps: each layer hands on a tenth of what it gets",
    cure="Xavier's initialisation with the gain of tanh: a deviation of 0.01 is for nets with norms",
)  # fmt: skip
def digits_through_six_layers_of_a_hundredth(folder, ill):
    seeded(911)
    net, images = dense(64, 48, 32, 16, 32, 48, 64, act=nn.Tanh), digits()[0].flatten(1)
    for layer in net[::2]:
        if ill:
            nn.init.normal_(layer.weight, std=0.01)
        else:
            nn.init.xavier_normal_(layer.weight, nn.init.calculate_gain("tanh"))
        nn.init.zeros_(layer.bias)

    def loss_of(step):
        x = images[torch.randint(len(images), (64,))]
        return F.mse_loss(net(x), x)

    return fit(folder, net, optim.SGD(net.parameters(), 0.5, momentum=0.9), loss_of, 600)


class Letters(nn.Module):
    """The next letter by a GRU; the head is the table."""

    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), width)
        self.gru, self.head = nn.GRU(width, width, batch_first=True), nn.Linear(width, len(ALPHABET))
        nn.init.normal_(self.embed.weight, std=0.1)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.gru(self.embed(x))[0])


def text(rows, length):
    at = torch.randint(len(CODES) - length - 1, (rows, 1)) + torch.arange(length + 1)
    return CODES[at[:, :-1]], CODES[at[:, 1:]]


@sick(
    "spike", "stale-second-moment", "outlier-weights",
    where="all layers, in each step with a text of thousands of votes (one in six): the others count for nothing",
    cure="weights of log(1 + votes), or capped: one text in a hundred has thousands",
)  # fmt: skip
def letters_weighted_by_votes(folder, ill):
    seeded(912)
    net = Letters()

    def losses():
        x, y = text(16, 20)
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten(), reduction="none").view(16, 20).mean(1)

    def loss_of(step):
        votes = torch.where(torch.rand(16) < 0.01, 3000.0, 1 + 4 * torch.rand(16))
        return ((votes if ill else votes.log1p()) * losses()).mean()

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 250, score=score_of(lambda step: losses().mean()))


class Reader(nn.Module):
    """Which of two signs comes first in a row: a transformer's encoder and a head."""

    def __init__(self, fixed, width=32):
        super().__init__()
        self.fixed, self.embed = fixed, nn.Embedding(12, width)
        self.place = nn.Parameter(0.3 * torch.randn(14, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def features(self, x):
        return self.encoder(self.embed(x) + self.place).mean(1)

    def forward(self, x):
        if self.fixed:
            with torch.no_grad():
                h = self.features(x)
        else:
            h = self.features(x)
        return self.head(h)


@sick(
    "no-gradient", "weights-unchanged", "dead-layer",
    where="embed, place and the encoder, all steps", cure="no torch.no_grad() around an encoder that knows nothing yet",
)  # fmt: skip
def order_of_two_signs_by_features_only(folder, ill):
    seeded(913)
    net = Reader(ill)

    def loss_of(step):
        x, rows = torch.randint(2, 12, (64, 14)), torch.arange(64)
        at = torch.rand(64, 14).argsort(1)[:, :2]
        x[rows, at[:, 0]], x[rows, at[:, 1]] = 0, 1
        return F.cross_entropy(net(x), (at[:, 0] < at[:, 1]).long())

    return fit(folder, net, optim.AdamW(net.parameters(), 2e-3), loss_of, 250, score=score_of(loss_of))


class Barometer(nn.Module):
    """Six readings to come from 24: a GRU reads, another writes and looks back (Luong's attention)."""

    def __init__(self, width=32):
        super().__init__()
        self.read = nn.GRU(1, width, batch_first=True)
        self.write = nn.GRU(1, width, batch_first=True)
        self.ask, self.head = nn.Linear(width, width, bias=False), nn.Linear(2 * width, 1)

    def forward(self, past, hour):
        kept, state = self.read(past)
        h = self.write(hour, state)[0]
        found = (self.ask(h) @ kept.transpose(1, 2)).softmax(-1) @ kept
        return self.head(torch.cat([h, found], -1))


@sick(
    "inputs-not-normalised", "saturated", "dead-layer", "vanishing",
    where="read, all steps: at a thousand hectopascals its gates stand at their ends, and say the same of each row",
    cure="(past - 1013) / 8: readings of mean 0 and deviation 1",
)  # fmt: skip
def six_hours_to_come_from_hectopascals(folder, ill):
    seeded(914)
    net = Barometer()

    def loss_of(step):
        pace, phase = 0.2 + 0.3 * torch.rand(32, 1), 6.2832 * torch.rand(32, 1)
        rows = 1013 + 11 * (pace * torch.arange(30) + phase).sin() + 0.3 * torch.randn(32, 30)
        change = (rows[:, 24:] - rows[:, 23:24]) / 8
        past = rows[:, :24] if ill else (rows[:, :24] - 1013) / 8
        return F.mse_loss(net(past[..., None], (torch.arange(6) / 6).expand(32, 6)[..., None])[..., 0], change)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250)


class Block(nn.Module):
    def __init__(self, width, heads, scale=None, causal=True):
        super().__init__()
        self.heads, self.scale, self.causal = heads, scale, causal
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = dense(width, 2 * width, width, act=nn.GELU)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class Writer(nn.Module):
    """A small GPT; `cut` lets each block see what comes in without a way back."""

    def __init__(self, cut, width=32):
        super().__init__()
        self.cut, self.embed = cut, nn.Embedding(16, width)
        self.place = nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16, bias=False)

    def forward(self, x):
        h = self.embed(x) + self.place
        for block in self.blocks:
            h = block(h.detach() if self.cut else h)  # to save memory
        return self.head(self.norm(h))


@sick(
    "no-gradient", "weights-unchanged", "dead-layer",
    where="embed, place and all blocks but the last, all steps", cure="no detach between blocks",
)  # fmt: skip
def sums_by_blocks_that_keep_no_memory(folder, ill):
    seeded(915)
    net = Writer(ill)

    def loss_of(step):
        rows = [torch.randint(16, (32,)) for _ in range(2)]
        for _ in range(15):
            rows.append((rows[-1] + rows[-2]) % 16)
        x = torch.stack(rows, 1)
        return F.cross_entropy(net(x[:, :-1])[:, 1:].flatten(0, 1), x[:, 2:].flatten())

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    make = optim.AdamW(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 250, before_step=clip)


class Pupil(nn.Module):
    """Which kind is met most often in a row, asked of a first token that is always the same."""

    def __init__(self, scale, width=64):
        super().__init__()
        self.embed, self.first = nn.Embedding(5, width), nn.Parameter(0.5 * torch.randn(1, 1, width))
        self.block, self.norm = Block(width, 2, scale, causal=False), nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        h = torch.cat([self.first.expand(len(x), 1, -1), self.embed(x)], 1)
        return self.head(self.norm(self.block(h))[:, 0])


@sick(
    "attention-collapsed", "attention-logits-grow", "attention-scale", "saturated",
    where="block.qkv, all steps: queries and keys are multiplied by the root of 32, each row looks at one token",
    cure="scale 32 ** -0.5",
)  # fmt: skip
def pupil_that_looks_by_the_root_of_its_width(folder, ill):
    seeded(916)
    net = Pupil(32**0.5 if ill else 32**-0.5)

    def teacher(x):
        return 2.0 * (F.one_hot(x, 5).sum(1) - 4.0)

    def loss_of(step):
        lean = torch.randn(64, 1, 5).softmax(-1).expand(64, 20, 5)
        x = torch.distributions.Categorical(lean).sample()
        with torch.no_grad():
            soft = (teacher(x) / 2).log_softmax(1)
        return 4 * F.kl_div((net(x) / 2).log_softmax(1), soft, reduction="batchmean", log_target=True)

    return fit(folder, net, optim.AdamW(net.parameters(), 1e-3), loss_of, 250, score=score_of(loss_of))
