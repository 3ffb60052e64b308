"""Found crates, frames of rain, letters, grades; herbs by sparse tables, grains by a flow, sirens by a long memory."""

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, held_out, rounds


def layers(inputs, outputs, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU())


@healthy(gain=0.6)
def crates_found_on_a_quay(folder):
    """A map of where the middles are, and the two sides of a crate at its middle."""
    seeded(9812)
    place = torch.arange(24.0)

    def photograph(rows, crates=2):
        middle, side = torch.randint(2, 10, (rows, crates, 2)), 3 + 6 * torch.rand(rows, crates, 2)
        near = ((place - 2 * middle[..., None] - 0.5).abs() < side[..., None] / 2).float()
        crate = near[:, :, 0, :, None] * near[:, :, 1, None, :]
        shade = 0.6 + 0.6 * torch.rand(rows, crates, 1, 1)
        coarse = torch.arange(12.0)
        apart = (coarse - middle[..., None]).square()
        spot = (-(apart[:, :, 0, :, None] + apart[:, :, 1, None, :]) / 1.5).exp().amax(1)
        return (crate * shade).amax(1, keepdim=True) + 0.15 * torch.randn(rows, 1, 24, 24), spot, middle, side

    net = nn.ModuleDict({
        "body": nn.Sequential(layers(1, 12), layers(12, 24, 2), layers(24, 24), layers(24, 24)),
        "spots": nn.Conv2d(24, 1, 1), "sides": nn.Conv2d(24, 2, 1),
    })  # fmt: skip
    nn.init.constant_(net["spots"].bias, -2.2)

    def losses(x, spot, middle, side):
        seen = net["body"](x)
        chance = net["spots"](seen)[:, 0].sigmoid().clamp(1e-4, 1 - 1e-4)
        peak = spot > 0.999
        hit = -(1 - chance).square() * chance.log() * peak
        miss = -chance.square() * (1 - chance).log() * (1 - spot) ** 4 * ~peak
        each = torch.arange(len(x))[:, None]
        found = net["sides"](seen)[each, :, middle[..., 0], middle[..., 1]]
        return (hit + miss).sum() / peak.sum(), F.l1_loss(found, side / 4)

    def loss_of(step):
        spots, sides = losses(*photograph(24))
        return spots + 0.5 * sides, {"spot_loss": float(spots.detach()), "side_loss": float(sides.detach())}

    kept = photograph(200)

    def score():
        spots, sides = losses(*kept)
        return spots + 0.5 * sides

    opt = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=301, pct_start=0.15, cycle_momentum=False)
    return fit(folder, net, opt, loss_of, 300, schedule=schedule, score=held_out(net, score))


class Clouds(nn.Module):
    """A recurrent net whose products are convolutions."""

    def __init__(self, width=12):
        super().__init__()
        self.gates, self.head = nn.Conv2d(1 + width, 4 * width, 3, padding=1), nn.Conv2d(width, 1, 1)
        self.width = width
        with torch.no_grad():
            self.gates.bias[width : 2 * width] = 1.0

    def forward(self, frames):
        hidden = cell = frames.new_zeros(len(frames), self.width, *frames.shape[-2:])
        told = []
        for now in frames.unbind(1):
            let, keep, show, new = self.gates(torch.cat([now[:, None], hidden], 1)).chunk(4, 1)
            cell = keep.sigmoid() * cell + let.sigmoid() * new.tanh()
            hidden = show.sigmoid() * cell.tanh()
            told.append(now + self.head(hidden)[:, 0])
        return torch.stack(told, 1)


@healthy(gain=0.6)
def rain_radar_one_frame_on(folder):
    seeded(9813)
    place = torch.arange(12.0)

    def radar(rows, frames=6):
        begun, drift = 12 * torch.rand(rows, 2, 2, 1), 1.6 * torch.rand(rows, 1, 2, 1) - 0.8
        at = (begun + drift * torch.arange(frames))[..., None]
        apart = ((place - at + 6) % 12 - 6).square()
        drops = (-(apart[:, :, 0, :, :, None] + apart[:, :, 1, :, None, :]) / 4).exp()
        return 2 * drops.sum(1)

    net, kept = Clouds(), radar(100)

    def loss(film):
        return F.mse_loss(net(film[:, :-1])[:, 1:], film[:, 2:])

    opt = torch.optim.Adam(net.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 200, eta_min=1e-4)
    return fit(folder, net, opt, lambda step: loss(radar(16)), 200, schedule=schedule, before_step=clipped(net, 1.0),
               score=held_out(net, lambda: loss(kept)))  # fmt: skip


