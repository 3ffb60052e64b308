"""Ten healthy ones of a harbour and an observatory: digits, tides, film, ships, colours, clusters, noise, orbits."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


def pictures():
    """The digits in a drawn order: `[1797, 1, 8, 8]` of mean 0 and deviation 1, and which they are."""
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    return (x[order] - 0.305) / 0.376, y[order]


@healthy(0.7)
def numbers_painted_on_containers(folder):
    seeded(14112)
    x, y = pictures()
    draw = rounds(64, x[:1400], y[:1400])

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.inner = nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
            )  # fmt: skip

        def forward(self, x):
            return (x + self.inner(x)).relu()

    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Block(16), nn.MaxPool2d(2), Block(16), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=210)
    validate = now_and_then(net, 21, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 210, score=score, schedule=schedule)


@healthy(0.6)
def tide_gauge_with_dilated_convolutions(folder):
    seeded(14113)

    def tides(rows):
        hour = torch.arange(40.0)
        height = torch.zeros(rows, 40)
        for period, most in ((12.42, 1.0), (24.0, 0.5)):
            phase, size = 6.2832 * torch.rand(rows, 1), most * (0.5 + torch.rand(rows, 1))
            height = height + size * (6.2832 * hour / period + phase).sin()
        height = height + 0.05 * torch.randn(rows, 40)
        return height[:, None, :32], height[:, 32:]

    (x, y), (tx, ty) = tides(3000), tides(600)
    draw = rounds(48, x, y)
    net = nn.Sequential(
        nn.Conv1d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv1d(24, 24, 3, padding=2, dilation=2), nn.ReLU(),
        nn.Conv1d(24, 24, 3, padding=4, dilation=4), nn.ReLU(), nn.Conv1d(24, 4, 1), nn.Flatten(), nn.Linear(128, 8),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    criterion = nn.HuberLoss()
    validate = now_and_then(net, 50, lambda: {"val_loss": criterion(net(tx), ty)})

    def loss_of(step):
        seen, later = draw()
        return criterion(net(seen), later), {"lr": schedule.get_last_lr()[0], **validate(step)}

    score = held_out(net, lambda: criterion(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


@healthy(0.5)
def plates_of_the_old_telescope_cleaned_of_dust(folder):
    seeded(14114)
    x, _ = pictures()
    x = x.clamp(max=2.0)
    draw = rounds(64, x[:1400])

    class Cleaner(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.SiLU()
            )
            self.up = nn.Sequential(nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), nn.SiLU())
            self.last = nn.Conv2d(17, 1, 3, padding=1)

        def forward(self, x):
            return self.last(torch.cat([self.up(self.down(x)), x], 1))

    net = Cleaner()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    dusty = x[1400:] + 0.7 * torch.randn_like(x[1400:])

    def loss_of(step):
        (plate,) = draw()
        return F.mse_loss(net(plate + 0.7 * torch.randn_like(plate)), plate)

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.mse_loss(net(dusty), x[1400:])))


@healthy(0.25)
def ships_that_call_in_an_hour(folder):
    seeded(14115)
    way = torch.randn(7) / 4

    def hours(rows):
        x = torch.randn(rows, 7)
        rate = (0.9 + x @ way + 0.6 * (2 * x[:, 0]).sin()).exp()
        return x, torch.poisson(rate)

    (x, y), (tx, ty) = hours(6000), hours(2000)
    draw = rounds(128, x, y)
    net = dense(7, 48, 48, 1, act=nn.Tanh)
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
    criterion = nn.PoissonNLLLoss(full=True)
    validate = now_and_then(net, 40, lambda: {"val_loss": criterion(net(tx)[:, 0], ty)})

    def loss_of(step):
        seen, ships = draw()
        return criterion(net(seen)[:, 0], ships), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: criterion(net(tx)[:, 0], ty)))


@healthy(0.35)
def range_of_a_galaxys_redshift_from_its_colours(folder):
    seeded(14116)
    way = torch.randn(5, 3) / 5**0.5
    quantiles = torch.tensor([0.1, 0.5, 0.9])

    def galaxies(rows):
        x = torch.randn(rows, 5)
        seen = x @ way
        middle, spread = 1.5 * seen[:, 0] + (2 * seen[:, 1]).sin(), 0.1 + 0.4 * seen[:, 2].sigmoid()
        return x, middle + spread * torch.randn(rows)

    (x, y), (tx, ty) = galaxies(5000), galaxies(1500)
    draw = rounds(100, x, y)
    net = dense(5, 64, 64, 3, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-3)

    def pinball(said, redshift):
        gap = redshift[:, None] - said
        return torch.maximum(quantiles * gap, (quantiles - 1) * gap).mean()

    def measure():
        said = net(tx)
        inside = ((ty > said[:, 0]) & (ty < said[:, 2])).float().mean()
        return {"val_loss": pinball(said, ty), "val_coverage": inside}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        colours, redshift = draw()
        return pinball(net(colours), redshift), validate(step)

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: pinball(net(tx), ty)))


@healthy(0.4)
def clusters_of_galaxies_from_their_neighbours(folder):
    seeded(14117)
    of = torch.arange(400) % 4
    chance = torch.where(of[:, None] == of, 0.05, 0.008)
    near = (torch.rand(400, 400) < chance).float().triu(1)
    near = near + near.T + torch.eye(400)
    scale = near.sum(1).rsqrt()
    near = scale[:, None] * near * scale
    x = torch.randn(4, 24)[of] * 0.4 + torch.randn(400, 24)
    order = torch.randperm(400)
    known, asked = order[:160], order[160:]

    class Convolution(nn.Module):
        def __init__(self, inside, outside):
            super().__init__()
            self.linear = nn.Linear(inside, outside)

        def forward(self, x):
            return near @ self.linear(x)

    net = nn.Sequential(Convolution(24, 32), nn.ReLU(), nn.Dropout(0.4), Convolution(32, 4))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)

    def measure():
        said, wanted = net(x)[asked], of[asked]
        return {"val_loss": F.cross_entropy(said, wanted), "val_accuracy": (said.argmax(1) == wanted).float().mean()}

    validate = now_and_then(net, 10, measure)

    def loss_of(step):
        return F.cross_entropy(net(x)[known], of[known]), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(x)[asked], of[asked]))
    return fit(folder, net, optimizer, loss_of, 120, score=score)


@healthy(0.6)
def pilots_who_read_a_signal_of_flags(folder):
    seeded(14118)
    signs = torch.randn(6, 10)

    def signals(rows):
        flags = torch.randint(6, (rows, 4))
        hoist = torch.randint(3, (rows, 4)) + 1
        frames = torch.zeros(rows, 14, 10)
        for row in range(rows):
            shown = signs[flags[row]].repeat_interleave(hoist[row], 0)
            frames[row, : len(shown)] = shown
        return frames + 0.3 * torch.randn_like(frames), flags

    (x, y), (tx, ty) = signals(1200), signals(200)
    draw = rounds(32, x, y)

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = nn.GRU(10, 24, batch_first=True, bidirectional=True)
            self.head = nn.Linear(48, 7)

        def forward(self, frames):
            return self.head(self.memory(frames)[0]).log_softmax(2).transpose(0, 1)

    net = Reader()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    criterion = nn.CTCLoss()

    def loss(frames, flags):
        rows = len(frames)
        return criterion(net(frames), flags + 1, torch.full((rows,), 14), torch.full((rows,), 4))

    validate = now_and_then(net, 37, lambda: {"val_loss": loss(tx, ty)})

    def loss_of(step):
        return loss(*draw()), validate(step)

    score = held_out(net, lambda: loss(tx, ty))
    return fit(folder, net, optimizer, loss_of, 260, score=score, before_step=clipped(net, 5.0))


@healthy(0.15)
def sky_map_by_a_flow_of_couplings(folder):
    seeded(14119)

    def stars(rows):
        arm = torch.randint(2, (rows,)) * 3.1416
        far = 0.3 + 1.7 * torch.rand(rows)
        angle = arm + 1.5 * far
        return torch.stack([far * angle.cos(), far * angle.sin()], 1) + 0.1 * torch.randn(rows, 2)

    x, tx = stars(6000), stars(1500)
    draw = rounds(128, x)

    class Coupling(nn.Module):
        def __init__(self, kept):
            super().__init__()
            self.kept = kept
            self.inner = dense(1, 48, 48, 2)

        def forward(self, x):
            scale, shift = self.inner(x[:, self.kept : self.kept + 1]).chunk(2, 1)
            scale = 2 * (scale / 2).tanh()
            moved = x[:, 1 - self.kept : 2 - self.kept] * scale.exp() + shift
            halves = (x[:, self.kept : self.kept + 1], moved)
            return torch.cat(halves if self.kept == 0 else halves[::-1], 1), scale[:, 0]

    net = nn.ModuleList(Coupling(layer % 2) for layer in range(6))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def surprise(place):
        volume = torch.zeros(len(place))
        for coupling in net:
            place, grown = coupling(place)
            volume = volume + grown
        return (place.square().sum(1) / 2 + 1.8379 - volume).mean()

    def loss_of(step):
        return surprise(*draw())

    score = held_out(net, lambda: surprise(tx))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 10.0))


@healthy(0.4)
def small_net_for_the_buoy_taught_by_a_large_one(folder):
    seeded(14120)
    x, y = pictures()
    x = x.flatten(1)
    large = dense(64, 256, 128, 10)
    learner = torch.optim.Adam(large.parameters(), 1e-3)
    draw = rounds(64, x[:1400], y[:1400])
    for _ in range(150):
        image, number = draw()
        learner.zero_grad()
        F.cross_entropy(large(image), number).backward()
        learner.step()
    large.eval()

    net = dense(64, 20, 10)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    validate = now_and_then(net, 42, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        with torch.no_grad():
            taught = large(image)
        soft = 9 * F.kl_div((said / 3).log_softmax(1), (taught / 3).softmax(1), reduction="batchmean")
        hard = F.cross_entropy(said, number)
        return 0.7 * soft + 0.3 * hard, {"soft": float(soft), "hard": float(hard), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 336, score=score)


@healthy(0.5)
def orbits_learnt_with_an_average_of_the_weights(folder):
    seeded(14121)

    def orbits(rows):
        """Where a planet is, how fast, and where it is an eighth of a round later."""
        far, angle = 0.7 + 0.6 * torch.rand(rows), 6.2832 * torch.rand(rows)
        turn = far**-1.5

        def state(angle):
            place = torch.stack([angle.cos(), angle.sin()], 1) * far[:, None]
            return place, torch.stack([-angle.sin(), angle.cos()], 1) * (far * turn)[:, None]

        return torch.cat(state(angle), 1), state(angle + 0.785 * turn)[0]

    (x, y), (tx, ty) = orbits(5000), orbits(1000)
    draw = rounds(64, x, y)
    net = dense(4, 64, 64, 2, act=nn.GELU)
    average = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def one(step):
        now, later = draw()
        loss = F.mse_loss(net(now), later)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.03)
        return {"loss": loss}

    def score():
        with torch.no_grad():
            return F.mse_loss(average(tx), ty)

    return tend(folder, net, optimizer, one, 400, score)
