"""Trainings of agents, of two networks at play and of a denoiser, each rebuilt from a thread that named its cause."""

from __future__ import annotations

from itertools import permutations

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, in_turn, tend

# -------------------------------------------------------------------------------------------------------------- agents


def crossing(net, rows=32, steps=14):
    """Ferries that steer along nine islands and are paid for each turn at the last one."""
    island, turns = torch.zeros(rows, dtype=torch.long), []
    for _ in range(steps):
        seen = net["trunk"](F.one_hot(island, 9).float())
        choice = Categorical(logits=net["steer"](seen))
        act = choice.sample()
        island = (island + 2 * act - 1).clamp(0, 8)
        turns.append((choice.log_prob(act), net["worth"](seen)[:, 0], (island == 8).float(), choice.entropy()))
    return [torch.stack(part, 1) for part in zip(*turns, strict=True)]


def advantages(values, rewards, gamma=0.97, trace=0.1):
    """Generalised advantages, and the returns that they imply."""
    after, found = torch.zeros(len(values)), []
    for t in reversed(range(values.shape[1])):
        next_value = values[:, t + 1] if t + 1 < values.shape[1] else torch.zeros(len(values))
        after = rewards[:, t] + gamma * next_value - values[:, t] + gamma * trace * after
        found.append(after)
    gain = torch.stack(found[::-1], 1)
    return gain, gain + values


# https://github.com/jsboige/CoursIA/pull/15256
@sick("no-gradient", "weights-unchanged",
      where="the critic's head `worth`, at every step: the values reach the loss as plain numbers",
      cure="values that stay in the graph for the loss of the critic")  # fmt: skip
