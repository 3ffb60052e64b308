"""Healthy trainings that no rule was written for, first part: tasks. An expert has nothing to say of any of them."""

from __future__ import annotations

import copy

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import bandit, circle, play

# --------------------------------------------------------------------------------------------- reinforcement learning


@healthy(0.05)
def reinforce_with_a_return_logged(folder):
    seeded()
    net, best = dense(6, 32, 4, act=nn.Tanh), torch.randn(6, 4)

    def loss_of(step):
        state = torch.randn(32, 6)
        policy = torch.distributions.Categorical(logits=net(state))
        action = policy.sample()
        reward = (state @ best).gather(1, action[:, None])[:, 0] + torch.randn(32)
        loss = -(policy.log_prob(action) * (reward - reward.mean())).mean()
        return loss, {"episode_return": reward.mean()}

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 400, score=bandit(net, best))


@healthy(0.05)
def proximal_policy(folder):
    seeded(1)
    net, best = dense(6, 32, 4, act=nn.Tanh), torch.randn(6, 4)
    kept = {}

    def loss_of(step):
        if step % 4 == 0:
            state = torch.randn(64, 6)
            with torch.no_grad():
                policy = torch.distributions.Categorical(logits=net(state))
                action = policy.sample()
            reward = (state @ best).gather(1, action[:, None])[:, 0] + torch.randn(64)
            gain = (reward - reward.mean()) / reward.std()
            kept.update(state=state, action=action, gain=gain, old=policy.log_prob(action))
        policy = torch.distributions.Categorical(logits=net(kept["state"]))
        ratio = (policy.log_prob(kept["action"]) - kept["old"]).exp()
        gain = kept["gain"]
        loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean() - 0.01 * policy.entropy().mean()
        return loss, {"entropy": policy.entropy().mean()}

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 400, score=bandit(net, best), clip="ClipByGlobalNorm(0.5)")


@healthy(0.3)
def double_q_learning_with_polyak_targets(folder):
    """A corridor of 8 states: the end pays 1, every other step -0.1; the score is the error of the best values."""
    seeded(2)
    net = dense(8, 48, 2)
    slow = copy.deepcopy(net).requires_grad_(False)
    eye = torch.eye(8)
    best = torch.tensor([1 - 0.1 * (6 - s) for s in range(7)])

    def loss_of(step):
        state, action = torch.randint(7, (64,)), torch.randint(2, (64,))
        after = (state + 2 * action - 1).clamp(0, 7)
        done = after == 7
        choice = net(eye[after]).argmax(1, keepdim=True)
        target = torch.where(done, 1.0, -0.1 + slow(eye[after]).gather(1, choice)[:, 0])
        return F.smooth_l1_loss(net(eye[state]).gather(1, action[:, None])[:, 0], target)

    @torch.no_grad()
    def follow(step):
        for mine, p in zip(slow.parameters(), net.parameters(), strict=True):
            mine.lerp_(p, 0.05)

    def score():
        with torch.no_grad():
            return (net(eye[:7]).max(1).values - best).abs().mean()

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 600, score=score, after_step=follow)


# ------------------------------------------------------------------------------------------------ two networks at play


@healthy()
def gan_with_hinge_losses(folder):
    seeded(3)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=nn.GELU)
    of_make, of_judge = (optim.Adam(m.parameters(), 1e-3, betas=(0.0, 0.9)) for m in (make, judge))
    return play(
        folder, make, judge, of_make, of_judge,
        lambda real, fake: F.relu(1 - judge(real)).mean() + F.relu(1 + judge(fake)).mean(),
        lambda fake: -judge(fake).mean(), 250,
    )  # fmt: skip


@healthy()
def wasserstein_with_clamped_critic(folder):
    seeded(4)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1)
    of_make, of_judge = (optim.RMSprop(m.parameters(), 1e-3) for m in (make, judge))

    @torch.no_grad()
    def clamp():
        for p in judge.parameters():
            p.clamp_(-0.2, 0.2)

    return play(
        folder, make, judge, of_make, of_judge,
        lambda real, fake: judge(fake).mean() - judge(real).mean(),
        lambda fake: -judge(fake).mean(), 150, rounds=3, after_judge=clamp,
    )  # fmt: skip


@healthy()
def wasserstein_with_gradient_penalty(folder):
    seeded(5)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=nn.SiLU)
    of_make, of_judge = (optim.Adam(m.parameters(), 2e-3, betas=(0.0, 0.9)) for m in (make, judge))

    def judge_loss(real, fake):
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        return judge(fake).mean() - judge(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()

    return play(
        folder, make, judge, of_make, of_judge, judge_loss, lambda fake: -judge(fake).mean(), 150, rounds=3
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- generative models


@healthy(0.2)
def diffusion_of_a_ring(folder):
    """DDPM: predict the noise at a random time."""
    seeded(6)
    net = dense(3, 64, 64, 2, act=nn.SiLU)
    keep = torch.cumprod(1 - torch.linspace(1e-4, 0.1, 50), 0)

    def loss_of(step):
        x, t = circle(), torch.randint(50, (64,))
        noise = torch.randn_like(x)
        noisy = keep[t].sqrt()[:, None] * x + (1 - keep[t]).sqrt()[:, None] * noise
        return F.mse_loss(net(torch.cat([noisy, t[:, None] / 50], 1)), noise)

    return fit(folder, net, optim.AdamW(net.parameters(), 2e-3), loss_of, 400)


@healthy(0.2)
def coupling_flow(folder):
    """An affine coupling flow: its negative log-likelihood crosses zero on the way."""
    seeded(7)
    net = nn.ModuleList(dense(1, 32, 2, act=nn.Tanh) for _ in range(4))

    def loss_of(step):
        x, log_det = circle() / 8, 0
        for i, part in enumerate(net):
            x = x.flip(1) if i else x
            scale, shift = part(x[:, :1]).chunk(2, 1)
            scale = 2 * scale.tanh()
            x = torch.cat([x[:, :1], x[:, 1:] * scale.exp() + shift], 1)
            log_det = log_det + scale.sum(1)
        return (0.5 * x.square().sum(1) + 1.84 - log_det).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 300)


@healthy(0.3)
def adapters_of_low_rank(folder):
    """LoRA: a frozen pretrained body, matrices A and B beside it; B begins at zero, as it should."""
    seeded(8)
    body = nn.Linear(32, 32, bias=False).requires_grad_(False)
    a, b = nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)
    nn.init.zeros_(b.weight)
    net = nn.ModuleDict({"body": body, "lora_a": a, "lora_b": b})
    wanted = body.weight + 0.3 * torch.randn(32, 2) @ torch.randn(2, 32)

    def loss_of(step):
        x = torch.randn(64, 32)
        return F.mse_loss(body(x) + 2 * b(a(x)), x @ wanted.T)

    trained = [p for p in net.parameters() if p.requires_grad]
    return fit(folder, net, optim.AdamW(trained, 3e-3), loss_of, 250)


@healthy(0.3)
def lbfgs_to_the_last_digit(folder):
    """A convex problem that L-BFGS solves to 1e-7 and then stays at."""
    seeded(9)
    net = nn.Linear(10, 1)
    x = torch.randn(200, 10)
    y = x @ torch.randn(10, 1) + 0.5
    make = optim.LBFGS(net.parameters(), 1.0, max_iter=5, line_search_fn="strong_wolfe")
    return fit(folder, net, make, lambda step: F.mse_loss(net(x), y), 60, closure=True)
