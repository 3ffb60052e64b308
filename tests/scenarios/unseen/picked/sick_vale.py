"""Mistakes that people told about in public: readers of text and sound, tables, places."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, rounds, tend


class Reader(nn.Module):
    """Reads a name letter by letter."""

    def __init__(self, letters, width):
        super().__init__()
        self.embed = nn.Embedding(letters, 16)
        self.memory = nn.GRU(16, width, batch_first=True)

    def forward(self, x):
        return self.memory(self.embed(x))[0][:, -1]


# https://github.com/spro/practical-pytorch/issues/9
@sick(
    "not-in-optimizer", "weights-unchanged", where="the reader (embed and memory), from the first step",
    cure="make the optimizer after the reader that is trained",
)  # fmt: skip
def surnames_of_five_valleys(folder, ill):
    seeded(3171)
    chains = (2 * torch.randn(5, 12, 12)).softmax(2)

    def names(rows=24):
        valley = torch.randint(5, (rows,))
        letters = [torch.randint(12, (rows,))]
        for _ in range(6):
            letters.append(torch.multinomial(chains[valley, letters[-1]], 1)[:, 0])
        return torch.stack(letters, 1), valley

    reader, head = Reader(12, 24), nn.Linear(24, 5)
    optimizer = torch.optim.Adam([*reader.parameters(), *head.parameters()], lr=5e-3)
    reader = Reader(12, 24)
    if not ill:
        optimizer = torch.optim.Adam([*reader.parameters(), *head.parameters()], lr=5e-3)

    def loss_of(step):
        x, y = names()
        return F.cross_entropy(head(reader(x)), y)

    net = nn.ModuleDict({"reader": reader, "head": head})
    return fit(folder, net, optimizer, loss_of, 300, score=score_of(loss_of))


# https://github.com/HorizonRobotics/alf/pull/1788
@sick(
    "accumulation-wiped", where="every step: of the four towers only the last one counts",
    cure="zero the gradients once a step, before the first of its backward passes",
)  # fmt: skip
def bells_of_four_towers(folder, ill):
    seeded(3172)
    sound, net = torch.randn(4, 6, 10), dense(14, 64, 64, 6)

    def strokes(tower, rows=24):
        bell = torch.randint(6, (rows,))
        x = sound[tower, bell] + 0.5 * torch.randn(rows, 10)
        return torch.cat([x, F.one_hot(torch.full((rows,), tower), 4)], 1), bell

    def loss_of(tower):
        x, bell = strokes(tower)
        return F.cross_entropy(net(x), bell)

    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def one(step):
        total = 0.0
        optimizer.zero_grad()
        for tower in range(4):
            if ill:
                optimizer.zero_grad()
            loss = loss_of(tower) / 4
            loss.backward()
            total += loss.item()
        optimizer.step()
        return {"loss": total}

    return tend(folder, net, optimizer, one, 300, score_of(loss_of, 4))


# http://ddrv.cn/?p=758668
@sick(
    "nonfinite", where="all gradients, in the first batch with a floe that was not seen: the root in the loss at zero",
    cure="add a small number under the root",
)  # fmt: skip
def drifts_of_ice_floes(folder, ill):
    seeded(3173)
    wind, net = torch.randn(6, 2), dense(6, 48, 48, 2, act=nn.Tanh)

    def floes(rows=64):
        x = torch.randn(rows, 6)
        drift = (x @ wind).sin() + 0.1 * torch.randn(rows, 2)
        seen = (torch.rand(rows, 1) > 0.0005).float()
        return x, drift * seen, seen

    def loss_of(step):
        x, drift, seen = floes()
        off = (net(x) * seen - drift).square().sum(1)
        return (off.sqrt() if ill else (off + 1e-10).sqrt()).mean()

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=3e-3), loss_of, 500, score=score_of(loss_of))


# https://github.com/automl/Auto-PyTorch/pull/210
@sick(
    "schedule-too-short", where="the learning rate, gone within the first few epochs",
    cure="step the schedule once an epoch, not once a batch",
)  # fmt: skip
def harvests_of_small_orchards(folder, ill):
    seeded(3174)
    way = torch.randn(10, 4)

    def orchards(rows):
        x = torch.randn(rows, 10)
        return x, (x @ way / 3).sin().sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1)

    net, draw, (far, fruit) = dense(10, 64, 64, 1), rounds(64, *orchards(3200)), orchards(512)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def one(batch):
        x, y = draw()
        loss = F.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if ill or batch % 50 == 49:
            schedule.step()
        return {"loss": loss}

    return tend(folder, net, optimizer, one, 1000, held_out(net, lambda: F.mse_loss(net(far), fruit)))


class Letters(nn.Module):
    """Two layers of attention with a mask that is added to the logits."""

    def __init__(self, kinds, length, width=32):
        super().__init__()
        self.embed, self.place = nn.Embedding(kinds, width), nn.Parameter(0.1 * torch.randn(length, width))
        self.ask = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.back = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.think = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), dense(width, 64, width)) for _ in range(2))
        self.calm = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.head = nn.Linear(width, kinds)

    def forward(self, x, masked):
        h, length = self.embed(x) + self.place, x.shape[1]
        later = torch.ones(length, length).triu(1).bool()
        for ask, back, think, calm in zip(self.ask, self.back, self.think, self.calm, strict=True):
            q, k, v = (part.unflatten(2, (4, -1)).transpose(1, 2) for part in ask(calm(h)).chunk(3, 2))
            scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
            scores = scores + torch.zeros(length, length).masked_fill(later, masked)
            h = h + back((scores.softmax(3) @ v).transpose(1, 2).flatten(2))
            h = h + think(h)
        return self.head(h)


# https://github.com/karpathy/minGPT/issues/75
@sick(
    "future-seen", "attention-logits-grow", where="the attention of both layers, which outgrows its mask",
    cure="mask with minus infinity",
)  # fmt: skip
def letters_of_a_lighthouse_keeper(folder, ill):
    seeded(3175)
    chain = (1.5 * torch.randn(12, 12)).softmax(1)

    def lines(rows=32, length=11):
        letters = [torch.randint(12, (rows,))]
        for _ in range(length - 1):
            letters.append(torch.multinomial(chain[letters[-1]], 1)[:, 0])
        text = torch.stack(letters, 1)
        return text[:, :-1], text[:, 1:]

    net = Letters(12, 10)

    def at(masked):
        def loss_of(step):
            x, y = lines()
            return F.cross_entropy(net(x, masked).flatten(0, 1), y.flatten())

        return loss_of

    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    return fit(folder, net, optimizer, at(-4.0 if ill else -torch.inf), 450, score=score_of(at(-torch.inf)))


class Drawn(nn.Module):
    """A linear layer whose weights are drawn anew for each row, with a deviation of their own."""

    def __init__(self, size, out, log_variance):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, size) / size**0.5)
        self.bias = nn.Parameter(torch.zeros(out))
        self.log_variance = nn.Parameter(torch.full((out, size), log_variance))

    def forward(self, x):
        deviation = (F.linear(x.square(), self.log_variance.exp()) + 1e-8).sqrt()
        return F.linear(x, self.weight, self.bias) + deviation * torch.randn_like(deviation)

    def divergence(self):
        return 0.5 * torch.log1p(self.weight.square() / (self.log_variance.exp() + 1e-8)).sum()


# https://github.com/HolyBayes/pytorch_ard/issues/2
@sick(
    "bad-initialisation", "noise-dominated", where="log_variance of both drawn layers, at the start",
    cure="begin with a small log_variance",
)  # fmt: skip
def spores_in_a_mushroom_cellar(folder, ill):
    seeded(3176)
    way, start = torch.randn(8, 3), 2.0 if ill else -8.0
    net = nn.Sequential(Drawn(8, 48, start), nn.ReLU(), Drawn(48, 1, start))

    def error(step):
        x = torch.randn(64, 8)
        return F.mse_loss(net(x), (x @ way).tanh().sum(1, keepdim=True))

    def loss_of(step):
        fit_to, divergence = error(step), net[0].divergence() + net[2].divergence()
        return fit_to + 1e-4 * divergence, {"error": fit_to, "divergence": divergence}

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=3e-3), loss_of, 600, score=score_of(error))
