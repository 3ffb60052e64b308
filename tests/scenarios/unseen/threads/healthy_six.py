"""Sound trainings of an ordinary make: a hoard of coins, bids, sherds, rubbings of letters, lifts."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import WeightedRandomSampler
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds

import gradwatch

# --------------------------------------------------------------------------------------------------------------- coins


def coins(rows, alloy, forged_share=0.05):
    """Weight, size and alloy of coins, and which are cast by forgers: light for their size, odd in alloy."""
    forged = (torch.rand(rows) < forged_share).float()
    wear, mint = torch.randn(rows, 1), torch.randn(rows, 3)
    metals = mint @ alloy + 0.3 * torch.randn(rows, 8)
    metals = metals + 0.8 * forged[:, None] * mint[:, :1].sign() * alloy[1]
    size = 1 + 0.1 * torch.randn(rows, 1)
    weight = size.square() - 0.1 * wear.abs() - 0.12 * forged[:, None] + 0.03 * torch.randn(rows, 1)
    return torch.cat([4 * (weight - 0.9), 6 * (size - 1), wear, metals], 1), forged


@healthy()
def coins_of_a_hoard(folder):
    seeded(2420)
    alloy = torch.randn(3, 8)
    (x_all, y_all), (x_new, y_new) = coins(8000, alloy), coins(4000, alloy)
    net, share = dense(11, 64, 64, 1), y_all.mean()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    chances = torch.where(y_all > 0, 0.5 / share, 0.5 / (1 - share))
    chosen = torch.tensor(list(WeightedRandomSampler(chances, 64 * 500)))

    def loss_of(step):
        rows = chosen[64 * step : 64 * step + 64]
        out = net(x_all[rows])[:, 0]
        found = ((out > 0).float() * y_all[rows]).sum() / y_all[rows].sum()
        return F.binary_cross_entropy_with_logits(out, y_all[rows]), {"recall": found}

    def of_both_kinds():
        out = net(x_new)[:, 0]
        return sum(F.binary_cross_entropy_with_logits(out[y_new == y], y_new[y_new == y]) for y in (0, 1)) / 2

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, of_both_kinds))


# ---------------------------------------------------------------------------------------------------------------- bids


def auctions(rows, bids=16):
    """How far a price has come after each bid, from -1 to 1: fast at first or late, in jumps."""
    t, bend = torch.linspace(0, 1, bids), (1.2 * torch.randn(rows, 1)).exp()
    top = 0.4 + 0.6 * torch.rand(rows, 1)
    jumps = 0.03 * torch.randn(rows, bids)
    return (2 * (top * t**bend + jumps) - 1).clamp(-1, 1)[:, None]


def drawn_small(part):
    if isinstance(part, (nn.Conv1d, nn.ConvTranspose1d)):
        nn.init.normal_(part.weight, 0.0, 0.02)
    elif isinstance(part, nn.BatchNorm1d):
        nn.init.normal_(part.weight, 1.0, 0.02)
        nn.init.zeros_(part.bias)


def forger_and_auctioneer():
    make = nn.Sequential(
        nn.ConvTranspose1d(8, 32, 4, 1, 0, bias=False), nn.BatchNorm1d(32), nn.ReLU(),
        nn.ConvTranspose1d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm1d(16), nn.ReLU(),
        nn.ConvTranspose1d(16, 1, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    judge = nn.Sequential(
        nn.Conv1d(1, 16, 4, 2, 1, bias=False), nn.LeakyReLU(0.2),
        nn.Conv1d(16, 32, 4, 2, 1, bias=False), nn.BatchNorm1d(32), nn.LeakyReLU(0.2),
        nn.Conv1d(32, 1, 4, 1, 0, bias=False), nn.Flatten(0),
    )  # fmt: skip
    return make.apply(drawn_small), judge.apply(drawn_small)


def apart(made, real):
    """The energy distance of two sets of curves."""
    made, real = made.flatten(1), real.flatten(1)
    return float(2 * torch.cdist(made, real).mean() - torch.cdist(made, made).mean() - torch.cdist(real, real).mean())


@healthy()
def bids_at_an_auction(folder, steps=550):
    seeded(2421)
    (make, judge), (real_all) = forger_and_auctioneer(), auctions(4000)
    draw, real_new, call = rounds(64, real_all), auctions(500), F.binary_cross_entropy_with_logits
    of_make, of_judge = (torch.optim.Adam(net.parameters(), 1e-3, betas=(0.5, 0.999)) for net in (make, judge))
    yes, no = torch.ones(64), torch.zeros(64)

    def score():
        with torch.no_grad():
            return apart(make(torch.randn(500, 8, 1)), real_new)

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    w_judge = gradwatch.watch(judge, of_judge, name="netD", **options)
    w_make = gradwatch.watch(make, of_make, name="netG", run=w_judge, **options)
    with w_judge, w_make:
        for _ in range(steps):
            made = make(torch.randn(64, 8, 1))
            of_judge.zero_grad()
            of_real, of_made = call(judge(draw()[0]), yes), call(judge(made.detach()), no)
            (of_real + of_made).backward()
            of_judge.step()
            w_judge.log(loss=of_real + of_made)
            of_make.zero_grad()
            fooled = call(judge(made), yes)
            fooled.backward()
            of_make.step()
            w_make.log(loss=fooled)
    return Outcome(gradwatch.open_history(w_judge.dir.parent), first, score())


# -------------------------------------------------------------------------------------------------------------- sherds


def dig(sherds=400, fabrics=5, marks=60):
    """What marks each sherd has, whom it lay with, and its fabric."""
    fabric, usual = torch.randint(fabrics, (sherds,)), torch.rand(fabrics, marks).square()
    has = (torch.rand(sherds, marks) < 0.3 * usual[fabric] + 0.05).float()
    alike = fabric[:, None] == fabric
    near = (torch.rand(sherds, sherds) < torch.where(alike, 0.03, 0.003)).float().triu(1)
    near = near + near.T + torch.eye(sherds)
    scale = near.sum(1).rsqrt()
    return has / has.sum(1, keepdim=True).clamp(min=1), scale[:, None] * near * scale, fabric


@healthy()
def sherds_of_a_dig(folder):
    seeded(2422)
    has, near, fabric = dig()
    order = torch.randperm(len(fabric))
    train = torch.cat([order[fabric[order] == f][:20] for f in range(5)])
    test = order[~torch.isin(order, train)]
    net = nn.ModuleDict({"conv1": nn.Linear(60, 32), "conv2": nn.Linear(32, 5)})
    groups = [{"params": net["conv1"].parameters(), "weight_decay": 5e-4}, {"params": net["conv2"].parameters()}]
    optimizer = torch.optim.Adam(groups, 0.01)

    def out():
        x = F.dropout(has, 0.5, net.training)
        x = (near @ net["conv1"](x)).relu()
        return near @ net["conv2"](F.dropout(x, 0.5, net.training))

    def loss_of(step):
        logits = out()
        right = (logits[train].argmax(1) == fabric[train]).float().mean()
        return F.cross_entropy(logits[train], fabric[train]), {"train_acc": right}

    score = held_out(net, lambda: F.cross_entropy(out()[test], fabric[test]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


# ------------------------------------------------------------------------------------------------------------ rubbings


def rubbings(rows, letters, size=12):
    """Letters of a worn stone: shifted, half gone, on a rough ground."""
    letter, shift = torch.randint(len(letters), (rows,)), torch.randint(5, (rows, 2)).tolist()
    page = torch.zeros(rows, size, size)
    for row, (top, left) in enumerate(shift):
        page[row, top : top + 8, left : left + 8] = letters[letter[row]]
    worn = F.interpolate(torch.rand(rows, 1, 4, 4), size, mode="bilinear")
    return page[:, None] * (0.3 + worn) + 0.3 * torch.randn(rows, 1, size, size), letter


def mixed_up(x, y, classes, alpha=0.2):
    share = float(torch.distributions.Beta(alpha, alpha).sample())
    wanted = F.one_hot(y, classes).float()
    return share * x + (1 - share) * x.roll(1, 0), share * wanted + (1 - share) * wanted.roll(1, 0)


@healthy()
def letters_on_gravestones(folder, epoch=40, epochs=11):
    seeded(2423)
    letters = (torch.rand(10, 4, 4) < 0.5).float().repeat_interleave(2, 1).repeat_interleave(2, 2)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.98), use_buffers=True)
    norms = [p for part in net if isinstance(part, nn.BatchNorm2d) for p in part.parameters()]
    rest = [p for part in net if not isinstance(part, nn.BatchNorm2d) for p in part.parameters()]
    groups = [{"params": rest, "weight_decay": 1e-4}, {"params": norms, "weight_decay": 0.0}]
    optimizer, steps, warm = torch.optim.SGD(groups, 0.1, momentum=0.9, nesterov=True), epoch * epochs, 2 * epoch
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=warm),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - warm),
    ], [warm])  # fmt: skip
    draw, (x_new, y_new) = rounds(64, *rubbings(epoch * 64, letters)), rubbings(500, letters)

    def loss_of(step):
        x, wanted = mixed_up(*draw(), len(letters))
        return F.cross_entropy(net(x), wanted, label_smoothing=0.1)

    def after_step(step):
        average.update_parameters(net)

    score = held_out(average, lambda: F.cross_entropy(average(x_new), y_new))
    return fit(folder, net, optimizer, loss_of, steps, score=score, after_step=after_step, schedule=schedule)


# --------------------------------------------------------------------------------------------------------------- lifts


def calls(rows, lifts=4, floors=8):
    """Where the lifts are and which way they go, and a call, as a picture; and the lift that is there first."""
    floor, way = torch.randint(floors, (rows, lifts)), 2 * torch.randint(2, (rows, lifts)) - 1
    call = torch.randint(floors, (rows, 1))
    there = F.one_hot(floor, floors).float()
    asked = F.one_hot(call, floors).float().expand(-1, lifts, -1)
    picture = torch.stack([there, there * way[..., None], asked], 1)
    ahead = (call - floor) * way
    return picture, (torch.where(ahead >= 0, ahead, 5 - ahead) + 0.1 * torch.arange(lifts)).argmin(1)


@healthy()
def lifts_sent_to_a_call(folder, epoch=50):
    seeded(2424)
    net = nn.Sequential(
        nn.Conv2d(3, 24, (1, 3), padding=(0, 1)), nn.ReLU(), nn.Conv2d(24, 24, (1, 8)), nn.ReLU(), nn.Dropout(0.1),
        nn.Flatten(), nn.Linear(96, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 4), nn.LogSoftmax(1),
    )  # fmt: skip
    draw, (x_new, y_new) = rounds(64, *calls(epoch * 64)), calls(500)
    optimizer = torch.optim.Adadelta(net.parameters(), 1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.7 ** (step // epoch))

    def loss_of(step):
        x, y = draw()
        return F.nll_loss(net(x), y)

    score = held_out(net, lambda: F.nll_loss(net(x_new), y_new))
    return fit(folder, net, optimizer, loss_of, 10 * epoch, score=score, schedule=schedule)
