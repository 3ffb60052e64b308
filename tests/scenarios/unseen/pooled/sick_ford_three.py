"""Trainings after public threads: a new word, buoys, a saga, records of a jazz club."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, seeded, sick
from unseen.tasks import held_out, rounds


class Guests(nn.Module):
    """Sums up a sentence of words and says what it is about."""

    def __init__(self, words=40, width=24, topics=6):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.body = nn.Sequential(nn.Linear(width, 48), nn.ReLU(), nn.Linear(48, topics))

    def forward(self, x):
        return self.body(self.words(x).mean(1) * 3)


# https://github.com/huggingface/diffusers/issues/1009
@sick(
    "weights-shrink",
    "weight-decay-too-strong",
    where="the rows of the table (words) that are to stay as they are",
    cure="no weight decay on a table of which only the new row is to be trained",
)
def an_inventors_word_in_a_patent(folder, ill):
    seeded(9239)
    net = Guests()
    meaning = torch.randn(40, 6)

    def draw(rows=32, words=39):
        x = torch.randint(words, (rows, 5))
        return x, meaning[x].sum(1).argmax(1)

    early = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(700):
        x, y = draw(64)
        early.zero_grad()
        F.cross_entropy(net(x), y).backward()
        early.step()

    net.body.requires_grad_(False)
    with torch.no_grad():
        net.words.weight[39] = net.words.weight[7]
    optimizer = torch.optim.AdamW([net.words.weight], lr=1e-2, weight_decay=0.5 if ill else 0.0)

    def with_the_word(rows):
        x = draw(rows)[0]
        x[:, :2] = 39
        return x, meaning[x].sum(1).argmax(1)

    def loss_of(step):
        x, y = with_the_word(16)
        return F.cross_entropy(net(x), y)

    def only_the_new_row(step):
        net.words.weight.grad[:39] = 0

    test = [torch.cat(both) for both in zip(draw(600), with_the_word(300), strict=True)]
    score = held_out(net, lambda: F.cross_entropy(net(test[0]), test[1]))
    return fit(folder, net, optimizer, loss_of, 500, score=score, before_step=only_the_new_row)


def conv(into, out, norm):
    return nn.Sequential(nn.Conv2d(into, out, 3, padding=1), *([nn.BatchNorm2d(out)] if norm else []), nn.ReLU())


class Finder(nn.Module):
    """A backbone, and heads for where things are and how large they are."""

    def __init__(self, norm, width=24):
        super().__init__()
        self.stem = nn.Sequential(conv(1, width, True), conv(width, width, True))
        self.heads = nn.ModuleDict(
            {
                name: nn.Sequential(*(conv(width, width, norm) for _ in range(4)), nn.Conv2d(width, out, 1))
                for name, out in {"heat": 1, "size": 2}.items()
            }
        )
        for part in self.heads.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")

    def forward(self, x):
        seen = self.stem(x)
        return {name: head(seen) for name, head in self.heads.items()}


def buoys(rows, size=12):
    grid = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).float()
    centre = torch.randint(3, size - 3, (rows, 2, 1, 1)).float()
    half = 1 + 2 * torch.rand(rows, 2, 1, 1)
    inside = ((grid - centre).abs() <= half).all(1)
    image = inside[:, None] + 0.3 * torch.randn(rows, 1, size, size)
    heat = torch.exp(-(grid - centre).square().sum(1, keepdim=True) / 2)
    return image, heat, half.expand(-1, -1, size, size) * 2, (heat > 0.99).float()


# https://github.com/yijingru/BBAVectors-Oriented-Object-Detection/issues/15
@sick(
    "exploding",
    "lr-too-high",
    where="the convolutions of the heads, from the first steps on",
    cure="batch norms after the convolutions of the heads, as in the stem, or smaller steps",
)
def buoys_boxed_in_a_harbour(folder, ill):
    seeded(9240)
    net = Finder(norm=not ill)
    draw = rounds(24, *buoys(360))
    test = buoys(150)

    def errors(image, heat, extent, at):
        found = net(image)
        heat_loss = F.mse_loss(found["heat"], heat)
        size_loss = ((found["size"] - extent).square() * at).sum() / at.sum() / 2
        return heat_loss, size_loss

    def loss_of(step):
        heat_loss, size_loss = errors(*draw())
        return heat_loss + size_loss, {"heat_loss": heat_loss, "size_loss": size_loss}

    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    return fit(folder, net, optimizer, loss_of, 150, score=held_out(net, lambda: sum(errors(*test))))


class Pages:
    """Pieces of a running text of verses; the end of a verse is not asked for."""

    def __init__(self, text, length, end, cached):
        self.text, self.length, self.end = text, length, end
        self.mask = torch.ones(length)
        self.cached = cached

    def __getitem__(self, at):
        piece = self.text[at : at + self.length + 1]
        tokens, labels = piece[:-1], piece[1:]
        mask = self.mask if self.cached else self.mask.clone()
        mask[labels == self.end] = 0.0
        return tokens, labels, mask


class Skald(nn.Module):
    def __init__(self, letters=13, width=48):
        super().__init__()
        self.embed = nn.Embedding(letters, 16)
        self.memory = nn.GRU(16, width, batch_first=True)
        self.head = nn.Linear(width, letters)

    def forward(self, x):
        return self.head(self.memory(self.embed(x))[0])


# https://github.com/NVIDIA/Megatron-LM/issues/1269
@sick(
    "labels-ignored",
    "loss-masked-away",
    where="the mask of the loss, which holds fewer ones with each piece; all gradients are zero soon",
    cure="copy the cached mask before zeros are written into it",
)
def a_saga_letter_by_letter(folder, ill):
    seeded(9241)
    letters, end = 12, 12
    follow = torch.distributions.Dirichlet(torch.full((letters,), 0.15)).sample((letters,))
    text = [0]
    while len(text) < 6000:
        text.append(end if torch.rand(()) < 0.03 else int(torch.multinomial(follow[text[-1] % letters], 1)))
    text = torch.tensor(text)
    pages, checked = Pages(text[:4500], 24, end, cached=ill), Pages(text[4500:], 24, end, cached=False)
    net = Skald()

    def batch(book, rows):
        picked = torch.randint(len(book.text) - 25, (rows,))
        return [torch.stack(part) for part in zip(*(book[int(at)] for at in picked), strict=True)]

    def error(tokens, labels, mask):
        losses = F.cross_entropy(net(tokens).flatten(0, 1), labels.flatten(), reduction="none")
        return (losses * mask.flatten()).sum() / mask.sum().clamp(min=1.0)

    test = batch(checked, 200)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    score = held_out(net, lambda: error(*test))
    return fit(folder, net, optimizer, lambda step: error(*batch(pages, 12)), 250, score=score)


# https://github.com/berkeley-reclab/RecLab/pull/68
@sick(
    "padding-in-loss",
    "unobserved-as-zeros",
    where="the targets of all steps, most of which are zeros for what was never rated",
    cure="ask only for the ratings that are there: a mask in the loss",
)
def records_rated_at_a_jazz_club(folder, ill):
    seeded(9242)
    people, records = 500, 60
    taste, style = torch.randn(people, 4), torch.randn(records, 4)
    ratings = (3 + (taste @ style.T) / 2 + 0.3 * torch.randn(people, records)).round().clamp(1, 5)
    known = torch.rand(people, records) < 0.3
    asked = known & (torch.rand(people, records) < 0.2)
    given = known & ~asked
    net = nn.Sequential(nn.Linear(records, 64), nn.Sigmoid(), nn.Linear(64, records))
    draw = rounds(50, ratings * given, given.float())

    def loss_of(step):
        rated, there = draw()
        gaps = (net(rated) - rated).square()
        return gaps.mean() if ill else (gaps * there).sum() / there.sum()

    def missed():
        return ((net(ratings * given) - ratings).square() * asked).sum() / asked.sum()

    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=1e-4)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, missed))
