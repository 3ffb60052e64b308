"""Healthy trainings of a course, a tutorial or a team's repository."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


def digits():
    data = load_digits()
    order = torch.randperm(len(data.target))
    return torch.tensor(data.data, dtype=torch.float32)[order] / 16, torch.tensor(data.target)[order]


@healthy()
def numbers_stamped_on_library_cards(folder):
    seeded(11050)
    x, y = digits()
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adadelta(net.parameters(), 1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.7 ** (step // 43))
    draw = rounds(32, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        return F.nll_loss(F.log_softmax(net(x), 1), y)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 172, score=score, schedule=schedule)


@healthy(0.2)
def numbers_drawn_on_slates_by_beginners(folder):
    seeded(11051)
    x, _ = digits()
    net = nn.ModuleDict({"encode": dense(64, 96, 16), "decode": dense(8, 96, 64)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1500])

    def terms(x):
        mean, log_variance = net["encode"](x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        made = F.binary_cross_entropy_with_logits(net["decode"](code), x, reduction="sum") / len(x)
        apart = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
        return made, apart

    def loss_of(step):
        made, apart = terms(*draw())
        return made + apart, {"reconstruction": made.detach(), "kl": apart.detach()}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: sum(terms(x[1500:]))))


@healthy()
def chalk_marks_copied_by_a_forger(folder):
    seeded(11052)
    make, judge = dense(6, 48, 48, 2), dense(2, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    corners = torch.tensor([[2.0, 1.0], [3.5, 1.0], [2.0, 2.5], [3.5, 2.5]])

    def real(rows):
        return corners[torch.randint(4, (rows,))] + 0.2 * torch.randn(rows, 2)

    def judge_loss():
        yes, no = judge(real(64)), judge(make(torch.randn(64, 6)).detach())
        return F.softplus(-yes).mean() + F.softplus(no).mean()

    def make_loss():
        return F.softplus(-judge(make(torch.randn(64, 6)))).mean()

    def score():
        with torch.no_grad():
            apart = torch.cdist(real(500), make(torch.randn(500, 6)))
            return float(apart.min(0).values.mean() + apart.min(1).values.mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 600, score)


@healthy()
def pages_turned_for_a_pianist(folder):
    seeded(11053)
    places, ahead = 8, 6
    net, target = dense(places * 2, 48, 3), dense(places * 2, 48, 3).requires_grad_(False)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def see(bar, page):
        return torch.cat([F.one_hot(bar, places), F.one_hot(page, places)], 1).float()

    def act(bar, page, move):  # back, stay, on; the music itself goes on or rests
        page = (page + move - 1).clamp(0, places - 1)
        bar = (bar + torch.randint(2, bar.shape)).remainder(places)
        return bar, page, 1.0 - 0.5 * (bar - page).abs().clamp(max=4)

    def one(step):
        bar, page, move = torch.randint(places, (64,)), torch.randint(places, (64,)), torch.randint(3, (64,))
        bar_next, page_next, reward = act(bar, page, move)
        with torch.no_grad():
            later = see(bar_next, page_next)
            best = target(later).gather(1, net(later).argmax(1, keepdim=True))[:, 0]
            wanted = reward + 0.8 * best
        values = net(see(bar, page)).gather(1, move[:, None])[:, 0]
        loss = F.smooth_l1_loss(values, wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        if step % 25 == 24:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "q": values.detach().mean()}

    def score():
        bar, page, missed = torch.randint(places, (400,)), torch.randint(places, (400,)), 0.0
        with torch.no_grad():
            for _ in range(ahead * 3):
                bar, page, reward = act(bar, page, net(see(bar, page)).argmax(1))
                missed += 1.0 - float(reward.mean())
        return missed

    return tend(folder, net, optimizer, one, 500, score)


@healthy()
def tunes_written_down_backwards(folder):
    seeded(11054)
    notes, length, width = 10, 8, 32
    layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
    net = nn.ModuleDict({
        "note": nn.Embedding(notes, width), "place": nn.Embedding(length, width),
        "body": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), "norm": nn.LayerNorm(width),
        "head": nn.Linear(width, notes),
    })  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=301, pct_start=0.1)

    def loss_on(tune):
        h = net["note"](tune) + net["place"](torch.arange(length))
        return F.cross_entropy(net["head"](net["norm"](net["body"](h))).flatten(0, 1), tune.flip(1).flatten())

    test = torch.randint(notes, (200, length))
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(torch.randint(notes, (32, length))), 300, score=score,
               before_step=clipped(net, 1.0), schedule=schedule)  # fmt: skip


@healthy()
def who_sits_with_whom_at_lunch(folder):
    seeded(11055)
    pupils, forms = 150, 3
    form = torch.arange(pupils) % forms
    chance = torch.where(form[:, None] == form, 0.12, 0.015)
    edge = (torch.rand(pupils, pupils) < chance).triu(1)
    near = (edge | edge.T).float() + torch.eye(pupils)
    root = near.sum(1).rsqrt()
    near = root[:, None] * near * root
    x = torch.cat([F.one_hot(form, forms) + 1.0 * torch.randn(pupils, forms), torch.randn(pupils, 5)], 1)
    known = torch.rand(pupils) < 0.3
    first, second = nn.Linear(8, 16), nn.Linear(16, forms)
    net = nn.ModuleList([first, second])
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)

    def said():
        h = F.dropout(F.relu(near @ first(x)), 0.5, net.training)
        return near @ second(h)

    return fit(folder, net, optimizer, lambda step: F.cross_entropy(said()[known], form[known]), 150,
               score=held_out(net, lambda: F.cross_entropy(said()[~known], form[~known])))  # fmt: skip


@healthy()
def staves_cut_out_of_a_yellowed_page(folder):
    seeded(11056)

    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.deep, self.up = block(1, 8), block(8, 16), block(24, 8)
            self.out = nn.Conv2d(8, 1, 1)

        def forward(self, x):
            a = self.down(x)
            b = F.interpolate(self.deep(F.max_pool2d(a, 2)), scale_factor=2.0)
            return self.out(self.up(torch.cat([a, b], 1)))

    def pages(rows):
        top = torch.randint(2, 12, (rows, 1, 1, 1))
        line = torch.arange(24)[None, None, :, None] - top
        mask = ((line >= 0) & (line < 10) & (line % 3 == 0)).float().expand(rows, 1, 24, 24)
        stain = F.interpolate(torch.randn(rows, 1, 4, 4), size=(24, 24), mode="bilinear")
        return 0.8 * mask + 0.6 * stain + 0.3 * torch.randn(rows, 1, 24, 24), mask

    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)

    def terms(x, mask):
        said = net(x)
        share = said.sigmoid()
        dice = 1 - (2 * (share * mask).sum() + 1) / (share.sum() + mask.sum() + 1)
        return F.binary_cross_entropy_with_logits(said, mask), dice

    def loss_of(step):
        flat, dice = terms(*pages(12))
        return flat + dice, {"dice": dice.detach()}

    x, mask = pages(100)
    return fit(folder, net, optimizer, loss_of, 120, score=held_out(net, lambda: sum(terms(x, mask))))


@healthy()
def novels_that_come_back_late(folder):
    seeded(11057)
    data = load_breast_cancer()
    x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    net = dense(30, 24, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 50, T_mult=2)
    draw = rounds(32, x[:400], y[:400])

    def loss_of(step):
        x, y = draw()
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], y)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[400:])[:, 0], y[400:]))
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


@healthy()
def verses_letter_by_letter_from_memory(folder):
    seeded(11058)
    text = "the cat sat on the mat and the rat ran past the hat. a bell rang in the hall and all the rest sang along. "
    letters = sorted(set(text))
    ids = torch.tensor([letters.index(c) for c in text * 3])
    net = nn.ModuleDict({"letter": nn.Embedding(len(letters), 24), "read": nn.LSTM(24, 64, batch_first=True)})
    net["say"] = nn.Linear(64, len(letters))
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def loss_of(step):
        at = torch.randint(len(ids) - 33, (16,))
        part = ids[at[:, None] + torch.arange(33)]
        states = net["read"](net["letter"](part[:, :-1]))[0]
        return F.cross_entropy(net["say"](states).flatten(0, 1), part[:, 1:].flatten())

    return fit(folder, net, optimizer, loss_of, 200, before_step=clipped(net, 1.0))


@healthy()
def health_of_teachers_a_year_later(folder):
    seeded(11059)
    data = load_diabetes()
    x, y = torch.tensor(data.data, dtype=torch.float32) * 21, torch.tensor(data.target, dtype=torch.float32)[:, None]
    y = (y - y.mean()) / y.std()
    net = dense(10, 16, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3, weight_decay=1e-2)
    draw = rounds(40, x[:360], y[:360])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(x[360:]), y[360:])))
