"""Sound trainings of an ordinary make: a language of swings, a pan on the fire, the beats of a heart."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend

import gradwatch


def warmed(optimizer, warm, after):
    """`after(step)`: the share of the rate once it is warm."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / warm, after(step)))


def by_dimension(net, decay):
    """Matrices and kernels decay, biases and norms do not."""
    wide, narrow = ([p for p in net.parameters() if (p.dim() >= 2) == many] for many in (True, False))
    return [{"params": wide, "weight_decay": decay}, {"params": narrow, "weight_decay": 0.0}]


# --------------------------------------------------------------------------------------------------------------- crane


def swings(rows, length=33, levels=32):
    """A load on a rope that is let go, braked now and then, in steps of its angle."""
    angle, speed, rope = 2 * torch.rand(rows) - 1, torch.randn(rows) * 0.3, 0.3 + 0.3 * torch.rand(rows)
    seen = []
    for _ in range(length):
        speed = 0.98 * speed - rope * angle.sin() + 0.02 * torch.randn(rows)
        angle = angle + 0.7 * speed
        seen.append(angle)
    return ((torch.stack(seen, 1) / 3 + 0.5) * levels).long().clamp(0, levels - 1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.ln_1(x)).chunk(3, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.proj(mixed)
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class Swinger(nn.Module):
    def __init__(self, levels=32, length=32, width=48, layers=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(levels, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, 3) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, levels, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                deep = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(p, 0, 0.02 / (2 * layers) ** 0.5 if deep else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)
        self.wte.weight = self.head.weight

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


@healthy()
def swings_of_a_crane_as_a_language(folder, steps=260, parts=2):
    seeded(2405)
    net, draw, new = Swinger(), rounds(20, swings(6000)), swings(200)
    optimizer = torch.optim.AdamW(by_dimension(net, 0.1), 2e-3, betas=(0.9, 0.95))
    schedule = warmed(optimizer, 26, lambda step: 0.1 + 0.45 * (1 + math.cos(math.pi * step / steps)))

    def loss(tokens):
        return F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def one(step):
        total = 0.0
        for _ in range(parts):
            part = loss(draw()[0]) / parts
            part.backward()
            total += part.item()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        return {"loss": total}

    return tend(folder, net, optimizer, one, steps, held_out(net, lambda: loss(new)))


# ----------------------------------------------------------------------------------------------------------------- pan


def heated(pan, flame):
    """A minute on the fire of `[n, 3]` pans: how far the food is from its mark, the plate's heat, the food's weight."""
    food, plate, weight = pan.unbind(1)
    plate = 0.8 * plate + 0.4 * flame
    food = food + (plate - 0.3 * food - 0.1) / (1 + weight) + 0.02 * torch.randn(len(pan))
    return torch.stack([food, plate, weight], 1), -food.abs()


def fresh_pans(n):
    return torch.stack([2 * torch.rand(n) - 1.5, torch.zeros(n), torch.rand(n)], 1)


class Memory:
    def __init__(self):
        self.rows = []

    def add(self, *parts):
        self.rows.append(torch.cat([p.reshape(len(parts[0]), -1) for p in parts], 1))

    def draw(self, n):
        rows = torch.cat(self.rows)
        return rows[torch.randint(len(rows), (n,))].split([3, 1, 1, 3], 1)


@healthy()
def pan_held_at_a_simmer(folder, steps=600, learning_from=50):
    seeded(2406)
    actor, critic = nn.Sequential(dense(3, 48, 48, 1), nn.Tanh()), nn.ModuleList(dense(4, 64, 64, 1) for _ in range(2))
    actor_target, critic_target = copy.deepcopy(actor), copy.deepcopy(critic)
    of_actor = torch.optim.Adam(actor.parameters(), 1e-3)
    of_critic = torch.optim.Adam(critic.parameters(), 1e-3)
    memory, pans = Memory(), fresh_pans(8)

    def live(step):
        nonlocal pans
        with torch.no_grad():
            tried = (actor(pans) + 0.2 * torch.randn(8, 1)).clamp(-1, 1)
        flame = 2 * torch.rand(8, 1) - 1 if step < learning_from else tried
        after, reward = heated(pans, flame[:, 0])
        memory.add(pans, flame, reward, after)
        pans = fresh_pans(8) if step % 40 == 39 else after
        return reward.mean()

    def follow():
        with torch.no_grad():
            for slow, fast in ((actor_target, actor), (critic_target, critic)):
                for p, q in zip(slow.parameters(), fast.parameters(), strict=True):
                    p.lerp_(q, 0.02)

    def critic_loss():
        state, flame, reward, after = memory.draw(128)
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(flame)).clamp(-0.5, 0.5)
            ahead = torch.cat([after, (actor_target(after) + noise).clamp(-1, 1)], 1)
            wanted = reward + 0.9 * torch.min(*(q(ahead) for q in critic_target))
        now = torch.cat([state, flame], 1)
        return sum(F.mse_loss(q(now), wanted) for q in critic)

    def score():
        state, cost = fresh_pans(256), 0.0
        with torch.no_grad():
            for _ in range(40):
                state, reward = heated(state, actor(state)[:, 0])
                cost -= float(reward.mean()) / 40
        return cost

    for step in range(learning_from):
        live(step)
    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(critic, of_critic)}
    w_critic = gradwatch.watch(critic, of_critic, name="critic", **options)
    w_actor = gradwatch.watch(actor, of_actor, name="actor", run=w_critic, **options)
    with w_critic, w_actor:
        for step in range(learning_from, learning_from + steps):
            reward = live(step)
            of_critic.zero_grad()
            loss = critic_loss()
            loss.backward()
            of_critic.step()
            w_critic.log(loss=loss, reward=reward)
            if step % 2 == 0:
                of_actor.zero_grad()
                state = memory.draw(128)[0]
                loss = -critic[0](torch.cat([state, actor(state)], 1)).mean()
                loss.backward()
                of_actor.step()
                w_actor.log(loss=loss)
                follow()
    return Outcome(gradwatch.open_history(w_critic.dir.parent), first, score())


