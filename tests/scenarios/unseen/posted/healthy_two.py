"""Healthy trainings with averages, cycles, layers that thaw, sparse tables, opponents and energies."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, tend

import gradwatch


def sliced_distance(a, b, ways):
    """How far two clouds of as many points are apart, seen along each of the `ways` (sliced Wasserstein)."""
    return float(((a @ ways).sort(0).values - (b @ ways).sort(0).values).abs().mean())


def cross_entropies(net, draw):
    """`loss_of(step)` of a classifier, with its accuracy."""

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    return loss_of


@healthy()
def loans_that_default(folder):
    seeded(2566)
    burden = torch.randn(12)

    def applicants(n):
        x = torch.randn(n, 12)
        risk = 0.9 * x @ burden + 1.5 * x[:, 0] * x[:, 1] - 1.2 * (x[:, 2] > 1).float() - 5.5
        return x, (torch.rand(n) < risk.sigmoid()).float()

    net = dense(12, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.99))

    def loss_of(step):
        x, defaults = applicants(128)
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], defaults)

    x, defaults = applicants(4096)
    score = held_out(average, lambda: F.binary_cross_entropy_with_logits(average(x)[:, 0], defaults))
    return fit(
        folder, net, optimizer, loss_of, 500, score=score, after_step=lambda step: average.update_parameters(net)
    )


def starlight(n, channels=96):
    """Spectra of six classes: a slope by the temperature, and absorption lines whose depths go with the class."""
    y = torch.randint(6, (n,))
    place = torch.linspace(0, 1, channels)
    class_of = y + 0.25 * torch.randn(n)
    slope = (2.5 - class_of)[:, None] * (0.5 - place) * 0.6
    centres = torch.tensor([0.15, 0.3, 0.48, 0.62, 0.85])
    depths = torch.exp(-((class_of[:, None] - torch.tensor([0.5, 1.5, 2.5, 4.0, 5.0])) ** 2) / 1.5)
    lines = torch.exp(-((place - centres[:, None] - 0.01 * torch.randn(n, 1, 1)) ** 2) / 0.0004)
    return (slope - (depths[:, :, None] * lines).sum(1) + 0.15 * torch.randn(n, channels))[:, None], y


@healthy()
def spectra_of_nebulae(folder):
    seeded(2567)
    net = nn.Sequential(
        *(nn.Conv1d(1, 16, 7, padding=3), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool1d(4)),
        *(nn.Conv1d(16, 32, 5, padding=2), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool1d(4)),
        *(nn.Flatten(), nn.Linear(192, 6)),
    )
    average, cycle = AveragedModel(net), 40
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * (1 - 0.95 * (step % cycle) / cycle)
    )

    def at_the_end_of_a_cycle(step):
        if step >= 120 and step % cycle == cycle - 1:
            average.update_parameters(net)

    x, y = starlight(512)
    score = held_out(average, lambda: F.cross_entropy(average(x), y))
    return fit(
        folder,
        net,
        optimizer,
        cross_entropies(net, lambda: starlight(64)),
        480,
        score=score,
        schedule=schedule,
        after_step=at_the_end_of_a_cycle,
    )


def woven(n, size=16):
    """Plain, twill, satin and basket weaves at a shift of their own, uneven threads, and how dense each cloth is."""
    y, scale = torch.randint(4, (n,)), 0.5 + torch.rand(n)
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    rows = rows + torch.randint(20, (n, 1, 1))
    columns = columns + torch.randint(20, (n, 1, 1))
    plain, twill = (rows + columns) % 2 == 0, (rows + columns) % 4 < 2
    satin, basket = (columns - 2 * rows) % 5 == 0, (rows // 2 + columns // 2) % 2 == 0
    over = torch.stack([plain, twill, satin, basket], 1)[torch.arange(n), y].float()
    threads = 1 + 0.3 * torch.randn(n, size, 1)
    cloth = scale[:, None, None] * (over - 0.5) * threads + 0.4 * torch.randn(n, size, size)
    return cloth[:, None], y, scale


def elsewhere_trained():
    """Three blocks of a body that has learnt on other pictures how wide and how steep gratings are."""
    blocks = nn.ModuleList(
        [
            nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(24, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        ]
    )
    head = nn.Linear(32, 3)
    optimizer = torch.optim.Adam([*blocks.parameters(), *head.parameters()], lr=3e-3)
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    for _ in range(200):
        wide, steep = 0.6 + 1.6 * torch.rand(64, 1, 1), 3.1416 * torch.rand(64, 1, 1)
        phase = wide * (steep.cos() * rows + steep.sin() * columns) + 6.2832 * torch.rand(64, 1, 1)
        picture = (phase.sin() + 0.3 * torch.randn(64, 16, 16))[:, None]
        wanted = torch.cat([wide - 1.4, (2 * steep).cos(), (2 * steep).sin()], 1)[:, :, 0]
        optimizer.zero_grad()
        F.mse_loss(head(nn.Sequential(*blocks)(picture)), wanted).backward()
        optimizer.step()
    optimizer.zero_grad()
    return blocks


@healthy()
def weaves_of_cloth(folder):
    seeded(2568)
    blocks = elsewhere_trained().requires_grad_(False)
    net = nn.Sequential(*blocks, nn.Linear(32, 4))
    rates = [1e-4, 3e-4, 1e-3, 3e-3]
    optimizer = torch.optim.Adam([{"params": part.parameters(), "lr": r} for part, r in zip(net, rates, strict=True)])

    def thaw(step):
        if step in {99, 199, 299}:
            net[2 - step // 100].requires_grad_(True)

    x, y, _ = woven(512)
    score = held_out(net, lambda: F.cross_entropy(net(x), y))
    loss_of = cross_entropies(net, lambda: woven(64)[:2])
    return fit(folder, net, optimizer, loss_of, 450, score=score, after_step=thaw)


class Rind(nn.Module):
    """How ripe a cheese is, by the kinds of microbes on it (a sparse table) and by how it was kept."""

    def __init__(self, kinds):
        super().__init__()
        self.table = nn.EmbeddingBag(kinds, 12, mode="mean", sparse=True)
        self.body = dense(15, 48, 1, act=nn.SiLU)

    def forward(self, microbes, kept):
        return self.body(torch.cat([self.table(microbes), kept], 1))[:, 0]


@healthy()
def ripeness_of_cheese(folder):
    seeded(2569)
    kinds, effect = 400, torch.randn(400)
    common = (1 / (torch.arange(kinds) + 20.0)).expand(128, kinds)

    def samples():
        microbes, kept = torch.multinomial(common, 16), torch.randn(128, 3)
        ripe = 3 * effect[microbes].mean(1) + (kept[:, 0] * kept[:, 1]).tanh() + 0.1 * torch.randn(128)
        return microbes, kept, ripe

    net = Rind(kinds)
    rare = torch.optim.SparseAdam(net.table.parameters(), lr=5e-3)
    plain = torch.optim.Adam(net.body.parameters(), lr=2e-3)

    def one(step):
        microbes, kept, ripe = samples()
        rare.zero_grad()
        plain.zero_grad()
        loss = F.mse_loss(net(microbes, kept), ripe)
        loss.backward()
        rare.step()
        plain.step()
        return {"loss": loss}

    microbes, kept, ripe = samples()
    return tend(folder, net, [rare, plain], one, 600, held_out(net, lambda: F.mse_loss(net(microbes, kept), ripe)))


def cloud_fields(n, size=8):
    """Tiles of a cloud mask: smooth noise of two scales above a threshold that differs by the day, from -1 to 1."""
    coarse = F.interpolate(torch.randn(n, 1, 3, 3), size=size, mode="bicubic", align_corners=True)
    fine = F.interpolate(torch.randn(n, 1, 5, 5), size=size, mode="bicubic", align_corners=True)
    return (2 * (coarse + 0.4 * fine - 0.5 + 0.3 * torch.randn(n, 1, 1, 1))).tanh().flatten(1)


@healthy()
def clouds_from_a_satellite(folder):
    seeded(2570)
    make = nn.Sequential(dense(16, 96, 96, 64), nn.Tanh())
    layers = [spectral_norm(nn.Linear(*shape)) for shape in ((64, 96), (96, 96), (96, 1))]
    judge = nn.Sequential(layers[0], nn.LeakyReLU(0.2), layers[1], nn.LeakyReLU(0.2), layers[2])
    of_make = torch.optim.Adam(make.parameters(), lr=5e-4, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.0, 0.9))
    ways, seen = F.normalize(torch.randn(64, 64), dim=0), cloud_fields(1024)

    @torch.no_grad()
    def score():
        return sliced_distance(make(torch.randn(1024, 16)), seen, ways)

    first, options = score(), {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    of_the_judge = gradwatch.watch(judge, of_judge, name="judge", **options)
    of_the_maker = gradwatch.watch(make, of_make, name="maker", run=of_the_judge, **options)
    with of_the_judge, of_the_maker:
        for _ in range(600):
            of_judge.zero_grad()
            real, made = judge(cloud_fields(64)), judge(make(torch.randn(64, 16)).detach())
            loss = (1 - real).relu().mean() + (1 + made).relu().mean()
            loss.backward()
            of_judge.step()
            of_the_judge.log(loss=loss, real=float(real.detach().mean()), made=float(made.detach().mean()))
            of_make.zero_grad()
            loss = -judge(make(torch.randn(64, 16))).mean()
            loss.backward()
            of_make.step()
            of_the_maker.log(loss=loss)
    return Outcome(gradwatch.open_history(of_the_judge.dir.parent), first, score())


def lattices(n):
    """Scaled cell lengths and angle of crystals of five systems."""
    systems = torch.tensor([[1.0, 1, 0], [-1, 1, 0.8], [1, -1, -0.8], [-1, -1, 1], [0.0, 0, -1]])
    return systems[torch.randint(5, (n,))] + 0.15 * torch.randn(n, 3)


def settle(energy, x, steps, step_size=0.01):
    """Langevin dynamics down the energy."""
    for _ in range(steps):
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(energy(x).sum(), x)
        x = x - step_size * slope.clamp(-10, 10) + (2 * step_size) ** 0.5 * torch.randn_like(x)
    return x.detach().clamp(-3, 3)


@healthy()
def energies_of_crystals(folder):
    seeded(2572)
    energy = dense(3, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(energy.parameters(), lr=2e-3, betas=(0.5, 0.999))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    store = 6 * torch.rand(1024, 3) - 3
    ways, seen = F.normalize(torch.randn(3, 48), dim=0), lattices(1024)

    def loss_of(step):
        which = torch.randperm(1024)[:128]
        fresh = torch.rand(128, 1) < 0.05
        begin = torch.where(fresh, 6 * torch.rand(128, 3) - 3, store[which])
        store[which] = dreamt = settle(energy, begin, 15)
        real, made = energy(lattices(128)), energy(dreamt)
        level = real.square().mean() + made.square().mean()
        return real.mean() - made.mean() + 0.01 * level, {"real": float(real.mean()), "made": float(made.mean())}

    def score():
        return sliced_distance(settle(energy, 6 * torch.rand(1024, 3) - 3, 200), seen, ways)

    return fit(
        folder,
        energy,
        optimizer,
        loss_of,
        400,
        score=score,
        schedule=schedule,
        before_step=clipped(energy, 1.0),
    )
