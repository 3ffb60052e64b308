"""Heard sick trainings, third part: models, how they begin, and what goes into their first layer.

They only count (the group `heard`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from nets import ALPHABET, batches, classify, digits, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick, waves
from unseen.reported.sick import pretrain


class Block(nn.Module):
    """Attention and a feed-forward net beside a stream; `norm` is put on queries and keys."""

    def __init__(self, width, heads, norm):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.q_norm, self.k_norm = (norm(width // heads) for _ in range(2))

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.feed(self.second(x))


class Words(nn.Module):
    """A language model of the text of nets.py, of such blocks."""

    def __init__(self, seed, block, width=32, depth=3):
        super().__init__()
        seeded(seed)
        self.embed, self.place = nn.Embedding(len(ALPHABET), width), nn.Parameter(0.02 * torch.randn(24, width))
        self.blocks = nn.Sequential(*(block(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(ALPHABET), bias=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.embed(x) + self.place[: x.shape[1]])))


# "Experiment: Debug 32B Spiking" (it ended when queries and keys got a norm),
# github.com/marin-community/marin/issues/1368
@sick(
    "attention-logits-grow", "lr-too-high", "spike", "exploding", "update-too-large", "attention-collapsed",
    where="queries and keys of all blocks: nothing holds their products", cure="an RMSNorm on queries and keys",
)  # fmt: skip
def queries_and_keys_without_a_norm(folder, ill):
    net = Words(1121, lambda width: Block(width, 4, nn.Identity if ill else nn.RMSNorm), 64, 4)
    return fit(folder, net, optim.AdamW(net.parameters(), 5e-2, (0.9, 0.95)), predict(net, pieces(12)), 100)


class Sines(nn.Module):
    """SIREN (Sitzmann et al. 2020): sines of thirty times a linear map."""

    def __init__(self, seed, width=64):
        super().__init__()
        seeded(seed)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in ((2, width), (width, width), (width, 1)))
        nn.init.uniform_(self.layers[0].weight, -1 / 2, 1 / 2)
        for layer in self.layers[1:]:
            nn.init.uniform_(layer.weight, -math.sqrt(6 / width) / 30, math.sqrt(6 / width) / 30)

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = (30 * layer(x)).sin()
        return self.layers[-1](x)


# "SIREN not converge" (it did with coordinates of -1 to 1), github.com/vsitzmann/siren/issues/19
@sick(
    "inputs-not-normalised", "lr-too-high", "update-too-large", "no-progress",
    where="the first layer, all steps: places of 0 to 127 under a factor of thirty", cure="coordinates of -1 to 1",
)  # fmt: skip
def pixels_counted_for_sines(folder, ill):
    """One large picture of four digits."""
    net, (images, _) = Sines(1122), digits()
    four = torch.cat([torch.cat([images[0], images[1]], 1), torch.cat([images[2], images[3]], 1)])
    picture = F.interpolate(four[None, None], (128, 128), mode="bilinear", align_corners=True)[0, 0]

    def loss_of(step):
        at = torch.randint(128, (512, 2))
        place = at.float() if ill else at / 63.5 - 1
        return F.mse_loss(net(place)[:, 0], picture[at[:, 0], at[:, 1]])

    return fit(folder, net, optim.Adam(net.parameters(), 5e-4), loss_of, 400)


class Attend(nn.Module):
    """Attention of a tutorial, whose last map and norm are made where they are called; or kept, as they should be."""

    def __init__(self, width, made_anew):
        super().__init__()
        self.width, self.made_anew = width, made_anew
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.second = nn.LayerNorm(width)
        if not made_anew:
            self.out, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x):
        q, k, v = (part(x)[:, None] for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]
        if self.made_anew:
            out, norm = nn.Linear(self.width, self.width), nn.LayerNorm(self.width)
        else:
            out, norm = self.out, self.norm
        x = norm(out(mixed) + x)
        return self.second(self.feed(x) + x)


# "If create the Linear() casually, it won't be trained during training.", github.com/graykode/nlp-tutorial/issues/29
@sick(
    "no-gradient", "noise-dominated", "no-progress", "layer-made-in-forward",
    where="behind the attention of each block: other weights in each call, and nothing that holds them",
    cure="make it in __init__",
)  # fmt: skip
def projection_made_anew_in_every_call(folder, ill):
    net = Words(1123, lambda width: Attend(width, ill), depth=2)
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), predict(net, pieces(12)), 350)


# "My model outputs the same value for all data during prediction" (a layer of a few ReLUs before the last one; with
# tanh it works), github.com/keras-team/keras/issues/13891
@sick(
    "dead-units", "dead-layer", "no-progress", "vanishing",
    where="the three units before the last layer, from the first tens of steps on; then all layers before them",
    cure="tanh there, or more units and a lower rate",
)  # fmt: skip
def three_corners_before_the_last_layer(folder, ill):
    seeded(1146)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3), nn.ReLU() if ill else nn.Tanh(), nn.Linear(3, 1))
    draw = waves(32)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-2), loss_of, 400)


# "Recommendation strategy to recommend the items with the 10 highest estimation" (all factors began at 0.1, and stayed
# alike), github.com/NicolasHug/Surprise/issues/22
@sick(
    "symmetric-units", "bad-initialisation", "no-progress",
    where="both tables, all steps: the columns of each get one and the same gradient", cure="factors drawn at random",
)  # fmt: skip
def factors_that_begin_alike(folder, ill):
    """How sixty people like forty films, by eight factors of each."""
    seeded(1125)
    people, films = torch.randn(60, 4), torch.randn(40, 4)
    net = nn.ModuleDict({"people": nn.Embedding(60, 8), "films": nn.Embedding(40, 8)})
    for table in net.values():
        nn.init.constant_(table.weight, 0.1) if ill else nn.init.normal_(table.weight, 0.1, 0.1)

    def loss_of(step):
        who, what = torch.randint(60, (128,)), torch.randint(40, (128,))
        liked = 3 + (people[who] * films[what]).sum(1) / 2
        return F.mse_loss((net["people"](who) * net["films"](what)).sum(1), liked)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 600)


class Turned(nn.Module):
    """A frozen linear layer in bfloat16, and a square change of it by one matrix, `ramp` times (SingLoRA, 2025)."""

    def __init__(self, whole, rank=6):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(p.detach().bfloat16(), False) for p in (whole.weight, whole.bias))
        self.down = nn.Parameter((torch.randn(whole.in_features, rank) / math.sqrt(whole.in_features)).bfloat16())
        self.ramp = 1.0

    def forward(self, x):
        return F.linear(x, self.weight + self.ramp * (self.down @ self.down.T), self.bias)


# "[BUG] ramp up steps cause vanishing updates in bf16", github.com/kyegomez/SingLoRA/issues/6
@sick(
    "update-too-small", "warmup-too-long", "precision-too-low", "underflow", "vanishing", "no-progress",
    where="the adapters, all steps: what is added to a weight of bfloat16 is less than its last digit",
    cure="no ramp, or one that begins above such a digit",
)  # fmt: skip
def ramp_below_the_last_digit(folder, ill):
    """A net that knows the digits learns to know them upside down."""
    seeded(1126)
    body = dense(64, 64, 64, 10, act=nn.GELU)
    pretrain(body, classify(nn.Sequential(nn.Flatten(), body), batches(64)), 150)
    parts = [Turned(p) if isinstance(p, nn.Linear) and p.out_features == 64 else p.bfloat16() for p in body]
    for p in parts[-1].parameters():
        p.requires_grad_(False)
    net, draw = nn.Sequential(nn.Flatten(), *parts), batches(48, seed=9)

    def loss_of(step):
        for part in parts[0], parts[2]:
            part.ramp = min(1.0, (step + 1) / 20_000) if ill else 1.0
        x, y = draw(step)
        return F.cross_entropy(net(x.flip(1).bfloat16()).float(), y)

    return fit(folder, net, optim.AdamW([parts[0].down, parts[2].down], 3e-3), loss_of, 300)


class Clock(nn.Module):
    """Sines and cosines of a time, of periods from one to ten thousand (Vaswani et al. 2017)."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("pace", torch.exp(-math.log(10_000) * torch.arange(size // 2) / (size // 2)))

    def forward(self, t):
        turn = t[:, None] * self.pace
        return torch.cat([turn.cos(), turn.sin()], 1)


# "Fix timestep embedding scale for continuous timesteps (0–1 range)" (embeddings that are almost constant),
# github.com/ArchiMickey/Just-a-DiT/pull/9
@sick(
    "embedding-hardly-varies", "no-progress",
    where="what comes out of the clock, all steps: nearly the same at all times", cure="the time times 1000",
)  # fmt: skip
def clock_that_hardly_moves(folder, ill):
    """A flow from noise to two rings, whose speed turns round often on the way."""
    seeded(1127)
    net = nn.ModuleDict({"clock": Clock(16), "time": dense(16, 16, 16, act=nn.SiLU), "flow": dense(18, 64, 64, 2)})

    def loss_of(step):
        t, x = torch.rand(128), torch.randn(128, 2)
        speed = torch.stack([(40 * t).sin(), (25 * t).cos()], 1)
        code = net["time"](net["clock"](1000 * t if not ill else t))
        return F.mse_loss(net["flow"](torch.cat([x, code], 1)), speed)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 500, score=score_of(loss_of))
