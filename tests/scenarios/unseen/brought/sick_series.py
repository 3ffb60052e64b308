"""Agents and preferences whose mistakes were asked about in public threads: pickers, trays, brokers, answers."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick

MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class Aisles:
    """Pickers who walk a grid of shelves, each to a shelf of its own."""

    def __init__(self, pickers, size=5):
        self.size = size
        self.at, self.goal = (torch.randint(size, (pickers, 2)) for _ in range(2))

    def seen(self):
        return torch.cat([self.at, self.goal], 1) / (self.size - 1) * 2 - 1

    def walk(self, action):
        self.at = (self.at + MOVES[action]).clamp(0, self.size - 1)
        there = (self.at == self.goal).all(1)
        fresh = torch.randint(self.size, self.at.shape)
        self.at = torch.where(there[:, None], fresh, self.at)
        return there.float() - 0.05, there


def shift_of(net, aisles, length=16, discount=0.9):
    """What was seen, done and thought of in `length` moves, and what came of it."""
    seen, done, odds, thought, reward, there = [], [], [], [], [], []
    with torch.no_grad():
        for _ in range(length):
            seen.append(aisles.seen())
            choice = torch.distributions.Categorical(logits=net["policy"](seen[-1]))
            done.append(choice.sample())
            odds.append(choice.log_prob(done[-1]))
            thought.append(net["value"](seen[-1]))
            gain, arrived = aisles.walk(done[-1])
            reward.append(gain)
            there.append(arrived)
        after = net["value"](aisles.seen())[:, 0]
    returns = []
    for gain, arrived in zip(reversed(reward), reversed(there), strict=True):
        after = gain + discount * after * ~arrived
        returns.insert(0, after)
    returns, thought = torch.cat(returns)[:, None], torch.cat(thought)
    return torch.cat(seen), torch.cat(done), torch.cat(odds), returns, returns - thought, torch.cat(reward).mean()


def lost_pickers(net, pickers=400, moves=12):
    """The share of pickers who did not reach their shelf."""
    aisles, found = Aisles(pickers), torch.zeros(pickers, dtype=torch.bool)
    with torch.no_grad():
        for _ in range(moves):
            choice = torch.distributions.Categorical(logits=net["policy"](aisles.seen()))
            found |= aisles.walk(choice.sample())[1]
    return float((~found).float().mean())


# https://github.com/RITCHIEHuang/DeepRL_Algorithms/issues/13
@sick("shapes-broadcast", where="the surrogate of the policy, at every step: [N] times [N, 1] makes [N, N]",
      cure="the advantages are given the shape of the ratio")  # fmt: skip
def pickers_in_a_warehouse(folder, ill):
    seeded(2734)
    net = nn.ModuleDict({"policy": dense(4, 48, 48, 4, act=nn.Tanh), "value": dense(4, 48, 1, act=nn.Tanh)})
    optimizer, aisles, shift = torch.optim.Adam(net.parameters(), 3e-3), Aisles(20), []

    def loss_of(step):
        if step % 4 == 0:
            shift[:] = shift_of(net, aisles)
        seen, done, odds, returns, advantage, reward = shift
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        advantage = advantage if ill else advantage.reshape(-1)
        choice = torch.distributions.Categorical(logits=net["policy"](seen))
        ratio = (choice.log_prob(done) - odds).exp()
        policy_loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        value_loss = F.mse_loss(net["value"](seen), returns)
        logged = {"reward": reward, "policy_loss": policy_loss, "value_loss": value_loss}
        return policy_loss + 0.5 * value_loss - 0.01 * choice.entropy().mean(), logged

    return fit(folder, net, optimizer, loss_of, 240, score=lambda: lost_pickers(net))


def tilt(state, action):
    """A tray that tips away from its middle by itself: the next state, and whether what stood on it fell."""
    place, speed = state.unbind(1)
    speed = speed + 0.1 * (3 * place + 4 * action[:, 0]) + 0.05 * torch.randn_like(speed)
    place = place + 0.1 * speed
    return torch.stack([place, speed], 1), place.abs() > 1


def set_down(rows):
    return torch.stack([torch.rand(rows) - 0.5, torch.zeros(rows)], 1)


def spilt(actor, rows=300, moves=40):
    """The share of trays that fall within 40 moves."""
    state, fell = set_down(rows), torch.zeros(rows, dtype=torch.bool)
    with torch.no_grad():
        for _ in range(moves):
            state, now = tilt(state, actor(state))
            fell |= now
    return float(fell.float().mean())


# https://github.com/exalearn/EXARL/pull/257
@sick("terminal-not-masked", "bootstraps-past-the-end", "values-overestimated",
      where="the targets of the critic at every step",
      cure="nothing is added for the next state where the episode ended")  # fmt: skip
def trays_on_a_robot_arm(folder, ill):
    seeded(2735)
    net = nn.ModuleDict({"actor": nn.Sequential(dense(2, 32, 32, 1), nn.Tanh()), "critic": dense(3, 48, 48, 1)})
    slow = copy.deepcopy(net)
    optimizer = torch.optim.Adam([{"params": net["actor"].parameters(), "lr": 1e-3},
                                  {"params": net["critic"].parameters(), "lr": 3e-3}])  # fmt: skip
    arm, memory = {"state": set_down(32)}, []

    def act():
        state = arm["state"]
        with torch.no_grad():
            action = (net["actor"](state) + 0.4 * torch.randn(len(state), 1)).clamp(-1, 1)
        after, fell = tilt(state, action)
        arm["state"] = torch.where(fell[:, None], set_down(len(state)), after)
        memory.append((state, action, arm["state"], fell))
        return fell

    def loss_of(step):
        fell = act()
        drawn = [memory[-1 - i] for i in torch.randint(min(len(memory), 200), (6,)).tolist()]
        state, action, after, ended = (torch.cat(part) for part in zip(*drawn, strict=True))
        with torch.no_grad():
            worth = slow["critic"](torch.cat([after, slow["actor"](after)], 1))[:, 0]
            target = 1 + 0.9 * (worth if ill else worth * ~ended)
        found = net["critic"](torch.cat([state, action], 1))[:, 0]
        net["critic"].requires_grad_(False)
        actor_loss = -net["critic"](torch.cat([state, net["actor"](state)], 1)).mean()
        net["critic"].requires_grad_(True)
        critic_loss = F.mse_loss(found, target)
        logged = {"actor_loss": actor_loss, "critic_loss": critic_loss, "q": found.mean(), "fell": fell.float().mean()}
        return critic_loss + actor_loss, logged

    def after_step(step):
        with torch.no_grad():
            for old, new in zip(slow.parameters(), net.parameters(), strict=True):
                old.lerp_(new, 0.05)

    return fit(folder, net, optimizer, loss_of, 600, after_step=after_step, score=lambda: spilt(net["actor"]))


# https://coderapp.vercel.app/answer/64802992
@sick("saturated", "policy-collapsed", "lr-too-high",
      where="the last layer of the policy: after a few steps one action has all the probability",
      cure="a bonus for the entropy of the policy and a temperature below its softmax")  # fmt: skip
def broker_of_cargo_slots(folder, ill):
    seeded(2736)
    net, worth = dense(8, 64, 64, 12), torch.randn(8, 12)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    temperature, bonus = (1, 0) if ill else (5, 2)

    def offers(rows):
        cargo = torch.randn(rows, 8)
        return cargo, 10 + 2 * cargo @ worth

    def loss_of(step):
        cargo, price = offers(64)
        choice = torch.distributions.Categorical(logits=net(cargo) / temperature)
        slot = choice.sample()
        paid = price.gather(1, slot[:, None])[:, 0]
        loss = -(choice.log_prob(slot) * paid).mean() - bonus * choice.entropy().mean()
        return loss, {"reward": paid.mean(), "entropy": choice.entropy().mean()}

    cargo, price = offers(600)

    def score():
        with torch.no_grad():
            odds = (net(cargo) / temperature).softmax(1)
        return float((price.max(1).values - (odds * price).sum(1)).mean())

    return fit(folder, net, optimizer, loss_of, 700, score=score)


class Clerk(nn.Module):
    """A recurrent writer of tokens; `odds(text, start)` is the log-probability of what follows `start`."""

    def __init__(self, tokens=12, width=48):
        super().__init__()
        self.words, self.memory = nn.Embedding(tokens, 24), nn.GRU(24, width, batch_first=True)
        self.head = nn.Linear(width, tokens)

    def odds(self, text, start):
        logs = self.head(self.memory(self.words(text[:, :-1]))[0]).log_softmax(2)
        return logs.gather(2, text[:, 1:, None])[:, start - 1 :, 0].sum(1)


# https://github.com/huggingface/trl/issues/1627
@sick("no-gradient", "weights-unchanged", "loss-times-zero",
      where="every layer at every step: the margin is multiplied by a beta of nought",
      cure="a beta of 0.1")  # fmt: skip
def answers_of_a_help_desk(folder, ill):
    seeded(2737)
    net = Clerk()
    reference = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0)
    liked = torch.randn(12, 12)

    def pairs(rows):
        ask, said = torch.randint(12, (rows, 3)), torch.randint(12, (2, rows, 4))
        praise = liked[ask[:, 2]].gather(1, said[0]).sum(1) - liked[ask[:, 2]].gather(1, said[1]).sum(1)
        better = torch.where((praise > 0)[:, None], said[0], said[1])
        worse = torch.where((praise > 0)[:, None], said[1], said[0])
        return torch.cat([ask, better], 1), torch.cat([ask, worse], 1)

    def margins(better, worse):
        return [net.odds(text, 3) - reference.odds(text, 3) for text in (better, worse)]

    def loss_of(step):
        chosen, rejected = margins(*pairs(64))
        beta = 0.0 if ill else 0.1
        loss = -F.logsigmoid(beta * (chosen - rejected)).mean()
        return loss, {"reward_chosen": beta * chosen.mean(), "reward_rejected": beta * rejected.mean()}

    held = pairs(400)

    def score():
        with torch.no_grad():
            chosen, rejected = margins(*held)
        return float(((chosen < rejected).float() + 0.5 * (chosen == rejected)).mean())

    return fit(folder, net, optimizer, loss_of, 300, score=score)
