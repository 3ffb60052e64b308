"""Pictures: outlined, searched, cleaned, read in patches, compared."""

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import held_out, rounds


def pair(a, b):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=1, bias=False),
        nn.BatchNorm2d(b),
        nn.ReLU(),
        nn.Conv2d(b, b, 3, padding=1, bias=False),
        nn.BatchNorm2d(b),
        nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.deep = pair(1, 8), pair(8, 16), pair(16, 24)
        self.up2, self.up1 = nn.ConvTranspose2d(24, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.join2, self.join1 = pair(32, 16), pair(16, 8)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.deep(F.max_pool2d(b, 2))
        b = self.join2(torch.cat([b, self.up2(c)], 1))
        return self.out(self.join1(torch.cat([a, self.up1(b)], 1)))


@healthy()
def ponds_outlined_from_the_air(folder):
    seeded(3627)
    rows, size = 500, 20
    grid = torch.linspace(-1, 1, size)
    v, u = torch.meshgrid(grid, grid, indexing="ij")
    cy, cx = (1.2 * torch.rand(2, rows, 1, 1) - 0.6).unbind(0)
    ry, rx = (0.2 + 0.4 * torch.rand(2, rows, 1, 1)).unbind(0)
    mask = (((v - cy) / ry).square() + ((u - cx) / rx).square() < 1).float()[:, None]
    shade = F.interpolate(torch.randn(rows, 1, 4, 4), size=(size, size), mode="bilinear")
    x = 0.4 * shade - 0.9 * mask + 0.5 * torch.randn(rows, 1, size, size)
    draw = rounds(16, x[:420], mask[:420])
    net = UNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def dice(out, y):
        p = out.sigmoid().flatten(1)
        y = y.flatten(1)
        return 1 - ((2 * (p * y).sum(1) + 1) / (p.sum(1) + y.sum(1) + 1)).mean()

    def loss_of(step):
        a, b = draw()
        out = net(a)
        bce, overlap = F.binary_cross_entropy_with_logits(out, b), dice(out, b)
        return bce + overlap, {"bce": bce, "dice": overlap}

    score = held_out(net, lambda: dice(net(x[420:]), mask[420:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Finder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3, stride=2, padding=1),
            nn.GroupNorm(4, 24),
            nn.ReLU(),
            nn.Conv2d(24, 24, 3, padding=1),
            nn.ReLU(),
        )
        self.heat, self.size = nn.Conv2d(24, 1, 1), nn.Conv2d(24, 2, 1)
        nn.init.constant_(self.heat.bias, -2.19)

    def forward(self, x):
        h = self.body(x)
        return self.heat(h)[:, 0], self.size(h)


@healthy()
def parcels_on_a_conveyor_belt(folder):
    seeded(3628)
    rows, side = 800, 24
    x = 0.3 * torch.randn(rows, 1, side, side)
    heat, boxes, at_box = torch.zeros(rows, 12, 12), torch.zeros(rows, 2, 12, 12), torch.zeros(rows, 12, 12)
    grid = torch.arange(12).float()
    for row in range(rows):
        for half in range(2):
            h, w = torch.randint(2, 6, (2,)).tolist()
            cy = int(torch.randint(6, 18, (1,)))
            cx = int(torch.randint(5, 8, (1,))) + 11 * half
            x[row, 0, cy - h : cy + h, cx - w : cx + w] += 1
            near = torch.exp(-((grid[:, None] - cy // 2).square() + (grid - cx // 2).square()) / 1.5)
            heat[row] = torch.maximum(heat[row], near)
            boxes[row, :, cy // 2, cx // 2] = torch.tensor([h, w]) / 3
            at_box[row, cy // 2, cx // 2] = 1
    draw = rounds(20, x[:660], heat[:660], boxes[:660], at_box[:660])
    net = Finder()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [180, 230], 0.1)

    def terms(a, near, box, there):
        out, size = net(a)
        p, count = out.sigmoid(), there.sum()
        hit = -(1 - p).square() * F.logsigmoid(out) * there
        miss = -(1 - near).pow(4) * p.square() * F.logsigmoid(-out) * (1 - there)
        return (hit + miss).sum() / count, ((size - box).abs() * there[:, None]).sum() / count

    def loss_of(step):
        heat_loss, size_loss = terms(*draw())
        return heat_loss + 0.5 * size_loss, {"heat": heat_loss, "size": size_loss}

    score = held_out(net, lambda: sum(terms(x[660:], heat[660:], boxes[660:], at_box[660:])))
    return fit(folder, net, optimizer, loss_of, 260, score=score, schedule=schedule)


@healthy()
def digits_cleaned_of_speckles(folder):
    seeded(3629)
    x, _ = digits()
    x = x[torch.randperm(len(x))].flatten(1)

    def speckled(clean):
        return torch.where(torch.rand_like(clean) < 0.25, torch.rand_like(clean), clean)

    draw = rounds(128, x[:1500])
    net = nn.Sequential(
        nn.Linear(64, 128), nn.ELU(), nn.Linear(128, 24), nn.ELU(), nn.Linear(24, 128), nn.ELU(), nn.Linear(128, 64)
    )
    optimizer = torch.optim.NAdam(net.parameters(), lr=2e-3)
    dirty = speckled(x[1500:])

    def loss_of(step):
        (clean,) = draw()
        return F.mse_loss(net(speckled(clean)), clean)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(dirty), x[1500:])))


class Patches(nn.Module):
    def __init__(self, width=32, depth=2):
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, stride=2)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.empty(1, 17, width))
        nn.init.trunc_normal_(self.place, std=0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.first.expand(len(x), -1, -1), h], 1) + self.place
        return self.head(self.encoder(h)[:, 0])


@healthy()
def digits_read_in_sixteen_patches(folder):
    seeded(3630)
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = ((x[order] - 0.3) / 0.37)[:, None], y[order]
    draw = rounds(64, x[:1500], y[:1500])
    net = Patches()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    steps = 276
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, 25),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 25, eta_min=1e-5),
        ],
        [25],
    )

    def loss_of(step):
        a, b = draw()
        out = net(a)
        return F.cross_entropy(out, b, label_smoothing=0.1), {"accuracy": (out.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: (net(x[1500:]).argmax(1) != y[1500:]).float().mean())
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def gaits_of_pedestrians_told_apart(folder):
    seeded(3631)
    walkers, size = 60, 20
    style = torch.randn(walkers, 5)
    lift = torch.randn(5, size)

    def seen(who):
        return ((style[who] + 0.25 * torch.randn(*who.shape, 5)) @ lift).tanh() + 0.2 * torch.randn(*who.shape, size)

    def triple(low, high, rows=64):
        who = torch.randint(low, high, (rows,))
        other = low + (who - low + torch.randint(1, high - low, (rows,))) % (high - low)
        return seen(who), seen(who), seen(other)

    net = nn.Sequential(nn.Linear(size, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    tests = triple(45, 60, 1000)

    def distances(anchor, same, other):
        h = F.normalize(net(torch.cat([anchor, same, other])), dim=1).chunk(3)
        return (h[0] - h[1]).norm(dim=1), (h[0] - h[2]).norm(dim=1)

    def loss_of(step):
        near, far = distances(*triple(0, 45))
        loss = F.relu(near - far + 0.3).mean()
        return loss, {"correct": (near < far).float().mean()}

    def hinge():
        near, far = distances(*tests)
        return F.relu(near - far + 0.3).mean()

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, hinge))
