"""Everyday trainings by reward: values with a memory, returns with a baseline, clipped ratios of policies."""

import copy
import math

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped

# --------------------------------------------------------------------------------------------------------------- values


class TollRoad:
    """Many toll gates at once: four prices, a rush that comes and goes, a queue that costs what it is long."""

    def __init__(self, gates):
        self.queue, self.hour = torch.rand(gates), torch.randint(24, (gates,)).float()

    def seen(self):
        angle = 6.2832 * self.hour / 24
        return torch.stack([2 * self.queue - 1, angle.sin(), angle.cos()], 1)

    def charge(self, choice):
        price = (choice + 1) / 4
        rush = 0.6 + 0.4 * (6.2832 * self.hour / 24).sin()
        cars = rush * (1.2 - price) + 0.05 * torch.randn_like(price)
        self.queue = (self.queue + cars - 0.3).clamp(0, 1)
        self.hour = (self.hour + 1) % 24
        return price * cars - self.queue


class Memory:
    """The last few thousand steps of all gates."""

    def __init__(self, room=8000):
        self.room, self.kept = room, []

    def keep(self, *parts):
        self.kept.extend(zip(*parts, strict=True))
        del self.kept[: -self.room]

    def draw(self, batch):
        rows = [self.kept[i] for i in torch.randint(len(self.kept), (batch,)).tolist()]
        return [torch.stack(part) for part in zip(*rows, strict=True)]


