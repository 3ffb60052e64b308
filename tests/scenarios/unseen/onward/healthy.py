"""Sound trainings with likelihoods below zero, returns, sparse tables, high rates, restarts and long warm-ups."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, tend

# ---------------------------------------------------------------------------------------------- pairs in a perfume


class Accord(nn.Module):
    """How well two ingredients go together, and how sure that is."""

    def __init__(self, ingredients, width=16):
        super().__init__()
        self.notes = nn.Embedding(ingredients, width)
        self.blend = dense(2 * width, 64, 64, 2, act=nn.SiLU)

    def forward(self, left, right):
        a, b = self.notes(left), self.notes(right)
        mean, log_scale = self.blend(torch.cat([a * b, (a - b).abs()], 1)).unbind(1)
        return mean, log_scale.clamp(-6, 3)


@healthy()
def pairs_of_perfume_ingredients(folder):
    seeded(2180)
    families, harshness = torch.randn(60, 3), 0.01 + 0.05 * torch.rand(60)
    net = Accord(60)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 700)

    def loss_of(step):
        left, right = torch.randint(60, (2, 128))
        liking = 0.3 * torch.tanh((families[left] * families[right]).sum(1))
        liking = liking + (harshness[left] + harshness[right]) * torch.randn(128)
        mean, log_scale = net(left, right)
        loss = (log_scale + 0.5 * ((liking - mean) / log_scale.exp()).square()).mean()
        return loss, {"rmse": float((liking - mean).square().mean().sqrt())}

    def likelihood(step):
        return loss_of(step)[0]

    return fit(
        folder, net, optimizer, loss_of, 700,
        score=score_of(likelihood), before_step=clipped(net, 5.0), schedule=schedule,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------- grades of a vintage


@healthy()
def grades_of_a_wine_vintage(folder):
    seeded(2181)
    grader = dense(8, 48, 48, 5, act=nn.Tanh)
    taste = dense(8, 16, 1, act=nn.Tanh)
    cuts = taste(torch.randn(2000, 8)).detach().flatten().quantile(torch.tensor([0.2, 0.4, 0.6, 0.8]))
    optimizer = torch.optim.Adam(grader.parameters(), 2e-3)

    def cellar(bottles):
        wines = torch.randn(bottles, 8)
        with torch.no_grad():
            return wines, torch.bucketize(taste(wines).flatten(), cuts)

    def praise(grade, true):
        return 10.0 - 4.0 * (grade - true).abs()

    def loss_of(step):
        wines, true = cellar(256)
        judged = torch.distributions.Categorical(logits=grader(wines))
        grade = judged.sample()
        reward = praise(grade, true)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        loss = -(advantage * judged.log_prob(grade)).mean() - 0.01 * judged.entropy().mean()
        return loss, {"return": float(reward.mean()), "entropy": float(judged.entropy().mean())}

    def regret():
        wines, true = cellar(1024)
        with torch.no_grad():
            chance = grader(wines).softmax(1)
        return 10.0 - float((chance * praise(torch.arange(5)[None], true[:, None])).sum(1).mean())

    return fit(folder, grader, optimizer, loss_of, 600, score=regret)


# ------------------------------------------------------------------------------------------ tracks in a cloud chamber


@healthy()
def tracks_in_a_cloud_chamber(folder):
    seeded(2182)
    ionisation = nn.Sequential(dense(5, 48, 48, act=nn.SiLU), nn.SiLU(), nn.Linear(48, 1))
    nn.init.zeros_(ionisation[-1].weight)
    nn.init.zeros_(ionisation[-1].bias)
    optimizer = torch.optim.SGD(ionisation.parameters(), 0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    way = torch.randn(5)

    def droplets(tracks=128):
        particle = torch.randn(tracks, 5)
        length = torch.exp(5 * torch.rand(tracks))
        density = torch.exp(1.2 * torch.sin(particle @ way) + 0.8 * particle[:, 0].tanh())
        return particle, length, torch.poisson(length * density)

    def loss_of(step):
        particle, length, count = droplets()
        log_rate = ionisation(particle)[:, 0] + length.log()
        return F.poisson_nll_loss(log_rate, count, log_input=True)

    def deviance():
        particle, length, count = droplets(2048)
        with torch.no_grad():
            rate = ionisation(particle)[:, 0].exp() * length
        return 2 * float((torch.xlogy(count, count / rate) - count + rate).mean())

    return fit(
        folder, ionisation, optimizer, loss_of, 600,
        score=deviance, before_step=clipped(ionisation, 0.5), schedule=schedule,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------ lens surfaces


def spots(images=64, size=16):
    """Images of a point of light through a lens, and where, how wide and how astigmatic the spot is."""
    across = torch.linspace(-1, 1, size)
    place, width = 0.6 * torch.rand(images, 2) - 0.3, 0.15 + 0.4 * torch.rand(images, 2)
    x = torch.exp(-(((across - place[:, :1]) / width[:, :1]) ** 2))
    y = torch.exp(-(((across - place[:, 1:]) / width[:, 1:]) ** 2))
    image = (y[:, :, None] * x[:, None, :])[:, None]
    return image + 0.03 * torch.randn_like(image), torch.cat([place, width], 1)


def spot_reader():
    """A convolutional body that has learnt to describe spots."""
    body = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(384, 64), nn.ReLU(),
    )  # fmt: skip
    first_head = nn.Linear(64, 4)
    optimizer = torch.optim.Adam([*body.parameters(), *first_head.parameters()], 2e-3)
    for _ in range(250):
        image, truth = spots()
        optimizer.zero_grad()
        F.mse_loss(first_head(body(image)), truth).backward()
        optimizer.step()
    return body.requires_grad_(False).eval()


@healthy()
def focal_length_of_a_lens_surface(folder):
    seeded(2183)
    net = nn.ModuleDict({"body": spot_reader(), "head": dense(64, 32, 1)})
    optimizer = torch.optim.Adam(net["head"].parameters(), 2e-3)

    def loss_of(step):
        image, truth = spots()
        focal = 1.0 / (0.5 + truth[:, 2:].mean(1, keepdim=True)) - 1.2
        return F.mse_loss(net["head"](net["body"](image)), 5 * focal)

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(loss_of))


# ---------------------------------------------------------------------------------------------------- seismic waves


class Picker(nn.Module):
    """Names the sample at which a wave arrives, by a trace and by what is known of its station."""

    def __init__(self, stations):
        super().__init__()
        self.station = nn.Embedding(stations, 8, sparse=True)
        self.trace = nn.Conv1d(1, 16, 7, padding=3)
        self.mix = nn.Conv1d(24, 32, 9, padding=4)
        self.pick = nn.Conv1d(32, 1, 5, padding=2)

    def forward(self, trace, station):
        known = self.station(station)[:, :, None].expand(-1, -1, trace.shape[1])
        seen = F.relu(self.trace(trace[:, None]))
        return self.pick(F.relu(self.mix(torch.cat([seen, known], 1))))[:, 0]


@healthy()
def picks_of_seismic_waves(folder):
    seeded(2184)
    delay, often = torch.randint(-2, 3, (400,)), 1.0 / torch.arange(1, 401).float().sqrt()
    net = Picker(400)
    rest = [p for name, p in net.named_parameters() if not name.startswith("station")]
    optimizers = [torch.optim.SparseAdam(list(net.station.parameters()), 2e-2), torch.optim.Adam(rest, 3e-3)]
    ticks = torch.arange(48)

    def quakes(rows=64):
        station = torch.multinomial(often, rows, replacement=True)
        onset = torch.randint(8, 40, (rows,))
        since = (ticks - onset[:, None]).clamp(min=0).float()
        wave = (ticks >= onset[:, None]) * torch.exp(-since / 12) * torch.cos(since)
        return wave + 0.1 * torch.randn(rows, 48), station, onset + delay[station]

    def loss_of(step):
        trace, station, pick = quakes()
        return F.cross_entropy(net(trace, station), pick)

    def one(step):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return {"loss": loss}

    return tend(folder, net, optimizers, one, 600, score_of(loss_of))


# ------------------------------------------------------------------------------------------------ a river at a weir


class Gauge(nn.Module):
    """Foretells the next level of a river, one of 12 marks."""

    def __init__(self, marks=12, width=48):
        super().__init__()
        self.marks, self.memory = nn.Embedding(marks, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, marks)
        for weight in self.parameters():
            nn.init.uniform_(weight, -0.1, 0.1)

    def forward(self, levels, state=None):
        seen, state = self.memory(self.marks(levels), state)
        return self.head(seen), state


def river(rows, hours, marks=12):
    """Levels that rise fast with rain and fall slowly after it."""
    level, rising, found = torch.randint(marks, (rows,)), torch.zeros(rows), []
    for _ in range(hours):
        rising = torch.where(rising > 0, rising - 1, 3.0 * (torch.rand(rows) < 0.08))
        level = torch.where(rising > 0, level + 2, level - (level > 2).long()).clamp(0, marks - 1)
        found.append(level)
    return torch.stack(found, 1)


@healthy()
def level_of_a_river_at_a_weir(folder):
    seeded(2185)
    record, kept = river(20, 4001), [None]
    net = Gauge()
    optimizer = torch.optim.SGD(net.parameters(), 20.0)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [200, 260, 320, 360], 0.4)

    def loss_of(step):
        at = 20 * (step % 200)
        kept[0] = None if at == 0 else kept[0]
        logits, state = net(record[:, at : at + 20], kept[0])
        kept[0] = tuple(part.detach() for part in state)
        loss = F.cross_entropy(logits.flatten(0, 1), record[:, at + 1 : at + 21].flatten())
        return loss, {"perplexity": float(loss.detach().exp())}

    return fit(folder, net, optimizer, loss_of, 400, before_step=clipped(net, 0.25), schedule=schedule)


# ------------------------------------------------------------------------------------------------ a ferry, a library


@healthy()
def passengers_on_a_ferry(folder):
    seeded(2186)
    net, habit = dense(10, 64, 64, 5, act=nn.GELU), dense(10, 24, 5, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 0.3, momentum=0.9, nesterov=True, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 50, 2)

    def loss_of(step):
        sailing = torch.randn(128, 10)
        with torch.no_grad():
            mix = (6 * habit(sailing)).softmax(1)
        return F.kl_div(net(sailing).log_softmax(1), mix, reduction="batchmean")

    return fit(folder, net, optimizer, loss_of, 750, score=score_of(loss_of), schedule=schedule)


class Reader(nn.Module):
    """Foretells the next loan of a reader by those before it."""

    def __init__(self, books=40, width=32, most=16):
        super().__init__()
        self.book, self.place = nn.Embedding(books, width), nn.Parameter(0.02 * torch.randn(most, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, books)

    def forward(self, loans):
        mask = nn.Transformer.generate_square_subsequent_mask(loans.shape[1])
        return self.head(self.layers(self.book(loans) + self.place[: loans.shape[1]], mask))


@healthy()
def loans_of_a_library(folder):
    seeded(2187)
    sequel = torch.stack([torch.randperm(40) for _ in range(2)])
    net = Reader()
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 150, (150 / (n + 1)) ** 0.5))

    def loss_of(step):
        loans = [torch.randint(40, (32,)), torch.randint(40, (32,))]
        for _ in range(15):
            loans.append(sequel[loans[-2] % 2, loans[-1]])
        history = torch.stack(loans, 1)
        return F.cross_entropy(net(history[:, 1:-1]).flatten(0, 1), history[:, 2:].flatten())

    return fit(folder, net, optimizer, loss_of, 450, score=score_of(loss_of), schedule=schedule)
