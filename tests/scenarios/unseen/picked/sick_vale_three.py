"""Mistakes that people told about in public: depth, attention, experts, tastes, heat, translation."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, rounds


# https://ai.stackexchange.com/questions/16557
@sick("vanishing", where="the first of the four hidden layers", cure="ReLU in the place of the sigmoids")
def levers_of_a_signal_box(folder, ill):
    seeded(3183)
    net, pull = dense(16, 64, 64, 64, 64, 1, act=nn.Sigmoid if ill else nn.ReLU), torch.randn(16, 4) / 4

    def loss_of(step):
        levers = torch.randint(2, (64, 16)).float()
        force = ((2 * levers - 1) @ pull).tanh().sum(1, keepdim=True)
        return F.mse_loss(net(levers), force)

    return fit(folder, net, torch.optim.SGD(net.parameters(), lr=0.05), loss_of, 800, score=score_of(loss_of))


class Questions(nn.Module):
    """Weighs the words of a question by what they are and what stands before them."""

    def __init__(self, words, answers, ill, width=24):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.attn = dense(2 * width, 32, 1, act=nn.Tanh)
        self.head, self.ill = nn.Linear(width, answers), ill

    def forward(self, x):
        said = self.embed(x)
        before = F.pad(said, (0, 0, 1, 0))[:, :-1]
        scores = self.attn(torch.cat([said, before], 2))
        weights = F.softmax(scores.view(-1, 1), dim=1).view(*x.shape, 1) if self.ill else F.softmax(scores, dim=1)
        return self.head((weights * said).sum(1))


# https://github.com/DEEP-PolyU/KEQA_WSDM19/issues/2
@sick("dead-layer", where="attn, at every step: its softmax has one entry only", cure="a softmax over the words")
def questions_at_an_inn(folder, ill):
    seeded(3184)
    net = Questions(9, 8, ill)

    def asked(rows=64, length=12):
        x = torch.randint(8, (rows, length))
        place, row = torch.randint(length - 1, (rows,)), torch.arange(rows)
        x[row, place] = 8
        return x, x[row, place + 1]

    def loss_of(step):
        x, y = asked()
        return F.cross_entropy(net(x), y)

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=1e-2), loss_of, 400, score=score_of(loss_of))


class Slots(nn.Module):
    """Experts that are given mixtures of the things on a belt, a slot each."""

    def __init__(self, size, experts, ill):
        super().__init__()
        self.gate = nn.Linear(size, experts)
        self.experts = nn.ModuleList(dense(size, 24, 16) for _ in range(experts))
        self.head, self.ill = dense(16, 32, 1), ill

    def forward(self, x):
        scores = self.gate(x)
        dispatch, combine = scores.softmax(0 if self.ill else 1), scores.softmax(2)
        slots = dispatch.transpose(1, 2) @ x
        out = torch.stack([expert(slots[:, i]) for i, expert in enumerate(self.experts)], 1)
        return self.head((combine @ out).mean(1))


# https://github.com/fkodom/soft-mixture-of-experts/pull/1
@sick("softmax-over-the-batch", where="the dispatch of the experts", cure="a softmax over the things of one row")
def crates_on_a_conveyor(folder, ill):
    seeded(3185)
    net = Slots(6, 4, ill)

    def belts(rows, crates=8):
        x = torch.randn(rows, crates, 6)
        heaviest = x[..., :1].argmax(1, keepdim=True)
        return x, x.gather(1, heaviest.expand(-1, -1, 6))[:, 0, 1:3].sum(1, keepdim=True)

    def loss_of(step):
        x, y = belts(64)
        return F.mse_loss(net(x), y)

    def one_by_one(step):
        x, y = belts(128)
        return F.mse_loss(torch.cat([net(row) for row in x.split(1)]), y)

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=5e-3), loss_of, 600, score=score_of(one_by_one, 4))


class Tastes(nn.Module):
    """A cook's liking of a spice: two embeddings multiplied."""

    def __init__(self, cooks, spices, ill, width=64):
        super().__init__()
        self.cook, self.spice = nn.Embedding(cooks, width), nn.Embedding(spices, width)
        if not ill:
            nn.init.normal_(self.cook.weight, std=0.1)
            nn.init.normal_(self.spice.weight, std=0.1)

    def forward(self, cook, spice):
        return (self.cook(cook) * self.spice(spice)).sum(1)


# https://github.com/pytorch/pytorch/issues/3121
@sick(
    "bad-initialisation", where="both embeddings, at the start: their products are far larger than the ratings",
    cure="begin with smaller embeddings",
)  # fmt: skip
def spices_that_cooks_reach_for(folder, ill):
    seeded(3186)
    likes = torch.randn(150, 2) @ torch.randn(2, 80) / 2 + 0.5 * torch.randn(80)

    def ratings(rows):
        cook, spice = torch.randint(150, (rows,)), torch.randint(80, (rows,))
        return cook, spice, likes[cook, spice] + 0.1 * torch.randn(rows)

    net, draw, (cook, spice, liked) = Tastes(150, 80, ill), rounds(128, *ratings(5000)), ratings(1000)

    def loss_of(step):
        cook, spice, liked = draw()
        return F.mse_loss(net(cook, spice), liked)

    score = held_out(net, lambda: F.mse_loss(net(cook, spice), liked))
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=5e-3), loss_of, 400, score=score)


class Wave(nn.Module):
    def forward(self, x):
        return x.sin()


# https://github.com/Photon-AI-Research/NeuralSolvers/pull/50
@sick(
    "inputs-not-normalised", where="what comes into the first layer: places and times up to 2048",
    cure="scale places and times to [-1, 1] by their bounds",
)  # fmt: skip
def embers_on_a_grate(folder, ill):
    seeded(3187)
    lower, upper = torch.zeros(3), torch.full((3,), 2048.0)
    net = dense(3, 48, 48, 48, 1, act=Wave)

    def embers(rows=128):
        place = torch.rand(rows, 3) * 2048
        x, y, t = (place / 1024 - 1).T
        return place, ((2 * x).cos() * (3 * y).sin() * (-t / 2).exp())[:, None]

    def loss_of(step):
        place, glow = embers()
        x = place if ill else 2 * (place - lower) / (upper - lower) - 1
        return F.mse_loss(net(x), glow)

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=2e-3), loss_of, 500, score=score_of(loss_of))


class Dialect(nn.Module):
    """Reads all words of a sentence and writes each in another dialect."""

    def __init__(self, words, length, width=32):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Parameter(0.5 * torch.randn(length, width))
        block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x) + self.place))


# https://github.com/mozilla/translations/issues/723
@sick(
    "lr-too-high", "update-too-large", where="all layers, from the first steps on",
    cure="a lower learning rate (a thirtieth)",
)  # fmt: skip
def words_of_one_dialect_in_another(folder, ill):
    seeded(3188)
    net, other = Dialect(16, 8), torch.randperm(16)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.06 if ill else 0.002)

    def loss_of(step):
        x = torch.randint(16, (32, 8))
        y = other[x.flip(1)]
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten())

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))
