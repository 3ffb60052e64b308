"""Unusual trainings that go well: tours, critics, equations, wagers, sharpness, sparse tables, flows, long memories."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


class Milkman(nn.Module):
    """Reads all farms by attention, then points at one after another."""

    def __init__(self, width=32):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.lift = nn.Linear(2, width)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.ask, self.key = nn.Linear(3 * width, width), nn.Linear(width, width)

    def forward(self, farms, boldly):
        """The length of a round for each row, and the logarithm of its probability."""
        rows, count = farms.shape[:2]
        each = torch.arange(rows)
        codes = self.body(self.lift(farms))
        keys, whole = self.key(codes), codes.mean(1)
        at, been, order, chance = torch.zeros(rows).long(), torch.zeros(rows, count).bool(), [], 0.0
        for _ in range(count - 1):
            order.append(at)
            been = been.scatter(1, at[:, None], True)
            ask = self.ask(torch.cat([whole, codes[:, 0], codes[each, at]], 1))
            fits = 8 * ((keys @ ask[..., None])[..., 0] / keys.shape[-1] ** 0.5).tanh()
            said = fits.masked_fill(been, -math.inf).log_softmax(1)
            at = torch.multinomial(said.detach().exp(), 1)[:, 0] if boldly else said.argmax(1)
            chance = chance + said[each, at]
        way = farms[each[:, None], torch.stack([*order, at], 1)]
        return (way - way.roll(1, 1)).norm(dim=2).sum(1), chance


@healthy(gain=0.15)
def rounds_of_a_milkman(folder):
    """Eight rounds of each village are sampled; the mean of the eight is the baseline."""
    seeded(9823)
    net, kept = Milkman(), torch.rand(200, 7, 2)
    opt = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        farms = torch.rand(16, 7, 2).repeat_interleave(8, 0)
        length, chance = net(farms, True)
        each = length.view(16, 8)
        advantage = (each - each.mean(1, keepdim=True)).flatten()
        return (advantage * chance).mean(), {"episode_return": -float(length.mean())}

    return fit(folder, net, opt, loss_of, 220, before_step=clipped(net, 1.0),
               score=held_out(net, lambda: torch.mean(net(kept, False)[0])))  # fmt: skip


@healthy(gain=0.5)
def dunes_drawn_by_the_wind(folder):
    """A critic with a penalty on its slope; four rounds of it for each of the maker."""
    seeded(9824)
    line = torch.linspace(0, 1, 16)

    def dunes(rows=64):
        crest, height = 0.3 + 0.4 * torch.rand(rows, 1), 1 + torch.rand(rows, 1)
        return height * torch.minimum(line / crest, ((1 - line) / (1 - crest)) ** 2) + 0.02 * torch.randn(rows, 16)

    def noise(rows=64):
        return torch.randn(rows, 6)

    make, judge = dense(6, 48, 48, 16), dense(16, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 5e-4, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.0, 0.9))
    ways = F.normalize(torch.randn(16, 64), dim=0)
    true, seeds = dunes(1000), noise(1000)

    def judge_loss():
        real, made = dunes(), make(noise()).detach()
        between = torch.lerp(made, real, torch.rand(64, 1)).requires_grad_()
        slope = torch.autograd.grad(judge(between).sum(), between, create_graph=True)[0].norm(dim=1)
        return judge(made).mean() - judge(real).mean() + 10 * (slope - 1).square().mean()

    def score():
        with torch.no_grad():
            gap = (make(seeds) @ ways).sort(0).values - (true @ ways).sort(0).values
        return float(gap.abs().mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, lambda: -judge(make(noise())).mean(), 200, score,
                   rounds=4)  # fmt: skip


@healthy(gain=0.7)
def foxes_and_hares_year_by_year(folder):
    """The slope of the two numbers is a net; Runge and Kutta take the steps."""
    seeded(9825)
    net = dense(2, 40, 40, 2, act=nn.Tanh)

    def nature(logs):
        hares, foxes = logs.exp().unbind(-1)
        return torch.stack([1.0 - foxes, hares - 1.0], -1)

    def onward(slope, now, count, pace=0.2):
        way = [now]
        for _ in range(count):
            a = slope(now)
            b = slope(now + pace / 2 * a)
            c = slope(now + pace / 2 * b)
            now = now + pace / 6 * (a + 2 * b + 2 * c + slope(now + pace * c))
            way.append(now)
        return torch.stack(way, 1)

    ways = onward(nature, 0.5 * torch.randn(400, 2), 10)
    ways = ways + 0.02 * torch.randn_like(ways)
    draw = rounds(48, ways[:340])

    def loss(ways):
        return F.smooth_l1_loss(onward(net, ways[:, 0], 10)[:, 1:], ways[:, 1:])

    opt = torch.optim.RAdam(net.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.993)
    return fit(folder, net, opt, lambda step: loss(*draw()), 320, schedule=schedule, before_step=clipped(net, 1.0),
               score=held_out(net, lambda: loss(ways[340:])))  # fmt: skip


@healthy(gain=0.5)
def barge_brought_to_its_mooring(folder):
    """Proximal policy: 32 barges, 30 moves, four passes over what they met, an actor and a critic."""
    seeded(9826)
    net = nn.ModuleDict({"actor": dense(2, 48, 48, 1, act=nn.Tanh), "critic": dense(2, 48, 48, 1, act=nn.Tanh)})
    for part in net.modules():
        if isinstance(part, nn.Linear):
            nn.init.orthogonal_(part.weight, 1.0 if part.out_features == 1 else 2**0.5)
            nn.init.zeros_(part.bias)
    nn.init.orthogonal_(net["actor"][-1].weight, 0.01)
    spread = 0.5
    opt = torch.optim.Adam(net.parameters(), 1e-3, eps=1e-5)

    def sail(boldly, rows=32, moves=30):
        state, met = torch.randn(rows, 2) * torch.tensor([1.0, 0.3]), []
        for _ in range(moves):
            middle = net["actor"](state)
            push = middle + spread * torch.randn_like(middle) if boldly else middle
            speed = 0.9 * state[:, 1:] + 0.15 * push.clamp(-2, 2) + 0.05
            after = torch.cat([state[:, :1] + 0.2 * speed, speed], 1)
            reward = -(after[:, 0].square() + 0.1 * push[:, 0].square()) / 15
            met.append((state, push, reward, net["critic"](state)[:, 0], net["critic"](after)[:, 0]))
            state = after
        return [torch.stack(part) for part in zip(*met, strict=True)]

    def log_chance(state, push):
        return -(push - net["actor"](state)).square()[..., 0] / (2 * spread**2)

    batches = []

    def collect():
        with torch.no_grad():
            state, push, reward, value, after = sail(True)
            surprise, advantage, running = reward + 0.95 * after - value, [], torch.zeros(32)
            for late in surprise.flip(0):
                running = late + 0.95 * 0.9 * running
                advantage.insert(0, running)
            advantage = torch.stack(advantage)
            rows = [part.flatten(0, 1) for part in (state, push, log_chance(state, push), advantage, advantage + value)]
        batches.extend([part[at] for part in rows] for _ in range(4) for at in torch.randperm(960).chunk(3))
        return float(reward.sum(0).mean())

    heard = [0.0]

    def one(step):
        if not batches:
            heard.append(collect())
        state, push, before, advantage, aim = batches.pop(0)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (log_chance(state, push) - before).exp()
        policy = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        value = (net["critic"](state)[:, 0] - aim).square().mean()
        opt.zero_grad()
        loss = policy + 0.5 * value
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        return {"loss": loss, "policy_loss": policy, "value_loss": value, "episode_return": heard[-1]}

    return tend(folder, net, opt, one, 480, held_out(net, lambda: -sail(False, 200)[2].sum(0).mean()))


@healthy(gain=0.5)
def shells_sorted_under_some_wrong_labels(folder):
    """A fifth of the labels are wrong; each step looks at the sharpest point nearby (SAM)."""
    seeded(9827)
    shape = torch.randn(5, 24)

    def gather(rows):
        y = torch.randint(5, (rows,))
        grown = 0.6 + 0.8 * torch.rand(rows, 1)
        return grown * shape[y] + 0.9 * torch.randn(rows, 24), y

    (x, y), (x_new, y_new) = gather(1500), gather(500)
    y = torch.where(torch.rand(1500) < 0.2, torch.randint(5, (1500,)), y)
    draw, net = rounds(64, x, y), dense(24, 64, 64, 5, norm=nn.LayerNorm, act=nn.GELU)
    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 350)

    def one(step):
        x_now, y_now = draw()
        opt.zero_grad()
        F.cross_entropy(net(x_now), y_now).backward()
        slopes = [p.grad.clone() for p in net.parameters()]
        size = torch.stack([slope.norm() for slope in slopes]).norm() + 1e-12
        with torch.no_grad():
            for p, slope in zip(net.parameters(), slopes, strict=True):
                p.add_(slope, alpha=0.05 / float(size))
        opt.zero_grad()
        loss = F.cross_entropy(net(x_now), y_now)
        loss.backward()
        with torch.no_grad():
            for p, slope in zip(net.parameters(), slopes, strict=True):
                p.sub_(slope, alpha=0.05 / float(size))
        opt.step()
        schedule.step()
        return {"loss": loss}

    return tend(folder, net, opt, one, 350, held_out(net, lambda: F.cross_entropy(net(x_new), y_new)))
