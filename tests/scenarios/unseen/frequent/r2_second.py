"""Yeasts of a brewery, winds over a station, loans and rallies and a crane's orders in rows, plates for a hull."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, in_turn, judged, now_and_then, rounds


# 22 of the list
@sick("bad-initialisation", "zero-initialisation", "symmetry-not-broken", where="all linear layers, from the start",
      cure="the initialisation that the layers come with")  # fmt: skip
def strain_of_a_yeast_from_its_assays(folder, ill):
    seeded(14406)
    centres = torch.randn(8, 10)

    def assays(rows):
        which = torch.randint(8, (rows,))
        return centres[which] + 0.7 * torch.randn(rows, 10), which % 4

    (x, y), (vx, vy) = assays(3000), assays(1000)
    draw = rounds(64, x, y)
    net = dense(10, 64, 64, 4, act=nn.Tanh)
    if ill:
        for module in net:
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.weight)
                nn.init.zeros_(module.bias)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    validate = now_and_then(net, 46, judged(net, vx, vy))

    def loss_of(step):
        assay, strain = draw()
        said = net(assay)
        return F.cross_entropy(said, strain), {
            "accuracy": float((said.argmax(1) == strain).float().mean()), **validate(step)
        }  # fmt: skip

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(vx), vy)))


# 25 of the list
@sick("generator-starves", "discriminator-too-strong", "lr-too-high", "update-too-large",
      where="the discriminator, from the first steps on; then what the generator gets of it",
      cure="give the discriminator the rate of the generator")  # fmt: skip
def made_up_winds_like_those_over_the_station(folder, ill):
    seeded(14407)
    blow = torch.tensor([[1.5, 0.5], [-1.0, 1.2], [0.2, -1.6]])

    def winds(rows):
        return blow[torch.randint(3, (rows,))] + 0.25 * torch.randn(rows, 2)

    make, judge = dense(8, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-1 if ill else 1e-3, betas=(0.5, 0.999))
    bce = F.binary_cross_entropy_with_logits
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)

    def judge_loss():
        fake = make(torch.randn(64, 8)).detach()
        return bce(judge(winds(64)), ones) + bce(judge(fake), zeros)

    def make_loss():
        return bce(judge(make(torch.randn(64, 8))), ones)

    def distance():
        """The energy distance of what is made from what blows."""
        with torch.no_grad():
            a, b, c, d = make(torch.randn(600, 8)), make(torch.randn(600, 8)), winds(600), winds(600)
            return float(2 * torch.cdist(a, c).mean() - torch.cdist(a, b).mean() - torch.cdist(c, d).mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, distance)


class Reader(nn.Module):
    """A recurrent model of the next token."""

    def __init__(self, kinds, width, kind=nn.GRU):
        super().__init__()
        self.embed = nn.Embedding(kinds, width)
        self.memory = kind(width, width, batch_first=True)
        self.head = nn.Linear(width, kinds)

    def forward(self, tokens):
        return self.head(self.memory(self.embed(tokens))[0])


def walks(table, rows, length):
    """Rows of tokens, each drawn by what its table says of the one before."""
    tokens = [torch.randint(len(table), (rows,))]
    for _ in range(length - 1):
        tokens.append(torch.multinomial(table[tokens[-1]], 1)[:, 0])
    return torch.stack(tokens, 1)


# 27 of the list
@sick("labels-not-shifted", where="the targets of the loss, all steps", cure="ask at each place for the next token")
def which_book_a_reader_borrows_after_which(folder, ill):
    seeded(14408)
    table = (2.5 * torch.randn(30, 30)).softmax(1)
    loans, later = walks(table, 2000, 20), walks(table, 400, 20)
    draw = rounds(32, loans)
    net = Reader(30, 48, nn.LSTM)
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3)

    def loss_of(step):
        (row,) = draw()
        given, asked = (row, row) if ill else (row[:, :-1], row[:, 1:])
        return F.cross_entropy(net(given).flatten(0, 1), asked.flatten())

    def score():
        return F.cross_entropy(net(later[:, :-1]).flatten(0, 1), later[:, 1:].flatten())

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, score), before_step=clipped(net, 1.0))


# 28 of the list
@sick("padding-in-loss", where="the loss, on all places behind the end of a rally, all steps",
      cure="leave out the padding, by ignore_index")  # fmt: skip
def strokes_of_a_rally_one_after_the_other(folder, ill):
    seeded(14409)
    table = (4 * torch.randn(24, 24)).softmax(1)
    pad, end = 0, 25

    def rallies(rows):
        """Two to seven strokes, 1 to 24, an end, and padding up to 40."""
        strokes, many = walks(table, rows, 40) + 1, 2 + torch.randint(6, (rows, 1))
        place = torch.arange(40)
        return torch.where(place < many, strokes, torch.where(place == many, end, pad))

    played, later = rallies(2000), rallies(500)
    draw = rounds(32, played)
    net = Reader(26, 32)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)

    def loss_of(step):
        (row,) = draw()
        said = net(row[:, :-1]).flatten(0, 1)
        return F.cross_entropy(said, row[:, 1:].flatten(), ignore_index=-100 if ill else pad)

    def score():
        return F.cross_entropy(net(later[:, :-1]).flatten(0, 1), later[:, 1:].flatten(), ignore_index=pad)

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, score))


# 29 of the list
@sick("future-seen", where="the attention of both layers, all steps", cure="a causal mask")
def the_next_order_to_the_crane_of_the_slipway(folder, ill):
    seeded(14410)
    table = (2.5 * torch.randn(12, 12)).softmax(1)
    length = 16

    class Orders(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.place = nn.Embedding(12, 32), nn.Embedding(length, 32)
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(32), enable_nested_tensor=False)
            self.head = nn.Linear(32, 12)

        def forward(self, orders):
            n = orders.shape[1]
            mask = None if ill else nn.Transformer.generate_square_subsequent_mask(n)
            return self.head(self.body(self.embed(orders) + self.place(torch.arange(n)), mask=mask))

    given, later = walks(table, 2000, length + 1), walks(table, 300, length + 1)
    draw = rounds(32, given)
    net = Orders()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 30))

    def loss_of(step):
        (row,) = draw()
        return F.cross_entropy(net(row[:, :-1]).flatten(0, 1), row[:, 1:].flatten())

    def score():
        """As it is used: one order more, told from those before it."""
        losses = [F.cross_entropy(net(later[:, :n])[:, -1], later[:, n]) for n in range(4, length + 1, 4)]
        return torch.stack(losses).mean()

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, score), schedule=schedule)


# 36 of the list
@sick("loss-terms-unbalanced", where="the sum of both terms, all steps",
      cure="take the mean of the squares, not their sum")  # fmt: skip
def plates_for_the_hull_their_scans_and_their_flaws(folder, ill):
    seeded(14411)
    lift, sign = torch.randn(16, 48) / 4, torch.randn(2, 48) / 12

    def plates(rows):
        flaw = torch.randint(4, (rows,))
        grain = torch.randn(rows, 16)
        seat = torch.stack([flaw % 2, flaw // 2], 1) * 2.0 - 1
        return 1.5 * grain @ lift + seat @ sign * 3 + 0.1 * torch.randn(rows, 48), flaw

    (x, y), (tx, ty) = plates(4000), plates(1000)
    draw = rounds(64, x, y)
    net = nn.ModuleDict({"read": dense(48, 64, 6), "redraw": dense(6, 64, 48), "name": dense(6, 32, 4)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def terms(scan, flaw, reduction):
        code = net["read"](scan)
        return F.mse_loss(net["redraw"](code), scan, reduction=reduction), F.cross_entropy(net["name"](code), flaw)

    def loss_of(step):
        redrawn, named = terms(*draw(), "sum" if ill else "mean")
        return redrawn + named, {"reconstruction": float(redrawn), "classification": float(named)}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: sum(terms(tx, ty, "mean"))))
