"""Ways of training that are seldom met: learning to learn, filters, pruning, many tasks, far workers, tours."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.utils import prune
from unseen import dense, fit, healthy, mean, score_of, seeded
from unseen.tasks import clipped, tend


@healthy()
def a_new_wine_press_after_five_squeezes(folder):
    seeded(9484)
    net = dense(1, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def draw(presses):
        strong, shift = 0.5 + 1.5 * torch.rand(presses, 1, 1), 3.1416 * torch.rand(presses, 1, 1)
        x = 6 * torch.rand(presses, 20, 1) - 3
        y = strong * (x + shift).sin()
        return x[:, :5], y[:, :5], x[:, 5:], y[:, 5:]

    def error(params, x, y):
        return F.mse_loss(functional_call(net, params, (x,)), y)

    def adapted(params, x, y, later_x, later_y):
        own = params
        for _ in range(2):
            slopes = grad(error)(own, x, y)
            own = {name: p - 0.05 * slopes[name] for name, p in own.items()}
        return error(own, later_x, later_y)

    def loss_of(step, presses=12):
        return vmap(adapted, in_dims=(None, 0, 0, 0, 0))(dict(net.named_parameters()), *draw(presses)).mean()

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(lambda step: loss_of(step, 64), 4))


class Tracker(nn.Module):
    """A Kalman filter of place and speed whose noises and friction are learned from the likelihood."""

    def __init__(self):
        super().__init__()
        self.log_push = nn.Parameter(torch.tensor(0.0))
        self.log_gauge = nn.Parameter(torch.tensor(0.0))
        self.friction = nn.Parameter(torch.tensor(0.0))
        self.offset = nn.Parameter(torch.tensor(0.0))

    def forward(self, heard):
        """Minus the logarithm of the likelihood of `[B, T]`, for each reading."""
        keep, zero, one = 2 * torch.sigmoid(self.friction) - 1, torch.zeros(()), torch.ones(())
        move = torch.stack([torch.stack([one, one]), torch.stack([zero, keep])])
        pushed = torch.stack([torch.stack([zero + 1e-4, zero]), torch.stack([zero, self.log_push.exp()])])
        state, cover, total = torch.zeros(len(heard), 2), torch.eye(2) * 2, 0.0
        for reading in (heard - self.offset).unbind(1):
            state, cover = state @ move.T, move @ cover @ move.T + pushed
            wide = cover[0, 0] + self.log_gauge.exp()
            gap = reading - state[:, 0]
            total = total + 0.5 * (gap.square() / wide + wide.log() + math.log(2 * math.pi)).mean()
            gain = cover[:, 0] / wide
            state, cover = state + gap[:, None] * gain, cover - torch.outer(gain, cover[0])
        return total / heard.shape[1]


@healthy(gain=0.1)
def a_barrel_adrift_between_two_sluices(folder):
    seeded(9485)
    net = Tracker()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

    def loss_of(step):
        place, speed, heard = torch.randn(32), 0.3 * torch.randn(32), []
        for _ in range(25):
            place, speed = place + speed, 0.8 * speed + 0.1 * torch.randn(32)
            heard.append(place + 0.25 * torch.randn(32) + 1.5)
        return net(torch.stack(heard, 1))

    return fit(folder, net, optimizer, loss_of, 220, score=score_of(loss_of), schedule=schedule)


@healthy()
def a_hedge_trimmed_to_a_fifth(folder):
    seeded(9486)
    rule = dense(12, 20, 5, act=nn.Tanh).requires_grad_(False)
    rule[0].weight.mul_(3)
    usual = rule(torch.randn(2000, 12)).mean(0)
    net = dense(12, 128, 128, 5)
    hidden = [(net[0], "weight"), (net[2], "weight")]
    for layer, name in hidden:
        prune.identity(layer, name)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000, 1e-4)

    def loss_of(step):
        x = torch.randn(64, 12)
        return F.cross_entropy(net(x), (rule(x) - usual).argmax(1))

    kept = [1.0]

    def trim(step):
        if 300 <= step <= 800 and step % 100 == 0:
            wanted = 0.2 + 0.8 * (1 - (step - 200) / 600) ** 3
            prune.global_unstructured(hidden, prune.L1Unstructured, amount=1 - wanted / kept[0])
            kept[0] = wanted

    return fit(folder, net, optimizer, loss_of, 1000, score=score_of(loss_of), schedule=schedule, after_step=trim)


@healthy()
def a_mare_judged_on_four_points(folder):
    seeded(9487)
    net = nn.ModuleDict({"body": dense(10, 64, 48), "heads": nn.ModuleList(nn.Linear(48, 1) for _ in range(4))})
    shared = list(net["body"].parameters())
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    ways = torch.randn(4, 10, 2) / 2 + torch.randn(10, 2) / 2

    def losses_of(rows=64):
        x = torch.randn(rows, 10)
        body = F.relu(net["body"](x))
        marks = [(x @ way).tanh().sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1) for way in ways]
        return [F.mse_loss(head(body), y) for head, y in zip(net["heads"], marks, strict=True)]

    def one(step):
        losses = losses_of()
        parts = [torch.cat([g.flatten() for g in torch.autograd.grad(e, shared, retain_graph=True)]) for e in losses]
        mended = []
        for i in range(4):
            own = parts[i].clone()
            for j in torch.randperm(4).tolist():
                against = own @ parts[j]
                if j != i and against < 0:
                    own -= against / parts[j].square().sum().clamp_min(1e-12) * parts[j]
            mended.append(own)
        optimizer.zero_grad()
        sum(losses).backward(inputs=list(net["heads"].parameters()))
        for p, piece in zip(shared, sum(mended).split([p.numel() for p in shared]), strict=True):
            p.grad = piece.view_as(p).clone()
        optimizer.step()
        names = ("gait", "neck", "back", "temper")
        return {"loss": sum(losses).detach(), **{name: e.detach() for name, e in zip(names, losses, strict=True)}}

    return tend(folder, net, optimizer, one, 700, score_of(lambda step: sum(losses_of(256))))


@healthy()
def four_parish_presses_that_meet_on_sundays(folder):
    seeded(9488)
    net = dense(6, 48, 48, 3, act=nn.GELU)
    outer = torch.optim.SGD(net.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    presses = [dense(6, 48, 48, 3, act=nn.GELU) for _ in range(4)]
    inner = [torch.optim.AdamW(press.parameters(), lr=2e-3, weight_decay=0.01) for press in presses]
    way, lean = torch.randn(6, 3) / 2, 0.5 * torch.randn(4, 6)

    def loss_at(model, place, rows=32):
        x = torch.randn(rows, 6) + lean[place]
        return F.cross_entropy(model(x), ((x @ way).sin() + 0.3 * x[:, :3]).argmax(1))

    def one(step):
        losses = []
        for place, (press, optimizer) in enumerate(zip(presses, inner, strict=True)):
            press.load_state_dict(net.state_dict())
            for _ in range(8):
                optimizer.zero_grad()
                loss = loss_at(press, place)
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
        every = zip(net.parameters(), *(press.parameters() for press in presses), strict=True)
        for p, *theirs in every:
            p.grad = p.detach() - torch.stack([own.detach() for own in theirs]).mean(0)
        outer.step()
        return {"loss": mean(losses), "last": mean(losses[7::8])}

    return tend(folder, net, outer, one, 120, score_of(lambda step: loss_at(net, step % 4, 256)))


class Tour(nn.Module):
    """Attention over the stops of a round; asked, from where one is, for the next (Kool et al., 2019)."""

    def __init__(self, width=32):
        super().__init__()
        self.lift = nn.Linear(2, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.ask = nn.Linear(3 * width, width)
        self.key = nn.Linear(width, width)

    def forward(self, stops, greedy=False):
        rows, n, _ = stops.shape
        seen = self.encoder(self.lift(stops))
        keys, whole = self.key(seen), seen.mean(1)
        every = torch.arange(rows)
        at = torch.zeros(rows, dtype=torch.long)
        left, chance, length, doubt = torch.ones(rows, n, dtype=torch.bool), 0.0, 0.0, 0.0
        left[:, 0] = False
        for _ in range(n - 1):
            asked = self.ask(torch.cat([whole, seen[:, 0], seen[every, at]], 1))
            scores = 8 * ((keys @ asked[:, :, None])[..., 0] / keys.shape[-1] ** 0.5).tanh()
            choice = torch.distributions.Categorical(logits=scores.masked_fill(~left, -1e9))
            following = choice.probs.argmax(1) if greedy else choice.sample()
            chance, doubt = chance + choice.log_prob(following), doubt + choice.entropy().mean() / (n - 1)
            length = length + (stops[every, at] - stops[every, following]).norm(dim=1)
            at, left = following, left.scatter(1, following[:, None], False)
        return length + (stops[every, at] - stops[:, 0]).norm(dim=1), chance, doubt


@healthy(gain=0.1)
def a_round_of_a_chimney_sweep(folder):
    seeded(9489)
    net = Tour()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def loss_of(step):
        stops = torch.rand(16, 8, 2).repeat_interleave(4, 0)
        length, chance, doubt = net(stops)
        with torch.no_grad():
            grouped = length.view(16, 4)
            others = (grouped.sum(1, keepdim=True) - grouped) / 3
            advantage = (grouped - others).flatten()
        logged = {"length": length.mean().detach(), "entropy": doubt.detach()}
        return (advantage * chance).mean(), logged

    def score():
        with torch.no_grad():
            return float(net(torch.rand(512, 8, 2), greedy=True)[0].mean())

    return fit(folder, net, optimizer, loss_of, 220, score=score, before_step=clipped(net, 1.0))
