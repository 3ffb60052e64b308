"""Sick trainings of deserts, caravans and wells, drawn by lot from a list of mistakes: two networks, terms."""

from __future__ import annotations

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, in_turn, rounds


@sick("generator-starves", "saturating-generator-loss", "discriminator-too-strong",
      where="the generator, once the judge tells all apart (early on)",
      cure="the non-saturating loss, one step of the judge for each, equal rates")  # fmt: skip
def mirages_drawn_over_the_salt_flat(folder, ill):
    seeded(12600)
    make, judge = dense(8, 64, 64, 8), dense(8, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 5e-3 if ill else 1e-3, betas=(0.5, 0.999))
    ways = torch.randn(2, 8)

    def seen(rows):
        height, haze = torch.randn(rows, 2).unbind(1)
        flat = torch.stack([height, (2 * height).sin() + 0.3 * haze], 1)
        return flat @ ways + 2 + 0.05 * torch.randn(rows, 8)

    def made(rows=64):
        return make(torch.randn(rows, 8))

    def judge_loss():
        real, fake = judge(seen(64)), judge(made().detach())
        return -(F.logsigmoid(real) + F.logsigmoid(-fake)).mean()

    def make_loss():
        fake = judge(made())
        return F.logsigmoid(-fake).mean() if ill else -F.logsigmoid(fake).mean()

    test = seen(2000)

    def score():
        with torch.no_grad():
            x = made(2000)
            return float((x.mean(0) - test.mean(0)).norm() + (x.T.cov() - test.T.cov()).norm())

    times = 5 if ill else 1
    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 250, score, rounds=times)


class Teller(nn.Module):
    """A small GPT of two blocks."""

    def __init__(self, words, length, width, causal):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)
        self.causal = causal

    def forward(self, tale):
        length = tale.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.causal else None
        h = self.body(self.word(tale) + self.place.weight[:length], mask=mask)
        return self.head(self.norm(h))


@sick("future-seen", where="the attention of all blocks, all steps: no causal mask", cure="a causal mask")
def tale_told_at_the_evening_fire(folder, ill):
    seeded(12601)
    words, length = 16, 16
    net = Teller(words, length, 32, not ill)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    follows = torch.softmax(2.5 * torch.randn(words, words), 1)

    def tales(rows):
        tale = [torch.randint(words, (rows,))]
        for _ in range(length):
            tale.append(torch.multinomial(follows[tale[-1]], 1)[:, 0])
        return torch.stack(tale, 1)

    draw = rounds(32, tales(2000))

    def loss_of(step):
        (tale,) = draw()
        logits = net(tale[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tale[:, 1:].flatten())

    test = tales(300)

    def told():
        return sum(F.cross_entropy(net(test[:, :n])[:, -1], test[:, n]) for n in range(1, length + 1)) / length

    score, clip = held_out(net, told), clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clip)


@sick("inputs-not-normalised", "columns-on-unlike-scales", "features-not-normalised",
      where="the first layer, all steps", cure="columns less their mean, over their deviation")  # fmt: skip
def brackish_or_sweet_at_the_cistern(folder, ill):
    seeded(12602)
    table, kinds = load_wine(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds)[order]
    if not ill:
        x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = dense(13, 64, 32, 3)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(16, x[:130], y[:130])

    def validate():
        net.eval()
        with torch.no_grad():
            logits = net(x[130:])
        net.train()
        return {
            "val_loss": float(F.cross_entropy(logits, y[130:])),
            "val_accuracy": float((logits.argmax(1) == y[130:]).float().mean()),
        }

    def loss_of(step):
        bx, by = draw()
        logged = validate() if step % 8 == 7 else {}
        return F.cross_entropy(net(bx), by), logged

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 240, score=score)


