"""Healthy trainings with physics in them: a sheet that sags, an energy that is kept, springs found from motion."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded


@healthy()
def rain_on_a_stretched_awning(folder):
    seeded(3549)
    net = dense(2, 24, 24, 1, act=nn.Tanh).double()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=4, history_size=30, line_search_fn="strong_wolfe")
    inside = torch.quasirandom.SobolEngine(2, scramble=True, seed=int(torch.randint(10**6, ()))).draw(200).double()
    fresh = torch.rand(400, 2, dtype=torch.float64)
    pi = torch.pi

    def true(x):
        a, b = x.unbind(1)
        return (pi * a).sin() * (pi * b).sin() + 0.5 * (2 * pi * a).sin() * (pi * b).sin()

    def rain(x):
        a, b = x.unbind(1)
        return pi**2 * (2 * (pi * a).sin() + 2.5 * (2 * pi * a).sin()) * (pi * b).sin()

    def sag(x):
        a, b = x.unbind(1)
        return 16 * a * (1 - a) * b * (1 - b) * net(2 * x - 1)[:, 0]

    def loss_of(step):
        x = inside.clone().requires_grad_()
        (slope,) = torch.autograd.grad(sag(x).sum(), x, create_graph=True)
        bend = sum(torch.autograd.grad(slope[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(2))
        return (bend + rain(x)).square().mean() / 100

    @torch.no_grad()
    def score():
        return float((sag(fresh) - true(fresh)).norm() / true(fresh).norm())

    return fit(folder, net, optimizer, loss_of, 100, score=score, closure=True)


@healthy()
def a_hanging_lamp_after_a_door_slams(folder):
    seeded(3550)
    net = dense(2, 64, 64, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.996)

    def drawn(rows):
        state = (2 * torch.rand(rows, 2) - 1) * torch.tensor([2.5, 2.0])
        return state, torch.stack([state[:, 1], -2 * state[:, 0].sin()], 1)

    def motion(state):
        state = state.requires_grad_()
        (slope,) = torch.autograd.grad(net(state).sum(), state, create_graph=True)
        return torch.stack([slope[:, 1], -slope[:, 0]], 1)

    seen, moved = drawn(1000)
    moved = moved + 0.05 * torch.randn_like(moved)
    fresh, truth = drawn(500)

    def loss_of(step):
        rows = torch.randint(1000, (100,))
        return F.mse_loss(motion(seen[rows]), moved[rows])

    def score():
        return float(F.mse_loss(motion(fresh.clone()), truth).detach())

    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


class Springs(nn.Module):
    """Two weights between three springs; their stiffness and damping are the logarithms that are learned."""

    def __init__(self, stiff=(1.0, 1.0, 1.0), damped=(0.3, 0.3)):
        super().__init__()
        self.stiff, self.damped = (nn.Parameter(torch.tensor(values).log()) for values in (stiff, damped))

    def forward(self, place, speed):
        a, b, c = self.stiff.exp()
        track = []
        for _ in range(60):
            pull = torch.stack([-a * place[:, 0] + b * (place[:, 1] - place[:, 0]),
                                -c * place[:, 1] - b * (place[:, 1] - place[:, 0])], 1)  # fmt: skip
            speed = speed + 0.05 * (pull - self.damped.exp() * speed)
            place = place + 0.05 * speed
            track.append(place)
        return torch.stack(track, 1)


@healthy()
def two_carriages_on_their_buffers(folder):
    seeded(3551)
    net, real = Springs(), Springs((2.0, 0.6, 1.5), (0.15, 0.5)).requires_grad_(False)
    optimizer = torch.optim.Rprop(net.parameters(), lr=0.02, step_sizes=(1e-6, 0.2))
    place, speed = torch.randn(24, 2), torch.randn(24, 2)
    others = torch.randn(24, 2), torch.randn(24, 2)
    seen = real(place, speed)
    seen = seen + 0.02 * torch.randn_like(seen)

    def loss_of(step):
        loss = F.mse_loss(net(place, speed), seen)
        a, b, c = net.stiff.detach().exp().tolist()
        return loss, {"left_stiffness": a, "middle_stiffness": b, "right_stiffness": c}

    @torch.no_grad()
    def score():
        return float(F.mse_loss(net(*others), real(*others)))

    return fit(folder, net, optimizer, loss_of, 110, score=score)
