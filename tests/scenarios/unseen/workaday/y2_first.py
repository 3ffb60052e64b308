"""Alarm calls, tax returns, paw prints, hot spots on a thermal camera, tickets sold, and profiles of a paper web."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, in_turn, judged, now_and_then, rounds


# 3 of the list
@sick("softmax-twice", where="the last module and the loss, all steps",
      cure="hand the logits to the cross-entropy, without a softmax of one's own")  # fmt: skip
def kinds_of_emergency_from_the_words_of_the_caller(folder, ill):
    seeded(15100)
    kinds, words, length = 14, 300, 18
    habits = (1.6 * torch.randn(kinds, words)).softmax(1)

    def calls(rows):
        kind = torch.randint(kinds, (rows,))
        return torch.multinomial(habits[kind], length, replacement=True), kind

    (x, y), (tx, ty) = calls(4000), calls(1500)
    draw = rounds(50, x, y)
    net = nn.Sequential(
        nn.EmbeddingBag(words, 48, mode="mean"), nn.LayerNorm(48), nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, kinds),
        nn.Softmax(1) if ill else nn.Identity(),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 320)

    def loss_of(step):
        said, kind = draw()
        scores = net(said)
        return F.cross_entropy(scores, kind), {"accuracy": float((scores.argmax(1) == kind).float().mean())}

    score = held_out(net, lambda: (net(tx).argmax(1) != ty).float().mean())
    return fit(folder, net, optimizer, loss_of, 320, score=score, schedule=schedule)


# 4 of the list
@sick("inputs-not-normalised", where="what comes into the first layer, all steps",
      cure="standardise each column by what the training rows say")  # fmt: skip
def tax_returns_that_an_auditor_should_read(folder, ill):
    seeded(15101)

    def returns(rows):
        z = torch.randn(rows, 9)
        income = 42000 * (0.6 * z[:, 0]).exp()
        costs = income * (0.12 + 0.05 * z[:, 1]).clamp(0.01)
        children = (z[:, 2].abs() * 1.4).floor()
        age = 45 + 12 * z[:, 3]
        gifts = 300 * (0.9 * z[:, 4]).exp()
        distance = 15 * (0.7 * z[:, 5]).exp()
        share = (0.3 * z[:, 6]).sigmoid()
        mail = 200 * z[:, 7].abs()
        years = (6 * z[:, 8].abs()).floor()
        oddity = 1.6 * z[:, 1] + z[:, 4] * z[:, 0] - 0.8 * z[:, 5] + 1.2 * (z[:, 3] * z[:, 6]) - 0.5 * z[:, 2].abs()
        wanted = (oddity + 0.5 * torch.randn(rows) > 0).float()
        return torch.stack([income, costs, children, age, gifts, distance, share, mail, years], 1), wanted

    (x, y), (tx, ty) = returns(5000), returns(2000)
    if not ill:
        middle, spread = x.mean(0), x.std(0)
        x, tx = (x - middle) / spread, (tx - middle) / spread
    draw = rounds(128, x, y)
    net = dense(9, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def measure():
        said = net(tx)[:, 0]
        right = ((said > 0) == (ty > 0.5)).float().mean()
        return {"val_loss": F.binary_cross_entropy_with_logits(said, ty), "val_accuracy": right}

    validate = now_and_then(net, 39, measure)

    def loss_of(step):
        rows, wanted = draw()
        return F.binary_cross_entropy_with_logits(net(rows)[:, 0], wanted), validate(step)

    return fit(folder, net, optimizer, loss_of, 390, score=held_out(net, lambda: 1 - measure()["val_accuracy"]))


# 12 of the list
@sick("not-in-optimizer", where="the head, all steps", cure="make the optimizer once the new head is in place")
def paw_prints_after_learning_from_digits(folder, ill):
    seeded(15102)
    bunch = load_digits()
    dx, dy = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(),
    ))  # fmt: skip
    net.add_module("head", nn.Linear(64, 10))
    before, draw = torch.optim.Adam(net.parameters(), 2e-3), rounds(64, dx, dy)
    for _ in range(120):
        before.zero_grad()
        image, digit = draw()
        F.cross_entropy(net(image), digit).backward()
        before.step()

    beasts = 24
    prints = F.interpolate(torch.randn(beasts, 1, 4, 4), size=8, mode="bilinear").sigmoid()

    def tracks(rows):
        beast = torch.randint(beasts, (rows,))
        faint = 0.6 + 0.4 * torch.rand(rows, 1, 1, 1)
        return prints[beast] * faint + 0.12 * torch.randn(rows, 1, 8, 8), beast

    (x, y), (tx, ty) = tracks(3000), tracks(1000)
    draw = rounds(64, x, y)
    optimizer = torch.optim.Adam(net.parameters(), 5e-4)
    net.head = nn.Linear(64, beasts)
    if not ill:
        optimizer = torch.optim.Adam(net.parameters(), 5e-4)
    validate = now_and_then(net, 46, judged(net, tx, ty))

    def loss_of(step):
        image, beast = draw()
        return F.cross_entropy(net(image), beast), validate(step)

    return fit(folder, net, optimizer, loss_of, 230, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 14 of the list
@sick("dead-units", "bad-initialisation", where="the hidden convolutions, all steps",
      cure="set the bias of the last convolution only to what a rare thing needs")  # fmt: skip
def hot_spots_behind_the_smoke_on_a_thermal_camera(folder, ill):
    seeded(15103)
    away = torch.arange(16).float()

    def frames(rows):
        at = torch.rand(rows, 2, 2) * 14 + 0.5
        wide = 1.2 + 0.8 * torch.rand(rows, 2)
        dy = (away[None, None, :, None] - at[..., 0, None, None]).square()
        dx = (away[None, None, None] - at[..., 1, None, None]).square()
        heat = (-(dy + dx) / wide[..., None, None].square() / 2).exp().sum(1, keepdim=True)
        smoke = F.interpolate(torch.randn(rows, 1, 4, 4), size=16, mode="bilinear")
        cells = at.floor().long()
        spot = torch.zeros(rows, 16 * 16)
        spot.scatter_(1, cells[..., 0] * 16 + cells[..., 1], 1.0)
        return heat * 2 + 0.5 * smoke + 0.2 * torch.randn(rows, 1, 16, 16) - 0.2, spot.view(rows, 1, 16, 16)

    (x, y), (tx, ty) = frames(1200), frames(300)
    draw = rounds(24, x, y)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1),
    )  # fmt: skip
    for layer in net if ill else net[-1:]:
        if isinstance(layer, nn.Conv2d):
            nn.init.constant_(layer.bias, -4.6)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    validate = now_and_then(net, 30, lambda: {"val_loss": F.binary_cross_entropy_with_logits(net(tx), ty)})

    def loss_of(step):
        frame, spot = draw()
        return F.binary_cross_entropy_with_logits(net(frame), spot), validate(step)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 240, score=score)


# 15 of the list
@sick("bad-initialisation", "symmetry-not-broken", "constant-initialisation", where="all weights, from the first step",
      cure="leave the weights as PyTorch draws them")  # fmt: skip
def tickets_sold_by_the_agency_in_the_last_week(folder, ill):
    seeded(15104)
    way = torch.randn(10, 5) / 10**0.5

    def concerts(rows):
        x = torch.randn(rows, 10)
        seen = x @ way
        sold = (2.5 * seen).sin() @ torch.tensor([1.0, -0.7, 0.8, 0.6, -0.9]) + 0.4 * seen[:, 0] * seen[:, 1]
        return x, (sold + 0.1 * torch.randn(rows))[:, None]

    (x, y), (tx, ty) = concerts(4000), concerts(1500)
    draw = rounds(100, x, y)
    net = dense(10, 64, 64, 1, act=nn.Tanh)
    if ill:
        for layer in net:
            if isinstance(layer, nn.Linear):
                nn.init.constant_(layer.weight, 0.05)
                nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        concert, sold = draw()
        return F.mse_loss(net(concert), sold), validate(step)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


# 20 of the list
@sick("generator-starves", "discriminator-too-strong", "saturating-generator-loss",
      where="the maker, soon after the start",
      cure="a judge at the maker's pace, and a maker's loss that does not fade")  # fmt: skip
def profiles_across_the_web_of_a_paper_machine(folder, ill):
    seeded(15105)
    across = torch.linspace(0, 1, 24)

    def profiles(rows):
        tilt, phase = torch.randn(rows, 1), 6.2832 * torch.rand(rows, 1)
        return 1.5 + 0.5 * tilt * (across - 0.5) + 0.6 * (6.2832 * 2 * across + phase).sin()

    fresh = profiles(400)
    make = dense(8, 64, 64, 24)
    judge = dense(24, 128, 128, 1, act=lambda: nn.LeakyReLU(0.2)) if ill else dense(
        24, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))  # fmt: skip
    of_make = torch.optim.Adam(make.parameters(), 5e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 5e-3 if ill else 5e-4, betas=(0.5, 0.999))

    def judge_loss():
        made = make(torch.randn(64, 8)).detach()
        return F.softplus(-judge(profiles(64))).mean() + F.softplus(judge(made)).mean()

    def make_loss():
        said = judge(make(torch.randn(64, 8)))
        return -F.softplus(said).mean() if ill else F.softplus(-said).mean()

    def score():
        """The energy distance of what is made from fresh profiles."""
        with torch.no_grad():
            made = make(torch.randn(400, 8))
            within = (torch.cdist(made, made).mean() + torch.cdist(fresh, fresh).mean()) / 2
            return float(torch.cdist(made, fresh).mean() - within)

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 350, score,
                   rounds=3 if ill else 1)  # fmt: skip