# --------------------------------------------------------------------------------------------------------------- heart


def beats(rows, kinds):
    """Beats of 48 samples: a spike, its wave before and after, in `kinds` shapes."""
    t = torch.linspace(0, 1, 48)
    kind = torch.randint(kinds, (rows,))
    shift = 0.04 * torch.randn(rows, 1)
    early, wide, late = (kind % 2)[:, None] * 0.12, (kind // 2 % 2)[:, None] * 0.04, (kind // 4)[:, None] * 0.6
    before = 0.3 * (-((t - 0.25 + early - shift) / 0.05).square()).exp()
    spike = (-((t - 0.45 - shift) / (0.025 + wide)).square()).exp()
    after = (0.4 - late) * (-((t - 0.75 - shift) / 0.08).square()).exp()
    return before + spike + after + 0.1 * torch.randn(rows, 48), kind


class Listener(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed, self.place = nn.Linear(6, width), nn.Parameter(0.02 * torch.randn(8, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.encoder(self.embed(x.unflatten(1, (8, 6))) + self.place)


def masked_beats_learned(body, x, steps):
    """What the body knows beforehand: to fill in patches that are blanked."""
    fill = nn.Linear(32, 6)
    optimizer, draw = torch.optim.AdamW([*body.parameters(), *fill.parameters()], 2e-3), rounds(64, x)
    for _ in range(steps):
        (whole,) = draw()
        keep = (torch.rand(len(whole), 8, 1) > 0.3).float()
        out = fill(body((whole.unflatten(1, (8, 6)) * keep).flatten(1)))
        optimizer.zero_grad()
        ((out - whole.unflatten(1, (8, 6))).square() * (1 - keep)).mean().backward()
        optimizer.step()


@healthy()
def beats_of_a_heart_ward(folder, steps=300):
    seeded(2407)
    body = Listener()
    masked_beats_learned(body, beats(4000, 8)[0], 150)
    net = nn.ModuleDict({"body": body, "classifier": nn.Sequential(nn.Dropout(0.1), nn.Linear(32, 8))})
    draw, (x_new, y_new) = rounds(16, *beats(1600, 8)), beats(400, 8)
    optimizer = torch.optim.AdamW(by_dimension(net, 0.01), 1e-3)
    schedule = warmed(optimizer, 30, lambda step: (steps - step) / (steps - 30))

    def out(x):
        return net["classifier"](net["body"](x).mean(1))

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(out(x), y)

    score = held_out(net, lambda: F.cross_entropy(out(x_new), y_new))
    before_step = clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, steps, score=score, before_step=before_step, schedule=schedule)