def dear(choose, hours=48):
    """What drivers and the company lose by the hour, with the same gates and the same luck each time."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        road = TollRoad(64)
        return 0.5 - float(torch.stack([road.charge(choose(road.seen())) for _ in range(hours)]).mean())


@healthy()
def prices_at_a_toll_road(folder):
    seeded(2809)
    net = dense(3, 64, 64, 4)
    aim, memory, road = copy.deepcopy(net).requires_grad_(False), Memory(), TollRoad(16)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def drive(curious):
        before = road.seen()
        with torch.no_grad():
            best = net(before).argmax(1)
        choice = torch.where(torch.rand(16) < curious, torch.randint(4, (16,)), best)
        memory.keep(before, choice, road.charge(choice), road.seen())

    for _ in range(30):
        drive(1.0)

    def loss_of(step):
        drive(max(0.05, 1 - step / 300))
        before, choice, reward, after = memory.draw(64)
        value = net(before).gather(1, choice[:, None])[:, 0]
        with torch.no_grad():
            wanted = reward + 0.9 * aim(after).amax(1)
        return F.smooth_l1_loss(value, wanted), {"reward": float(reward.mean()), "value": float(value.mean())}

    def follow(step):
        with torch.no_grad():
            for slow, fast in zip(aim.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.02)

    return fit(folder, net, optimizer, loss_of, 800, score=lambda: dear(lambda x: net(x).argmax(1)), after_step=follow,
               before_step=clipped(net, 10.0))  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- returns


def wash(choose, loads=64, turns=5):
    """Loads of laundry, each rinsed, washed or boiled for some turns or let be; what was seen, chosen and earned.

    Each programme takes dirt away and wears what is delicate; it costs a little, and what dirt is left costs more.
    """
    dirt, delicate = torch.rand(loads), torch.rand(loads)
    cleans, wears = torch.tensor([1.0, 0.8, 0.5, 0.2]), torch.tensor([0.0, 0.02, 0.1, 0.6])
    costs = torch.tensor([0.0, 0.05, 0.08, 0.15])
    seen, chosen, earned = [], [], []
    for turn in range(turns):
        seen.append(torch.stack([2 * dirt - 1, 2 * delicate - 1, torch.full((loads,), turn / 2 - 1)], 1))
        chosen.append(choose(seen[-1]))
        dirt = dirt * cleans[chosen[-1]]
        earned.append(-wears[chosen[-1]] * delicate - costs[chosen[-1]] - (2 * dirt if turn == turns - 1 else 0))
    return torch.stack(seen), torch.stack(chosen), torch.stack(earned)


@healthy()
def programmes_of_a_laundry(folder):
    seeded(2810)
    net = nn.ModuleDict({"policy": dense(3, 48, 48, 4, act=nn.Tanh), "value": dense(3, 48, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def at_random(x):
        with torch.no_grad():
            return Categorical(logits=net["policy"](x)).sample()

    def loss_of(step):
        seen, chosen, earned = wash(at_random)
        returns = earned.flip(0).cumsum(0).flip(0)
        value, policy = net["value"](seen)[:, :, 0], Categorical(logits=net["policy"](seen))
        better = returns - value.detach()
        better = (better - better.mean()) / (better.std() + 1e-8)
        miss, sure = F.mse_loss(value, returns), policy.entropy().mean()
        loss = -(better * policy.log_prob(chosen)).mean() + 0.5 * miss - 0.01 * sure
        return loss, {"return": float(earned.sum(0).mean()), "value_loss": float(miss), "entropy": float(sure)}

    def score():
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return -float(wash(at_random, 1024)[2].sum(0).mean())

    return fit(folder, net, optimizer, loss_of, 500, score=score, before_step=clipped(net, 1.0))


# -------------------------------------------------------------------------------------------------------------- ratios


class TwoBranches:
    """Ten copies of a book at two branches of a library, for which readers ask here and then there."""

    def __init__(self, books):
        self.here, self.day = torch.randint(11, (books,)).float(), torch.randint(12, (books,)).float()

    def asked(self, ahead=0):
        share = 0.5 + 0.45 * (6.2832 * (self.day + ahead) / 12).sin()
        return 7 * share, 7 * (1 - share)

    def seen(self):
        return torch.stack([self.here / 5 - 1, self.asked()[0] / 3.5 - 1, self.asked(1)[0] / 3.5 - 1], 1)

    def carry(self, choice):
        """Leaves the copies, or carries three to or from here; minus the readers sent away, and what that cost."""
        moved = torch.tensor([0.0, 3.0, -3.0])[choice]
        after = (self.here + moved).clamp(0, 10)
        moved, self.here = (after - self.here).abs(), after
        here, there = (torch.poisson(rate) for rate in self.asked())
        away = (here - self.here).relu() + (there - (10 - self.here)).relu()
        self.day = (self.day + 1) % 12
        return -(away + 0.1 * moved) / 3


def orthogonal(net, last):
    """Orthogonal matrices, with a gain of its own for the last."""
    layers = [part for part in net if isinstance(part, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, last if layer is layers[-1] else math.sqrt(2))
        nn.init.zeros_(layer.bias)
    return net


def advantages(rewards, values, discount=0.9, trace=0.95):
    """What went better than thought, by generalised advantages; `values` has one row more."""
    found, later = [], torch.zeros_like(values[0])
    for t in reversed(range(len(rewards))):
        later = rewards[t] + discount * values[t + 1] - values[t] + discount * trace * later
        found.append(later)
    return torch.stack(found[::-1])


def batches_of_days(net, library, days=16, epochs=4, rows=256):
    """Plays some days, hands out shuffled batches of them for some epochs, and plays again."""
    while True:
        played = []
        with torch.no_grad():
            for _ in range(days):
                x = library.seen()
                policy = Categorical(logits=net["policy"](x))
                choice = policy.sample()
                played.append((x, choice, policy.log_prob(choice), net["value"](x)[:, 0], library.carry(choice)))
            x, choice, log_prob, value, reward = (torch.stack(part) for part in zip(*played, strict=True))
            better = advantages(reward, torch.cat([value, net["value"](library.seen())[:, 0][None]]))
        parts = [part.flatten(0, 1) for part in (x, choice, log_prob, better, better + value)]
        for _ in range(epochs):
            for at in torch.randperm(len(parts[0])).split(rows):
                yield [part[at] for part in parts], float(reward.mean())


@healthy()
def copies_between_branches_of_a_library(folder):
    seeded(2811)
    net = nn.ModuleDict({
        "policy": orthogonal(dense(3, 64, 64, 3, act=nn.Tanh), 0.01),
        "value": orthogonal(dense(3, 64, 64, 1, act=nn.Tanh), 1.0),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, 800)
    batches = batches_of_days(net, TwoBranches(64))

    def loss_of(step):
        (x, choice, before, better, returns), reward = next(batches)
        policy = Categorical(logits=net["policy"](x))
        ratio = (policy.log_prob(choice) - before).exp()
        better = (better - better.mean()) / (better.std() + 1e-8)
        gain = torch.minimum(ratio * better, ratio.clamp(0.8, 1.2) * better).mean()
        miss, sure = F.mse_loss(net["value"](x)[:, 0], returns), policy.entropy().mean()
        held = float(((ratio - 1).abs() > 0.2).float().mean())
        return -gain + 0.5 * miss - 0.01 * sure, {"reward": reward, "entropy": float(sure), "clipped": held}

    def score():
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(1)
            library, lost = TwoBranches(256), []
            for _ in range(36):
                lost.append(-library.carry(Categorical(logits=net["policy"](library.seen())).sample()))
            return float(torch.stack(lost).mean())

    return fit(folder, net, optimizer, loss_of, 800, score=score, schedule=schedule, before_step=clipped(net, 0.5))
