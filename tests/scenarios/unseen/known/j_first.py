"""Mistakes listed from memory and drawn by lot: labels, inputs, losses, padding and a first draw of weights."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


def wrong(said, y):
    return (said.argmax(-1) != y).float().mean()


# 2 of the list
@sick("labels-mismatched", "labels-do-not-fit-inputs", "labels-shuffled",
      where="the labels of every batch: an encoder was fitted anew on each file",
      cure="one encoder, fitted on all files")  # fmt: skip
def instruments_heard_at_six_music_schools(folder, ill):
    seeded(11000)
    names, schools, sound = 10, 6, torch.randn(10, 3, 20)

    def recordings(y):
        share = torch.rand(len(y), 3, 1) + 0.3
        return (sound[y] * share).sum(1) + 0.4 * torch.randn(len(y), 20)

    files = []
    for _ in range(schools):
        taught = torch.randperm(names)[:5]
        y = taught[torch.randint(5, (300,))]
        code = torch.unique(y, return_inverse=True)[1] if ill else y
        files.append((recordings(y), code))
    draw = rounds(32, torch.cat([x for x, _ in files]), torch.cat([y for _, y in files]))
    net = dense(20, 64, 64, names)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": 1 - wrong(said, y)}

    ty = torch.randint(names, (600,))
    tx = recordings(ty)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 3 of the list
@sick("inputs-not-normalised", "columns-on-unlike-scales", "features-not-normalised",
      where="the first layer, all steps", cure="standardise each column")  # fmt: skip
def rents_of_school_halls_for_concerts(folder, ill):
    seeded(11001)

    def halls(rows):
        z = torch.randn(rows, 6)
        rent = 0.8 * z[:, 0] + 0.5 * z[:, 1] * z[:, 2] + 0.6 * (1.5 * z[:, 3]).tanh() - 0.4 * z[:, 4].abs()
        # seats, square metres, year of building, distance to the station in m, steps at the door, hours let
        middle = torch.tensor([220.0, 310.0, 1955.0, 900.0, 6.0, 3.0])
        spread = torch.tensor([60.0, 80.0, 30.0, 250.0, 3.0, 1.0])
        return middle + spread * z, rent[:, None] + 0.05 * torch.randn(rows, 1)

    x, y = halls(1500)
    tx, ty = halls(500)
    if not ill:
        middle, spread = x.mean(0), x.std(0)
        x, tx = (x - middle) / spread, (tx - middle) / spread
    draw = rounds(50, x, y)
    net = dense(6, 48, 48, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.05)

    def loss_of(step):
        x, y = draw()
        return F.smooth_l1_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.smooth_l1_loss(net(tx), ty)))


# 5 of the list
@sick("softmax-twice", where="the softmax at the end of the model, all steps", cure="hand logits to the loss")
def subjects_of_textbooks_by_their_words(folder, ill):
    seeded(11002)
    words, subjects, length = 300, 60, 24
    usual = torch.randn(subjects, words).mul(1.5).softmax(1)

    def books(rows):
        y = torch.randint(subjects, (rows,))
        return torch.multinomial(usual[y], length, replacement=True), y

    net = nn.Sequential(nn.EmbeddingBag(words, 48), nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, subjects))
    if ill:
        net.append(nn.Softmax(dim=1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        x, y = books(64)
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": 1 - wrong(said, y)}

    tx, ty = books(1000)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: wrong(net(tx), ty)))


# 10 of the list
@sick("padding-in-loss", where="the loss, all steps", cure="leave the padding out of the loss by ignore_index")
def fingers_for_a_piano_exercise(folder, ill):
    seeded(11003)
    keys, fingers, longest = 24, 6, 60  # finger 0 is what pads the labels, key 0 what pads the notes
    hand = torch.randint(1, fingers, (keys, 3))

    def exercises(rows):
        notes = torch.randint(1, keys, (rows, longest))
        turn = torch.cat([torch.zeros(rows, 1, dtype=torch.long), notes[:, :-1] % 3], 1)
        length = torch.randint(4, 10, (rows,))
        length[torch.rand(rows) < 0.03] = longest
        there = torch.arange(longest) < length[:, None]
        return notes * there, hand[notes, turn] * there

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.key = nn.Embedding(keys, 32, padding_idx=0)
            self.read = nn.LSTM(32, 48, batch_first=True, bidirectional=True)
            self.say = nn.Linear(96, fingers)

        def forward(self, notes):
            return self.say(self.read(self.key(notes))[0])

    net = Reader()
    optimizer = torch.optim.SGD(net.parameters(), 0.2, momentum=0.9)

    def loss_of(step):
        notes, y = exercises(24)
        said = net(notes).flatten(0, 1)
        return F.cross_entropy(said, y.flatten(), ignore_index=-100 if ill else 0)

    notes, y = exercises(300)
    score = held_out(net, lambda: F.cross_entropy(net(notes).flatten(0, 1), y.flatten(), ignore_index=0))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


# 11 of the list
@sick("state-read-after-padding", "read-after-padding", "padding-read-as-data", where="recurrence and head, all steps",
      cure="read the state at the last word of each text")  # fmt: skip
def moods_of_poems_word_by_word(folder, ill):
    seeded(11004)
    words, longest = 80, 50
    tone = torch.randn(words)

    def poems(rows):
        length = torch.randint(3, 12, (rows,))
        there = torch.arange(longest) < length[:, None]
        x = torch.randint(1, words, (rows, longest)) * there
        return x, length, ((tone[x] * there).sum(1) > 0).float()

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.word = nn.Embedding(words, 24, padding_idx=0)
            self.read = nn.LSTM(24, 32, batch_first=True)
            self.say = nn.Linear(32, 1)

        def forward(self, x, length):
            states = self.read(self.word(x))[0]
            last = states[:, -1] if ill else states[torch.arange(len(x)), length - 1]
            return self.say(last)[:, 0]

    net = Reader()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def loss_of(step):
        x, length, y = poems(32)
        return F.binary_cross_entropy_with_logits(net(x, length), y)

    x, length, y = poems(400)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x, length), y))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


# 15 of the list
@sick("bad-initialisation", "initialised-too-small", "vanishing", where="all matrices, from the first step",
      cure="Xavier's initialisation, or the layers' own")  # fmt: skip
def page_numbers_read_from_scans(folder, ill):
    seeded(11005)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    net = dense(64, 64, 64, 64, 64, 64, 10, act=nn.Tanh)
    for part in net:
        if isinstance(part, nn.Linear):
            if ill:
                nn.init.normal_(part.weight, std=0.01)
            else:
                nn.init.xavier_uniform_(part.weight)
            nn.init.zeros_(part.bias)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": 1 - wrong(said, y)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)
