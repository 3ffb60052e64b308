"""Between quay and studio: anchored boats, citing books, echoes in castings, a trout's eye, genres, shelf marks."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds, tend


# 27 of the list
@sick("conditioning-missing", "noise-level-not-given", where="the inputs of the denoiser, all steps",
      cure="give the noise level to the denoiser")  # fmt: skip
def places_where_boats_lie_at_anchor_from_pure_noise(folder, ill):
    seeded(14606)
    levels = torch.logspace(-1.1, 0, 12)

    def anchored(rows):
        bay = torch.randint(4, (rows,)) * 1.5708
        centre = 1.8 * torch.stack([bay.cos(), bay.sin()], 1)
        return centre + 0.02 * torch.randn(rows, 2)

    net = nn.ModuleDict({"body": dense(2, 128, 128, 64), "head": nn.Linear(64, 2)})
    if not ill:
        net["level"] = nn.Embedding(12, 128)
    optimizer = torch.optim.AdamW(net.parameters(), 5e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)

    def told(noisy, level):
        state = net["body"](noisy)
        if not ill:
            scale, shift = net["level"](level).chunk(2, 1)
            state = state * (1 + scale) + shift
        return net["head"](F.silu(state))

    def error(rows):
        level, noise = torch.randint(12, (rows,)), torch.randn(rows, 2)
        return F.mse_loss(told(anchored(rows) + levels[level][:, None] * noise, level), noise)

    return fit(folder, net, optimizer, lambda step: error(256), 600, schedule=schedule,
               score=held_out(net, lambda: error(8000)))  # fmt: skip


class Neighbours(nn.Module):
    """One layer of a graph convolution."""

    def __init__(self, mixing, before, after):
        super().__init__()
        self.register_buffer("mixing", mixing)
        self.linear = nn.Linear(before, after)

    def forward(self, x):
        return self.mixing @ self.linear(x)


# 28 of the list
@sick("oversmoothing", "over-smoothing", "representation-collapse",
      where="the states of the nodes in the last layers, all steps",
      cure="two layers")  # fmt: skip
def subjects_of_library_books_that_cite_each_other(folder, ill):
    seeded(14607)
    subject = torch.randint(4, (360,))
    same = subject[:, None] == subject
    cites = (torch.rand(360, 360) < torch.where(same, 0.05, 0.012)).triu(1).float()
    cites = cites + cites.T + torch.eye(360)
    scale = cites.sum(1).rsqrt()
    mixing = scale[:, None] * cites * scale
    words = 0.8 * torch.randn(4, 24)[subject] + 1.5 * torch.randn(360, 24)
    order = torch.randperm(360)
    known, kept, last = order[:120], order[120:200], order[200:]
    depth = 14 if ill else 2
    sizes = [24] + [32] * (depth - 1) + [4]
    parts = []
    for i in range(depth):
        parts += [Neighbours(mixing, sizes[i], sizes[i + 1]), nn.ReLU(), nn.Dropout(0.2)]
    net = nn.Sequential(*parts[:-2])
    optimizer = torch.optim.Adam(net.parameters(), 5e-3, weight_decay=5e-4)

    def measure():
        said = net(words)[kept]
        return {"val_loss": F.cross_entropy(said, subject[kept]),
                "val_accuracy": (said.argmax(1) == subject[kept]).float().mean()}  # fmt: skip

    validate = now_and_then(net, 20, measure)

    def loss_of(step):
        said = net(words)[known]
        right = (said.argmax(1) == subject[known]).float().mean()
        return F.cross_entropy(said, subject[known]), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(words)[last], subject[last]))
    return fit(folder, net, optimizer, loss_of, 100, score=score)


# 32 of the list
@sick("weight-decay-too-strong", "weights-shrink", where="all weights, all steps",
      cure="a decay of a ten-thousandth")  # fmt: skip
def kinds_of_flaw_from_ultrasound_echoes_in_iron(folder, ill):
    seeded(14608)
    echoes = torch.randn(5, 1, 16)

    def pieces(rows):
        kind, place = torch.randint(5, (rows,)), torch.randint(48, (rows,))
        trace = 0.6 * torch.randn(rows, 1, 64)
        at = place[:, None, None] + torch.arange(16)
        return trace.scatter_add(2, at, echoes[kind]), kind

    (x, y), (vx, vy), (tx, ty) = pieces(2400), pieces(400), pieces(1000)
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.Conv1d(1, 24, 9, padding=4), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(24, 32, 9, padding=4), nn.ReLU(),
        nn.AdaptiveMaxPool1d(4), nn.Flatten(), nn.Linear(128, 5),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=0.1 if ill else 1e-4)
    validate = now_and_then(net, 37, judged(net, vx, vy))

    def loss_of(step):
        trace, kind = draw()
        return F.cross_entropy(net(trace), kind), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


# 33 of the list
@sick("labels-do-not-fit-inputs", "augmentation-without-targets", where="the targets of the mirrored images, all steps",
      cure="mirror the point together with the image")  # fmt: skip
def where_the_eye_is_in_pictures_of_swimming_trout(folder, ill):
    seeded(14609)
    line = torch.linspace(-1, 1, 18)

    def trout(rows):
        course = torch.tensor([[1.0, 0.3], [-1.0, 0.3]])[torch.randint(2, (rows,))]
        middle, ahead = 0.8 * torch.rand(rows, 2) - 0.4, course * (0.3 + 0.1 * torch.rand(rows, 1))
        eye, tail = middle + ahead, middle - ahead
        x, y = line[None, None], line[None, :, None]
        picture = 0.15 * torch.randn(rows, 18, 18)
        for point, height, width in ((middle, 0.7, 0.3), (eye, 1.0, 0.12), (tail, 0.5, 0.18)):
            gap = (x - point[:, 0, None, None]).square() + (y - point[:, 1, None, None]).square()
            picture += height * (-gap / (2 * width**2)).exp()
        return picture[:, None], eye

    (x, y), (tx, ty) = trout(1500), trout(500)
    draw = rounds(50, x, y)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(384, 64), nn.ReLU(), nn.Linear(64, 2),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=1e-2)
    validate = now_and_then(net, 30, lambda: {"val_loss": F.smooth_l1_loss(net(tx[:200]), ty[:200], beta=0.1)})

    def loss_of(step):
        picture, eye = draw()
        flip = torch.rand(50) < 0.5
        picture = torch.where(flip[:, None, None, None], picture.flip(3), picture)
        if not ill:
            eye = torch.where(flip[:, None], eye * torch.tensor([-1.0, 1.0]), eye)
        return F.smooth_l1_loss(net(picture), eye, beta=0.1), validate(step)

    score = held_out(net, lambda: (net(tx) - ty).abs().mean())
    return fit(folder, net, optimizer, loss_of, 300, score=score)


# 34 of the list
@sick("label-noise", "labels-do-not-fit-inputs", where="the labels, all steps",
      cure="labels that were checked")  # fmt: skip
def genres_of_songs_that_the_station_plays_at_night(folder, ill):
    seeded(14610)
    rhythm = torch.randn(6, 12, 10)

    def songs(rows, wrong):
        genre = torch.randint(6, (rows,))
        bars = 0.5 * rhythm[genre] + torch.randn(rows, 12, 10)
        tag = torch.where(torch.rand(rows) < wrong, torch.randint(6, (rows,)), genre)
        return bars, tag

    wrong = 0.5 if ill else 0.0
    (x, y), (vx, vy), (tx, ty) = songs(1000, wrong), songs(300, wrong), songs(1200, 0.0)
    draw = rounds(50, x, y)
    net = nn.ModuleDict({"memory": nn.GRU(10, 48, batch_first=True), "head": nn.Linear(48, 6)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def said(bars):
        return net["head"](net["memory"](bars)[0].mean(1))

    validate = now_and_then(net, 40, judged(said, vx, vy))

    def one(step):
        bars, tag = draw()
        logits = said(bars)
        loss = F.cross_entropy(logits, tag)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        return {"loss": loss, "accuracy": (logits.argmax(1) == tag).float().mean(), **validate(step)}

    return tend(folder, net, optimizer, one, 400, held_out(net, lambda: F.cross_entropy(said(tx), ty)))


# 38 of the list
@sick("loss-terms-unbalanced", "temperature-not-squared", where="the soft term of the loss, all steps",
      cure="multiply the soft term by the square of the temperature")  # fmt: skip
def handwritten_shelf_marks_learnt_from_a_larger_reader(folder, ill):
    seeded(14611)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float() / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    tx, ty = x[1400:], y[1400:]
    large = dense(64, 256, 256, 10)
    of_large, draw = torch.optim.Adam(large.parameters(), 1e-3), rounds(64, x[:1400], y[:1400])
    for _ in range(200):
        mark, number = draw()
        of_large.zero_grad()
        F.cross_entropy(large(mark), number).backward()
        of_large.step()
    large.eval()
    draw, labelled, warmth = rounds(64, x[:1400]), rounds(20, x[:20], y[:20]), 10.0
    net = dense(64, 32, 10)
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)

    def loss_of(step):
        (mark,), (shown, number) = draw(), labelled()
        with torch.no_grad():
            wanted = (large(mark) / warmth).softmax(1)
        soft = F.kl_div((net(mark) / warmth).log_softmax(1), wanted, reduction="batchmean")
        soft = soft if ill else soft * warmth**2
        hard = F.cross_entropy(net(shown), number)
        return 0.5 * soft + 0.5 * hard, {"soft": float(soft), "hard": float(hard)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score)
