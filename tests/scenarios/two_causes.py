"""Trainings of which two things could be said, and one is right; and some that look sick and succeed.

What an expert would say stands in each docstring, and was written before a rule had read the training.
"""

import torch
from nets import Transformer, batches, mlp, pieces, predict
from step_diseases import digits
from torch import nn, optim
from torch.nn import functional as F
from trainings import fit

import gradwatch


def clipped_while_scaled_adamw(folder, seed=0, steps=200):
    """AdamW and a GradScaler, the loop clips before `unscale_`: clip-before-unscale, and no forgotten scaler."""
    net = Transformer(seed=seed)
    optimizer = optim.AdamW(net.parameters(), 3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    loss_of = predict(net, pieces(8, seed=seed))
    watch = gradwatch.watch(net, optimizer, log=None, dir=folder, verbose=False)
    with watch:
        for step in range(steps):
            optimizer.zero_grad()
            loss = loss_of(step)
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            watch.log(loss=loss)
    return gradwatch.open_history(watch.dir)


def bad_batch_that_grows_the_weights(folder, seed=0, sick=True, steps=500, at=300):
    """One batch at step 300 throws the weights far out: a spike; that they are larger from then on follows from it."""
    batch = batches(seed=seed)

    def data(step):
        x, y = batch(step)
        return (300 * x, y) if sick and step == at else (x, y)

    return digits(folder, lambda params: optim.SGD(params, 0.1), steps, mlp(seed=seed), data, every=10)


def wgan_critic(folder, seed=0, steps=200):
    """mean D(fake) - mean D(real): the last bias has no gradient by construction. Healthy."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    optimizer = optim.RMSprop(net.parameters(), 1e-4)
    g = torch.Generator().manual_seed(seed + 1)

    def loss_of(step):
        fake, real = torch.randn(64, 8, generator=g), torch.randn(64, 8, generator=g) + 1
        return net(fake).mean() - net(real).mean()

    def clamp(_):
        with torch.no_grad():
            for p in net.parameters():
                p.clamp_(-0.1, 0.1)

    return fit(folder, net, optimizer, loss_of, steps, before_step=clamp)


class Pole:
    """The cart and its pole (Barto, Sutton & Anderson 1983), with the constants of Gymnasium's CartPole-v1."""

    def __init__(self, generator):
        self.generator = generator

    def reset(self):
        self.state = (torch.rand(4, generator=self.generator, dtype=torch.float64) - 0.5) * 0.1
        return self.state.float()

    def step(self, action):
        x, dx, a, da = self.state.tolist()
        force = 10.0 if action else -10.0
        sine, cosine = torch.tensor(a).sin().item(), torch.tensor(a).cos().item()
        push = (force + 0.05 * da**2 * sine) / 1.1
        turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        move = push - 0.05 * turn * cosine / 1.1
        self.state = torch.tensor([x + 0.02 * dx, dx + 0.02 * move, a + 0.02 * da, da + 0.02 * turn]).double()
        return self.state.float(), abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2095


def actor_critic(folder, seed=0, episodes=300):
    """pytorch/examples' actor_critic.py: its loss is a sum over the episode, so it grows as the agent lives longer.

    The return rises tenfold: it succeeds. Of that nothing is logged but a loss without a scale: nothing can be said.
    """
    torch.manual_seed(seed)
    body, actor, critic = nn.Linear(4, 128), nn.Linear(128, 2), nn.Linear(128, 1)
    net = nn.ModuleDict({"body": body, "actor": actor, "critic": critic})
    optimizer = optim.Adam(net.parameters(), 3e-2)
    pole = Pole(torch.Generator().manual_seed(seed))
    watch = gradwatch.watch(net, optimizer, log=None, dir=folder, verbose=False)
    with watch:
        for _ in range(episodes):
            state, logs, values, done, steps = pole.reset(), [], [], False, 0
            while not done and steps < 500:
                h = torch.relu(body(state))
                choice = torch.distributions.Categorical(logits=actor(h))
                action = choice.sample()
                logs.append(choice.log_prob(action))
                values.append(critic(h)[0])
                state, done = pole.step(int(action))
                steps += 1
            gain = torch.zeros(steps)
            total = 0.0
            for i in reversed(range(steps)):
                total = 1 + 0.99 * total
                gain[i] = total
            gain = (gain - gain.mean()) / (gain.std() + 1e-6)
            value = torch.stack(values)
            loss = (-torch.stack(logs) * (gain - value.detach())).sum() + F.smooth_l1_loss(value, gain, reduction="sum")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.log(loss=loss)
    return gradwatch.open_history(watch.dir)
