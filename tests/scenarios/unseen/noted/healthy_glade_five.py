"""Everyday trainings that compare, generate, act or imitate: SimCLR, VAE, GAN, DQN, A2C and a taught student."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


def split_digits(held=297):
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = x[order][:, None], y[order]
    return x[held:], y[held:], x[:held], y[:held]


@healthy()
def photos_of_one_glyph_told_by_two_crops(folder):
    seeded(3335)
    x, _, x_test, _ = split_digits()
    encoder = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 64),
    )  # fmt: skip
    net = nn.ModuleDict({"encoder": encoder, "projector": dense(64, 64, 32)})

    def view(x):
        down, right = torch.randint(3, (2,)).tolist()
        x = F.pad(x, (1, 1, 1, 1))[..., down : down + 8, right : right + 8]
        return x * (0.7 + 0.6 * torch.rand(len(x), 1, 1, 1)) + 0.1 * torch.randn_like(x)

    def nt_xent(x, temperature=0.2):
        z = F.normalize(net["projector"](net["encoder"](torch.cat([view(x), view(x)]))), dim=1)
        same = torch.eye(len(z), dtype=torch.bool)
        other = (torch.arange(len(z)) + len(x)) % len(z)
        return F.cross_entropy((z @ z.T / temperature).masked_fill(same, -torch.inf), other)

    draw, steps = rounds(64, x), 220
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    score = held_out(net, lambda: nt_xent(x_test[:64]))
    return fit(folder, net, optimizer, lambda step: nt_xent(*draw()), steps, schedule=schedule, score=score)


class Autoencoder(nn.Module):
    def __init__(self, code=8):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.mean, self.log_var = nn.Linear(64, code), nn.Linear(64, code)
        self.decoder = dense(code, 64, 128, 64)

    def forward(self, x):
        h = self.body(x)
        mean, log_var = self.mean(h), self.log_var(h)
        code = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        kl = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1).mean()
        bce = F.binary_cross_entropy_with_logits(self.decoder(code), x.flatten(1), reduction="none").sum(1).mean()
        return bce, kl


@healthy()
def glyphs_drawn_from_a_code_of_eight(folder):
    seeded(3336)
    x, _, x_test, _ = split_digits()
    net = Autoencoder()
    draw = rounds(64, x)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss_of(step):
        bce, kl = net(draw()[0])
        beta = min(1.0, step / 200)
        return bce + beta * kl, {"reconstruction": bce, "kl": kl}

    score = held_out(net, lambda: sum(net(x_test)))
    return fit(folder, net, optimizer, loss_of, 600, score=score)


@healthy()
def glyphs_by_a_forger_and_an_expert(folder):
    seeded(3337)
    x, _, x_test, _ = split_digits()
    x, x_test = (2 * part.flatten(1) - 1 for part in (x, x_test))
    make = nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(),
        nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 64), nn.Tanh(),
    )  # fmt: skip
    judge = nn.Sequential(
        nn.Linear(64, 96), nn.LeakyReLU(0.2), nn.Dropout(0.2),
        nn.Linear(96, 48), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(48, 1),
    )  # fmt: skip
    of_make = torch.optim.Adam(make.parameters(), lr=1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=5e-4, betas=(0.5, 0.999))
    draw = rounds(64, x)

    def told(out, real):
        return F.binary_cross_entropy_with_logits(out, torch.full_like(out, real))

    def judge_loss():
        made = make(torch.randn(64, 16)).detach()
        return told(judge(draw()[0]), 0.9) + told(judge(made), 0.0)

    def make_loss():
        return told(judge(make(torch.randn(64, 16))), 1.0)

    ways = F.normalize(torch.randn(64, 100), dim=0)

    def apart():
        """The sliced distance between glyphs of the test rows and made ones."""
        return ((x_test @ ways).sort(0)[0] - (make(torch.randn(len(x_test), 16)) @ ways).sort(0)[0]).abs().mean()

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, held_out(make, apart))


class Hall:
    """Robots in halls of seven by seven; each is to go to a shelf of its own."""

    def __init__(self, robots, size=7, most=25):
        self.size, self.most, self.robots = size, most, robots
        self.blocked = torch.zeros(size, size, dtype=torch.bool)
        self.blocked[2, 1:5] = self.blocked[4:, 3] = True
        self.at, self.goal = torch.zeros(2, robots, 2, dtype=torch.long)
        self.age = torch.zeros(robots, dtype=torch.long)
        self.begin(torch.ones(robots, dtype=torch.bool))

    def begin(self, which):
        free = (~self.blocked).nonzero()
        for row in which.nonzero()[:, 0].tolist():
            one, other = torch.randperm(len(free))[:2]
            self.at[row], self.goal[row], self.age[row] = free[one], free[other], 0

    def seen(self):
        parts = [F.one_hot(place, self.size).flatten(1) for place in (self.at, self.goal)]
        return torch.cat(parts, 1).float()

    def go(self, action):
        moved = (self.at + torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])[action]).clamp(0, self.size - 1)
        shut = self.blocked[moved[:, 0], moved[:, 1]]
        self.at = torch.where(shut[:, None], self.at, moved)
        self.age += 1
        there = (self.at == self.goal).all(1)
        return torch.where(there, 1.0, -0.04), there, there | (self.age >= self.most)


@healthy()
def robot_that_fetches_in_a_warehouse(folder):
    seeded(3338)
    net, target = dense(28, 96, 96, 4), dense(28, 96, 96, 4)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    hall, size = Hall(16), 16000
    memory = [torch.zeros(size, 28), torch.zeros(size, dtype=torch.long), torch.zeros(size), torch.zeros(size, 28),
              torch.zeros(size)]  # fmt: skip
    filled = [0]

    def act(epsilon):
        seen = hall.seen()
        with torch.no_grad():
            best = net(seen).argmax(1)
        action = torch.where(torch.rand(16) < epsilon, torch.randint(4, (16,)), best)
        reward, there, over = hall.go(action)
        rows = (torch.arange(16) + filled[0]) % size
        for part, value in zip(memory, (seen, action, reward, hall.seen(), there.float()), strict=True):
            part[rows] = value
        filled[0] += 16
        hall.begin(over)

    for _ in range(60):
        act(1.0)

    def loss_of(step):
        act(max(0.1, 1 - step / 500))
        rows = torch.randint(min(filled[0], size), (64,))
        seen, action, reward, after, there = (part[rows] for part in memory)
        with torch.no_grad():
            following = target(after).gather(1, net(after).argmax(1, keepdim=True))[:, 0]
            worth = reward + 0.95 * (1 - there) * following
        value = net(seen).gather(1, action[:, None])[:, 0]
        return F.smooth_l1_loss(value, worth), {"q_mean": value.mean(), "reward": reward.mean()}

    def after_step(step):
        if step % 50 == 49:
            target.load_state_dict(net.state_dict())

    def score():
        test, total, over = Hall(100), torch.zeros(100), torch.zeros(100, dtype=torch.bool)
        with torch.no_grad():
            while not over.all():
                reward, _, ends = test.go(net(test.seen()).argmax(1))
                total += reward * ~over
                over |= ends
        return -float(total.mean())

    return fit(
        folder, net, optimizer, loss_of, 1200, score=score, after_step=after_step, before_step=clipped(net, 10.0)
    )


def pushed(state, right):
    """The cart and its pole a fiftieth of a second later, as Barto's cart does."""
    x, speed, angle, turn = state.unbind(1)
    force = torch.where(right > 0, 10.0, -10.0)
    inner = (force + 0.05 * turn.square() * angle.sin()) / 1.1
    spin = (9.8 * angle.sin() - angle.cos() * inner) / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
    gain = inner - 0.05 * spin * angle.cos() / 1.1
    return torch.stack([x + 0.02 * speed, speed + 0.02 * gain, angle + 0.02 * turn, turn + 0.02 * spin], 1)


