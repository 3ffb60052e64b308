"""Losses of an unusual make in which nothing is wrong: two levels, lessons, wrong labels, tails, ranks, attacks."""

import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, held_out, rounds, tend


class Ridge(nn.Module):
    """Features that many scales share; what is one scale's own is solved for exactly."""

    def __init__(self):
        super().__init__()
        self.features, self.log_ridge = dense(1, 64, 64, 24, act=nn.Tanh), nn.Parameter(torch.tensor(0.0))

    def forward(self, x, y, asked):
        seen = self.features(x)
        square = seen.transpose(1, 2) @ seen + self.log_ridge.exp() * torch.eye(24)
        return self.features(asked) @ torch.linalg.solve(square, seen.transpose(1, 2) @ y)


@healthy()
def a_new_spring_from_eight_weighings(folder):
    """Two levels: the inner one a ridge regression in closed form, the outer one learns its features and its ridge."""
    seeded(3460)
    net = Ridge()
    optimizer = torch.optim.Adam([{"params": net.features.parameters()}, {"params": [net.log_ridge], "lr": 1e-2}], 1e-3)

    def springs(rows=32):
        height, phase = 0.5 + 1.5 * torch.rand(rows, 1, 1), math.pi * torch.rand(rows, 1, 1)
        x = 6 * torch.rand(rows, 18, 1) - 3
        y = height * (x + phase).sin() + 0.3 * torch.randn(rows, 1, 1) * x + 0.05 * torch.randn(rows, 18, 1)
        return x[:, :8], y[:, :8], x[:, 8:], y[:, 8:]

    def loss_of(step):
        x, y, asked, answer = springs()
        return F.mse_loss(net(x, y, asked), answer), {"ridge": net.log_ridge.exp()}

    return fit(folder, net, optimizer, loss_of, 800, score=score_of(lambda step: loss_of(step)[0], 20))


class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory, self.out = nn.GRU(3, 40, batch_first=True), nn.Linear(40, 3)

    def forward(self, x):
        return self.out(self.memory(F.one_hot(x, 3).float())[0])


@healthy()
def a_turnstile_counted_in_threes(folder):
    """A curriculum: days of four people at first, of twenty-four at last."""
    seeded(3461)
    net = Count()
    optimizer = torch.optim.NAdam(net.parameters(), 4e-3)

    def day(length, rows=64):
        x = torch.randint(3, (rows, length))
        return x, (x - 1).cumsum(1) % 3

    def loss_of(step):
        length = min(24, 4 + step // 20)
        x, y = day(length)
        said = net(x)
        right = (said.argmax(2) == y).float().mean()
        return F.cross_entropy(said.flatten(0, 1), y.flatten()), {"accuracy": right, "length": length}

    def wrong():
        x, y = day(24, 500)
        return (net(x).argmax(2)[:, -1] != y[:, -1]).float().mean()

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, wrong), before_step=clipped(net, 1.0))


@healthy()
def postcodes_typed_by_tired_clerks(folder):
    """A third of all labels is wrong; a loss between that of likelihood and that of a mean error."""
    seeded(3462)
    images, labels = digits()
    order = torch.randperm(len(images))
    images, labels = images[order].flatten(1), labels[order]
    typed = torch.where(torch.rand(len(labels)) < 0.35, torch.randint(10, (len(labels),)), labels)
    draw, x, y = rounds(64, images[:1400], typed[:1400]), images[1400:], labels[1400:]
    net = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 420)

    def loss_of(step):
        image, label = draw()
        chance = net(image).softmax(1).gather(1, label[:, None])
        return ((1 - chance.clamp(min=1e-6) ** 0.7) / 0.7).mean(), {"agreement": chance.mean()}

    def wrong():
        return (net(x).argmax(1) != y).float().mean()

    return fit(folder, net, optimizer, loss_of, 420, score=held_out(net, wrong), schedule=schedule)


class Flood(nn.Module):
    """The middle, the width, and how long the tails are."""

    def __init__(self):
        super().__init__()
        self.body, self.tails = dense(5, 48, 48, 2, act=nn.Softplus), nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        middle, width = self.body(x).unbind(1)
        return torch.distributions.StudentT(0.5 + F.softplus(self.tails), middle, F.softplus(width) + 1e-3)


