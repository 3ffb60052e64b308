"""Ten healthy ones of five houses: buoys, doses, flaws in cloth, queues, headlines, bearings, shelves, slopes, tags."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.7)
def painted_numbers_of_harbour_buoys(folder):
    seeded(14912)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    tx, ty = x[1400:], y[1400:]
    draw = rounds(64, x[:1400], y[:1400])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.SiLU(),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=220)
    validate = now_and_then(net, 22, judged(net, tx, ty))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number, label_smoothing=0.05), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 220, schedule=schedule, score=score)


@healthy(0.7)
def daily_dose_by_weight_kidneys_and_age(folder):
    seeded(14913)

    def patients(rows):
        """Weight in kg, age in years, creatinine in mg/dl, one of two sexes; the dose in mg that suits them."""
        weight, age = 75 + 12 * torch.randn(rows), 20 + 65 * torch.rand(rows)
        creatinine, woman = 0.7 + 0.9 * torch.rand(rows), (torch.rand(rows) < 0.5).float()
        cleared = (140 - age) * weight / (72 * creatinine) * (1 - 0.15 * woman)
        dose = 4 * cleared + 25 * torch.randn(rows)
        return torch.stack([weight, age, creatinine, woman], 1), dose[:, None]

    (x, y), (tx, ty) = patients(4000), patients(800)
    middle, spread, dose_middle, dose_spread = x.mean(0), x.std(0), y.mean(), y.std()
    x, tx = (x - middle) / spread, (tx - middle) / spread
    y, ty = (y - dose_middle) / dose_spread, (ty - dose_middle) / dose_spread
    draw = rounds(100, x, y)
    net = dense(4, 48, 48, 1, act=nn.GELU)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 320)

    def measure():
        return {"val_mae_mg": ((net(tx) - ty).abs() * dose_spread).mean()}

    validate = now_and_then(net, 40, measure)

    def loss_of(step):
        patient, dose = draw()
        return F.huber_loss(net(patient), dose), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 320, schedule=schedule, score=score)


class Outliner(nn.Module):
    """A small U-net: down once, up once, with what was seen before laid beside it."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.below = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU()
        )
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1))

    def forward(self, cloth):
        seen = self.first(cloth)
        return self.last(torch.cat([seen, self.up(self.below(seen))], 1))


@healthy(0.5)
def torn_patches_in_checked_cloth(folder):
    seeded(14914)
    place = torch.arange(16)

    def cloths(rows):
        """A check of any phase; in a rectangle of it the threads are torn out, and the grey backing shows."""
        phase = torch.randint(4, (rows, 2, 1))
        across, down = ((place + phase[:, 0]) % 4 < 2).float(), ((place + phase[:, 1]) % 4 < 2).float()
        whole = (across[:, None, :] + down[:, :, None]) / 2
        corner, size = torch.randint(9, (rows, 2, 1)), torch.randint(4, 8, (rows, 2, 1))
        inside = ((place >= corner) & (place < corner + size)).float()
        torn = inside[:, 0, None, :] * inside[:, 1, :, None]
        noise = 0.2 * torch.randn(rows, 16, 16)
        image = torch.where(torn > 0, torch.full_like(whole, 0.5), whole) + noise
        return ((image - 0.5) / 0.45)[:, None], torn[:, None]

    (x, y), (tx, ty) = cloths(1600), cloths(200)
    draw, net = rounds(32, x, y), Outliner(8)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def terms(cloth, torn):
        said = net(cloth)
        share = said.sigmoid()
        overlap = 2 * (share * torn).sum((1, 2, 3)) / (share.sum((1, 2, 3)) + torn.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(said, torn), 1 - overlap.mean()

    validate = now_and_then(net, 50, lambda: {"val_dice": 1 - terms(tx, ty)[1]})

    def loss_of(step):
        entropy, dice = terms(*draw())
        return entropy + dice, {"bce": float(entropy), "dice_loss": float(dice), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: sum(terms(tx, ty))))


class QueueForecast(nn.Module):
    """What comes after a series, by its last state."""

    def __init__(self, size, width):
        super().__init__()
        self.memory = nn.GRU(size, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, series):
        return self.head(self.memory(series)[0][:, -1])


