"""Sick trainings of rivers and ferries, drawn by lot from a list of mistakes: policies, text, decay, memory, sums."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits, make_classification
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds, tend


@sick("entropy-bonus-too-strong", "entropy-too-strong", "logits-bounded",
      where="the loss, all steps: the bonus outweighs the advantages",
      cure="a coefficient of 0.01")  # fmt: skip
def a_pilot_boat_in_the_deep_channel(folder, ill):
    seeded(11700)
    net = dense(2, 48, 48, 3, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    bonus = 1.0 if ill else 0.01

    def trips(rows):
        place, drift = 2 * torch.rand(rows) - 1, 0.4 * torch.rand(rows) - 0.2
        logs, rewards, entropies = [], [], []
        for _ in range(10):
            choice = torch.distributions.Categorical(logits=net(torch.stack([place, 5 * drift], 1)))
            turn = choice.sample()
            place = (place + drift + 0.3 * (turn - 1)).clamp(-2, 2)
            logs.append(choice.log_prob(turn))
            entropies.append(choice.entropy())
            rewards.append(1 - place.abs())
        return torch.stack(logs), torch.stack(rewards), torch.stack(entropies).mean()

    def one(step):
        logs, rewards, entropy = trips(32)
        returns = rewards.flip(0).cumsum(0).flip(0)
        advantage = returns - returns.mean(1, keepdim=True)
        advantage = advantage / (advantage.std() + 1e-8)
        loss = -(logs * advantage).mean() - bonus * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss, "return": rewards.sum(0).mean(), "entropy": entropy}

    return tend(folder, net, optimizer, one, 150, held_out(net, lambda: -trips(512)[1].sum(0).mean()))


class Verse(nn.Module):
    """A small causal transformer."""

    def __init__(self, words, length, width=32):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words))

    def forward(self, text):
        length = text.shape[1]
        hidden = self.word(text) + self.place(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.body(hidden, mask, is_causal=True))


@sick("padding-in-loss", where="the loss, all steps: most of its targets are padding",
      cure="a mean over the targets that are words")  # fmt: skip
def calls_of_the_bargemen_at_dusk(folder, ill):
    seeded(11701)
    words, length = 10, 20
    net = Verse(words, length)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    follows = torch.randperm(words - 1) + 1

    def calls(rows):
        text = [torch.randint(1, words, (rows,))]
        for _ in range(length):
            stray = torch.rand(rows) < 0.05
            text.append(torch.where(stray, torch.randint(1, words, (rows,)), follows[text[-1] - 1]))
        ends = torch.randint(2, 6, (rows, 1))
        return torch.stack(text, 1) * (torch.arange(length + 1) < ends)

    def loss_on(text, masked=True):
        asked = text[:, 1:]
        losses = F.cross_entropy(net(text[:, :-1]).transpose(1, 2), asked, reduction="none")
        if not masked:
            return losses.mean()
        real = (asked != 0).float()
        return (losses * real).sum() / real.sum()

    text = calls(2500)
    draw = rounds(32, text[:2000])
    score = held_out(net, lambda: loss_on(text[2000:]))
    clip = clipped(net, 1.0)
    return fit(folder, net, optimizer, lambda step: loss_on(*draw(), not ill), 220, score=score, before_step=clip)


@sick("weight-decay-too-strong", "weights-shrink", where="all layers, all steps",
      cure="a weight decay of 1e-4")  # fmt: skip
def numbers_on_the_hulls_of_lighters(folder, ill):
    seeded(11702)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32)[order], torch.tensor(digits)[order]
    net = dense(64, 128, 64, 10)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=0.1 if ill else 1e-4)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


class Gauge(nn.Module):
    """Reads a river step by step and says at each what came by `delay` steps ago."""

    def __init__(self, kinds, width, cut):
        super().__init__()
        self.cell, self.head = nn.GRUCell(kinds, width), nn.Linear(width, kinds)
        self.cut = cut

    def forward(self, seen):
        hidden = torch.zeros(len(seen), self.cell.hidden_size)
        out = []
        for now in seen.unbind(1):
            hidden = self.cell(now, hidden.detach() if self.cut else hidden)
            out.append(self.head(hidden))
        return torch.stack(out, 1)


@sick("state-detached", "no-credit-through-time", where="the recurrent cell, all steps",
      cure="the hidden state is detached only between sequences")  # fmt: skip
def timber_passing_the_upper_sluice(folder, ill):
    seeded(11703)
    kinds, delay = 5, 5
    net = Gauge(kinds, 48, ill)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def floats(rows):
        kind = torch.randint(kinds, (rows, 16))
        return F.one_hot(kind, kinds).float(), kind

    def loss_on(seen, kind):
        return F.cross_entropy(net(seen)[:, delay:].flatten(0, 1), kind[:, :-delay].flatten())

    test = floats(512)
    score = held_out(net, lambda: loss_on(*test))
    clip = clipped(net, 1.0)
    return fit(folder, net, optimizer, lambda step: loss_on(*floats(48)), 300, score=score, before_step=clip)


@sick("loss-summed-not-averaged", "lr-too-high", "update-too-large",
      where="the loss, all steps: the sum over 64 rows at a rate for their mean", cure="the mean")  # fmt: skip
def freight_told_by_its_bill_of_lading(folder, ill):
    seeded(11704)
    table, classes = make_classification(
        2000, 20, n_informative=8, n_redundant=2, n_classes=4, class_sep=1.5, flip_y=0.01, random_state=17
    )
    x, y = torch.tensor(table, dtype=torch.float32), torch.tensor(classes)
    x = (x - x[:1500].mean(0)) / x[:1500].std(0)
    net = dense(20, 64, 64, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    entropy = nn.CrossEntropyLoss(reduction="sum" if ill else "mean")
    draw = rounds(64, x[:1500], y[:1500])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1500:]), y[1500:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@sick("bad-initialisation", where="all layers, before the first step: weights of a deviation of 1",
      cure="Kaiming's initialisation")  # fmt: skip
def letters_chiselled_in_a_keystone(folder, ill):
    seeded(11705)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(digits)[order]
    net = dense(64, 128, 128, 64, 10)
    for layer in net:
        if isinstance(layer, nn.Linear):
            if ill:
                nn.init.normal_(layer.weight)
            else:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(32, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)