class Market(nn.Module):
    """A trunk and two heads: the breed, and the load that is carried."""

    def __init__(self, size, width, breeds):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.breed, self.load = nn.Linear(width, breeds), nn.Linear(width, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.breed(h), self.load(h)[:, 0]


@sick("loss-terms-imbalanced", "loss-terms-out-of-balance", "loss-terms-unbalanced", "targets-not-normalised",
      where="the loss, all steps: the squared error of the raw load drowns the cross-entropy",
      cure="the load standardised (or its term weighed down)")  # fmt: skip
def camels_at_the_market_of_the_oasis(folder, ill):
    seeded(12603)
    breeds = 5
    net = Market(12, 48, breeds)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    middles, ways = 1.6 * torch.randn(breeds, 2, 12), torch.randn(12, 2) / 3

    def herd(rows):
        breed = torch.randint(breeds, (rows,))
        x = middles[breed, torch.randint(2, (rows,))] + 0.9 * torch.randn(rows, 12)
        load = 180 + 60 * (x @ ways).sin().sum(1) + 10 * torch.randn(rows)
        return x, breed, load

    x, breed, load = herd(2500)
    if not ill:
        load = (load - load[:2000].mean()) / load[:2000].std()
    draw = rounds(64, x[:2000], breed[:2000], load[:2000])

    def loss_of(step):
        bx, by, bl = draw()
        logits, carried = net(bx)
        of_breed, of_load = F.cross_entropy(logits, by), F.mse_loss(carried, bl)
        return of_breed + of_load, {
            "loss_breed": of_breed.detach(),
            "loss_load": of_load.detach(),
            "accuracy": float((logits.argmax(1) == by).float().mean()),
        }

    score = held_out(net, lambda: F.cross_entropy(net(x[2000:])[0], breed[2000:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


@sick("accumulation-not-averaged", "accumulation-not-divided", where="all layers, all steps: sums of 8 micro-batches",
      cure="each loss divided by the number of micro-batches")  # fmt: skip
def hours_to_the_next_waterhole(folder, ill):
    seeded(12604)
    net = dense(8, 64, 64, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    parts = 8
    ways = torch.randn(8, 3) / 2

    def legs(rows):
        x = torch.randn(rows, 8)
        hours = (x @ ways).sin().sum(1, keepdim=True) + 0.4 * x[:, :1].abs() + 0.1 * torch.randn(rows, 1)
        return x, hours

    draw = rounds(16, *legs(4000))

    def loss_of(step):
        x, hours = draw()
        loss = F.mse_loss(net(x), hours)
        return loss if ill else loss / parts

    tx, ty = legs(800)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 200, score=score, accumulate=parts)


@sick("no-gradient", "no-gradient-to-the-generator", "detached", where="the whole generator, all steps",
      cure="no detach in the generator's own step")  # fmt: skip
def ripples_left_by_the_night_wind(folder, ill):
    seeded(12605)
    make = nn.Sequential(
        nn.Linear(10, 64), nn.ReLU(), nn.Unflatten(1, (16, 4)), nn.ConvTranspose1d(16, 16, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose1d(16, 1, 4, 2, 1),
    )  # fmt: skip
    judge = nn.Sequential(
        nn.Conv1d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv1d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(),
        nn.Linear(128, 1),
    )  # fmt: skip
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    place = torch.arange(16.0)

    def ripples(rows):
        height = 0.7 + 0.4 * torch.rand(rows, 1)
        crest = (6.2832 * (place / 8 + 0.3 * torch.rand(rows, 1))).sin()
        return (height * crest + 0.5 + 0.05 * torch.randn(rows, 16))[:, None]

    def made(rows=64):
        return make(torch.randn(rows, 10))

    def judge_loss():
        return criterion(judge(ripples(64)), ones) + criterion(judge(made().detach()), zeros)

    def make_loss():
        fake = made().detach() if ill else made()
        return criterion(judge(fake), ones)

    test = ripples(1000).flatten(1)

    def score():
        with torch.no_grad():
            x = made(1000).flatten(1)
            return float((x.mean(0) - test.mean(0)).norm() + (x.T.cov() - test.T.cov()).norm())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 350, score)