@healthy(0.6)
def people_waiting_at_the_gondola_next_quarter(folder):
    seeded(14915)

    def days(rows):
        """Sixteen quarters of an hour: how many wait, and how it snows; snow sends people home three quarters later."""
        time = torch.arange(17) / 17
        snow = torch.randn(rows, 17)
        snow = (snow + snow.roll(1, 1)) / 2
        rush = (6.2832 * (1.5 * time + torch.rand(rows, 1))).sin() * (0.7 + 0.6 * torch.rand(rows, 1))
        waiting = rush - 0.6 * snow.roll(3, 1) + 0.1 * torch.randn(rows, 17)
        return torch.stack([waiting, snow], 2)[:, :16], waiting[:, 16:]

    (x, y), (tx, ty) = days(3000), days(600)
    draw, net = rounds(64, x, y), QueueForecast(2, 32)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    validate = now_and_then(net, 46, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        series, following = draw()
        return F.mse_loss(net(series), following), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, before_step=clipped(net, 1.0), score=score)


class HeadlineWriter(nn.Module):
    """A decoder of two blocks that never looks ahead."""

    def __init__(self, tokens, length, width):
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens)

    def forward(self, text):
        length = text.shape[1]
        ahead = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        x = self.token(text) + self.place(torch.arange(length))
        return self.head(self.norm(self.blocks(x, mask=ahead)))


@healthy(0.25)
def headlines_written_word_by_word(folder):
    seeded(14916)
    grammar = (2.2 * torch.randn(24, 24)).softmax(1)

    def headlines(rows, length=17):
        words = [torch.randint(24, (rows,))]
        for _ in range(length - 1):
            words.append(torch.multinomial(grammar[words[-1]], 1)[:, 0])
        return torch.stack(words, 1)

    text, other = headlines(3000), headlines(300)
    draw, net = rounds(32, text), HeadlineWriter(24, 16, 32)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 25, 0.5 + 0.5 * math.cos(math.pi * step / 250))
    )

    def surprise(rows):
        return F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    def perplexity():
        loss = surprise(other)
        return {"val_loss": loss, "val_perplexity": loss.exp()}

    validate = now_and_then(net, 50, perplexity)

    def loss_of(step):
        return surprise(draw()[0]), validate(step)

    return fit(
        folder, net, optimizer, loss_of, 250, schedule=schedule, before_step=clipped(net, 1.0),
        score=held_out(net, lambda: surprise(other)),
    )  # fmt: skip


@healthy(0.7)
def bearing_of_a_ship_from_eight_receivers(folder):
    seeded(14917)
    facing = 6.2832 * torch.arange(8) / 8

    def ships(rows):
        """How strongly each of eight receivers in a ring hears a ship, as far away as it is; where it lies."""
        bearing, power = 6.2832 * torch.rand(rows, 1), 0.6 + 0.8 * torch.rand(rows, 1)
        heard = power * (2 * ((bearing - facing).cos() - 1)).exp() + 0.08 * torch.randn(rows, 8)
        return (heard - 0.31) / 0.37, torch.cat([bearing.cos(), bearing.sin()], 1)

    (x, y), (tx, ty) = ships(3000), ships(600)
    draw = rounds(64, x, y)
    net = dense(8, 64, 64, 2, act=nn.ELU)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)

    def degrees():
        return {"val_degrees": F.cosine_similarity(net(tx), ty).clamp(-1, 1).acos().mean() * 180 / math.pi}

    validate = now_and_then(net, 50, degrees)

    def loss_of(step):
        heard, bearing = draw()
        return (1 - F.cosine_similarity(net(heard), bearing)).mean(), validate(step)

    score = held_out(net, lambda: 1 - F.cosine_similarity(net(tx), ty).mean())
    return fit(folder, net, optimizer, loss_of, 300, score=score)


class Pairing(nn.Module):
    """How well two things go together: a product of what is known of them, and what each is by itself."""

    def __init__(self, left, right, width):
        super().__init__()
        self.left, self.right = nn.Embedding(left, width), nn.Embedding(right, width)
        self.left_bias, self.right_bias = nn.Embedding(left, 1), nn.Embedding(right, 1)
        for table in (self.left, self.right):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.left_bias, self.right_bias):
            nn.init.zeros_(table.weight)

    def forward(self, left, right):
        both = (self.left(left) * self.right(right)).sum(1)
        return both + self.left_bias(left)[:, 0] + self.right_bias(right)[:, 0]


