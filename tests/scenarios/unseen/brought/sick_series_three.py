"""Padding, ends, evaluations and numbers, after public threads: clerks, songs, gossip, savings."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, score_of, seeded, sick


class Scribe(nn.Module):
    """A recurrent writer: the logits of the next token at each place."""

    def __init__(self, tokens, width, table=16):
        super().__init__()
        self.words, self.memory = nn.Embedding(tokens, table), nn.GRU(table, width, batch_first=True)
        self.head = nn.Linear(width, tokens)

    def forward(self, text):
        return self.head(self.memory(self.words(text))[0])


# https://github.com/peremartra/optipfair/issues/34
@sick("padding-in-loss", where="the targets of both terms of the loss, at every step: most places are padding",
      cure="places of padding are left out of both terms")  # fmt: skip
def shorthand_of_a_court_clerk(folder, ill):
    seeded(2742)
    teacher, net = Scribe(24, 64), Scribe(24, 16)
    with torch.no_grad():
        teacher.head.weight.mul_(25)
        teacher.memory.weight_hh_l0.mul_(2.5)
        teacher.memory.weight_ih_l0.mul_(2)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)

    def pleas(rows=16, longest=32):
        text, length = torch.randint(1, 24, (rows, longest)), torch.randint(3, 9, (rows, 1))
        real = torch.arange(longest) < length
        return text * real, real

    def distance(text):
        with torch.no_grad():
            wanted = teacher(text).softmax(2)
        found = net(text).log_softmax(2)
        return (wanted * (wanted.clamp_min(1e-9).log() - found)).sum(2), found

    def loss_of(step):
        text, real = pleas()
        apart, found = distance(text)
        counted = torch.ones_like(real) if ill else real
        task = F.nll_loss(found[:, :-1][counted[:, 1:]], text[:, 1:][counted[:, 1:]])
        soft = apart[counted].mean()
        return 0.1 * task + 0.9 * soft, {"task": task, "distill": soft}

    held = pleas(200)

    def score():
        with torch.no_grad():
            return float(distance(held[0])[0][held[1]].mean())

    return fit(folder, net, optimizer, loss_of, 250, score=score)


# https://github.com/NVIDIA-NeMo/Automodel/issues/1336
@sick("labels-ignored", where="the targets of the loss: the end of a phrase is never asked for",
      cure="the first end of each phrase counts, only the padding behind it is left out")  # fmt: skip
def songs_of_a_marsh_warbler(folder, ill):
    seeded(2746)
    net, end = Scribe(13, 40), 12
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def songs(rows=48, longest=10):
        first = torch.randint(12, (rows, 1))
        text = (first + 5 * torch.arange(longest)) % 12
        length = 3 + first % 5
        text[torch.arange(longest) >= length] = end
        return text, torch.arange(longest) <= length

    def entropy(text, counted):
        wanted = torch.where(counted[:, 1:], text[:, 1:], -100)
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), wanted.flatten(), ignore_index=-100)

    def loss_of(step):
        text, counted = songs()
        return entropy(text, text != end if ill else counted)

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(lambda step: entropy(*songs())))


class Listener(nn.Module):
    def __init__(self, tokens, kinds, width=64):
        super().__init__()
        self.words, self.memory = nn.Embedding(tokens, 32), nn.GRU(32, width, batch_first=True)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(width, kinds)

    def forward(self, text):
        return self.head(self.drop(self.memory(self.drop(self.words(text)))[1][0]))


# https://github.com/shubhamagarwal92/mmd/issues/14
@sick("left-in-eval", where="all dropout, from the first evaluation on",
      cure="the model goes back to training mode after each evaluation")  # fmt: skip
def gossip_at_a_garden_fence(folder, ill):
    seeded(2744)
    net, habits = Listener(60, 4), (0.9 * torch.randn(4, 60)).softmax(1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def talks(rows):
        mood = torch.randint(4, (rows,))
        return torch.multinomial(habits[mood], 10, replacement=True), mood

    kept, held = talks(200), talks(400)

    def loss_of(step):
        rows = torch.randint(200, (32,))
        return F.cross_entropy(net(kept[0][rows]), kept[1][rows])

    def evaluated():
        net.eval()
        with torch.no_grad():
            return float(F.cross_entropy(net(held[0]), held[1]))

    def after_step(step):
        if step % 50 == 49:
            evaluated()
            net.train(not ill)

    def score():
        value = evaluated()
        net.train()
        return value

    return fit(folder, net, optimizer, loss_of, 400, after_step=after_step, score=score)


class Adviser(nn.Module):
    """Clients, plans and what is known of both in numbers: products of pairs and a deep part (DeepFM)."""

    def __init__(self, clients, plans, numbers, width=8):
        super().__init__()
        self.clients, self.plans = nn.Embedding(clients, width), nn.Embedding(plans, width)
        self.numbers = nn.Parameter(0.1 * torch.randn(numbers, width))
        self.plain = nn.Linear(numbers, 1)
        self.deep = nn.Sequential(nn.Linear((numbers + 2) * width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, client, plan, known):
        fields = [self.clients(client)[:, None], self.plans(plan)[:, None], known[:, :, None] * self.numbers]
        fields = torch.cat(fields, 1)
        pairs = (fields.sum(1).square() - fields.square().sum(1)).sum(1, keepdim=True) / 2
        return (self.plain(known) + pairs + self.deep(fields.flatten(1)))[:, 0]


# https://github.com/RUCAIBox/RecBole/issues/1109
@sick("inputs-not-normalised",
      where="what takes in the numbers: the pairs, the plain and the deep part, from the start",
      cure="each column of numbers is scaled to the range from nought to one")  # fmt: skip
def savings_plans_on_offer(folder, ill):
    seeded(2745)
    net = Adviser(60, 30, 5)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    taste, wanted = torch.randn(60, 30), 3 * torch.randn(5)
    most = torch.tensor([1.0, 100, 576, 50000, 5000000])

    def offers(rows):
        client, plan, known = torch.randint(60, (rows,)), torch.randint(30, (rows,)), torch.rand(rows, 5)
        logit = 0.5 * taste[client, plan] + 2 * (known - 0.5) @ wanted - 2
        return client, plan, known * most if ill else known, (torch.rand(rows) < logit.sigmoid()).float()

    def loss_of(step):
        client, plan, known, taken = offers(128)
        return F.binary_cross_entropy_with_logits(net(client, plan, known), taken)

    held = offers(1500)

    def score():
        with torch.no_grad():
            found = net(*held[:3])
        yes, no = found[held[3] > 0], found[held[3] == 0]
        return 1 - float((yes[:, None] > no).float().mean())

    return fit(folder, net, optimizer, loss_of, 600, score=score)
