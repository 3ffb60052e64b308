"""Six everyday trainings: hands of clerks, tiles, a vacuum cleaner, a pole, a pump, faces."""

import copy
import random

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, mean, seeded
from unseen.tasks import held_out, in_turn, rounds, tend


def sliced(a, b, ways):
    """The distance of two clouds, along many lines."""
    return float(((a @ ways).sort(0)[0] - (b @ ways).sort(0)[0]).abs().mean())


@healthy()
def hands_of_clerks_by_a_gan(folder):
    seeded(3423)
    image = digits()[0].flatten(1) * 2 - 1
    draw = rounds(64, image)
    make = nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(),
        nn.Linear(128, 64), nn.Tanh(),
    )  # fmt: skip
    judge = nn.Sequential(
        nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(128, 64), nn.LeakyReLU(0.2), nn.Dropout(0.3),
        nn.Linear(64, 1),
    )  # fmt: skip
    of_make = torch.optim.Adam(make.parameters(), lr=5e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=5e-4, betas=(0.5, 0.999))
    say, ways = F.binary_cross_entropy_with_logits, F.normalize(torch.randn(64, 100), dim=0)

    def judge_loss():
        true, false = judge(draw()[0]), judge(make(torch.randn(64, 16)).detach())
        return say(true, torch.ones_like(true)) + say(false, torch.zeros_like(false))

    def make_loss():
        out = judge(make(torch.randn(64, 16)))
        return say(out, torch.ones_like(out))

    def score():
        make.eval()
        with torch.no_grad():
            far = sliced(make(torch.randn(1797, 16)), image, ways)
        make.train()
        return far

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 300, score)


def looked_at(x):
    """An augmented view: shifted by a pixel or not at all, brighter or darker, with noise and an erased corner."""
    down, over = (int(v) - 1 for v in torch.randint(3, (2,)))
    x = torch.roll(x, (down, over), (2, 3)) * (0.7 + 0.6 * torch.rand(len(x), 1, 1, 1))
    hole = (torch.rand(len(x), 1, 4, 4) < 0.1).float()
    return x * (1 - F.interpolate(hole, scale_factor=2)) + 0.1 * torch.randn_like(x)


@healthy(gain=0.2)
def tiles_by_two_looks_and_a_projection(folder):
    seeded(3424)
    image = digits()[0][torch.randperm(1797), None]
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 64),
    )  # fmt: skip
    net = nn.ModuleDict({"body": body, "projection": nn.Sequential(nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                                                                   nn.Linear(64, 32))})  # fmt: skip
    draw = rounds(96, image[:1500])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=300)

    def contrast(x, temperature=0.2):
        z = F.normalize(net["projection"](net["body"](torch.cat([looked_at(x), looked_at(x)]))), dim=1)
        likeness = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))
        return F.cross_entropy(likeness, torch.arange(len(z)).roll(len(x)))

    score = held_out(net, lambda: mean([float(contrast(image[1500 + 96 * i :][:96])) for i in range(3)]))
    return fit(folder, net, optimizer, lambda step: contrast(draw()[0]), 300, score=score, schedule=schedule)


class Room:
    """Eight cleaners at once in a room of seven by seven; each wants to its dock and pays for each move."""

    def __init__(self, many=8):
        self.wall = torch.zeros(7, 7, dtype=torch.bool)
        self.wall[3, 1:5] = self.wall[1:3, 4] = True
        free = (~self.wall).nonzero()
        self.free, self.dock = free[~(free == torch.tensor([0, 6])).all(1)], torch.tensor([0, 6])
        self.place, self.age = self.start(many), torch.zeros(many)

    def start(self, many):
        return self.free[torch.randint(len(self.free), (many,))]

    def look(self, place):
        return torch.cat([F.one_hot(place[:, 0], 7), F.one_hot(place[:, 1], 7)], 1).float()

    def move(self, place, way):
        to = (place + torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]])[way]).clamp(0, 6)
        to = torch.where(self.wall[to[:, 0], to[:, 1]][:, None], place, to)
        return to, (to == self.dock).all(1)


@healthy()
def a_vacuum_cleaner_back_at_its_dock(folder):
    seeded(3425)
    dice, room, memory = random.Random(3425), Room(), []
    net = dense(14, 64, 64, 4)
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def moves():
        with torch.no_grad():
            place, taken, there = room.free.clone(), torch.zeros(len(room.free)), torch.zeros(len(room.free)).bool()
            for _ in range(30):
                taken += (~there).float()
                to, home = room.move(place, net(room.look(place)).argmax(1))
                place, there = torch.where(there[:, None], place, to), there | home
        return float(taken.mean())

    def play(chance):
        with torch.no_grad():
            way = net(room.look(room.place)).argmax(1)
        way = torch.where(torch.rand(8) < chance, torch.randint(4, (8,)), way)
        to, home = room.move(room.place, way)
        reward = torch.where(home, 1.0, -0.02)
        memory.extend(zip(room.place, way, reward, to, home.float(), strict=True))
        del memory[:-10_000]
        room.age += 1
        again = home | (room.age >= 40)
        room.place, room.age = torch.where(again[:, None], room.start(8), to), room.age * ~again

    for _ in range(40):
        play(1.0)

    def one(step):
        play(max(0.1, 1 - step / 400))
        place, way, reward, to, home = (torch.stack(part) for part in zip(*dice.sample(memory, 64), strict=True))
        with torch.no_grad():
            best = net(room.look(to)).argmax(1, keepdim=True)
            goal = reward + 0.95 * (1 - home) * target(room.look(to)).gather(1, best)[:, 0]
        loss = F.smooth_l1_loss(net(room.look(place)).gather(1, way[:, None])[:, 0], goal)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "mean_reward": reward.mean()}

    return tend(folder, net, optimizer, one, 900, moves)


