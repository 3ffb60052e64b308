"""Ten healthy trainings of a theatre, each of an unusual make."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import held_out, in_turn, judged, now_and_then, rounds, tend

# ---------------------------------------------------------------------------------- sharpness-aware minimisation


@healthy(0.4)
def stagehands_hanging_the_backdrop_flat(folder):
    seeded(13160)
    kinds, size = 12, 8
    centres, hook = 1.3 * torch.randn(kinds, size), torch.arange(kinds) % 3
    kind = torch.randint(kinds, (2500,))
    x, y = centres[kind] + 0.7 * torch.randn(2500, size), hook[kind]
    net = dense(size, 48, 48, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    draw, rho = rounds(64, x[:2000], y[:2000]), 0.05
    held_x, held_y = x[2000:], y[2000:]
    validate = now_and_then(net, 31, judged(net, held_x, held_y))

    def one(step):
        rows, label = draw()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(rows), label)
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
            climbed = [rho * p.grad / (norm + 1e-12) for p in net.parameters()]
            for p, way in zip(net.parameters(), climbed, strict=False):
                p.add_(way)
        optimizer.zero_grad()
        F.cross_entropy(net(rows), label).backward()
        with torch.no_grad():
            for p, way in zip(net.parameters(), climbed, strict=False):
                p.sub_(way)
        optimizer.step()
        return {"loss": loss, **validate(step)}

    return tend(folder, net, optimizer, one, 300, held_out(net, lambda: F.cross_entropy(net(held_x), held_y)))


# ----------------------------------------------------------------------------------------- a mixture of densities


class Answers(nn.Module):
    """Five bells that may have been meant, each with a share, a place and a width."""

    def __init__(self, parts=5):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.share, self.place, self.width = (nn.Linear(48, parts) for _ in range(3))

    def forward(self, x):
        h = self.body(x)
        parts = torch.distributions.Normal(self.place(h), F.softplus(self.width(h)) + 1e-2)
        return torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=self.share(h)), parts)


@healthy(0.4)
def bell_rope_that_may_mean_several_bells(folder):
    seeded(13161)
    net = Answers()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def loss_of(step):
        bell = torch.rand(128) * 3 - 1.5
        pull = bell + 0.8 * (3.5 * bell).sin() + 0.05 * torch.randn(128)
        return -net(pull[:, None]).log_prob(bell).mean()

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))


# -------------------------------------------------------------------------------------------- counts, by Adagrad


@healthy(0.4)
def queue_at_the_ticket_window(folder):
    seeded(13162)
    net = dense(5, 48, 48, 1, act=nn.SiLU)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.03)

    def loss_of(step):
        x = torch.randn(96, 5)
        log_rate = 0.8 + 0.6 * x[:, 0] + 0.5 * (2 * x[:, 1]).sin() - 0.4 * x[:, 2] * x[:, 3].tanh()
        people = torch.poisson(log_rate.exp())
        return F.poisson_nll_loss(net(x)[:, 0], people, log_input=True)

    return fit(folder, net, optimizer, loss_of, 350, score=score_of(loss_of))


# --------------------------------------------------------------------------- a differential equation, by RMSprop


class Swing(nn.Module):
    """How the angle and the speed of a lantern change, followed by steps of Runge and Kutta."""

    def __init__(self):
        super().__init__()
        self.change = dense(2, 48, 2, act=nn.Tanh)

    def forward(self, state, steps, dt=0.2):
        path = []
        for _ in range(steps):
            first = self.change(state)
            middle = self.change(state + 0.5 * dt * first)
            state = state + dt * middle
            path.append(state)
        return torch.stack(path, 1)


@healthy(0.6)
def lantern_swinging_above_the_pit(folder):
    seeded(13163)
    net = Swing()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3, alpha=0.95)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=250)

    def truth(state, steps, dt=0.2, parts=4):
        path = []
        for _ in range(steps):
            for _ in range(parts):
                speed = state[:, 1] + dt / parts * (-2 * state[:, 0].sin() - 0.2 * state[:, 1])
                state = torch.stack([state[:, 0] + dt / parts * speed, speed], 1)
            path.append(state)
        return torch.stack(path, 1)

    def loss_of(step):
        start = torch.randn(48, 2)
        return F.mse_loss(net(start, 10), truth(start, 10))

    return fit(folder, net, optimizer, loss_of, 250, schedule=schedule, score=score_of(loss_of))


# ---------------------------------------------------------------------------------- the order of a list, by NAdam


@healthy(0.3)
def jury_ranking_ten_plays(folder):
    seeded(13164)
    taste = torch.randn(6)
    net = dense(6, 48, 48, 1, act=nn.ELU)
    optimizer = torch.optim.NAdam(net.parameters(), lr=2e-3)

    def loss_of(step):
        plays = torch.randn(48, 10, 6)
        worth = plays @ taste + 1.5 * plays[..., 0] * plays[..., 1] + 0.2 * torch.randn(48, 10)
        points = net(plays)[..., 0].gather(1, worth.argsort(1, descending=True))
        left = points.flip(1).logcumsumexp(1).flip(1)
        return (left - points).sum(1).mean() / 10

    return fit(folder, net, optimizer, loss_of, 350, score=score_of(loss_of))


# ---------------------------------------------------------------------- actor and critic, with pushes of any size


class Puppeteer(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = dense(3, 48, 48, 1, act=nn.Tanh)
        self.log_std = nn.Parameter(torch.full((1,), -0.5))
        self.critic = dense(3, 48, 48, 1, act=nn.Tanh)

    def policy(self, state):
        return torch.distributions.Normal(self.actor(state)[..., 0], self.log_std.exp())

    def value(self, state):
        return self.critic(state)[..., 0]


def pulled(net, hands=48, length=16, sure=False):
    """A puppet hangs at a place, with a speed, and is wanted at another: states `[T + 1, B, 3]`, pulls, rewards."""
    place, speed, wanted = torch.randn(hands), torch.zeros(hands), torch.randn(hands)
    states, pulls, rewards = [torch.stack([place, speed, wanted], 1)], [], []
    for _ in range(length):
        policy = net.policy(states[-1])
        pull = policy.mean if sure else policy.sample()
        speed = 0.7 * speed + 0.4 * pull.clamp(-2, 2)
        place = place + 0.5 * speed
        states.append(torch.stack([place, speed, wanted], 1))
        pulls.append(pull)
        rewards.append(-0.3 * (place - wanted).abs() - 0.01 * pull.square())
    return torch.stack(states), torch.stack(pulls), torch.stack(rewards)


@healthy(0.3)
def puppeteer_drawing_a_puppet_to_its_place(folder):
    seeded(13165)
    net = Puppeteer()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    gamma, lam = 0.9, 0.9

    def one(step):
        with torch.no_grad():
            states, pulls, rewards = pulled(net)
            values = net.value(states)
            advantage, ahead = torch.zeros_like(rewards), torch.zeros(rewards.shape[1])
            for t in reversed(range(len(rewards))):
                ahead = rewards[t] + gamma * values[t + 1] - values[t] + gamma * lam * ahead
                advantage[t] = ahead
            wanted = advantage + values[:-1]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = net.policy(states[:-1])
        policy_loss = -(policy.log_prob(pulls) * advantage).mean()
        value_loss = F.mse_loss(net.value(states[:-1]), wanted)
        optimizer.zero_grad()
        loss = policy_loss + 0.5 * value_loss - 1e-3 * policy.entropy().mean()
        loss.backward()
        optimizer.step()
        return {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "return": float(rewards.sum(0).mean()),
        }

    def score():
        with torch.no_grad():
            return -float(pulled(net, 256, sure=True)[2].mean())

    return tend(folder, net, optimizer, one, 250, score)


# -------------------------------------------------------------------- two views, by variance and covariance


class Sketcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = dense(16, 64, 32, norm=nn.BatchNorm1d)
        self.projector = dense(32, 64, 16, norm=nn.BatchNorm1d)

    def forward(self, x):
        return self.projector(self.encoder(x).relu())


@healthy(0.3)
def two_sketches_of_one_costume(folder):
    seeded(13166)
    lift = torch.randn(5, 16)
    net = Sketcher()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)

    def regular(z):
        z = z - z.mean(0)
        spread = (1 - (z.var(0) + 1e-4).sqrt()).relu().mean()
        cov = z.T @ z / (len(z) - 1)
        return spread, (cov.square().sum() - cov.diagonal().square().sum()) / z.shape[1]

    def loss_of(step):
        costume = (torch.randn(128, 5) @ lift).tanh()
        a, b = (net(costume + 0.3 * torch.randn_like(costume)) for _ in range(2))
        (spread_a, cov_a), (spread_b, cov_b) = regular(a), regular(b)
        alike = F.mse_loss(a, b)
        return alike + spread_a + spread_b + 0.1 * (cov_a + cov_b), {"alike": float(alike.detach())}

    def score():
        return score_of(lambda step: loss_of(step)[0])()

    return fit(folder, net, optimizer, loss_of, 300, score=score)


# --------------------------------------------------------------------- a flow that is matched, and its average


def footlights(rows):
    """Where the lamps stand: on two arcs in front of the stage."""
    arc, angle = torch.randint(2, (rows,)).float(), 3.1416 * torch.rand(rows)
    spots = torch.stack([angle.cos() + arc - 0.5, angle.sin() * (1 - 2 * arc) + 0.4 * arc - 0.2], 1)
    return 1.3 * spots + 0.05 * torch.randn(rows, 2)


@healthy(0.5)
def powder_settling_on_the_footlights(folder):
    seeded(13167)
    net = dense(3, 96, 96, 2, act=nn.SiLU)
    average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    ways = F.normalize(torch.randn(2, 24), dim=0)

    def loss_of(step):
        end, start, t = footlights(192), torch.randn(192, 2), torch.rand(192, 1)
        between = (1 - t) * start + t * end
        return F.mse_loss(net(torch.cat([between, t], 1)), end - start)

    def score():
        with torch.no_grad():
            x = torch.randn(1000, 2)
            for k in range(25):
                x = x + average(torch.cat([x, torch.full((1000, 1), k / 25)], 1)) / 25
            return float(((x @ ways).sort(0).values - (footlights(1000) @ ways).sort(0).values).abs().mean())

    return fit(
        folder, net, optimizer, loss_of, 500, score=score, after_step=lambda step: average.update_parameters(net)
    )


# --------------------------------------------------------------------------------- sounds without marks, by CTC


class Hearing(nn.Module):
    def __init__(self, sounds=6):
        super().__init__()
        self.front = nn.Conv1d(12, 32, 3, padding=1)
        self.gru = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, sounds + 1)

    def forward(self, x):
        h = self.front(x.transpose(1, 2)).relu().transpose(1, 2)
        return self.head(self.gru(h)[0]).log_softmax(-1)


@healthy(0.5)
def prompter_hearing_a_mumbled_line(folder):
    seeded(13168)
    voices = torch.randn(7, 12)
    voices[0] = 0
    net = Hearing()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)

    def draw(rows=32, said=5, frames=30):
        line = torch.randint(1, 7, (rows, said))
        at = torch.zeros(rows, frames, dtype=torch.long)
        for k in range(said):
            begins = 6 * k + torch.randint(3, (rows, 1))
            long = torch.randint(2, 4, (rows, 1))
            here = (torch.arange(frames) >= begins) & (torch.arange(frames) < begins + long)
            at = torch.where(here, line[:, k : k + 1], at)
        return voices[at] + 0.4 * torch.randn(rows, frames, 12), line

    def loss_of(step):
        x, line = draw()
        heard = net(x).transpose(0, 1)
        frames, said = torch.full((len(x),), 30), torch.full((len(x),), 5)
        return F.ctc_loss(heard, line, frames, said, blank=0, zero_infinity=True)

    return fit(folder, net, optimizer, loss_of, 250, score=score_of(loss_of))


# ---------------------------------------------------------------------- Wasserstein's critic with a penalty


def stubs(rows):
    """Four measures of a ticket's stub, of three printers."""
    printer = torch.randint(3, (rows,))
    marks = torch.tensor([[1.5, 0.5, -1.0, 1.0], [-1.0, 1.5, 0.5, 1.0], [0.5, -1.5, 1.0, 1.0]])
    return marks[printer] + 0.2 * torch.randn(rows, 4)


@healthy(0.5)
def forger_of_ticket_stubs(folder):
    seeded(13169)
    make, judge = dense(4, 64, 64, 4), dense(4, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), lr=1e-3, betas=(0.5, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.9))
    ways = F.normalize(torch.randn(4, 24), dim=0)

    def judge_loss():
        real, fake = stubs(64), make(torch.randn(64, 4)).detach()
        share = torch.rand(64, 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        return judge(fake).mean() - judge(real).mean() + 5 * (slope.norm(dim=1) - 1).square().mean()

    def make_loss():
        return -judge(make(torch.randn(64, 4))).mean()

    def score():
        with torch.no_grad():
            fake, real = make(torch.randn(1000, 4)), stubs(1000)
            return float(((fake @ ways).sort(0).values - (real @ ways).sort(0).values).abs().mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 260, score, rounds=3)
