"""Ordinary trainings that go well: two adversarial pairs, deep Q-learning, a policy gradient with a baseline."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, seeded
from unseen.tasks import clipped, rounds

import gradwatch


def duel(folder, nets, optimizers, judge_loss, make_loss, steps, score):
    """The judge and the maker in turn, each under its own Watch."""
    (judge, make), (of_judge, of_make) = nets, optimizers
    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    of_d = gradwatch.watch(judge, of_judge, name="D", **options)
    of_g = gradwatch.watch(make, of_make, name="G", run=of_d, **options)
    with of_d, of_g:
        for _ in range(steps):
            for watch, optimizer, loss_of in ((of_d, of_judge, judge_loss), (of_g, of_make, make_loss)):
                optimizer.zero_grad()
                loss = loss_of()
                loss.backward()
                optimizer.step()
                watch.log(loss=loss)
    return Outcome(gradwatch.open_history(of_d.dir.parent), first, score())


def fields_from_above(count):
    """Ploughed fields of 16 x 16 pixels, each with a direction, a distance of its furrows and a brightness."""
    way, furrows = 1.6 * torch.rand(count, 1, 1), 0.9 + 0.5 * torch.rand(count, 1, 1)
    down, along = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    phase = furrows * (down * way.cos() + along * way.sin()) + 6.2832 * torch.rand(count, 1, 1)
    return (0.8 * phase.sin() + 0.05 * torch.randn(count, 16, 16)).clamp(-1, 1)[:, None]


def as_in_dcgan(module):
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)


@healthy()
def satellite_fields_invented(folder):
    seeded(2306)
    make = nn.Sequential(
        nn.Linear(16, 48 * 16), nn.Unflatten(1, (48, 4, 4)), nn.BatchNorm2d(48), nn.ReLU(),
        nn.ConvTranspose2d(48, 24, 4, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
        nn.ConvTranspose2d(24, 1, 4, 2, 1), nn.Tanh(),
    ).apply(as_in_dcgan)  # fmt: skip
    judge = nn.Sequential(
        nn.Conv2d(1, 24, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(24, 48, 4, 2, 1, bias=False), nn.BatchNorm2d(48), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(48 * 16, 1),
    ).apply(as_in_dcgan)  # fmt: skip
    fields = fields_from_above(2500)
    draw, known = rounds(32, fields[:2000]), fields[2000:]
    optimizers = [torch.optim.Adam(net.parameters(), lr=5e-4, betas=(0.5, 0.999)) for net in (judge, make)]

    def power(pictures):
        return torch.fft.rfft2(pictures).abs().square().mean(0).sqrt()

    def score():
        with torch.no_grad():
            return float((power(make(torch.randn(500, 16))) - power(known)).square().mean())

    def judge_loss():
        true, false = judge(draw()[0]), judge(make(torch.randn(32, 16)).detach())
        return F.softplus(-true).mean() + F.softplus(false).mean()

    def make_loss():
        return F.softplus(-judge(make(torch.randn(32, 16)))).mean()

    return duel(folder, (judge, make), optimizers, judge_loss, make_loss, 350, score)


SEGMENTS = torch.tensor([119, 36, 93, 109, 46, 107, 123, 37, 127, 111])  # top, left, right, middle, ... as bits


def meter_digits(count):
    """Seven-segment digits on 9 x 7 pixels, shifted and worn, and what they read."""
    shape = torch.zeros(7, 9, 7)
    for segment, row in ((0, 1), (3, 4), (6, 7)):
        shape[segment, row, 2:5] = 1
    for segment, rows, column in ((1, (2, 4), 1), (2, (2, 4), 5), (4, (5, 7), 1), (5, (5, 7), 5)):
        shape[segment, rows[0] : rows[1], column] = 1
    digit = torch.randint(10, (count,))
    lit = (SEGMENTS[digit][:, None] >> torch.arange(7) & 1).float()
    picture = torch.einsum("ns,shw->nhw", lit * (0.7 + 0.3 * torch.rand(count, 7)), shape)
    return 2 * picture.flatten(1) - 1 + 0.1 * torch.randn(count, 63), digit


class DigitMaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.digit, self.body = nn.Embedding(10, 16), dense(32, 128, 128, 63)

    def forward(self, noise, digit):
        return self.body(torch.cat([noise, self.digit(digit)], 1)).tanh()


class DigitJudge(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            spectral_norm(nn.Linear(63, 128)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(128, 128)), nn.LeakyReLU(0.2)
        )
        self.out, self.digit = spectral_norm(nn.Linear(128, 1)), spectral_norm(nn.Embedding(10, 128))

    def forward(self, picture, digit):
        read = self.body(picture)
        return self.out(read)[:, 0] + (self.digit(digit) * read).sum(1)


@healthy()
def digits_of_a_water_meter(folder):
    seeded(2307)
    judge, make = DigitJudge(), DigitMaker()
    pictures, digits = meter_digits(3000)
    draw = rounds(64, pictures, digits)
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.0, 0.9)) for net in (judge, make)]
    typical = torch.stack([pictures[digits == d].mean(0) for d in range(10)])

    def score():
        with torch.no_grad():
            made = make(torch.randn(640, 16), torch.arange(10).repeat_interleave(64))
        return float((made.view(10, 64, 63).mean(1) - typical).square().mean())

    def judge_loss():
        seen, digit = draw()
        made = make(torch.randn(64, 16), digit).detach()
        return F.relu(1 - judge(seen, digit)).mean() + F.relu(1 + judge(made, digit)).mean()

    def make_loss():
        noise, digit = torch.randn(64, 16), torch.randint(10, (64,))
        return -judge(make(noise, digit), digit).mean()

    return duel(folder, (judge, make), optimizers, judge_loss, make_loss, 600, score)


class Town:
    """Where a taxi drives next: each zone's fares depend on the hour, and the way there costs."""

    zones, hours = 6, 16

    def __init__(self):
        self.fare = torch.rand(self.hours, self.zones) * 2
        place = torch.rand(self.zones, 2)
        self.cost = 1.5 * torch.cdist(place, place)

    def see(self, zone, hour):
        return torch.cat([F.one_hot(zone, self.zones), F.one_hot(hour, self.hours)], -1).float()

    def drive(self, zone, hour, to):
        return self.fare[hour, to] - self.cost[zone, to] + 0.3 * torch.randn(zone.shape)

    def best(self):
        """What the best driver earns a day, from each zone."""
        worth = torch.zeros(self.zones)
        for hour in reversed(range(self.hours)):
            worth = (self.fare[hour] - self.cost + worth).amax(1)
        return worth

    def earned(self, choose):
        zone, total = torch.arange(self.zones), torch.zeros(self.zones)
        for hour in range(self.hours):
            to = choose(self.see(zone, torch.full_like(zone, hour)))
            total += self.fare[hour, to] - self.cost[zone, to]
            zone = to
        return total


