"""Trainings after threads: a quiz, a bus stop, dark snapshots, mosses, a bell."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, rings, score_of, seeded, sick
from unseen.tasks import clipped, tend


# https://github.com/batra-mlp-lab/visdial-challenge-starter-pytorch/issues/1
@sick(
    "softmax-over-the-batch",
    where="the loss: log_softmax along the rows, not along the options",
    cure="log_softmax over dimension 1, the options",
)
def answers_offered_in_a_pub_quiz(folder, ill):
    seeded(3146)
    net = nn.ModuleDict({"question": dense(10, 48, 16), "option": dense(10, 48, 16)})
    turn = torch.randn(10, 10) / 3

    def draw(rows=32, options=6):
        x = torch.randn(rows, 10) * (2 * torch.randn(rows, 1)).exp().clamp(0.1, 4)
        offered = torch.randn(rows, options, 10) + 2 * torch.randn(rows, 1, 10)
        right = (offered @ (x @ turn)[:, :, None])[:, :, 0].argmax(1)
        return x, offered, right

    def scores_of(x, offered):
        return (net["option"](offered) @ net["question"](x)[:, :, None])[:, :, 0] / 4

    def loss_of(step):
        x, offered, right = draw()
        log_probs = scores_of(x, offered).log_softmax(0 if ill else 1)
        return F.nll_loss(log_probs, right)

    def score():
        x, offered, right = draw(512)
        with torch.no_grad():
            return float((scores_of(x, offered).argmax(1) != right).float().mean())

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=2e-3), loss_of, 500, score=score)


def a_walk(net, rows, length, gamma=0.99):
    """One walk per row along a street to a bus stop that differs: what was seen, done, earned from there on."""
    place, stop = 2 * torch.rand(rows) - 1, 2 * torch.rand(rows) - 1
    seen, done, earned = [], [], []
    for _ in range(length):
        state = torch.stack([place, stop], 1)
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=net["policy"](net["trunk"](state))).sample()
        place = (place + 0.15 * (action - 1)).clamp(-1.5, 1.5)
        seen.append(state)
        done.append(action)
        earned.append(-60 * (place - stop).abs())
    returns, ahead = [], torch.zeros(rows)
    for reward in reversed(earned):
        ahead = reward + gamma * ahead
        returns.insert(0, ahead)
    return torch.cat(seen), torch.cat(done), torch.cat(returns), float(torch.stack(earned).mean())


# https://github.com/openai/baselines/issues/362
@sick(
    "returns-not-normalised",
    "targets-not-normalised",
    where="the value head and the trunk: returns of hundreds below zero, a value loss of a million",
    cure="normalise the returns for the value head and the advantages",
)
def a_walk_to_a_bus_stop(folder, ill):
    seeded(3147)
    net = nn.ModuleDict({"trunk": dense(2, 48, 48, act=nn.Tanh), "policy": nn.Linear(48, 3), "value": nn.Linear(48, 1)})
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3, alpha=0.99, eps=1e-5)

    def one(step):
        state, action, returns, reward = a_walk(net, 16, 25)
        if not ill:
            returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        h = net["trunk"](state)
        value, policy = net["value"](h)[:, 0], torch.distributions.Categorical(logits=net["policy"](h))
        advantage = (returns - value).detach()
        policy_loss = -(policy.log_prob(action) * advantage).mean()
        value_loss = F.mse_loss(value, returns)
        entropy = policy.entropy().mean()
        loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {
            "loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "reward": reward
        }  # fmt: skip

    return tend(folder, net, optimizer, one, 400, lambda: -a_walk(net, 256, 25)[3])


# https://github.com/Li-Chongyi/Zero-DCE_extension/issues/2
@sick(
    "nonfinite",
    where="all layers, from the step whose batch holds a picture without colours on: the slope of a root at zero",
    cure="a small number under the root",
)
def snapshots_lifted_out_of_the_dark(folder, ill):
    seeded(3148)
    curve = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
    net = nn.Sequential(*curve, nn.Conv2d(16, 1, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def draw(rows=16):
        light = torch.rand(rows, 3, 2, 2)
        gray = torch.rand(rows) < 0.0005
        light[gray] = light[gray][:, :1].expand(-1, 3, -1, -1)
        bright = F.interpolate(light, (12, 12), mode="bilinear")
        return 0.3 * bright**2, bright

    def lifted(dark):
        return net(dark.flatten(0, 1)[:, None]).view_as(dark)

    def loss_of(step):
        dark, bright = draw()
        found = lifted(dark)
        r, g, b = found.mean((2, 3)).unbind(1)
        squares = ((r - g) ** 2) ** 2 + ((r - b) ** 2) ** 2 + ((g - b) ** 2) ** 2
        loss_color = torch.pow(squares if ill else squares + 1e-5, 0.5).mean()
        loss_light = F.mse_loss(found, bright)
        return loss_light + 0.02 * loss_color, {"loss_light": loss_light, "loss_color": loss_color}

    def error(step):
        dark, bright = draw()
        return F.mse_loss(lifted(dark), bright)

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(error))


# https://github.com/ageron/handson-mlp/issues/28
@sick(
    "warmup-too-long",
    "update-too-small",
    where="the learning rate: one step of the schedule per epoch, so that it stays at its beginning",
    cure="step the schedule after every batch, as its length was meant",
)
def kinds_of_moss_on_a_wall(folder, ill):
    seeded(3149)
    net, draw = dense(12, 64, 64, 5), rings(classes=5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    epochs, batches = 10, 30
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=epochs, steps_per_epoch=batches)

    def after_step(step):
        if not ill or (step + 1) % batches == 0:
            schedule.step()

    loss_of = entropy_of(net, draw)
    return fit(folder, net, optimizer, loss_of, epochs * batches - 1, score=score_of(loss_of), after_step=after_step)


# https://github.com/keithito/tacotron/pull/7
@sick(
    "clip-not-applied",
    "exploding",
    "spike",
    "lr-too-high",
    where="the recurrent weights: norms far above 1 reach the optimizer although the loop clips copies of them",
    cure="give the optimizer the gradients that were clipped",
)
def a_bell_that_rings_on(folder, ill):
    seeded(3150)
    net = nn.ModuleDict({"rnn": nn.RNN(1, 32, nonlinearity="relu", batch_first=True), "out": nn.Linear(32, 1)})
    nn.init.orthogonal_(net["rnn"].weight_hh_l0, gain=1.1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def loss_of(step):
        x = torch.randn(32, 40, 1) * (torch.rand(32, 40, 1) < 0.15)
        y, level = [], torch.zeros(32, 1)
        for t in range(40):
            level = 0.8 * level + x[:, t]
            y.append(level)
        return F.mse_loss(net["out"](net["rnn"](x)[0]), torch.stack(y, 1))

    def before_step(step):
        if not ill:
            return clipped(net, 1.0)(step)
        gradients = [p.grad.clone() for p in net.parameters()]
        norm = torch.stack([g.norm() for g in gradients]).norm()
        return [g * (1.0 / (norm + 1e-6)).clamp(max=1) for g in gradients]

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(loss_of), before_step=before_step)