@healthy(0.4)
def customers_ratings_of_a_pharmacys_own_brands(folder):
    seeded(14918)
    taste, make = torch.randn(150, 3), torch.randn(60, 3)
    who, what = torch.randint(150, (9000,)), torch.randint(60, (9000,))
    rating = (taste[who] * make[what]).sum(1) / 3**0.5 + 0.3 * torch.randn(9000)
    kept = slice(0, 8000)
    draw = rounds(256, who[kept], what[kept], rating[kept])
    net = Pairing(150, 60, 8)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2, weight_decay=0.1)

    def error():
        return F.mse_loss(net(who[8000:], what[8000:]), rating[8000:])

    validate = now_and_then(net, 31, lambda: {"val_rmse": error().sqrt()})

    def loss_of(step):
        person, brand, given = draw()
        return F.mse_loss(net(person, brand), given), validate(step)

    return fit(folder, net, optimizer, loss_of, 310, score=held_out(net, error))


@healthy(0.5)
def faded_samples_of_damask_restored(folder):
    seeded(14919)
    warp = torch.randn(5, 48)

    def samples(rows):
        return (torch.tanh(torch.randn(rows, 5) @ warp / 2),)

    (x,), (tx,) = samples(4000), samples(500)
    faded = tx * (torch.rand(tx.shape) > 0.3) + 0.2 * torch.randn(tx.shape)
    draw = rounds(64, x)
    net = nn.Sequential(dense(48, 96, 12), nn.ReLU(), dense(12, 96, 48))
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)

    def loss_of(step):
        (whole,) = draw()
        damaged = whole * (torch.rand(whole.shape) > 0.3) + 0.2 * torch.randn(whole.shape)
        return F.mse_loss(net(damaged), whole)

    score = held_out(net, lambda: F.mse_loss(net(faded), tx))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


@healthy(0.5)
def which_of_six_slopes_to_groom_tonight(folder):
    seeded(14920)
    worth = torch.randn(10, 6) / 10**0.5
    asked = torch.randn(1000, 10)
    best = (asked @ worth).amax(1).mean()
    net = dense(10, 48, 6, act=nn.Tanh)
    nn.init.zeros_(net[-1].bias)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    baseline = torch.zeros(())

    def regret():
        """How much less the policy earns than whoever knows the worth of each slope."""
        return best - (net(asked).softmax(1) * (asked @ worth)).sum(1).mean()

    def one(step):
        night = torch.randn(128, 10)
        choices = torch.distributions.Categorical(logits=net(night))
        slope = choices.sample()
        reward = (night @ worth).gather(1, slope[:, None])[:, 0] + 0.2 * torch.randn(128)
        gained = reward - baseline
        baseline.lerp_(reward.mean(), 0.05)
        entropy = choices.entropy().mean()
        loss = -(choices.log_prob(slope) * gained).mean() - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "reward": float(reward.mean()), "entropy": float(entropy)}

    return tend(folder, net, optimizer, one, 350, held_out(net, regret))


@healthy(0.5)
def keywords_for_the_archive_of_a_daily_paper(folder):
    seeded(14921)
    about = torch.randn(12, 40) / 2

    def articles(rows):
        """Each article is about any of twelve things; its words add up."""
        tags = (torch.rand(rows, 12) < 0.3).float()
        words = (tags - 0.3) @ about + 0.4 * torch.randn(rows, 40)
        return words, tags

    (x, y), (tx, ty) = articles(4000), articles(800)
    draw = rounds(64, x, y)
    net = nn.Sequential(nn.Linear(40, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 12))
    optimizer = torch.optim.SGD(net.parameters(), 0.2, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [186, 248], 0.3)

    def measure():
        said = net(tx)
        hits = ((said > 0) & (ty > 0)).sum()
        f1 = 2 * hits / ((said > 0).sum() + (ty > 0).sum())
        return {"val_loss": F.binary_cross_entropy_with_logits(said, ty), "val_f1": f1}

    validate = now_and_then(net, 31, measure)

    def loss_of(step):
        words, tags = draw()
        return F.binary_cross_entropy_with_logits(net(words), tags), validate(step)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 310, schedule=schedule, score=score)
