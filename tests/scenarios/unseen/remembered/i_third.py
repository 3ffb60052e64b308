"""Trainings in which nothing is wrong, most of them ordinary: ships, trains and roads."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


def digits():
    """Images [1797, 1, 8, 8] between 0 and 1, and what they show."""
    bunch = load_digits()
    return torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16, torch.tensor(bunch.target).long()


@healthy(0.6)
def numbers_painted_on_goods_wagons(folder):
    seeded(10950)
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    draw = rounds(64, x[:1400], y[:1400])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=220)

    def loss_of(step):
        image, number = draw()
        dx, dy = torch.randint(-1, 2, (2,)).tolist()
        said = net(torch.roll(image, (dx, dy), (2, 3)))
        return F.cross_entropy(said, number), {"accuracy": (said.argmax(1) == number).float().mean()}

    test = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 220, schedule=schedule, score=test)


@healthy(0.5)
def travellers_at_a_junction_hour_by_hour(folder):
    seeded(10951)
    hours = torch.arange(24 * 120)
    day, week = 6.2832 * hours / 24, 6.2832 * hours / 168
    counts = 2 + day.sin() + 0.5 * (2 * day).cos() + 0.4 * week.sin() + 0.15 * torch.randn(len(hours))
    counts = (counts - counts[:2000].mean()) / counts[:2000].std()
    windows = counts.unfold(0, 37, 1)
    draw = rounds(32, windows[:2000])

    class Forecast(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = nn.GRU(1, 48, batch_first=True)
            self.head = nn.Linear(48, 1)

        def forward(self, past):
            return self.head(self.memory(past[:, :, None])[0][:, -1])[:, 0]

    net = Forecast()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def loss_of(step):
        (window,) = draw()
        return F.mse_loss(net(window[:, :36]), window[:, 36])

    test = windows[2100:]
    score = held_out(net, lambda: F.mse_loss(net(test[:, :36]), test[:, 36]))
    return fit(folder, net, optimizer, loss_of, 250, before_step=clipped(net, 1.0), score=score)


class Announcer(nn.Module):
    """A small causal transformer with tied embeddings."""

    def __init__(self, tokens, length, width=48):
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True, norm_first=True,
                                           activation="gelu")  # fmt: skip
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("later", torch.ones(length, length).triu(1).bool())
        for table in (self.token, self.place):
            nn.init.normal_(table.weight, 0.0, 0.02)

    def forward(self, said):
        n = said.shape[1]
        x = self.token(said) + self.place.weight[:n]
        return self.norm(self.body(x, mask=self.later[:n, :n])) @ self.token.weight.T


@healthy(0.3)
def stops_announced_on_the_coastal_line(folder):
    seeded(10952)
    tokens, length, steps = 24, 17, 200
    follows = torch.stack([torch.randperm(tokens)[:2] for _ in range(tokens)])

    def announced(rows):
        said = [torch.randint(tokens, (rows,))]
        for _ in range(length - 1):
            choice = (torch.rand(rows) < 0.15).long()
            said.append(follows[said[-1], choice])
        return torch.stack(said, 1)

    net = Announcer(tokens, length)
    matrices = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, 3e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min((n + 1) / 20, 0.55 + 0.45 * math.cos(math.pi * n / steps))
    )

    def loss_on(said):
        return F.cross_entropy(net(said[:, :-1]).flatten(0, 1), said[:, 1:].flatten())

    test = announced(256)
    return fit(folder, net, optimizer, lambda step: loss_on(announced(32)), steps, schedule=schedule,
               before_step=clipped(net, 1.0), score=held_out(net, lambda: loss_on(test)))  # fmt: skip


@healthy(0.3)
def silhouettes_of_sailing_vessels(folder):
    seeded(10953)

    def silhouettes(rows, size=12):
        down, across = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        mast, high, hull = (torch.randint(*ends, (rows, 1, 1)) for ends in ((4, 8), (1, 6), (3, 6)))
        sail = (down >= high) & (down < 8) & ((across - mast).abs() <= (down - high) / 2)
        body = (down >= 8) & (down < 11) & ((across - mast).abs() <= hull - (down - 8))
        return (sail | body).float().flatten(1)

    net = nn.ModuleDict({"encoder": dense(144, 96, 12), "decoder": dense(6, 96, 144)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def terms(x):
        centre, log_var = net["encoder"](x).chunk(2, 1)
        code = centre + (0.5 * log_var).exp() * torch.randn_like(centre)
        made = F.binary_cross_entropy_with_logits(net["decoder"](code), x, reduction="none").sum(1).mean()
        return made, 0.5 * (centre.square() + log_var.exp() - 1 - log_var).sum(1).mean()

    def loss_of(step):
        made, apart = terms(silhouettes(64))
        return made + min(1.0, step / 150) * apart, {"reconstruction": made, "kl": apart}

    test = silhouettes(512)
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: sum(terms(test))))


@healthy(0.5)
def headlands_drawn_by_a_forger_of_charts(folder):
    seeded(10954)

    def headlands(rows):
        at = torch.linspace(-1, 1, 16)
        high, wide, middle = 1 + 0.5 * torch.rand(rows, 1), 0.3 + 0.2 * torch.rand(rows, 1), 0.2 * torch.randn(rows, 1)
        return high * (-((at - middle) / wide).square()).exp()

    make, judge = dense(8, 64, 64, 16), dense(16, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    real = headlands(2048)

    def judge_loss():
        said, fake = judge(headlands(64)), judge(make(torch.randn(64, 8)).detach())
        return F.softplus(-said).mean() + F.softplus(fake).mean()

    def make_loss():
        return F.softplus(-judge(make(torch.randn(64, 8)))).mean()

    def score():
        with torch.no_grad():
            made = make(torch.randn(2048, 8))
        return float((made.mean(0) - real.mean(0)).abs().mean() + (made.std(0) - real.std(0)).abs().mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, score)


class Outliner(nn.Module):
    """A U-Net of two levels with group norms."""

    def __init__(self, wide=16):
        super().__init__()

        def block(to, fro):
            return nn.Sequential(nn.Conv2d(fro, to, 3, padding=1), nn.GroupNorm(4, to), nn.SiLU())

        self.top, self.low, self.deep = block(wide, 2), block(2 * wide, wide), block(2 * wide, 2 * wide)
        self.rise = nn.Conv2d(2 * wide, wide, 1)
        self.last = nn.Sequential(block(wide, 2 * wide), nn.Conv2d(wide, 1, 1))

    def forward(self, image):
        top = self.top(image)
        low = self.deep(self.low(F.max_pool2d(top, 2)))
        return self.last(torch.cat([top, F.interpolate(self.rise(low), scale_factor=2.0)], 1))


@healthy(0.5)
def oil_behind_a_tanker_in_radar_tiles(folder):
    seeded(10955)
    at = torch.linspace(-1, 1, 20)

    def tiles(rows):
        x0, y0, lean = 0.5 * torch.randn(rows, 1, 1), 0.4 * torch.randn(rows, 1, 1), torch.randn(rows, 1, 1)
        u, v = at[None, None, :] - x0, at[None, :, None] - y0
        slick = ((u - lean * v).square() / 0.3 + v.square() / 0.5 < 0.25).float()[:, None]
        return torch.cat([0.6 - 0.5 * slick, 0.2 * slick], 1) + 0.4 * torch.randn(rows, 2, 20, 20), slick

    net = Outliner()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-2)

    def dice(said, slick):
        p = said.sigmoid()
        return 1 - (2 * (p * slick).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + slick.sum((1, 2, 3)) + 1)

    def loss_of(step):
        image, slick = tiles(12)
        said = net(image)
        overlap = dice(said, slick).mean()
        return overlap + F.binary_cross_entropy_with_logits(said, slick), {"dice": 1 - overlap}

    tx, ty = tiles(64)
    return fit(folder, net, optimizer, loss_of, 150, score=held_out(net, lambda: dice(net(tx), ty).mean()))


@healthy(0.3)
def signalman_between_two_sidings(folder):
    """REINFORCE with a baseline: keep two queues of wagons short by sending one wagon a turn."""
    seeded(10956)
    net = nn.ModuleDict({"policy": dense(3, 48, 3, act=nn.Tanh), "value": dense(3, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def shift(rows, turns=15):
        queues, favoured = 3 * torch.rand(rows, 2), torch.rand(rows) < 0.5
        kept = []
        for _ in range(turns):
            seen = torch.cat([queues / 5, favoured[:, None].float()], 1)
            chosen = torch.distributions.Categorical(logits=net["policy"](seen))
            act = chosen.sample()
            come = torch.rand(rows, 2) * torch.where(favoured[:, None], torch.tensor([1.2, 0.4]),
                                                     torch.tensor([0.4, 1.2]))  # fmt: skip
            queues = (queues + come - F.one_hot(act, 3)[:, :2]).clamp(min=0)
            kept.append((seen, chosen.log_prob(act), chosen.entropy(), -queues.sum(1) / 5))
        return kept

    def one(step):
        kept = shift(32)
        back, returns = torch.zeros(32), []
        for part in reversed(kept):
            back = part[3] + 0.9 * back
            returns.insert(0, back)
        returns = torch.stack(returns)
        value = net["value"](torch.stack([part[0] for part in kept]))[..., 0]
        gain = returns - value.detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        log_p, entropy = torch.stack([part[1] for part in kept]), torch.stack([part[2] for part in kept]).mean()
        policy, critic = -(gain * log_p).mean(), F.mse_loss(value, returns)
        loss = policy + 0.5 * critic - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        reward = torch.stack([part[3] for part in kept]).sum(0).mean()
        return {"loss": loss, "policy_loss": policy, "value_loss": critic, "entropy": entropy, "reward": reward}

    def score():
        with torch.no_grad():
            return -float(torch.stack([part[3] for part in shift(256)]).sum(0).mean())

    return tend(folder, net, optimizer, one, 250, score)
