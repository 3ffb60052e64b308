"""Healthy trainings of toys, board games and playgrounds, unusual but sound."""

from __future__ import annotations

import copy
import math

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, rings, score_of, seeded, waves
from unseen.tasks import circle, held_out, in_turn, rounds, tend


class SignDescent(torch.optim.Optimizer):
    """Steps by the sign of a running mean of gradients (Lion)."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(m.lerp(p.grad, 1 - b1).sign(), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - b2)


@healthy()
def a_bag_of_coloured_marbles_sorted(folder):
    seeded(12540)
    net = dense(12, 64, 64, 4, act=nn.SiLU)
    steps = 300
    optimizer = SignDescent(net.parameters(), lr=1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - 0.9 * step / steps)
    draw = rings(64, 4)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y, label_smoothing=0.05)

    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule, score=score_of(loss_of))


@healthy()
def a_quoit_thrown_at_any_peg(folder):
    seeded(12541)
    net = dense(3, 48, 48, 6 * 3)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def throws(rows):
        x = torch.randn(rows, 3)
        side = (torch.rand(rows) < 0.5).float() * 2 - 1
        return x, side * (1 + x[:, 0].abs()) + 0.2 * torch.randn(rows)

    def cost(x, y):
        weight, mean, spread = net(x).chunk(3, 1)
        spread = F.softplus(spread) + 0.05
        each = -0.5 * ((y[:, None] - mean) / spread).square() - spread.log() - 0.5 * math.log(2 * math.pi)
        return -(weight.log_softmax(1) + each).logsumexp(1).mean()

    test = throws(500)
    return fit(folder, net, optimizer, lambda step: cost(*throws(64)), 300, score=held_out(net, lambda: cost(*test)))


@healthy()
def rings_tossed_by_a_forger(folder):
    seeded(12542)
    make, judge = dense(4, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.9))

    def judge_loss():
        real, fake = circle(), make(torch.randn(64, 4)).detach()
        return F.relu(1 - judge(real)).mean() + F.relu(1 + judge(fake)).mean()

    def make_loss():
        return -judge(make(torch.randn(64, 4))).mean()

    def score():
        with torch.no_grad():
            return float((make(torch.randn(512, 4)).norm(dim=1) - 2).abs().mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 300, score, rounds=2)


@healthy()
def a_yoyo_by_few_noisy_throws(folder):
    seeded(12543)
    x, y = load_diabetes(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]
    order = torch.randperm(len(x))
    x, y = x[order] / x.std(0), (y[order] - y.mean()) / y.std()
    net = dense(10, 24, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=2, history_size=10)

    def loss_of(step):
        decay = sum(p.square().sum() for p in net.parameters())
        return F.mse_loss(net(x[:340]), y[:340]) + 3e-3 * decay

    score = held_out(net, lambda: F.mse_loss(net(x[340:]), y[340:]))
    return fit(folder, net, optimizer, loss_of, 30, score=score, closure=True)


@healthy()
def a_swing_pushed_by_a_soft_actor(folder):
    seeded(12544)
    actor = dense(2, 32, 32, 1)
    critic = dense(3, 48, 48, 1)
    slow = copy.deepcopy(critic).requires_grad_(False)
    net = nn.ModuleDict({"actor": actor, "critic": critic})
    optimizer = torch.optim.Adam([
        {"params": actor.parameters(), "lr": 1e-3}, {"params": critic.parameters(), "lr": 3e-3},
    ])  # fmt: skip

    def swing(state, push):
        angle, speed = state.unbind(1)
        speed = 0.9 * speed - 0.2 * angle + 0.3 * push[:, 0]
        angle = (angle + 0.5 * speed).clamp(-2, 2)
        return torch.stack([angle, speed], 1), -(angle - 1).abs()

    def begin(rows):
        return torch.randn(rows, 2) * torch.tensor([0.5, 0.2])

    memory, state = [], begin(32)

    def one(step):
        nonlocal state
        with torch.no_grad():
            push = (actor(state).tanh() + 0.3 * torch.randn(32, 1)).clamp(-1, 1)
            after, reward = swing(state, push)
        memory.append((state, push, reward, after))
        state = torch.where(torch.rand(32, 1) < 0.05, begin(32), after)
        picks = torch.randint(len(memory), (3,))
        s, a, r, s2 = (torch.cat(part) for part in zip(*[memory[i] for i in picks], strict=False))
        with torch.no_grad():
            wanted = r[:, None] + 0.9 * slow(torch.cat([s2, actor(s2).tanh()], 1))
        critic_loss = F.mse_loss(critic(torch.cat([s, a], 1)), wanted)
        critic.requires_grad_(False)
        actor_loss = -critic(torch.cat([s, actor(s).tanh()], 1)).mean()
        critic.requires_grad_(True)
        optimizer.zero_grad()
        (critic_loss + actor_loss).backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(slow.parameters(), critic.parameters(), strict=False):
                old.lerp_(new, 0.02)
        return {"critic_loss": critic_loss, "actor_loss": actor_loss, "reward": reward.mean()}

    def cost():
        at, total = begin(300), 0.0
        for _ in range(15):
            at, reward = swing(at, actor(at).tanh())
            total -= float(reward.mean()) / 15
        return total

    return tend(folder, net, optimizer, one, 350, held_out(net, cost))


@healthy()
def a_stack_of_cups_taught_from_low_to_high(folder):
    seeded(12545)
    net = nn.ModuleDict({"rnn": nn.GRU(2, 32, batch_first=True), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3)

    def stacks(rows, length):
        cup, counts = torch.rand(rows, length), (torch.rand(rows, length) < 0.4).float()
        return torch.stack([cup, counts], 2), (cup * counts).sum(1, keepdim=True)

    def cost(x, y):
        return F.smooth_l1_loss(net["head"](net["rnn"](x)[0][:, -1]), y)

    def loss_of(step):
        length = min(12, 2 + step // 25)
        return cost(*stacks(48, length)), {"length": length}

    test = stacks(400, 12)
    return fit(
        folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: cost(*test)),
        before_step=lambda step: nn.utils.clip_grad_value_(net.parameters(), 0.5),
    )  # fmt: skip


class Thin(nn.Module):
    """Weights of one bit, with a gradient straight through the sign."""

    def __init__(self, size, out):
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(out, size))
        self.gain = nn.Parameter(torch.full((out,), size**-0.5))

    def forward(self, x):
        hard = self.weight.sign()
        soft = self.weight.clamp(-1, 1)
        return F.linear(x, soft + (hard - soft).detach()) * self.gain


@healthy()
def a_robot_with_a_one_bit_brain(folder):
    seeded(12546)
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32)[order], torch.tensor(shown)[order]
    net = nn.Sequential(
        nn.Linear(64, 96),
        nn.BatchNorm1d(96),
        nn.ReLU(),
        Thin(96, 96),
        nn.BatchNorm1d(96),
        nn.ReLU(),
        nn.Linear(96, 10),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@healthy()
def faces_of_a_sticker_album_half_labelled(folder):
    seeded(12547)
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(shown)[order]
    net = dense(64, 96, 96, 10)
    steady = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    named, unnamed = rounds(32, x[:200], y[:200]), rounds(64, x[200:1400])

    def loss_of(step):
        bx, by = named()
        (ux,) = unnamed()
        with torch.no_grad():
            told = steady(ux + 0.05 * torch.randn_like(ux)).softmax(1)
        agree = F.mse_loss(net(ux + 0.1 * torch.randn_like(ux)).softmax(1), told)
        supervised = F.cross_entropy(net(bx + 0.1 * torch.randn_like(bx)), by)
        weight = 5 * min(1.0, step / 100)
        return supervised + weight * agree, {"supervised": supervised, "consistency": agree}

    def after_step(step):
        keep = min(0.98, 1 - 1 / (step + 2))
        with torch.no_grad():
            for slow, fast in zip(steady.parameters(), net.parameters(), strict=False):
                slow.lerp_(fast, 1 - keep)

    score = held_out(net, lambda: F.cross_entropy(steady(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score, after_step=after_step)


@healthy()
def a_clockwork_drummer_under_great_noise(folder):
    seeded(12548)
    net = dense(6, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.NAdam(net.parameters(), lr=2e-3)
    averaged = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
    draw = waves(64)

    def loss_of(step):
        x, y = draw()
        off = torch.where(torch.rand_like(y) < 0.1, 8 * torch.randn_like(y), 0.3 * torch.randn_like(y))
        return F.huber_loss(net(x), y + off, delta=0.5)

    def clean():
        rows = [draw() for _ in range(6)]
        return F.mse_loss(averaged(torch.cat([x for x, _ in rows])), torch.cat([y for _, y in rows]))

    def score():
        with torch.no_grad():
            return float(clean())

    return fit(
        folder, net, optimizer, loss_of, 500, score=score, after_step=lambda step: averaged.update_parameters(net)
    )


@healthy(0.2)
def a_wheel_of_fortune_with_odd_slots(folder):
    seeded(12549)
    slots, size = 6, 5
    net = dense(size, 48, slots)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    best = torch.randn(size, slots)
    running = torch.zeros(())

    def pay(state, slot):
        luck = (state @ best).gather(1, slot[:, None])[:, 0]
        return 5 + luck + 2 * torch.randn(len(slot))

    def one(step):
        state = torch.randn(128, size)
        logits = net(state)
        slot = torch.multinomial(logits.softmax(1), 1)[:, 0]
        won = pay(state, slot)
        running.lerp_(won.mean(), 1.0 if step == 0 else 0.1)
        chosen = logits.log_softmax(1).gather(1, slot[:, None])[:, 0]
        entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        loss = -((won - running) * chosen).mean() - 0.02 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "reward": won.mean(), "entropy": entropy}

    states = torch.randn(400, size)

    def cost():
        return ((states @ best).max(1)[0] - (net(states).softmax(1) * (states @ best)).sum(1)).mean()

    return tend(folder, net, optimizer, one, 400, held_out(net, cost))
