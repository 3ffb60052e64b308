"""Four mistakes more: a resume, an entropy bonus, ends of episodes, a mask."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, tend


@sick("state-not-resumed", "schedule-restarted", "optimizer-state-lost", where="all layers, from step 500 on",
      cure="load the state of the optimizer and of the schedule with that of the model")  # fmt: skip
def salt_along_an_estuary_by_hour(folder, ill):
    seeded(10510)
    steps, stopped = 600, 500
    net = dense(4, 64, 64, 1)

    def made():
        optimizer = torch.optim.Adam(net.parameters(), 2e-2)
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    optimizer, schedule = made()

    def water(rows, noise=0.9):
        x = 2 * torch.rand(rows, 4) - 1
        place, hour, flow, moon = x.unbind(1)
        tide = (3 * hour - place).sin() * (1 + 0.5 * moon)
        return x, torch.tanh(2 * (place + 0.5 * tide - flow))[:, None] + noise * torch.randn(rows, 1)

    def one(step):
        if step == stopped:
            saved = copy.deepcopy([net.state_dict(), optimizer.state_dict(), schedule.state_dict()])
            if ill:  # a new process: what is not loaded begins anew
                fresh = made()
                saved[1:] = [fresh[0].state_dict(), fresh[1].state_dict()]
            net.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            schedule.load_state_dict(saved[2])
        x, y = water(16)
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "lr": optimizer.param_groups[0]["lr"]}

    x, y = water(2048, 0.0)
    return tend(folder, net, optimizer, one, steps, held_out(net, lambda: F.mse_loss(net(x), y)))


@sick("wrong-sign", "entropy-wrong-sign", "entropy-bonus-negated", where="the policy, from the first steps",
      cure="take the entropy from the loss instead of adding it")  # fmt: skip
def a_sounding_balloon_sent_to_the_jet_stream(folder, ill):
    seeded(10511)
    levels, hours = 7, 10
    net = nn.ModuleDict({"body": dense(2 * levels, 64, 64, act=nn.Tanh), "act": nn.Linear(64, 3),
                         "value": nn.Linear(64, 1)})  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def fly(rows):
        at, jet = torch.randint(levels, (2, rows))
        seen, done, got = [], [], []
        for _ in range(hours):
            state = torch.cat([F.one_hot(at, levels), F.one_hot(jet, levels)], 1).float()
            with torch.no_grad():
                action = torch.distributions.Categorical(logits=net["act"](net["body"](state).tanh())).sample()
            at = (at + action - 1).clamp(0, levels - 1)
            seen.append(state)
            done.append(action)
            got.append((at == jet).float())
        returns, follows = [], torch.zeros(rows)
        for reward in reversed(got):
            follows = reward + 0.9 * follows
            returns.insert(0, follows)
        return torch.cat(seen), torch.cat(done), torch.cat(returns), torch.stack(got).sum(0).mean()

    def one(step):
        seen, done, returns, got = fly(16)
        hidden = net["body"](seen).tanh()
        policy, value = torch.distributions.Categorical(logits=net["act"](hidden)), net["value"](hidden)[:, 0]
        advantage = (returns - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy_loss = -(policy.log_prob(done) * advantage).mean()
        value_loss, entropy = F.mse_loss(value, returns), policy.entropy().mean()
        bonus = 0.1 * entropy
        loss = policy_loss + 0.5 * value_loss + (bonus if ill else -bonus)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "return": got}

    def score():
        return hours - float(fly(512)[3])

    return tend(folder, net, optimizer, one, 250, score)


@sick("terminals-ignored", "bootstraps-past-the-end", "values-overestimated", where="the targets, all steps",
      cure="no value of the next state where the episode has ended")  # fmt: skip
def a_kayak_kept_off_both_banks(folder, ill):
    seeded(10512)
    boats, room, most = 16, 8000, 80
    net = dense(2, 64, 64, 2)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    states, nexts = torch.zeros(2, room, 2)
    actions, ends = torch.zeros(room).long(), torch.zeros(room)
    now, filled = 0.2 * torch.randn(boats, 2), 0

    def paddle(state, action):
        place, speed = state.unbind(1)
        speed = speed + 0.2 * place + 0.12 * (2 * action - 1) + 0.03 * torch.randn(len(place))
        place = place + 0.2 * speed
        return torch.stack([place, speed], 1), place.abs() > 1

    def act(state, eps):
        best = net(state).argmax(1)
        return torch.where(torch.rand(len(best)) < eps, torch.randint(2, best.shape), best)

    def one(step):
        nonlocal now, filled
        with torch.no_grad():
            action = act(now, max(0.1, 1 - step / 200))
            after, end = paddle(now, action)
        at = torch.arange(filled, filled + boats) % room
        states[at], actions[at], nexts[at], ends[at] = now, action, after, end.float()
        filled += boats
        now = torch.where(end[:, None], 0.2 * torch.randn(boats, 2), after)
        row = torch.randint(min(filled, room), (64,))
        with torch.no_grad():
            later = target(nexts[row]).max(1).values
            wanted = 1 + 0.95 * later * (1 if ill else 1 - ends[row])
        q = net(states[row]).gather(1, actions[row][:, None])[:, 0]
        loss = F.smooth_l1_loss(q, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "q": q.detach().mean(), "ended": end.float().mean()}

    @torch.no_grad()
    def score():
        state, afloat, lasted = 0.2 * torch.randn(256, 2), torch.ones(256).bool(), torch.zeros(256)
        for _ in range(most):
            state, end = paddle(state, act(state, 0.0))
            afloat &= ~end
            lasted += afloat
        return most - float(lasted.mean())

    return tend(folder, net, optimizer, one, 1000, score)


class Forecaster(nn.Module):
    """A small decoder over symbols of the weather."""

    def __init__(self, kinds, length, masked, width=32):
        super().__init__()
        self.kind, self.place = nn.Embedding(kinds, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head, self.masked = nn.LayerNorm(width), nn.Linear(width, kinds), masked

    def forward(self, seen):
        length = seen.shape[1]
        x = self.kind(seen) + self.place(torch.arange(length))
        mask = torch.full((length, length), -torch.inf).triu(1) if self.masked else None
        return self.head(self.norm(self.body(x, mask)))


@sick("future-seen", "mask-is-wrong", where="the attention, all steps", cure="a causal mask")
def signs_of_the_weather_in_a_lightkeepers_log(folder, ill):
    seeded(10513)
    kinds, length = 12, 20
    net = Forecaster(kinds, length, not ill)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / 30) * (1 + math.cos(s * 0.01)) / 2)
    follows = torch.randperm(kinds * kinds) % kinds

    def log(rows):
        signs = list(torch.randint(kinds, (2, rows)))
        for _ in range(length - 1):
            odd = torch.rand(rows) < 0.1
            signs.append(torch.where(odd, torch.randint(kinds, (rows,)), follows[signs[-1] * kinds + signs[-2] % 2]))
        return torch.stack(signs, 1)

    def loss_of(step):
        text = log(32)
        said = net(text[:, :-1])
        return F.cross_entropy(said.flatten(0, 1), text[:, 1:].flatten())

    test = log(256)

    def foretold():
        """The next sign after what was seen so far, as the keeper uses it."""
        each = [F.cross_entropy(net(test[:, :n])[:, -1], test[:, n]) for n in range(4, length, 3)]
        return sum(each) / len(each)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, foretold), schedule=warm)
