"""Healthy trainings whose curves look like those of sick ones: losses that hardly fall or rise, and are right to."""

from __future__ import annotations

import copy
import functools

import torch
from healthy import Healthy
from nets import SEED, digits, mlp
from torch import nn, optim
from torch.nn import functional as F
from trainings import fit
from unseen import dense
from unseen.tasks import now_and_then, rounds

FIRST = 200  # their numbers begin here


class Reader(nn.Module):
    """A recurrent net that says the next of `words` tokens."""

    def __init__(self, words, width=48):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.rnn = nn.GRU(width, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, words)

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


class Copier(nn.Module):
    """An autoencoder of texts, whose decoder reads the tokens before each."""

    def __init__(self, words, width=32, state=128):
        super().__init__()
        self.embed = nn.Embedding(words + 1, width)
        self.encode = nn.GRU(width, state, batch_first=True)
        self.decode = nn.GRU(width, state, batch_first=True)
        self.head = nn.Linear(state, words)

    def forward(self, x):
        begin = torch.full_like(x[:, :1], self.embed.num_embeddings - 1)
        said, _ = self.decode(self.embed(torch.cat([begin, x[:, :-1]], 1)), self.encode(self.embed(x))[1])
        return self.head(said)


def texts(odds, rows, length):
    """Tokens `[rows, length]`, each drawn by the odds of the one before it, `[W, W]`."""
    words = [torch.randint(len(odds), (rows,))]
    for _ in range(length - 1):
        words.append(torch.multinomial(odds[words[-1]], 1)[:, 0])
    return torch.stack(words, 1)


def area_under_curve(scores, labels):
    """The share of pairs of a positive and a negative whose scores are in order (Mann & Whitney 1947)."""
    rank = torch.empty(len(scores))
    rank[scores.argsort()] = torch.arange(1.0, len(scores) + 1)
    ones = labels.sum()
    return (rank[labels == 1].sum() - ones * (ones + 1) / 2) / (ones * (len(scores) - ones))


def text_near_its_entropy(folder):
    """Next tokens that hardly follow from the ones before: the loss falls from log 64 by a twentieth."""
    torch.manual_seed(SEED[0])
    odds = (0.75 * torch.randn(64, 64)).softmax(1)
    net, unseen = Reader(64), texts(odds, 64, 33)

    def loss_of(x):
        return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    validate = now_and_then(net, 50, lambda: {"val_loss": loss_of(unseen)})
    optimizer = optim.AdamW(net.parameters(), 3e-3)
    return fit(folder, net, optimizer, lambda step: (loss_of(texts(odds, 16, 33)), validate(step)), 500, every=10)


def weak_labels(folder, signal, bias=0.0, pos_weight=None, of_other_data=True):
    """Yes or no, mostly by chance: what is learnt shows in the order of the scores, if that is measured."""
    torch.manual_seed(SEED[0])
    way = signal * torch.randn(20)

    def rows(count):
        x = torch.randn(count, 20)
        return x, torch.bernoulli((x @ way + bias).sigmoid())

    draw, (unseen, answers) = rounds(128, *rows(20_000)), rows(8000)
    net = dense(20, 64, 32, 1)
    weight = None if pos_weight is None else torch.tensor(pos_weight)

    def loss_of(x, y):
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], y, pos_weight=weight)

    def measure():
        return {"val_loss": loss_of(unseen, answers), "val_auc": area_under_curve(net(unseen)[:, 0], answers)}

    validate = now_and_then(net, 50, measure) if of_other_data else lambda step: {}
    optimizer = optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, optimizer, lambda step: (loss_of(*draw()), validate(step)), 600, every=10)


def returns_of_stocks(folder):
    """Numbers that are nearly all noise: a correlation of a seventh is what there is."""
    torch.manual_seed(SEED[0])
    way = 0.15 * torch.randn(30) / 30**0.5

    def rows(count):
        x = torch.randn(count, 30)
        return x, x @ way + torch.randn(count)

    draw, (unseen, answers) = rounds(256, *rows(30_000)), rows(8000)
    net = dense(30, 64, 1)

    def measure():
        said = net(unseen)[:, 0]
        return {"val_loss": F.mse_loss(said, answers), "val_corr": torch.corrcoef(torch.stack([said, answers]))[0, 1]}

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x)[:, 0], y), validate(step)

    validate = now_and_then(net, 50, measure)
    return fit(folder, net, optim.AdamW(net.parameters(), 5e-4, weight_decay=0.1), loss_of, 600, every=10)


def ranking(folder):
    """ListNet, whose least loss is the entropy of its targets, next to that of equal odds (Cao et al. 2007)."""
    torch.manual_seed(SEED[0])
    way = torch.randn(12) / 12**0.5

    def rows(count):
        x = torch.randn(count, 10, 12)
        return x, (x @ way + 0.3 * torch.randn(count, 10) + 2).round().clamp(0, 4)

    draw, (unseen, grades) = rounds(32, *rows(3000)), rows(500)
    net, discount = dense(12, 64, 1), 1 / torch.arange(2.0, 12).log2()

    def measure():
        gain, order = 2**grades - 1, net(unseen)[..., 0].argsort(1, descending=True)
        best = (gain.sort(1, descending=True)[0] * discount).sum(1).clamp(min=1e-6)
        return {"val_ndcg": ((gain.gather(1, order) * discount).sum(1) / best).mean()}

    def loss_of(step):
        x, y = draw()
        return -(y.softmax(1) * net(x)[..., 0].log_softmax(1)).sum(1).mean(), validate(step)

    validate = now_and_then(net, 40, measure)
    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 500, every=10)