@healthy(gain=0.6)
def high_numerals_after_low_ones(folder):
    """The body was trained on 0 to 4; a new head for 5 to 9, and lower rates the nearer to the picture."""
    seeded(9814)
    images, names = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    images = images.float().reshape(-1, 1, 8, 8) / 8 - 1
    low, high = (torch.nonzero(part)[:, 0] for part in (names < 5, names >= 5))
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 48), nn.ReLU(),
        nn.Linear(48, 5),
    )  # fmt: skip
    before, draw_low = torch.optim.Adam(net.parameters(), 2e-3), rounds(48, images[low], names[low])
    for _ in range(120):
        x, y = draw_low()
        before.zero_grad()
        F.cross_entropy(net(x), y).backward()
        before.step()
    net[-1] = nn.Linear(48, 5)
    high = high[torch.randperm(len(high))]
    draw, new = rounds(48, images[high[:600]], names[high[:600]] - 5), high[600:]
    groups = [{"params": net[part].parameters(), "lr": rate} for part, rate in
              ((0, 3e-4), (1, 3e-4), (4, 6e-4), (5, 6e-4), (8, 1e-3), (10, 3e-3))]  # fmt: skip
    opt = torch.optim.AdamW(groups, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 200)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": float((out.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(images[new]), names[new] - 5))
    return fit(folder, net, opt, loss_of, 200, schedule=schedule, score=score)


@healthy(gain=0.4)
def grades_of_apprentices(folder):
    """One number, and five thresholds that it may pass."""
    seeded(9815)
    way = torch.randn(12, 4) / 12**0.5
    x = torch.randn(3000, 12)
    skill = (2 * x @ way).tanh().sum(1) + 0.5 * x[:, 0] * x[:, 1] + 0.2 * torch.randn(3000)
    passed = (skill[:, None] > skill.quantile(torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]))).float()
    net = nn.ModuleDict({"body": dense(12, 64, 64, 1, act=nn.ELU)})
    net.thresholds = nn.Parameter(torch.linspace(2, -2, 5))
    draw = rounds(96, x[:2500], passed[:2500])

    def loss(x, passed):
        return F.binary_cross_entropy_with_logits(net["body"](x) + net.thresholds, passed)

    opt = torch.optim.NAdam(net.parameters(), 2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.996)
    return fit(folder, net, opt, lambda step: loss(*draw()), 600, schedule=schedule,
               score=held_out(net, lambda: loss(x[2500:], passed[2500:])))  # fmt: skip


@healthy(gain=0.3)
def herbs_and_the_ailments_they_ease(folder):
    """Two sparse tables under SparseAdam; a true pair is to stand above one drawn by chance."""
    seeded(9828)
    herb_taste, ail_taste = torch.randn(150, 3), torch.randn(120, 3)
    eases = torch.nonzero(herb_taste @ ail_taste.T > 1.2)
    eases = eases[torch.randperm(len(eases))]
    kept, draw = eases[-400:], rounds(256, eases[:-400])
    net = nn.ModuleDict({"herbs": nn.Embedding(150, 5, sparse=True), "ailments": nn.Embedding(120, 5, sparse=True)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.3)

    def loss(pairs):
        herb = net["herbs"](pairs[:, 0])
        true, other = net["ailments"](pairs[:, 1]), net["ailments"](torch.randint(120, (len(pairs),)))
        return -F.logsigmoid((herb * (true - other)).sum(1)).mean()

    opt = torch.optim.SparseAdam(list(net.parameters()), 1e-2)
    return fit(folder, net, opt, lambda step: loss(*draw()), 400, score=score_of(lambda step: loss(kept)))


class Coupled(nn.Module):
    """Moves half of a point by what the other half says."""

    def __init__(self, side):
        super().__init__()
        self.side, self.say = side, dense(1, 40, 40, 2, act=nn.SiLU)
        nn.init.zeros_(self.say[-1].weight)
        nn.init.zeros_(self.say[-1].bias)

    def forward(self, x):
        still, moved = x[:, self.side, None], x[:, 1 - self.side, None]
        stretch, shift = self.say(still).chunk(2, 1)
        stretch = 2 * (stretch / 2).tanh()
        moved = moved * stretch.exp() + shift
        halves = [still, moved] if self.side == 0 else [moved, still]
        return torch.cat(halves, 1), stretch[:, 0]


@healthy(gain=0.25)
def grains_on_a_humming_plate(folder):
    """A flow of eight couplings, fitted by its likelihood."""
    seeded(9829)
    net = nn.ModuleList(Coupled(i % 2) for i in range(8))

    def grains(rows=128):
        x = 2 * torch.rand(rows, 1) - 1
        return torch.cat([1.7 * x, (4 * x).sin() + 0.08 * torch.randn(rows, 1)], 1)

    def loss(x):
        stretched = 0.0
        for part in net:
            x, stretch = part(x)
            stretched = stretched + stretch
        return (x.square().sum(1) / 2 + math.log(2 * math.pi) - stretched).mean()

    kept = grains(1000)
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 500, eta_min=1e-5)
    return fit(folder, net, opt, lambda step: loss(grains()), 500, schedule=schedule, before_step=clipped(net, 5.0),
               score=held_out(net, lambda: loss(kept)))  # fmt: skip