@healthy()
def peaks_of_a_mountain_torrent(folder):
    """Student's t by the summed likelihood of all rows at once; the rate is that of a mean, divided by their number."""
    seeded(3463)
    way = torch.randn(5, 2) * 0.7

    def days(rows):
        x = torch.randn(rows, 5)
        middle = (x @ way).tanh().sum(1) * 2 + 0.5 * x[:, 0]
        noise = torch.randn(rows) / (torch.randn(rows, 2).square().mean(1)).sqrt()
        return x, middle, middle + 0.2 * noise

    x, _, y = days(1500)
    other, middle, _ = days(1000)
    net = Flood()
    optimizer = torch.optim.SGD(net.parameters(), 0.05 / 1500, momentum=0.9, nesterov=True)

    def loss_of(step):
        found = net(x)
        return -found.log_prob(y).sum(), {"degrees_of_freedom": found.df[0], "median_width": found.scale.median()}

    def off():
        return (net(other).loc - middle).abs().mean()

    return fit(folder, net, optimizer, loss_of, 700, score=held_out(net, off), before_step=clipped(net, 3000.0))


@healthy()
def records_asked_for_at_a_jukebox(folder):
    """A hinge on pairs: a record that was played over the hardest of eight that were not; sparse gradients."""
    seeded(3464)
    guests, records = torch.randn(300, 4), torch.randn(200, 4)
    liking = guests @ records.T + 0.3 * torch.randn(300, 200)
    liked = liking > 1.5
    kept = torch.rand(300, 200) < 0.8
    played, silent = (liked & kept).nonzero(), (~liked).nonzero()
    late = (liked & ~kept).nonzero()
    net = nn.ModuleDict({"guests": nn.Embedding(300, 16, sparse=True), "records": nn.Embedding(200, 16, sparse=True)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.25)
    optimizer = torch.optim.SparseAdam(net.parameters(), 5e-3)
    draw = rounds(256, played)

    def loss_of(step):
        who, which = draw()[0].unbind(1)
        others = torch.randint(200, (256, 8))
        guest = net["guests"](who)
        high = (guest * net["records"](which)).sum(1, keepdim=True)
        low = torch.einsum("bd,bnd->bn", guest, net["records"](others))
        low = low.masked_fill((liked & kept)[who[:, None], others], -1e4).max(1, keepdim=True).values
        gap = high - low
        return (1 - gap).relu().mean(), {"in_order": (gap > 0).float().mean()}

    def out_of_order():
        at = silent[torch.randint(len(silent), (len(late),))]
        high = (net["guests"](late[:, 0]) * net["records"](late[:, 1])).sum(1)
        low = (net["guests"](late[:, 0]) * net["records"](at[:, 1])).sum(1)
        fair = ~liked[late[:, 0], at[:, 1]]
        return (high <= low)[fair].float().mean()

    return fit(folder, net, optimizer, loss_of, 700, score=held_out(net, out_of_order))


@healthy()
def parking_meters_scratched_by_keys(folder):
    """Adversarial training: five steps of the steepest ascent within a tenth of each pixel."""
    seeded(3465)
    images, labels = digits()
    order = torch.randperm(len(images))
    images, labels = images[order, None], labels[order]
    draw, x, y = rounds(64, images[:1500], labels[:1500]), images[1500:], labels[1500:]
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1),
                        nn.GroupNorm(4, 32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [160, 210], 0.1)

    def scratched(image, label, most=0.1):
        off = most * (2 * torch.rand_like(image) - 1)
        for _ in range(5):
            off = off.detach().requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(net(image + off), label), off)
            off = (off + 0.04 * slope.sign()).clamp(-most, most)
        return (image + off).clamp(0, 1).detach()

    def one(step):
        image, label = draw()
        said = net(scratched(image, label))
        loss = F.cross_entropy(said, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "robust_accuracy": (said.argmax(1) == label).float().mean()}

    def score():
        return (net(scratched(x, y)).argmax(1) != y).float().mean()

    return tend(folder, net, optimizer, one, 240, score)