def swung(state, push):
    """A fiftieth of a second of cart and pole."""
    x, v, angle, spin = state.unbind(1)
    sin, cos = angle.sin(), angle.cos()
    part = (push + 0.05 * spin**2 * sin) / 1.1
    turn = (9.8 * sin - cos * part) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    return torch.stack([x + 0.02 * v, v + 0.02 * (part - 0.05 * turn * cos / 1.1), angle + 0.02 * spin,
                        spin + 0.02 * turn], 1)  # fmt: skip


def fallen(state):
    return (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 0.21)


@healthy()
def a_cart_under_a_pole_by_actor_and_critic(folder):
    seeded(3426)
    net = nn.ModuleDict({"actor": dense(4, 64, 2, act=nn.Tanh), "critic": dense(4, 64, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)

    def start(many):
        return 0.1 * torch.rand(many, 4) - 0.05

    now = [start(16)]

    def score():
        state, up = start(32), torch.ones(32, dtype=torch.bool)
        total = torch.zeros(32)
        with torch.no_grad():
            for _ in range(200):
                way = torch.multinomial(net["actor"](state).softmax(1), 1)[:, 0]
                state = torch.where(up[:, None], swung(state, 20.0 * way - 10), state)
                up = up & ~fallen(state)
                total += up
        return -float(total.mean())

    def one(step):
        states, ways, ends = [], [], []
        with torch.no_grad():
            for _ in range(16):
                way = torch.multinomial(net["actor"](now[0]).softmax(1), 1)[:, 0]
                to = swung(now[0], 20.0 * way - 10)
                end = fallen(to)
                states.append(now[0])
                ways.append(way)
                ends.append(end)
                now[0] = torch.where(end[:, None], start(16), to)
            value, returns = net["critic"](to)[:, 0], []
            for end in reversed(ends):
                value = 1 + 0.98 * value * ~end
                returns.append(value)
        state, way, goal = torch.cat(states), torch.cat(ways), torch.cat(returns[::-1])
        guess, odds = net["critic"](state)[:, 0], net["actor"](state).log_softmax(1)
        gain = goal - guess.detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy = -(odds.gather(1, way[:, None])[:, 0] * gain).mean()
        critic, entropy = F.smooth_l1_loss(guess, goal), -(odds.exp() * odds).sum(1).mean()
        optimizer.zero_grad()
        loss = policy + 0.5 * critic - 0.01 * entropy
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss, "policy": policy, "critic": critic, "entropy": entropy}

    return tend(folder, net, optimizer, one, 400, score)


@healthy()
def hum_of_a_pump_by_an_autoencoder(folder):
    seeded(3427)

    def hum(rows):
        time, speed = torch.arange(64) / 64, 3 + 2 * torch.rand(rows, 1)
        wave = sum(
            (0.4 + torch.rand(rows, 1)) / k * (6.283 * (k * speed * time + torch.rand(rows, 1))).sin()
            for k in (1, 2, 3)
        )
        return (wave + 0.05 * torch.randn(rows, 64))[:, None]

    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, stride=2, padding=2), nn.ELU(), nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.ELU(),
        nn.Flatten(), nn.Linear(512, 12), nn.Linear(12, 512), nn.ELU(), nn.Unflatten(1, (32, 16)),
        nn.ConvTranspose1d(32, 16, 4, stride=2, padding=1), nn.ELU(), nn.ConvTranspose1d(16, 1, 4, stride=2, padding=1),
    )  # fmt: skip
    train, test = hum(4000), hum(500)
    draw = rounds(64, train)
    optimizer = torch.optim.NAdam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.997)

    def loss_of(step):
        (x,) = draw()
        return F.mse_loss(net(x), x)

    score = held_out(net, lambda: F.mse_loss(net(test), test))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


@healthy()
def faces_at_the_door_of_an_office(folder):
    seeded(3428)
    camera = dense(24, 96, 80, act=nn.Tanh).requires_grad_(False)
    for part in (camera[0], camera[2]):
        part.weight *= 4
    people = torch.randn(400, 12)

    def photos(who, each):
        who = who.repeat_interleave(each)
        pose, grain = 0.7 * torch.randn(len(who), 12), 0.1 * torch.randn(len(who), 80)
        return camera(torch.cat([people[who], pose], 1)) + grain, who

    net = dense(80, 128, 128, 32, norm=nn.BatchNorm1d)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=5e-4)

    def loss_of(step):
        x, who = photos(torch.randperm(360)[:20], 4)
        z = net(x)
        far, same = torch.cdist(z, z), who[:, None] == who[None, :]
        hardest, nearest = (far * same).amax(1), (far + 1e6 * same).amin(1)
        return F.softplus(hardest - nearest).mean(), {"margin": (nearest - hardest).mean()}

    def confused():
        x, who = photos(torch.arange(360, 400), 4)
        z = net(x)
        far = torch.cdist(z, z) + 1e6 * torch.eye(len(x))
        return (who[far.argmin(1)] != who).float().mean()

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, confused))
