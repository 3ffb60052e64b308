"""What begins with something learned before, or learns several things at once."""

import copy
import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend


def learned(net, loss_of, steps, rate=2e-3):
    """The net after a training that is not recorded."""
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()
    return net


def shuffled_digits():
    x, y = digits()
    order = torch.randperm(len(x))
    return x[order, None], y[order]


def small_cnn(width=16, outputs=10):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * width, 64), nn.ReLU(), nn.Linear(64, outputs),
    )  # fmt: skip


@healthy()
def odd_numbers_on_raffle_tickets(folder):
    seeded(3531)
    x, y = shuffled_digits()
    first = y < 6
    draw = rounds(64, x[first], y[first])

    def before():
        image, digit = draw()
        return F.cross_entropy(net(image), digit)

    net = small_cnn()
    learned(net, before, 150)
    net[-1] = nn.Linear(64, 4)
    x, y = x[~first], y[~first] - 6
    draw_new = rounds(32, x[:400], y[:400])
    body = [p for name, p in net.named_parameters() if not name.startswith("9.")]
    groups = [{"params": body, "lr": 3e-4}, {"params": net[-1].parameters(), "lr": 3e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)

    def loss_of(step):
        image, digit = draw_new()
        out = net(image)
        return F.cross_entropy(out, digit), {"accuracy": (out.argmax(1) == digit).float().mean()}

    steps = 12 * 12
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    score = held_out(net, lambda: F.cross_entropy(net(x[400:]), y[400:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


class LowRank(nn.Module):
    """A frozen linear layer and a product of two thin ones beside it."""

    def __init__(self, layer, rank=4, alpha=8):
        super().__init__()
        self.layer, self.scale = layer.requires_grad_(False), alpha / rank
        self.down = nn.Parameter(torch.empty(rank, layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x):
        return self.layer(x) + self.scale * (x @ self.down.T) @ self.up.T


@healthy()
def friction_of_a_second_skate(folder):
    seeded(3532)
    way, turn = torch.randn(8, 4), torch.randn(8, 4)

    def draw(ways, rows=64):
        x = torch.randn(rows, 8)
        return x, (x @ ways / 2).sin().sum(1, keepdim=True)

    net = dense(8, 64, 64, 64, 1, act=nn.GELU)

    def before():
        x, y = draw(way)
        return F.mse_loss(net(x), y)

    learned(net, before, 600)
    net.requires_grad_(False)
    for i in (0, 2, 4):
        net[i] = LowRank(net[i])
    moved = 0.8 * way + 0.6 * turn
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-3, weight_decay=0.0)
    steps = 600
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=steps)

    def loss_of(step):
        x, y = draw(moved)
        return F.mse_loss(net(x), y)

    fresh = draw(moved, 1000)
    score = held_out(net, lambda: F.mse_loss(net(fresh[0]), fresh[1]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def house_numbers_for_a_cheap_camera(folder):
    seeded(3533)
    x, y = shuffled_digits()
    draw = rounds(64, x[:1400], y[:1400])
    teacher = small_cnn(24)

    def before():
        image, digit = draw()
        return F.cross_entropy(teacher(image), digit)

    learned(teacher, before, 250)
    teacher.eval().requires_grad_(False)
    pupil = nn.Sequential(nn.Flatten(), *dense(64, 24, 24, 10))
    heat, share = 3.0, 0.7

    def loss_of(step):
        image, digit = draw()
        out = pupil(image)
        with torch.no_grad():
            wanted = (teacher(image) / heat).softmax(1)
        soft = heat**2 * F.kl_div((out / heat).log_softmax(1), wanted, reduction="batchmean")
        hard = F.cross_entropy(out, digit)
        return share * soft + (1 - share) * hard, {"soft": soft, "hard": hard}

    optimizer = torch.optim.Adam(pupil.parameters(), lr=3e-3)
    score = held_out(pupil, lambda: F.cross_entropy(pupil(x[1400:]), y[1400:]))
    return fit(folder, pupil, optimizer, loss_of, 450, score=score)


@healthy()
def faces_of_dice_and_how_they_lie(folder):
    seeded(3534)
    grid = torch.linspace(-1, 1, 12)
    plane = torch.stack(torch.meshgrid(grid, grid, indexing="ij"))
    spots = [torch.tensor(points) for points in (
        [[0.0, 0.0]], [[-0.5, -0.5], [0.5, 0.5]], [[-0.6, -0.6], [0.0, 0.0], [0.6, 0.6]],
        [[-0.5, -0.5], [0.5, 0.5], [-0.5, 0.5], [0.5, -0.5]],
    )]  # fmt: skip

    def draw(rows=32):
        face, angle = torch.randint(4, (rows,)), (torch.rand(rows) - 0.5) * math.pi / 3
        image = torch.zeros(rows, 12, 12)
        for i in range(rows):
            c, s = math.cos(angle[i]), math.sin(angle[i])
            points = spots[face[i]] @ torch.tensor([[c, -s], [s, c]])
            far = (plane[None] - points[:, :, None, None]).square().sum(1)
            image[i] = (-far / 0.03).exp().sum(0)
        return (image + 0.15 * torch.randn_like(image))[:, None], face, angle

    trunk = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    net = nn.ModuleDict({"trunk": trunk, "face": dense(288, 32, 4), "tilt": dense(288, 32, 1)})

    def terms(image, face, angle):
        h = net["trunk"](image)
        seen = face > 0
        tilt = F.mse_loss(net["tilt"](h)[seen, 0], angle[seen])
        return F.cross_entropy(net["face"](h), face), tilt

    def loss_of(step):
        face, tilt = terms(*draw())
        return face + 5 * tilt, {"face": face, "tilt": tilt}

    fresh = draw(300)

    def whole():
        face, tilt = terms(*fresh)
        return face + 5 * tilt

    optimizer = torch.optim.RAdam(net.parameters(), lr=2e-3)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, whole))


@healthy()
def holidays_in_the_order_a_guest_likes(folder):
    seeded(3535)
    lists, items = 800, 10
    x = torch.randn(lists, items, 8)
    worth = x[..., 0] + (x[..., 1] * 1.5).sin() + 0.8 * x[..., 2] * x[..., 3]
    grade = (worth + 0.3 * torch.randn(lists, items)).argsort(1).argsort(1).div(2.5).floor()
    net = dense(8, 48, 48, 1)

    def grade_of_top(out, grades):
        return grades.gather(1, out.detach().argmax(1, keepdim=True)).mean()

    draw = rounds(32, x[:640], grade[:640])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)

    def loss_of(step):
        rows, grades = draw()
        out = net(rows)[..., 0]
        return F.cross_entropy(out, grades.softmax(1)), {"grade_of_top": grade_of_top(out, grades)}

    score = held_out(net, lambda: 3 - grade_of_top(net(x[640:])[..., 0], grade[640:]))
    return fit(folder, net, optimizer, loss_of, 20 * 25, score=score)


@healthy()
def lorries_weighed_as_they_roll(folder):
    seeded(3536)
    t = torch.linspace(0, 1, 64)

    def draw(rows=16):
        weight, speed = 0.5 + 2 * torch.rand(rows, 1), 0.5 + torch.rand(rows, 1)
        bump = weight * (-(((t - 0.3) * speed * 6) ** 2)).exp() + 0.7 * weight * (-(((t - 0.6) * speed * 6) ** 2)).exp()
        rock = 0.3 * (20 * speed * t + 6.2832 * torch.rand(rows, 1)).sin()
        return bump + rock + 0.1 * torch.randn(rows, 64), weight[:, 0] - 1.5

    net = nn.Sequential(
        nn.Unflatten(1, (1, 64)), nn.Conv1d(1, 16, 7, stride=2, padding=3), nn.SiLU(),
        nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.SiLU(), nn.Flatten(), nn.Linear(512, 32), nn.SiLU(),
        nn.Linear(32, 1), nn.Flatten(0),
    )  # fmt: skip
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    parts = 4

    def one(step):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(parts):
            x, y = draw()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                found = net(x)
            loss = F.mse_loss(found.float(), y) / parts
            loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
        return {"loss": total}

    fresh = draw(500)
    score = held_out(average, lambda: F.mse_loss(average(fresh[0]), fresh[1]))
    return tend(folder, net, optimizer, one, 300, score)