def ferries_between_islands(folder, ill):
    seeded(2532)
    net = nn.ModuleDict({
        "trunk": nn.Sequential(nn.Linear(9, 64), nn.Tanh()), "steer": nn.Linear(64, 2), "worth": nn.Linear(64, 1),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def loss_of(step):
        log_prob, values, rewards, entropy = crossing(net)
        gain, returns = advantages(values.detach(), rewards)
        if ill:
            values = torch.tensor(values.tolist())
        policy, value = -(gain * log_prob).mean(), F.mse_loss(values, returns)
        logged = {"return": float(rewards.sum(1).mean()), "value loss": float(value)}
        return policy + 0.5 * value - 0.01 * entropy.mean(), logged

    score = held_out(net, lambda: 7 - crossing(net, 256)[2].sum(1).mean())
    return fit(folder, net, optimizer, loss_of, 180, score=score)


class Postwoman(nn.Module):
    """A pointer network that chooses one door after the other."""

    def __init__(self, width=32):
        super().__init__()
        self.door, self.among = nn.Linear(2, width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.key, self.ask = nn.Linear(width, width), nn.Linear(3 * width, width)

    def forward(self, doors, greedy=False):
        seen = self.door(doors)
        seen = seen + self.among(seen, seen, seen, need_weights=False)[0]
        rows, n, _ = doors.shape
        at, been = torch.zeros(rows, dtype=torch.long), F.one_hot(torch.zeros(rows, dtype=torch.long), n).bool()
        order, log_prob, each, keys = [at], 0.0, torch.arange(rows), self.key(seen)
        for _ in range(n - 1):
            query = self.ask(torch.cat([seen.mean(1), seen[:, 0], seen[each, at]], 1))
            scores = 8 * ((keys @ query[:, :, None])[:, :, 0] / 6).tanh()
            choice = Categorical(logits=scores.masked_fill(been, -1e9))
            at = choice.probs.argmax(1) if greedy else choice.sample()
            log_prob, been = log_prob + choice.log_prob(at), been | F.one_hot(at, n).bool()
            order.append(at)
        return torch.stack(order, 1), log_prob


def way(doors, order):
    path = doors.gather(1, order[:, :, None].expand(-1, -1, 2))
    return (path - path.roll(1, 1)).norm(dim=2).sum(1)


# https://github.com/astariul/encode-attend-navigate-pytorch/pull/3
@sick("critic-not-detached", "policy-loss-trains-critic", "noise-dominated",
      where="the critic, at every step: the loss of the policy pulls at it as well and holds its values far too low",
      cure="the critic's value detached in the loss of the policy")  # fmt: skip
def rounds_of_a_postwoman(folder, ill):
    seeded(2533)
    critic = nn.ModuleDict({"door": dense(2, 32, 32), "all": dense(32, 32, 1)})
    net = nn.ModuleDict({"walk": Postwoman(), "critic": critic})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def guess(doors):
        return critic["all"](critic["door"](doors).mean(1))[:, 0]

    def loss_of(step):
        doors = torch.rand(64, 8, 2)
        order, log_prob = net["walk"](doors)
        length, value = way(doors, order), guess(doors)
        gain = length - (value if ill else value.detach())
        policy, missed = (gain * log_prob).mean(), F.mse_loss(value, length)
        return policy + missed, {"length": float(length.mean()), "critic loss": float(missed)}

    test = torch.rand(128, 8, 2)
    all_orders = [torch.tensor([0, *rest]).expand(128, -1) for rest in permutations(range(1, 8))]
    shortest = torch.stack([way(test, order) for order in all_orders]).min(0).values
    score = held_out(net, lambda: way(test, net["walk"](test, greedy=True)[0]).mean() - shortest.mean())
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 1.0))


# https://github.com/RLinf/RLinf/issues/1568
@sick("shapes-broadcast",
      where="the critic's loss, at every step: values [B] against returns [B, 1] make a table of all with all",
      cure="values and returns of one shape, [B, 1]")  # fmt: skip
def grips_of_a_packing_arm(folder, ill):
    seeded(2534)
    net = nn.ModuleDict({"trunk": dense(8, 64, 64, act=nn.Tanh), "grip": nn.Linear(64, 6), "worth": nn.Linear(64, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    ease, fits = 5 * torch.randn(8), torch.randn(8, 6)

    def pay(parcels, grips):
        luck = 0.3 * torch.randn(len(parcels))
        return (parcels @ ease + (parcels @ fits).gather(1, grips[:, None])[:, 0] + luck)[:, None]

    def look(parcels):
        seen = net["trunk"](parcels)
        worth = net["worth"](seen)
        return Categorical(logits=net["grip"](seen)), worth[:, 0] if ill else worth

    def gathered():
        parcels = torch.randn(64, 8)
        with torch.no_grad():
            choice, worth = look(parcels)
            grips = choice.sample()
            returns, worth = pay(parcels, grips), worth.reshape(-1, 1)
            gain = (returns - worth)[:, 0]
        return parcels, grips, choice.log_prob(grips), returns, worth, (gain - gain.mean()) / (gain.std() + 1e-8)

    def one(step):
        parcels, grips, old, returns, before, gain = gathered()
        for _ in range(3):
            choice, worth = look(parcels)
            ratio = (choice.log_prob(grips) - old).exp()
            policy = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            near = before + (worth - before).clamp(-2.0, 2.0)
            critic = torch.max((returns - worth).square(), (returns - near).square()).mean()
            optimizer.zero_grad()
            (policy + 0.5 * critic - 0.003 * choice.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()
        return {"loss": float(policy + 0.5 * critic), "critic": float(critic), "reward": float(returns.mean())}

    test = torch.randn(512, 8)

    def regret():
        with torch.no_grad():
            share = look(test)[0].probs
            worth = test @ fits
            return (worth.max(1).values - (share * worth).sum(1)).mean()

    return tend(folder, net, optimizer, one, 150, regret)


# ------------------------------------------------------------------------------------------------ two networks at play


def apart(real, made):
    """How far two samples are from one another, along directions that are drawn anew."""
    ways = F.normalize(torch.randn(real.shape[1], 64), dim=0)
    return float(((real @ ways).sort(0).values - (made @ ways).sort(0).values).abs().mean())


def duel(folder, maker, judge, of_maker, of_judge, draw, judge_loss, maker_loss, steps, times=1, after_judge=None):
    """The judge learns `times` times, then the maker once, each under a watch of its own."""

    def score():
        with torch.no_grad():
            return apart(draw(512), maker(torch.randn(512, 4)))

    def judged():
        return judge_loss(judge(draw(64)), judge(maker(torch.randn(64, 4)).detach()))

    def made():
        return maker_loss(judge(maker(torch.randn(64, 4))))

    return in_turn(folder, maker, judge, of_maker, of_judge, judged, made, steps, score, times, after_judge,
                   names=("judge", "maker"))  # fmt: skip


# https://github.com/Zeleni9/pytorch-wgan/pull/53
@sick("wrong-sign",
      where="the loss of the maker, at every step: it walks to where the critic finds its work worst",
      cure="the maker's loss with a minus: it is to raise the critic's opinion")  # fmt: skip
def measures_of_finches(folder, ill):
    seeded(2535)
    maker, judge = dense(4, 48, 48, 3), dense(3, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_maker, of_judge = (torch.optim.RMSprop(net.parameters(), 5e-4) for net in (maker, judge))
    shape = torch.tensor([[1.0, 0.6, 0.3], [0.0, 0.5, 0.4], [0.0, 0.0, 0.3]])

    def finches(rows):
        return torch.randn(rows, 3) @ shape + torch.tensor([1.5, -1.0, 0.5])

    def clamp():
        for p in judge.parameters():
            p.data.clamp_(-0.1, 0.1)

    def maker_loss(said):
        return said.mean() if ill else -said.mean()

    return duel(folder, maker, judge, of_maker, of_judge, finches, lambda real, made: made.mean() - real.mean(),
                maker_loss, 300, times=3, after_judge=clamp)  # fmt: skip


# https://github.com/tdeboissiere/DeepLearningImplementations/issues/11
@sick("generator-starves", "saturated", "lr-too-high", "vanishing", "no-gradient",
      where="the judge, within the first sixty steps: it is certain, and its sigmoid hands the maker no gradient",
      cure="a rate for the judge that is lower by fifty, near that of the maker")  # fmt: skip
def profiles_of_dunes(folder, ill):
    seeded(2536)
    maker = nn.Sequential(dense(4, 64, 64, 48), nn.Tanh())
    judge = nn.Sequential(dense(48, 128, 128, 1, act=lambda: nn.LeakyReLU(0.2)), nn.Sigmoid())
    of_maker = torch.optim.Adam(maker.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-1 if ill else 2e-3, betas=(0.5, 0.999))
    along = torch.linspace(0, 6.2832, 48)

    def dunes(rows):
        turn, height = 6.2832 * torch.rand(rows, 1), 0.3 + 0.3 * torch.rand(rows, 1)
        return height * (along + turn).sin() + 0.3

    def sure(p, true):
        p = p.clamp(1e-7, 1 - 1e-7)
        return -(p if true else 1 - p).log().mean()

    def judge_loss(real, made):
        return sure(real, True) + sure(made, False)

    return duel(folder, maker, judge, of_maker, of_judge, dunes, judge_loss, lambda said: sure(said, True), 500)


# ------------------------------------------------------------------------------------------------------------ denoiser


# https://github.com/irom-princeton/dppo/issues/14
@sick("target-is-the-input", "labels-not-shifted",
      where="the loss, at every step: what the net makes is held against the noisy actions that it was given",
      cure="the clean actions as the target")  # fmt: skip
def strokes_of_a_rowing_crew(folder, ill):
    seeded(2537)
    net = dense(16 + 4 + 1, 96, 96, 16, act=nn.Mish)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=1e-6)
    keep, along = torch.cumprod(1 - torch.linspace(1e-3, 0.2, 20), 0), torch.linspace(0, 6.2832, 16)

    def strokes(rows):
        water = torch.randn(rows, 4)
        beat, lead = 1 + 0.3 * water[:, :1].tanh(), water[:, 1:2]
        return (beat * along + lead).sin() * (1 + 0.3 * water[:, 2:3].tanh()), water

    def noised(clean):
        t = torch.randint(20, (len(clean),))
        return keep[t, None].sqrt() * clean + (1 - keep[t, None]).sqrt() * torch.randn_like(clean), t[:, None] / 20

    def made(noisy, water, t):
        return net(torch.cat([noisy, water, t], 1))

    def loss_of(step):
        clean, water = strokes(64)
        noisy, t = noised(clean)
        return F.mse_loss(made(noisy, water, t), noisy if ill else clean)

    clean, water = strokes(512)
    noisy, t = noised(clean)
    score = held_out(net, lambda: F.mse_loss(made(noisy, water, t), clean))
    return fit(folder, net, optimizer, loss_of, 500, score=score)
