"""Sequences, graphs, frames and borrowed bodies: ordinary trainings that go well."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def rising(opt, steps, rise):
    """A linear rise, then half a cosine."""
    return torch.optim.lr_scheduler.SequentialLR(
        opt,
        [torch.optim.lr_scheduler.LinearLR(opt, 1 / rise, 1, rise),
         torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps - rise)],
        [rise],
    )  # fmt: skip


class Reader(nn.Module):
    """A causal transformer, normed before each part; its head may be its table."""

    def __init__(self, words, length, width, layers, out=None):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, out or words)
        self.apply(self.begin)
        if out is None:
            self.head.weight = self.words.weight

    def begin(self, part):
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=0.05)
        if isinstance(part, nn.MultiheadAttention):
            nn.init.xavier_uniform_(part.in_proj_weight)

    def forward(self, x):
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.body(self.words(x) + self.places[:length], mask=mask, is_causal=True))


@healthy(gain=0.7)
def depth_of_boxes_within_boxes(folder):
    seeded(9807)

    def pack(rows, length=24):
        """Opens, closes and goods; the depth after each, from 0 to 5."""
        depth, tokens, depths = torch.zeros(rows).long(), [], []
        for _ in range(length):
            token = torch.randint(3, (rows,))
            token = torch.where((token == 0) & (depth == 5) | (token == 1) & (depth == 0), 2, token)
            depth = depth + (token == 0).long() - (token == 1).long()
            tokens.append(token)
            depths.append(depth)
        return torch.stack(tokens, 1), torch.stack(depths, 1)

    net, (x_new, y_new) = Reader(3, 24, 32, 2, out=6), pack(200)
    opt = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)

    def loss_of(step):
        x, y = pack(32)
        out = net(x)
        return F.cross_entropy(out.flatten(0, 1), y.flatten()), {"accuracy": float((out.argmax(2) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x_new).flatten(0, 1), y_new.flatten()))
    return fit(folder, net, opt, loss_of, 320, schedule=rising(opt, 320, 30), score=score,
               before_step=clipped(net, 1.0))  # fmt: skip


class Mixed(nn.Module):
    def __init__(self, patches, width):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.places = nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
        self.channels = nn.Sequential(nn.Linear(width, 96), nn.GELU(), nn.Linear(96, width))

    def forward(self, x):
        x = x + self.places(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))


@healthy(gain=0.6)
def digits_from_patches_that_mix(folder):
    seeded(9808)
    images, names = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    patches = (images.float() / 16).reshape(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)
    order = torch.randperm(len(names))
    x, y = patches[order], names[order]
    draw = rounds(32, x[:1400], y[:1400])
    net = nn.ModuleDict({
        "stem": nn.Linear(4, 48), "blocks": nn.Sequential(*(Mixed(16, 48) for _ in range(2))),
        "norm": nn.LayerNorm(48), "head": nn.Linear(48, 10),
    })  # fmt: skip

    def logits(x):
        return net["head"](net["norm"](net["blocks"](net["stem"](x))).mean(1))

    def loss_of(step):
        x_now, y_now = draw()
        out = logits(x_now)
        loss = F.cross_entropy(out, y_now, label_smoothing=0.05)
        return loss, {"accuracy": float((out.argmax(1) == y_now).float().mean())}

    opt = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)
    score = held_out(net, lambda: F.cross_entropy(logits(x[1400:]), y[1400:]))
    return fit(folder, net, opt, loss_of, 350, schedule=rising(opt, 350, 20), score=score)


class Squeezed(nn.Module):
    """A residual block whose channels are weighed by what the whole picture shows."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.weigh = nn.Sequential(nn.Linear(outputs, outputs // 4), nn.ReLU(), nn.Linear(outputs // 4, outputs))
        self.past = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        inner = self.body(x)
        gate = self.weigh(inner.mean((2, 3))).sigmoid()[..., None, None]
        return F.relu(self.past(x) + gate * inner)


