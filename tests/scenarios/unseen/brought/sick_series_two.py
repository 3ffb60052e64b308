"""Language models and their fine-tuning, after public threads: gauges, dialects, seasonings, complaints."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick, square_of, waves


class Adapted(nn.Module):
    """A frozen linear layer and a change of low rank that is learned; `apart` hands on the values of the change."""

    def __init__(self, base, rank=4, apart=False):
        super().__init__()
        self.base, self.apart = base.requires_grad_(False), apart
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        change = x @ self.down.T @ self.up.T
        return self.base(x) + (torch.empty_like(change).copy_(change.data) if self.apart else change)


def taught(net, loss_of, steps=300, rate=3e-3):
    """What was learned before, without anybody who watches."""
    optimizer = torch.optim.Adam(net.parameters(), rate)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(step).backward()
        optimizer.step()
    return net


def trained(net):
    return [weight for weight in net.parameters() if weight.requires_grad]


# https://github.com/paiml/aprender/pull/2232
@sick("no-gradient", "weights-unchanged", where="the low-rank matrices of the first two layers, from the first step on",
      cure="the output of the adapter stays in the graph")  # fmt: skip
def river_gauges_after_a_flood(folder, ill):
    seeded(2738)
    before, after = waves(64), waves(64)
    net = dense(6, 64, 64, 1)
    taught(net, square_of(net, before))
    net[0], net[2] = Adapted(net[0], 6, apart=ill), Adapted(net[2], 6, apart=ill)
    optimizer = torch.optim.AdamW(trained(net), 5e-3)

    loss_of = square_of(net, after)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of))


def dialect(tokens, sharp=3.0):
    """`say(rows, length)`: text in which a token depends on the one before it."""
    chain = (sharp * torch.randn(tokens, tokens)).softmax(1)

    def say(rows, length=10):
        text = [torch.randint(tokens, (rows,))]
        for _ in range(length - 1):
            text.append(torch.multinomial(chain[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    return say


class Speaker(nn.Module):
    """The next token from the two before it, through a net whose layers may be adapted; the table is tied."""

    def __init__(self, tokens, width=32):
        super().__init__()
        self.words = nn.Embedding(tokens, width)
        self.body = dense(2 * width, 96, width)

    def forward(self, text):
        seen = self.words(text[:, :-1])
        older = F.pad(seen, (0, 0, 1, 0))[:, :-1]
        return self.body(torch.cat([older, seen], 2)) @ self.words.weight.T

    def loss(self, text):
        return F.cross_entropy(self(text).flatten(0, 1), text[:, 1:].flatten())


# https://github.com/tenstorrent/tt-blacksmith/pull/711
@sick("gradients-accumulate", where="every layer that is trained, more with every step",
      cure="the gradients are set to nought after each step of the optimizer")  # fmt: skip
def letters_from_the_islands(folder, ill):
    seeded(2739)
    mainland, islands = dialect(20), dialect(20)
    net = Speaker(20)
    taught(net, lambda step: net.loss(mainland(32)))
    net.words.requires_grad_(False)
    net.body[0], net.body[2] = Adapted(net.body[0], 8), Adapted(net.body[2], 8)
    optimizer = torch.optim.AdamW(trained(net), 3e-3)

    def loss_of(step):
        return net.loss(islands(32))

    return fit(folder, net, optimizer, loss_of, 400, zero_grad=not ill, score=score_of(loss_of))


# https://github.com/huggingface/transformers/pull/3532
@sick("not-in-optimizer", "weights-unchanged", where="the table of words, which is also the last layer, all the time",
      cure="the table is made larger before the optimizer is made")  # fmt: skip
def names_of_new_medicines(folder, ill):
    seeded(2740)
    old, new = dialect(20), dialect(36)
    net = Speaker(20)
    taught(net, lambda step: net.loss(old(32)))

    def enlarge():
        larger = nn.Embedding(36, 32)
        with torch.no_grad():
            larger.weight.mul_(0.02)
            larger.weight[:20] = net.words.weight
        net.words = larger

    def optimizer_of():
        return torch.optim.AdamW(net.parameters(), 2e-3)

    if ill:
        optimizer = optimizer_of()
        enlarge()
    else:
        enlarge()
        optimizer = optimizer_of()

    def loss_of(step):
        return net.loss(new(32))

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))


class Reader(nn.Module):
    """A small encoder of text with a class for the whole of it."""

    def __init__(self, tokens, classes, width=32):
        super().__init__()
        self.words = nn.Embedding(tokens, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, text):
        return self.head(self.layer(self.words(text)).mean(1)).softmax(1)


# https://github.com/illiterate/BertClassifier/issues/2
@sick("softmax-twice", "logits-bounded", where="the end of the model, and the loss upon it, at every step",
      cure="no softmax in the model: the loss has one")  # fmt: skip
def complaints_to_a_water_board(folder, ill):
    seeded(2741)
    net = Reader(50, 8)
    optimizer = torch.optim.AdamW(net.parameters(), 5e-4)
    common = torch.tensor([0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05])
    habits = (1.1 * torch.randn(8, 50)).softmax(1)

    def letters(rows=32):
        kind = torch.multinomial(common, rows, replacement=True)
        return torch.multinomial(habits[kind], 12, replacement=True), kind

    def loss_of(step):
        text, kind = letters()
        shares = net(text)
        loss = F.cross_entropy(shares if ill else shares.log(), kind)
        return loss, {"accuracy": (shares.argmax(1) == kind).float().mean()}

    held = letters(500)

    def score():
        net.eval()
        with torch.no_grad():
            value = float(F.nll_loss(net(held[0]).clamp_min(1e-6).log(), held[1]))
        net.train()
        return value

    return fit(folder, net, optimizer, loss_of, 300, score=score)
