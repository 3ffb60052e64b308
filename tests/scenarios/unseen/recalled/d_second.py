"""Mistakes of people's own loops and settings, drawn by lot: kitchens, gardens and animals, the other six."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, in_turn, rounds, tend


@sick("scaled-gradients", "clip-before-unscale", where="all parameters, all steps",
      cure="divide the gradients by the loss scale before the clip and the step")  # fmt: skip
def gaits_of_cats_by_a_collar_sensor(folder, ill):
    seeded(10406)
    gaits, length, scale = 4, 24, 4096.0
    net = nn.ModuleDict({"read": nn.GRU(3, 40, batch_first=True), "head": nn.Linear(40, gaits)})
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def walks(rows):
        y, t = torch.randint(gaits, (rows,)), torch.arange(length) / length
        beat = (2 + 1.5 * y[:, None]) * (1 + 0.05 * torch.randn(rows, 1)) * t + torch.rand(rows, 1)
        axes = torch.stack([(6.2832 * (beat + lag)).sin() for lag in (0, 0.2, 0.5)], 2)
        return axes + 0.3 * torch.randn(rows, length, 3), y

    draw = rounds(32, *walks(1600))
    tx, ty = walks(512)

    def say(x):
        return net["head"](net["read"](x)[0][:, -1])

    def one(step):
        x, y = draw()
        optimizer.zero_grad()
        loss = F.cross_entropy(say(x), y)
        (loss * scale).backward()
        if not ill:
            for p in net.parameters():
                p.grad /= scale
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        return {"loss": loss.detach()}

    return tend(folder, net, optimizer, one, 350, held_out(net, lambda: F.cross_entropy(say(tx), ty)))


@sick("no-gradient", "body-frozen", "not-in-optimizer", where="the body, all steps",
      cure="unfreeze the body once the head is warm")  # fmt: skip
def orchids_after_a_body_that_knew_mosses(folder, ill):
    seeded(10407)
    kinds = 10

    def greenhouse(size):
        prints = F.avg_pool2d(torch.randn(kinds, 1, size + 2, size + 2), 3, 1) * 2
        prints = prints[:, :, :12, :12]

        def pots(rows):
            y = torch.randint(kinds, (rows,))
            x = prints[y] * (torch.randint(2, (rows, 1, 1, 1)) * 2.0 - 1)
            return x + 0.4 * torch.randn(rows, 1, 12, 12), y

        return pots

    mosses, orchids = greenhouse(12), greenhouse(12)
    body = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 24), nn.ReLU(),
    )  # fmt: skip
    net = nn.Sequential(body, nn.Linear(24, kinds))
    before = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(150):
        x, y = mosses(64)
        before.zero_grad()
        F.cross_entropy(net(x), y).backward()
        before.step()
    net[1] = nn.Linear(24, kinds)
    body.requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    draw = rounds(32, *orchids(1280))
    tx, ty = orchids(512)

    def loss_of(step):
        if step == 40 and not ill:
            body.requires_grad_(True)
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("left-in-eval", "norm-left-in-eval", where="the batch norms, from the first validation (before step 0)",
      cure="model.train() after each validation")  # fmt: skip
def corners_of_a_henhouse_by_camera(folder, ill):
    seeded(10408)
    layers, width = [], 3
    for out, stride in ((12, 1), (16, 2), (16, 1), (24, 2), (24, 1), (24, 1), (24, 1)):
        layers += [nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        width = out
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 6))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    places = F.avg_pool2d(torch.randn(6, 3, 18, 18), 3, 1)

    def frames(rows):
        y = torch.randint(6, (rows,))
        light = 0.7 + 0.6 * torch.rand(rows, 1, 1, 1)
        return light * places[y] + 0.4 * torch.randn(rows, 3, 16, 16), y

    draw = rounds(32, *frames(960))
    vx, vy = frames(128)
    tx, ty = frames(384)

    def loss_of(step):
        logged = {}
        if step % 50 == 0:
            net.eval()
            with torch.no_grad():
                logged = {"val_loss": F.cross_entropy(net(vx), vy)}
            if not ill:
                net.train()
        x, y = draw()
        return F.cross_entropy(net(x), y), logged

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


def distance(made, real):
    """The energy distance of two sets of points."""
    between = torch.cdist(made, real).mean()
    return float(2 * between - torch.cdist(made, made).mean() - torch.cdist(real, real).mean())


@sick("generator-starves", "discriminator-too-strong", "rates-apart",
      where="the generator, from the first hundred steps", cure="the same rate for both")  # fmt: skip
def outlines_of_gingerbread_hearts(folder, ill):
    seeded(10409)
    make, judge = dense(8, 64, 64, 16), dense(16, 128, 128, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 5e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 4e-2 if ill else 5e-4, betas=(0.5, 0.999))
    turn = torch.arange(8) * 6.2832 / 8

    def hearts(rows):
        size, lean = 0.8 + 0.4 * torch.rand(rows, 1), 0.5 * torch.randn(rows, 1)
        x = turn.sin() ** 3 * size
        y = (0.8 * turn.cos() - 0.3 * (2 * turn).cos() - 0.1 * (3 * turn).cos()) * size
        return torch.cat([x * lean.cos() - y * lean.sin(), x * lean.sin() + y * lean.cos()], 1) + 1

    def judge_loss():
        real, fake = judge(hearts(64)), judge(make(torch.randn(64, 8)).detach())
        return F.softplus(-real).mean() + F.softplus(fake).mean()

    def make_loss():
        return -F.softplus(judge(make(torch.randn(64, 8)))).mean()  # log(1 - D), as in the first paper

    test = hearts(512)

    def score():
        with torch.no_grad():
            return distance(make(torch.randn(512, 8)), test)

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 600, score)


@sick("no-gradient", "detached", "no-gradient-to-the-generator", where="all of the generator, all steps",
      cure="judge the fakes undetached in the generator's step")  # fmt: skip
def paw_prints_on_wet_cement(folder, ill):
    seeded(10410)
    make = nn.Sequential(
        nn.Linear(12, 16 * 4), nn.ReLU(), nn.Unflatten(1, (16, 2, 2)), nn.ConvTranspose2d(16, 12, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(12, 1, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    judge = nn.Sequential(
        nn.Conv2d(1, 12, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(12, 24, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(),
        nn.Linear(96, 1),
    )  # fmt: skip
    of_make = torch.optim.Adam(make.parameters(), 2e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    grid = torch.arange(8.0)
    toes = torch.tensor([[1.0, 2.0], [1.0, 5.0], [4.5, 3.5]])

    def prints(rows):
        at = toes + 0.5 * torch.randn(rows, 1, 2)
        far = (grid[:, None] - at[:, :, 0, None, None]).square() + (grid - at[:, :, 1, None, None]).square()
        return (2 * (-far / 2).exp().amax(1) - 1)[:, None]

    def judge_loss():
        real, fake = judge(prints(32)), judge(make(torch.randn(32, 12)).detach())
        return (F.softplus(-real) + F.softplus(fake)).mean()

    def make_loss():
        fake = make(torch.randn(32, 12))
        return F.softplus(-judge(fake.detach() if ill else fake)).mean()

    test = prints(512).flatten(1)

    def score():
        with torch.no_grad():
            return distance(make(torch.randn(512, 12)).flatten(1), test)

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, score)


@sick("target-network-never-updated", "target-network-stale", where="the targets of the loss, all steps",
      cure="copy the weights into the target every 25 steps")  # fmt: skip
def a_mouse_on_its_way_to_the_larder(folder, ill):
    seeded(10411)
    side, gamma, most = 5, 0.9, 30
    net = dense(side * side, 64, 64, 4)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    ways = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])
    seen = F.one_hot(torch.arange(side * side), side * side).float()
    goal = side * side - 1

    def move(state, act):
        place = torch.stack([state // side, state % side], 1) + ways[act]
        place = place.clamp(0, side - 1)
        return place[:, 0] * side + place[:, 1]

    def steps_home():
        state, taken = torch.arange(side * side - 1), torch.zeros(side * side - 1)
        with torch.no_grad():
            for _ in range(most):
                taken += (state != goal).float()
                state = torch.where(state == goal, state, move(state, net(seen[state]).argmax(1)))
        return taken.mean()

    def loss_of(step):
        if step % 25 == 0 and not ill:
            target.load_state_dict(net.state_dict())
        state, act = torch.randint(side * side - 1, (64,)), torch.randint(4, (64,))
        then = move(state, act)
        home = (then == goal).float()
        with torch.no_grad():
            wanted = home + gamma * (1 - home) * target(seen[then]).amax(1)
        said = net(seen[state])[torch.arange(64), act]
        logged = {"q": said.mean()}
        if step % 25 == 0:
            logged["episode_length"] = steps_home()
        return F.smooth_l1_loss(said, wanted), logged

    return fit(folder, net, optimizer, loss_of, 800, score=lambda: float(steps_home()))
