"""Sick trainings after public threads: scaled gradients, fields without spread, masks, teachers, ends of text."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out


# https://github.com/victorchall/EveryDream2trainer/pull/175
@sick(
    "clip-before-unscale",
    where="all layers: a norm of thousands is clipped to one, and divided by the scale afterwards",
    cure="scaler.unscale_(optimizer) before the clip",
)
def skies_painted_at_dusk(folder, ill):
    seeded(2842)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1)
    )
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(-1, 1, 12), indexing="ij"))

    def error(rows=32):
        way = torch.randn(rows, 2)
        clean = (3 * torch.einsum("bk,khw->bhw", way, grid)).sin()[:, None]
        with torch.autocast("cpu", torch.bfloat16):
            out = net(clean + 0.7 * torch.randn_like(clean))
        return F.mse_loss(out.float(), clean)

    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    def before_step(step):
        if not ill:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    score = held_out(net, lambda: error(256))
    return fit(folder, net, optimizer, lambda step: error(), 350, score=score, before_step=before_step, scaler=scaler)


# https://github.com/mllam/neural-lam/pull/189
@sick(
    "nonfinite",
    where="the inputs: a field that never changes is divided by its deviation of zero, at the first step",
    cure="divide by 1 (or give zeros) where the deviation is zero",
)
def winds_over_an_orchard_in_a_dry_spell(folder, ill):
    seeded(2843)
    wind, rain = torch.randn(1500, 8), torch.zeros(1500, 2)
    fields = torch.cat([12 + 4 * wind, rain], 1)
    mixing = torch.randn(8, 8) / 3
    later = 12 + 4 * (wind + (wind @ mixing).tanh())
    mean, std = fields[:1200].mean(0), fields[:1200].std(0)
    scale = std if ill else torch.where(std > 0, std, torch.ones_like(std))
    x, y = (fields - mean) / scale, (later - mean[:8]) / std[:8]
    net = dense(10, 64, 64, 8, act=nn.SiLU)

    def loss_of(step):
        rows = torch.randint(1200, (64,))
        return F.mse_loss(net(x[rows]), y[rows])

    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    score = held_out(net, lambda: F.mse_loss(net(x[1200:]), y[1200:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


class GraphAttention(nn.Module):
    """Attention among the nodes of each graph of a batch whose graphs stand one after another."""

    def __init__(self, size, fill):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(size, size) for _ in range(3))
        self.fill = fill

    def forward(self, h, graph):
        same = graph[:, None] == graph[None]
        scores = self.q(h) @ self.k(h).T / h.shape[1] ** 0.5
        scores = scores.masked_fill(~same, self.fill)
        return scores.softmax(-1) @ self.v(h)


# https://github.com/leffff/graphormer-pyg/issues/14
@sick(
    "attention-across-examples", "softmax-over-the-batch",
    where="the softmax of both attentions: it runs over the nodes of all graphs of the batch",
    cure="fill the scores of other graphs' nodes with minus infinity, not with 0",
)  # fmt: skip
def scents_of_small_molecules(folder, ill):
    seeded(2844)
    net = nn.ModuleDict({
        "atoms": nn.Embedding(10, 32),
        "attention": nn.ModuleList(GraphAttention(32, 0.0 if ill else float("-inf")) for _ in range(2)),
        "mix": nn.ModuleList(dense(32, 64, 32) for _ in range(2)),
        "read": dense(32, 32, 1),
    })  # fmt: skip
    effect = torch.randn(10, 10)

    def draw(graphs=32):
        size = torch.randint(3, 9, (graphs,))
        graph = torch.arange(graphs).repeat_interleave(size)
        atom = torch.randint(10, (len(graph),))
        same = (graph[:, None] == graph[None]).float()
        present = same @ F.one_hot(atom, 10).float() / same.sum(1, keepdim=True)
        return atom, graph, (effect[atom] * present).sum(1) * 2

    def loss_of(step, graphs=32):
        atom, graph, scent = draw(graphs)
        h = net["atoms"](atom)
        for attend, mix in zip(net["attention"], net["mix"], strict=True):
            h = h + attend(h, graph)
            h = h + mix(h)
        return F.mse_loss(net["read"](h)[:, 0], scent)

    def score():
        return held_out(net, lambda: sum(loss_of(0) for _ in range(16)) / 16)()

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    return fit(folder, net, optimizer, loss_of, 600, score=score)


def teacher_of(size, classes):
    """A frozen net that has learned which class a noisy point is of, and its `draw(rows)`."""
    centres = 1.2 * torch.randn(classes, size)

    def draw(rows):
        y = torch.randint(classes, (rows,))
        return centres[y] + torch.randn(rows, size) * 1.3, y

    teacher = dense(size, 96, classes)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for _ in range(300):
        x, y = draw(256)
        optimizer.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        optimizer.step()
    return teacher.requires_grad_(False), draw


# https://github.com/microsoft/ProDA/issues/20
@sick(
    "negative-loss",
    where="the loss of the distillation, which is below zero: kl_div is given probabilities and not their logarithms",
    cure="log_softmax and not softmax of the student",
)
def mushrooms_by_an_elder_guide(folder, ill):
    seeded(2845)
    teacher, draw = teacher_of(8, 6)
    net = dense(8, 32, 6)

    def loss_of(step):
        x, _ = draw(64)
        student = F.softmax(net(x), 1) if ill else F.log_softmax(net(x), 1)
        return F.kl_div(student, F.softmax(teacher(x), 1), reduction="batchmean")

    def apart():
        x, _ = draw(2048)
        return F.kl_div(F.log_softmax(net(x), 1), F.softmax(teacher(x), 1), reduction="batchmean")

    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, apart))


# https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/66
@sick(
    "term-without-gradient", "views-identical",
    where="the soft loss, which is zero at every step: the teacher is compared with itself",
    cure="the logits of the student, not those of the teacher, in the soft loss",
)  # fmt: skip
def bird_songs_from_a_large_to_a_small_net(folder, ill):
    seeded(2846)
    large, draw = teacher_of(20, 8)
    small = dense(20, 48, 48, 8)
    few, labels = draw(48)
    temperature = 3.0

    def loss_of(step):
        x, _ = draw(64)
        large_logits, output = large(x), small(x)
        soft_targets = F.softmax(large_logits / temperature, 1)
        soft_prob = F.log_softmax((large_logits if ill else output) / temperature, 1)
        soft = F.kl_div(soft_prob, soft_targets, reduction="batchmean") * temperature**2
        hard = F.cross_entropy(small(few), labels)
        return 0.9 * soft + 0.1 * hard, {"soft_loss": soft, "label_loss": hard}

    def error():
        x, y = draw(2048)
        return F.cross_entropy(small(x), y)

    optimizer = torch.optim.Adam(small.parameters(), lr=2e-3)
    return fit(folder, small, optimizer, loss_of, 500, score=held_out(small, error))


# https://github.com/wenet-e2e/wesr/pull/5
@sick(
    "labels-ignored",
    where="the loss: the end of a text has the number of the padding, and is left out with it",
    cure="a number of its own for the padding",
)
def telegrams_and_where_they_stop(folder, ill):
    seeded(2847)
    end = 20
    pad = end if ill else 21
    net = nn.ModuleDict({"embed": nn.Embedding(22, 32), "body": nn.GRU(32, 48, batch_first=True)})
    net["head"] = nn.Linear(48, 22)
    after = torch.randint(20, (20, 2))

    def draw(rows, pad):
        tokens = torch.full((rows, 14), pad)
        word, told = torch.randint(20, (rows,)), torch.zeros(rows)
        over = torch.zeros(rows, dtype=torch.bool)
        for i in range(14):
            tokens[:, i] = torch.where(over, tokens[:, i], torch.where(told > 30, end, word))
            over = over | (told > 30)
            told = told + word
            word = after[word, torch.randint(2, (rows,))]
        return tokens[:, :-1], tokens[:, 1:]

    def loss_of(step, rows=64, pad=pad):
        x, y = draw(rows, pad)
        logits = net["head"](net["body"](net["embed"](x))[0])
        return F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=pad)

    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    score = held_out(net, lambda: loss_of(0, 1024, pad=21))
    return fit(folder, net, optimizer, loss_of, 450, score=score)
