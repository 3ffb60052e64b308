"""More trainings by reward in which nothing is wrong, and games of two."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, in_turn, rounds


class Hand(nn.Module):
    """A squashed Gaussian of one torque, and the weight of its entropy."""

    def __init__(self):
        super().__init__()
        self.body, self.log_alpha = dense(3, 64, 64, 2), nn.Parameter(torch.tensor(-1.5))

    def forward(self, seen):
        middle, spread = self.body(seen).unbind(1)
        way = torch.distributions.Normal(middle, spread.clamp(-5, 1).exp())
        raw = way.rsample()
        chance = way.log_prob(raw) - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return raw.tanh()[:, None], chance, middle.tanh()[:, None]


def swing(angle, speed, torque):
    cost = torch.remainder(angle + math.pi, 2 * math.pi).sub(math.pi).square() + 0.1 * speed.square()
    speed = (speed + 0.05 * (10 * angle.sin() + 12 * torque)).clamp(-8, 8)
    return angle + 0.05 * speed, speed, cost + 0.01 * torque.square()


@healthy()
def a_barrier_arm_raised_by_a_motor(folder):
    """Soft actor-critic: two critics and their slow copies, an entropy that is held by a weight that learns."""
    seeded(3444)
    hand, judges = Hand(), nn.ModuleList(dense(4, 64, 64, 1) for _ in range(2))
    slow = copy.deepcopy(judges).requires_grad_(False)
    of_hand, of_judges = torch.optim.Adam(hand.parameters(), 1e-3), torch.optim.Adam(judges.parameters(), 1e-3)

    def start(rows):
        return math.pi * (2 * torch.rand(rows) - 1), torch.rand(rows) - 0.5

    def view(angle, speed):
        return torch.stack([angle.cos(), angle.sin(), speed / 4], 1)

    state, store, age = list(start(16)), [], [0]

    def explore():
        seen = view(*state)
        with torch.no_grad():
            torque = hand(seen)[0]
        *state[:], cost = swing(*state, torque[:, 0])
        store.append((seen, torque, -0.1 * cost, view(*state)))
        age[0] += 1
        if age[0] % 100 == 0:
            state[:] = start(16)

    for _ in range(40):
        explore()

    def drawn():
        chosen = [store[i] for i in torch.randint(len(store), (8,)).tolist()]
        return [torch.cat(part) for part in zip(*chosen, strict=True)]

    def least(nets, seen, torque):
        both = torch.cat([seen, torque], 1)
        return torch.min(nets[0](both), nets[1](both))[:, 0]

    def judged():
        explore()
        seen, torque, reward, after = drawn()
        with torch.no_grad():
            following, chance, _ = hand(after)
            goal = reward + 0.97 * (least(slow, after, following) - hand.log_alpha.exp() * chance)
        both = torch.cat([seen, torque], 1)
        return sum(F.mse_loss(judge(both)[:, 0], goal) for judge in judges)

    def follow():
        with torch.no_grad():
            for kept, new in zip(slow.parameters(), judges.parameters(), strict=True):
                kept.lerp_(new, 0.01)

    def acted():
        seen = drawn()[0]
        torque, chance, _ = hand(seen)
        policy = (hand.log_alpha.exp().detach() * chance - least(judges, seen, torque)).mean()
        return policy - (hand.log_alpha * (chance.detach() - 1.0)).mean()

    def score():
        at, paid = start(200), 0.0
        with torch.no_grad():
            for _ in range(80):
                *at, cost = swing(*at, hand(view(*at))[2][:, 0])
                paid += float(cost.mean())
        return paid / 80

    return in_turn(folder, hand, judges, of_hand, of_judges, judged, acted, 650, score, after_judge=follow,
                   names=("critic", "actor"))  # fmt: skip


class Packer(nn.Module):
    def __init__(self):
        super().__init__()
        self.each, self.all, self.pick = dense(2, 32, 32), nn.Linear(32, 32), dense(64, 32, 1)
        self.baseline = dense(32, 32, 1)

    def forward(self, things):
        """The chance of each thing to be taken, and what the sack is expected to be worth."""
        each = self.each(things).relu()
        whole = self.all(each.mean(1)).relu()
        logits = self.pick(torch.cat([each, whole[:, None].expand_as(each)], 2))[..., 0]
        return torch.distributions.Bernoulli(logits=logits), self.baseline(whole.detach())[:, 0]


@healthy()
def a_rucksack_for_a_mountain_hut(folder):
    """REINFORCE with a learned baseline: take what is worth most while the sack bears it."""
    seeded(3445)
    net = Packer()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def worth(things, taken):
        value, weight = (things * taken[..., None]).sum(1).unbind(1)
        return value - 2 * (weight - 2.5).clamp(min=0)

    def loss_of(step):
        things = torch.rand(128, 10, 2)
        way, expected = net(things)
        taken = way.sample()
        gain = worth(things, taken) - expected
        policy = -(gain.detach() * way.log_prob(taken).sum(1)).mean()
        error = gain.square().mean()
        return policy + 0.5 * error, {"policy_loss": policy, "baseline_loss": error, "value": expected.mean()}

    def score():
        """The share that is missing of what packing by worth per weight brings."""
        things = torch.rand(1000, 10, 2)
        order = (things[..., 0] / things[..., 1]).argsort(1, descending=True)
        sorted_ = things.gather(1, order[..., None].expand_as(things))
        best = worth(sorted_, (sorted_[..., 1].cumsum(1) <= 2.5).float()).mean()
        with torch.no_grad():
            return float(1 - worth(things, (net(things)[0].logits > 0).float()).mean() / best)

    return fit(folder, net, optimizer, loss_of, 700, score=score, before_step=clipped(net, 1.0))


@healthy()
def dishes_put_on_a_lunch_menu(folder):
    """A policy from what an older one logged: importance weights cut at ten, less what any dish brings."""
    seeded(3446)
    taste, old = torch.randn(8, 6), torch.randn(8, 6) * 0.3
    guests = torch.randn(6000, 8)
    served = torch.distributions.Categorical(logits=guests @ old)
    dish = served.sample()
    chance = served.log_prob(dish).exp()
    liked = torch.bernoulli((guests @ taste).sigmoid().gather(1, dish[:, None])[:, 0])
    net = dense(8, 64, 6, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    draw, usual = rounds(256, guests, dish, chance, liked), liked.mean()

    def loss_of(step):
        x, a, p, r = draw()
        way = torch.distributions.Categorical(logits=net(x))
        weight = (way.log_prob(a).exp() / p).clamp(max=10)
        value, entropy = (weight * (r - usual)).mean(), way.entropy().mean()
        return -value - 0.01 * entropy, {"value": value + usual, "entropy": entropy, "largest_weight": weight.max()}

    others = torch.randn(2000, 8)

    def score():
        chances = (others @ taste).sigmoid()
        with torch.no_grad():
            return float((chances.max(1).values - (net(others).softmax(1) * chances).sum(1)).mean())

    return fit(folder, net, optimizer, loss_of, 500, score=score)


def apart(a, b):
    """The energy distance between two clouds of points."""
    return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())


@healthy()
def marbles_in_eight_hollows(folder):
    """A game of hinges: the judge under spectral norms and at four times the maker's rate."""
    seeded(3447)
    angles = torch.arange(8) * math.pi / 4
    hollows = 2 * torch.stack([angles.cos(), angles.sin()], 1)
    make = dense(8, 96, 96, 2)
    judge = dense(2, 96, 96, 1, act=lambda: nn.LeakyReLU(0.2))
    for layer in judge[::2]:
        nn.utils.parametrizations.spectral_norm(layer)
    of_make = torch.optim.Adam(make.parameters(), 5e-4, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 2e-3, betas=(0.0, 0.9))

    def real(rows=128):
        return hollows[torch.randint(8, (rows,))] + 0.1 * torch.randn(rows, 2)

    def judged():
        with torch.no_grad():
            made = make(torch.randn(128, 8))
        return (1 - judge(real())).relu().mean() + (1 + judge(made)).relu().mean()

    def score():
        with torch.no_grad():
            return apart(real(800), make(torch.randn(800, 8)))

    return in_turn(folder, make, judge, of_make, of_judge, judged, lambda: -judge(make(torch.randn(128, 8))).mean(),
                   700, score)  # fmt: skip


@healthy()
def tides_out_of_thin_air(folder):
    """A Wasserstein game with a penalty on the critic's slope, three rounds of the critic to one of the maker."""
    seeded(3448)
    hours = torch.linspace(0, 2 * math.pi, 16)
    make, judge = dense(6, 96, 96, 16), dense(16, 96, 96, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 5e-4, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 5e-4, betas=(0.0, 0.9))

    def real(rows=64):
        height, phase = 0.5 + torch.rand(rows, 1), 2 * math.pi * torch.rand(rows, 1)
        return height * (hours + phase).sin() + 0.3 * height.square() * (2 * hours + 2 * phase).sin()

    def judged():
        true = real()
        with torch.no_grad():
            made = make(torch.randn(64, 6))
        between = true.lerp(made, torch.rand(64, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        return judge(made).mean() - judge(true).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()

    def score():
        with torch.no_grad():
            return apart(real(600), make(torch.randn(600, 6)))

    return in_turn(folder, make, judge, of_make, of_judge, judged, lambda: -judge(make(torch.randn(64, 6))).mean(),
                   350, score, rounds=3, names=("critic", "maker"))  # fmt: skip