def fallen(state):
    return (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 0.2095)


@healthy()
def pole_on_a_cart_by_actor_and_critic(folder):
    seeded(3339)
    carts, length, gamma = 16, 16, 0.98
    net = nn.ModuleDict({"actor": dense(4, 48, 2, act=nn.Tanh), "critic": dense(4, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3, eps=1e-5)
    state = [0.1 * torch.rand(carts, 4) - 0.05]

    def one(step):
        log_probs, entropies, values, lives = [], [], [], []
        for _ in range(length):
            choice = Categorical(logits=net["actor"](state[0]))
            action = choice.sample()
            values.append(net["critic"](state[0])[:, 0])
            log_probs.append(choice.log_prob(action))
            entropies.append(choice.entropy())
            after = pushed(state[0], action)
            down = fallen(after)
            lives.append((~down).float())
            state[0] = torch.where(down[:, None], 0.1 * torch.rand(carts, 4) - 0.05, after)
        with torch.no_grad():
            worth, worths = net["critic"](state[0])[:, 0], []
            for alive in reversed(lives):
                worth = 0.05 + gamma * alive * worth
                worths.insert(0, worth)
        worths, values = torch.stack(worths), torch.stack(values)
        gain = worths - values.detach()
        policy_loss = -(torch.stack(log_probs) * gain).mean()
        value_loss, entropy = F.mse_loss(values, worths), torch.stack(entropies).mean()
        loss = policy_loss + 0.5 * value_loss - 0.005 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}

    def score():
        at, steps, up = 0.1 * torch.rand(40, 4) - 0.05, torch.zeros(40), torch.ones(40, dtype=torch.bool)
        with torch.no_grad():
            for _ in range(200):
                at = pushed(at, net["actor"](at).argmax(1))
                up &= ~fallen(at)
                steps += up
        return -float(steps.mean())

    return tend(folder, net, optimizer, one, 350, score)


@healthy()
def small_reader_taught_by_a_large_one(folder):
    seeded(3340)
    x, y, x_test, y_test = split_digits()
    teacher = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    draw = rounds(64, x, y)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    for _ in range(200):
        images, labels = draw()
        optimizer.zero_grad()
        F.cross_entropy(teacher(images), labels).backward()
        optimizer.step()
    teacher.eval().requires_grad_(False)

    net, warmth, steps = nn.Sequential(nn.Flatten(), dense(64, 24, 10)), 3.0, 300
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 20),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 20),
    ], [20])  # fmt: skip

    def loss_of(step):
        images, labels = draw()
        out = net(images)
        soft = (teacher(images) / warmth).log_softmax(1)
        kd = F.kl_div((out / warmth).log_softmax(1), soft, reduction="batchmean", log_target=True) * warmth**2
        ce = F.cross_entropy(out, labels)
        return 0.7 * kd + 0.3 * ce, {"kd": kd, "ce": ce}

    score = held_out(net, lambda: F.cross_entropy(net(x_test), y_test))
    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule, score=score)
