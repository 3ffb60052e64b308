"""Baggage belts, ripening cheese, mildew, players of blitz games, late arrivals and rook endings."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds


# 15 of the list
@sick("schedule-too-short", "schedule-stepped-per-batch", where="the learning rate, from the first tenth on",
      cure="step the schedule once an epoch")  # fmt: skip
def bags_on_the_belt_in_the_next_quarter_of_an_hour(folder, ill):
    seeded(14706)

    def days(rows):
        """Two hours of counts each five minutes, the flights that landed, and the bags that come next."""
        time = torch.arange(24.0) / 24
        phase, pace = torch.rand(rows, 1), 1 + torch.rand(rows, 1)
        belt = (6.2832 * (pace * time + phase)).sin() + 0.2 * torch.randn(rows, 24)
        landed = torch.randn(rows, 24)
        after = (6.2832 * (pace * 1.1 + phase)).sin() + 0.5 * landed[:, -6:].mean(1, keepdim=True) * 6**0.5
        return torch.stack([belt, landed], 1), after + 0.1 * torch.randn(rows, 1)

    (x, y), (tx, ty) = days(1280), days(800)
    draw = rounds(64, x, y)
    batches = len(x) // 64
    net = nn.Sequential(
        nn.Conv1d(2, 24, 5), nn.ReLU(), nn.Conv1d(24, 24, 5, dilation=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(288, 48), nn.ReLU(), nn.Linear(48, 1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=8, gamma=0.3)
    validate = now_and_then(net, batches, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def after_step(step):
        if ill or (step + 1) % batches == 0:
            schedule.step()

    def loss_of(step):
        hours, bags = draw()
        return F.mse_loss(net(hours), bags), {"lr": schedule.get_last_lr()[0], **validate(step)}

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 24 * batches, score=score, after_step=after_step)


class Cellar(nn.Module):
    """A few layers of one width between what comes in and the head."""

    def __init__(self, hold):
        super().__init__()
        self.hidden = hold([nn.Linear(10, 24), nn.Linear(24, 24), nn.Linear(24, 24)])
        self.head = nn.Linear(24, 2)

    def forward(self, x):
        for layer in self.hidden:
            x = F.relu(layer(x))
        return self.head(x)


# 21 of the list
@sick("not-in-optimizer", "layers-not-registered", where="the hidden layers, all steps",
      cure="hold the layers in an nn.ModuleList")  # fmt: skip
def firmness_and_acidity_of_cheese_wheels_as_they_ripen(folder, ill):
    seeded(14707)
    way = torch.randn(10, 4) / 10**0.5

    def wheels(rows):
        x = torch.randn(rows, 10)
        a, b, c, d = (x @ way).unbind(1)
        y = torch.stack([(2 * a).sin() + b * c, (2 * d).tanh() + a.square() - 1], 1)
        return x, y + 0.05 * torch.randn(rows, 2)

    (x, y), (tx, ty) = wheels(4000), wheels(1000)
    draw = rounds(40, x, y)
    net = Cellar(list if ill else nn.ModuleList)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def loss_of(step):
        wheel, measured = draw()
        firmness, acidity = (net(wheel) - measured).square().mean(0)
        return firmness + acidity, {"firmness": float(firmness.detach()), "acidity": float(acidity.detach())}

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


# 23 of the list
@sick("dropout-too-strong", where="both hidden layers, all steps", cure="drop a tenth")
def mildew_on_vines_from_a_week_of_weather(folder, ill):
    seeded(14708)

    def weeks(rows):
        """Rain, warmth and wet leaves of seven days; no, little or much mildew."""
        rain, warm = torch.randn(rows, 7), torch.randn(rows, 7)
        wet = 0.6 * rain + 0.8 * torch.randn(rows, 7)
        danger = (wet.sigmoid() * torch.exp(-(warm - 0.3).square())).sum(1) + 0.1 * torch.randn(rows)
        return torch.cat([rain, warm, wet], 1), (danger > 1.5).long() + (danger > 2.1).long()

    (x, y), (tx, ty) = weeks(6000), weeks(2000)
    draw = rounds(64, x, y)
    share = 0.8 if ill else 0.1
    net = nn.Sequential(
        nn.Linear(21, 48), nn.ReLU(), nn.Dropout(share), nn.Linear(48, 48), nn.ReLU(), nn.Dropout(share),
        nn.Linear(48, 3),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        week, mildew = draw()
        said = net(week)
        right = (said.argmax(1) == mildew).float().mean()
        return F.cross_entropy(said, mildew), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: (net(tx).argmax(1) != ty).float().mean())
    return fit(folder, net, optimizer, loss_of, 600, score=score)


class Style(nn.Module):
    """An embedding of length one."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(40, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 16))

    def forward(self, x):
        return F.normalize(self.layers(x), dim=1)


