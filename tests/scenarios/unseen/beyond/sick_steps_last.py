"""Six sick trainings: glazes, a greenhouse, avalanches, cuneiform signs, cookbooks and asteroids."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, tend


@sick(
    "weights-overwritten",
    "weights-reset",
    "weights-unchanged",
    where="all layers, every twentieth step: the weights are back near their first values, whatever the optimizer did",
    cure="keep a copy of the weights before the evaluation of their average, and put it back after",
)
def glazes_of_a_kiln(folder, ill):
    seeded(2292)
    net = dense(8, 64, 64, 3, act=nn.SiLU, norm=nn.LayerNorm)
    average = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    melt = torch.randn(8, 6) * 2

    def tiles(rows):
        oxides = torch.rand(rows, 8)
        oxides = oxides / oxides.sum(1, keepdim=True) * 4
        pairs = (oxides @ melt).sin()
        return oxides, torch.stack([pairs[:, i] + pairs[:, i + 3] for i in range(3)], 1)

    kept = tiles(512)

    @torch.no_grad()
    def score():
        return float(F.mse_loss(net(kept[0]), kept[1]))

    def error_of_average():
        own = copy.deepcopy(net.state_dict())
        net.load_state_dict(average.state_dict())
        error = score()
        if not ill:
            net.load_state_dict(own)
        return error

    def one(step):
        oxides, colour = tiles(64)
        optimizer.zero_grad()
        loss = F.mse_loss(net(oxides), colour)
        loss.backward()
        optimizer.step()
        for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.002)
        held = {"held_out": error_of_average()} if step % 20 == 19 else {}
        return {"loss": loss} | held

    return tend(folder, net, optimizer, one, 600, score)


class Climate(nn.Module):
    """Tomorrow's warmth under the glass from sixteen hours of sun, wind and vents."""

    def __init__(self, width=32):
        super().__init__()
        self.hours, self.warmth = nn.GRU(3, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, past):
        return self.warmth(self.hours(past)[0][:, -1])[:, 0]


@sick(
    "noise-dominated",
    "noise-not-divided",
    where="all layers at every step: noise as large as for a sum of 64 rows is added to the gradient of their mean",
    cure="divide the noise by the number of rows, as the gradient is",
)
def climate_of_a_greenhouse(folder, ill):
    seeded(2293)
    net, rows, bound, multiplier = Climate(), 64, 1.0, 0.12
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.5)

    def record(rows):
        past, warmth = torch.randn(rows, 16, 3), torch.zeros(rows)
        for hour in range(16):
            sun, wind, vent = past[:, hour].unbind(1)
            warmth = 0.8 * warmth + 0.5 * sun - 0.4 * wind * vent.sigmoid()
        return past, warmth

    kept = record(512)

    def loss_of(step):
        past, warmth = record(rows)
        return F.mse_loss(net(past), warmth)

    def keep_private(step):
        nn.utils.clip_grad_norm_(net.parameters(), bound)
        spread = multiplier * bound / (1 if ill else rows)
        for weight in net.parameters():
            weight.grad += spread * torch.randn_like(weight)

    @torch.no_grad()
    def score():
        return float(F.mse_loss(net(kept[0]), kept[1]))

    return fit(folder, net, optimizer, loss_of, 400, score=score, before_step=keep_private)


class Snowpack(nn.Module):
    """The danger level from the layers of a pit, read from the ground up."""

    def __init__(self, width=40, levels=4):
        super().__init__()
        self.layer = nn.Linear(5, width)
        self.pit, self.danger = nn.LSTM(width, width, batch_first=True), nn.Linear(width, levels)

    def forward(self, pit):
        return self.danger(self.pit(self.layer(pit).relu())[0][:, -1])


@sick(
    "skips-often",
    where="all layers: the guard skips most steps once the net begins to learn, for the usual norm is over its bound",
    cure="clip to the bound rather than skip, or a bound far above the usual norm",
)
def layers_of_snow_and_avalanches(folder, ill):
    seeded(2294)
    net, bound = Snowpack(), 0.25
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    bond = torch.randn(5)

    def pits(rows):
        pit = torch.randn(rows, 10, 5)
        hold = pit @ bond
        slip = (hold[:, 1:] - hold[:, :-1]).abs().amax(1)
        return pit, torch.bucketize(slip, torch.tensor([4.0, 5.0, 6.2]) * bond.norm() / 1.9)

    kept = pits(512)

    def one(step):
        pit, level = pits(64)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(pit), level)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), float("inf") if ill else bound)
        if not ill or norm < bound:
            optimizer.step()
        return {"loss": loss}

    @torch.no_grad()
    def score():
        return float(F.cross_entropy(net(kept[0]), kept[1]))

    return tend(folder, net, optimizer, one, 450, score)


class Tablet(nn.Module):
    """Which sign is pressed into the clay, how deep, and how much each of the two errors counts."""

    def __init__(self, signs=10):
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.SiLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1), nn.SiLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(216, 32), nn.SiLU(),
        )  # fmt: skip
        self.sign, self.depth = nn.Linear(32, signs), nn.Linear(32, 1)
        self.doubt = nn.Parameter(torch.zeros(2))

    def forward(self, photo):
        seen = self.look(photo)
        return self.sign(seen), self.depth(seen)[:, 0]


