"""Tables, recordings, maps and molecules: mistakes that people told about in public."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, rounds, tend


# https://github.com/HHTseng/video-classification/issues/42
@sick(
    "axes-mixed",
    where="the recurrent layer: it runs over the examples of the batch, all steps",
    cure="batch_first=True, or swap the first two dimensions",
)
def order_of_two_bells(folder, ill):
    seeded(3043)

    class Listener(nn.Module):
        def __init__(self):
            super().__init__()
            self.frame = nn.Sequential(nn.Linear(10, 20), nn.ReLU())
            self.memory = nn.GRU(20, 24, batch_first=not ill)
            self.head = nn.Linear(24, 2)

        def forward(self, x):
            return self.head(self.memory(self.frame(x))[0][:, -1])

    bells = torch.randn(2, 10)

    def draw(rows=32, frames=10):
        x = 0.5 * torch.randn(rows, frames, 10)
        first = torch.randint(2, (rows,))
        early, late = torch.randint(4, (rows,)), torch.randint(5, frames, (rows,))
        x[torch.arange(rows), early] += bells[first]
        x[torch.arange(rows), late] += bells[1 - first]
        return x, first

    net = Listener()

    def loss_of(step):
        x, first = draw()
        found = net(x)
        return F.cross_entropy(found, first), {"accuracy": (found.argmax(1) == first).float().mean()}

    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    return fit(folder, net, optimizer, loss_of, 300, score=score_of(lambda step: loss_of(step)[0], 12))


# https://github.com/ClementPinard/SfmLearner-Pytorch/issues/5
@sick(
    "weights-unchanged",
    where="the body, all steps: where there is a schedule only the schedule steps",
    cure="step the optimizer as well as the schedule",
)
def depth_of_wells(folder, ill):
    seeded(3044)
    x = torch.randn(2400, 9)
    y = ((x[:, :3] @ torch.randn(3, 1)).tanh() * 2 + x[:, 3:4] * x[:, 4:5]) + 0.1 * torch.randn(2400, 1)
    net = nn.ModuleDict({"body": nn.Sequential(dense(9, 24, 24), nn.ReLU()), "head": nn.Linear(24, 1)})
    draw = rounds(64, x[:2000], y[:2000])
    slow, quick = torch.optim.Adam(net["body"].parameters(), 4e-3), torch.optim.Adam(net["head"].parameters(), 4e-3)
    schedules = {slow: torch.optim.lr_scheduler.StepLR(slow, 250, 0.5)}

    def error(rows, wanted):
        return F.smooth_l1_loss(net["head"](net["body"](rows)), wanted)

    def one(step):
        loss = error(*draw())
        for optimizer in (slow, quick):
            optimizer.zero_grad()
        loss.backward()
        for optimizer in (slow, quick):
            schedule = schedules.get(optimizer)
            if not ill or not schedule:
                optimizer.step()
            if schedule:
                schedule.step()
        return {"loss": loss}

    return tend(folder, net, [slow, quick], one, 600, held_out(net, lambda: error(x[2000:], y[2000:])))


# https://github.com/Gofinge/CheXpert_Baseline_PyTorch/issues/5
@sick(
    "dropout-too-strong",
    where="both dropouts, all steps: they keep a tenth",
    cure="p=0.1: torch's p is the share that is dropped",
)
def grades_of_fleece(folder, ill):
    seeded(3045)
    spots = torch.randn(15, 8) * 1.3
    grade = torch.arange(15) % 5
    p = 0.9 if ill else 0.1
    net = nn.Sequential(
        nn.Linear(8, 40), nn.ReLU(), nn.Dropout(p), nn.Linear(40, 40), nn.ReLU(), nn.Dropout(p), nn.Linear(40, 5)
    )

    def draw(rows=64):
        at = torch.randint(15, (rows,))
        return spots[at] + 0.6 * torch.randn(rows, 8), grade[at]

    def loss_of(step):
        x, y = draw()
        found = net(x)
        return F.cross_entropy(found, y), {"accuracy": (found.argmax(1) == y).float().mean()}

    def fresh():
        x, y = draw(1500)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 700, score=held_out(net, fresh))


# https://github.com/jvargasmu/population_estimation/issues/68
@sick(
    "dead-units",
    "dead-layer",
    where="the last ReLU, and all layers before it: what comes into it is below zero from the first step on",
    cure="a softplus in place of the last ReLU",
)
def guests_of_holiday_houses(folder, ill):
    seeded(3052)
    way = torch.randn(7, 1) / 2.6
    x = torch.rand(300, 20, 7) + 0.5
    houses = torch.randint(0, 6, (300, 20, 1)).float()
    density = (2 * (x @ way)).exp().clamp(max=6)
    counts = (density * houses).sum(1) / 20
    net = nn.Sequential(dense(7, 64, 64, 1), nn.ReLU() if ill else nn.Softplus())
    draw = rounds(32, x[:240], houses[:240], counts[:240])

    def found(cells, built):
        return (net(cells) * built).sum(1) / 20

    def loss_of(step):
        cells, built, wanted = draw()
        return F.l1_loss(found(cells, built), wanted)

    score = held_out(net, lambda: F.l1_loss(found(x[240:], houses[240:]), counts[240:]))
    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 400, score=score)


# https://github.com/ChenglongChen/tensorflow-DeepFM/issues/47
@sick(
    "inputs-not-normalised",
    where="the first layer of the deep part and the factors of the columns of numbers, all steps",
    cure="standardise the columns of numbers",
)
def clicks_on_train_tickets(folder, ill):
    seeded(3047)

    class Machine(nn.Module):
        """Factors of pairs and a deep part of the same columns."""

        def __init__(self, width=8):
            super().__init__()
            self.names = nn.Embedding(40, width)
            self.numbers = nn.Parameter(0.1 * torch.randn(4, width))
            self.wide = nn.Linear(4, 1)
            self.deep = dense(6 * width, 48, 48, 1)
            nn.init.normal_(self.names.weight, std=0.1)

        def forward(self, names, numbers):
            each = torch.cat([self.names(names), numbers[:, :, None] * self.numbers], 1)
            pairs = (each.sum(1).square() - each.square().sum(1)).sum(1) / 2
            return self.wide(numbers)[:, 0] + pairs + self.deep(each.flatten(1))[:, 0]

    net = Machine()
    like, town = torch.randn(20), torch.randn(20)
    rows = 4000
    names = torch.stack([torch.randint(20, (rows,)), 20 + torch.randint(20, (rows,))], 1)
    plain = torch.randn(rows, 4)
    wish = like[names[:, 0]] * town[names[:, 1] - 20] + 1.5 * plain[:, 0] - plain[:, 1] * plain[:, 2]
    clicks = (wish + 0.3 * torch.randn(rows) > 0).float()
    numbers = plain * torch.tensor([900.0, 12.0, 250.0, 40.0]) + torch.tensor([4000.0, 35.0, 700.0, 90.0])
    if not ill:
        numbers = (numbers - numbers[:3200].mean(0)) / numbers[:3200].std(0)
    draw = rounds(64, names[:3200], numbers[:3200], clicks[:3200])

    def loss_of(step):
        name, number, click = draw()
        found = net(name, number)
        return F.binary_cross_entropy_with_logits(found, click), {
            "accuracy": ((found > 0) == (click > 0)).float().mean()
        }

    def fresh():
        return ((net(names[3200:], numbers[3200:]) > 0) != (clicks[3200:] > 0)).float().mean()

    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 800, score=held_out(net, fresh))


# https://github.com/nronne/agedi/pull/82
@sick(
    "targets-not-normalised",
    where="the loss and the head, all steps: energies in the hundreds that hang on the composition alone",
    cure="subtract reference energies per species, fitted by least squares, from the energies",
)
def energies_of_small_crystals(folder, ill):
    seeded(3048)
    rows, atoms = 1200, 8
    kind = torch.randint(3, (rows, atoms))
    place = 2.5 * torch.rand(rows, atoms, 3)
    apart = torch.cdist(place, place) + 10 * torch.eye(atoms)
    strength = torch.tensor([[1.0, 0.4, -0.6], [0.4, 0.8, 0.3], [-0.6, 0.3, 1.2]])
    bond = (strength[kind[:, :, None], kind[:, None, :]] * (-apart.square()).exp()).sum((1, 2), keepdim=True)[:, 0]
    number = F.one_hot(kind, 3).float().sum(1)
    energy = bond + number @ torch.tensor([[-158.0], [-41.0], [-329.0]])
    near = (-apart.square()[..., None] / torch.tensor([0.3, 1.0, 2.5])).exp()
    around = torch.einsum("bijk,bjs->biks", near, F.one_hot(kind, 3).float()).flatten(2)
    x = torch.cat([F.one_hot(kind, 3).float(), around], 2)
    known = torch.zeros(rows, 1) if ill else number @ torch.linalg.lstsq(number[:1000], energy[:1000]).solution
    net, draw = dense(12, 48, 48, 1, act=nn.SiLU), rounds(50, x[:1000], energy[:1000] - known[:1000])

    def loss_of(step):
        cells, wanted = draw()
        return F.mse_loss(net(cells).sum(1), wanted)

    score = held_out(net, lambda: F.l1_loss(net(x[1000:]).sum(1) + known[1000:], energy[1000:]))
    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 600, score=score)