# 27 of the list
@sick("logits-bounded", "temperature-too-high", where="the loss, all steps", cure="a temperature of a tenth")
def blitz_players_matched_by_two_of_their_games(folder, ill):
    seeded(14709)
    manner, mood = torch.randn(6, 40) / 6**0.5, torch.randn(10, 40) / 10**0.5

    def pairs(rows):
        """Two games of each player: the manner is the same, the mood of the day is not."""
        player = torch.randn(rows, 6) * torch.tensor([2.0, 1.5, 1.2, 1.0, 0.8, 0.6])
        games = ((player @ manner + torch.randn(rows, 10) @ mood).tanh() for _ in range(2))
        return [game + 0.05 * torch.randn(rows, 40) for game in games]

    one, other = pairs(256)
    net = Style()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    temperature = 2.0 if ill else 0.1

    def loss_of(step):
        left, right = (net(games) for games in pairs(64))
        near, those = left @ right.T / temperature, torch.arange(64)
        loss = (F.cross_entropy(near, those) + F.cross_entropy(near.T, those)) / 2
        return loss, {"top1": float((near.argmax(1) == those).float().mean())}

    def missed():
        """The share of players for whom another one stands first."""
        near = net(one) @ net(other).T
        return (near.argmax(1) != torch.arange(256)).float().mean()

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, missed))


# 34 of the list
@sick("noise-dominated", "batch-too-small", where="all layers, all steps", cure="batches of 64")
def arrivals_that_come_late_by_carrier_and_weather(folder, ill):
    seeded(14710)
    way = torch.randn(16, 5) / 4

    def arrivals(rows):
        x = torch.randn(rows, 16)
        logits = 2.5 * (x @ way) + torch.stack([(x @ way)[:, i] * (x @ way)[:, i - 1] for i in range(5)], 1)
        return x, torch.multinomial(logits.softmax(1), 1)[:, 0]

    (x, y), (tx, ty) = arrivals(12000), arrivals(3000)
    draw = rounds(2 if ill else 64, x, y)
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5))
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        flight, late = draw()
        return F.cross_entropy(net(flight), late), validate(step)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 36 of the list
@sick("label-noise", "labels-do-not-fit-inputs", where="the targets, all steps",
      cure="have the annotations checked and the wrong ones corrected")  # fmt: skip
def rook_endings_won_drawn_or_lost_as_members_noted_them(folder, ill):
    seeded(14711)
    way = torch.randn(18, 3) / 18**0.5

    def endings(rows):
        x = torch.randn(rows, 18)
        a, b, c = (x @ way).unbind(1)
        worth = 1.5 * a + b * c + 0.1 * torch.randn(rows)
        return x, (worth > -0.7).long() + (worth > 0.7).long()

    (x, y), (tx, ty) = endings(2000), endings(1500)
    wrong = torch.rand(len(y)) < 0.4
    noted = torch.where(wrong, (y + torch.randint(1, 3, y.shape)) % 3, y)
    draw = rounds(50, x, noted if ill else y)
    net = nn.Sequential(nn.Linear(18, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-5)
    validate = now_and_then(net, 40, judged(net, tx, ty))

    def loss_of(step):
        ending, result = draw()
        said = net(ending)
        right = (said.argmax(1) == result).float().mean()
        return F.cross_entropy(said, result), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))
