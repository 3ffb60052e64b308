"""Ordinary healthy trainings, first part: shapes that are named, cut out, compared and drawn. An expert is content."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, rounds

KINDS = 5


def painted(rows, side=16):
    """Coloured discs, squares, crosses, rings and wedges on another colour: images, kinds and masks."""
    y = torch.randint(KINDS, (rows,))
    centre = side * (0.35 + 0.3 * torch.rand(rows, 2, 1, 1))
    radius = side * (0.2 + 0.1 * torch.rand(rows, 1, 1))
    grid = torch.arange(side) + 0.5
    across, down = (grid[None, None, :] - centre[:, 0]) / radius, (grid[None, :, None] - centre[:, 1]) / radius
    far, most = (across.square() + down.square()).sqrt(), torch.maximum(across.abs(), down.abs())
    least = torch.minimum(across.abs(), down.abs())
    wedge = (down < 0.9) & (across.abs() < 0.6 * (down + 1))
    forms = [far < 1, most < 0.85, (least < 0.35) & (most < 1.1), (far < 1.1) & (far > 0.6), wedge]
    mask = torch.stack(forms)[y, torch.arange(rows)]
    colour = torch.rand(rows, 3, 1, 1)
    ground = (colour + 0.3 + 0.4 * torch.rand(rows, 3, 1, 1)) % 1
    image = torch.where(mask[:, None], colour, ground) + 0.1 * torch.randn(rows, 3, side, side)
    return (image - 0.5) / 0.3, y, mask


def right(said, y):
    return (said.argmax(1) == y).float().mean()


def without_decay(net, decay):
    """Two groups: gains, biases and other vectors are not decayed."""
    matrices = [p for p in net.parameters() if p.requires_grad and p.ndim > 1]
    vectors = [p for p in net.parameters() if p.requires_grad and p.ndim < 2]
    return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]


def beforehand(net, optimizer, loss_of, steps):
    """What has been trained elsewhere, unwatched."""
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(step).backward()
        optimizer.step()


# ------------------------------------------------------------------------------------------------------------ naming


class Wide(nn.Module):
    """A block that norms first (Zagoruyko and Komodakis 2016)."""

    def __init__(self, size, out, stride):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(size), nn.Conv2d(size, out, 3, stride, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(out), nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.short = nn.Conv2d(size, out, 1, stride, bias=False) if size != out else None

    def forward(self, x):
        seen = F.relu(self.norm1(x))
        rest = self.short(seen) if self.short else x
        return rest + self.conv2(F.relu(self.norm2(self.conv1(seen))))


@healthy(0.4)
def shapes_with_a_square_cut_away(folder):
    """A wide residual net, Nesterov at 0.1 with milestones, cutout, in shuffled epochs."""
    seeded(5301)
    x, y, _ = painted(1600)
    draw = rounds(48, x, y)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1, bias=False), Wide(12, 12, 1), Wide(12, 24, 2), Wide(24, 48, 2),
        nn.BatchNorm2d(48), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, KINDS),
    )  # fmt: skip

    def loss_of(step):
        image, kind = draw()
        image = image.clone()
        i, j = torch.randint(12, (2,)).tolist()
        image[:, :, i : i + 4, j : j + 4] = 0
        said = net(image)
        return F.cross_entropy(said, kind), {"accuracy": right(said, kind)}

    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    plan = optim.lr_scheduler.MultiStepLR(make, [125, 170], 0.2)
    return fit(folder, net, make, loss_of, 200, schedule=plan)


class Next(nn.Module):
    """Depthwise five by five, a norm of each place, four times as wide and back, a gain (Liu et al. 2022)."""

    def __init__(self, wide, dropped):
        super().__init__()
        self.dropped = dropped
        self.depthwise = nn.Conv2d(wide, wide, 5, padding=2, groups=wide)
        self.norm, self.up, self.down = nn.LayerNorm(wide), nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)
        self.gain = nn.Parameter(0.1 * torch.ones(wide))

    def forward(self, x):
        seen = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        seen = (self.gain * self.down(F.gelu(self.up(seen)))).permute(0, 3, 1, 2)
        if self.training:
            kept = (torch.rand(len(x), 1, 1, 1) >= self.dropped).float()
            seen = seen * kept / (1 - self.dropped)
        return x + seen


@healthy(0.4)
def silhouettes_in_one_cycle_with_thinned_blocks(folder):
    """A small ConvNeXt: AdamW in one cycle, decay of matrices, softened labels, a tenth of the branches left out."""
    seeded(5302)
    net = nn.Sequential(
        nn.Conv2d(1, 24, 2, 2), Next(24, 0.0), Next(24, 0.05), nn.GroupNorm(1, 24), nn.Conv2d(24, 48, 2, 2),
        Next(48, 0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(48), nn.Linear(48, KINDS),
    )  # fmt: skip

    def loss_of(step):
        _, y, mask = painted(32)
        x = mask[:, None].float() * 2 - 0.6
        said = net(x + 0.3 * torch.randn_like(x))
        return F.cross_entropy(said, y, label_smoothing=0.05), {"accuracy": right(said, y)}

    make, steps = optim.AdamW(without_decay(net, 0.05), 4e-3), 250
    plan = optim.lr_scheduler.OneCycleLR(make, 4e-3, total_steps=steps)
    return fit(folder, net, make, loss_of, steps, schedule=plan)


class Compact(nn.Module):
    """Tokens from a convolution, and a weighed mean of them (Hassani et al. 2021)."""

    def __init__(self, wide=48):
        super().__init__()
        self.cut = nn.Sequential(nn.Conv2d(1, wide, 3, 2, 1, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.place = nn.Parameter(0.02 * torch.randn(1, 16, wide))
        layer = nn.TransformerEncoderLayer(wide, 4, 2 * wide, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(wide), enable_nested_tensor=False)
        self.weigh, self.head = nn.Linear(wide, 1), nn.Linear(wide, KINDS)

    def forward(self, x):
        x = self.body(self.cut(x).flatten(2).mT + self.place)
        return self.head((self.weigh(x).softmax(1) * x).sum(1))


@healthy(0.4)
def silhouettes_by_a_weighed_mean_of_tokens(folder):
    """A compact transformer: AdamW, a rise and a cosine, two micro-batches, a clip at one."""
    seeded(5303)
    net = Compact()

    def loss_of(step):
        _, y, mask = painted(24)
        x = mask[:, None].float() * 2 - 0.6
        said = net(x + 0.3 * torch.randn_like(x))
        return F.cross_entropy(said, y) / 2, {"accuracy": right(said, y)}

    make, steps = optim.AdamW(net.parameters(), 2e-3, weight_decay=0.03), 180
    rise = optim.lr_scheduler.LinearLR(make, 0.05, total_iters=30)
    fall = optim.lr_scheduler.CosineAnnealingLR(make, steps - 30, 1e-5)
    plan = optim.lr_scheduler.SequentialLR(make, [rise, fall], [30])
    return fit(folder, net, make, loss_of, steps, accumulate=2, schedule=plan, before_step=clipped(net, 1.0))


class Plain(nn.Module):
    """Three stages of convolution and norm; what each sees is handed out."""

    def __init__(self, wide):
        super().__init__()
        sizes = [3, wide, 2 * wide, 2 * wide]
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(size, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
            for size, out, stride in zip(sizes[:-1], sizes[1:], (1, 2, 2), strict=True)
        )
        self.head = nn.Linear(2 * wide, KINDS)

    def forward(self, x):
        seen = []
        for stage in self.stages:
            x = stage(x)
            seen.append(x)
        return self.head(x.mean((2, 3))), seen


@healthy(0.4)
def pupil_that_looks_where_the_teacher_looks(folder):
    """Attention transfer (Zagoruyko and Komodakis 2017) beside the entropy; SGD with two milestones."""
    seeded(5304)
    teacher, net = Plain(24), Plain(10)

    def taught(step):
        x, y, _ = painted(64)
        return F.cross_entropy(teacher(x)[0], y)

    beforehand(teacher, optim.Adam(teacher.parameters(), 3e-3), taught, 120)
    teacher.eval().requires_grad_(False)

    def map_of(seen):
        return F.normalize(seen.square().mean(1).flatten(1), dim=1)

    def loss_of(step):
        x, y, _ = painted(48)
        with torch.no_grad():
            shown = teacher(x)[1]
        said, seen = net(x)
        apart = sum((map_of(a) - map_of(b)).square().mean() for a, b in zip(seen, shown, strict=True))
        entropy = F.cross_entropy(said, y)
        return entropy + 50 * apart, {"entropy": entropy, "attention": apart, "accuracy": right(said, y)}

    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    plan = optim.lr_scheduler.MultiStepLR(make, [130, 180], 0.1)
    return fit(folder, net, make, loss_of, 210, schedule=plan)


# ------------------------------------------------------------------------------------------------- cutting and drawing


def twice(size, out, stride=1):
    return nn.Sequential(
        nn.Conv2d(size, out, 3, stride, 1), nn.InstanceNorm2d(out, affine=True), nn.LeakyReLU(0.01),
        nn.Conv2d(out, out, 3, padding=1), nn.InstanceNorm2d(out, affine=True), nn.LeakyReLU(0.01),
    )  # fmt: skip


class Segmenter(nn.Module):
    """Down two times, up two times; a second answer at half the size."""

    def __init__(self, wide=8):
        super().__init__()
        self.first, self.down1, self.down2 = twice(3, wide), twice(wide, 2 * wide, 2), twice(2 * wide, 3 * wide, 2)
        self.lift1, self.up1 = nn.ConvTranspose2d(3 * wide, 2 * wide, 2, 2), twice(4 * wide, 2 * wide)
        self.lift2, self.up2 = nn.ConvTranspose2d(2 * wide, wide, 2, 2), twice(2 * wide, wide)
        self.coarse, self.fine = nn.Conv2d(2 * wide, KINDS + 1, 1), nn.Conv2d(wide, KINDS + 1, 1)

    def forward(self, x):
        a = self.first(x)
        b = self.down1(a)
        up = self.up1(torch.cat([self.lift1(self.down2(b)), b], 1))
        return self.fine(self.up2(torch.cat([self.lift2(up), a], 1))), self.coarse(up)


def entropy_and_overlap(said, target):
    share = said.softmax(1)
    wanted = F.one_hot(target, KINDS + 1).permute(0, 3, 1, 2).float()
    both, each = (share * wanted).sum((0, 2, 3)), (share + wanted).sum((0, 2, 3))
    dice = (2 * both[1:] / (each[1:] + 1e-5)).mean()
    return F.cross_entropy(said, target) + 1 - dice, dice


@healthy(0.3)
def six_regions_by_the_recipe_of_nnunet(folder):
    """Entropy and overlap at two sizes, SGD with a momentum of 0.99, a polynomial fall, a clip at twelve."""
    seeded(5305)
    net = Segmenter()

    def loss_of(step):
        x, y, mask = painted(10)
        target = torch.where(mask, y[:, None, None] + 1, 0)
        whole, half = net(x)
        loss, dice = entropy_and_overlap(whole, target)
        return (loss + 0.5 * entropy_and_overlap(half, target[:, ::2, ::2])[0]) / 1.5, {"dice": dice}

    make, steps = optim.SGD(net.parameters(), 0.01, momentum=0.99, nesterov=True, weight_decay=3e-5), 240
    plan = optim.lr_scheduler.PolynomialLR(make, steps, 0.9)
    return fit(folder, net, make, loss_of, steps, schedule=plan, before_step=clipped(net, 12))
