"""Heard healthy trainings, first part: images, colours and maps. An expert is content with each.

They only count (the group `heard`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.heard.healthy_data import lives, tints
from unseen.sent.healthy_data import photo


class Reads(nn.Module):
    """A word, and three numbers from 0 to 1."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(28, 24, padding_idx=0)
        self.rnn = nn.GRU(24, 48, batch_first=True)
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(48, 3))

    def forward(self, letters):
        seen = self.rnn(self.embed(letters))[0]
        there = (letters > 0)[..., None]
        return self.head((seen * there).sum(1) / there.sum(1)).sigmoid()


@healthy(0.3)
def tints_by_their_names(folder):
    """What colour is "dusty rose"? A recurrent net, one cycle of the rate, a clip at 1."""
    seeded(1101)
    net, (letters, tint) = Reads(), tints()
    make = optim.AdamW(net.parameters(), 1e-2, weight_decay=0.01)
    plan = optim.lr_scheduler.OneCycleLR(make, 1e-2, 160)

    def loss_of(step):
        at = torch.randint(len(letters), (64,))
        return F.mse_loss(net(letters[at]), tint[at])

    return fit(folder, net, make, loss_of, 160, schedule=plan, clip="ClipByGlobalNorm(1.0)")


class Countries(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(142, 8), dense(11, 48, 48, 1, norm=nn.BatchNorm1d)

    def forward(self, country, values):
        return self.head(torch.cat([self.table(country), values], 1))[:, 0]


@healthy(0.3)
def ages_by_country_and_year(folder):
    """A table of entities beside columns (Guo and Berkhahn 2016); the rate halves when a check stays as it is."""
    seeded(1102)
    net, (country, values, age) = Countries(), lives()
    order = torch.randperm(len(age))
    learnt, kept = order[:1400], order[1400:]
    make = optim.Adam(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.ReduceLROnPlateau(make, factor=0.5, patience=1)

    def score():
        net.eval()
        with torch.no_grad():
            error = float(F.mse_loss(net(country[kept], values[kept]), age[kept]))
        net.train()
        return error

    def loss_of(step):
        at = learnt[torch.randint(len(learnt), (64,))]
        logged = {"val_loss": score()} if step % 40 == 0 else {}
        return F.mse_loss(net(country[at], values[at]), age[at]), logged

    def after(step):
        if step % 40 == 39:
            plan.step(score())

    return fit(folder, net, make, loss_of, 400, after_step=after, score=score)


class Weighed(nn.Module):
    """A residual block whose channels are weighed by the mean of each (Hu et al. 2018)."""

    def __init__(self, wide):
        super().__init__()
        conv = (nn.Conv2d(wide, wide, 3, padding=1, bias=False) for _ in range(2))
        self.body = nn.Sequential(next(conv), nn.BatchNorm2d(wide), nn.SiLU(), next(conv), nn.BatchNorm2d(wide))
        self.weigh = nn.Sequential(nn.Linear(wide, wide // 4), nn.SiLU(), nn.Linear(wide // 4, wide), nn.Sigmoid())

    def forward(self, x):
        seen = self.body(x)
        return F.silu(x + seen * self.weigh(seen.mean((2, 3)))[..., None, None])


@healthy(0.3)
def channels_weighed_by_their_means(folder):
    """As image nets are trained: Nesterov, warm-up and cosine, softened labels, cut-out, an average of the weights."""
    seeded(1103)
    (x, y), wide = digits(), 16
    net = nn.Sequential(
        *(nn.Conv2d(1, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.SiLU()),
        *(Weighed(wide), nn.MaxPool2d(2), Weighed(wide)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 10)),
    )
    slow = optim.swa_utils.AveragedModel(net, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.98))
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    rise = optim.lr_scheduler.LinearLR(make, 0.1, total_iters=15)
    fall = optim.lr_scheduler.CosineAnnealingLR(make, 135)
    plan = optim.lr_scheduler.SequentialLR(make, [rise, fall], [15])

    def loss_of(step):
        at = torch.randint(1500, (64,))
        image = x[at, None].clone()
        top, left = torch.randint(6, (2,)).tolist()
        image[:, :, top : top + 3, left : left + 3] = 0
        return F.cross_entropy(net(image), y[at], label_smoothing=0.1)

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(slow(x[1500:, None]), y[1500:]))

    after = lambda step: slow.update_parameters(net)  # noqa: E731
    return fit(folder, net, make, loss_of, 150, schedule=plan, after_step=after, score=score)


@healthy(0.3)
def how_far_a_crop_was_moved(folder):
    """Two crops of a photo, some pixels apart: how many? Errors by their size, a rate that falls in a line."""
    seeded(1104)
    image = photo(96, 128).mean(0)
    net = nn.Sequential(
        *(nn.Conv2d(2, 24, 5, stride=2, padding=2), nn.GroupNorm(4, 24), nn.GELU()),
        *(nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.GroupNorm(4, 48), nn.GELU()),
        *(nn.Flatten(), nn.Linear(48 * 16, 2)),
    )
    rows = torch.arange(16)

    def cut(top, left):
        found = image[(top[:, None] + rows)[:, :, None], (left[:, None] + rows)[:, None]]
        return (found - found.mean((1, 2), keepdim=True)) / (found.std((1, 2), keepdim=True) + 0.05)

    def loss_of(step):
        top, left = torch.randint(4, 76, (32,)), torch.randint(4, 108, (32,))
        far = torch.randint(-3, 4, (2, 32))
        pair = torch.stack([cut(top, left), cut(top + far[0], left + far[1])], 1)
        return F.l1_loss(net(pair), far.T.float())

    make = optim.AdamW(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.PolynomialLR(make, 500)
    return fit(folder, net, make, loss_of, 500, schedule=plan, score=score_of(loss_of))


@healthy(0.3)
def heat_where_the_joints_are(folder):
    """A bar's two ends as maps of heat (Tompson et al. 2014): nearly all pixels are to be zero."""
    seeded(1105)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 24, 3, padding=2, dilation=2), nn.BatchNorm2d(24), nn.ReLU()),
        *(nn.Conv2d(24, 24, 3, padding=4, dilation=4), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 2, 1)),
    )
    place = torch.stack(torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij"), -1)

    def loss_of(step):
        ends = 2 + 16 * torch.rand(24, 2, 2)
        one, other = ends[:, :1, None].transpose(0, 1)[0][:, None], ends[:, 1:, None].transpose(0, 1)[0][:, None]
        along = ((place - one) * (other - one)).sum(-1) / ((other - one).square().sum(-1) + 1e-3)
        along = along.clamp(0, 1)[..., None]
        apart = (place - one - along * (other - one)).square().sum(-1)
        image = (-apart).exp() * (0.3 + 0.7 * along[..., 0]) + 0.05 * torch.randn(24, 20, 20)
        heat = torch.stack([(-(place - end).square().sum(-1) / 3).exp() for end in (one, other)], 1)
        return F.mse_loss(net(image[:, None]), heat)

    make = optim.Adam(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.MultiStepLR(make, [90, 120])
    return fit(folder, net, make, loss_of, 130, schedule=plan)


@healthy(0.3)
def colours_for_a_grey_photo(folder):
    """Two differences of colours from what is light and dark; small net, Adam, nothing else."""
    seeded(1106)
    image = photo(96, 128)
    net = nn.Sequential(
        *(nn.Conv2d(1, 24, 5, padding=2), nn.LeakyReLU(0.2), nn.Conv2d(24, 24, 3, padding=2, dilation=2)),
        *(nn.LeakyReLU(0.2), nn.Conv2d(24, 24, 3, padding=4, dilation=4), nn.LeakyReLU(0.2), nn.Conv2d(24, 2, 1)),
    )

    def loss_of(step):
        tops, lefts = torch.randint(72, (8,)).tolist(), torch.randint(104, (8,)).tolist()
        cut = torch.stack([image[:, t : t + 24, s : s + 24] for t, s in zip(tops, lefts, strict=True)])
        light = cut.mean(1, keepdim=True)
        return F.smooth_l1_loss(net(light - 0.5), 4 * torch.cat([cut[:, :1] - light, cut[:, 2:] - light], 1))

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 250, score=score_of(loss_of))


class Squeezed(nn.Module):
    """To eight numbers that are rounded, with the bits that they cost (Ballé et al. 2017)."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = dense(64, 96, 8), dense(8, 96, 64)
        self.wide = nn.Parameter(torch.zeros(8))

    def forward(self, x):
        code = self.encode(x)
        code = code + torch.rand_like(code) - 0.5
        wide = F.softplus(self.wide) + 0.1
        share = ((code + 0.5) / wide).sigmoid() - ((code - 0.5) / wide).sigmoid()
        return self.decode(code), -share.clamp(min=1e-9).log2().sum(1).mean()


@healthy(0.3)
def bits_against_faithfulness(folder):
    """Bits of the code, and 300 times the error of what is rebuilt: the first rise while the second falls."""
    seeded(1107)
    net, x = Squeezed(), digits()[0].flatten(1)

    def loss_of(step):
        image = x[torch.randint(len(x), (64,))]
        rebuilt, bits = net(image)
        error = F.mse_loss(rebuilt, image)
        return bits + 300 * error, {"bits": bits.detach(), "mse": error.detach()}

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 320)


@healthy(0.3)
def dots_matched_before_the_loss(folder):
    """A set of three places, each put to the answer that is nearest (Carion et al. 2020)."""
    from scipy.optimize import linear_sum_assignment

    seeded(1108)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.LayerNorm(512), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 6), nn.Unflatten(1, (3, 2))),
    )
    place = torch.stack(torch.meshgrid(torch.linspace(0, 1, 16), torch.linspace(0, 1, 16), indexing="ij"), -1)

    def loss_of(step):
        dots = torch.rand(24, 3, 2)
        image = (-(place[None, None] - dots[:, :, None, None]).square().sum(-1) / 0.005).exp().amax(1)
        answer = net(image[:, None])
        cost = torch.cdist(answer.detach(), dots, p=1)
        order = torch.stack([torch.as_tensor(linear_sum_assignment(one.numpy())[1]) for one in cost])
        return F.l1_loss(answer, dots.gather(1, order[..., None].expand(-1, -1, 2)))

    make = optim.AdamW(net.parameters(), 1e-3, weight_decay=1e-4)
    return fit(folder, net, make, loss_of, 400, clip="ClipByGlobalNorm(0.1)")
