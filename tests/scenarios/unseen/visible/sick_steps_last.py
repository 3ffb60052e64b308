"""Sick trainings whose step is at fault, by lot, last part: what a resume leaves behind."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick


class Convolution(nn.Module):
    """What a node says of itself, and the mean of what its neighbours say."""

    def __init__(self, size, width):
        super().__init__()
        self.own, self.others = nn.Linear(size, width), nn.Linear(size, width, bias=False)

    def forward(self, near, h):
        return self.own(h) + self.others(near @ h)


class Graph(nn.Module):
    """Three graph convolutions."""

    def __init__(self, size, width=32):
        super().__init__()
        self.a, self.b, self.c = Convolution(size, width), Convolution(width, width), Convolution(width, 1)

    def forward(self, near, x):
        return self.c(near, self.b(near, self.a(near, x).relu()).relu())


@sick(
    "optimizer-state-lost", "state-not-resumed",
    where="all layers, every tenth step: steps of full length in every direction",
    cure="leave the optimizer its moments",
)  # fmt: skip
def graphs_by_moments_that_are_emptied(folder, ill):
    seeded(718)
    net, way = Graph(6), torch.randn(6, 2)

    def loss_of(step):
        links = (torch.rand(8, 16, 16) < 0.2).float()
        near = ((links + links.transpose(1, 2)) > 0).float()
        near = near / near.sum(2, keepdim=True).clamp(min=1)
        x = torch.randn(8, 16, 6)
        wanted = near @ (x @ way).tanh().sum(2, keepdim=True) + 0.5 * (x @ way)[..., :1].sin()
        return F.mse_loss(net(near, x), wanted)

    make = optim.Adam(net.parameters(), 4e-2)

    def epoch(step):
        if ill and step % 10 == 9:
            make.state = defaultdict(dict)

    return fit(folder, net, make, loss_of, 500, score=score_of(loss_of, 20), after_step=epoch)


@sick(
    "warmup-too-long", "update-too-small", "schedule-restarts", "no-progress",
    where="all layers, all steps: with each resume the warm-up begins anew",
    cure="save and load the schedule's state, too",
)  # fmt: skip
def walker_whose_job_is_taken_up_again(folder, ill):
    seeded(717)
    net = dense(12, 32, 2)
    make = optim.Adam(net.parameters(), 1e-2)
    places = torch.eye(12)

    def plan_of():
        return optim.lr_scheduler.LambdaLR(make, lambda step: min(1.0, (step + 1) / 150))

    plan = plan_of()

    def play(rows):
        at, saids, rewards = torch.randint(12, (rows,)), [], []
        for _ in range(8):
            said = torch.distributions.Categorical(logits=net(places[at]))
            move = said.sample()
            saids.append(said.log_prob(move))
            at = (at + 2 * move - 1).clamp(0, 11)
            rewards.append((at == 9).float())
        to_come = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        return torch.stack(saids), to_come

    def loss_of(step):
        said, to_come = play(24)
        gain = (to_come - to_come.mean(1, keepdim=True)) / (to_come.std() + 1e-6)
        return -(said * gain).mean(), {"reward": float(to_come[0].mean())}

    def score():
        with torch.no_grad():
            return -float(play(1000)[1][0].mean())

    def resume(step):
        nonlocal plan
        plan.step()
        if step % 5 == 4:
            state, plan = plan.state_dict(), plan_of()
            if not ill:
                plan.load_state_dict(state)

    return fit(folder, net, make, loss_of, 300, score=score, after_step=resume)
