"""Typical healthy trainings, sixth part: agents, teachers, adapters (the group "typical").

They only count: whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from nets import digits
from torch import nn, optim
from torch.distributions import Categorical, Normal
from torch.nn import functional as F
from unseen import Outcome, dense, entropy_of, fit, healthy, seeded
from unseen.typical.healthy_data import (
    Poles,
    entropy_in_eval,
    images,
    minus_length,
    orthogonal,
    pretrain,
    some,
    watched,
)

import gradwatch


# CleanRL's ppo.py: orthogonal weights, tanh, the rate down to zero, a clip at a half, small rewards, a logged return.
@healthy(0.5)
def pole_kept_up_by_ppo(folder):
    seeded(1571)

    def tower(out, gain):
        parts = (orthogonal(nn.Linear(4, 64)), nn.Tanh(), orthogonal(nn.Linear(64, 64)), nn.Tanh())
        return nn.Sequential(*parts, orthogonal(nn.Linear(64, out), gain))

    net, poles, rounds = nn.ModuleDict({"actor": tower(2, 0.01), "critic": tower(1, 1.0)}), Poles(16, 200), 14
    make = optim.Adam(net.parameters(), 2e-3, eps=1e-5)
    plan = optim.lr_scheduler.LinearLR(make, 1.0, 0.0, rounds)

    def score():
        return minus_length(lambda state: Categorical(logits=net["actor"](state)).sample())

    def collect(long=64):
        rows = []
        for _ in range(long):
            state, odds = poles.state, Categorical(logits=net["actor"](poles.state))
            action = odds.sample()
            reward, fell, late = poles.step(action)
            reward = 0.05 * reward + 0.99 * net["critic"](poles.seen)[:, 0] * (late & ~fell)
            rows.append((state, action, odds.log_prob(action), net["critic"](state)[:, 0], reward, fell | late))
        states, actions, logs, values, rewards, over = (torch.stack(part) for part in zip(*rows, strict=True))
        gains, later, ahead = torch.zeros_like(values), torch.zeros(poles.many), net["critic"](poles.state)[:, 0]
        for t in reversed(range(long)):
            going = 1.0 - over[t].float()
            later = rewards[t] + 0.99 * ahead * going - values[t] + 0.99 * 0.95 * going * later
            gains[t], ahead = later, values[t]
        return [part.flatten(0, 1) for part in (states, actions, logs, gains, gains + values)]

    first = score()
    with watched(folder, net, make) as watch:
        for _ in range(rounds):
            with torch.no_grad():
                batch = collect()
            for _ in range(4):
                for at in torch.randperm(1024).split(256):
                    state, action, old, gain, goal = (part[at] for part in batch)
                    odds = Categorical(logits=net["actor"](state))
                    ratio = (odds.log_prob(action) - old).exp()
                    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                    policy = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                    value = 0.5 * (net["critic"](state)[:, 0] - goal).square().mean()
                    loss = policy + 0.5 * value - 0.01 * odds.entropy().mean()
                    make.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                    make.step()
                    lengths = poles.lengths[-30:]
                    watch.log(loss=loss, episodic_return=sum(lengths) / max(1, len(lengths)))
            plan.step()
    return Outcome(gradwatch.open_history(watch.dir), first, score())


# A double DQN: a buffer, a target that follows slowly, Huber's loss, which grows with the values as they are learnt.
@healthy(0.5)
def pole_kept_up_by_a_double_dqn(folder):
    seeded(1572)
    net, poles = dense(4, 64, 64, 2), Poles(8, 150)
    slow, make = copy.deepcopy(net).requires_grad_(False), optim.AdamW(net.parameters(), 1e-3, amsgrad=True)
    held, size, filled = [torch.zeros(8000, n) for n in (4, 1, 1, 4, 1)], 8000, 0

    def score():
        return minus_length(lambda state: net(state).argmax(1), 32, 150)

    first = score()
    with watched(folder, net, make) as watch:
        for step in range(900):
            with torch.no_grad():
                state, greedy = poles.state, net(poles.state).argmax(1)
            chance = max(0.05, 0.9 - step / 400)
            action = torch.where(torch.rand(8) < chance, torch.randint(2, (8,)), greedy)
            reward, fell, _ = poles.step(action)
            at = (filled + torch.arange(8)) % size
            for store, new in zip(held, (state, action, reward, poles.seen, fell), strict=True):
                store[at] = new.float().view(8, -1)
            filled += 8
            if filled < 256:
                continue
            rows = torch.randint(min(filled, size), (128,))
            state, action, reward, ahead, fell = (store[rows] for store in held)
            with torch.no_grad():
                best = net(ahead).argmax(1, keepdim=True)
                goal = reward + 0.97 * slow(ahead).gather(1, best) * (1 - fell)
            loss = F.smooth_l1_loss(net(state).gather(1, action.long()), goal)
            make.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 10.0)
            make.step()
            with torch.no_grad():
                for p, q in zip(slow.parameters(), net.parameters(), strict=True):
                    p.lerp_(q, 0.02)
            lengths = poles.lengths[-20:]
            watch.log(loss=loss, episode_length=sum(lengths) / max(1, len(lengths)))
    return Outcome(gradwatch.open_history(watch.dir), first, score())


# SAC on a mass that slides to the middle: two critics, an actor, a temperature of its own; three optimizers in turn.
@healthy(0.3)
def mass_brought_to_rest_by_sac(folder):
    seeded(1573)
    actor, critics = dense(2, 64, 64, 2), nn.ModuleList(dense(3, 64, 64, 1) for _ in range(2))
    slow, heat = copy.deepcopy(critics).requires_grad_(False), torch.zeros((), requires_grad=True)
    of_actor, of_critics = (optim.Adam(net.parameters(), 2e-3) for net in (actor, critics))
    of_heat = optim.Adam([heat], 2e-3)

    def act(state):
        mid, spread = actor(state).chunk(2, 1)
        odds = Normal(mid, spread.clamp(-5, 2).exp())
        raw = odds.rsample()
        return raw.tanh(), (odds.log_prob(raw) - 2 * (0.6931 - raw - F.softplus(-2 * raw))).sum(1, keepdim=True)

    def move(state, force):
        speed = 0.95 * state[:, 1:] + 0.15 * force
        ahead = torch.cat([(state[:, :1] + 0.3 * speed).clamp(-2, 2), speed], 1)
        return ahead, -(ahead[:, :1] ** 2) - 0.1 * speed**2 - 0.02 * force**2

    def fresh(many):
        return torch.cat([4 * torch.rand(many, 1) - 2, 0.2 * torch.randn(many, 1)], 1)

    @torch.no_grad()
    def score():
        state, total = fresh(256), 0.0
        for _ in range(40):
            state, reward = move(state, actor(state)[:, :1].tanh())
            total -= float(reward.mean())
        return total

    first, rows, state = score(), [], fresh(16)
    options = {"name": "critics"}
    w_critics = watched(folder, critics, of_critics, **options)
    w_actor = watched(folder, actor, of_actor, name="actor", run=w_critics)
    with w_critics, w_actor:
        for step in range(450):
            with torch.no_grad():
                force = act(state)[0] if step > 15 else 2 * torch.rand(16, 1) - 1
                ahead, reward = move(state, force)
            rows.append(torch.cat([state, force, reward, ahead], 1))
            state = torch.where(torch.rand(16, 1) < 0.03, fresh(16), ahead)
            batch = torch.cat([rows[i] for i in torch.randint(len(rows), (8,)).tolist()])
            seen, force, reward, ahead = batch.split([2, 1, 1, 2], 1)
            with torch.no_grad():
                then, log = act(ahead)
                value = torch.min(*(q(torch.cat([ahead, then], 1)) for q in slow)) - heat.exp() * log
                goal = reward + 0.95 * value
            loss = sum(F.mse_loss(q(torch.cat([seen, force], 1)), goal) for q in critics)
            of_critics.zero_grad()
            loss.backward()
            of_critics.step()
            w_critics.log(loss=loss)
            force, log = act(seen)
            loss = (heat.detach().exp() * log - torch.min(*(q(torch.cat([seen, force], 1)) for q in critics))).mean()
            of_actor.zero_grad()
            loss.backward()
            of_actor.step()
            w_actor.log(loss=loss)
            of_heat.zero_grad()
            (-heat * (log.detach() - 1.0).mean()).backward()
            of_heat.step()
            with torch.no_grad():
                for p, q in zip(slow.parameters(), critics.parameters(), strict=True):
                    p.lerp_(q, 0.02)
    return Outcome(gradwatch.open_history(w_critics.dir.parent), first, score())


# Hinton's distillation: a teacher in eval mode, softened by four, three tenths of the true labels.
@healthy(0.6)
def small_student_of_a_large_teacher(folder):
    seeded(1574)
    learnt, kept = images()
    teacher, net = (nn.Sequential(nn.Flatten(), dense(64, wide, wide, 10)) for wide in (192, 24))
    draw, steps = some(*learnt, 64), 250
    pretrain(teacher, optim.Adam(teacher.parameters(), 2e-3), entropy_of(teacher, draw), 150)
    teacher.eval().requires_grad_(False)

    def loss_of(step):
        x, y = draw()
        said, told = net(x), teacher(x)
        soft = F.kl_div((said / 4).log_softmax(1), (told / 4).softmax(1), reduction="batchmean") * 16
        return 0.7 * soft + 0.3 * F.cross_entropy(said, y)

    make = optim.Adam(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.OneCycleLR(make, 6e-3, steps)
    return fit(folder, net, make, loss_of, steps, schedule=plan, score=entropy_in_eval(net, *kept))


class Adapted(nn.Module):
    """A frozen layer and a product of low rank beside it, whose second factor begins at zero (Hu et al. 2021)."""

    def __init__(self, layer, rank=4, alpha=8):
        super().__init__()
        self.layer, self.share = layer.requires_grad_(False), alpha / rank
        self.lora_a = nn.Parameter(torch.empty(rank, layer.in_features))
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=5**0.5)

    def forward(self, x):
        return self.layer(x) + self.share * (x @ self.lora_a.T) @ self.lora_b.T


# LoRA as peft has it: the body is frozen, the digits to learn now are turned; AdamW, a short rise, a line down.
@healthy(0.5)
def adapters_for_digits_that_are_turned(folder):
    seeded(1575)
    (x, y), (kept, truth) = images()
    net = nn.Sequential(nn.Flatten(), dense(64, 96, 96, 10))
    pretrain(net, optim.Adam(net.parameters(), 2e-3), entropy_of(net, some(x, y, 64)), 200)
    net[1][0], net[1][2] = Adapted(net[1][0]), Adapted(net[1][2])
    net[1][4].requires_grad_(False)
    steps, turned = 250, some(x.rot90(1, (2, 3)), y, 32)
    make = optim.AdamW([p for p in net.parameters() if p.requires_grad], 4e-3, weight_decay=0.0)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min((step + 1) / 10, (steps - step) / (steps - 10)))

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    score = entropy_in_eval(net, kept.rot90(1, (2, 3)), truth)
    return fit(folder, net, make, entropy_of(net, turned), steps, before_step=clipped, schedule=plan, score=score)


# A denoising autoencoder of the digits: Adam, the mean of squares, which is small by its nature.
@healthy(0.5)
def digits_cleaned_of_their_noise(folder):
    seeded(1576)
    x = digits()[0].flatten(1)
    net, draw = dense(64, 96, 24, 96, 64), some(x, x, 64)

    def loss_of(step):
        clean, _ = draw()
        return F.mse_loss(net(clean + 0.2 * torch.randn_like(clean)), clean)

    make = optim.Adam(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.MultiStepLR(make, [250, 350], 0.3)

    def score():
        with torch.no_grad():
            return float(F.mse_loss(net(x + 0.2 * torch.randn_like(x)), x))

    return fit(folder, net, make, loss_of, 400, schedule=plan, score=score)
