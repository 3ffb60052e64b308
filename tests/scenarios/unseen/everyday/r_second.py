"""Sick trainings of observatories and winter nights, drawn by lot from a list of mistakes: rewards, tuning, depth."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds, tend


@sick("target-not-detached", where="the loss of Q, all steps", cure="the value of the next state under no_grad")
def a_dome_turned_towards_its_slit(folder, ill):
    seeded(11806)
    places, slit, gamma = 12, 4, 0.9
    net = dense(places, 64, 3)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def move(place, action):
        slipped = torch.rand(len(place)) < 0.2
        action = torch.where(slipped, torch.randint(3, place.shape), action)
        after = (place + action - 1).clamp(0, places - 1)
        return after, (after == slit).float() - 0.02 * (action != 1).float()

    def see(place):
        return F.one_hot(place, places).float()

    place = torch.randint(places, (4000,))
    action = torch.randint(3, (4000,))
    after, reward = move(place, action)
    draw = rounds(64, place, action, reward, after)

    def loss_of(step):
        place, action, reward, after = draw()
        value = net(see(place)).gather(1, action[:, None])[:, 0]
        with torch.set_grad_enabled(ill):
            target = reward + gamma * net(see(after)).max(1).values
        return F.mse_loss(value, target), {"q": float(value.mean())}

    def missed():
        state = torch.get_rng_state()
        torch.manual_seed(5)
        place, seen = torch.randint(places, (512,)), torch.zeros(512)
        for _ in range(25):
            place, reward = move(place, net(see(place)).argmax(1))
            seen += reward
        torch.set_rng_state(state)
        return 25 - seen.mean()

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, missed))


@sick("returns-not-normalised", where="the weights of the log-probabilities, all steps",
      cure="returns less their mean, over their spread")  # fmt: skip
def photons_caught_through_five_filters(folder, ill):
    seeded(11807)
    net = dense(6, 64, 5, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    passes = torch.randn(6, 5)

    def night(rows):
        sky = torch.randn(rows, 6)
        choice = torch.distributions.Categorical(logits=net(sky))
        filters = choice.sample()
        photons = 400 + 30 * (sky @ passes).gather(1, filters[:, None])[:, 0] + 5 * torch.randn(rows)
        return choice.log_prob(filters), photons

    def one(step):
        logs, photons = night(32)
        weight = photons if ill else (photons - photons.mean()) / (photons.std() + 1e-6)
        loss = -(logs * weight).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": photons.mean()}

    sky = torch.randn(1024, 6)

    def lost():
        found = (net(sky).softmax(1) * (sky @ passes)).sum(1)
        return ((sky @ passes).max(1).values - found).mean()

    return tend(folder, net, optimizer, one, 300, held_out(net, lost))


class Season(nn.Module):
    """A plain recurrent net that sums up a winter of nights."""

    def __init__(self, width):
        super().__init__()
        self.memory = nn.RNN(2, width, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, nights):
        return self.head(self.memory(nights)[0][:, -1])[:, 0]


@sick("exploding", "spike", where="the recurrent weights, where the gradient of eighty nights grows",
      cure="gradients clipped to a norm of 1")  # fmt: skip
def frost_summed_over_eighty_nights(folder, ill):
    seeded(11808)
    net = Season(48)
    nn.init.eye_(net.memory.weight_hh_l0)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)

    def winters(rows, nights=80):
        cold = torch.rand(rows, nights)
        marked = (torch.rand(rows, nights) < 0.05).float()
        return torch.stack([cold, marked], 2), (cold * marked).sum(1) - 2

    def loss_of(step):
        nights, frost = winters(32)
        return F.mse_loss(net(nights), frost)

    tx, ty = winters(512)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=None if ill else clipped(net, 1.0))


def plates():
    """The digits of scikit-learn as plates of one channel."""
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    return torch.tensor(images / 8 - 1, dtype=torch.float32)[order].view(-1, 1, 8, 8), torch.tensor(digits)[order]


def camera(kinds):
    return nn.ModuleDict({
        "body": nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(),
        ),
        "head": nn.Linear(64, kinds),
    })  # fmt: skip


def seen_before(net, x, y, steps):
    """What the net learnt from another survey."""
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x, y)
    for _ in range(steps):
        x, y = draw()
        optimizer.zero_grad()
        F.cross_entropy(net["head"](net["body"](x)), y).backward()
        optimizer.step()


@sick("lr-too-high", "update-too-large", where="all layers, from the first steps", cure="a rate of 3e-4")
def an_eye_trained_on_another_survey(folder, ill):
    seeded(11809)
    x, y = plates()
    net = camera(10)
    seen_before(net, x[:1000], y[:1000], 250)
    x = x.transpose(2, 3) + 0.3 * torch.randn_like(x)
    optimizer = torch.optim.Adam(net.parameters(), 3e-2 if ill else 3e-4)
    draw = rounds(32, x[1000:1400], y[1000:1400])

    def loss_of(step):
        x, y = draw()
        logits = net["head"](net["body"](x))
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net["head"](net["body"](x[1400:])), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@sick("not-in-optimizer", where="the head, all steps", cure="the optimizer made once the head is in place")
def the_same_lens_for_other_plates(folder, ill):
    seeded(11810)
    x, y = plates()
    net = camera(5)
    few = y < 5
    seen_before(net, x[few][:500], y[few][:500], 200)
    optimizer = torch.optim.SGD(net.parameters(), 2e-3, momentum=0.9)
    net["head"] = nn.Linear(64, 10)
    if not ill:
        optimizer = torch.optim.SGD(net.parameters(), 2e-3, momentum=0.9)
    draw = rounds(32, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net["head"](net["body"](x))
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net["head"](net["body"](x[1400:])), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@sick("vanishing", where="the first layers, all steps", cure="ReLU for sigmoid")
def seeing_foretold_from_the_weather_mast(folder, ill):
    seeded(11811)
    net = dense(9, 64, 64, 64, 64, 64, 64, 1, act=nn.Sigmoid if ill else nn.ReLU)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    ways = torch.randn(9, 3) / 3

    def masts(rows):
        x = torch.randn(rows, 9)
        turn = x @ ways
        return x, (2 * turn[:, 0]).sin() + turn[:, 1] * turn[:, 2] + 0.05 * torch.randn(rows)

    x, y = masts(3000)
    draw = rounds(64, x, y)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x)[:, 0], y)

    tx, ty = masts(800)
    score = held_out(net, lambda: F.mse_loss(net(tx)[:, 0], ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score)
