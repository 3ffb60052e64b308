"""Trainings after threads: a loaf, a see-saw, market stalls."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import tend


# https://github.com/TheodoreWolf/pinns/pull/3
@sick(
    "inputs-not-normalised",
    "targets-not-normalised",
    where="the first layer: seconds by the thousand come in; the last one: degrees by the hundred are wanted",
    cure="scale the time and the temperature to 0 to 1",
)
def a_loaf_that_cools_on_the_sill(folder, ill):
    seeded(3156)
    room, oven, rate, end = 18.0, 220.0, 0.004, 1000.0
    long, high, low = (1.0, 1.0, 0.0) if ill else (end, oven - room, room)
    net = dense(1, 48, 48, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)

    def warmth(t):
        return room + (oven - room) * torch.exp(-rate * t)

    measured = 0.3 * end * torch.rand(12, 1)
    read = warmth(measured) + torch.randn(12, 1)

    def loss_of(step):
        loss_data = F.mse_loss(net(measured / long), (read - low) / high)
        t = (end * torch.rand(64, 1) / long).requires_grad_()
        found = net(t)
        slope = torch.autograd.grad(found.sum(), t, create_graph=True)[0]
        loss_physics = (slope + rate * long * (found - (room - low) / high)).square().mean()
        return loss_data + loss_physics, {"loss_data": loss_data, "loss_physics": loss_physics}

    def score():
        t = torch.linspace(0, end, 200)[:, None]
        with torch.no_grad():
            return float((net(t / long) * high + low - warmth(t)).square().mean().sqrt())

    return fit(folder, net, optimizer, loss_of, 600, score=score)


class Choices(nn.Module):
    """What to do on a see-saw: probabilities of two actions."""

    def __init__(self, ill):
        super().__init__()
        self.fc1, self.fc2, self.ill = nn.Linear(2, 32), nn.Linear(32, 2), ill

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x)) if self.ill else self.fc2(x)
        return F.softmax(x, 1)


def a_ride(net, rows, length=40):
    """Rides on a see-saw: what was seen, done, earned from there on, and how long they lasted."""
    state, on = 0.2 * torch.randn(rows, 2), torch.ones(rows)
    seen, done, alive = [], [], []
    for _ in range(length):
        with torch.no_grad():
            action = torch.distributions.Categorical(net(state)).sample()
        seen.append(state)
        done.append(action)
        alive.append(on)
        tilt, speed = state.unbind(1)
        speed = speed + 0.3 * tilt + 0.12 * (2 * action - 1) + 0.02 * torch.randn(rows)
        tilt = tilt + 0.4 * speed
        on = on * (tilt.abs() < 0.8)
        state = torch.stack([tilt, speed], 1)
    alive = torch.stack(alive)
    ahead = alive.flip(0).cumsum(0).flip(0)
    keep = alive.flatten() > 0
    return torch.cat(seen)[keep], torch.cat(done)[keep], ahead.flatten()[keep], float(alive.sum(0).mean())


# https://github.com/Bowen1911/ML_practice/issues/2
@sick(
    "dead-units",
    "dead-layer",
    where="fc2: a ReLU on the logits, that give nothing back where they are below zero",
    cure="no ReLU between the last layer and the softmax",
)
def a_ladybird_on_a_see_saw(folder, ill):
    seeded(3157)
    net = Choices(ill)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)

    def one(step):
        state, action, ahead, lasted = a_ride(net, 16)
        advantage = (ahead - ahead.mean()) / (ahead.std() + 1e-6)
        log_prob = net(state).gather(1, action[:, None])[:, 0].log()
        loss = -(log_prob * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": lasted}

    return tend(folder, net, optimizer, one, 250, lambda: -a_ride(net, 256)[3])


# https://github.com/rlworkgroup/garage/issues/628
@sick(
    "wrong-sign",
    where="the loss: the entropy of the policy is added, and gets smaller",
    cure="the entropy with a minus in the loss, so that it is kept up",
)
def stalls_of_a_market_tried_in_turn(folder, ill):
    seeded(3158)
    net = dense(12, 48, 20)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    taste, buyers = torch.randn(12, 20), torch.eye(12)

    def one(step):
        buyer = buyers[torch.randint(12, (64,))]
        policy = torch.distributions.Categorical(logits=net(buyer))
        stall = policy.sample()
        liked = buyer @ taste
        reward = liked.gather(1, stall[:, None])[:, 0] + 0.5 * torch.randn(64)
        advantage = reward - reward.mean()
        policy_loss = -(policy.log_prob(stall) * advantage).mean()
        entropy = policy.entropy().mean()
        loss = policy_loss + 0.3 * entropy if ill else policy_loss - 0.3 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "policy_loss": policy_loss, "entropy": entropy, "reward": reward.mean()}

    def score():
        buyer = buyers
        with torch.no_grad():
            return -float((net(buyer).softmax(1) * (buyer @ taste)).sum(1).mean())

    return tend(folder, net, optimizer, one, 600, score)