class Memory:
    def __init__(self, size, *widths):
        self.size, self.count = size, 0
        self.columns = [torch.zeros(size, *width) for width in widths]

    def keep(self, *rows):
        at = (self.count + torch.arange(len(rows[0]))) % self.size
        for column, new in zip(self.columns, rows, strict=True):
            column[at] = new.float()
        self.count += len(at)

    def draw(self, rows):
        at = torch.randint(min(self.count, self.size), (rows,))
        return [column[at] for column in self.columns]


@healthy()
def where_a_taxi_waits(folder):
    seeded(2308)
    town, taxis, steps = Town(), 8, 900
    width = town.zones + town.hours
    net, target = dense(width, 64, 64, town.zones), dense(width, 64, 64, town.zones)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    memory = Memory(6000, (width,), (), (), (width,), ())
    zone, hour = torch.randint(town.zones, (taxis,)), torch.randint(town.hours, (taxis,))

    def score():
        with torch.no_grad():
            return float((town.best() - town.earned(lambda seen: net(seen).argmax(1))).mean())

    def wander(curious):
        nonlocal zone, hour
        seen = town.see(zone, hour)
        with torch.no_grad():
            to = torch.where(torch.rand(taxis) < curious, torch.randint(town.zones, (taxis,)), net(seen).argmax(1))
        earned, over = town.drive(zone, hour, to), hour == town.hours - 1
        zone, hour = torch.where(over, torch.randint(town.zones, (taxis,)), to), (hour + 1) % town.hours
        memory.keep(seen, to, earned, town.see(to, hour), over)
        return float(earned.mean())

    def loss_of(step):
        earned = wander(max(0.05, 1 - step / 500))
        seen, to, reward, then, over = memory.draw(64)
        with torch.no_grad():
            wanted = reward + 0.95 * (1 - over) * target(then).amax(1)
        worth = net(seen).gather(1, to.long()[:, None])[:, 0]
        return F.smooth_l1_loss(worth, wanted), {"reward": earned}

    def after_step(step):
        if step % 50 == 49:
            target.load_state_dict(net.state_dict())

    for _ in range(40):
        wander(1.0)
    hold = clipped(net, 10.0)
    return fit(folder, net, optimizer, loss_of, steps, score=score, before_step=hold, after_step=after_step)