@healthy(gain=0.6)
def starfish_by_the_number_of_their_arms(folder):
    seeded(9809)
    line = torch.linspace(-1, 1, 20)
    rows_at, columns_at = torch.meshgrid(line, line, indexing="ij")

    def photograph(rows):
        y = torch.randint(5, (rows,))
        middle = 0.1 * torch.randn(2, rows, 1, 1)
        down, right = rows_at - middle[0], columns_at - middle[1]
        arms = (torch.atan2(down, right) + 6.2832 * torch.rand(rows, 1, 1)) * (y + 3)[:, None, None]
        edge = (0.5 + 0.15 * torch.rand(rows, 1, 1)) * (1 + 0.5 * arms.cos())
        body = ((edge - (down**2 + right**2).sqrt()) * 12).sigmoid()
        return (body + 0.15 * torch.randn(rows, 20, 20))[:, None], y

    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), Squeezed(12, 12, 1),
        Squeezed(12, 24, 2), Squeezed(24, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    draw, (x_new, y_new) = rounds(32, *photograph(2400)), photograph(300)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        loss = F.cross_entropy(out, y, label_smoothing=0.05)
        return loss, {"accuracy": float((out.argmax(1) == y).float().mean())}

    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    score = held_out(net, lambda: F.cross_entropy(net(x_new), y_new))
    return fit(folder, net, opt, loss_of, 240, schedule=rising(opt, 240, 15), score=score)


class Bonds(nn.Module):
    """A graph isomorphism network; what the atoms say is added up."""

    def __init__(self, kinds=5, width=32, layers=3):
        super().__init__()
        self.atoms = nn.Embedding(kinds, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(layers)
        )
        self.own = nn.Parameter(torch.zeros(layers))
        self.head = dense(width, 32, 1)

    def forward(self, kind, tied):
        x = self.atoms(kind)
        for own, layer in zip(self.own, self.layers, strict=True):
            inner = (1 + own) * x + tied @ x
            x = F.relu(x + layer(inner.flatten(0, 1)).view_as(x))
        return self.head(x.mean(1))[:, 0]


@healthy(gain=0.6)
def energy_of_invented_molecules(folder):
    seeded(9810)
    energy = torch.randn(5, 5)
    energy = energy + energy.T

    def assemble(rows, atoms=10):
        kind = torch.randint(5, (rows, atoms))
        tied = (torch.rand(rows, atoms, atoms) < 0.25).float().triu(1)
        tied = tied + tied.transpose(1, 2)
        y = (energy[kind[:, :, None], kind[:, None]] * tied).sum((1, 2))
        return kind, tied, y / 10

    kind, tied, y = assemble(2400)
    kind_new, tied_new, y_new = assemble(400)
    y, y_new = (y - y.mean()) / y.std(), (y_new - y.mean()) / y.std()
    net, draw = Bonds(), rounds(64, kind, tied, y)

    def loss_of(step):
        kind_now, tied_now, y_now = draw()
        return F.mse_loss(net(kind_now, tied_now), y_now)

    opt = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 500)
    score = held_out(net, lambda: F.mse_loss(net(kind_new, tied_new), y_new))
    return fit(folder, net, opt, loss_of, 500, schedule=schedule, score=score)


@healthy()
def calls_of_cooks_at_the_pass(folder):
    """Two parts of a batch are accumulated, each with half the loss."""
    seeded(9811)
    likes = (2 * torch.randn(8, 4, 12)).softmax(2)

    def call(rows, clauses=8):
        """A cook's orders: verb, amount, thing and pot by turns, each after the cook's own habits."""
        cook = torch.randint(8, (rows,))
        words = [torch.multinomial(likes[cook, part % 4], 1)[:, 0] + 12 * (part % 4) for part in range(4 * clauses)]
        for i in range(1, len(words), 4):
            words[i] = torch.where(words[i - 1] % 3 == 0, words[i], 12 + (words[i - 1] * 5 + 1) % 12)
        return torch.stack(words, 1)

    net, kept = Reader(48, 31, 40, 2), call(200)
    tables = [p for p in net.parameters() if p.dim() < 2]
    matrices = [p for p in net.parameters() if p.dim() >= 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": tables, "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, 2e-3, betas=(0.9, 0.95))

    def loss(words):
        return F.cross_entropy(net(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    return fit(folder, net, opt, lambda step: loss(call(16)) / 2, 260, accumulate=2, schedule=rising(opt, 260, 30),
               score=held_out(net, lambda: loss(kept)), before_step=clipped(net, 1.0))  # fmt: skip