class Remembering(nn.Module):
    """Diagonal state spaces, seen as one long convolution."""

    def __init__(self, width=16, states=8):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.fade = nn.Parameter(torch.full((width, states), math.log(0.5)))
        self.turn = nn.Parameter(math.pi * torch.arange(states).float().repeat(width, 1))
        self.pace = nn.Parameter(math.log(0.01) + math.log(10) * torch.rand(width, 1))
        self.read = nn.Parameter(torch.randn(2, width, states) / states**0.5)
        self.straight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        length, pace = x.shape[1], self.pace.exp()
        power = torch.complex(-self.fade.exp() * pace, self.turn * pace)[..., None] * torch.arange(length)
        kernel = (torch.complex(*self.read)[..., None] * pace[..., None] * power.exp()).sum(1).real * 2
        inner = self.norm(x).transpose(1, 2)
        long = torch.fft.irfft(torch.fft.rfft(inner, 2 * length) * torch.fft.rfft(kernel, 2 * length))[..., :length]
        return x + F.glu(self.mix(F.gelu((long + self.straight[:, None] * inner).transpose(1, 2))), 2)


@healthy(gain=0.5)
def sirens_that_come_or_go_or_pass(folder):
    seeded(9830)
    time = torch.linspace(0, 1, 120)

    def hear(rows):
        y, start = torch.randint(4, (rows,)), 15 + 2 * torch.rand(rows, 1)
        slope = torch.tensor([0.0, 14.0, -14.0, 0.0])[y, None] * time
        jump = torch.where((y == 3)[:, None] & (time > 0.5), -8.0, 0.0)
        phase = 6.2832 * (torch.rand(rows, 1) + ((start + slope + jump) / 120).cumsum(1))
        return (phase.sin() + 0.3 * torch.randn(rows, 120))[..., None], y

    net = nn.Sequential(nn.Linear(1, 16), Remembering(), Remembering(), nn.LayerNorm(16))
    head = nn.Linear(16, 4)
    whole = nn.ModuleDict({"body": net, "head": head})

    def loss_of(step):
        x, y = hear(32)
        out = head(net(x).mean(1))
        return F.cross_entropy(out, y), {"accuracy": float((out.argmax(1) == y).float().mean())}

    kept = hear(300)
    own = [p for name, p in whole.named_parameters() if name.rpartition(".")[2] in ("fade", "turn", "pace")]
    rest = [p for name, p in whole.named_parameters() if name.rpartition(".")[2] not in ("fade", "turn", "pace")]
    opt = torch.optim.AdamW([{"params": own, "lr": 2e-3, "weight_decay": 0.0}, {"params": rest, "lr": 5e-3}])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 300)
    score = held_out(whole, lambda: F.cross_entropy(head(net(kept[0]).mean(1)), kept[1]))
    return fit(folder, whole, opt, loss_of, 300, schedule=schedule, score=score)
