"""Mistakes that people told about in public, in trainings of other subjects: the second part."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out


# https://discuss.pytorch.org/t/scaling-target-variables/41046
@sick("targets-not-normalised", where="the targets, from the first step", cure="scale the targets to about one")
def depth_of_a_trench_by_sonar(folder, ill):
    seeded(2932)
    net = dense(4, 16, 16, 1, act=nn.Tanh)
    way = torch.randn(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)

    def pinged(rows=64):
        x = 2 * torch.rand(rows, 4) - 1
        return x, -2700 + 80 * (1.5 * x @ way).sin().sum(1, keepdim=True)

    def scaled(y):
        return y if ill else (y + 2860) / 320

    def loss_of(step):
        x, y = pinged()
        return F.mse_loss(net(x), scaled(y))

    def score():
        x, y = pinged(1024)
        found = net(x) if ill else 320 * net(x) - 2860
        return (found - y).abs().mean()

    return fit(folder, net, optimizer, loss_of, 900, score=held_out(net, score))


class Reader(nn.Module):
    def __init__(self, words=40, width=32, length=12):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(width, words)

    def forward(self, x):
        x = self.embed(x) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(x)


# https://github.com/MenglinLu/Chinese-clinical-NER/issues/6
@sick("lr-too-high", "update-too-large", where="every layer, from the first steps", cure="a rate twenty times smaller")
def names_in_a_parish_register(folder, ill):
    seeded(2933)
    net = Reader()
    follows = torch.randn(40, 40).mul(2).softmax(1)

    def written(rows=32):
        x = [torch.randint(40, (rows,))]
        for _ in range(11):
            x.append(torch.multinomial(follows[x[-1]], 1)[:, 0])
        return torch.stack(x, 1)

    before = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(120):
        x = written()
        hidden = torch.rand(x.shape) < 0.2
        before.zero_grad()
        F.cross_entropy(net(torch.where(hidden, 0, x))[hidden], x[hidden]).backward()
        before.step()

    net.head = nn.Linear(32, 4)
    optimizer = torch.optim.AdamW(net.parameters(), 4e-2 if ill else 2e-3)
    kind = torch.randint(4, (40,))

    def tagged(rows=32):
        x = written(rows)
        former = F.pad(x[:, :-1], (1, 0))
        return x, torch.where(former % 2 == 0, kind[x], (kind[x] + kind[former]) % 4)

    def loss_of(step):
        x, y = tagged()
        out = net(x).flatten(0, 1)
        return F.cross_entropy(out, y.flatten()), {"accuracy": (out.argmax(1) == y.flatten()).float().mean()}

    def score():
        x, y = tagged(256)
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten())

    return fit(folder, net, optimizer, loss_of, 260, score=held_out(net, score))


# https://github.com/y0ast/VAE-Torch/issues/11
@sick(
    "posterior-collapse", where="the code and its two heads, within the first hundreds of steps",
    cure="sum the squares over the values of a row, as the divergence is summed over the code",
)  # fmt: skip
def petals_drawn_from_a_code(folder, ill):
    seeded(2934)
    net = nn.ModuleDict({"encoder": dense(48, 64, 12), "decoder": dense(6, 64, 48)})
    lift = torch.randn(3, 48)

    def petals(rows=64):
        return (torch.randn(rows, 3) @ lift).tanh() + 0.1 * torch.randn(rows, 48)

    def loss_of(step):
        x = petals()
        centre, log_var = net["encoder"](x).chunk(2, 1)
        z = centre + (0.5 * log_var).exp() * torch.randn_like(centre)
        gap = (net["decoder"](z) - x).square()
        reconstruction = gap.mean() if ill else gap.sum(1).mean()
        divergence = 0.5 * (centre.square() + log_var.exp() - log_var - 1).sum(1).mean()
        return reconstruction + divergence, {"reconstruction": reconstruction, "divergence": divergence}

    def score():
        x = petals(512)
        return F.mse_loss(net["decoder"](net["encoder"](x)[:, :6]), x)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 500, score=held_out(net, score))


class Finder(nn.Module):
    def __init__(self, ill, width=24):
        super().__init__()
        self.ill = ill
        self.key, self.query, self.value = (nn.Linear(size, width) for size in (8, 8, 14))
        self.out = dense(width + 8, 48, 6)

    def forward(self, shelf, wanted):
        logits = (self.key(shelf[..., :8]) * self.query(wanted)[:, None]).sum(2)
        scores = logits.unsqueeze(-1)
        weights = scores.softmax(-1) if self.ill else scores.softmax(1)
        found = (weights * self.value(shelf)).sum(1)
        return self.out(torch.cat([found, wanted], 1))


# https://github.com/localminimum/R-net/issues/8
@sick(
    "dead-layer", "softmax-over-one", where="the keys and the query, every step",
    cure="take the softmax over the places, not over the last axis, which has a length of one",
)  # fmt: skip
def a_jar_on_a_long_shelf(folder, ill):
    seeded(2935)
    net = Finder(ill)
    labels = torch.randn(16, 8)

    def shelves(rows=64):
        what = torch.rand(rows, 16).argsort(1)[:, :10]
        inside = torch.randint(6, (rows, 10))
        at = torch.randint(10, (rows,))
        shelf = torch.cat([labels[what], F.one_hot(inside, 6).float()], 2)
        rows = torch.arange(rows)
        return shelf, labels[what[rows, at]], inside[rows, at]

    def loss_of(step):
        shelf, wanted, y = shelves()
        out = net(shelf, wanted)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    def score():
        shelf, wanted, y = shelves(512)
        return F.cross_entropy(net(shelf, wanted), y)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 5e-3), loss_of, 400, score=held_out(net, score))


# https://github.com/Lightning-AI/pytorch-lightning/issues/9330
@sick("clip-before-unscale", where="every layer, every step", cure="scaler.unscale_(optimizer) before the clip")
def grain_of_a_plank(folder, ill):
    seeded(2936)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 36, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    across = torch.arange(12.0)

    def planks(rows=32):
        y = torch.randint(4, (rows,))
        angle = 0.785 * y[:, None, None] + 0.15 * torch.randn(rows, 1, 1)
        way = angle.cos() * across[None, :, None] + angle.sin() * across[None, None]
        return ((1.6 * way + 6.28 * torch.rand(rows, 1, 1)).sin() + 0.7 * torch.randn(rows, 12, 12))[:, None], y

    def loss_of(step):
        x, y = planks()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        return F.cross_entropy(out.float(), y), {"accuracy": (out.argmax(1) == y).float().mean()}

    def before_step(step):
        if not ill:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    def score():
        x, y = planks(512)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, score), scaler=scaler, before_step=before_step)


class Attention(nn.Module):
    def __init__(self, ill, width=32, heads=4):
        super().__init__()
        self.ill, self.heads = ill, heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide = dense(width, 64, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        values = F.scaled_dot_product_attention(q, k, v)
        if not self.ill:
            values = values.permute(0, 2, 1, 3)
        x = x + self.out(values.reshape(rows, length, width))
        return x + self.wide(self.second(x))


# https://github.com/jsbaan/transformer-from-scratch/pull/6
@sick("axes-mixed", where="where the heads come together again", cure="permute(0, 2, 1, 3) before the reshape")
def hats_of_partners_in_a_dance(folder, ill):
    seeded(2937)
    colour, hat = nn.Embedding(20, 32), nn.Embedding(5, 32)
    net = nn.ModuleDict({
        "colour": colour, "hat": hat, "body": nn.Sequential(Attention(ill), Attention(ill)), "head": nn.Linear(32, 5),
    })  # fmt: skip

    def dances(rows=32):
        pair = torch.rand(rows, 20).argsort(1)[:, :5].repeat(1, 2)
        worn = torch.randint(5, (rows, 10))
        order = torch.rand(rows, 10).argsort(1)
        partner = worn.roll(5, 1)
        return pair.gather(1, order), worn.gather(1, order), partner.gather(1, order)

    def loss_of(step, rows=32):
        pair, worn, y = dances(rows)
        out = net["head"](net["body"](colour(pair) + hat(worn)))
        return F.cross_entropy(out.flatten(0, 1), y.flatten())

    def score():
        return loss_of(0, 256)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 500, score=held_out(net, score))
