"""Healthy trainings of researchers: choices that are paid, simulators, mutations, pupils, and wells far apart."""

import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, tend

# ----------------------------------------------------------------------------------------------------- how many to bake


class Baker(nn.Module):
    def __init__(self):
        super().__init__()
        self.guess, self.critic = dense(6, 32, 1, act=nn.Tanh), dense(6, 32, 1, act=nn.Tanh)
        self.log_spread = nn.Parameter(torch.tensor(-0.7))

    def forward(self, day):
        return torch.distributions.Normal(self.guess(day)[:, 0], self.log_spread.exp())


@healthy()
def buns_baked_before_the_doors_open(folder):
    seeded(3353)
    way, price, cost = torch.randn(6) / 6**0.5, 2.0, 0.8
    net = Baker()
    slow = [p for name, p in net.named_parameters() if not name.startswith("critic")]
    optimizer = torch.optim.Adam(
        [{"params": slow, "lr": 3e-3}, {"params": net.critic.parameters(), "lr": 5e-3}], betas=(0.9, 0.99)
    )

    def shop(rows):
        day = torch.randn(rows, 6)
        return day, 0.8 * (2 * day @ way).tanh(), 0.4 * torch.randn(rows)

    def profit(log_buns, log_wanted):
        buns = log_buns.clamp(max=3).exp()
        return price * torch.minimum(buns, log_wanted.exp()) - cost * buns

    def one(step):
        day, middle, luck = shop(256)
        optimizer.zero_grad()
        policy, value = net(day), net.critic(day)[:, 0]
        choice = policy.sample()
        gain = profit(choice, middle + luck)
        better = gain - value.detach()
        better = (better - better.mean()) / (better.std() + 1e-6)
        actor, critic = -(policy.log_prob(choice) * better).mean(), F.mse_loss(value, gain)
        entropy = policy.entropy().mean()
        loss = actor + 0.5 * critic - 0.003 * entropy
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        optimizer.step()
        return {"loss": loss, "critic": critic, "entropy": entropy, "profit": gain.mean()}

    def score():
        day, middle, luck = shop(8000)
        best = middle + 0.4 * torch.special.ndtri(torch.tensor(1 - cost / price))
        with torch.no_grad():
            return float((profit(best, middle + luck) - profit(net(day).mean, middle + luck)).mean())

    return tend(folder, net, optimizer, one, 800, score)


# --------------------------------------------------------------------------------------------- a net moved by mutations


def crane_cost(policy, state, moments=50, dt=0.08):
    """Place, speed, angle and its speed of a load under a trolley that must come to rest at zero."""
    place, speed, angle, turn = state.unbind(-1)
    total = 0.0
    for _ in range(moments):
        push = 2 * policy(torch.stack([place, speed, angle, turn], -1))
        bent = -(push * angle.cos()) - 2 * angle.sin() - 0.1 * turn
        speed, turn = speed + dt * push, turn + dt * bent
        place, angle = place + dt * speed, angle + dt * turn
        total = total + place.square() + 0.1 * speed.square() + angle.square() + 0.01 * push.square()
    return total / moments


@healthy()
def crane_that_sets_down_eggs(folder):
    seeded(3354)
    net, size = dense(4, 12, 1, act=nn.Tanh), 0.1
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 200)

    def crowd(kicks):
        w, b, v, c = (p + size * kick for p, kick in zip(net.parameters(), kicks, strict=True))

        def policy(seen):
            h = (torch.einsum("psi,phi->psh", seen, w) + b[:, None]).tanh()
            return (torch.einsum("psh,poh->pso", h, v) + c[:, None])[..., 0].tanh()

        return policy

    def starts(rows):
        return torch.randn(rows, 4) * torch.tensor([1.0, 0.3, 0.3, 0.3])

    @torch.no_grad()
    def one(step):
        half = [torch.randn(24, *p.shape) for p in net.parameters()]
        kicks = [torch.cat([k, -k]) for k in half]
        costs = crane_cost(crowd(kicks), starts(12).expand(48, 12, 4)).mean(1)
        rank = costs.argsort().argsort().float() / 47 - 0.5
        for p, kick in zip(net.parameters(), kicks, strict=True):
            p.grad = torch.einsum("p...,p->...", kick, rank) / (48 * size)
        optimizer.step()
        schedule.step()
        return {"loss": costs.mean(), "best": costs.min(), "spread": costs.std()}

    fixed = starts(200)

    def score():
        with torch.no_grad():
            return float(crane_cost(lambda seen: net(seen)[..., 0].tanh(), fixed).mean())

    return tend(folder, net, optimizer, one, 200, score)


# -------------------------------------------------------------------------------------------- gradients through physics


@healthy()
def a_curling_stone_steered_by_brooms(folder):
    seeded(3355)
    net = dense(6, 48, 48, 2, act=nn.ELU)
    nn.init.zeros_(net[-1].bias)
    with torch.no_grad():
        net[-1].weight.mul_(0.1)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 250, 1e-4)

    def game(rows):
        place, goal = 2 * torch.rand(rows, 2) - 1, 2 * torch.rand(rows, 2) - 1
        speed = 0.5 * torch.randn(rows, 2)
        cost = 0.0
        for _ in range(20):
            push = net(torch.cat([place, speed, goal], 1)).tanh()
            curl = 0.3 * torch.stack([-speed[:, 1], speed[:, 0]], 1)
            speed = 0.95 * speed + 0.15 * (2 * push + curl)
            place = place + 0.15 * speed
            cost = cost + (place - goal).square().sum(1) + 0.02 * push.square().sum(1)
        return cost.mean() / 20, (place - goal).norm(dim=1).mean()

    def loss_of(step):
        cost, gap = game(96)
        return cost, {"gap_at_rest": gap.detach()}

    def score():
        with torch.no_grad():
            return float(game(1000)[0])

    return fit(folder, net, optimizer, loss_of, 250, score=score, schedule=schedule, before_step=clipped(net, 5.0))


