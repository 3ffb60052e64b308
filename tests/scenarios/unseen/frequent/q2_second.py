"""More of the valley: sluice gates, reading tests, fruit at the scales, sonar in the lake, parcels, baskets."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


# 27 of the list
@sick("wrong-sign", "negative-loss", "loss-sign-wrong", where="the loss of the policy, all steps",
      cure="minus the log-probabilities times the advantages")  # fmt: skip
def sluice_gates_that_keep_the_lake_at_its_mark(folder, ill):
    seeded(14306)
    net = dense(2, 32, 32, 3, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    release = torch.tensor([-0.5, 0.0, 0.5])

    def episodes(rows, length=10):
        """The log-probabilities of what was chosen and the rewards, both `[length, rows]`."""
        level, inflow = torch.randn(rows), 0.3 * torch.randn(rows)
        chances, rewards = [], []
        for _ in range(length):
            choice = torch.distributions.Categorical(logits=net(torch.stack([level, inflow], 1)))
            gate = choice.sample()
            level = (level + 0.5 * inflow - release[gate]).clamp(-3, 3)
            inflow = 0.8 * inflow + 0.2 * torch.randn(rows)
            chances.append(choice.log_prob(gate))
            rewards.append(-level.square())
        return torch.stack(chances), torch.stack(rewards)

    def one(step):
        chances, rewards = episodes(64)
        returns = rewards.flip(0).cumsum(0).flip(0)
        advantages = (returns - returns.mean(1, keepdim=True)) / (returns.std(1, keepdim=True) + 1e-6)
        gain = (chances * advantages).mean()
        loss = gain if ill else -gain
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.item(), "return": float(rewards.sum(0).mean())}

    def score():
        with torch.no_grad():
            return -float(episodes(1000)[1].mean())

    return tend(folder, net, optimizer, one, 250, score)


# 30 of the list
@sick("dropout-too-strong", where="the dropout after each hidden layer, all steps",
      cure="a dropout of a tenth: nine tenths is what should be kept")  # fmt: skip
def reading_levels_of_pupils_by_their_answers(folder, ill):
    seeded(14307)
    skills, items = torch.randn(3, 30), torch.randn(30)

    def tests(rows):
        pupil = torch.randn(rows, 3)
        answers = (torch.rand(rows, 30) < (2.5 * pupil @ skills - items).sigmoid()).float()
        good = pupil[:, 0] + pupil[:, 1] * pupil[:, 2]
        return 2 * answers - 1, torch.bucketize(good, torch.tensor([-1.2, -0.4, 0.3, 1.1]))

    (x, y), (vx, vy) = tests(5000), tests(1500)
    draw = rounds(64, x, y)
    rate = 0.9 if ill else 0.1
    net = nn.Sequential(
        nn.Linear(30, 64), nn.GELU(), nn.Dropout(rate), nn.Linear(64, 64), nn.GELU(), nn.Dropout(rate),
        nn.Linear(64, 64), nn.GELU(), nn.Dropout(rate), nn.Linear(64, 5),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    validate = now_and_then(net, 50, judged(net, vx, vy))

    def loss_of(step):
        answers, level = draw()
        said = net(answers)
        return F.cross_entropy(said, level), {
            "accuracy": float((said.argmax(1) == level).float().mean()), **validate(step)
        }  # fmt: skip

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(vx), vy)))


# 33 of the list
@sick("negative-loss", "kl-div-without-log", where="the loss, all steps",
      cure="hand the log-probabilities of the student to the divergence, not its probabilities")  # fmt: skip
def a_small_pupil_of_the_greengrocers_big_fruit_sorter(folder, ill):
    seeded(14308)
    fruits, heat = torch.randn(8, 2, 16), 3.0

    def crates(rows):
        kind = torch.randint(8, (rows,))
        return fruits[kind, torch.randint(2, (rows,))] + 1.1 * torch.randn(rows, 16), kind

    (x, y), (vx, _) = crates(4000), crates(1000)
    draw = rounds(64, x, y)
    teacher, student = dense(16, 128, 128, 8), dense(16, 32, 8)
    learning = torch.optim.Adam(teacher.parameters(), 1e-3)
    for _ in range(250):
        crate, kind = draw()
        learning.zero_grad()
        F.cross_entropy(teacher(crate), kind).backward()
        learning.step()
    teacher.requires_grad_(False).eval()
    optimizer = torch.optim.Adam(student.parameters(), 3e-3)

    def loss_of(step):
        crate, _ = draw()
        said, wanted = student(crate) / heat, (teacher(crate) / heat).softmax(1)
        told = said.softmax(1) if ill else said.log_softmax(1)
        agreed = (said.argmax(1) == wanted.argmax(1)).float().mean()
        return heat**2 * F.kl_div(told, wanted, reduction="batchmean"), {"agreement": float(agreed)}

    def gap():
        wanted = (teacher(vx) / heat).softmax(1)
        return heat**2 * F.kl_div((student(vx) / heat).log_softmax(1), wanted, reduction="batchmean")

    return fit(folder, student, optimizer, loss_of, 400, score=held_out(student, gap))


# 34 of the list
@sick("clip-is-your-learning-rate", "clipping-too-tight", where="the clipping before each step",
      cure="clip at a norm of 1, which only outliers reach")  # fmt: skip
def silt_gravel_or_rock_from_sonar_pings_in_the_lake(folder, ill):
    seeded(14309)
    time = torch.linspace(0, 1, 48)
    pitch, fading = torch.tensor([3.0, 5.0, 7.0, 9.0]), torch.tensor([1.0, 2.5, 1.5, 3.0])

    def pings(rows):
        kind = torch.randint(4, (rows,))
        phase = 6.2832 * torch.rand(rows, 1)
        echo = (6.2832 * pitch[kind, None] * time + phase).sin() * (-fading[kind, None] * time).exp()
        return (echo + 0.4 * torch.randn(rows, 48))[:, None] / 0.6, kind

    (x, y), (vx, vy) = pings(4000), pings(1000)
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.Conv1d(1, 12, 7, stride=2, padding=3), nn.ReLU(), nn.Conv1d(12, 24, 5, stride=2, padding=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(24 * 12, 32), nn.ReLU(), nn.Linear(32, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    validate = now_and_then(net, 60, judged(net, vx, vy))

    def loss_of(step):
        ping, kind = draw()
        return F.cross_entropy(net(ping), kind), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 0.001 if ill else 1.0))


# 36 of the list
@sick("accumulation-not-averaged", "lr-too-high", where="the eight backward passes before each step",
      cure="divide the loss of each micro-batch by their number")  # fmt: skip
def parcels_by_fragility_in_eight_small_lots_a_step(folder, ill):
    seeded(14310)
    lots = 8
    way = torch.randn(12, 3) / 12**0.5

    def parcels(rows):
        x = torch.randn(rows, 12)
        seen = x @ way
        ease = (2 * seen[:, 0]).sin() + seen[:, 1] * seen[:, 2] + 0.15 * torch.randn(rows)
        return x, torch.bucketize(ease, torch.tensor([-0.6, 0.0, 0.6]))

    (x, y), (vx, vy) = parcels(6000), parcels(1500)
    draw = rounds(16, x, y)
    net = dense(12, 64, 64, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def one(step):
        total = 0.0
        optimizer.zero_grad()
        for _ in range(lots):
            parcel, fragile = draw()
            loss = F.cross_entropy(net(parcel), fragile)
            (loss if ill else loss / lots).backward()
            total += loss.item()
        optimizer.step()
        return {"loss": total / lots}

    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: F.cross_entropy(net(vx), vy)))


# 38 of the list
@sick("no-negatives", "class-imbalance", where="the pairs and their labels, all steps",
      cure="draw four wares that were not bought for each that was")  # fmt: skip
def wares_for_shoppers_by_what_lay_in_their_baskets(folder, ill):
    seeded(14311)
    shoppers, wares = 200, 150
    taste, make = torch.randn(shoppers, 4), torch.randn(wares, 4)
    chance = (1.5 * taste @ make.T).softmax(1)

    def baskets(each):
        ware = torch.multinomial(chance, each, replacement=True)
        return torch.arange(shoppers).repeat_interleave(each), ware.flatten()

    draw = rounds(128, *baskets(60))
    who, what = baskets(10)

    class Matcher(nn.Module):
        def __init__(self):
            super().__init__()
            self.shopper, self.ware = nn.Embedding(shoppers, 16), nn.Embedding(wares, 16)
            self.judge = dense(32, 64, 32, 1)

        def forward(self, who, what):
            return self.judge(torch.cat([self.shopper(who), self.ware(what)], -1)).squeeze(-1)

    net = Matcher()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def loss_of(step):
        shopper, ware = draw()
        bought = torch.ones(len(ware))
        if not ill:
            shopper, ware = shopper.repeat(5), torch.cat([ware, torch.randint(wares, (4 * len(ware),))])
            bought = torch.cat([bought, torch.zeros(4 * len(bought))])
        return F.binary_cross_entropy_with_logits(net(shopper, ware), bought)

    def outranked():
        """The share of all wares that stand above the one that was bought."""
        everybody, everything = torch.arange(shoppers)[:, None], torch.arange(wares)[None]
        table = net(everybody.expand(-1, wares), everything.expand(shoppers, -1))
        return (table[who] > table[who, what][:, None]).float().mean()

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, outranked))
