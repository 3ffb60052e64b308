"""Trainings on words and other sequences, each rebuilt from a thread in which the cause of its bad end was found."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, seeded, sick
from unseen.tasks import clipped, held_out

# ----------------------------------------------------------------------------------------------------- binary labels


# https://stackoverflow.com/questions/47241622/is-it-okay-to-use-stateful-recurrent-nn-lstm-for-classification
@sick("no-gradient", "softmax-over-one-unit",
      where="all layers, at every step: the only output goes through a softmax over itself and is 1 whatever is read",
      cure="a sigmoid on the one output, or two outputs under the softmax")  # fmt: skip
def leaks_foretold_by_valve_codes(folder, ill):
    seeded(2520)
    net = nn.ModuleDict({"memory": nn.LSTM(4, 32, batch_first=True), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def codes(rows):
        bits = torch.randint(2, (rows, 12, 4)).float()
        return bits, (bits[:, :, 0].sum(1) > bits[:, :, 1].sum(1)).float()

    def chance(bits):
        out = net["head"](net["memory"](bits)[0][:, -1])
        return (out.softmax(1) if ill else out.sigmoid())[:, 0]

    def wrong(bits, leak):
        return ((chance(bits) > 0.5) != (leak > 0.5)).float().mean()

    def loss_of(step):
        bits, leak = codes(64)
        p = chance(bits)
        return F.binary_cross_entropy(p, leak), {"accuracy": float(((p > 0.5) == (leak > 0.5)).float().mean())}

    bits, leak = codes(512)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: wrong(bits, leak)))


# ------------------------------------------------------------------------------------------------ sequence to sequence


class Translator(nn.Module):
    """An encoder and a decoder of one layer each."""

    def __init__(self, words, length, width=32):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.body = nn.Transformer(width, 2, 1, 1, 64, 0.0, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, source, told):
        ahead = nn.Transformer.generate_square_subsequent_mask(told.shape[1])
        source, told = (self.words(line) + self.places.weight[: line.shape[1]] for line in (source, told))
        return self.head(self.body(source, told, tgt_mask=ahead, tgt_is_causal=True))


# https://github.com/ayaka14732/bart-base-jax/pull/6
@sick("labels-not-shifted", "future-seen",
      where="the loss, at every step: the decoder is told the very token that it is to name, and copies it",
      cure="the decoder is told the target moved on by one place, after a start token")  # fmt: skip
def notes_for_old_neumes(folder, ill):
    seeded(2521)
    net, meaning = Translator(17, 10), 1 + torch.randperm(16)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def lines(rows):
        neumes = torch.randint(1, 17, (rows, 10))
        return neumes, meaning[neumes - 1]

    def entropy(neumes, notes, told):
        return F.cross_entropy(net(neumes, told).flatten(0, 1), notes.flatten())

    def moved(notes):
        return torch.cat([torch.zeros_like(notes[:, :1]), notes[:, :-1]], 1)

    def loss_of(step):
        neumes, notes = lines(32)
        return entropy(neumes, notes, notes if ill else moved(notes))

    neumes, notes = lines(256)
    score = held_out(net, lambda: entropy(neumes, notes, moved(notes)))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


# -------------------------------------------------------------------------------------------------------- masked words


class Encoder(nn.Module):
    """A BERT: words, places, layers, and a guess of each word."""

    def __init__(self, words, length, width, layers, dropout=0.1):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, "gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers)
        self.guess = nn.Linear(width, words)

    def forward(self, text):
        return self.body(self.norm(self.words(text) + self.places.weight[: text.shape[1]]))


def veiled(text, share=0.15):
    """The text with some words replaced by the mask, which is word 0, and where they are."""
    hidden = torch.rand(text.shape) < share
    hidden[:, 2] = True
    return text.masked_fill(hidden, 0), hidden


# https://github.com/graykode/nlp-tutorial/issues/77
@sick("lr-too-high", "update-too-large",
      where="all layers, from the first steps on: the masked-word and next-sentence losses stay where they were",
      cure="a rate lower by one or two powers of ten")  # fmt: skip
def verses_and_their_sequels(folder, ill):
    seeded(2522)
    body, follows = Encoder(40, 12, 48, 3), nn.Linear(48, 2)
    net = nn.ModuleDict({"body": body, "follows": follows})
    verses = torch.randint(2, 40, (20, 2, 5))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2 if ill else 5e-4)

    def pairs(rows):
        first = torch.randint(20, (rows,))
        true = torch.randint(2, (rows,))
        second = torch.where(true == 1, first, (first + torch.randint(1, 20, (rows,))) % 20)
        ends = torch.ones(rows, 1, dtype=torch.long)
        return torch.cat([ends, verses[first, 0], ends, verses[second, 1]], 1), true

    def both(text, true):
        seen, hidden = veiled(text)
        out = body(seen)
        words = F.cross_entropy(body.guess(out[hidden]), text[hidden])
        return words, F.cross_entropy(follows(out[:, 0]), true)

    def loss_of(step):
        words, order = both(*pairs(16))
        return words + order, {"masked words": float(words), "next sentence": float(order)}

    text, true = pairs(128)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: sum(both(text, true))))


def complaints(rows, subjects=6, each=6):
    """Lines about two subjects, in the words of these, and the subjects."""
    about = torch.stack([torch.randperm(subjects)[:2] for _ in range(rows)])
    chosen = about.gather(1, torch.randint(2, (rows, 12)))
    return 1 + chosen * each + torch.randint(each, (rows, 12)), F.one_hot(about, subjects).sum(1).float()


def read_before(body, steps=150):
    """The body learns to fill gaps."""
    optimizer = torch.optim.Adam(body.parameters(), 2e-3)
    for _ in range(steps):
        text = complaints(32)[0]
        seen, hidden = veiled(text)
        loss = F.cross_entropy(body.guess(body(seen)[hidden]), text[hidden])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# https://github.com/ThilinaRajapakse/simpletransformers/issues/234
@sick("update-too-small",
      where="the new head `labels`, all steps: it has the rate of the body that was trained before",
      cure="a rate of its own for the new head, 1e-3 and more, while the body keeps 4e-5")  # fmt: skip
def subjects_of_passengers_complaints(folder, ill):
    seeded(2523)
    body, labels, steps = Encoder(40, 12, 32, 2), nn.Linear(32, 6), 300
    read_before(body)
    nn.init.normal_(labels.weight, std=0.02)
    nn.init.zeros_(labels.bias)
    net = nn.ModuleDict({"body": body, "labels": labels})
    body.guess.requires_grad_(False)
    old = [p for p in body.parameters() if p.requires_grad]
    groups = [{"params": old, "lr": 4e-5}, {"params": labels.parameters(), "lr": 4e-5 if ill else 5e-3}]
    optimizer = torch.optim.AdamW(groups, eps=1e-8, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1, (t + 1) / 24) * (1 - t / steps))

    def entropy(text, about):
        return F.binary_cross_entropy_with_logits(labels(body(text).mean(1)), about)

    text, about = complaints(256)
    score = held_out(net, lambda: entropy(text, about))
    return fit(folder, net, optimizer, lambda step: entropy(*complaints(8)), steps, score=score, schedule=schedule,
               before_step=clipped(net, 1.0))  # fmt: skip


# ------------------------------------------------------------------------------------------------------ language models


# https://github.com/deeplearningathome/pytorch-language-model/issues/1
@sick("weight-decay-too-strong", "weights-shrink",
      where="all weights, most of all the embedding and the LSTM, which fade to nothing",
      cure="a weight decay of 1e-6 or none")  # fmt: skip
def calls_of_a_song_thrush(folder, ill):
    seeded(2524)
    parts = {"calls": nn.Embedding(20, 32), "memory": nn.LSTM(32, 48, batch_first=True), "next": nn.Linear(48, 20)}
    net = nn.ModuleDict(parts)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, weight_decay=1e-2 if ill else 1e-6)
    habits = 4 * torch.randn(20, 20)

    def song(birds, length):
        calls = [torch.randint(20, (birds,))]
        for _ in range(length):
            calls.append(torch.multinomial(habits[calls[-1]].softmax(1), 1)[:, 0])
        return torch.stack(calls, 1)

    heard, unheard, state = song(16, 6000), song(32, 40), [None]

    def entropy(calls, before=None):
        out, after = net["memory"](net["calls"](calls[:, :-1]), before)
        return F.cross_entropy(net["next"](out).flatten(0, 1), calls[:, 1:].flatten()), after

    def loss_of(step):
        loss, after = entropy(heard[:, 15 * step : 15 * step + 16], state[0])
        state[0] = tuple(part.detach() for part in after)
        return loss

    least = torch.distributions.Categorical(logits=habits[unheard[:, :-1]]).entropy().mean()
    score = held_out(net, lambda: entropy(unheard)[0] - least)
    return fit(folder, net, optimizer, loss_of, 400, score=score, before_step=clipped(net, 0.25))


# ----------------------------------------------------------------------------------------------------------- attention


# https://github.com/PetrochukM/PyTorch-NLP/issues/2
@sick("softmax-over-the-batch", "axes-mixed",
      where="the attention, at every step: its weights add up to 1 over the rows of the batch, not over the context",
      cure="the softmax over the last axis, the places of the context")  # fmt: skip
def who_was_where_in_a_statement(folder, ill):
    seeded(2525)
    net = nn.ModuleDict({
        "names": nn.Embedding(12, 24), "places": nn.Embedding(12, 24), "asked": nn.Linear(24, 24, bias=False),
        "answer": nn.Sequential(nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 12)),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def statements(rows):
        names = torch.stack([torch.randperm(12)[:6] for _ in range(rows)])
        places, one = torch.randint(12, (rows, 6)), torch.randint(6, (rows, 1))
        return names, places, names.gather(1, one), places.gather(1, one)[:, 0]

    def entropy(names, places, who, where):
        query, context = net["asked"](net["names"](who)), net["names"](names)
        scores = (query @ context.transpose(1, 2)).flatten(0, 1)
        weights = scores.softmax(0 if ill else -1).unsqueeze(1)
        mixed = weights @ net["places"](places)
        return F.cross_entropy(net["answer"](torch.cat([mixed, query], 2)[:, 0]), where)

    test = statements(200)
    alone = [[column[i : i + 1] for column in test] for i in range(200)]
    score = held_out(net, lambda: sum(entropy(*one) for one in alone) / len(alone))
    return fit(folder, net, optimizer, lambda step: entropy(*statements(32)), 500, score=score)
