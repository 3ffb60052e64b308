"""Sent healthy trainings, fourth part: agents, whose losses say little. An expert is content with each.

They only count (the group `sent`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, seeded

import gradwatch

# -------------------------------------------------------------------------------------------------------------- a pole


class Poles:
    """Carts with a pole each, all pushed at once (Barto et al. 1983); one that fell begins anew. Each step pays 1."""

    def __init__(self, many, most=100):
        self.state, self.age = 0.1 * torch.rand(many, 4) - 0.05, torch.zeros(many)
        self.most = most

    def push(self, move):
        """Pushed left (0) or right (1): what is seen next, and which of them fell."""
        x, speed, angle, turn = self.state.T
        force = 20.0 * move - 10
        part = (force + 0.05 * turn**2 * angle.sin()) / 1.1
        bend = (9.8 * angle.sin() - angle.cos() * part) / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
        push = part - 0.05 * bend * angle.cos() / 1.1
        after = torch.stack([x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * bend], 1)
        fell = (after[:, 0].abs() > 2.4) | (after[:, 2].abs() > 0.21)
        self.age = self.age + 1
        over = fell | (self.age >= self.most)
        self.state = torch.where(over[:, None], 0.1 * torch.rand(after.shape) - 0.05, after)
        self.age = self.age.where(~over, 0.0)
        return after, fell, over


def falls(act):
    """Minus how many steps of 100 a pole stays up, on average of 32."""
    with torch.no_grad(), torch.random.fork_rng():
        poles, up = Poles(32, most=1000), torch.ones(32, dtype=torch.bool)
        lasted = torch.zeros(32)
        for _ in range(100):
            lasted += up
            up &= ~poles.push(act(poles.state))[1]
    return -float(lasted.mean())


def gains_of(reward, value, fell, over, last):
    """Generalised advantages (Schulman et al. 2016) with a discount of 0.98; all are `[T, N]`."""
    gain, found = torch.zeros_like(last), []
    for t in reversed(range(len(reward))):
        ahead = last if t == len(reward) - 1 else value[t + 1]
        error = reward[t] + 0.98 * ahead * ~fell[t] - value[t]
        gain = error + 0.98 * 0.95 * gain * ~over[t]
        found.append(gain)
    return torch.stack(found[::-1])


@torch.no_grad()
def walked(poles, actor, critic, steps):
    """States, moves, their logarithmic likelihoods, gains and returns of some steps of all poles, in one row."""
    rows = []
    for _ in range(steps):
        state = poles.state
        policy = torch.distributions.Categorical(logits=actor(state))
        move = policy.sample()
        _, fell, over = poles.push(move)
        rows.append((state, move, policy.log_prob(move), critic(state)[:, 0], fell, over))
    state, move, log, value, fell, over = (torch.stack(column) for column in zip(*rows, strict=True))
    gain = gains_of(torch.ones_like(value), value, fell, over, critic(poles.state)[:, 0])
    return [x.flatten(0, 1) for x in (state, move, log, gain, gain + value)]


@healthy(0.3)
def poles_by_proximal_steps(folder):
    """Four rounds of minibatches over what was just walked (Schulman et al. 2017), all as it is usually done."""
    seeded(1041)
    net, poles = (
        nn.ModuleDict({"actor": dense(4, 32, 2, act=nn.Tanh), "critic": dense(4, 32, 1, act=nn.Tanh)}),
        Poles(16),
    )
    nn.init.orthogonal_(net["actor"][2].weight, 0.01)
    kept, left = {}, []

    def loss_of(step):
        if not left:
            kept["rows"] = walked(poles, net["actor"], net["critic"], 32)
            for _ in range(4):
                left.extend(torch.randperm(512).split(128))
        at = left.pop()
        state, move, old, gain, wanted = (x[at] for x in kept["rows"])
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy = torch.distributions.Categorical(logits=net["actor"](state))
        ratio = (policy.log_prob(move) - old).exp()
        push = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        value = F.mse_loss(net["critic"](state)[:, 0], wanted)
        return push + 0.5 * value - 0.01 * policy.entropy().mean(), {"episode_length": poles.age.mean()}

    make = optim.Adam(net.parameters(), 2e-3, eps=1e-5)
    score = lambda: falls(lambda s: net["actor"](s).argmax(1))  # noqa: E731
    return fit(folder, net, make, loss_of, 240, score=score, clip="ClipByGlobalNorm(0.5)")


@healthy(0.3)
def poles_by_values_that_grow(folder):
    """Double Q-learning (van Hasselt et al. 2016): values rise from 0 to tens, and the loss with them."""
    seeded(1042)
    net, poles = dense(4, 48, 48, 2), Poles(8)
    slow, past = copy.deepcopy(net), []

    def loss_of(step):
        with torch.no_grad():
            state = poles.state
            greedy = torch.rand(8) > max(0.05, 1 - step / 300)
            move = net(state).argmax(1).where(greedy, torch.randint(2, (8,)))
            after, fell, _ = poles.push(move)
            past.append((state, move, after, fell))
            at = torch.randint(len(past), (8,)).tolist()
            state, move, after, fell = (torch.cat([past[i][k] for i in at]) for k in range(4))
            best = slow(after).gather(1, net(after).argmax(1, keepdim=True))[:, 0]
            wanted = 1 + 0.97 * best * ~fell
        value = net(state).gather(1, move[:, None])[:, 0]
        return F.smooth_l1_loss(value, wanted), {"q_mean": value.detach().mean()}

    def after(step):
        if step % 25 == 24:
            slow.load_state_dict(net.state_dict())

    make = optim.Adam(net.parameters(), 2e-3)
    score = lambda: falls(lambda s: net(s).argmax(1))  # noqa: E731
    options = {"score": score, "after_step": after, "clip": "ClipByGlobalNorm(10.0)"}
    return fit(folder, net, make, loss_of, 900, **options)


@healthy(0.3)
def poles_in_a_trusted_region(folder):
    """Natural gradients by conjugate gradients, as long as a divergence of 0.01 allows (Schulman et al. 2015)."""
    seeded(1043)
    net, poles = dense(4, 32, 2, act=nn.Tanh), Poles(16)
    critic = dense(4, 32, 1, act=nn.Tanh)
    of_critic, weights, kept = optim.Adam(critic.parameters(), 5e-3), list(net.parameters()), {}

    def loss_of(step):
        state, move, old, gain, wanted = kept["rows"] = walked(poles, net, critic, 48)
        for _ in range(10):
            of_critic.zero_grad()
            F.mse_loss(critic(state)[:, 0], wanted).backward()
            of_critic.step()
        gain = (gain - gain.mean()) / gain.std()
        ratio = (net(state).log_softmax(1).gather(1, move[:, None])[:, 0] - old).exp()
        return -(ratio * gain).mean(), {"episode_length": poles.age.mean()}

    def before(step):
        logs = net(kept["rows"][0]).log_softmax(1)
        apart = (logs.detach().exp() * (logs.detach() - logs)).sum(1).mean()
        slopes = torch.cat([s.flatten() for s in torch.autograd.grad(apart, weights, create_graph=True)])

        def bend(way):
            found = torch.autograd.grad(slopes @ way, weights, retain_graph=True)
            return torch.cat([s.flatten() for s in found]) + 0.1 * way

        wanted = torch.cat([p.grad.flatten() for p in weights])
        way, left = torch.zeros_like(wanted), wanted.clone()
        turn = left.clone()
        for _ in range(8):
            bent = bend(turn)
            far = left @ left / (turn @ bent)
            way, rest = way + far * turn, left - far * bent
            turn, left = rest + (rest @ rest) / (left @ left) * turn, rest
        way *= (0.02 / (way @ bend(way))).sqrt()
        for p, part in zip(weights, way.split([p.numel() for p in weights]), strict=True):
            p.grad = part.view_as(p).clone()

    score = lambda: falls(lambda s: net(s).argmax(1))  # noqa: E731
    return fit(folder, net, optim.SGD(weights, 1.0), loss_of, 40, before_step=before, score=score)


# ------------------------------------------------------------------------------------------------------------ others


@healthy(0.3)
def returns_as_quantiles(folder):
    """A corridor whose end pays 10, or 0 by chance; 21 quantiles of each return (Dabney et al. 2018)."""
    seeded(1044)
    net, cells = nn.Embedding(8 * 2, 21), torch.arange(8)
    nn.init.zeros_(net.weight)
    slow, middle = copy.deepcopy(net), (torch.arange(21) + 0.5) / 21

    def loss_of(step):
        at, move = torch.randint(8, (64,)), torch.randint(2, (64,))
        to = (at + 2 * move - 1).clamp(min=0)
        end = to == 8
        paid = 20.0 * (torch.rand(64) < 0.5) * end
        with torch.no_grad():
            best = slow.weight.view(8, 2, 21)[to.clamp(max=7)]
            best = best[torch.arange(64), best.mean(2).argmax(1)]
            wanted = paid[:, None] + 0.9 * best * ~end[:, None]
        error = wanted[:, None] - net(2 * at + move)[..., None]
        huber = F.huber_loss(error, torch.zeros_like(error), reduction="none")
        return ((middle[:, None] - (error.detach() < 0).float()).abs() * huber).sum(1).mean()

    def after(step):
        if step % 40 == 39:
            slow.load_state_dict(net.state_dict())

    def score():
        with torch.no_grad():
            value = net.weight.view(8, 2, 21).mean(2).max(1)[0]
        return float((value - 10 * 0.9 ** (7 - cells)).abs().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 0.05), loss_of, 800, after_step=after, score=score)


@healthy(0.3)
def two_critics_and_a_late_actor(folder):
    """TD3 (Fujimoto et al. 2018): a point is to come to rest in the middle; the score is what it pays on its way."""
    seeded(1045)
    net = nn.ModuleDict({"actor": dense(2, 32, 1), "one": dense(3, 48, 1), "other": dense(3, 48, 1)})
    slow, past, now = copy.deepcopy(net), [], {"state": torch.zeros(16, 2)}
    of_actor = optim.Adam(net["actor"].parameters(), 1e-3)
    of_critics = optim.Adam([*net["one"].parameters(), *net["other"].parameters()], 3e-3)

    def moved(state, force):
        speed = 0.9 * state[:, 1] + 0.3 * force[:, 0]
        after = torch.stack([state[:, 0] + 0.3 * speed, speed], 1).clamp(-3, 3)
        return after, -after[:, 0].square() - 0.1 * force[:, 0].square()

    @torch.no_grad()
    def targets():
        force = (net["actor"](now["state"]).tanh() + 0.3 * torch.randn(16, 1)).clamp(-1, 1)
        after, paid = moved(now["state"], force)
        past.append((now["state"], force, after, paid))
        begin = torch.stack([4 * torch.rand(16) - 2, torch.zeros(16)], 1)
        now["state"] = torch.where(torch.rand(16, 1) < 0.05, begin, after)
        rows = [past[i] for i in torch.randint(len(past), (4,)).tolist()]
        state, force, after, paid = (torch.cat(column) for column in zip(*rows, strict=True))
        to = (slow["actor"](after).tanh() + (0.2 * torch.randn(64, 1)).clamp(-0.5, 0.5)).clamp(-1, 1)
        both = torch.cat([after, to], 1)
        least = torch.minimum(slow["one"](both), slow["other"](both))[:, 0]
        return state, torch.cat([state, force], 1), paid + 0.95 * least

    @torch.no_grad()
    def score():
        state, cost = torch.stack([torch.linspace(-2, 2, 32), torch.zeros(32)], 1), 0.0
        for _ in range(30):
            state, paid = moved(state, net["actor"](state).tanh())
            cost -= float(paid.mean())
        return cost

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, of_critics)}
    with gradwatch.watch(net, [of_critics, of_actor], **options) as watch:
        for step in range(500):
            state, both, wanted = targets()
            of_critics.zero_grad()
            loss = F.mse_loss(net["one"](both)[:, 0], wanted) + F.mse_loss(net["other"](both)[:, 0], wanted)
            loss.backward()
            of_critics.step()
            watch.log(critic_loss=loss)
            if step % 2:
                of_actor.zero_grad()
                worth = -net["one"](torch.cat([state, net["actor"](state).tanh()], 1)).mean()
                worth.backward()
                of_actor.step()
                watch.log(actor_loss=worth)
                with torch.no_grad():
                    for p, q in zip(slow.parameters(), net.parameters(), strict=True):
                        p.lerp_(q, 0.02)
    return Outcome(gradwatch.open_history(watch.dir), first, score())


@healthy(0.3)
def advantages_that_weigh_what_was_done(folder):
    """From moves by chance alone: values by an expectile, moves weighed by the exponent of what they gained (IQL)."""
    seeded(1046)
    sizes = {"actor": (5, 48, 3), "value": (5, 48, 1), "worth": (5, 48, 3)}
    net, best = nn.ModuleDict({name: dense(*size) for name, size in sizes.items()}), torch.randn(5, 3)
    seen, move = torch.randn(2000, 5), torch.randint(3, (2000,))
    paid = (seen @ best).gather(1, move[:, None])[:, 0] + torch.randn(2000)

    def loss_of(step):
        at = torch.randint(2000, (96,))
        worth = net["worth"](seen[at]).gather(1, move[at, None])[:, 0]
        value = net["value"](seen[at])[:, 0]
        more = worth.detach() - value
        expectile = ((0.8 - (more.detach() < 0).float()).abs() * more.square()).mean()
        weight = (3 * more.detach()).exp().clamp(max=100)
        done = net["actor"](seen[at]).log_softmax(1).gather(1, move[at, None])[:, 0]
        return F.mse_loss(worth, paid[at]) + expectile - (weight * done).mean()

    def score():
        with torch.no_grad():
            state = seen[:500]
            chosen = net["actor"](state).argmax(1, keepdim=True)
            return float(((state @ best).max(1)[0] - (state @ best).gather(1, chosen)[:, 0]).mean())

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 500, score=score)
