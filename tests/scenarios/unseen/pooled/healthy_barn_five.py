"""Sensors, short texts, resemblance, a small language model, rare events and several tasks at once."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


class Dilated(nn.Module):
    def __init__(self, inside, outside, apart):
        super().__init__()
        self.conv = nn.Conv1d(inside, outside, 3, padding=apart, dilation=apart, bias=False)
        self.norm, self.drop = nn.BatchNorm1d(outside), nn.Dropout(0.1)
        self.skip = nn.Conv1d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x):
        return self.drop(self.norm(self.conv(x)).relu()) + self.skip(x)


class Pooled(nn.Module):
    def __init__(self, body, head):
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x):
        return self.head(self.body(x).mean(2))


@healthy()
def a_walker_a_rider_or_a_climber(folder):
    seeded(9285)
    time = torch.arange(48) / 48

    def draw(rows=48):
        y = torch.randint(4, (rows,))
        beat = torch.tensor([3.0, 5.0, 3.0, 5.0])[y] + 0.3 * torch.randn(rows)
        lean = torch.tensor([0.3, 0.3, 1.2, 1.2])[y]
        phase = 6.2832 * (beat[:, None] * time + torch.rand(rows, 1))
        x = torch.stack([phase.sin(), (phase + lean[:, None]).sin(), (2 * phase).cos() * lean[:, None]], 1)
        return x * (0.7 + 0.6 * torch.rand(rows, 1, 1)) + 0.5 * torch.randn(rows, 3, 48), y

    net = Pooled(nn.Sequential(Dilated(3, 24, 1), Dilated(24, 24, 2), Dilated(24, 24, 4)), nn.Linear(24, 4))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3, momentum=0.5)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    x, y = draw(400)
    score = held_out(net, lambda: F.cross_entropy(net(x), y))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Headlines(nn.Module):
    def __init__(self, words, kinds, width=32):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(words, width), nn.Linear(width, kinds)
        nn.init.uniform_(self.bag.weight, -0.5, 0.5)
        nn.init.uniform_(self.head.weight, -0.5, 0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, text):
        words, begins = text
        return self.head(self.bag(words, begins))


@healthy()
def headlines_filed_by_section(folder):
    seeded(9286)
    words, kinds = 500, 4
    common = 1 / (3 + torch.arange(words).float())
    of_kind = common * (1 + 3 * torch.rand(kinds, words) ** 4)

    def draw(rows=32):
        y = torch.randint(kinds, (rows,))
        length = torch.randint(8, 24, (rows,))
        drawn = torch.multinomial(of_kind[y], 24, replacement=True)
        kept = drawn[torch.arange(24) < length[:, None]]
        return (kept, F.pad(length.cumsum(0)[:-1], (1, 0))), y

    net = Headlines(words, kinds)
    optimizer = torch.optim.SGD(net.parameters(), lr=5.0)

    def loss_of(step):
        text, y = draw()
        out = net(text)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    text, y = draw(1000)
    score = held_out(net, lambda: (net(text).argmax(1) != y).float().mean())
    return fit(
        folder, net, optimizer, loss_of, 1200, score=score, before_step=clipped(net, 0.1),
        schedule=StepLR(optimizer, 800, 0.1),
    )  # fmt: skip


@healthy()
def paw_prints_of_the_same_dog(folder):
    seeded(9287)
    dogs, size = 60, 24
    traits = torch.randn(dogs, 6)
    lift, ground = torch.randn(6, size) / 6**0.5, torch.randn(8, size)

    def prints(which):
        step = (traits[which] + 0.15 * torch.randn(len(which), 6)) @ lift
        return (step + 0.8 * torch.randn(len(which), 8) @ ground / 3).tanh()

    def triple(first, last, rows=64):
        dog = torch.randint(first, last, (rows,))
        other = first + (dog - first + torch.randint(1, last - first, (rows,))) % (last - first)
        return prints(dog), prints(dog), prints(other)

    class Embedder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = dense(size, 64, 64, 16, norm=nn.BatchNorm1d)

        def forward(self, x):
            return F.normalize(self.layers(x), dim=1)

    net = Embedder()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-5)

    def loss_of(step):
        a, b, c = net(torch.cat(triple(0, 45))).chunk(3)
        near, far = (a - b).norm(dim=1), (a - c).norm(dim=1)
        return (near - far + 0.5).relu().mean(), {"near": near.mean(), "far": far.mean()}

    anchor, same, other = triple(45, 60, 1500)

    def mistaken():
        a, b, c = net(anchor), net(same), net(other)
        return ((a - b).norm(dim=1) > (a - c).norm(dim=1)).float().mean()

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, mistaken))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_one, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        rows, length, width = x.shape
        parts = self.qkv(self.norm_one(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(h.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norm_two(x))


class Storyteller(nn.Module):
    def __init__(self, kinds, length, width=32, depth=2):
        super().__init__()
        self.embed, self.place = nn.Embedding(kinds, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds, bias=False)
        self.apply(self.begin)
        self.head.weight = self.embed.weight

    @staticmethod
    def begin(part):
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.normal_(part.weight, std=0.02)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.embed(x) + self.place.weight[: x.shape[1]])))


@healthy()
def fables_told_by_a_tiny_model(folder):
    seeded(9288)
    who = ["the fox", "a crow", "the old hare", "one mouse", "the lion"]
    does = ["eats", "fears", "follows", "sings to", "forgets"]
    where = ["in the wood", "by the river", "at night", "under a tree"]

    def pick(of):
        return of[int(torch.randint(len(of), (1,)))]

    text = " ".join(f"{pick(who)} {pick(does)} {pick(who)} {pick(where)}." for _ in range(400))
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(c) for c in text])
    border, length, steps = int(0.9 * len(codes)), 32, 150
    net = Storyteller(len(letters), length)
    matrices = [p for p in net.parameters() if p.ndim > 1]
    vectors = [p for p in net.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=5e-3, betas=(0.9, 0.95))

    def share(step):
        return (step + 1) / 20 if step < 20 else 0.1 + 0.45 * (1 + math.cos(math.pi * (step - 20) / (steps - 20)))

    def pieces(rows, begin, end):
        return codes[torch.randint(begin, end - length - 1, (rows, 1)) + torch.arange(length + 1)]

    def entropy(piece):
        return F.cross_entropy(net(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())

    test = pieces(64, border, len(codes))
    return fit(
        folder, net, optimizer, lambda step: entropy(pieces(8, 0, border)) / 2, steps, accumulate=2,
        score=held_out(net, lambda: entropy(test)), before_step=clipped(net, 1.0), schedule=LambdaLR(optimizer, share),
    )  # fmt: skip


@healthy()
def forged_cheques_among_many_good_ones(folder):
    seeded(9289)
    rows = 12000
    x = torch.randn(rows, 15)
    odd = 1.5 * x[:, 0] + x[:, 1] * x[:, 2] + (x[:, 3] - x[:, 4]).abs() + 0.7 * torch.randn(rows)
    y = (odd > odd.quantile(0.96)).float()
    draw = rounds(512, x[:9000], y[:9000])
    net = dense(15, 64, 32, 1, norm=nn.BatchNorm1d)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    rare = torch.tensor(8.0)

    def loss_of(step):
        a, b = draw()
        out = net(a)[:, 0]
        caught = ((out > 0) & (b > 0)).sum() / b.sum().clamp(min=1)
        return F.binary_cross_entropy_with_logits(out, b, pos_weight=rare), {"recall": caught}

    def misplaced():
        out, wanted = net(x[9000:])[:, 0], y[9000:] > 0
        return (out[wanted][:, None] < out[~wanted]).float().mean()

    schedule = CosineAnnealingLR(optimizer, 300)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, misplaced), schedule=schedule)


@healthy()
def barns_heated_cooled_and_graded(folder):
    seeded(9290)
    way = torch.randn(10, 4) / 2
    edges = torch.tensor([-1.0, 0.2, 1.2])

    def draw(rows=100):
        x = torch.randn(rows, 10)
        h = (x @ way).tanh()
        heat = 2 * h[:, 0] - h[:, 1] * h[:, 2] + 0.1 * torch.randn(rows)
        cool = h[:, 3] - 2 * h[:, 0] * h[:, 1] + 0.1 * torch.randn(rows)
        return x, heat, cool, torch.bucketize(heat + cool, edges)

    trunk = nn.Sequential(dense(10, 64, 64), nn.ReLU())
    net = nn.ModuleDict({"trunk": trunk, "heat": nn.Linear(64, 1), "cool": nn.Linear(64, 1), "grade": nn.Linear(64, 4)})
    optimizer = torch.optim.RAdam(net.parameters(), lr=3e-3)

    def terms(x, heat, cool, grade):
        h = net["trunk"](x)
        return {
            "heating": F.mse_loss(net["heat"](h)[:, 0], heat),
            "cooling": F.mse_loss(net["cool"](h)[:, 0], cool),
            "grade": F.cross_entropy(net["grade"](h), grade),
        }

    def total(parts):
        return parts["heating"] + parts["cooling"] + 0.5 * parts["grade"]

    def loss_of(step):
        parts = terms(*draw())
        return total(parts), parts

    test = draw(1000)
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: total(terms(*test))))
