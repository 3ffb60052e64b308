"""What people ask when a training goes wrong: their mistakes, with other subjects."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


# https://taourl.com/read-2034078.html
@sick("lr-too-high", "update-too-large", where="all layers, from the first steps on",
      cure="a learning rate of 0.05 for SGD, not of 6")  # fmt: skip
def teas_by_their_leaves(folder, ill):
    seeded(9341)
    kinds, lift = 6, torch.randn(3, 14)

    def leaves(rows):
        kind = torch.randint(kinds, (rows,))
        angle = 1.05 * kind + 0.25 * torch.randn(rows)
        shape = torch.stack([angle.cos(), angle.sin(), (2 * angle).sin()], 1)
        return shape @ lift + 0.1 * torch.randn(rows, 14), kind

    net = dense(14, 64, 64, kinds)
    fresh = leaves(1000)
    draw = rounds(64, *leaves(4000))
    optimizer = torch.optim.SGD(net.parameters(), lr=6.0 if ill else 0.05)

    def loss_of(step):
        x, kind = draw()
        out = net(x)
        return F.cross_entropy(out, kind), {"accuracy": float((out.argmax(1) == kind).float().mean())}

    return fit(folder, net, optimizer, loss_of, 600,
               score=held_out(net, lambda: (net(fresh[0]).argmax(1) != fresh[1]).float().mean()))  # fmt: skip


# https://github.com/deepmedic/deepmedic/issues/66
@sick("nonfinite", where="the loss and all gradients at the first batch with a patch that has NaNs in it",
      cure="leave out, or fill, the patches of the scans whose pixels are NaN")  # fmt: skip
def caries_on_dental_scans(folder, ill):
    seeded(9342)
    rows = 2000
    where = torch.randint(2, 10, (rows, 2))
    grid = torch.arange(12)
    near = (grid[None, :, None] - where[:, :1, None]).square() + (grid[None, None, :] - where[:, 1:, None]).square()
    spot = torch.exp(-near / 4.0)
    rotten = (torch.rand(rows) < 0.5).float()
    scans = 0.4 * torch.randn(rows, 12, 12) + spot * (2 * rotten - 1)[:, None, None]
    fresh = scans[1500:, None].clone()
    scans = scans[:1500, None].clone()
    scans[[711, 1290], 0, 3, 5:9] = math.nan
    kept = torch.ones(1500, dtype=torch.bool) if ill else scans.isfinite().flatten(1).all(1)
    draw = rounds(32, scans[kept], rotten[:1500][kept])
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
                        nn.ReLU(), nn.Flatten(), nn.Linear(576, 1))  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss_of(step):
        x, y = draw()
        out = net(x)[:, 0]
        return F.binary_cross_entropy_with_logits(out, y), {"accuracy": float(((out > 0) == (y > 0.5)).float().mean())}

    def missed():
        return F.binary_cross_entropy_with_logits(net(fresh)[:, 0], rotten[1500:])

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, missed))


class Block(nn.Module):
    """A squared ReLU between two linear layers."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(self.up(x).relu().square())


class Intervals(nn.Module):
    """Each note with the one before it, through three blocks; what they say is averaged over the piece."""

    def __init__(self, notes, width, kinds):
        super().__init__()
        self.embed = nn.Embedding(notes, width // 2)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)

    def forward(self, x):
        h = self.embed(x)
        return self.head(self.norm(self.blocks(torch.cat([h[:, :-1], h[:, 1:]], 2))).mean(1))


# https://github.com/karpathy/nanoGPT/issues/167
@sick("nonfinite", where="the last block, once its sums pass what a float16 can hold, after some hundred steps",
      cure="train in float32 (or bfloat16), not in float16")  # fmt: skip
def composers_by_their_intervals(folder, ill):
    seeded(9343)
    tunes, notes = 5, 24
    moves = (0.6 * torch.randn(tunes, notes, notes)).softmax(2)

    def pieces(rows, length=40):
        who = torch.randint(tunes, (rows,))
        line = [torch.randint(notes, (rows,))]
        for _ in range(length - 1):
            line.append(torch.multinomial(moves[who, line[-1]], 1)[:, 0])
        return torch.stack(line, 1), who

    net = Intervals(notes, 32, tunes)
    fresh = pieces(300)
    draw = rounds(32, *pieces(1500))
    optimizer = torch.optim.AdamW(net.parameters(), lr=8e-3, betas=(0.9, 0.95), weight_decay=0.01)

    def logits(x):
        with torch.autocast("cpu", dtype=torch.float16, enabled=ill):
            return net(x).float()

    def loss_of(step):
        x, who = draw()
        return F.cross_entropy(logits(x), who)

    return fit(folder, net, optimizer, loss_of, 400,
               score=held_out(net, lambda: F.cross_entropy(logits(fresh[0]), fresh[1])))  # fmt: skip


# https://github.com/keras-team/keras/issues/6447
@sick("nonfinite", where="the loss and all gradients at the first batch with the row that has a NaN in it",
      cure="drop, or fill, the row of the table with the missing value")  # fmt: skip
def customers_who_cancel(folder, ill):
    seeded(9344)
    rows = 3000
    table = torch.randn(rows, 10)
    leaves = (table[:, 0] * table[:, 1] + table[:, 2].abs() - table[:, 3] + 0.3 * torch.randn(rows) > 0.4).long()
    test, left = table[2400:].clone(), leaves[2400:]
    table = table[:2400].clone()
    table[1733, 6] = math.nan
    if not ill:
        table = table.nan_to_num(0.0)
    net = dense(10, 48, 48, 2)
    draw = rounds(64, table, leaves[:2400])
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"acc": float((out.argmax(1) == y).float().mean())}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(test), left)))


# https://github.com/keras-team/keras/issues/1597
@sick("no-activation", where="the convolutions, with nothing between them and the head",
      cure="an activation after each convolution")  # fmt: skip
def remarks_under_recipes(folder, ill):
    seeded(9345)
    words, length = 40, 20

    def remarks(rows):
        text = torch.randint(8, words, (rows, length))
        bad, shouts = torch.rand(rows) < 0.5, torch.rand(rows) < 0.5
        at = torch.randint(0, length - 1, (rows,))
        line = torch.arange(rows)
        text[line, at] = torch.where(bad, 0, 1)
        text[line, at + 1] = torch.where(shouts, 2, 3)
        return text, torch.stack([bad == shouts, bad], 1).float()

    def after():
        return [] if ill else [nn.ReLU()]

    class Remarks(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(words, 24)
            self.convolve = nn.Sequential(nn.Conv1d(24, 48, 3, padding=1), *after(),
                                          nn.Conv1d(48, 48, 3, padding=1), *after())  # fmt: skip
            self.head = nn.Linear(48, 2)

        def forward(self, x):
            return self.head(self.convolve(self.embed(x).transpose(1, 2)).mean(2))

    net = Remarks()
    fresh = remarks(1000)
    draw = rounds(64, *remarks(6000))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.binary_cross_entropy_with_logits(out, y), {"acc": float(((out > 0) == (y > 0.5)).float().mean())}

    return fit(folder, net, optimizer, loss_of, 500,
               score=held_out(net, lambda: F.binary_cross_entropy_with_logits(net(fresh[0]), fresh[1])))  # fmt: skip