class Leaves:
    """Vines over ten days: wet ones fall ill, copper heals where it is dry, pruning dries; each treatment costs."""

    treatments, days = 4, 10

    def __init__(self, count):
        self.wet, self.ill, self.warm = torch.rand(3, count)
        self.ill = self.ill * 0.6

    def see(self, day):
        return torch.stack([self.wet, self.ill, self.warm, torch.full_like(self.wet, day / self.days)], 1) * 2 - 1

    def treat(self, chosen):
        copper, sulphur, prune = (chosen == kind for kind in (1, 2, 3))
        heals = 0.5 * copper * (1 - self.wet) + 0.4 * sulphur * self.warm
        self.ill = (self.ill + 0.25 * self.wet * (1 - self.ill) - heals).clamp(0, 1)
        noise = 0.1 * torch.randn(2, len(self.wet))
        self.wet = (self.wet - 0.5 * prune + 0.05 + noise[0]).clamp(0, 1)
        self.warm = (self.warm + noise[1]).clamp(0, 1)
        return -self.ill - 0.1 * (chosen > 0)


@healthy()
def treatments_of_leaf_disease(folder):
    seeded(2309)
    net = nn.ModuleDict({"policy": dense(4, 32, Leaves.treatments), "worth": dense(4, 32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)

    def episode(count):
        leaves, seen, taken, rewards = Leaves(count), [], [], []
        for day in range(Leaves.days):
            seen.append(leaves.see(day))
            with torch.no_grad():
                taken.append(torch.distributions.Categorical(logits=net["policy"](seen[-1])).sample())
            rewards.append(leaves.treat(taken[-1]))
        to_go = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        return torch.stack(seen), torch.stack(taken), to_go

    def loss_of(step):
        seen, taken, to_go = episode(32)
        policy = torch.distributions.Categorical(logits=net["policy"](seen))
        worth = net["worth"](seen)[..., 0]
        advantage = to_go - worth.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        gain, entropy = (policy.log_prob(taken) * advantage).mean(), policy.entropy().mean()
        loss = -gain - 0.01 * entropy + 0.5 * F.mse_loss(worth, to_go)
        return loss, {"return": float(to_go[0].mean()), "entropy": float(entropy)}

    return fit(folder, net, optimizer, loss_of, 400, score=lambda: -float(episode(1024)[2][0].mean()))


class Convolved(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.near, self.far = nn.Linear(inputs, 32), nn.Linear(32, classes)

    def forward(self, x, links):
        return links @ self.far(F.dropout(F.relu(links @ self.near(x)), 0.5, self.training))


@healthy()
def stars_by_spectrum_and_company(folder):
    seeded(2325)
    count, classes = 600, 5
    kind = torch.randint(classes, (count,))
    spectra = torch.randn(classes, 32)[kind] + 2.0 * torch.randn(count, 32)
    linked = torch.bernoulli(torch.where(kind[:, None] == kind, 0.03, 0.003)).triu(1)
    linked = linked + linked.T + torch.eye(count)
    root = linked.sum(1).rsqrt()
    links, known = root[:, None] * linked * root, torch.arange(count) < 200
    net = Convolved(32, classes)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=5e-4)

    def loss_of(step):
        logits = net(spectra, links)[known]
        return F.cross_entropy(logits, kind[known])

    def score():
        net.eval()
        with torch.no_grad():
            loss = F.cross_entropy(net(spectra, links)[~known], kind[~known])
        net.train()
        return float(loss)

    return fit(folder, net, optimizer, loss_of, 200, score=score)