# --------------------------------------------------------------------------------------------- five teachers, one pupil


@healthy()
def a_small_pupil_of_five_graders(folder):
    seeded(3356)
    x, y = digits()
    x, order = x.flatten(1), torch.randperm(len(x))
    seen, unseen = order[:1300], order[1300:]
    teachers = [dense(64, 96, 96, 10, act=nn.GELU) for _ in range(5)]
    for teacher in teachers:
        learner = torch.optim.AdamW(teacher.parameters(), 3e-3)
        for _ in range(120):
            at = seen[torch.randint(len(seen), (128,))]
            learner.zero_grad()
            F.cross_entropy(teacher(x[at]), y[at], label_smoothing=0.05).backward()
            learner.step()

    pupil, warmth = dense(64, 20, 10, act=nn.Hardswish), 2.0
    optimizer = torch.optim.SGD(pupil.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def loss_of(step):
        at = seen[torch.randint(len(seen), (64,))]
        image = x[at] + 0.05 * torch.randn(64, 64)
        with torch.no_grad():
            said = torch.stack([(t(image) / warmth).softmax(1) for t in teachers]).mean(0)
        out = pupil(image)
        soft = F.kl_div((out / warmth).log_softmax(1), said, reduction="batchmean") * warmth**2
        hard = F.cross_entropy(out, y[at])
        return 0.8 * soft + 0.2 * hard, {"soft": soft.detach(), "hard": hard.detach()}

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(pupil(x[unseen]), y[unseen]))

    return fit(folder, pupil, optimizer, loss_of, 400, score=score, schedule=schedule)


# ----------------------------------------------------------------------------------------------- two without a negative


@healthy()
def two_microphones_at_one_brook(folder):
    seeded(3357)
    lift, hum = torch.randn(5, 40) / 5**0.5, torch.randn(10, 40) / 10**0.5

    def brook(rows):
        water = torch.randn(rows, 5)
        return water, [(water @ lift).sin() + 0.8 * torch.randn(rows, 10) @ hum for _ in range(2)]

    body = dense(40, 128, 32, norm=nn.BatchNorm1d)
    net = nn.Sequential(body, nn.ReLU(), nn.Linear(32, 64, bias=False))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=600, pct_start=0.1)

    def loss_of(step):
        a, b = (net(side) for side in brook(256)[1])
        a, b = ((z - z.mean(0)) / (z.std(0) + 1e-4) for z in (a, b))
        alike = a.T @ b / len(a)
        own = (alike.diagonal() - 1).square().sum()
        others = alike.square().sum() - alike.diagonal().square().sum()
        return (own + 0.02 * others) / 64, {"own": own.detach() / 64, "others": others.detach() / 64**2}

    def score():
        """What a linear reader of the body leaves unexplained of the water."""
        net.eval()
        with torch.no_grad():
            (known, heard), (new, new_heard) = brook(2000), brook(2000)
            first, second = (torch.cat([body(h[0]), torch.ones(2000, 1)], 1) for h in (heard, new_heard))
            ridge = torch.linalg.solve(first.T @ first + 0.1 * torch.eye(33), first.T @ known)
            left = F.mse_loss(second @ ridge, new)
        net.train()
        return float(left)

    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


# ------------------------------------------------------------------------------------------------- averages of villages


@healthy()
def salt_in_wells_of_twelve_villages(folder):
    seeded(3358)
    way = torch.randn(5, 2)
    middles = 0.5 * torch.randn(12, 5)

    def wells(x):
        a, b = (x @ way).unbind(1)
        return (a.sin() + 0.5 * b.tanh())[:, None]

    homes = [(m + torch.randn(200, 5)) for m in middles]
    reports = [wells(x) + 0.05 * torch.randn(200, 1) for x in homes]
    net, local = dense(5, 48, 48, 1, act=nn.SiLU), dense(5, 48, 48, 1, act=nn.SiLU)
    server = torch.optim.Adam(net.parameters(), 0.01, betas=(0.9, 0.99), eps=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(server, 150, 1e-3)

    def at_home(village):
        local.load_state_dict(net.state_dict())
        worker = torch.optim.SGD(local.parameters(), 0.05)
        for part in torch.randperm(200).split(40):
            worker.zero_grad()
            loss = F.mse_loss(local(homes[village][part]), reports[village][part])
            loss.backward()
            worker.step()
        return [(p - q).detach() for p, q in zip(net.parameters(), local.parameters(), strict=True)], float(loss)

    def one(step):
        chosen = torch.randperm(12)[:5].tolist()
        ways, losses = zip(*[at_home(village) for village in chosen], strict=True)
        for p, *parts in zip(net.parameters(), *ways, strict=True):
            p.grad = torch.stack(parts).mean(0)
        server.step()
        schedule.step()
        return {"loss": sum(losses) / 5, "worst_village": max(losses)}

    def score():
        x = middles[torch.randint(12, (3000,))] + torch.randn(3000, 5)
        with torch.no_grad():
            return math.sqrt(F.mse_loss(net(x), wells(x)))

    return tend(folder, net, server, one, 150, score)