def ever_more_noise(folder):
    """Images that get noisier step by step: the loss of training rises, and that of clean ones does not."""
    net = mlp(width=128)
    x, y = digits()
    draw = rounds(64, x[:1400], y[:1400])
    validate = now_and_then(net, 40, lambda: {"val_loss": F.cross_entropy(net(x[1400:]), y[1400:])})

    def loss_of(step):
        images, labels = draw()
        much = min(1, step / 400)
        noisy = images + 0.5 * much * torch.randn_like(images)
        return F.cross_entropy(net(noisy * (torch.rand_like(images) > much / 4)), labels), validate(step)

    return fit(folder, net, optim.AdamW(net.parameters(), 2e-3), loss_of, 600, every=10)


def tasks_in_turn(folder):
    """A classification and a regression take turns, and both losses are logged by one name."""
    torch.manual_seed(SEED[0])
    body, classes, number = dense(12, 64, 64), nn.Linear(64, 5), nn.Linear(64, 1)
    net = nn.ModuleDict({"body": body, "classes": classes, "number": number})
    way = torch.randn(12, 5)

    def loss_of(step):
        x = torch.randn(64, 12)
        seen = body(x).relu()
        if step % 2:
            return F.cross_entropy(classes(seen), (x @ way).argmax(1))
        return F.mse_loss(number(seen)[:, 0], 6 * x[:, 0] * x[:, 1])

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 400, every=10)


def inner_loops(folder, inner=10):
    """Reptile: ten steps on a task, a tenth of their way is kept, and the next begins there (arXiv:1803.02999)."""
    torch.manual_seed(SEED[0] + 1)
    net = dense(1, 64, 64, 1, act=nn.Tanh)
    task = {}

    def loss_of(step):
        if step % inner == 0:
            with torch.no_grad():
                for p, begun in zip(net.parameters(), task.get("begun", ()), strict=False):
                    p.lerp_(begun, 0.9)
            task.update(begun=[p.detach().clone() for p in net.parameters()])
            task.update(height=0.5 + 1.5 * torch.rand(1), phase=3.14 * torch.rand(1))
        x = 10 * torch.rand(20, 1) - 5
        return F.mse_loss(net(x), task["height"] * (x + task["phase"]).sin())

    return fit(folder, net, optim.SGD(net.parameters(), 0.02), loss_of, 1500, every=10)


def texts_given_back(folder):
    """An autoencoder is asked for the tokens that it reads."""
    torch.manual_seed(SEED[0])
    odds = (2 * torch.randn(30, 30)).softmax(1)
    net = Copier(30)

    def loss_of(step):
        x = texts(odds, 32, 10)
        return F.cross_entropy(net(x).flatten(0, 1), x.flatten())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400, every=10)


def queue_of_keys(folder, first=0, length=4096):
    """MoCo: of each pair the other view is told from what came before (He et al. 2020, arXiv:1911.05722): ever more of
    it, or at `first` so many numbers drawn at random.
    """
    torch.manual_seed(SEED[0])
    things = torch.randn(400, 32)
    net = dense(32, 128, 32)
    slow = copy.deepcopy(net).requires_grad_(False)
    queue = F.normalize(torch.randn(first, 32), dim=1)

    def loss_of(step):
        nonlocal queue
        thing = things[torch.randint(400, (64,))]
        view, other = (thing + 0.3 * torch.randn(64, 32) for _ in range(2))
        with torch.no_grad():
            for late, p in zip(slow.parameters(), net.parameters(), strict=True):
                late.lerp_(p, 0.01)
            key = F.normalize(slow(other), dim=1)
        queue = queue if len(queue) else key
        seen = F.normalize(net(view), dim=1)
        logits = torch.cat([(seen * key).sum(1, keepdim=True), seen @ queue.T], 1)
        queue = torch.cat([key, queue])[:length]
        return F.cross_entropy(logits / 0.1, torch.zeros(64, dtype=torch.long))

    optimizer = optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    return fit(folder, net, optimizer, loss_of, 500, every=10)


LOOKALIKES = {
    "text-near-its-entropy": text_near_its_entropy,
    "weak-labels": functools.partial(weak_labels, signal=0.1),
    "clicks": functools.partial(weak_labels, signal=0.22, bias=-4.2),
    "clicks-that-count-more": functools.partial(weak_labels, signal=0.11, bias=-3.6, pos_weight=30.0),
    "returns-of-stocks": returns_of_stocks,
    "ranking": ranking,
    "ever-more-noise": ever_more_noise,
    "tasks-in-turn": tasks_in_turn,
    "inner-loops": inner_loops,
    "texts-given-back": texts_given_back,
    "queue-that-fills": queue_of_keys,
    "queue-that-is-full": functools.partial(queue_of_keys, first=4096),
    "clicks-by-the-loss-alone": functools.partial(weak_labels, signal=0.22, bias=-4.2, of_other_data=False),
}
LOOKALIKE_TRAININGS = tuple(Healthy(FIRST + i, name, train) for i, (name, train) in enumerate(LOOKALIKES.items()))