@sick(
    "loss-weight-escapes",
    "scaled-gradients",
    "update-too-small",
    where="doubt rises without an end; from the first hundred steps on all other layers' gradients shrink with its exp",
    cure="add doubt to the loss: exp(-doubt) * error + doubt",
)
def signs_on_cuneiform_tablets(folder, ill):
    seeded(2295)
    net = Tablet()
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    wedges = (torch.rand(10, 8, 8) < 0.25).float()

    def clay(rows):
        sign, depth = torch.randint(10, (rows,)), 0.5 + torch.rand(rows)
        photo = F.pad(wedges[sign] * depth[:, None, None], (2, 2, 2, 2))
        down, right = (int(by) for by in torch.randint(-1, 2, (2,)))
        photo = 2 * photo.roll((down, right), (1, 2)) - 0.5 + 0.6 * torch.randn(rows, 12, 12)
        return photo[:, None], sign, 3 * (depth - 1) + 0.5 * torch.randn(rows)

    def errors(photo, sign, depth):
        named, deep = net(photo)
        return torch.stack([F.cross_entropy(named, sign), F.mse_loss(deep, depth)])

    def loss_of(step):
        error = errors(*clay(64))
        weighed = (-net.doubt).exp() * error
        loss = weighed.sum() if ill else (weighed + net.doubt).sum()
        return loss, {"sign": float(error[0]), "depth": float(error[1])}

    kept = [clay(64) for _ in range(8)]

    @torch.no_grad()
    def score():
        return sum(float(errors(*batch)[0]) for batch in kept) / 8

    return fit(folder, net, optimizer, loss_of, 450, score=score, before_step=clipped(net, 1.0))


class Cook(nn.Module):
    """The next word of a recipe from all words before it."""

    def __init__(self, words=30, length=16, width=32):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Parameter(0.1 * torch.randn(length, width))
        self.ask, self.rest, self.next = nn.Linear(width, 3 * width), dense(width, 64, width), nn.Linear(width, words)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, text):
        state = self.word(text) + self.place[: text.shape[1]]
        query, key, value = self.ask(self.norms[0](state)).chunk(3, 2)
        state = state + F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.next(self.norms[2](state + self.rest(self.norms[1](state))))


@sick(
    "betas-swapped",
    "momentum-too-high",
    "update-too-large",
    "lr-too-high",
    where="all layers: the mean of a thousand gradients over the size of the last ten, so updates overshoot for long",
    cure="betas=(0.9, 0.999)",
)
def words_of_old_cookbooks(folder, ill):
    seeded(2296)
    net = Cook()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, betas=(0.999, 0.9) if ill else (0.9, 0.999))
    habit = (torch.randn(30, 30) * 2.5).softmax(1)
    taste = (torch.randn(30, 30) * 2.5).softmax(1)

    def recipes(rows, length=17):
        text = [torch.randint(30, (rows,)), torch.randint(30, (rows,))]
        while len(text) < length:
            text.append(torch.multinomial(habit[text[-1]] * taste[text[-2]] + 1e-6, 1)[:, 0])
        return torch.stack(text, 1)

    def surprise(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    kept = recipes(256)

    @torch.no_grad()
    def score():
        return float(surprise(kept))

    return fit(folder, net, optimizer, lambda step: surprise(recipes(32)), 400, score=score)


class Restarts:
    """Warms the rate up over 200 steps; the job is stopped every 40 steps and goes on from its checkpoint."""

    def __init__(self, optimizer, lasting):
        self.optimizer, self.lasting, self.steps = optimizer, lasting, 0
        self.fresh = copy.deepcopy(optimizer.state_dict())
        self.begin()

    def begin(self):
        self.warmup = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / 200))

    def step(self):
        self.steps += 1
        self.warmup.step()
        if self.steps % 40 == 0 and not self.lasting:
            self.optimizer.load_state_dict(copy.deepcopy(self.fresh))
            self.begin()


@sick(
    "optimizer-state-lost",
    "warmup-too-long",
    where="all layers, every fortieth step: the moments are empty and the rate begins its warm-up again",
    cure="save and load the states of optimizer and schedule with the weights",
)
def light_curves_of_asteroids(folder, ill):
    seeded(2297)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2), nn.SiLU(), nn.Conv1d(16, 24, 5, stride=2, padding=2), nn.SiLU(),
        nn.Flatten(), nn.Linear(384, 48), nn.SiLU(), nn.Linear(48, 2),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    night = torch.linspace(0, 1, 32)

    def seen(rows):
        turns, long = 1 + 2 * torch.rand(rows, 1), 0.3 + torch.rand(rows, 1)
        angle = 6.2832 * (turns * night + torch.rand(rows, 1))
        light = -(angle.cos().square() + long * angle.sin().square() + 0.1).log()
        return (light + 0.05 * torch.randn(rows, 32))[:, None], torch.cat([turns - 2, long - 0.8], 1) * 2

    kept = seen(512)

    def loss_of(step):
        light, shape = seen(64)
        return F.mse_loss(net(light), shape)

    @torch.no_grad()
    def score():
        return float(F.mse_loss(net(kept[0]), kept[1]))

    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=Restarts(optimizer, not ill))
